//! Settings of a node of a cluster: their checks, and the server's configuration.

use std::path::Path;

use command_line::environment;
use command_line::exit::{CommandError, CommandResult};
use server::{ClusterConfig, PemSource};

use super::cluster_tls::etcd_user;
use super::options::ClusterOptions;
use super::settings::{COLLECTIONS_HINT, ServeSettings, check_number};

/// Maximum of `--cluster-weight`.
const WEIGHT_MAX: usize = 64;
/// Maximum of `--cluster-snapshot-entries`. A new holder reads that many entries.
const SNAPSHOT_ENTRIES_MAX: usize = 1 << 20;

impl ClusterOptions {
    /// Returns true if a node with these settings has the role `wanted`.
    pub(super) fn has_role(&self, wanted: &str) -> bool {
        match &self.cluster_roles {
            Some(roles) => roles.split(',').any(|role| role.trim() == wanted),
            None => true,
        }
    }
}

impl ServeSettings {
    /// Checks that each setting of a cluster has an effect, and that its nodes can reach each
    /// other.
    pub(super) fn check_cluster(&self) -> CommandResult {
        let cluster = &self.cluster;
        let others = [
            ("--cluster-etcd", !cluster.cluster_etcd.is_empty()),
            ("--cluster-etcd-ca", cluster.cluster_etcd_ca.is_some()),
            ("--cluster-etcd-cert", cluster.cluster_etcd_cert.is_some()),
            ("--cluster-etcd-key", cluster.cluster_etcd_key.is_some()),
            ("--cluster-tls-ca", cluster.cluster_tls_ca.is_some()),
            ("--cluster-node", cluster.cluster_node.is_some()),
            ("--cluster-roles", cluster.cluster_roles.is_some()),
            ("--cluster-address", cluster.cluster_address.is_some()),
            ("--cluster-name", cluster.cluster_name.is_some()),
            ("--cluster-weight", cluster.cluster_weight.is_some()),
            ("--cluster-snapshot-entries", cluster.cluster_snapshot_entries.is_some()),
        ];
        if cluster.cluster_store.is_none() {
            return match others.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(CommandError::usage(format!(
                    "{flag} has no effect without --cluster-store DIR|URL"
                ))),
                None => Ok(()),
            };
        }
        if cluster.cluster_etcd.is_empty() {
            return Err(CommandError::usage(
                "--cluster-store needs --cluster-etcd http://HOST:PORT",
            ));
        }
        let holds = cluster.has_role("search");
        self.check_roles(holds, cluster.has_role("ingest"))?;
        if holds && self.search.collections_dir.as_deref() == Some(Path::new("none")) {
            return Err(CommandError::usage(
                "--cluster-store keeps shards in --collections-dir, which is none",
            )
            .hint(COLLECTIONS_HINT));
        }
        if self.search.originals.is_some() {
            return Err(CommandError::usage(
                "--originals has no effect in a cluster: leave it out, the original images are in --cluster-store",
            ));
        }
        cluster.check_tls(self.server.tls_cert.is_some())?;
        let has_other_keys = self.server.keys.is_some() || self.server.admin_key.is_some();
        if has_other_keys && self.search.api_key.is_none() {
            return Err(CommandError::usage(
                "--cluster-store with --keys or --admin-key needs --api-key KEY, which the nodes show to each other",
            ));
        }
        let weight = cluster.cluster_weight.map(|weight| weight as usize);
        check_number("cluster-weight", weight, 0, WEIGHT_MAX)?;
        let entries = cluster.cluster_snapshot_entries.map(|entries| entries as usize);
        check_number("cluster-snapshot-entries", entries, 1, SNAPSHOT_ENTRIES_MAX)
    }

    /// Checks that the node's roles use the settings of shards.
    fn check_roles(&self, holds: bool, writes: bool) -> CommandResult {
        let without = |flag: &str, roles: &str| {
            Err(CommandError::usage(format!("{flag} has no effect on a node without the {roles}")))
        };
        if self.cluster.cluster_snapshot_entries.is_some() && !holds {
            return without("--cluster-snapshot-entries", "role search");
        }
        if self.cluster.cluster_weight.is_some() && !holds && !writes {
            return without("--cluster-weight", "roles search and ingest");
        }
        if self.search.backup_every.is_some() && !writes {
            return without("--backup-every", "role ingest");
        }
        Ok(())
    }

    /// Returns the cluster that the server is a node of, if there is one.
    ///
    /// # Errors
    /// Returns a usage error for an unknown role.
    pub(super) fn cluster_config(&self) -> CommandResult<Option<ClusterConfig>> {
        let options = self.cluster.clone();
        let etcd_tls = options.etcd_tls();
        let Some(store) = options.cluster_store else { return Ok(None) };
        let default = ClusterConfig::default();
        let roles = options.cluster_roles.as_deref().map(str::parse).transpose();
        let roles = roles.map_err(|error: base::Error| {
            CommandError::usage(format!("--cluster-roles: {}", error.message()))
        })?;
        let remote = store.contains("://");
        Ok(Some(ClusterConfig {
            store,
            store_options: remote.then(environment::object_stores).unwrap_or_default(),
            etcd_tls,
            etcd_user: etcd_user(environment::ETCD_USER.text(), environment::ETCD_PASSWORD.text())?,
            tls_ca: options.cluster_tls_ca.map(PemSource::File),
            etcd: options.cluster_etcd,
            name: options.cluster_name.unwrap_or(default.name),
            node: options.cluster_node,
            roles: roles.unwrap_or(default.roles),
            address: options.cluster_address,
            weight: options.cluster_weight.unwrap_or(default.weight),
            snapshot_entries: options
                .cluster_snapshot_entries
                .map_or(default.snapshot_entries, u64::from),
            key: self.search.api_key.clone(),
        }))
    }
}
