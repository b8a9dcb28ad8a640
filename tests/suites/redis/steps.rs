//! Requests to the backend and their answers, for tests that inspect the keys.

use std::{collections::HashMap, time::Duration};

use lockcore::{
    BackendErrorKind, FencingToken, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseOutcome, ReleaseRequest,
        RenewOutcome, RenewRequest,
    },
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

/// Longer than any test.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// A thread of a Java process.
pub(crate) const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:44";

pub(crate) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

pub(crate) fn hold(id: &str) -> HoldId {
    HoldId::unique(id)
}

pub(crate) fn request(lock: &str, hold: &HoldId, mode: Mode) -> AcquireRequest {
    AcquireRequest::new(name(lock), hold.clone(), LEASE).mode(mode)
}

/// Shows that the hold is granted.
pub(crate) async fn enters(backend: &RedisBackend, request: &AcquireRequest) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        AcquireOutcome::Acquired { token } => token,
        outcome => panic!("refused: {outcome:?}"),
    }
}

/// Shows that the hold is refused, and returns how many ms the others continue.
pub(crate) async fn refused_for(backend: &RedisBackend, request: &AcquireRequest) -> Option<u64> {
    match backend.acquire(request).await.unwrap() {
        AcquireOutcome::Held { remaining } => remaining.map(|left| left.as_millis() as u64),
        outcome => panic!("not refused: {outcome:?}"),
    }
}

pub(crate) async fn assert_wrong_type(backend: &RedisBackend, request: &AcquireRequest) {
    let error = backend.acquire(request).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
    assert!(!error.is_outcome_unknown(), "{error}");
}

pub(crate) async fn releases(backend: &RedisBackend, request: &AcquireRequest) -> ReleaseOutcome {
    backend.release(&request.release()).await.unwrap()
}

pub(crate) async fn lowers(
    backend: &RedisBackend,
    request: &AcquireRequest,
    remaining: u32,
) -> ReleaseOutcome {
    let release = ReleaseRequest::new(request.name.clone(), request.hold.clone());
    backend.release(&release.mode(request.mode).remaining(remaining)).await.unwrap()
}

pub(crate) async fn renews(
    backend: &RedisBackend,
    request: &AcquireRequest,
    lease: Duration,
) -> bool {
    let renewal =
        RenewRequest::new(request.name.clone(), request.hold.clone(), lease).mode(request.mode);
    match backend.renew(&[renewal]).await.unwrap().pop() {
        Some(RenewOutcome::Renewed) => true,
        Some(RenewOutcome::NotHeld) => false,
        outcome => panic!("{outcome:?}"),
    }
}

pub(crate) async fn state(backend: &RedisBackend, lock: &str) -> LockState {
    backend.inspect(&name(lock)).await.unwrap()
}

/// Owner, mode and count of each holder, sorted by owner.
pub(crate) fn holders(state: &LockState) -> Vec<(&str, Mode, u32)> {
    let holders = state.holders().iter();
    let mut holders: Vec<_> =
        holders.map(|holder| (holder.owner(), holder.mode(), holder.hold_count())).collect();
    holders.sort_by_key(|(owner, ..)| *owner);
    holders
}

pub(crate) async fn hash(server: &RedisServer, key: &str) -> HashMap<String, String> {
    server.query(&["HGETALL", key]).await
}

pub(crate) async fn exists(server: &RedisServer, key: &str) -> bool {
    server.query(&["EXISTS", key]).await
}

pub(crate) async fn pttl(server: &RedisServer, key: &str) -> i64 {
    server.query(&["PTTL", key]).await
}

/// All keys but tokens, sorted.
pub(crate) async fn keys(server: &RedisServer) -> Vec<String> {
    let keys: Vec<String> = server.query(&["KEYS", "*"]).await;
    let mut keys: Vec<String> =
        keys.into_iter().filter(|key| !key.starts_with("redisson_lock_token:")).collect();
    keys.sort();
    keys
}

/// A subscription like Redisson's, to see what is published.
pub(crate) struct Messages(
    redis::aio::PubSubStream,
    #[expect(dead_code, reason = "it keeps the subscription")] redis::aio::PubSubSink,
);

impl Messages {
    pub(crate) async fn of(server: &RedisServer, channel: &str) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let (mut sink, messages) = client.get_async_pubsub().await.unwrap().split();
        sink.subscribe(channel).await.unwrap();
        Self(messages, sink)
    }

    pub(crate) async fn next(&mut self) -> String {
        use std::{future::poll_fn, pin::Pin};
        let next =
            poll_fn(|context| futures_core::Stream::poll_next(Pin::new(&mut self.0), context));
        crate::support::soon("the message", next).await.unwrap().get_payload().unwrap()
    }
}

/// Fills the memory, as far as the server is concerned.
pub(crate) async fn fill(server: &RedisServer) {
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "1"]).await;
}

pub(crate) async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
