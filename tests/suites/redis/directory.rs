//! The directory on a real server: other data in the database, and the cost of a walk.

use std::{collections::BTreeSet, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, CycleKind, LockName, Locks, Mode, Owner,
    backend::{Backend, Directory, Page, ResizeRequest, Start},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    errors::{LEAST_RIGHTS, connect_as, set_user},
    steps::{JAVA, enters, hold, name, request},
    support::{connect, until},
};

/// An owner in the format of the core.
pub(crate) const OWNER: &str = "4b5ce5e3-4f2a-4a7c-9a39-6f7ad2b1f1f4:1";

pub(crate) fn directory(backend: &RedisBackend) -> &dyn Directory {
    backend.directory().unwrap()
}

/// All pages of a walk.
pub(crate) async fn pages(backend: &RedisBackend) -> Result<Vec<Page<LockName>>, BackendError> {
    let (mut pages, mut start) = (Vec::new(), Start::Beginning);
    loop {
        let page = directory(backend).names(&start).await?;
        let next = page.next.clone();
        pages.push(page);
        match next {
            Some(next) => start = Start::At(next),
            None => return Ok(pages),
        }
    }
}

/// The names that a walk reports, in order.
pub(crate) async fn names(backend: &RedisBackend) -> Result<Vec<String>, BackendError> {
    let pages = pages(backend).await?;
    let names = pages.into_iter().flat_map(|page| page.entries);
    let names: BTreeSet<_> = names.map(|name| name.as_str().to_owned()).collect();
    Ok(names.into_iter().collect())
}

async fn run(server: &RedisServer, commands: &[&[&str]]) {
    for command in commands {
        let _: redis::Value = server.query(command).await;
    }
}

#[tokio::test]
async fn keys_of_other_applications_are_not_reported() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    run(
        &server,
        &[
            &["SET", "text", "text"],
            &["SET", "number", "7"],
            &["SET", "number:timeout", "7"],
            &["HSET", "session", "user", "7"],
            &["PEXPIRE", "session", "600000"],
            &["HSET", "counters", "a", "1", "b", "2"],
            &["HSET", "settings", "mode", "read"],
            &["HSET", "settings:2", "mode", "read", "size", "3"],
            &["HSET", "by-owner", OWNER, "open"],
            &["HSET", "by-owners", OWNER, "1", JAVA, "1"],
            &["RPUSH", "list", "a"],
            &["SADD", "set", "a"],
            &["ZADD", "sorted", "1", "a"],
            &["ZADD", "{number}:timeout", "1", "a"],
            &["ZADD", "{text}:timeout", "9999999999999", "a"],
            &["ZADD", "{nothing}:timeout", "9999999999999", "a"],
            &["XADD", "stream", "*", "a", "b"],
            &["PFADD", "log", "a"],
            &["SETBIT", "bits", "7", "1"],
            &["SET", "redisson_lock_token:{free}", "17"],
            &["SET", "redisson_lock_token:", "17"],
            &["SET", "redisson_lock_queue:{text}", "17"],
            &["RPUSH", "redisson_lock_queue:{lapsed}", JAVA],
            &["ZADD", "redisson_lock_timeout:{lapsed}", "1", JAVA],
            &["ZADD", "redisson_lock_timeout:{alone}", "9999999999999", JAVA],
            &["SET", "lockcore_latch:{number}", "latch"],
            &["HSET", "lockcore_permits:{number}", "kind", "leased"],
            &["SET", "lockcore_permits:", "1"],
            &["SET", "lockcore_writer:{a", "1"],
            &["SET", "lockcore_client:{clients}:x", "{}"],
            &["PEXPIRE", "number", "600000"],
        ],
    )
    .await;
    let binary = redis::cmd("SET").arg(&[0xff_u8, 0xfe][..]).arg(1).to_owned();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let _: () = binary.query_async(&mut connection).await.unwrap();
    assert_eq!(names(&backend).await.unwrap(), Vec::<String>::new());
    enters(&backend, &request("ours", &hold(OWNER), Mode::Exclusive)).await;
    assert_eq!(names(&backend).await.unwrap(), ["ours"]);
}

#[tokio::test]
async fn locks_of_redisson_are_reported() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let writer = format!("{JAVA}:write");
    run(
        &server,
        &[
            &["HSET", "lock", JAVA, "2"],
            &["PEXPIRE", "lock", "30000"],
            &["HSET", "{tag}:lock", JAVA, "1"],
            &["PEXPIRE", "{tag}:lock", "30000"],
            &["RPUSH", "redisson_lock_queue:{fair}", JAVA],
            &["ZADD", "redisson_lock_timeout:{fair}", "9999999999999", JAVA],
            &["RPUSH", "redisson_lock_queue:{tag}:fair", JAVA],
            &["ZADD", "redisson_lock_timeout:{tag}:fair", "9999999999999", JAVA],
            &["HSET", "read", "mode", "read", JAVA, "1"],
            &["PEXPIRE", "read", "30000"],
            &["HSET", "write", "mode", "write", &writer, "1"],
            &["PEXPIRE", "write", "30000"],
            &["HSET", "fenced", JAVA, "1"],
            &["PEXPIRE", "fenced", "30000"],
            &["SET", "redisson_lock_token:{fenced}", "3"],
            &["SET", "permits", "2"],
            &["ZADD", "{permits}:timeout", "9999999999999", "0123456789abcdef"],
            // Indistinguishable from a number of another application.
            &["SET", "semaphore", "2"],
            &["SET", "latch", "2"],
        ],
    )
    .await;
    let found = names(&backend).await.unwrap();
    let expected =
        ["fair", "fenced", "lock", "permits", "read", "write", "{tag}:fair", "{tag}:lock"];
    assert_eq!(found, expected);
}

/// A lock that alternates between a holder and a waiter does not always have its own key, but
/// always has its token.
#[tokio::test]
async fn a_name_with_several_keys_is_one_name() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (one, other) = (hold(OWNER), hold(JAVA));
    enters(&backend, &request("fair", &one, Mode::Fair)).await;
    let waiting = request("fair", &other, Mode::Fair).queue(Some(Duration::from_secs(60)));
    backend.acquire(&waiting).await.unwrap();
    enters(&backend, &request("sem", &one, Mode::permits(1, 3))).await;
    let resize = ResizeRequest::new(name("plain"), 3);
    backend.resize(&resize).await.unwrap();
    let pages = pages(&backend).await.unwrap();
    let mut found: Vec<_> = pages.into_iter().flat_map(|page| page.entries).collect();
    found.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    // It may be reported once per key.
    found.dedup();
    assert_eq!(found, [name("fair"), name("plain"), name("sem")]);
}

#[tokio::test]
async fn a_backend_with_a_prefix_reports_and_keeps_what_has_it() {
    let server = RedisServer::start();
    let [one, other] = ["a:", "a:b:"]
        .map(|prefix| RedisBackend::builder().url(server.url()).key_prefix(prefix).connect());
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    enters(&one, &request("x", &hold(OWNER), Mode::Exclusive)).await;
    enters(&other, &request("{x}", &hold(OWNER), Mode::Exclusive)).await;
    assert_eq!(names(&one).await.unwrap(), ["b:{x}", "x"]);
    assert_eq!(names(&other).await.unwrap(), ["{x}"]);
    let lifetime = Duration::from_secs(60);
    directory(&one).put_client("id", "one", lifetime).await.unwrap();
    directory(&other).put_client("id", "other", lifetime).await.unwrap();
    let page = directory(&one).clients(&Start::Beginning).await.unwrap();
    assert_eq!(page, Page::new(vec![("id".into(), "one".into())], None));
}

#[tokio::test]
async fn a_walk_over_ten_thousand_keys_takes_small_steps() {
    const KEYS: usize = 10_000;
    const LOCKS: usize = 500;
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut fill = redis::pipe();
    for number in 0..KEYS - 2 * LOCKS {
        fill.set(format!("key:{number}"), number).ignore();
    }
    let () = fill.query_async(&mut connection).await.unwrap();
    for number in 0..LOCKS {
        let lock = format!("lock:{number}");
        enters(&backend, &request(&lock, &hold(OWNER), Mode::Exclusive)).await;
    }
    let size: usize = server.query(&["DBSIZE"]).await;
    assert_eq!(size, KEYS, "each lock has a token");
    let before = (server.calls_of("scan").await, server.calls_of("type").await);
    let pages = pages(&backend).await.unwrap();
    let names: BTreeSet<_> = pages.iter().flat_map(|page| &page.entries).collect();
    let names: BTreeSet<_> = names.into_iter().map(LockName::as_str).collect();
    assert_eq!(names.len(), LOCKS);
    // The server looks at a few more keys than it is asked for.
    let (scans, types) =
        (server.calls_of("scan").await - before.0, server.calls_of("type").await - before.1);
    assert_eq!(scans, pages.len() as u64, "one in each step");
    assert!(pages.len() >= KEYS / 200, "{} steps", pages.len());
    assert!(types <= 2 * KEYS as u64 + scans, "{types} keys were looked at");
    assert_eq!(server.calls_of("keys").await, 0);
}

#[tokio::test]
async fn a_walk_does_not_go_on_at_a_server_that_was_restarted() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let backend = connect(&server).await;
    for number in 0..200 {
        let lock = format!("lock:{number}");
        enters(&backend, &request(&lock, &hold(OWNER), Mode::Exclusive)).await;
    }
    let page = directory(&backend).names(&Start::Beginning).await.unwrap();
    let next = Start::At(page.next.expect("there is more"));
    directory(&backend).names(&next).await.unwrap();
    server.kill();
    server.restart();
    until("the server", || async { connect_again(&backend).await }).await;
    let error = directory(&backend).names(&next).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("begin the walk again"), "{error}");
    assert_eq!(names(&backend).await.unwrap().len(), 200);
}

async fn connect_again(backend: &RedisBackend) -> bool {
    directory(backend).names(&Start::Beginning).await.is_ok()
}

#[tokio::test]
async fn missing_rights_are_named_and_unreadable_keys_are_passed_over() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", LEAST_RIGHTS).await;
    let backend = connect_as(&server, "worker").await.unwrap();
    let lifetime = Duration::from_secs(60);
    let refusals = [
        directory(&backend).names(&Start::Beginning).await.err(),
        directory(&backend).put_client("id", "record", lifetime).await.err(),
        directory(&backend).clients(&Start::Beginning).await.err(),
    ];
    for (refusal, right) in refusals.into_iter().zip(["+scan", "+zrangebylex", "+zrangebylex"]) {
        let error = refusal.expect(right);
        assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
        let text = error.to_string();
        assert!(text.contains("grant the user the rights") && text.contains(right), "{text}");
    }
    set_user(&server, "worker", &format!("{LEAST_RIGHTS} +scan +zrangebylex")).await;
    enters(&connect(&server).await, &request("foreign", &hold(OWNER), Mode::Exclusive)).await;
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write, Mode::permits(1, 2)] {
        enters(&backend, &request(&format!("locks:{mode}"), &hold(OWNER), mode)).await;
    }
    let latches = backend.latches().unwrap();
    assert!(latches.set_count(&name("locks:latch"), 2, "id").await.unwrap());
    let found = names(&backend).await.unwrap();
    assert_eq!(found.len(), 6, "{found:?}");
    assert!(found.iter().all(|name| name.starts_with("locks:")), "{found:?}");
    directory(&backend).put_client("id", "record", lifetime).await.unwrap();
    let page = directory(&backend).clients(&Start::Beginning).await.unwrap();
    assert_eq!(page.entries, [("id".to_owned(), "record".to_owned())]);
    directory(&backend).remove_client("id").await.unwrap();
}

/// One that somebody else has written does not hide those of the clients.
#[tokio::test]
async fn a_record_that_cannot_be_read_hides_no_other() {
    const IDS: &str = "lockcore_clients:{clients}";
    let server = RedisServer::start();
    let backend = connect(&server).await;
    directory(&backend).put_client("z", "record", Duration::from_secs(60)).await.unwrap();
    let _: i64 = server.query(&["ZADD", IDS, "0", "a", "0", "b"]).await;
    let _: i64 = server.query(&["RPUSH", "lockcore_client:{clients}:a", "a list"]).await;
    let garbage = r"return redis.call('SET', KEYS[1], '\255{')";
    let _: () = server.query(&["EVAL", garbage, "1", "lockcore_client:{clients}:b"]).await;
    let page = directory(&backend).clients(&Start::Beginning).await.unwrap();
    let expected = [("a", ""), ("b", "\u{fffd}{"), ("z", "record")];
    assert_eq!(page.entries, expected.map(|(id, record)| (id.to_owned(), record.to_owned())));
}

/// The list is read in pages of 32.
#[tokio::test]
async fn ids_that_end_a_page_may_be_any_bytes() {
    for odd in ["1 a", "1\\255", "\\0", "(", "1\\r\\n"] {
        let server = RedisServer::start();
        let backend = connect(&server).await;
        directory(&backend).put_client("z", "record", Duration::from_secs(60)).await.unwrap();
        let fill = format!(
            "for n = 0, 30 do redis.call('ZADD', KEYS[1], 0, '0' .. string.char(65 + n)) end
             redis.call('ZADD', KEYS[1], 0, '{odd}')"
        );
        let _: () = server.query(&["EVAL", &fill, "1", "lockcore_clients:{clients}"]).await;
        let (mut found, mut start) = (Vec::new(), Start::Beginning);
        loop {
            let page = directory(&backend).clients(&start).await.unwrap();
            found.extend(page.entries.into_iter().map(|(id, _)| id));
            let Some(next) = page.next else { break };
            start = Start::At(next);
        }
        assert_eq!(found, ["z"], "behind {odd:?}");
    }
}

#[tokio::test]
async fn ids_of_clients_that_are_gone_are_forgotten() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let put = async |id: String, lifetime| {
        let seconds = Duration::from_secs(lifetime);
        directory(&backend).put_client(&id, "record", seconds).await.unwrap();
    };
    for number in 0..20 {
        put(format!("brief-{number}"), 1).await;
    }
    put("a".into(), 600).await;
    put("z".into(), 600).await;
    until("the ends of the brief ones", || async { server.query::<usize>(&["DBSIZE"]).await == 3 })
        .await;
    for _ in 0..10 {
        put("a".into(), 600).await;
        put("z".into(), 600).await;
    }
    let ids: Vec<String> = server.query(&["ZRANGE", "lockcore_clients:{clients}", "0", "-1"]).await;
    assert_eq!(ids, ["a", "z"]);
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
}

/// The edge from a reader to the writer that keeps it out comes from the store: from the queue of
/// the writers.
#[tokio::test]
async fn a_reader_behind_a_writer_is_in_the_cycles_of_all_clients() {
    let server = RedisServer::start();
    let clients = [connect(&server).await, connect(&server).await, connect(&server).await];
    let [a, b, c] = clients.map(Locks::new);
    let (reader, other) = (Owner::new(), Owner::new());
    let _reads = a.rw_lock("l").read().owned_by(&reader).acquire().await.unwrap();
    let _holds = b.lock("m").owned_by(&other).acquire().await.unwrap();
    let _writes = tokio::spawn(c.rw_lock("l").write().acquire());
    until("the writer in the queue", || async {
        !a.rw_lock("l").read().state().await.unwrap().waiters().is_empty()
    })
    .await;
    let _waits = tokio::spawn(a.lock("m").owned_by(&reader).acquire());
    let _behind = tokio::spawn(b.rw_lock("l").read().owned_by(&other).acquire());
    let waits = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let waits = a.waits().await.unwrap();
            if !waits.cycles().is_empty() {
                break waits;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
    .expect("a cycle");
    assert_eq!(waits.cycles()[0].kind(), CycleKind::Deadlock, "{}", waits.cycles()[0]);
    assert_eq!(waits.cycles()[0].links().len(), 3);
}
