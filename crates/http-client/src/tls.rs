//! TLS of a client: the issuers that it trusts and its own certificate, from files that are read
//! again when they change.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base::{Error, Result};
use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use transport::{PemSource, TlsFiles};

use crate::tls_error::{CertificateProblem, certificate_problem};

/// Servers that a client calls. Errors name the flags of these servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPeer {
    /// Other nodes of the cluster.
    Nodes,
    /// Members of the etcd cluster.
    Etcd,
}

/// Files of a client's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// Servers that the client calls.
    pub peer: TlsPeer,
    /// Issuers of the servers' certificates. No other issuer is trusted.
    pub ca: PemSource,
    /// Certificate that the client shows to servers that request one.
    pub identity: Option<ClientIdentityFiles>,
}

/// Certificate of a client and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentityFiles {
    /// Certificate, followed by the certificates between it and its root.
    pub cert: PemSource,
    /// Private key of the certificate.
    pub key: PemSource,
}

impl ClientTlsFiles {
    /// Returns the paths of all files.
    pub fn paths(&self) -> Vec<&Path> {
        let own = self.identity.iter().flat_map(|identity| [&identity.cert, &identity.key]);
        own.chain([&self.ca]).filter_map(PemSource::path).collect()
    }
}

/// The certificates of a client. New connections use the files as last read.
pub struct ClientTls {
    files: ClientTlsFiles,
    current: ArcSwap<ClientConfig>,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// `InvalidArgument`, `NotFound` or `PermissionDenied`, with the file and its fault.
    pub fn read(files: ClientTlsFiles) -> Result<Arc<ClientTls>> {
        let current = ArcSwap::from_pointee(client_config(&files)?);
        Ok(Arc::new(ClientTls { files, current }))
    }

    /// Returns the files that were read, for log lines and errors.
    pub fn files(&self) -> &ClientTlsFiles {
        &self.files
    }

    /// Reads the files again. New connections use them.
    ///
    /// # Errors
    /// As [`ClientTls::read`]; the certificates then stay as they are.
    pub fn reload(&self) -> Result<()> {
        self.current.store(Arc::new(client_config(&self.files)?));
        Ok(())
    }

    pub(super) fn config(&self) -> Arc<ClientConfig> {
        self.current.load_full()
    }

    /// Checks that nodes with the same issuers accept the certificate of the server `own`, which
    /// other nodes reach at `address` (`HOST:PORT`). If `own` requires certificates of its clients,
    /// so do the other nodes, and the certificate must be one for clients too.
    ///
    /// # Errors
    /// `InvalidArgument`, with the remedy.
    pub fn check_own(&self, own: &TlsFiles, address: &str) -> Result<()> {
        let chain = own.cert.certificates()?;
        let Some((first, issuers)) = chain.split_first() else {
            return Err(own.cert.wrong("no certificate is in it"));
        };
        let host = host_of(address);
        let name = ServerName::try_from(host).map_err(|error| {
            Error::invalid(format!(
                "{host:?} of --cluster-address is not a name that a certificate can have"
            ))
            .with_source(error)
        })?;
        let subject = format!("the certificate {} of this node", own.cert);
        let refused = |error: rustls::Error, problem: CertificateProblem<'_>| {
            let text = certificate_problem(&error, &problem).unwrap_or_else(|| error.to_string());
            Error::invalid(text)
        };
        let trusted = Arc::new(self.files.ca.issuers()?);
        let servers = WebPkiServerVerifier::builder_with_provider(trusted, provider())
            .build()
            .map_err(|error| self.files.ca.wrong(error))?;
        let now = UnixTime::now();
        servers.verify_server_cert(first, issuers, &name, &[], now).map_err(|error| {
            refused(error, CertificateProblem { subject: &subject, host, files: &self.files })
        })?;
        let Some(client_ca) = &own.client_ca else { return Ok(()) };
        let clients = Arc::new(client_ca.issuers()?);
        let clients = WebPkiClientVerifier::builder_with_provider(clients, provider())
            .build()
            .map_err(|error| client_ca.wrong(error))?;
        clients.verify_client_cert(first, issuers, now).map_err(|error| {
            Error::invalid(format!(
                "{subject} is not accepted as that of a client ({error}); the nodes show it to each other: issue it by an \
                 issuer in {client_ca} (--tls-client-ca), with the extended key usages serverAuth and clientAuth"
            ))
            .with_source(error)
        })?;
        Ok(())
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClientTls").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Returns the host of `HOST:PORT`, without the brackets of an IPv6 address.
pub(super) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.filter(|inner| inner.parse::<IpAddr>().is_ok()).unwrap_or(host)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn client_config(files: &ClientTlsFiles) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::internal("TLS").caused_by(error))?
        .with_root_certificates(files.ca.issuers()?);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some(ClientIdentityFiles { cert, key }) => builder
            .with_client_auth_cert(cert.certificates()?, key.private_key()?)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    key.wrong(format!("it is not the key of the first certificate in {cert}"))
                }
                error => cert.wrong(error),
            })?,
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_addresses() {
        let cases = [("a:1", "a"), ("10.0.0.7:8501", "10.0.0.7"), ("[::1]:2", "::1"), ("a", "a")];
        for (address, host) in cases {
            assert_eq!(host_of(address), host);
        }
    }

    #[test]
    fn all_files_are_followed() {
        let file = |name: &str| PemSource::File(name.into());
        let identity = ClientIdentityFiles { cert: file("cert"), key: file("key") };
        let files =
            ClientTlsFiles { peer: TlsPeer::Etcd, ca: file("ca"), identity: Some(identity) };
        assert_eq!(files.paths(), ["cert", "key", "ca"].map(Path::new));
        let files = ClientTlsFiles { identity: None, ..files };
        assert_eq!(files.paths(), [Path::new("ca")]);
    }
}
