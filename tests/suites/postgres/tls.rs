//! TLS to a server whose certificate is signed by a private authority.

use std::{fs, process::Command};

use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;

use crate::support::{enters, request};

/// Runs openssl in a folder.
fn openssl(folder: &std::path::Path, arguments: &[&str]) {
    let mut command = Command::new("openssl");
    let output = command.current_dir(folder).args(arguments).output().expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_certificate_is_checked_and_the_connection_encrypted() {
    let mut server = PostgresServer::start();
    let data = server.directory().join("data");
    let subject = ["-subj", "/CN=localhost", "-days", "2", "-nodes", "-newkey", "rsa:2048"];
    let names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
    let files = ["-keyout", "server.key", "-out", "server.crt"];
    let no_authority = ["-addext", "basicConstraints=critical,CA:FALSE"];
    let arguments =
        [&["req", "-x509"], &subject[..], &names[..], &files[..], &no_authority[..]].concat();
    openssl(&data, &arguments);
    server.owns("data/server.key");
    server.owns("data/server.crt");
    let settings = data.join("postgresql.auto.conf");
    fs::write(settings, "ssl = on\n").unwrap();
    server.restart();

    let certificate = fs::read(data.join("server.crt")).unwrap();
    let url = format!("{}?sslmode=require", server.url());
    let unknown = PostgresBackend::connect(&url).await.unwrap_err();
    assert!(unknown.to_string().to_lowercase().contains("certificate"), "{unknown}");

    let builder = PostgresBackend::builder(&url).root_certificates(&certificate);
    let backend = builder.connect().await.unwrap();
    enters(&backend, &request("order", "a")).await;
    let plain = "SELECT pid FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE application_name LIKE 'lockcore %' AND NOT ssl";
    assert!(server.query(plain).await.is_empty(), "a connection is not encrypted");

    let bad = PostgresBackend::builder(&url).root_certificates("-----BEGIN CERTIFICATE-----\nx");
    let error = bad.connect().await.unwrap_err();
    assert_eq!(error.kind(), lockcore::BackendErrorKind::Configuration, "{error}");
}
