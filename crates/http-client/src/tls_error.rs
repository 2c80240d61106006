//! Texts of failures of TLS, with the remedy for an operator.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;

use rustls::{AlertDescription, CertificateError, InvalidMessage};

use crate::tls::{ClientTls, ClientTlsFiles, TlsPeer, host_of};

impl TlsPeer {
    /// Returns the flag that names the issuers of the servers.
    fn ca_flag(self) -> &'static str {
        match self {
            TlsPeer::Nodes => "--cluster-tls-ca",
            TlsPeer::Etcd => "--cluster-etcd-ca",
        }
    }

    /// Returns the flag that names the address of a server.
    fn address_flag(self) -> &'static str {
        match self {
            TlsPeer::Nodes => "--cluster-address",
            TlsPeer::Etcd => "--cluster-etcd",
        }
    }
}

/// A certificate that a client does not accept.
pub(super) struct CertificateProblem<'a> {
    /// The certificate, at the start of a sentence.
    pub(super) subject: &'a str,
    /// Host that it must name.
    pub(super) host: &'a str,
    /// Files of the client.
    pub(super) files: &'a ClientTlsFiles,
}

/// Returns why a connection failed and the remedy, if TLS is the reason.
pub(super) fn explanation(
    address: &str,
    error: &(dyn StdError + 'static),
    tls: &ClientTls,
) -> Option<String> {
    let error = tls_error(error)?;
    let files = tls.files();
    match error {
        rustls::Error::AlertReceived(alert) => refused_client(address, *alert, files),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            let remedy = match files.peer {
                TlsPeer::Nodes => "start that node with --tls-cert, as all nodes of the cluster",
                TlsPeer::Etcd => "write http:// in --cluster-etcd, or start etcd with --cert-file",
            };
            Some(format!("{address} does not speak TLS; {remedy}"))
        }
        error => {
            let subject = format!("the certificate of {address}");
            let host = host_of(address);
            certificate_problem(error, &CertificateProblem { subject: &subject, host, files })
        }
    }
}

/// Returns why a certificate is not accepted and the remedy; `None` if the error is another one.
pub(super) fn certificate_problem(
    error: &rustls::Error,
    problem: &CertificateProblem<'_>,
) -> Option<String> {
    use CertificateError::*;
    let rustls::Error::InvalidCertificate(reason) = error else { return None };
    let CertificateProblem { subject, host, files } = problem;
    let peer = files.peer;
    let ca = &files.ca;
    Some(match reason {
        // The second error means an issuer with the name of another issuer.
        UnknownIssuer | BadSignature => format!(
            "{subject} is not signed by an issuer in {ca}; name the certificate of its issuer with {}",
            peer.ca_flag()
        ),
        NotValidForName | NotValidForNameContext { .. } => {
            let (form, kind) = match host.parse::<IpAddr>() {
                Ok(_) => ("the IP address", "an IP address"),
                Err(_) => ("the host", "a DNS name"),
            };
            format!(
                "{subject} does not name {form} {host}; issue it with {host} as {kind} among its subject alternative \
                 names (SAN), or write a host that it names in {}",
                peer.address_flag()
            )
        }
        Expired | ExpiredContext { .. } => format!("{subject} has expired; renew it"),
        NotValidYet | NotValidYetContext { .. } => {
            format!("{subject} is not valid yet; set the clocks of the machines")
        }
        InvalidPurpose | InvalidPurposeContext { .. } => {
            format!("{subject} is not for servers; issue it with the extended key usage serverAuth")
        }
        Other(cause) if format!("{cause:?}").contains("CaUsedAsEndEntity") => format!(
            "{subject} is that of an issuer (CA:TRUE), which no server may show; sign another one for the server with it"
        ),
        _ => format!("{subject} is not accepted ({error}); issue another one"),
    })
}

/// Returns why a server refuses this client, and the remedy.
fn refused_client(
    address: &str,
    alert: AlertDescription,
    files: &ClientTlsFiles,
) -> Option<String> {
    use AlertDescription::*;
    let of_certificate = matches!(
        alert,
        CertificateRequired
            | BadCertificate
            | UnsupportedCertificate
            | CertificateRevoked
            | CertificateExpired
            | CertificateUnknown
            | UnknownCA
            | AccessDenied
            | DecryptError
    );
    let Some(identity) = files.identity.as_ref().filter(|_| of_certificate) else {
        // Older servers have no alert of their own for a missing certificate.
        let missing = matches!(alert, CertificateRequired | BadCertificate | HandshakeFailure);
        let remedy = match files.peer {
            TlsPeer::Nodes => {
                "start this node with --tls-client-ca too, as all nodes of the cluster"
            }
            TlsPeer::Etcd => "give --cluster-etcd-cert FILE and --cluster-etcd-key FILE",
        };
        let text = format!("{address} requires a certificate of its clients; {remedy}");
        return (missing && files.identity.is_none()).then_some(text);
    };
    let trusted = match files.peer {
        TlsPeer::Nodes => "--tls-client-ca of that node",
        TlsPeer::Etcd => "--trusted-ca-file of etcd",
    };
    Some(format!(
        "{address} refuses the certificate {} ({alert:?}); use one that is valid, for clients (extended key usage \
         clientAuth), and signed by an issuer in {trusted}",
        identity.cert
    ))
}

/// Returns the error of TLS among the causes of `error`.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref() {
            return Some(found);
        }
        // `source` of such an error omits the inner error.
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => cause.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use transport::PemSource;

    use super::*;
    use crate::tls::ClientIdentityFiles;

    fn files(peer: TlsPeer, identity: bool) -> ClientTlsFiles {
        let file = |name: &str| PemSource::File(name.into());
        let identity =
            identity.then(|| ClientIdentityFiles { cert: file("own.pem"), key: file("own.key") });
        ClientTlsFiles { peer, ca: file("ca.pem"), identity }
    }

    fn problem(reason: CertificateError, peer: TlsPeer, host: &str) -> String {
        let problem = CertificateProblem { subject: "It", host, files: &files(peer, false) };
        certificate_problem(&rustls::Error::InvalidCertificate(reason), &problem).unwrap()
    }

    #[test]
    fn problems_of_certificates_name_the_remedy() {
        let unknown = problem(CertificateError::UnknownIssuer, TlsPeer::Nodes, "a");
        assert!(unknown.contains("ca.pem") && unknown.ends_with("--cluster-tls-ca"), "{unknown}");
        let unknown = problem(CertificateError::UnknownIssuer, TlsPeer::Etcd, "a");
        assert!(unknown.ends_with("--cluster-etcd-ca"), "{unknown}");
        let reason = || CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("a").unwrap(),
            presented: Vec::new(),
        };
        let address = problem(reason(), TlsPeer::Nodes, "10.0.0.7");
        assert!(address.contains("10.0.0.7 as an IP address among"), "{address}");
        assert!(address.ends_with("--cluster-address"), "{address}");
        let host = problem(reason(), TlsPeer::Etcd, "etcd.example");
        assert!(host.contains("etcd.example as a DNS name among"), "{host}");
        assert!(problem(CertificateError::Expired, TlsPeer::Etcd, "a").contains("renew it"));
        let renewed = problem(CertificateError::BadSignature, TlsPeer::Etcd, "a");
        assert!(renewed.contains("not signed by an issuer in ca.pem"), "{renewed}");
        let other = problem(CertificateError::Revoked, TlsPeer::Etcd, "a");
        assert!(other.contains("not accepted (invalid peer certificate: Revoked)"), "{other}");
    }

    #[test]
    fn refusals_of_clients_name_the_remedy() {
        let refused = |alert, peer, identity| refused_client("a:1", alert, &files(peer, identity));
        let required = AlertDescription::CertificateRequired;
        let text = refused(required, TlsPeer::Etcd, false).unwrap();
        assert!(text.starts_with("a:1 requires") && text.contains("--cluster-etcd-cert"), "{text}");
        let text = refused(required, TlsPeer::Nodes, false).unwrap();
        assert!(text.contains("--tls-client-ca"), "{text}");
        let text = refused(AlertDescription::UnknownCA, TlsPeer::Nodes, true).unwrap();
        assert!(text.contains("own.pem (UnknownCA)") && text.contains("clientAuth"), "{text}");
        assert_eq!(refused(AlertDescription::InternalError, TlsPeer::Nodes, true), None);
        assert_eq!(refused(AlertDescription::UnknownCA, TlsPeer::Nodes, false), None);
    }

    #[test]
    fn errors_of_tls_are_found_below_others() {
        let inner = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::EncryptError);
        let outer = base::Error::unavailable("x").with_source(io::Error::other(inner));
        assert_eq!(tls_error(&outer), Some(&rustls::Error::EncryptError));
        let other = base::Error::unavailable("x").with_source(io::Error::other("y"));
        assert_eq!(tls_error(&other), None);
    }
}
