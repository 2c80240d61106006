//! TLS of the listeners: certificates from files, which are read again when they change.
//!
//! A handshake uses the certificates of its time. Connections keep theirs, so that a renewal closes
//! none. TLS uses ring, because the program has it for object stores anyway and AWS-LC would
//! compile for minutes.

mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base::{Error, Result};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;

use crate::access::Secret;
use crate::http_version::HttpVersion;
pub(crate) use stream::{SocketReader, SocketStream, SocketWriter};

/// Remedy for a certificate that `openssl x509 -req` made without extensions.
const VERSION_1: &str = "it has version 1 of X.509, which TLS does not accept; issue it with an extension, such as \
                         subjectAltName by openssl x509 -extfile";

/// A certificate or key in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemSource {
    /// A file, which is read again if certificates are reloaded.
    File(PathBuf),
    /// The text itself, of the named setting.
    Text(&'static str, Secret),
}

impl PemSource {
    /// Returns the path of a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            PemSource::File(path) => Some(path),
            PemSource::Text(..) => None,
        }
    }

    fn read(&self) -> Result<Vec<u8>> {
        match self {
            PemSource::File(path) => std::fs::read(path).map_err(|error| Error::io(path, &error)),
            PemSource::Text(_, text) => Ok(text.0.clone().into_bytes()),
        }
    }

    /// Returns an error about the content.
    pub fn wrong(&self, why: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{self}: {why}"))
    }

    /// Returns the error for a file whose PEM form is damaged or lacks `item`.
    fn unreadable(&self, error: PemError, item: &str) -> Error {
        match error {
            PemError::NoItemsFound => self.wrong(format!("no {item} in PEM form is in it")),
            // The library shows the marker as a list of numbers.
            PemError::MissingSectionEnd { end_marker } => self.wrong(format!(
                "the line \"-----END {}-----\" is missing; the content must be complete",
                String::from_utf8_lossy(&end_marker)
            )),
            error => self.wrong(format!("{error}; it must be in PEM form")),
        }
    }

    /// Reads the certificates, at least one.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none, or the error of the read.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        let text = self.read()?;
        let found: std::result::Result<Vec<_>, PemError> =
            CertificateDer::pem_slice_iter(&text).collect();
        let found = match found {
            Ok(found) if found.is_empty() => Err(PemError::NoItemsFound),
            found => found,
        };
        found.map_err(|error| self.unreadable(error, "certificate"))
    }

    /// Reads a private key that is not encrypted.
    ///
    /// # Errors
    /// As [`PemSource::certificates`].
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|error| {
            self.unreadable(error, "private key (PKCS#8, PKCS#1 or SEC1, not encrypted)")
        })
    }

    /// Reads the certificates of issuers.
    ///
    /// # Errors
    /// As [`PemSource::certificates`].
    pub fn issuers(&self) -> Result<RootCertStore> {
        let mut issuers = RootCertStore::empty();
        for certificate in self.certificates()? {
            issuers.add(certificate).map_err(|error| self.wrong(error))?;
        }
        Ok(issuers)
    }
}

impl std::fmt::Display for PemSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PemSource::File(path) => write!(formatter, "{}", path.display()),
            PemSource::Text(name, _) => formatter.write_str(name),
        }
    }
}

/// Certificates and key of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the server, followed by the certificates between it and its root.
    pub cert: PemSource,
    /// Private key of the certificate.
    pub key: PemSource,
    /// Certificates of the issuers of client certificates. `None` accepts clients without one.
    pub client_ca: Option<PemSource>,
}

impl TlsFiles {
    /// Returns the paths of all files.
    pub fn paths(&self) -> Vec<&Path> {
        let all = [&self.cert, &self.key].into_iter().chain(&self.client_ca);
        all.filter_map(PemSource::path).collect()
    }
}

/// Configurations that differ in the protocol that they negotiate (ALPN).
struct ServerConfigs {
    http1: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
}

/// The certificates of a server.
pub struct TlsIdentity {
    files: TlsFiles,
    current: ArcSwap<ServerConfigs>,
}

impl TlsIdentity {
    /// Reads the files.
    ///
    /// # Errors
    /// `InvalidArgument`, `NotFound` or `PermissionDenied`, with the file and its fault.
    pub fn read(files: TlsFiles) -> Result<Arc<TlsIdentity>> {
        let current = ArcSwap::from_pointee(configs(&files)?);
        Ok(Arc::new(TlsIdentity { files, current }))
    }

    /// Returns the files that were read, for log lines and errors.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// Reads the files again. New connections use them.
    ///
    /// # Errors
    /// As [`TlsIdentity::read`]. The certificates then stay as they are.
    pub fn reload(&self) -> Result<()> {
        self.current.store(Arc::new(configs(&self.files)?));
        Ok(())
    }

    /// Runs the handshake of a connection.
    ///
    /// # Errors
    /// `TimedOut` after `time_max`, and the errors of the handshake.
    pub(crate) async fn accept(
        &self,
        version: HttpVersion,
        stream: TcpStream,
        time_max: Duration,
    ) -> std::io::Result<SocketStream> {
        let configs = self.current.load();
        let config = match version {
            HttpVersion::Http1 => &configs.http1,
            HttpVersion::Http2 => &configs.http2,
        };
        let handshake = tokio_rustls::TlsAcceptor::from(config.clone()).accept(stream);
        drop(configs);
        let stream = tokio::time::timeout(time_max, handshake)
            .await
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        Ok(SocketStream::Tls(Box::new(stream)))
    }
}

/// Reads the files and builds the configurations of HTTP/1.1 and HTTP/2.
///
/// # Errors
/// The error of a file, which names it.
fn configs(files: &TlsFiles) -> Result<ServerConfigs> {
    let chain = files.cert.certificates()?;
    let key = files.key.private_key()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::internal("TLS").caused_by(error))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(source) => {
            let issuers = Arc::new(source.issuers()?);
            let verifier = WebPkiClientVerifier::builder_with_provider(issuers, provider)
                .build()
                .map_err(|error| source.wrong(error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut http1 = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            files.key.wrong(format!("it is not the key of the first certificate in {}", files.cert))
        }
        error if error.to_string().contains("UnsupportedCertVersion") => {
            files.cert.wrong(VERSION_1)
        }
        error => files.cert.wrong(error),
    })?;
    let mut http2 = http1.clone();
    // HTTP/1.0 is the only protocol that curl --http1.0 offers.
    http1.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    http2.alpn_protocols = vec![b"h2".to_vec()];
    Ok(ServerConfigs { http1: Arc::new(http1), http2: Arc::new(http2) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_certificate_is_reported_in_words() {
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n".to_owned();
        let error = PemSource::Text("cert", Secret(text)).certificates().err();
        let expected =
            "cert: the line \"-----END CERTIFICATE-----\" is missing; the content must be complete";
        assert_eq!(error.as_ref().map(Error::message), Some(expected));
    }
}
