//! Certificates for tests, as files of a directory.
//!
//! A failed step panics, as an assertion does.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

use std::path::PathBuf;
use std::sync::Arc;

use crate::{ClientIdentityFiles, ClientTls, ClientTlsFiles, TlsPeer};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use transport::{PemSource, TlsFiles};

/// An authority with its files: `ca.pem`, and `NAME.pem` and `NAME-key.pem` of each certificate.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    /// Creates an authority with this common name.
    pub fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let directory = tempfile::tempdir().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        std::fs::write(directory.path().join("ca.pem"), pem).unwrap();
        Authority { issuer: Issuer::new(params, key), directory }
    }

    /// Returns the path of a file.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// Returns the certificate of the authority.
    pub fn ca(&self) -> PemSource {
        PemSource::File(self.path("ca.pem"))
    }

    /// Issues the certificate `name` for hosts: DNS names and IP addresses.
    pub fn issue(&self, name: &str, hosts: &[&str]) -> ClientIdentityFiles {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(hosts).unwrap().signed_by(&key, &self.issuer).unwrap();
        let write = |file: String, pem: String| {
            std::fs::write(self.path(&file), pem).unwrap();
            PemSource::File(self.path(&file))
        };
        ClientIdentityFiles {
            cert: write(format!("{name}.pem"), cert.pem()),
            key: write(format!("{name}-key.pem"), key.serialize_pem()),
        }
    }

    /// Issues the certificate of a server.
    pub fn server(&self, name: &str, hosts: &[&str]) -> TlsFiles {
        let ClientIdentityFiles { cert, key } = self.issue(name, hosts);
        TlsFiles { cert, key, client_ca: None }
    }

    /// Returns the certificates of a client that trusts this authority only.
    pub fn client(&self, peer: TlsPeer, identity: Option<ClientIdentityFiles>) -> Arc<ClientTls> {
        ClientTls::read(ClientTlsFiles { peer, ca: self.ca(), identity }).unwrap()
    }
}
