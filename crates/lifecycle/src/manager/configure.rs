//! Replacement of the configured models and roots.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};

use super::Manager;
use super::admin::{CHANGING_WAIT_MAX, WAIT_MAX};
use super::model::Model;
use crate::message::{AdminCallback, ConfigurationOrigin};
use crate::{ConfigSet, ModelConfig};

/// Maximum number of replacements that wait for their models at the same time. Beyond it, the first
/// one is not awaited any more.
const RECONFIGURATIONS_MAX: usize = 16;

/// A replacement that is in effect and whose models are awaited.
pub(super) struct Reconfiguration {
    /// Number of the scan that applies it.
    ticket: u64,
    /// New and changed models, or all if the models are the same as before. So a repeated request
    /// waits for the same models. A broken model that stays as it was fails no change of others.
    awaited: Vec<Arc<str>>,
    /// Models whose directory is another one than before. Their earlier versions serve until files
    /// in the new directory have stopped changing.
    moved: BTreeSet<Arc<str>>,
    /// Changed models whose new versions do not wait for their turn, since a client requested them.
    pub(super) by_hand: BTreeSet<Arc<str>>,
    since: Instant,
    pub(super) done: AdminCallback,
}

impl Manager {
    /// Replaces the configuration and requests a scan. `done` is called once all new and changed
    /// models had their first try.
    pub(super) fn configure(
        &mut self,
        set: Arc<ConfigSet>,
        origin: ConfigurationOrigin,
        done: AdminCallback,
    ) {
        // The new change is not refused here, because the server counts it as current already and
        // sends it only once.
        let mut still_by_hand = BTreeSet::new();
        if self.reconfigurations.len() >= RECONFIGURATIONS_MAX {
            let first = self.reconfigurations.remove(0);
            still_by_hand = first.by_hand;
            (first.done)(Err(Error::cancelled(
                "too many later changes of the configuration wait for their models, so this one is \
                 not awaited; see `millpond models status`",
            )));
        }
        tracing::info!(
            models = set.models.len(),
            roots = set.roots.len(),
            "the configuration of models changes"
        );
        let before = self.configured.swap(set.clone());
        let by_client = origin == ConfigurationOrigin::Client;
        let is_by_hand = |config: &&ModelConfig| {
            still_by_hand.contains(&config.name) || (by_client && !before.models.contains(config))
        };
        let by_hand = set.models.iter().filter(is_by_hand).map(|config| config.name.clone());
        let by_hand = by_hand.collect();
        let is_new = |config: &ModelConfig| !before.models.contains(config);
        let pending = &self.reconfigurations;
        let is_moved = |config: &&ModelConfig| {
            let name = &config.name;
            let other = |old: &ModelConfig| old.name == *name && old.base_path != config.base_path;
            pending.iter().any(|change| change.moved.contains(name))
                || before.models.iter().any(other)
        };
        let moved = set.models.iter().filter(is_moved).map(|config| config.name.clone());
        let moved = moved.collect();
        // Their order does not matter. Names are unique, and a client may list the same models in
        // another order.
        let repeats = before.models.len() == set.models.len() && !set.models.iter().any(is_new);
        let is_awaited = |config: &&ModelConfig| repeats || is_new(config);
        let awaited = set.models.iter().filter(is_awaited).map(|config| config.name.clone());
        let awaited = awaited.collect();
        let ticket = self.scans.request();
        let since = Instant::now();
        let change = Reconfiguration { ticket, awaited, moved, by_hand, since, done };
        self.reconfigurations.push(change);
    }

    /// Answers replacements whose models have all had their first try.
    pub(super) fn answer_reconfigurations(&mut self) {
        for change in std::mem::take(&mut self.reconfigurations) {
            match self.outcome(&change, Instant::now()) {
                None => self.reconfigurations.push(change),
                Some(result) => (change.done)(result),
            }
        }
    }

    /// Returns the outcome of `change`, or `None` while a model has not had its first try.
    fn outcome(&self, change: &Reconfiguration, now: Instant) -> Option<Result<()>> {
        if self.answered.is_none_or(|answered| answered < change.ticket) {
            return None;
        }
        let waited = now.duration_since(change.since);
        // Models that a later change removed, or that an administrator unloaded, are not awaited.
        let models = change.awaited.iter().filter_map(|name| self.models.get(name));
        let models: Vec<_> = models.filter(|model| !model.down && !model.removed).collect();
        let may_wait = waited < CHANGING_WAIT_MAX;
        let is_awaited = |model: &&Model| {
            let is_moving =
                may_wait && change.moved.contains(&model.name) && model.has_changing_version();
            model.starting(now, may_wait) || is_moving || model.awaits_copy()
        };
        if waited < WAIT_MAX && models.iter().any(is_awaited) {
            return None;
        }
        let missing = models.iter().filter_map(|model| {
            let status = model.entry.status();
            let serves = model.versions.values().any(|version| version.serving.is_some());
            // The versions that the policy selects are not copied yet, and another one serves.
            let unmet = model.unmet_policy().filter(|_| serves && model.is_copy);
            let failure = || status.failure().unwrap_or_else(|| "it has no version".to_owned());
            let reason = if serves { unmet } else { Some(failure()) };
            reason.map(|reason| format!("\"{}\": {reason}", model.name))
        });
        let missing: Vec<String> = missing.collect();
        Some(match missing.len() {
            0 => Ok(()),
            count => Err(Error::precondition(format!(
                "{count} model(s) did not become available: {}",
                missing.join("; ")
            ))),
        })
    }
}
