//! Clients of a node of a cluster: of other nodes and of etcd, with their certificates.

use std::sync::Arc;

use base::{Error, Result};
use etcd::Etcd;
use http_client::{ClientIdentityFiles, ClientTls, ClientTlsFiles, HttpClient, TlsPeer};
use transport::TlsFiles;

use crate::config::{ClusterConfig, Config};

/// Clients of a node.
pub(crate) struct ClusterClients {
    /// Client of other nodes.
    pub(crate) nodes: HttpClient,
    /// Client of etcd.
    pub(crate) etcd: Etcd,
    /// Certificates of both, which are read again when their files change.
    pub(crate) tls: Vec<Arc<ClientTls>>,
}

impl ClusterClients {
    /// Reads the certificates. The other nodes reach this one at `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// `InvalidArgument` for settings that contradict each other, and if other nodes would not
    /// accept the certificate of this server. Also the error of a file that cannot be read.
    pub(crate) fn open(
        config: &Config,
        cluster: &ClusterConfig,
        address: &str,
    ) -> Result<ClusterClients> {
        let own = config.listeners.tls.as_ref();
        let of_nodes = nodes_tls(own, cluster)?.map(ClientTls::read).transpose()?;
        if let (Some(own), Some(tls)) = (own, &of_nodes) {
            tls.check_own(own, address)?;
        }
        let of_etcd = cluster.etcd_tls.clone().map(ClientTls::read).transpose()?;
        let etcd = Etcd::new(&cluster.etcd, client(None, of_etcd.clone()))?;
        let etcd = match cluster.etcd_user.clone() {
            Some(user) => etcd.with_user(user),
            None => etcd,
        };
        let nodes = client(cluster.key.clone(), of_nodes.clone());
        Ok(ClusterClients { nodes, etcd, tls: of_nodes.into_iter().chain(of_etcd).collect() })
    }
}

fn client(key: Option<String>, tls: Option<Arc<ClientTls>>) -> HttpClient {
    match tls {
        Some(tls) => HttpClient::with_tls(key, tls),
        None => HttpClient::new(key),
    }
}

/// Returns the files for requests to other nodes, which use TLS if this server does. All nodes have
/// the same flags, so if this server requires certificates of its clients, the others do too.
fn nodes_tls(own: Option<&TlsFiles>, cluster: &ClusterConfig) -> Result<Option<ClientTlsFiles>> {
    match (own, cluster.tls_ca.clone()) {
        (None, None) => Ok(None),
        (Some(own), Some(ca)) => {
            let identity = own
                .client_ca
                .as_ref()
                .map(|_| ClientIdentityFiles { cert: own.cert.clone(), key: own.key.clone() });
            Ok(Some(ClientTlsFiles { peer: TlsPeer::Nodes, ca, identity }))
        }
        (Some(_), None) => Err(Error::invalid(
            "a node of a cluster with --tls-cert needs --cluster-tls-ca FILE, the issuer of the nodes' certificates",
        )),
        (None, Some(_)) => Err(Error::invalid("--cluster-tls-ca has no effect without --tls-cert")),
    }
}

#[cfg(test)]
mod tests {
    use transport::PemSource;

    use super::*;

    #[test]
    fn nodes_show_a_certificate_if_they_require_one() {
        let file = |name: &str| PemSource::File(name.into());
        let own = TlsFiles { cert: file("cert"), key: file("key"), client_ca: None };
        let cluster = ClusterConfig { tls_ca: Some(file("ca")), ..ClusterConfig::default() };
        let files = nodes_tls(Some(&own), &cluster).unwrap().unwrap();
        assert_eq!((files.ca, files.identity), (file("ca"), None));
        let own = TlsFiles { client_ca: Some(file("clients")), ..own };
        let identity = nodes_tls(Some(&own), &cluster).unwrap().unwrap().identity.unwrap();
        assert_eq!((identity.cert, identity.key), (file("cert"), file("key")));
        assert!(nodes_tls(None, &cluster).is_err());
        let plain = ClusterConfig::default();
        assert!(nodes_tls(Some(&own), &plain).unwrap_err().message().contains("--cluster-tls-ca"));
        assert_eq!(nodes_tls(None, &plain).unwrap(), None);
    }
}
