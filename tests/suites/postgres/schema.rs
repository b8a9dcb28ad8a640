//! How and where the schema is created.

use std::time::Duration;

use lockcore::{BackendErrorKind, Finding, Locks, Mode, Severity, backend::Backend};
use lockcore_postgres::{Fence, PostgresBackend};
use lockcore_testkit::PostgresServer;

use crate::support::{connect, enters, is_held, request, session};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_clients_make_the_schema_at_once() {
    let server = PostgresServer::start_with(&["max_connections=200"]);
    let connecting: Vec<_> = (0..12)
        .map(|_| {
            let builder = PostgresBackend::builder(server.url()).connections(1);
            tokio::spawn(builder.connect())
        })
        .collect();
    for (number, connecting) in connecting.into_iter().enumerate() {
        let backend = connecting.await.unwrap().unwrap();
        enters(&backend, &request(&format!("order:{number}"), "a")).await;
    }
    assert_eq!(server.query("SELECT number FROM lockcore.migration").await, [["1"]]);
}

#[tokio::test]
async fn what_is_there_stays_when_a_client_connects_again() {
    let server = PostgresServer::start();
    enters(&connect(&server).await, &request("order", "a")).await;
    assert!(is_held(&connect(&server).await, "order").await);
}

#[tokio::test]
async fn schemas_know_nothing_of_each_other() {
    let server = PostgresServer::shared();
    let mut backends = Vec::new();
    for schema in ["shop_a", "Shop_B"] {
        backends
            .push(PostgresBackend::builder(server.url()).schema(schema).connect().await.unwrap());
    }
    enters(&backends[0], &request("order", "a")).await;
    assert!(!is_held(&backends[1], "order").await);
    enters(&backends[1], &request("order", "b")).await;
}

#[tokio::test]
async fn a_client_that_must_not_migrate_says_what_to_do() {
    let server = PostgresServer::start();
    let builder = || PostgresBackend::builder(server.url()).schema("by_hand").migrate(false);
    let error = builder().connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("schema_script"), "{error}");

    server.query(&PostgresBackend::schema_script("by_hand").unwrap()).await;
    enters(&builder().connect().await.unwrap(), &request("order", "a")).await;
}

/// It is also what brings a schema to the version of a newer crate.
#[tokio::test]
async fn the_script_can_be_run_again_and_leaves_all_or_nothing() {
    let server = PostgresServer::start();
    let script = PostgresBackend::schema_script("by_hand").unwrap();
    server.query("CREATE SCHEMA by_hand; CREATE TABLE by_hand.swept (id int)").await;
    server.try_query(&script).await.unwrap_err();
    let tables = "SELECT relname FROM pg_class WHERE relkind = 'r'
        AND relnamespace = 'by_hand'::regnamespace";
    assert_eq!(server.query(tables).await, [["swept"]]);

    server.query("DROP TABLE by_hand.swept").await;
    server.query(&script).await;
    let builder = PostgresBackend::builder(server.url()).schema("by_hand").migrate(false);
    let backend = builder.connect().await.unwrap();
    enters(&backend, &request("order", "a")).await;
    server.query(&script).await;
    assert!(is_held(&backend, "order").await);
    assert_eq!(server.query("SELECT number FROM by_hand.migration").await, [["1"]]);
}

#[tokio::test]
async fn a_schema_that_exists_already_is_filled() {
    let server = PostgresServer::start();
    server.query("CREATE SCHEMA lockcore; CREATE TABLE lockcore.users (id int)").await;
    enters(&connect(&server).await, &request("order", "a")).await;
    assert!(server.query("SELECT * FROM lockcore.users").await.is_empty(), "it is still there");
}

#[tokio::test]
async fn what_has_ended_is_deleted() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let mut short = request("order", "a");
    short.lease = Duration::from_millis(1);
    enters(&backend, &short).await;
    backend.release(&request("order", "b").undo()).await.unwrap();
    server.query("UPDATE lockcore.undone SET until = clock_timestamp()").await;
    crate::support::until("a sweep", || async {
        let left = "SELECT id FROM lockcore.hold UNION ALL SELECT id FROM lockcore.undone";
        server.query(left).await.is_empty()
    })
    .await;
}

/// PostgreSQL refuses to update published tables that have no key.
#[tokio::test]
async fn all_tables_may_be_published() {
    let mut server = PostgresServer::start();
    server.query("CREATE PUBLICATION everything FOR ALL TABLES").await;
    let backend = connect(&server).await;
    enters(&backend, &request("order", "a")).await;
    crate::support::until("a sweep", || async {
        server.query("SELECT FROM lockcore.swept WHERE at > '-infinity'").await.len() == 1
    })
    .await;
    server.restart();
    let backend = connect(&server).await;
    backend.release(&request("order", "a").release()).await.unwrap();
    enters(&backend, &request("order", "b")).await;
}

/// PostgreSQL prefers an operator whose types match exactly, in whatever schema it is. A role that
/// may create one could run code as every user of a lock, or have a lock granted twice.
#[tokio::test]
async fn operators_of_others_are_not_called() {
    let server = PostgresServer::start();
    let hostile = "
        CREATE FUNCTION public.wrong(numeric, text) RETURNS text
            LANGUAGE plpgsql AS $$ BEGIN RAISE 'a foreign operator was called'; END $$;
        CREATE FUNCTION public.wrong(bigint, interval) RETURNS interval
            LANGUAGE plpgsql AS $$ BEGIN RAISE 'a foreign operator was called'; END $$;
        CREATE FUNCTION public.wrong(integer, numeric) RETURNS numeric
            LANGUAGE plpgsql AS $$ BEGIN RAISE 'a foreign operator was called'; END $$;
        CREATE FUNCTION public.pg_has_role(name, text, text) RETURNS boolean
            LANGUAGE plpgsql AS $$ BEGIN RAISE 'a foreign function was called'; END $$;
        CREATE OPERATOR public.|| (LEFTARG = numeric, RIGHTARG = text, FUNCTION = public.wrong);
        CREATE OPERATOR public.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = public.wrong);
        CREATE OPERATOR public.* (LEFTARG = integer, RIGHTARG = numeric, FUNCTION = public.wrong)";
    server.query(hostile).await;
    let error = server.try_query("SELECT 1::bigint * interval '1 s'").await.unwrap_err();
    assert!(format!("{error:?}").contains("foreign operator"), "{error:?}");
    let backend = connect(&server).await;
    let locks = Locks::new(backend.clone());
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write] {
        let order = request(&format!("{mode:?}"), "a").mode(mode);
        let token = enters(&backend, &order).await;
        let fence = Fence::new("lockcore").unwrap();
        fence.check(&session(&server).await, &order.name, token).await.unwrap();
        backend.release(&order.release()).await.unwrap();
    }
    let permit = locks.semaphore("permits", 2).acquire().await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(server.query("SELECT lockcore.sweep(0, 10)").await, [["1"]]);
    let asked = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')";
    let error = server.try_query(asked).await.unwrap_err();
    assert!(format!("{error:?}").contains("foreign function"), "{error:?}");
    let diagnosis = backend.diagnose().await.unwrap();
    let is_wrong = |found: &Finding| {
        found.severity() == Severity::Unknown || !matches!(found.id(), "durability" | "latency")
    };
    assert!(!diagnosis.findings().iter().any(is_wrong), "{diagnosis:?}");
}

#[tokio::test]
async fn more_than_one_statement_deletes_is_deleted_by_several() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    let ended = "INSERT INTO lockcore.undone
        SELECT 'order', id::text, '-infinity' FROM generate_series(1, 25) AS id";
    server.query(ended).await;
    for (answer, left) in [("2", "15"), ("2", "5"), ("1", "0")] {
        assert_eq!(server.query("SELECT lockcore.sweep(0, 10)").await, [[answer]]);
        assert_eq!(server.query("SELECT count(*) FROM lockcore.undone").await, [[left]]);
    }
    let pause = "SELECT lockcore.sweep(3600000000, 10)";
    assert_eq!(server.query(pause).await, [["0"]], "somebody has just done it");
    // The client splits the text where one statement ends.
    server.query(&ended.replace("25", "25000")).await;
    let backend = connect(&server).await;
    crate::support::until("a sweep", || async {
        server.query("SELECT FROM lockcore.undone").await.is_empty()
    })
    .await;
    drop(backend);
}

#[tokio::test]
async fn records_of_clients_that_have_ended_are_deleted_by_others() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let directory = backend.directory().unwrap();
    let lifetime = Duration::from_secs(600);
    for number in 0..15 {
        directory.put_client(&format!("ended-{number}"), "record", lifetime).await.unwrap();
    }
    server.query("UPDATE lockcore.client SET until = clock_timestamp()").await;
    for left in ["6", "1"] {
        directory.put_client("lasting", "record", lifetime).await.unwrap();
        assert_eq!(server.query("SELECT count(*) FROM lockcore.client").await, [[left]]);
    }
}
