//! `--verbose`.

use lockcore_testkit::{EtcdCluster, PostgresServer, RedisServer};

use crate::program::end;

#[test]
fn verbose_tells_of_the_connection_and_of_each_request_without_the_password() {
    let server = RedisServer::start_with(&["--requirepass", "hunter2"]);
    let url = server.url().replace("redis://", "redis://:hunter2@");
    let address = server.address();
    for (arguments, told) in [
        (&["show", "a\u{1b}[2J"][..], "inspect: 0 holders"),
        (&["ls"], "names: 0 entries"),
        (&["run", "a", "--", "true"], "acquire: Acquired"),
        (&["run", "a", "--", "true"], "release: Released"),
        (&["release", "a", "--force", "--yes"], "inspect: 0 holders"),
        (&["doctor"], &address),
    ] {
        let quiet = end(&url, arguments);
        assert!(!quiet.stderr.contains("took="), "{quiet:?}");
        let end = end(&url, &[&["--verbose"], arguments].concat());
        assert_eq!((end.code, &end.stdout), (quiet.code, &end.stdout), "{end:?}");
        let connected = format!("connected url=\"redis://***@{address}\"");
        let expected = if arguments[0] == "doctor" { &address } else { &connected };
        for part in [told, expected] {
            assert!(end.stderr.contains(part), "{part}: {end:?}");
        }
        assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
        assert!(end.stderr.lines().all(|line| line.starts_with("lockctl: ")), "{end:?}");
        assert!(!end.stderr.contains('\u{1b}'), "{end:?}");
    }
}

#[test]
fn verbose_tells_why_a_request_failed() {
    let server = RedisServer::start_with(&["--requirepass", "other"]);
    let url = server.url().replace("redis://", "redis://:hunter2@");
    let end = end(&url, &["-v", "show", "a"]);
    assert_eq!(end.code, Some(69));
    assert!(end.stderr.contains("connecting url=") && !end.stderr.contains("hunter2"), "{end:?}");
}

#[test]
fn verbose_works_on_the_other_stores() {
    let postgres = PostgresServer::shared();
    let cluster = EtcdCluster::shared();
    let etcd = format!("etcd://{}/verbose", cluster.addresses().join(","));
    for url in [postgres.url(), etcd] {
        let end = end(&url, &["-v", "run", "verbose:a", "--", "true"]);
        assert_eq!(end.code, Some(0), "{end:?}");
        for part in ["connected url=", "acquire: Acquired", "release: Released"] {
            assert!(end.stderr.contains(part), "{part}: {end:?}");
        }
    }
}
