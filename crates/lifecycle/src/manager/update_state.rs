//! The state of an update that waits for its turn.

use std::time::{Duration, Instant, SystemTime};

use crate::UpdateStatus;

/// The load of a version while an older one serves.
#[derive(Debug)]
pub(crate) struct Update {
    /// End of the wait in the window (`--update-window`), which differs between processes.
    pub(super) due: Instant,
    /// The same as wall-clock time, for display.
    pub(super) due_at: SystemTime,
    pub(super) stage: UpdateStage,
    /// True if an older version served before the load. If none did, the load is a first load,
    /// which is not reported to the fleet.
    pub(super) replaces: bool,
}

/// Stage of an update in a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateStage {
    /// The version waits in the window (`--update-window`).
    Window,
    /// The version waits for a turn, because only some processes of the fleet may load at a time.
    Turn,
    /// The version failed on another process of the fleet, so it is not loaded here.
    HeldBack,
    /// The version may be loaded.
    Granted,
    /// The version may be loaded, because an administrator requested it.
    ByHand,
}

impl Update {
    /// Creates the update of a version that replaces an older one.
    pub(super) fn new(now: Instant, wait: Duration, stage: UpdateStage) -> Update {
        Update { due: now + wait, due_at: SystemTime::now() + wait, stage, replaces: true }
    }

    /// Returns true if the version must not be loaded yet.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.stage, UpdateStage::Window | UpdateStage::Turn | UpdateStage::HeldBack)
    }

    pub(crate) fn by_hand(&self) -> bool {
        self.stage == UpdateStage::ByHand
    }

    /// Returns the end of the wait in the window, or `None` if the version does not wait there.
    pub(crate) fn window_end(&self) -> Option<Instant> {
        (self.stage == UpdateStage::Window).then_some(self.due)
    }

    pub(crate) fn status(&self) -> Option<UpdateStatus> {
        match self.stage {
            UpdateStage::Window => Some(UpdateStatus::Waiting { until: Some(self.due_at) }),
            UpdateStage::Turn => Some(UpdateStatus::Waiting { until: None }),
            UpdateStage::HeldBack => Some(UpdateStatus::HeldBack),
            UpdateStage::Granted | UpdateStage::ByHand => None,
        }
    }
}
