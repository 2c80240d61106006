//! TLS of a node of a cluster and its user of etcd: checks of the settings, and the server's
//! configuration.

use command_line::environment::{ETCD_PASSWORD, ETCD_USER};
use command_line::exit::{CommandError, CommandResult};
use server::{ClientIdentityFiles, ClientTlsFiles, EtcdUser, PemSource, Secret, TlsPeer};

use super::options::ClusterOptions;

impl ClusterOptions {
    /// Checks that the settings of TLS are complete, and that each has an effect. `serves_tls` is
    /// true if the server has a certificate.
    pub(super) fn check_tls(&self, serves_tls: bool) -> CommandResult {
        match (serves_tls, &self.cluster_tls_ca) {
            (true, None) => {
                return Err(CommandError::usage(
                    "--cluster-store with --tls-cert needs --cluster-tls-ca FILE: the nodes speak TLS to each other",
                )
                .hint("name the certificate (PEM) of the issuer of the nodes' certificates"));
            }
            (false, Some(_)) => {
                return Err(CommandError::usage(
                    "--cluster-tls-ca has no effect without --tls-cert FILE and --tls-key FILE",
                ));
            }
            _ => {}
        }
        self.check_etcd_tls()
    }

    fn check_etcd_tls(&self) -> CommandResult {
        let uses_tls = |url: &String| url.trim().starts_with("https://");
        let urls = || self.cluster_etcd.iter().filter(|url| !url.trim().is_empty());
        let by_tls = urls().any(uses_tls);
        if by_tls && !urls().all(uses_tls) {
            return Err(CommandError::usage(
                "--cluster-etcd has addresses with http:// and with https://: write all with https://",
            ));
        }
        let flags = [
            ("--cluster-etcd-ca", self.cluster_etcd_ca.is_some()),
            ("--cluster-etcd-cert", self.cluster_etcd_cert.is_some()),
            ("--cluster-etcd-key", self.cluster_etcd_key.is_some()),
        ];
        match flags.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) if !by_tls => Err(CommandError::usage(format!(
                "{flag} has no effect without --cluster-etcd https://HOST:PORT"
            ))),
            _ if by_tls && self.cluster_etcd_ca.is_none() => Err(CommandError::usage(
                "--cluster-etcd https://... needs --cluster-etcd-ca FILE, the issuer of etcd's certificate (PEM)",
            )),
            _ if self.cluster_etcd_cert.is_some() != self.cluster_etcd_key.is_some() => Err(
                CommandError::usage("--cluster-etcd-cert and --cluster-etcd-key need each other"),
            ),
            _ => Ok(()),
        }
    }

    /// Returns the certificates for etcd, if it is reached by TLS.
    pub(super) fn etcd_tls(&self) -> Option<ClientTlsFiles> {
        let ca = PemSource::File(self.cluster_etcd_ca.clone()?);
        let own = self.cluster_etcd_cert.clone().zip(self.cluster_etcd_key.clone());
        let identity = own.map(|(cert, key)| ClientIdentityFiles {
            cert: PemSource::File(cert),
            key: PemSource::File(key),
        });
        Some(ClientTlsFiles { peer: TlsPeer::Etcd, ca, identity })
    }
}

/// Returns the user of etcd from the values of its two variables.
///
/// # Errors
/// Returns a usage error if one of them is unset.
pub(super) fn etcd_user(
    name: Option<String>,
    password: Option<String>,
) -> CommandResult<Option<EtcdUser>> {
    match (name, password) {
        (Some(name), Some(password)) => Ok(Some(EtcdUser { name, password: Secret(password) })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(incomplete(ETCD_USER.name, ETCD_PASSWORD.name)),
        (None, Some(_)) => Err(incomplete(ETCD_PASSWORD.name, ETCD_USER.name)),
    }
}

fn incomplete(set: &str, unset: &str) -> CommandError {
    CommandError::usage(format!("{set} is set, and {unset} is not: set both, or none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(etcd: &[&str]) -> ClusterOptions {
        let cluster_etcd = etcd.iter().map(|url| (*url).to_owned()).collect();
        ClusterOptions { cluster_etcd, ..ClusterOptions::default() }
    }

    fn refusal(options: &ClusterOptions, serves_tls: bool) -> String {
        options.check_tls(serves_tls).unwrap_err().message().to_owned()
    }

    #[test]
    fn tls_of_nodes_needs_the_issuer_and_a_certificate() {
        let plain = options(&["http://a:1"]);
        assert!(plain.check_tls(false).is_ok());
        assert!(refusal(&plain, true).contains("needs --cluster-tls-ca FILE"));
        let tls = ClusterOptions { cluster_tls_ca: Some("ca".into()), ..plain };
        assert!(tls.check_tls(true).is_ok());
        assert!(refusal(&tls, false).starts_with("--cluster-tls-ca has no effect"));
    }

    #[test]
    fn certificates_for_etcd_are_complete_and_in_use() {
        let url = options(&["https://a:1", " https://b:1"]);
        assert!(refusal(&url, false).contains("needs --cluster-etcd-ca FILE"));
        let trusted = ClusterOptions { cluster_etcd_ca: Some("ca".into()), ..url };
        assert!(trusted.check_tls(false).is_ok());
        let files = trusted.etcd_tls().unwrap();
        assert_eq!((files.ca, files.identity), (PemSource::File("ca".into()), None));
        let half = ClusterOptions { cluster_etcd_cert: Some("c".into()), ..trusted.clone() };
        assert!(refusal(&half, false).contains("need each other"));
        let whole = ClusterOptions { cluster_etcd_key: Some("k".into()), ..half };
        assert!(whole.check_tls(false).is_ok());
        let identity = whole.etcd_tls().unwrap().identity.unwrap();
        assert_eq!(identity.key, PemSource::File("k".into()));
        let mixed = options(&["https://a:1", "http://b:1"]);
        assert!(refusal(&mixed, false).contains("write all with https://"));
        let plain = options(&["http://a:1"]);
        let vain = ClusterOptions { cluster_etcd_ca: Some("ca".into()), ..plain.clone() };
        assert!(refusal(&vain, false).starts_with("--cluster-etcd-ca has no effect"));
        let vain = ClusterOptions { cluster_etcd_key: Some("k".into()), ..plain };
        assert!(refusal(&vain, false).starts_with("--cluster-etcd-key has no effect"));
    }

    #[test]
    fn a_user_of_etcd_has_a_name_and_a_password() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(etcd_user(None, None).unwrap(), None);
        let user = etcd_user(text("mill"), text("s3cret")).unwrap().unwrap();
        assert!(!format!("{user:?}").contains("s3cret"));
        let refused = etcd_user(text("mill"), None).unwrap_err();
        assert!(refused.message().contains("MILLPOND_ETCD_PASSWORD is not"));
        let refused = etcd_user(None, text("s3cret")).unwrap_err();
        assert!(refused.message().contains("MILLPOND_ETCD_USER is not"));
        assert!(!refused.message().contains("s3cret"));
    }
}
