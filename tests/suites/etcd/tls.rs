//! TLS to a server whose certificate is signed by a private authority.

use std::{fs, path::PathBuf, process::Command};

use lockcore::BackendErrorKind;
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::EtcdCluster;

use crate::support::{enters, request, soon};

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A folder with a certificate, `server.crt`, and its key, `server.key`.
fn certificate() -> Folder {
    let folder = std::env::temp_dir().join(format!("lockcore-etcd-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let subject = ["-subj", "/CN=localhost", "-days", "2", "-nodes", "-newkey", "rsa:2048"];
    let names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
    let files = ["-keyout", "server.key", "-out", "server.crt"];
    let no_authority = ["-addext", "basicConstraints=critical,CA:FALSE"];
    let arguments =
        [&["req", "-x509"], &subject[..], &names[..], &files[..], &no_authority[..]].concat();
    let output = Command::new("openssl").current_dir(&folder).args(arguments).output();
    let output = output.expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Folder(folder)
}

#[tokio::test]
async fn a_certificate_is_checked() {
    let folder = certificate();
    let [certificate, key] = ["server.crt", "server.key"].map(|file| folder.0.join(file));
    let [certificate, key] = [certificate.to_str().unwrap(), key.to_str().unwrap()];
    let cluster = EtcdCluster::start_with(1, &["--cert-file", certificate, "--key-file", key]);
    let url = format!("https://{}", cluster.addresses()[0]);

    let unknown = soon("an answer", EtcdBackend::connect([&url])).await.unwrap_err();
    assert!(unknown.to_string().to_lowercase().contains("certificate"), "{unknown}");

    let pem = fs::read(certificate).unwrap();
    let builder = EtcdBackend::builder([&url]).root_certificates(pem);
    let backend = soon("an answer", builder.connect()).await.unwrap();
    enters(&backend, &request("order", "a")).await;

    let plain = soon("an answer", EtcdBackend::connect(cluster.addresses())).await.unwrap_err();
    assert_eq!(plain.kind(), BackendErrorKind::Connection, "{plain}");
}
