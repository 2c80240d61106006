//! Updates in a fleet: processes that follow the same versions load a new one at different times.
//!
//! An update is the load of a version while an older version of the model serves. A process waits
//! for its part of a window first. A hash of its name chooses the part. Then it waits for a turn,
//! if the fleet has turns. First loads, and loads that an administrator requests, do not wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::VersionId;

/// Settings of updates. The default loads a new version at once.
#[derive(Clone, Default)]
pub struct UpdateConfig {
    /// Time over which the processes of a fleet spread their loads of a new version.
    pub window: Duration,
    /// Name of this process, which no other process of the fleet has.
    pub process: Arc<str>,
    /// Turns of the fleet. `None` loads a version at the end of its wait.
    pub turns: Option<Arc<dyn UpdateTurns>>,
}

/// Turns of the processes of a fleet to load new versions. Called on the `lifecycle` thread, which
/// must not wait. So implementations answer from memory.
pub trait UpdateTurns: Send + Sync {
    /// Returns the state of an update, which is watched from the first call to
    /// [`UpdateTurns::end`]. With `due`, the process wants to load now and gets a turn when one is
    /// free. Called again until it is granted.
    fn request(&self, id: &VersionId, due: bool) -> TurnState;

    /// Ends an update, even if [`UpdateTurns::request`] was never called for it. Gives its turn
    /// back, if it has one.
    fn end(&self, id: &VersionId, end: UpdateEnd);
}

/// State of an update in the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// The update waits, for this reason.
    Waiting(String),
    /// The version may be loaded.
    Granted,
    /// No process of the fleet loads the version, for this reason.
    HeldBack(String),
}

/// Outcome of an update on this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateEnd {
    /// The version serves. If an administrator requested the load (`by_hand`), the fleet loads the
    /// version even if another process failed to load it.
    Loaded {
        /// True if an administrator requested the load.
        by_hand: bool,
    },
    /// The version did not load or warm up, or a rollout withdrew it, for this reason, and it is
    /// not tried again. No other process should load it.
    Failed(String),
    /// The version is not wanted any more.
    Dropped,
}

/// Writes the outcome for the log.
impl fmt::Display for UpdateEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpdateEnd::Loaded { by_hand: false } => formatter.write_str("loaded"),
            UpdateEnd::Loaded { by_hand: true } => {
                formatter.write_str("loaded by an administrator")
            }
            UpdateEnd::Failed(reason) => write!(formatter, "failed: {reason}"),
            UpdateEnd::Dropped => formatter.write_str("not wanted any more"),
        }
    }
}

impl UpdateConfig {
    /// Returns true if updates wait.
    pub(crate) fn staggers(&self) -> bool {
        !self.window.is_zero() || self.turns.is_some()
    }

    /// Returns the time that this process waits before it loads a version.
    pub(crate) fn wait_of(&self, id: &VersionId) -> Duration {
        self.window.mul_f64(part_of_window(&self.process, id))
    }
}

impl fmt::Debug for UpdateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateConfig")
            .field("window", &self.window)
            .field("process", &self.process)
            .field("turns", &self.turns.is_some())
            .finish()
    }
}

/// Returns the part of a window, 0 to 1, after which a process loads a version. It is evenly
/// distributed over the processes, and in another order for each version.
fn part_of_window(process: &str, id: &VersionId) -> f64 {
    let mut hasher = blake3::Hasher::new();
    for text in [process.as_bytes(), id.model.as_bytes()] {
        // With the length, so that no two pairs of names are the same bytes.
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text);
    }
    let hash = hasher.update(&id.version.to_le_bytes()).finalize();
    let [a, b, c, d, ..] = *hash.as_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(model: &str, version: u64) -> VersionId {
        VersionId { model: model.into(), version }
    }

    #[test]
    fn the_log_has_plain_text() {
        assert_eq!(UpdateEnd::Loaded { by_hand: false }.to_string(), "loaded");
        assert_eq!(UpdateEnd::Failed("no memory".to_owned()).to_string(), "failed: no memory");
    }

    #[test]
    fn a_fleet_spreads_over_the_window() {
        let parts: Vec<f64> =
            (0..1000).map(|at| part_of_window(&format!("node-{at}:8501"), &id("m", 7))).collect();
        assert!(parts.iter().all(|part| (0.0..=1.0).contains(part)));
        for tenth in 0..10 {
            let from = f64::from(tenth) / 10.0;
            let count = parts.iter().filter(|part| (from..from + 0.1).contains(*part)).count();
            assert!((60..=140).contains(&count), "{count} of 1000 from {from}");
        }
    }

    #[test]
    fn the_wait_depends_on_process_model_and_version() {
        let config = |process: &str| UpdateConfig {
            window: Duration::from_secs(600),
            process: process.into(),
            turns: None,
        };
        let wait = config("a").wait_of(&id("m", 2));
        assert_eq!(config("a").wait_of(&id("m", 2)), wait);
        assert!(wait <= Duration::from_secs(600));
        let others = [
            config("b").wait_of(&id("m", 2)),
            config("a").wait_of(&id("n", 2)),
            config("a").wait_of(&id("m", 3)),
        ];
        assert!(others.iter().all(|other| *other != wait), "{wait:?} {others:?}");
        assert_ne!(config("ab").wait_of(&id("c", 2)), config("a").wait_of(&id("bc", 2)));
        assert_eq!(UpdateConfig::default().wait_of(&id("m", 2)), Duration::ZERO);
        assert!(config("a").staggers() && !UpdateConfig::default().staggers());
    }
}
