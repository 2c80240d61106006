//! Updates of models in a fleet of servers: settings, and the turns in etcd.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use etcd::{Etcd, EtcdUser};
use fleet::{FleetOptions, FleetTimes, FleetUpdates};
use http_client::{ClientTls, ClientTlsFiles, HttpClient};
use lifecycle::{UpdateConfig, UpdateTurns};
use metrics::UpdateMetrics;

/// Waits of new versions, so that the servers of a fleet load them at different times. The default
/// loads a new version at once.
#[derive(Clone, Debug, Default)]
pub struct UpdateSettings {
    /// Time over which the servers of a fleet spread their loads of a new version. 0 is none.
    pub window: Duration,
    /// Name of this server, which no other server of the fleet has.
    pub process: String,
    /// Turns of the fleet, or `None` if its servers load without turns.
    pub turns: Option<TurnSettings>,
}

/// Turns of a fleet in etcd.
#[derive(Clone, Debug)]
pub struct TurnSettings {
    /// Servers that load a new version of the same model at the same time.
    pub concurrency: u32,
    /// Name of the fleet in etcd.
    pub fleet: String,
    /// Addresses of etcd.
    pub etcd: Vec<String>,
    /// Certificates for etcd, or `None` if it is reached without TLS.
    pub etcd_tls: Option<ClientTlsFiles>,
    /// User of etcd, or `None` if it has no users.
    pub etcd_user: Option<EtcdUser>,
}

/// Turns of this server in its fleet.
#[derive(Clone)]
pub(crate) struct FleetTurns {
    updates: Arc<FleetUpdates>,
    /// Certificates for etcd, which are read again when their files change.
    pub(crate) tls: Option<Arc<ClientTls>>,
}

impl FleetTurns {
    /// Starts the thread that takes turns, if the settings have turns. Does not connect.
    ///
    /// # Errors
    /// `InvalidArgument` for an address of etcd of another form, or a name of the fleet that is not
    /// one. Also the error of a certificate that cannot be read.
    pub(crate) fn start(
        settings: &UpdateSettings,
        metrics: UpdateMetrics,
    ) -> Result<Option<FleetTurns>> {
        let Some(turns) = settings.turns.clone() else { return Ok(None) };
        let tls = turns.etcd_tls.map(ClientTls::read).transpose()?;
        let client = match tls.clone() {
            Some(tls) => HttpClient::with_tls(None, tls),
            None => HttpClient::new(None),
        };
        let etcd = Etcd::new(&turns.etcd, client)?;
        let etcd = match turns.etcd_user {
            Some(user) => etcd.with_user(user),
            None => etcd,
        };
        let options = FleetOptions {
            fleet: turns.fleet,
            process: settings.process.clone(),
            concurrency: turns.concurrency,
            times: FleetTimes::default(),
        };
        let updates = Arc::new(FleetUpdates::start(etcd, options, metrics)?);
        Ok(Some(FleetTurns { updates, tls }))
    }

    /// Returns all turns of this server to the fleet.
    pub(crate) fn stop(&self) {
        self.updates.stop();
    }
}

/// Returns the settings of the lifecycle.
pub(crate) fn update_config(settings: &UpdateSettings, turns: Option<&FleetTurns>) -> UpdateConfig {
    UpdateConfig {
        window: settings.window,
        process: settings.process.as_str().into(),
        turns: turns.map(|turns| turns.updates.clone() as Arc<dyn UpdateTurns>),
    }
}
