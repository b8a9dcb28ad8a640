//! `lockctl doctor` on PostgreSQL and etcd.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
use lockcore_testkit::{EtcdCluster, PostgresServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

use crate::{
    doctor::{finds, finds_refusing, found_but_latency},
    program::{LONG, Running, code, end},
};

/// A server without findings, started with `settings`. The kit's own server does not wait for the
/// disk.
fn server(settings: &[&str]) -> PostgresServer {
    PostgresServer::start_with(&[&["fsync=on"], settings].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_found_on_a_sound_postgresql() {
    let server = server(&[]);
    assert_eq!(found_but_latency(&server.url()), [""; 0]);
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'lockcore'";
    assert_eq!(server.query(schemas).await, [["0"]], "nothing was created");
    let holder = Running::inside(&server.url(), &["held"]);
    assert_eq!(found_but_latency(&server.url()), [""; 0]);
    assert_eq!(holder.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_at_postgresql_creates_no_schema() {
    let server = server(&[]);
    let url = server.url();
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'lockcore'";
    for arguments in [&["ls"][..], &["show", "a"], &["release", "a", "--force", "--yes"]] {
        let end = end(&url, arguments);
        assert!(end.code.is_some_and(|code| code > 1), "{end:?}");
        assert!(end.stderr.contains("the first `lockctl run`"), "{end:?}");
        assert_eq!(server.query(schemas).await, [["0"]], "{arguments:?}");
    }
    assert_eq!(code(&url, &["run", "a", "--", "true"]), 0, "makes the schema");
    assert_eq!(code(&url, &["ls"]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_postgresql_that_lose_locks_are_found() {
    finds(&PostgresServer::start().url(), "problem durability");
    finds(&server(&["full_page_writes=off"]).url(), "problem durability");
    finds_refusing(&server(&["default_transaction_read_only=on"]).url(), "problem read-only");

    let primary = server(&[]);
    let replica = primary.start_replica();
    let found = found_but_latency(&replica.url());
    assert!(found.contains(&"problem replica".to_owned()), "{found:?}");
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", replica.port(), primary.port());
    let found = found_but_latency(&format!("postgresql://postgres@{hosts}/postgres"));
    assert!(!found.contains(&"problem replica".to_owned()), "the other host is used: {found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_rights_and_locks_of_postgresql_are_looked_at() {
    let server = server(&[]);
    let url = server.url();
    let _ = server.query("CREATE ROLE worker LOGIN PASSWORD 'hunter2'").await;
    let _ = server.query("REVOKE CREATE ON DATABASE postgres FROM PUBLIC").await;
    let poor = server.url_of("worker", "hunter2");
    assert_eq!(found_but_latency(&poor), ["problem rights", "unknown long-transactions"]);
    assert_eq!(code(&url, &["run", "a", "--", "true"]), 0, "makes the schema");
    let found = ["problem rights", "unknown long-transactions", "unknown deadlock"];
    assert_eq!(found_but_latency(&poor), found);
    let _ = server.query("GRANT USAGE ON SCHEMA lockcore TO worker").await;
    assert_eq!(found_but_latency(&poor), found);
    let text = end(&poor, &["doctor"]);
    assert!(text.stdout.contains("fence, hold,"), "{text:?}");
    assert!(!format!("{text:?}").contains("hunter2"), "{text:?}");
    let _ = server.query("GRANT ALL ON ALL TABLES IN SCHEMA lockcore TO worker").await;
    let _ = server.query("GRANT ALL ON ALL SEQUENCES IN SCHEMA lockcore TO worker").await;
    finds(&poor, "unknown long-transactions");
    let _ = server.query("GRANT pg_read_all_stats TO worker").await;
    assert_eq!(found_but_latency(&poor), [""; 0]);

    let hold = "INSERT INTO lockcore.hold VALUES ('a' || chr(27) || '[2J', 'i', 'o', 1, 1, 1, 1, \
                1, 1, 'infinity')";
    let _ = server.query(hold).await;
    finds(&url, "problem endless");
    let text = end(&url, &["doctor"]);
    assert!(text.stdout.contains("\\u{1b}[2J"), "{text:?}");
    let _ = server.query("DELETE FROM lockcore.hold").await;

    let _ = server.query("ALTER TABLE lockcore.hold SET UNLOGGED").await;
    finds(&url, "problem unlogged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_without_connections_left_is_found() {
    let server = server(&["max_connections=6", "superuser_reserved_connections=0"]);
    // Four for requests, and one for wake-ups.
    let holder = Running::inside(&server.url(), &["held"]);
    let found = found_but_latency(&server.url());
    assert_eq!(found, ["problem connections", "problem messages", "unknown deadlock"]);
    assert_eq!(holder.end().code, Some(0));
}

/// Each client would be refused, though nothing else is wrong with the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_that_refuses_clients_is_found() {
    let server = server(&[]);
    let url = server.url();
    let ascii = "CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' \
                 LC_CTYPE 'C'";
    let _ = server.query(ascii).await;
    let wrong = format!("postgresql://postgres@{}/ascii", server.address());
    finds_refusing(&wrong, "problem refused");
    let text = end(&wrong, &["doctor"]);
    assert!(text.stdout.contains("ENCODING 'UTF8'"), "{text:?}");

    assert_eq!(code(&url, &["run", "a", "--", "true"]), 0, "makes the schema");
    let without_functions = "DO $$ DECLARE known regprocedure; BEGIN \
        FOR known IN SELECT oid FROM pg_proc WHERE pronamespace = 'lockcore'::regnamespace LOOP \
        EXECUTE 'DROP FUNCTION ' || known || ' CASCADE'; END LOOP; END $$";
    let _ = server.query(without_functions).await;
    finds_refusing(&url, "problem refused");
    let old = "DROP SCHEMA lockcore CASCADE; CREATE SCHEMA lockcore; \
               CREATE TABLE lockcore.migration (number integer PRIMARY KEY)";
    let _ = server.query(old).await;
    assert_eq!(found_but_latency(&url), [""; 0], "the first run migrates it");
}

/// The sessions of others are counted as well, though the role does not see their activity.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_few_rights_learns_that_connections_run_out() {
    const SLEEPERS: usize = 17;
    // The last five are not for this role.
    let server = Arc::new(server(&["max_connections=25", "superuser_reserved_connections=5"]));
    let _ = server.query("CREATE ROLE worker LOGIN PASSWORD 'hunter2'").await;
    let poor = server.url_of("worker", "hunter2");
    assert!(!found_but_latency(&poor).contains(&"problem connections".to_owned()));
    let mut sleepers = JoinSet::new();
    for _ in 0..SLEEPERS {
        let server = server.clone();
        sleepers.spawn(async move { server.try_query("SELECT pg_sleep(600)").await });
    }
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let began = Instant::now();
    while server.query(asleep).await != [[SLEEPERS.to_string()]] {
        assert!(began.elapsed() < LONG, "they do not sleep");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let found = found_but_latency(&poor);
    assert!(found.contains(&"problem connections".to_owned()), "{found:?}");
}

/// As behind a pooler in transaction mode, where no notification arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_whose_notifications_get_lost_is_found() {
    let server = server(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, target) = (listener.local_addr().unwrap().port(), server.address());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&target).await else { continue };
            let ((mut requests, to_client), (from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_server).await });
            tokio::spawn(without_notifications(from_server, to_client));
        }
    });
    let url = format!("postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
    finds(&url, "problem messages");
}

/// Forwards the messages of a server, each a letter, its length and the rest.
async fn without_notifications(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) -> std::io::Result<()> {
    loop {
        let letter = from.read_u8().await?;
        let length = from.read_u32().await?;
        let mut rest = vec![0; usize::try_from(length).unwrap() - 4];
        from.read_exact(&mut rest).await?;
        if letter != b'A' {
            to.write_u8(letter).await?;
            to.write_u32(length).await?;
            to.write_all(&rest).await?;
        }
    }
}

#[test]
fn a_postgresql_that_is_away_or_silent_is_69() {
    let mut server = server(&[]);
    let url = server.url();
    server.freeze();
    let began = Instant::now();
    let silent = end(&url, &["doctor"]);
    assert_eq!((silent.code, silent.stdout.as_str()), (Some(69), ""), "{silent:?}");
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    server.thaw();
    server.kill();
    assert_eq!(code(&url, &["doctor"]), 69);
}

fn url(cluster: &EtcdCluster) -> String {
    format!("etcd://{}", cluster.addresses().join(","))
}

/// The findings, without those of a busy machine and of the version that is installed here.
fn found_in_etcd(url: &str) -> Vec<String> {
    let mut found = found_but_latency(url);
    found.retain(|finding| finding != "advice version");
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_members_of_etcd_are_looked_at() {
    let mut cluster = EtcdCluster::start(3);
    assert_eq!(found_in_etcd(&url(&cluster)), [""; 0]);
    let mut client = cluster.client().await;
    let leases = client.leases().await.unwrap();
    assert!(leases.leases().is_empty(), "nothing stays there: {leases:?}");
    let one = format!("etcd://{}", cluster.addresses()[0]);
    assert_eq!(found_in_etcd(&one), [""; 0], "the others are found as well");

    // Without a leader, there would be more findings for a while.
    cluster.move_leader(0).await;
    cluster.kill(2);
    assert_eq!(found_in_etcd(&url(&cluster)), ["problem member-down"]);
    cluster.kill(1);
    let mut client = cluster.client_of(0).await;
    let began = Instant::now();
    while client.status().await.unwrap().leader() != 0 {
        assert!(began.elapsed() < LONG, "the member does not notice");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let found = found_in_etcd(&url(&cluster));
    for expected in ["problem no-leader", "problem member-down"] {
        assert!(found.contains(&expected.to_owned()), "{expected}: {found:?}");
    }
    cluster.kill(0);
    let away = end(&url(&cluster), &["doctor"]);
    assert_eq!((away.code, away.stdout.as_str()), (Some(69), ""), "{away:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_and_one_member_alone_are_found() {
    let cluster = EtcdCluster::start(1);
    assert_eq!(found_in_etcd(&url(&cluster)), ["advice members"]);
    let mut client = cluster.client().await;
    let member = client.status().await.unwrap().header().unwrap().member_id();
    let mut options = AlarmOptions::new();
    options.with_member(member);
    for kind in [AlarmType::Nospace, AlarmType::Corrupt] {
        let raised = client.alarm(AlarmAction::Activate, kind, Some(options.clone())).await;
        assert!(raised.is_ok(), "{raised:?}");
        let mut found = found_in_etcd(&url(&cluster));
        // A corrupt member refuses clients.
        found.retain(|finding| finding != "unknown deadlock" || kind != AlarmType::Corrupt);
        assert_eq!(found, ["problem alarm", "advice members"], "{kind:?}");
        let off = client.alarm(AlarmAction::Deactivate, kind, Some(options.clone())).await;
        assert!(off.is_ok(), "{off:?}");
    }
    assert_eq!(found_in_etcd(&url(&cluster)), ["advice members"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_etcd_without_rights_is_found() {
    let cluster = EtcdCluster::start(1);
    let mut client = cluster.client().await;
    for (user, password) in [("root", "other"), ("worker", "hunter2")] {
        client.user_add(user, password, None).await.unwrap();
    }
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();
    let address = &cluster.addresses()[0];
    let end = end(&format!("etcd://worker:hunter2@{address}"), &["doctor"]);
    assert_eq!(end.code, Some(1), "{end:?}");
    assert!(end.stdout.contains("problem rights"), "{end:?}");
    assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
}
