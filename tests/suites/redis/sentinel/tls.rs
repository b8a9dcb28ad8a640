//! Sentinels and servers over TLS, independently of each other.

use std::net::TcpListener;

use lockcore::{BackendErrorKind, Locks};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{RedisSentinel, RedisServer};

use crate::{
    errors::certificates,
    support::{listened_to, soon},
};

/// A server over TLS that a Sentinel knows as `sealed`, and that Sentinel, which also knows a
/// server without TLS.
struct Sealed {
    server: RedisServer,
    group: RedisSentinel,
    /// The address at which the Sentinel is reached over TLS.
    sentinel: String,
    authority: Vec<u8>,
}

impl Sealed {
    async fn start() -> Self {
        let files = RedisServer::start();
        let [authority, certificate, key] = certificates(files.directory());
        let server = RedisServer::start_tls(&authority, &certificate, &key);
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let group = RedisSentinel::builder().replicas(0).sentinels(1);
        let group = group
            .sentinel_line(format!("tls-port {free}"))
            .sentinel_line("tls-auth-clients no")
            .sentinel_line(format!("tls-ca-cert-file {authority}"))
            .sentinel_line(format!("tls-cert-file {certificate}"))
            .sentinel_line(format!("tls-key-file {key}"))
            .sentinel_line(format!("sentinel monitor sealed 127.0.0.1 {} 1", server.tls_port()))
            .start()
            .await;
        let authority = std::fs::read(authority).unwrap();
        Self { server, group, sentinel: format!("localhost:{free}"), authority }
    }

    /// A client that trusts the private authority.
    fn client(&self) -> redis::Client {
        let root_cert = Some(self.authority.clone());
        let trusted = redis::TlsCertificates { client_tls: None, root_cert };
        redis::Client::build_with_tls("rediss://unused", trusted).unwrap()
    }
}

async fn works(backend: RedisBackend, server: &RedisServer) {
    let locks = Locks::new(backend);
    let guard = locks.lock("sealed").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.lock("sealed");
        async move { lock.acquire().await.unwrap().release().await.unwrap() }
    });
    listened_to(server, "sealed").await;
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap();
}

#[tokio::test]
async fn servers_and_sentinels_are_reached_over_tls_each_on_its_own() {
    let sealed = Sealed::start().await;
    let (open, over_tls) = (sealed.group.sentinel(0).address(), &sealed.sentinel);

    let both = RedisBackend::sentinel([over_tls], "sealed");
    let both = both.client(sealed.client()).sentinel_client(sealed.client());
    works(both.connect().await.unwrap(), &sealed.server).await;
    let server_only = RedisBackend::sentinel([open], "sealed").client(sealed.client());
    works(server_only.connect().await.unwrap(), &sealed.server).await;
    let sentinel_only = RedisBackend::sentinel([over_tls], sealed.group.master_name());
    let sentinel_only = sentinel_only.sentinel_client(sealed.client());
    works(sentinel_only.connect().await.unwrap(), sealed.group.server(0)).await;
}

#[tokio::test]
async fn an_unknown_authority_and_a_missing_tls_are_refused() {
    let sealed = Sealed::start().await;
    let (open, over_tls) = (sealed.group.sentinel(0).address(), &sealed.sentinel);
    let rediss = RedisBackend::sentinel([format!("rediss://{over_tls}")], "sealed");
    let url = RedisBackend::builder().url(format!("rediss+sentinel://{over_tls}/sealed"));
    for untrusted in [rediss, url] {
        let error = untrusted.connect().await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
        assert!(error.to_string().contains(over_tls), "{error}");
    }
    // No fall-back to plain text.
    let plain = RedisBackend::sentinel([open], "sealed").sentinel_client(sealed.client());
    assert!(plain.connect().await.is_err());
    let plain = RedisBackend::sentinel([over_tls], "sealed");
    assert!(plain.connect().await.is_err());
}
