//! Simultaneous requests share script calls, which the answers do not reveal.

use std::time::{Duration, Instant};

use lockcore::{
    BackendError, BackendErrorKind, Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend, ReleaseOutcome},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, poll_times, server_lacks};
use tokio::task::{JoinHandle, yield_now};

use crate::{
    errors::{LEAST_RIGHTS, connect_as, set_user},
    steps::{
        assert_wrong_type, enters, exists, fill, hold, keys, pttl, refused_for, releases, request,
        state,
    },
    support::{assert_nothing_left, connect, impatient, soon, until},
};

pub(crate) fn exclusive(lock: &str, owner: usize) -> AcquireRequest {
    request(lock, &hold(&format!("client:{owner}")), Mode::Exclusive)
}

pub(crate) type Acquiring = JoinHandle<Result<AcquireOutcome, BackendError>>;
pub(crate) type Releasing = JoinHandle<Result<ReleaseOutcome, BackendError>>;

/// Requests that start without an await between them are sent in one pass of the scheduler, in this
/// order.
pub(crate) fn begin(backend: &RedisBackend, request: &AcquireRequest) -> Acquiring {
    let (backend, request) = (backend.clone(), request.clone());
    tokio::spawn(async move { backend.acquire(&request).await })
}

pub(crate) fn end(backend: &RedisBackend, request: &AcquireRequest) -> Releasing {
    let (backend, request) = (backend.clone(), request.release());
    tokio::spawn(async move { backend.release(&request).await })
}

pub(crate) async fn outcome<T>(
    task: JoinHandle<Result<T, BackendError>>,
) -> Result<T, BackendError> {
    soon("the answer", task).await.unwrap()
}

pub(crate) async fn is_granted(task: Acquiring) -> bool {
    matches!(outcome(task).await.unwrap(), AcquireOutcome::Acquired { .. })
}

/// A pending request, so that later ones are batched.
fn busy(backend: &RedisBackend) -> Acquiring {
    begin(backend, &exclusive("locks:busy", 0))
}

/// Loads the scripts on the server, and gives the names tokens.
async fn warm(backend: &RedisBackend, requests: &[AcquireRequest]) {
    for request in requests {
        enters(backend, request).await;
        releases(backend, request).await;
    }
    batch(backend, requests).await;
}

/// Shows that all are granted and released.
pub(crate) async fn batch(backend: &RedisBackend, requests: &[AcquireRequest]) {
    let tasks: Vec<_> = requests.iter().map(|request| begin(backend, request)).collect();
    for task in tasks {
        assert!(is_granted(task).await);
    }
    let tasks: Vec<_> = requests.iter().map(|request| end(backend, request)).collect();
    for task in tasks {
        assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released);
    }
}

#[tokio::test]
async fn many_requests_share_few_calls_and_do_what_each_does_alone() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let requests: Vec<_> =
        (0..200).map(|number| exclusive(&format!("order:{number}"), number)).collect();
    for _ in 0..2 {
        let before = [server.calls_of("evalsha").await, server.calls_of("publish").await];
        let tasks: Vec<_> = requests.iter().map(|request| begin(&backend, request)).collect();
        let mut tokens = Vec::new();
        for task in tasks {
            match outcome(task).await.unwrap() {
                AcquireOutcome::Acquired { token } => tokens.push(u64::from(token)),
                outcome => panic!("{outcome:?}"),
            }
        }
        for (number, token) in tokens.into_iter().enumerate() {
            let name = format!("order:{number}");
            assert!((1..=60_000).contains(&pttl(&server, &name).await));
            assert!(
                (1..=86_400_000)
                    .contains(&pttl(&server, &format!("redisson_lock_token:{{{name}}}")).await)
            );
            assert_eq!(
                server.query::<u64>(&["GET", &format!("redisson_lock_token:{{{name}}}")]).await,
                token
            );
            assert_eq!(server.query::<i64>(&["HGET", &name, &format!("client:{number}")]).await, 1);
        }
        let tasks: Vec<_> = requests.iter().map(|request| end(&backend, request)).collect();
        for task in tasks {
            assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released);
        }
        let spent = server.calls_of("evalsha").await - before[0];
        assert!(spent <= 20, "{spent} calls for 400 requests");
        assert_eq!(server.calls_of("publish").await - before[1], 200);
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn waiters_that_expect_to_be_refused_share_one_look() {
    const COUNT: usize = 100;
    const KNOWN: Duration = Duration::from_secs(7);
    let server = RedisServer::start();
    let (holder, waiting) = (connect(&server).await, connect(&server).await);
    let name = |number| format!("held:{number}");
    for number in 0..COUNT {
        enters(&holder, &exclusive(&name(number), 0)).await;
    }
    let expecting: Vec<_> = (0..COUNT)
        .map(|number| exclusive(&name(number), COUNT + number).held_for(Some(KNOWN)))
        .collect();
    let ask = async || {
        let first = busy(&waiting);
        let tasks: Vec<_> = expecting.iter().map(|request| begin(&waiting, request)).collect();
        outcome(first).await.unwrap();
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(outcome(task).await.unwrap());
        }
        outcomes
    };
    let spent = async || {
        let commands = ["exists", "evalsha", "pttl", "hmget", "publish"];
        let mut calls = Vec::new();
        for command in commands {
            calls.push(server.calls_of(command).await);
        }
        calls.iter().sum::<u64>()
    };
    // The first request of a client asks the server for the time.
    ask().await;
    let before = spent().await;
    let known = AcquireOutcome::Held { remaining: Some(KNOWN) };
    assert!(ask().await.iter().all(|outcome| *outcome == known));
    let calls = spent().await - before;
    assert!(calls <= 10, "{calls} calls for {COUNT} waiters");

    // One of them is free after all, without a wake-up. All others get the true answer.
    let () = server.query(&["DEL", &name(3)]).await;
    for (number, outcome) in ask().await.into_iter().enumerate() {
        match (number, outcome) {
            (3, AcquireOutcome::Acquired { .. }) => {}
            (3, outcome) => panic!("it was free: {outcome:?}"),
            (_, AcquireOutcome::Held { remaining: Some(left) }) => assert_ne!(left, KNOWN),
            (number, outcome) => panic!("{number}: {outcome:?}"),
        }
    }
    // A key of another type is in the way too, which is reported to requests that do not expect it.
    let () = server.query(&["DEL", &name(3)]).await;
    let () = server.query(&["SET", &name(3), "of another kind"]).await;
    assert_eq!(ask().await[3], known);
    assert_wrong_type(&waiting, &exclusive(&name(3), COUNT + 3)).await;
}

#[tokio::test]
async fn each_has_the_lease_and_the_tokens_that_it_wants() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    // More than the server's clock advances during the test.
    const MANY: u32 = 60_000_000;
    let wanted = |number: usize| {
        let (lease, tokens) =
            [(10, 1), (10, 1), (20, 1), (20, MANY), (10, 1), (200_000, 7)][number % 6];
        (Duration::from_secs(lease), tokens)
    };
    let requests: Vec<_> = (0..30)
        .map(|number| {
            let mut request = exclusive(&format!("n:{number}"), number);
            (request.lease, request.tokens) = wanted(number);
            request
        })
        .collect();
    let token_of = |number: usize| format!("redisson_lock_token:{{n:{number}}}");
    // Keys of others, without an expiry, which must stay that way.
    for (number, last) in [(0, "5"), (6, "9000000000000000"), (12, "none")] {
        let _: String = server.query(&["SET", &token_of(number), last]).await;
    }
    let mut last = vec![0; requests.len()];
    for _ in 0..3 {
        let first = busy(&backend);
        let tasks: Vec<_> = requests.iter().map(|request| begin(&backend, request)).collect();
        assert!(is_granted(first).await);
        for (number, task) in tasks.into_iter().enumerate() {
            let AcquireOutcome::Acquired { token } = outcome(task).await.unwrap() else {
                panic!("{number}")
            };
            let (lease, tokens) = wanted(number);
            let left = Duration::from_millis(
                pttl(&server, &format!("n:{number}")).await.try_into().unwrap(),
            );
            assert!(left <= lease && left > lease - Duration::from_secs(5), "{number}: {left:?}");
            assert!(u64::from(token) > last[number], "{number}: {token} after {}", last[number]);
            last[number] = u64::from(token) + u64::from(tokens) - 1;
            assert_eq!(
                server.query::<u64>(&["GET", &token_of(number)]).await,
                last[number],
                "{number}"
            );
            let remembered = pttl(&server, &token_of(number)).await;
            match number {
                0 | 6 | 12 => assert_eq!(remembered, -1),
                _ => assert!(remembered > 80_000_000, "{number}: {remembered}"),
            }
        }
        let tasks: Vec<_> = requests.iter().map(|request| end(&backend, request)).collect();
        for task in tasks {
            assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released);
        }
        releases(&backend, &exclusive("locks:busy", 0)).await;
    }
}

#[tokio::test]
async fn what_is_wrong_with_one_lock_is_no_matter_of_the_others() {
    let server = RedisServer::start();
    let (backend, other) = (connect(&server).await, connect(&server).await);
    let _: String = server.query(&["SET", "string", "precious"]).await;
    let _: i64 = server.query(&["LPUSH", "redisson_lock_token:{odd}", "1"]).await;
    enters(&other, &request("read", &hold("other:1"), Mode::Read)).await;
    enters(&other, &exclusive("held", 77)).await;
    let mine = exclusive("mine", 5);
    let token = enters(&backend, &mine).await;

    let first = busy(&backend);
    let [free, string, odd, read, held, again] = ["free", "string", "odd", "read", "held", "mine"]
        .map(|name| begin(&backend, &exclusive(name, 5)));
    let strange = ["nobodys", "string", "held"].map(|name| end(&backend, &exclusive(name, 6)));
    assert!(is_granted(first).await && is_granted(free).await);
    for task in [string, odd, read] {
        let error = outcome(task).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
        assert!(
            !error.is_outcome_unknown() && error.to_string().contains("acquire on Redis failed"),
            "{error}"
        );
    }
    let outcome_of_held = outcome(held).await.unwrap();
    assert!(
        matches!(outcome_of_held, AcquireOutcome::Held { remaining: Some(_) }),
        "{outcome_of_held:?}"
    );
    assert_eq!(outcome(again).await.unwrap(), AcquireOutcome::Acquired { token }, "a repetition");
    let [nobodys, string, held] = strange;
    assert_eq!(outcome(nobodys).await.unwrap(), ReleaseOutcome::NotHeld);
    assert_eq!(outcome(string).await.unwrap_err().kind(), BackendErrorKind::WrongType);
    assert_eq!(outcome(held).await.unwrap(), ReleaseOutcome::NotHeld);
    assert_eq!(server.query::<String>(&["GET", "string"]).await, "precious");
    assert!(state(&other, "held").await.is_held() && state(&other, "read").await.is_held());
    assert!(!exists(&server, "odd").await);
}

#[tokio::test]
async fn requests_for_one_lock_take_effect_in_their_order() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let [a, b, c] = [1, 2, 3].map(|owner| exclusive("a", owner));
    warm(&backend, &[exclusive("x", 1), exclusive("y", 2)]).await;
    for _ in 0..20 {
        let before = enters(&backend, &a).await;
        let first = busy(&backend);
        // The first releases for the second, and the third comes too late.
        let (release, next, third) = (end(&backend, &a), begin(&backend, &b), begin(&backend, &c));
        assert!(is_granted(first).await);
        assert_eq!(outcome(release).await.unwrap(), ReleaseOutcome::Released);
        match outcome(next).await.unwrap() {
            AcquireOutcome::Acquired { token } => assert!(token > before),
            outcome => panic!("{outcome:?}"),
        }
        assert!(!is_granted(third).await);
        let first = busy(&backend);
        let (twice, last) = ([end(&backend, &b), end(&backend, &b)], begin(&backend, &c));
        let undone = end(&backend, &c);
        assert!(is_granted(first).await);
        let [once, twice] = twice;
        assert_eq!(outcome(once).await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(outcome(twice).await.unwrap(), ReleaseOutcome::NotHeld);
        assert!(is_granted(last).await, "behind the releases");
        assert_eq!(
            outcome(undone).await.unwrap(),
            ReleaseOutcome::Released,
            "behind its acquisition"
        );
        assert!(!state(&backend, "a").await.is_held());
    }
}

#[tokio::test]
async fn a_caller_that_goes_leaves_nothing_and_stalls_nobody() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let requests: Vec<_> =
        (0..30).map(|number| exclusive(&format!("n:{number}"), number)).collect();
    warm(&backend, &requests).await;
    for passes in 0..8 {
        let mut tasks: Vec<_> = requests.iter().map(|request| begin(&backend, request)).collect();
        for _ in 0..passes {
            yield_now().await;
        }
        let gone: Vec<_> =
            [0, 1, 7, 29].into_iter().rev().map(|index| (index, tasks.remove(index))).collect();
        gone.iter().for_each(|(_, task)| task.abort());
        for task in tasks {
            assert!(is_granted(task).await);
        }
        for (index, task) in gone {
            // Without its own task: the backend undoes requests that have started.
            if soon("the end of it", task).await.is_err() {
                until("the undoing", || async { !exists(&server, &format!("n:{index}")).await })
                    .await;
            }
        }
        let tasks: Vec<_> = requests.iter().map(|request| end(&backend, request)).collect();
        for task in tasks {
            outcome(task).await.unwrap();
        }
        assert_eq!(keys(&server).await, Vec::<String>::new(), "{passes} passes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_overtakes_no_acquisition_that_was_dropped() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let others: Vec<_> = (0..8)
        .map(|number| {
            let backend = backend.clone();
            tokio::spawn(async move {
                let request = exclusive(&format!("busy:{number}"), number);
                loop {
                    enters(&backend, &request).await;
                    releases(&backend, &request).await;
                }
            })
        })
        .collect();
    for round in 0..600 {
        let request = exclusive(&format!("n:{}", round % 7), round);
        if round % 100 == 50 {
            let _: String = server.query(&["SCRIPT", "FLUSH"]).await;
        }
        drop(poll_times(round % 6, backend.acquire(&request)).await);
        soon("the release", backend.release(&request.release())).await.unwrap();
        let holder = state(&backend, &format!("n:{}", round % 7)).await;
        assert!(!holder.is_held(), "round {round}: {holder:?}");
    }
    for task in others {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled(), "another was refused");
    }
}

#[tokio::test]
async fn a_server_that_is_killed_or_silent_fails_each_request() {
    let mut server = RedisServer::start();
    // The releases that undo 900 requests have to be answered in the same time.
    let patience = Duration::from_secs(1);
    let backend = impatient(&server).response_timeout(patience).connect().await.unwrap();
    let requests: Vec<_> =
        (0..900).map(|number| exclusive(&format!("n:{number}"), number)).collect();
    warm(&backend, &requests[..9]).await;
    for is_killed in [false, true] {
        server.signal("STOP");
        let start = Instant::now();
        let tasks: Vec<_> = requests.iter().map(|request| begin(&backend, request)).collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        if is_killed {
            server.kill();
        }
        for task in tasks {
            let error = outcome(task).await.unwrap_err();
            let kind = error.kind();
            assert!(
                matches!(kind, BackendErrorKind::Timeout | BackendErrorKind::Connection),
                "{error}"
            );
            assert!(is_killed || error.is_outcome_unknown(), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        if !is_killed {
            server.signal("CONT");
            let other = connect(&server).await;
            until("the undoing", || async { keys(&server).await.is_empty() }).await;
            enters(&other, &exclusive("n:1", 1000)).await;
            assert!(
                refused_for(&backend, &exclusive("n:1", 1001)).await.is_some(),
                "on a new connection"
            );
        }
    }
}

#[tokio::test]
async fn full_memory_refuses_the_acquisitions_of_a_batch_and_not_its_releases() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let requests: Vec<_> =
        (0..10).map(|number| exclusive(&format!("n:{number}"), number)).collect();
    warm(&backend, &requests).await;
    let (held, new) = requests.split_at(5);
    for request in held {
        enters(&backend, request).await;
    }
    fill(&server).await;
    let acquiring: Vec<_> = new.iter().map(|request| begin(&backend, request)).collect();
    for task in acquiring {
        let error = outcome(task).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}");
        assert!(!error.is_outcome_unknown());
    }
    // As far as the server is concerned, the releasing side may continue.
    let acquiring: Vec<_> = new.iter().map(|request| begin(&backend, request)).collect();
    let releasing: Vec<_> = held.iter().map(|request| end(&backend, request)).collect();
    for (task, request) in acquiring.into_iter().zip(new) {
        match outcome(task).await {
            Ok(_) => assert_eq!(releases(&backend, request).await, ReleaseOutcome::Released),
            Err(error) => assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}"),
        }
    }
    for task in releasing {
        assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released);
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_right_that_is_missing_spoils_nothing_else_and_leaves_nothing() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let requests: Vec<_> =
        (0..9).map(|number| exclusive(&format!("locks:{number}"), number)).collect();
    for rights in [LEAST_RIGHTS.to_owned(), format!("{LEAST_RIGHTS} +mget")] {
        set_user(&server, "worker", &format!("reset on >pw {rights}")).await;
        let backend = connect_as(&server, "worker").await.unwrap();
        warm(&backend, &requests).await;
        let mut tasks: Vec<_> = requests.iter().map(|request| begin(&backend, request)).collect();
        let elsewhere =
            [begin(&backend, &exclusive("elsewhere", 1)), begin(&backend, &exclusive("other", 1))];
        tasks.push(busy(&backend));
        for task in tasks {
            assert!(is_granted(task).await);
        }
        for task in elsewhere {
            let error = outcome(task).await.unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
        }
        releases(&backend, &exclusive("locks:busy", 0)).await;
        let ends: Vec<_> = requests.iter().map(|request| end(&backend, request)).collect();
        for task in ends {
            assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released);
        }
        for missing in ["pexpire", "hset", "set", "time", "exists", "pttl"] {
            set_user(&server, "worker", &format!("reset on >pw {rights} -{missing}")).await;
            let poor = connect_as(&server, "worker").await.unwrap();
            let tasks: Vec<_> = requests.iter().map(|request| begin(&poor, request)).collect();
            for task in tasks {
                match outcome(task).await {
                    Ok(outcome) => {
                        assert!(["exists", "pttl"].contains(&missing), "{missing}: {outcome:?}")
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), BackendErrorKind::Permission, "{missing}: {error}")
                    }
                }
            }
            assert_eq!(
                server.keys_without_expiry().await,
                Vec::<String>::new(),
                "without {missing}"
            );
            if !["exists", "pttl"].contains(&missing) {
                assert_eq!(keys(&server).await, Vec::<String>::new(), "without {missing}");
            }
            let _: i64 = server.query(&["EVAL", "local n = 0 for _, key in ipairs(redis.call('KEYS', 'locks:*')) do n = n + redis.call('DEL', key) end return n", "0"]).await;
        }
    }
}

/// A task sends the requests; if it ends with its runtime, the callers on other runtimes are told.
#[test]
fn a_runtime_that_ends_stalls_nobody_on_another() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let backend = first.block_on(connect(&server));
    for round in 0..20 {
        let ending = runtime();
        let short: Vec<_> = (0..40)
            .map(|number| {
                let backend = backend.clone();
                ending.spawn(async move {
                    loop {
                        let request = exclusive(&format!("short:{round}:{number}"), number);
                        drop(backend.acquire(&request).await);
                        drop(backend.release(&request.release()).await);
                    }
                })
            })
            .collect();
        let long: Vec<_> = (0..40)
            .map(|number| {
                let backend = backend.clone();
                second.spawn(async move {
                    let request = exclusive(&format!("long:{round}:{number}"), number);
                    for _ in 0..50 {
                        let _ = backend.acquire(&request).await;
                        let _ = backend.release(&request.release()).await;
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(3));
        ending.shutdown_background();
        drop(short);
        second.block_on(async {
            for task in long {
                soon("a caller on the other runtime", task).await.unwrap();
            }
        });
    }
}
