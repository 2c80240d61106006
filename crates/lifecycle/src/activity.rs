//! The loads and unloads in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::VersionId;
use parking_lot::Mutex;

/// The loads and unloads in progress. Requests read without a lock if there are any.
#[derive(Debug, Default)]
pub struct LoadActivity {
    /// Begins and ends so far. A difference shows that there was one.
    changes: AtomicU64,
    /// Loads and unloads in progress.
    running: AtomicU64,
    /// Locked by load threads, unload threads and readers of names only.
    versions: Mutex<Vec<VersionId>>,
}

/// A moment of the activity, to compare with a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivityMark {
    changes: u64,
}

/// A load or unload in progress. It ends on drop.
pub(crate) struct ActiveLoad {
    activity: Arc<LoadActivity>,
    id: VersionId,
}

impl LoadActivity {
    /// Begins a load or an unload of `id`.
    pub(crate) fn begin(self: &Arc<Self>, id: &VersionId) -> ActiveLoad {
        self.versions.lock().push(id.clone());
        self.running.fetch_add(1, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
        ActiveLoad { activity: self.clone(), id: id.clone() }
    }

    /// Returns true if a load or an unload is in progress.
    fn busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Returns a mark of this moment.
    pub fn mark(&self) -> ActivityMark {
        ActivityMark { changes: self.changes.load(Ordering::Relaxed) }
    }

    /// Returns true if a load or an unload was in progress at any time since `mark`.
    pub fn busy_since(&self, mark: ActivityMark) -> bool {
        self.busy() || self.mark() != mark
    }

    /// Returns the versions that are being loaded or unloaded.
    pub fn versions(&self) -> Vec<VersionId> {
        self.versions.lock().clone()
    }
}

impl Drop for ActiveLoad {
    fn drop(&mut self) {
        let mut versions = self.activity.versions.lock();
        if let Some(index) = versions.iter().position(|id| *id == self.id) {
            versions.swap_remove(index);
        }
        drop(versions);
        self.activity.changes.fetch_add(1, Ordering::Relaxed);
        self.activity.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_has_ended_is_noticed() {
        let activity = Arc::new(LoadActivity::default());
        let before = activity.mark();
        assert!(!activity.busy_since(before));
        let id = VersionId { model: "m".into(), version: 1 };
        let load = activity.begin(&id);
        let other = activity.begin(&VersionId { version: 2, ..id.clone() });
        assert!(activity.busy() && activity.versions().len() == 2);
        drop(other);
        assert_eq!(activity.versions(), [id]);
        drop(load);
        assert!(!activity.busy() && activity.versions().is_empty());
        assert!(activity.busy_since(before), "it began and ended since");
        assert!(!activity.busy_since(activity.mark()));
    }
}
