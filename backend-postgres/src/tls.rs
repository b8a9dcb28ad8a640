//! TLS with rustls.

use std::sync::Arc;

use lockcore::BackendError;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error;

/// TLS that trusts the certificates of the system, and `more` in PEM form.
pub(crate) fn with_roots(more: &[u8]) -> Result<MakeRustlsConnect, BackendError> {
    let mut roots = RootCertStore::empty();
    // Some of the system's certificates may not be readable; if none is left, no server is trusted.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in CertificateDer::pem_slice_iter(more) {
        let added = certificate.map_err(|error| error.to_string());
        added
            .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()))
            .map_err(|error| {
                error::configuration(format!("a root certificate cannot be read: {error}"))
            })?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error::configuration(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
