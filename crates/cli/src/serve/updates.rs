//! Settings of updates in a fleet of servers: their checks, and the server's configuration.

use std::time::Duration;

use command_line::environment;
use command_line::exit::{CommandError, CommandResult};
use command_line::values::TimeSpan;
use server::{ClusterConfig, ListenerConfig, TurnSettings, UpdateSettings};

use super::cluster_tls::etcd_user;
use super::settings::{ServeSettings, check_number, check_span};

/// Minimum of `--update-window`.
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// Maximum of `--update-concurrency`.
const CONCURRENCY_MAX: usize = 1024;
/// Default of `--update-fleet`, without a cluster.
const FLEET: &str = "millpond";

impl ServeSettings {
    /// Checks that each setting of updates has an effect.
    pub(super) fn check_updates(&self) -> CommandResult {
        let options = &self.lifecycle;
        check_span("update-window", options.update_window, WINDOW_MIN)?;
        let concurrency = options.update_concurrency.map(|count| count as usize);
        check_number("update-concurrency", concurrency, 1, CONCURRENCY_MAX)?;
        let others = [
            ("--update-etcd", !options.update_etcd.is_empty()),
            ("--update-fleet", options.update_fleet.is_some()),
        ];
        if concurrency.is_none() {
            return match others.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(CommandError::usage(format!(
                    "{flag} has no effect without --update-concurrency N"
                ))),
                None => Ok(()),
            };
        }
        if options.update_etcd.is_empty() && self.cluster.cluster_etcd.is_empty() {
            return Err(CommandError::usage(
                "--update-concurrency needs --update-etcd http://HOST:PORT, where the servers take turns",
            )
            .hint("--update-window TIME spreads updates without etcd"));
        }
        if options.update_etcd.iter().any(|url| url.trim().starts_with("https://")) {
            return Err(CommandError::usage(
                "--update-etcd does not use TLS: write http://HOST:PORT. In a cluster, leave it out: the etcd of \
                 --cluster-etcd and its certificates are used then",
            ));
        }
        Ok(())
    }

    /// Returns the waits of new versions. `cluster` is the cluster that the server is a node of.
    ///
    /// # Errors
    /// Returns a usage error if only one of the variables of etcd's user is set.
    pub(super) fn update_settings(
        &self,
        cluster: Option<&ClusterConfig>,
    ) -> CommandResult<UpdateSettings> {
        let options = &self.lifecycle;
        let window = options.update_window.map_or(Duration::ZERO, |TimeSpan(window)| window);
        let mut turns = None;
        if let Some(concurrency) = options.update_concurrency {
            let fleet = options.update_fleet.clone();
            let fleet = fleet.or_else(|| Some(cluster?.name.clone()));
            let own = !options.update_etcd.is_empty();
            turns = Some(TurnSettings {
                concurrency,
                fleet: fleet.unwrap_or_else(|| FLEET.to_owned()),
                etcd: if own {
                    options.update_etcd.clone()
                } else {
                    self.cluster.cluster_etcd.clone()
                },
                etcd_tls: cluster.filter(|_| !own).and_then(|cluster| cluster.etcd_tls.clone()),
                etcd_user: etcd_user(
                    environment::ETCD_USER.text(),
                    environment::ETCD_PASSWORD.text(),
                )?,
            });
        }
        Ok(UpdateSettings { window, process: self.process_name(), turns })
    }

    /// Returns the name of this server in its fleet: the name of its node, or the machine and the
    /// port.
    fn process_name(&self) -> String {
        if let Some(node) = &self.cluster.cluster_node {
            return node.clone();
        }
        let host = environment::host_name();
        let port = self.server.http_port.or(ListenerConfig::default().http_port);
        match port {
            // The system chooses the port.
            None | Some(0) => format!("{host}-{}", std::process::id()),
            Some(port) => format!("{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::options::{ClusterOptions, LifecycleOptions, ServerOptions};

    fn settings(lifecycle: LifecycleOptions) -> ServeSettings {
        ServeSettings { lifecycle, ..ServeSettings::default() }
    }

    fn refusal(lifecycle: LifecycleOptions) -> String {
        settings(lifecycle).check_updates().unwrap_err().message().to_owned()
    }

    fn etcd(url: &str) -> Vec<String> {
        vec![url.to_owned()]
    }

    #[test]
    fn settings_without_effect_are_refused() {
        let default = LifecycleOptions::default;
        assert!(settings(default()).check_updates().is_ok());
        let window = |seconds| LifecycleOptions {
            update_window: Some(TimeSpan(Duration::from_secs(seconds))),
            ..default()
        };
        assert!(settings(window(600)).check_updates().is_ok());
        assert!(refusal(window(0)).starts_with("--update-window is 0"));
        let turns = LifecycleOptions { update_concurrency: Some(2), ..default() };
        assert!(refusal(turns.clone()).contains("needs --update-etcd"));
        let none = LifecycleOptions { update_concurrency: Some(0), ..default() };
        assert!(refusal(none).starts_with("--update-concurrency is 0"));
        let alone = LifecycleOptions { update_etcd: etcd("http://a:1"), ..default() };
        assert!(refusal(alone.clone()).starts_with("--update-etcd has no effect"));
        let fleet = LifecycleOptions { update_fleet: Some("f".to_owned()), ..window(600) };
        assert!(refusal(fleet).starts_with("--update-fleet has no effect"));
        let tls = LifecycleOptions { update_etcd: etcd("https://a:1"), ..turns.clone() };
        assert!(refusal(tls).contains("does not use TLS"));
        let whole = LifecycleOptions { update_concurrency: Some(2), ..alone };
        assert!(settings(whole).check_updates().is_ok());
        let cluster =
            ClusterOptions { cluster_etcd: etcd("http://c:1"), ..ClusterOptions::default() };
        assert!(ServeSettings { cluster, ..settings(turns) }.check_updates().is_ok());
    }

    #[test]
    fn a_cluster_names_etcd_fleet_and_process() {
        let turns = LifecycleOptions { update_concurrency: Some(2), ..LifecycleOptions::default() };
        let cluster = ClusterOptions {
            cluster_etcd: etcd("https://c:1"),
            cluster_node: Some("n1".to_owned()),
            ..ClusterOptions::default()
        };
        let node = ServeSettings { cluster, ..settings(turns) };
        let config = ClusterConfig { name: "shop".to_owned(), ..ClusterConfig::default() };
        let found = node.update_settings(Some(&config)).unwrap();
        assert_eq!(found.process, "n1");
        let turns = found.turns.unwrap();
        assert_eq!((&*turns.fleet, turns.concurrency), ("shop", 2));
        assert_eq!(turns.etcd, etcd("https://c:1"));
    }

    #[test]
    fn a_server_alone_is_named_by_its_port() {
        let lifecycle = LifecycleOptions {
            update_concurrency: Some(1),
            update_etcd: etcd("http://a:1"),
            update_window: Some(TimeSpan(Duration::from_secs(600))),
            ..LifecycleOptions::default()
        };
        let mut alone = settings(lifecycle);
        let found = alone.update_settings(None).unwrap();
        assert_eq!(found.window, Duration::from_secs(600));
        assert!(found.process.ends_with(":8501"), "{}", found.process);
        assert_eq!(found.turns.unwrap().fleet, FLEET);
        alone.server = ServerOptions { http_port: Some(0), ..ServerOptions::default() };
        let own = format!("-{}", std::process::id());
        assert!(alone.update_settings(None).unwrap().process.ends_with(&own));
    }
}
