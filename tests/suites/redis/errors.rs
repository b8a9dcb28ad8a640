//! Problems with a server or a request: a clear error of its own kind, no partial effect, no
//! endless retry.

use std::{
    error::Error,
    process::Command,
    time::{Duration, Instant},
};

use lockcore::{
    BackendError, BackendErrorKind, LockError, LockGuard, Locks, Mode, Owner,
    backend::{Backend, ConditionId, Departure, ReleaseOutcome, ResizeRequest, SubscribeRequest},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::steps::{LEASE, enters, hold, name, refused_for, releases, renews, request, state};
use crate::support::{assert_nothing_left, builder, listened_to, locks, soon, until};

fn kind_of(error: &LockError) -> BackendErrorKind {
    match error {
        LockError::Backend(error) => error.kind(),
        error => panic!("not an error of the backend: {error}"),
    }
}

/// A lease that is renewed in time on a busy machine, although it stands still for a second.
pub(crate) const RENEWED: Duration = Duration::from_secs(2);

/// Shows that a hold with the lease [`RENEWED`] is renewed.
async fn outlives_the_lease(guard: &LockGuard) {
    let lost = tokio::time::timeout(RENEWED + RENEWED / 4, guard.lost()).await;
    assert!(lost.is_err(), "{}: {lost:?}", guard.name());
}

/// Shows that acquiring soon fails with `kind`, and that the error names the lock and the remedy.
async fn assert_refused(locks: &Locks, name: &str, kind: BackendErrorKind) -> LockError {
    let start = Instant::now();
    let error = locks.lock(name).acquire().await.unwrap_err();
    assert_eq!(kind_of(&error), kind, "{error}");
    assert!(error.to_string().contains(name), "names the lock: {error}");
    assert!(start.elapsed() < Duration::from_secs(3), "no retry can help, so none is made");
    error
}

#[tokio::test]
async fn full_memory_refuses_new_holds_and_nothing_else() {
    let server = RedisServer::start();
    let locks = builder(&server).await.lease(RENEWED).build().unwrap();
    let guard = locks.lock("held").acquire().await.unwrap();
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "1"]).await;

    assert_refused(&locks, "new", BackendErrorKind::OutOfMemory).await;
    assert!(!server.query::<bool>(&["EXISTS", "new"]).await);
    outlives_the_lease(&guard).await;
    guard.release().await.unwrap();
    assert!(!server.query::<bool>(&["EXISTS", "held"]).await);

    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    locks.lock("new").acquire().await.unwrap().release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn another_type_under_the_name_is_left_alone() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let _: String = server.query(&["SET", "invoice", "precious"]).await;
    assert_refused(&locks, "invoice", BackendErrorKind::WrongType).await;
    let lock = locks.lock("invoice");
    assert_eq!(kind_of(&lock.try_acquire().await.unwrap_err()), BackendErrorKind::WrongType);
    assert_eq!(kind_of(&lock.state().await.unwrap_err()), BackendErrorKind::WrongType);
    assert_eq!(kind_of(&lock.force_release().await.unwrap_err()), BackendErrorKind::WrongType);
    assert_eq!(server.query::<String>(&["GET", "invoice"]).await, "precious");
}

#[tokio::test]
async fn one_overwritten_lock_does_not_keep_the_others_from_being_renewed() {
    let server = RedisServer::start();
    let locks = builder(&server).await.lease(RENEWED).build().unwrap();
    let spoilt = locks.lock("spoilt").acquire().await.unwrap();
    let sound = locks.lock("sound").acquire().await.unwrap();
    let _: String = server.query(&["SET", "spoilt", "overwritten"]).await;
    soon("the loss of the overwritten lock", spoilt.lost()).await;
    outlives_the_lease(&sound).await;
    sound.release().await.unwrap();
}

pub(crate) async fn connect_as(
    server: &RedisServer,
    user: &str,
) -> Result<RedisBackend, BackendError> {
    RedisBackend::connect(format!("redis://{user}:pw@127.0.0.1:{}", server.port())).await
}

/// The rights that the documentation of the crate lists.
pub(crate) const LEAST_RIGHTS: &str = "resetkeys resetchannels nocommands \
    ~locks:* ~{locks:*}:* ~redisson_lock_token:* ~redisson_lock_queue:* ~redisson_lock_timeout:* ~lockcore_* \
    &redisson_* &lockcore_* \
    +hello +client +info +eval +evalsha +time +publish +subscribe +unsubscribe +ping \
    +del +exists +get +hdel +hget +hgetall +hmget +hset +pexpire +pttl +set +type +zrangebyscore \
    +lindex +lpop +lpos +lrange +lrem +rpush +zadd +zincrby +zrange +zrem +zscore \
    +hexists +hlen +zremrangebyscore \
    +hkeys +incrby +persist +zcard +zcount \
    +decr";

pub(crate) async fn set_user(server: &RedisServer, user: &str, rights: &str) {
    let mut command = vec!["ACL", "SETUSER", user, "on", ">pw"];
    command.extend(rights.split_whitespace());
    let _: String = server.query(&command).await;
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", LEAST_RIGHTS).await;
    let locks = Locks::builder(connect_as(&server, "worker").await.unwrap())
        .namespace("locks:")
        .lease(RENEWED)
        .build()
        .unwrap();
    let job = Owner::named("job-17");
    for lock in [locks.lock("a"), locks.lock("a").owned_by(&job), locks.fair_lock("a")] {
        let guard = lock.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = locks.lock("a");
            async move { lock.acquire().await.unwrap().release().await.unwrap() }
        });
        listened_to(&server, "locks:a").await;
        outlives_the_lease(&guard).await;
        assert!(lock.state().await.unwrap().is_held());
        guard.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap();
        let _held = lock.acquire().await.unwrap();
        assert!(lock.force_release().await.unwrap());
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn each_kind_needs_the_rights_of_its_line_and_of_those_before() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let rights_before = |command: &str| LEAST_RIGHTS.split_once(command).unwrap().0;
    let kinds: [(&str, &[Mode]); 4] = [
        (rights_before("+lindex"), &[Mode::Exclusive]),
        (rights_before("+hexists"), &[Mode::Fair]),
        (rights_before("+hkeys"), &[Mode::Read, Mode::Write]),
        (rights_before("+decr"), &[Mode::permits(2, 3), Mode::plain_permits(2, 3)]),
    ];
    for (rights, modes) in kinds {
        set_user(&server, "worker", rights).await;
        let backend = connect_as(&server, "worker").await.unwrap();
        for (index, mode) in modes.iter().enumerate() {
            let (lock, other) = (format!("locks:{mode}:{index}"), hold("b:1"));
            let holding = request(&lock, &hold("a:1"), *mode);
            let waiting = SubscribeRequest::new(name(&lock), other.clone()).mode(*mode);
            let _wakeups = backend.subscribe(&waiting).await.unwrap();
            enters(&backend, &holding).await;
            assert!(
                refused_for(
                    &backend,
                    &request(&lock, &other, mode_to_refuse(*mode)).queue(Some(LEASE))
                )
                .await
                .is_some()
            );
            releases(&backend, &request(&lock, &other, mode_to_refuse(*mode))).await;
            assert!(renews(&backend, &holding, LEASE * 2).await);
            assert!(state(&backend, &lock).await.is_held());
            assert_eq!(releases(&backend, &holding).await, ReleaseOutcome::Released);
            enters(&backend, &holding).await;
            assert!(backend.force_release(&name(&lock)).await.unwrap());
            if let Mode::Permit { plain: false, .. } = mode {
                backend.resize(&ResizeRequest::new(name(&lock), 5)).await.unwrap();
            }
        }
    }
    let backend = connect_as(&server, "worker").await.unwrap();
    let (conditions, condition) =
        (backend.conditions().unwrap(), ConditionId::new(name("locks:a"), name("full")));
    for waiter in ["a", "b"] {
        let _wakeups = conditions.subscribe(&condition, waiter).await.unwrap();
        conditions.join(&condition, waiter, LEASE).await.unwrap();
    }
    assert!(conditions.stay(&condition, "a", LEASE).await.unwrap());
    assert_eq!(conditions.notify(&condition, 1).await.unwrap(), 1);
    assert!(conditions.leave(&condition, "b", Departure::Cancelled).await.unwrap());

    set_user(&server, "worker", LEAST_RIGHTS).await;
    let (latches, gate) = (backend.latches().unwrap(), name("locks:gate"));
    let _wakeups = latches.subscribe(&gate).await.unwrap();
    assert!(
        latches.set_count(&gate, 3, "1").await.unwrap()
            && !latches.set_count(&gate, 3, "2").await.unwrap()
    );
    assert_eq!(latches.count_down(&gate, "1").await.unwrap(), 2);
    assert_eq!((latches.count(&gate).await.unwrap(), latches.open(&gate).await.unwrap()), (2, 2));
}

/// The mode of a second hold that is refused because of one in `mode`.
fn mode_to_refuse(mode: Mode) -> Mode {
    if mode == Mode::Read { Mode::Write } else { mode }
}

#[tokio::test]
async fn a_missing_right_is_a_clear_error_and_leaves_nothing() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    for missing in ["pexpire", "hset", "evalsha", "time", "set"] {
        set_user(&server, "poor", &format!("reset on >pw {LEAST_RIGHTS} -{missing}")).await;
        let locks = Locks::new(connect_as(&server, "poor").await.unwrap());
        assert_refused(&locks, "locks:a", BackendErrorKind::Permission).await;
        let keys: Vec<String> = server.query(&["KEYS", "locks:*"]).await;
        assert!(keys.is_empty(), "without {missing}: {keys:?}");
    }
    set_user(&server, "poor", &format!("reset on >pw {LEAST_RIGHTS}")).await;
    let locks = Locks::new(connect_as(&server, "poor").await.unwrap());
    assert_refused(&locks, "elsewhere", BackendErrorKind::Permission).await;
}

#[tokio::test]
async fn a_release_that_may_not_publish_has_released_all_the_same() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "mute", &format!("{LEAST_RIGHTS} -publish")).await;
    let locks = Locks::new(connect_as(&server, "mute").await.unwrap());
    locks.lock("locks:a").acquire().await.unwrap().release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_waiter_that_may_not_listen_is_told() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "deaf", &format!("{LEAST_RIGHTS} resetchannels")).await;
    let holder = locks(&server).await;
    let guard = holder.lock("locks:a").acquire().await.unwrap();
    let deaf = Locks::new(connect_as(&server, "deaf").await.unwrap());
    assert_refused(&deaf, "locks:a", BackendErrorKind::Permission).await;
    guard.release().await.unwrap();
    deaf.lock("locks:a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn wrong_credentials_are_told_from_a_server_that_is_down() {
    let mut server = RedisServer::start_with(&["--requirepass", "right"]);
    for url in [server.url(), format!("redis://:wrong@127.0.0.1:{}", server.port())] {
        let error = RedisBackend::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
        assert!(!error.is_retryable());
    }
    RedisBackend::connect(format!("redis://:right@127.0.0.1:{}", server.port())).await.unwrap();
    server.kill();
    let error = RedisBackend::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    assert!(error.to_string().contains(&server.port().to_string()), "names the address: {error}");
    assert!(error.source().is_some(), "keeps what is behind it");
}

#[tokio::test]
async fn a_replica_is_refused_at_connect_and_noticed_later() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    let locks = locks(&replica).await;
    let guard = locks.lock("before").acquire().await.unwrap();
    let _: String = replica.query(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).await;

    let error = RedisBackend::connect(replica.url()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::ReadOnly, "{error}");
    // LOADING and MASTERDOWN come first while it synchronizes, and are temporary.
    until("the refusal", || async {
        let error = locks.lock("after").try_acquire().await.unwrap_err();
        assert!(matches!(&error, LockError::Backend(error) if error.is_retryable()), "{error}");
        kind_of(&error) == BackendErrorKind::ReadOnly
    })
    .await;
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, LockError::Backend(_) | LockError::Lost { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_evicts_locks_is_refused_unless_that_is_accepted() {
    let server =
        RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"]);
    let error = RedisBackend::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration);
    assert!(
        error.to_string().contains("volatile-ttl") && error.to_string().contains("noeviction"),
        "{error}"
    );
    let backend =
        RedisBackend::builder().url(server.url()).allow_eviction().connect().await.unwrap();
    Locks::new(backend).lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_node_that_belongs_to_no_cluster_yet_is_refused() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let error = RedisBackend::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("has no slots"), "{error}");
}

#[tokio::test]
async fn a_sentinel_is_refused() {
    let server = RedisServer::start_sentinel();
    let error = RedisBackend::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
}

#[tokio::test]
async fn bad_options_are_refused_before_any_connection() {
    for (builder, about) in [
        (RedisBackend::builder().url("127.0.0.1:6379"), "redis://"),
        (RedisBackend::builder().url("http://127.0.0.1"), "redis://"),
        (RedisBackend::builder().url("redis://127.0.0.1/x"), "redis://"),
        (RedisBackend::builder().response_timeout(Duration::ZERO), "response_timeout"),
        (RedisBackend::builder().connect_timeout(Duration::ZERO), "connect_timeout"),
        (RedisBackend::builder().key_prefix("a{b"), "key_prefix"),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains(about), "{error}");
    }
}

#[tokio::test]
async fn bad_names_leases_and_owners_cost_no_command() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let before = server.client_commands().await;
    for name in ["", "a\0b", "a{b", "a}b", "{}", &"x".repeat(513)] {
        let error = locks.lock(name).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidName { .. }), "{name:?}: {error}");
        assert!(
            locks.lock(name).state().await.is_err()
                && locks.lock(name).force_release().await.is_err()
        );
    }
    for lease in [
        Duration::ZERO,
        Duration::from_micros(999),
        Duration::from_secs(365 * 24 * 3600 + 1),
        Duration::MAX,
    ] {
        let error = locks.lock("a").lease(lease).try_acquire().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidOption { .. }), "{lease:?}: {error}");
        assert!(
            error.to_string().contains("`a`") && error.to_string().contains("365 days"),
            "{error}"
        );
    }
    let error = locks.lock("a").owned_by(&Owner::named("x:write")).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::InvalidOption { .. }), "{error}");
    let error = locks.lock("redisson_lock_token:{a}").acquire().await.unwrap_err();
    assert!(error.to_string().contains("reserved"), "{error}");
    assert_eq!(server.client_commands().await, before);
}

#[tokio::test]
async fn the_longest_and_the_shortest_lease_are_kept_exactly() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let year = Duration::from_secs(365 * 24 * 3600);
    let guard = locks.lock("year").lease(year).acquire().await.unwrap();
    let left: i64 = server.query(&["PTTL", "year"]).await;
    assert!(left > 365 * 24 * 3_600_000 - 60_000, "{left}");
    guard.release().await.unwrap();
    // A lease that ends before the answer arrives is not a hold, and asking again would not help.
    let blink = locks.lock("blink").lease(Duration::from_millis(1));
    let error = soon("the error", blink.acquire()).await.unwrap_err();
    assert!(matches!(error, LockError::Backend(_)), "{error}");
    assert!(error.to_string().contains("use a longer lease"), "{error}");
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn unix_socket_database_and_user_are_taken_from_the_url() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", "~* &* +@all").await;
    let by_socket = format!("unix://{}?db=3&user=worker&pass=pw", server.socket().display());
    let by_tcp = format!("redis://worker:pw@127.0.0.1:{}/3", server.port());
    let (one, other) = (
        Locks::new(RedisBackend::connect(by_socket).await.unwrap()),
        Locks::new(RedisBackend::connect(by_tcp).await.unwrap()),
    );
    let guard = one.lock("a").acquire().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_none(), "both are in database 3");
    assert!(
        locks(&server).await.lock("a").try_acquire().await.unwrap().is_some(),
        "and not in database 0"
    );
    let clients: String = server.query(&["CLIENT", "LIST"]).await;
    assert_eq!(
        clients
            .lines()
            .filter(|line| line.contains("user=worker") && line.contains("db=3"))
            .count(),
        2
    );
    guard.release().await.unwrap();
}

/// A private certificate authority and a server certificate, made by openssl.
pub(crate) fn certificates(directory: &std::path::Path) -> [String; 3] {
    let path = |file: &str| directory.join(file).display().to_string();
    let openssl = |args: &[&str]| {
        let made = Command::new("openssl").args(args).current_dir(directory).output();
        let made = made.expect(
            "openssl is needed to make a certificate: run ./scripts/test, or install openssl",
        );
        assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    };
    std::fs::write(path("san.txt"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=lockcore test",
        "-days",
        "2",
    ]);
    openssl(&[
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "server.key",
        "-out",
        "server.csr",
        "-subj",
        "/CN=localhost",
    ]);
    openssl(&[
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-out",
        "server.pem",
        "-days",
        "2",
        "-extfile",
        "san.txt",
    ]);
    [path("ca.pem"), path("server.pem"), path("server.key")]
}

#[tokio::test]
async fn tls_works_with_a_private_authority_and_fails_closed_without() {
    let plain = RedisServer::start();
    let [ca, certificate, key] = certificates(plain.directory());
    let server = RedisServer::start_tls(&ca, &certificate, &key);
    let url = format!("rediss://localhost:{}", server.tls_port());

    let error = RedisBackend::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Connection, "an unknown authority: {error}");
    let error =
        RedisBackend::connect(format!("rediss://127.0.0.1:{}", plain.port())).await.unwrap_err();
    assert!(
        error.is_retryable() || error.kind() == BackendErrorKind::Protocol,
        "no fall-back to plain text: {error}"
    );

    let trusted =
        redis::TlsCertificates { client_tls: None, root_cert: Some(std::fs::read(&ca).unwrap()) };
    let client = redis::Client::build_with_tls(url, trusted).unwrap();
    let backend = RedisBackend::builder().client(client).connect().await.unwrap();
    let locks = Locks::new(backend);
    let guard = locks.lock("sealed").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.lock("sealed");
        async move { lock.acquire().await.unwrap().release().await.unwrap() }
    });
    listened_to(&server, "sealed").await;
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap();
}
