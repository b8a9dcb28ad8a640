//! Helpers shared by the suites.

use std::{sync::Arc, time::Duration};

use etcd_client::{Client, GetOptions};
use lockcore::{
    BackendError, FencingToken, LockName,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId},
};
use lockcore_etcd::{EtcdBackend, EtcdBackendBuilder};
use lockcore_testkit::{EtcdCluster, Proxy};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use crate::shown::shown;
pub(crate) use crate::waiting::{soon, until};

/// Longer than any test.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// Must never be shown.
pub(crate) const PASSWORD: &str = "hunter2-the-secret";

pub(crate) async fn connect(cluster: &EtcdCluster) -> EtcdBackend {
    EtcdBackend::connect(cluster.addresses()).await.unwrap()
}

/// A proxy in front of the first member.
pub(crate) async fn proxy(cluster: &EtcdCluster) -> Proxy {
    let address = cluster.addresses()[0].clone();
    let (_, port) = address.rsplit_once(':').unwrap();
    Proxy::start_opaque(port.parse().unwrap()).await.unwrap()
}

pub(crate) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

pub(crate) fn request(lock: &str, hold: &str) -> AcquireRequest {
    AcquireRequest::new(name(lock), HoldId::unique(hold), LEASE)
}

/// Shows that the hold is granted.
pub(crate) async fn enters(backend: &EtcdBackend, request: &AcquireRequest) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        AcquireOutcome::Acquired { token } => token,
        outcome => panic!("refused: {outcome:?}"),
    }
}

pub(crate) async fn is_held(backend: &EtcdBackend, lock: &str) -> bool {
    backend.inspect(&name(lock)).await.unwrap().is_held()
}

/// The keys that begin with the default prefix.
pub(crate) async fn keys(client: &Client) -> Vec<String> {
    let all = GetOptions::new().with_prefix().with_keys_only();
    let found = client.kv_client().get("lockcore/", Some(all)).await.unwrap();
    found.kvs().iter().map(|pair| String::from_utf8_lossy(pair.key()).into_owned()).collect()
}

/// All current leases.
pub(crate) async fn leases(client: &Client) -> Vec<i64> {
    // A member lists the leases that it has heard of. Before it answers this, it catches up. While
    // the leader changes, it fails.
    soon("an answer of the leader", async {
        while client.kv_client().get("any key", None).await.is_err() {}
    })
    .await;
    client.lease_client().leases().await.unwrap().leases().iter().map(|lease| lease.id()).collect()
}

/// Shows that the attempt to connect fails, has no effect, and shows no password.
pub(crate) async fn fails(builder: EtcdBackendBuilder) -> BackendError {
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
    let error = soon("an answer", builder.connect()).await.unwrap_err();
    assert!(!shown(&error).contains(PASSWORD), "{}", shown(&error));
    assert!(!error.is_outcome_unknown(), "{error}");
    error
}

/// An address whose server can be replaced by another one.
pub(crate) struct Gate {
    port: u16,
    leads_to: Arc<watch::Sender<String>>,
    task: JoinHandle<()>,
}

impl Gate {
    pub(crate) async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let leads_to = Arc::new(watch::Sender::new(server.to_owned()));
        let servers = leads_to.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut changed = servers.subscribe();
                let server = changed.borrow_and_update().clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = changed.changed() => {}
                    }
                });
            }
        });
        Self { port, leads_to, task }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends all connections. New ones lead to this server.
    pub(crate) fn leads_to(&self, server: &str) {
        self.leads_to.send_replace(server.to_owned());
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}
