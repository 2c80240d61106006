//! TLS of a client: its settings, and the connections that use them.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Result};
use clap::Args;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::connection::Transport;

/// Remedy for a certificate that `openssl x509 -req` made without extensions.
const VERSION_1: &str = "it has version 1 of X.509, which TLS does not accept; issue it with an extension, such as \
                         extendedKeyUsage=clientAuth by openssl x509 -extfile";

/// Certificates of a client.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsArgs {
    /// Certificates of issuers that https:// and grpcs:// trust (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Certificate of this client (PEM), for a server that requires one
    #[arg(long, value_name = "FILE", alias = "client-cert")]
    pub cert: Option<PathBuf>,
    /// Private key of --cert (PEM) [default: it is in the file of --cert]
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Flag or variable that `ca` comes from, for errors. `None` for the flag.
    #[arg(skip)]
    pub ca_source: Option<&'static str>,
}

impl TlsArgs {
    /// Returns the name of `ca` in errors.
    fn ca_name(&self) -> &'static str {
        self.ca_source.unwrap_or("--ca")
    }

    /// Checks that each set flag has an effect, which needs a connection that uses TLS.
    ///
    /// # Errors
    /// `InvalidArgument`, with the flag.
    pub fn check_used(&self, by_tls: bool) -> Result<()> {
        let flags = [(self.ca_name(), &self.ca), ("--cert", &self.cert), ("--key", &self.key)];
        match flags.iter().find(|(_, value)| value.is_some()) {
            Some((flag, _)) if !by_tls => Err(Error::invalid(format!(
                "{flag} has no effect without TLS: give an address that begins with https:// or grpcs://"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the certificates of issuers, or `None` to use the system's.
    ///
    /// # Errors
    /// `InvalidArgument` if the file has no certificate in PEM form, or the error of the read.
    pub fn issuers(&self) -> Result<Option<Vec<CertificateDer<'static>>>> {
        self.ca.as_deref().map(|path| certificates(self.ca_name(), path)).transpose()
    }

    /// Returns the certificates and the key of this client, if it has them.
    ///
    /// # Errors
    /// As [`TlsArgs::issuers`], and if there is no key, or one of another certificate.
    pub fn identity(
        &self,
    ) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>> {
        let Some(cert) = self.cert.as_deref() else { return Ok(None) };
        let chain = certificates("--cert", cert)?;
        let (flag, path) = self.key_file(cert);
        let text = read(flag, path)?;
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
            PemError::NoItemsFound => unusable(
                flag,
                path,
                &"no private key in PEM form is in it; give it with --key FILE",
            ),
            error => unusable(flag, path, &error),
        })?;
        // ureq panics at the first connection if it gets such a pair.
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider).map_err(|error| {
            match &error {
                rustls::Error::InconsistentKeys(_) => unusable(
                    flag,
                    path,
                    &format!("it is not the key of the first certificate in {}", cert.display()),
                ),
                rustls::Error::InvalidCertificate(_) => {
                    let is_version_1 = error.to_string().contains("UnsupportedCertVersion");
                    let why: &dyn Display = if is_version_1 { &VERSION_1 } else { &error };
                    unusable("--cert", cert, why)
                }
                _ => unusable(flag, path, &error),
            }
        })?;
        Ok(Some((chain, key)))
    }

    /// Returns the text of the file that holds the key of this client, if it has one.
    ///
    /// # Errors
    /// The error of the read, with the flag.
    pub fn key_text(&self) -> Result<Option<Vec<u8>>> {
        let file = self.cert.as_deref().map(|cert| self.key_file(cert));
        file.map(|(flag, path)| read(flag, path)).transpose()
    }

    /// Returns the file of the key, and its flag.
    fn key_file<'a>(&'a self, cert: &'a Path) -> (&'static str, &'a Path) {
        self.key.as_deref().map_or(("--cert", cert), |key| ("--key", key))
    }
}

fn unusable(flag: &str, path: &Path, why: &dyn Display) -> Error {
    Error::invalid(format!("{flag} {}: {why}", path.display()))
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| unusable(flag, path, &error))
}

/// Reads the certificates in the PEM file at `path`. `flag` names the option in errors.
fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(flag, path)?;
    let found: std::result::Result<Vec<_>, PemError> =
        CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(PemError::NoItemsFound) => {
            Err(unusable(flag, path, &"no certificate in PEM form is in it"))
        }
        Err(error) => Err(unusable(flag, path, &error)),
    }
}

/// The side of a client in handshakes with one server.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// True if the client shows a certificate.
    pub(crate) is_identified: bool,
}

impl PartialEq for TlsClient {
    fn eq(&self, other: &TlsClient) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name
    }
}

impl Eq for TlsClient {}

impl TlsClient {
    /// Reads the certificates of `args` for a server at `authority` ("host:port").
    ///
    /// # Errors
    /// `InvalidArgument`, with the flag or the address.
    pub(crate) fn new(args: &TlsArgs, transport: Transport, authority: &str) -> Result<TlsClient> {
        let failed = |error: rustls::Error| Error::invalid("TLS").caused_by(error);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let builder = match args.issuers()? {
            None => builder.with_platform_verifier().map_err(failed)?,
            Some(issuers) => {
                let mut roots = RootCertStore::empty();
                for issuer in issuers {
                    roots
                        .add(issuer)
                        .map_err(|error| Error::invalid(args.ca_name()).caused_by(error))?;
                }
                builder.with_root_certificates(roots)
            }
        };
        let mut config = match args.identity()? {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| Error::invalid("--cert").caused_by(error))?,
        };
        config.alpn_protocols = vec![match transport {
            Transport::Grpc => b"h2".to_vec(),
            Transport::Http => b"http/1.1".to_vec(),
        }];
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            Error::invalid(format!("\"{host}\" is not a name that a certificate can have"))
        })?;
        Ok(TlsClient { config: Arc::new(config), name, is_identified: args.cert.is_some() })
    }

    /// Runs the handshake.
    ///
    /// # Errors
    /// `InvalidArgument` if the other side speaks no TLS or another protocol, or if its certificate
    /// is not trusted; else `Unavailable`.
    pub(crate) async fn connect(
        &self,
        authority: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(self.config.clone());
        connector.connect(self.name.clone(), stream).await.map_err(|error| {
            let text = error.to_string();
            match explanation(authority, &text) {
                Some(why) => Error::invalid(why),
                None => Error::unavailable(format!("no TLS handshake with {authority}: {text}")),
            }
        })
    }
}

/// Returns why a certificate is not accepted, and the remedy after the first semicolon.
fn untrusted(authority: &str, reason: &str) -> String {
    let untrusted = format!("the certificate of {authority} is not trusted");
    if reason.contains("CaUsedAsEndEntity") {
        // `openssl req -x509` makes such a certificate, and no issuer of --ca helps.
        return format!(
            "{untrusted}: it is that of an issuer (CA:TRUE), which no server may show; sign another one for the server \
             with it"
        );
    }
    if reason.starts_with("certificate not valid for name") {
        let reason = reason.replace("; ", ", ");
        return format!(
            "{untrusted}: {reason}; give an address that it names, or issue it with this one among its subject \
             alternative names (SAN)"
        );
    }
    if reason.starts_with("certificate expired") {
        return format!("{untrusted}: {reason}; renew it");
    }
    format!(
        "{untrusted}: {reason}; give its issuer's certificate (PEM) with --ca FILE or MILLPOND_CA, and an address that \
         it names"
    )
}

/// Alerts of a server that does not accept the certificate of a client.
const REFUSED_CERTIFICATE: [&str; 8] = [
    "UnknownCA",
    "BadCertificate",
    "UnsupportedCertificate",
    "CertificateExpired",
    "CertificateRevoked",
    "CertificateUnknown",
    "AccessDenied",
    "DecryptError",
];

/// Returns the remedy for a failure of TLS with the text `error`, if a remedy is known.
pub fn explanation(authority: &str, error: &str) -> Option<String> {
    if let Some((_, reason)) = error.split_once("invalid peer certificate: ") {
        return Some(untrusted(authority, reason));
    }
    if error.contains("InvalidContentType") {
        return Some(format!(
            "{authority} does not speak TLS; give its address as http://{authority} or grpc://{authority}"
        ));
    }
    if error.contains("NoApplicationProtocol") {
        return Some(format!(
            "{authority} speaks another protocol; grpcs:// is for gRPC ports (8500 by default), https:// for HTTP ports \
             (8501)"
        ));
    }
    if error.contains("CertificateRequired") {
        return Some(format!(
            "{authority} requires a certificate of its clients; give --cert FILE and --key FILE"
        ));
    }
    let (_, alert) = error.split_once("received fatal alert: ")?;
    let refused = REFUSED_CERTIFICATE.iter().any(|name| alert.starts_with(name));
    refused.then(|| {
        format!(
            "{authority} refuses the certificate of this client ({alert}); give --cert FILE and --key FILE of one that \
             has not expired, is for clients (extended key usage clientAuth), and is signed by an issuer in \
             --tls-client-ca of the server"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate of version 1 and its key, made by openssl.
    const OLD_PAIR: &str = "\
-----BEGIN CERTIFICATE-----
MIIBETCBuQIUJV9YHY8HvbDJVcRgQVFPQxao9G4wCgYIKoZIzj0EAwIwDDEKMAgG
A1UEAwwBYzAeFw0yNjExMjkxMzE0MTdaFw0yNjEyMDExMzE0MTdaMAwxCjAIBgNV
BAMMAWMwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASjbGq18SSfcmiSYaM3bXkX
oSGiJk7c8cAHGMzPYPLxu4J8cXU2uWBg2Zdmln6v0Q5o/vMGOlAZ/FU6m1ogt+VU
MAoGCCqGSM49BAMCA0cAMEQCIBjh0oMRAHIf0By70dlXkTHXkQWKpDjYdpwJFNtH
akcMAiA6b5bH6XSCPZLwO/yYEnfFKOBHePS5GQFz3h6hXTrymA==
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgfgCTHwRNABgkWT79
kz5nVvdb/6yR6T6zOV3uwYDg4B2hRANCAASjbGq18SSfcmiSYaM3bXkXoSGiJk7c
8cAHGMzPYPLxu4J8cXU2uWBg2Zdmln6v0Q5o/vMGOlAZ/FU6m1ogt+VU
-----END PRIVATE KEY-----
";

    /// Commands show the part after the first semicolon as a hint.
    #[test]
    fn explanations_end_with_a_remedy() {
        for error in [
            "invalid peer certificate: UnknownIssuer",
            "received corrupt message of type InvalidContentType",
            "received fatal alert: NoApplicationProtocol",
            "received fatal alert: CertificateRequired",
            "received fatal alert: UnknownCA",
            "received fatal alert: CertificateExpired",
        ] {
            let explained = explanation("host:8501", error).unwrap();
            let remedy = explained.split_once("; ").map(|(_, remedy)| remedy);
            assert!(remedy.is_some_and(|remedy| !remedy.is_empty()), "{explained}");
        }
    }

    #[test]
    fn flags_without_tls_are_refused() {
        let args = TlsArgs { ca: Some("ca.pem".into()), ..TlsArgs::default() };
        assert!(args.check_used(true).is_ok() && TlsArgs::default().check_used(false).is_ok());
        assert!(args.check_used(false).unwrap_err().message().starts_with("--ca has no effect"));
    }

    #[test]
    fn files_without_certificates_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let args = TlsArgs { ca: Some(empty.clone()), cert: Some(empty), ..TlsArgs::default() };
        for error in [args.issuers().unwrap_err(), args.identity().unwrap_err()] {
            assert!(error.message().contains("empty.pem: no certificate in PEM form"), "{error}");
        }
        let mut missing = TlsArgs { ca: Some(dir.path().join("none")), ..TlsArgs::default() };
        assert!(missing.issuers().unwrap_err().message().starts_with("--ca "));
        missing.ca_source = Some("MILLPOND_CA");
        assert!(missing.issuers().unwrap_err().message().starts_with("MILLPOND_CA "));
    }

    #[test]
    fn a_certificate_of_version_1_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("old.pem");
        std::fs::write(&file, OLD_PAIR).unwrap();
        let error = TlsArgs { cert: Some(file), ..TlsArgs::default() }.identity().unwrap_err();
        assert!(error.message().contains("old.pem: it has version 1 of X.509"), "{error}");
    }

    #[test]
    fn remedies_fit_the_certificate() {
        for (reason, remedy) in [
            ("Other(OtherError(CaUsedAsEndEntity))", "sign another one for the server with it"),
            (
                "certificate not valid for name \"h\"; certificate is only valid for a or b",
                "give an address that it names, or issue it with this one among its subject alternative names (SAN)",
            ),
            (
                "certificate not valid for name \"h\"; certificate is not valid for any names",
                "give an address that it names, or issue it with this one among its subject alternative names (SAN)",
            ),
            ("certificate expired: verification time 2 (UNIX)", "renew it"),
        ] {
            let text = explanation("h:1", &format!("invalid peer certificate: {reason}")).unwrap();
            assert_eq!(text.split_once("; ").map(|(_, remedy)| remedy), Some(remedy), "{text}");
            assert!(text.starts_with("the certificate of h:1 is not trusted: "), "{text}");
        }
    }

    #[test]
    fn failures_are_explained() {
        for (error, wanted) in [
            ("invalid peer certificate: UnknownIssuer", "not trusted: UnknownIssuer; give"),
            ("received corrupt message of type InvalidContentType", "does not speak TLS"),
            ("received fatal alert: NoApplicationProtocol", "another protocol"),
            ("received fatal alert: CertificateRequired", "--cert FILE"),
        ] {
            let text = explanation("h:1", error).unwrap();
            assert!(text.contains(wanted) && text.contains("h:1"), "{text}");
        }
        let text = explanation("h:1", "received fatal alert: UnknownCA").unwrap();
        assert!(
            text.starts_with("h:1 refuses the certificate of this client (UnknownCA); "),
            "{text}"
        );
        assert_eq!(explanation("h:1", "received fatal alert: InternalError"), None);
        assert_eq!(explanation("h:1", "connection reset"), None);
    }
}
