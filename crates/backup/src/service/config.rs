//! Settings of backups, and access to the collections that are backed up.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use model_store::StoreOptions;
use os::Rate;
use search::registry::{CollectionSettings, Registry};

use crate::policy::RetentionPolicy;

/// Default time for which an object that no list names is kept.
const GRACE: Duration = Duration::from_secs(24 * 3600);
/// Default rate of reads and transfers.
const RATE: u64 = 64 << 20;

/// Access to the registry, which may not be open yet.
pub trait RegistryAccess: Send + Sync {
    /// Returns the registry, and opens it if it is not open yet.
    ///
    /// # Errors
    /// `FailedPrecondition` if the server has no collections; errors of the file system.
    fn open_registry(&self) -> Result<Arc<Registry>>;

    /// Returns the registry if it is open.
    fn open_already(&self) -> Option<Arc<Registry>>;
}

/// Settings of backups.
#[derive(Clone)]
pub struct BackupConfig {
    /// Directory or URL of the store; `None` if there is none.
    pub place: Option<String>,
    /// Options of the store's provider.
    pub options: StoreOptions,
    /// Limit of the bytes per second that are read, sent and received.
    pub rate: Rate,
    /// Interval of the backups of all collections; `None` makes none.
    pub every: Option<Duration>,
    /// Backups that stay after a backup of the schedule. Without a rule, all backups stay.
    pub keep: RetentionPolicy,
    /// Time for which an object that no list names is kept.
    pub grace: Duration,
    /// Returns the name of the directory of original images that belong to a collection, if any.
    pub originals: fn(&CollectionSettings) -> Option<String>,
}

impl Default for BackupConfig {
    fn default() -> BackupConfig {
        BackupConfig {
            place: None,
            options: StoreOptions::default(),
            rate: Rate::per_second(RATE),
            every: None,
            keep: RetentionPolicy::default(),
            grace: GRACE,
            originals: |_| None,
        }
    }
}
