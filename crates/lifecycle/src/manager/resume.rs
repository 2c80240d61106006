//! Rollouts that were running at the last stop of the server.
//!
//! A restart loads the stable version first, so that it stays stable, and then the candidate, whose
//! rollout begins again. Figures are not kept. The counts and the time of the rollout start at 0.

use serde::{Deserialize, Serialize};

use super::ManagerContext;
use super::model::{Model, Version};
use super::rollout::RequestedRollout;
use super::update_state::Update;
use ::rollout::RolloutSplit;

/// A running rollout as stored in the file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct KeptRollout {
    /// True if the candidate had not served yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_new: bool,
    stable: KeptVersion,
    candidate: KeptVersion,
    /// Share of an administrator's rollout. `None` follows the settings.
    by_hand: Option<KeptSplit>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct KeptVersion {
    version: u64,
    /// Fingerprint of its files, as text.
    files: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum KeptSplit {
    Traffic(f64),
    Shadow(f64),
}

impl From<RolloutSplit> for KeptSplit {
    fn from(split: RolloutSplit) -> KeptSplit {
        match split {
            RolloutSplit::Traffic(share) => KeptSplit::Traffic(share),
            RolloutSplit::Shadow(share) => KeptSplit::Shadow(share),
        }
    }
}

impl From<KeptSplit> for RolloutSplit {
    fn from(split: KeptSplit) -> RolloutSplit {
        match split {
            KeptSplit::Traffic(share) => RolloutSplit::Traffic(share),
            KeptSplit::Shadow(share) => RolloutSplit::Shadow(share),
        }
    }
}

impl KeptRollout {
    /// Returns the version that serves before the candidate is loaded.
    pub(crate) fn stable(&self) -> u64 {
        self.stable.version
    }

    pub(crate) fn candidate(&self) -> u64 {
        self.candidate.version
    }

    /// Returns the candidate if its load takes no turn in the fleet, because it served before the
    /// stop or an administrator requested its rollout. Any other candidate must not load beside
    /// other servers.
    pub(crate) fn candidate_without_turn(&self) -> Option<u64> {
        (!self.is_new || self.by_hand.is_some()).then_some(self.candidate.version)
    }
}

impl Model {
    /// Continues a rollout that was running at the last stop. Called once for each model.
    pub(super) fn resume(&mut self, context: &mut ManagerContext) {
        let key = self.state_key();
        // Called before a step of any model, because a step may write files in this program's form.
        context.withdrawals.adopt(&key);
        context.rollouts.adopt(&key);
        self.rollout.resumes = context.rollouts.get(&key).cloned();
    }

    /// Drops a rollout of the last stop if its versions are no longer on disk or have other files.
    /// Otherwise repeats the request of an administrator's rollout. Waits while one of them cannot
    /// be read.
    pub(super) fn check_resumed(&mut self) {
        let Some(kept) = self.rollout.resumes.clone().filter(|_| !self.versions.is_empty()) else {
            return;
        };
        let unreadable =
            |kept: &KeptVersion| self.versions.get(&kept.version).is_some_and(Version::unreadable);
        if unreadable(&kept.stable) || unreadable(&kept.candidate) {
            return;
        }
        let same = |kept: &KeptVersion| {
            let version = self.versions.get(&kept.version);
            let disk = version.and_then(|version| version.disk.as_ref());
            disk.is_some_and(|disk| disk.fingerprint.to_string() == kept.files)
        };
        if same(&kept.stable) && same(&kept.candidate) {
            let version = kept.candidate();
            let requested = &mut self.rollout.requested;
            if let Some(split) = kept.by_hand.filter(|_| requested.is_none()) {
                *requested = Some(RequestedRollout { version, split: split.into() });
                self.versions.entry(version).and_modify(|version| version.pinned = true);
            }
            return;
        }
        tracing::warn!(
            model = %self.name, stable = kept.stable(), candidate = kept.candidate(),
            "the rollout of the last stop ends: its versions have changed"
        );
        self.rollout.resumes = None;
        self.rollout.requested.take_if(|requested| requested.version == kept.candidate());
    }

    /// Keeps the rollout that runs, or that begins once a load ends, for the next start.
    pub(super) fn keep_rollout(&self, context: &mut ManagerContext) {
        if self.path_error.is_some() || self.removed || self.rollout.resumes.is_some() {
            return;
        }
        context.rollouts.replace(&self.state_key(), self.running_rollout());
    }

    /// Returns the rollout to continue after a restart. It runs, or it begins once its candidate
    /// serves. Returns `None` if there is none.
    fn running_rollout(&self) -> Option<KeptRollout> {
        let kept = |version: u64| {
            let state = self.versions.get(&version)?;
            let serving = state.serving.as_ref().map(|serving| serving.fingerprint);
            let files = serving.or(state.disk.as_ref().map(|disk| disk.fingerprint))?;
            Some(KeptVersion { version, files: files.to_string() })
        };
        let stable = self.rollout.roles.stable?;
        let running = self.rollout.roles.candidate;
        let candidate = running.or_else(|| self.next_candidate(stable))?;
        let by_hand = self.rollout.requested.filter(|requested| requested.version == candidate);
        Some(KeptRollout {
            is_new: running.is_none(),
            stable: kept(stable)?,
            candidate: kept(candidate)?,
            by_hand: by_hand.map(|requested| requested.split.into()),
        })
    }

    /// Returns the version that is being loaded, or waits for another try or its turn, and becomes
    /// a candidate. After a stop before it serves, the server would otherwise load only this
    /// version, and it would get all requests.
    fn next_candidate(&self, stable: u64) -> Option<u64> {
        let is_next = |(number, version): &(&u64, &Version)| {
            let retries = version.failure.as_ref().is_some_and(|it| it.retry_at.is_some());
            let waits = version.update.as_ref().is_some_and(Update::waits);
            **number > stable
                && (version.load.is_some() || retries || waits)
                && version.serving.is_none()
                && self.rollout_settings(**number).is_some()
        };
        self.versions.iter().rev().find(is_next).map(|(number, _)| *number)
    }
}
