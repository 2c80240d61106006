//! Handling of a scan of the directories.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::model::{Disk, Model, Version};
use super::{Manager, ManagerContext};
use crate::LifecycleState;
use crate::changed_settings::changed_settings;
use crate::model_file::MODEL_FILE;
use crate::policy;
use crate::source::{Contents, DirectoryScan, ModelScan, Settings, VersionContents, VersionScan};

impl Manager {
    /// Takes over a scan of all directories. Models that it did not find count as removed.
    pub(super) fn on_scan(&mut self, snapshot: DirectoryScan) {
        let seen: BTreeSet<Arc<str>> =
            snapshot.models.iter().map(|scan| scan.base.name.clone()).collect();
        for scan in snapshot.models {
            self.on_model_scan(scan);
        }
        for (name, model) in &mut self.models {
            if !seen.contains(name) && !model.removed {
                model.removed = true;
                model.versions.values_mut().for_each(|version| version.disk = None);
            }
        }
        let now = Instant::now();
        self.models.values_mut().for_each(|model| model.end_last_failure(now));
        self.ignored_models.update(snapshot.ignored_models, &*self.context.observer);
        self.scan_times.update(snapshot.scan_times, &*self.context.observer);
        self.answered = Some(snapshot.answers);
    }

    /// Applies the scan of one model, which adds it if it is new.
    fn on_model_scan(&mut self, scan: ModelScan) {
        let ModelScan { base, contents } = scan;
        let name = base.name.clone();
        let is_copy = self.is_copy(&base);
        let context = &mut self.context;
        let model = self.models.entry(name.clone()).or_insert_with(|| {
            tracing::debug!(model = %name, path = %base.base_path.display(), "found a model");
            let mut model = Model::new(base.clone(), self.catalog.add(&name), self.converts);
            model.resume(context);
            model
        });
        model.removed = false;
        model.is_copy = is_copy;
        model.source_error = self.sources.errors.get(&name).cloned();
        model.unfinished = self.sources.unfinished.get(&name).cloned();
        match contents {
            Ok(Contents { settings, settings_in_doubt, versions, ignored_versions }) => {
                model.path_error = None;
                model.settings_in_doubt = settings_in_doubt;
                let observer = &*self.context.observer;
                model.ignored_versions.update(ignored_versions, &name, observer);
                model.configure(&mut self.context, &base, &settings);
                model.apply_scan(&self.context, versions);
            }
            // Its settings stay as they are too.
            Err(error) => model.not_seen(error.to_string()),
        }
    }
}

impl Model {
    /// Takes over new settings. Wrong ones are reported and change nothing.
    fn configure(
        &mut self,
        context: &mut ManagerContext,
        base: &crate::ModelConfig,
        settings: &Settings,
    ) {
        let settings =
            settings.as_ref().as_ref().map_err(String::clone).and_then(|file| match file {
                None => Ok(base.clone()),
                Some(file) => file.apply(base).map_err(|error| {
                    let path = base.base_path.join(MODEL_FILE);
                    format!("{}: {error}", path.display())
                }),
            });
        let config = match settings {
            Ok(config) => config,
            Err(error) => {
                if self.settings_error.as_ref() != Some(&error) {
                    tracing::error!(model = %self.name, error, "settings are not used");
                }
                self.settings_error = Some(error);
                return;
            }
        };
        self.settings_error = None;
        if config != self.config {
            let changes = changed_settings(&self.config, &config);
            tracing::info!(model = %self.name, "settings changed: {changes}");
            self.config = config;
            self.end_unselected_tries(context);
            self.apply_settings(context);
            self.publish(context);
            self.log_waiting_labels();
        }
    }

    /// Logs the labels that stay at another version until theirs is ready.
    fn log_waiting_labels(&self) {
        for (label, wanted) in &self.config.labels {
            if let Some(current) = self.entry.labelled(label)
                && current != *wanted
            {
                tracing::warn!(
                    model = %self.name,
                    "label \"{label}\" stays at version {current} until version {wanted} is ready"
                );
            }
        }
    }

    /// Forgets failed loads of versions that the policy does not select, so they are not retried.
    fn end_unselected_tries(&mut self, context: &ManagerContext) {
        let is_tried = |number: u64, version: &Version| {
            let retries = version.failure.as_ref().is_some_and(|it| it.retry_at.is_some());
            let is_selected = version.pinned || policy::allowed(&self.config.policy, number);
            retries && !is_selected && version.load.is_none()
        };
        let versions = self.versions.iter().filter(|(number, version)| is_tried(**number, version));
        let numbers: Vec<u64> = versions.map(|(&number, _)| number).collect();
        for number in numbers {
            if let Some(version) = self.versions.get_mut(&number) {
                version.failure = None;
            }
            self.show_disk(context, number);
        }
    }

    fn not_seen(&mut self, error: String) {
        if self.path_error.as_ref() != Some(&error) {
            tracing::error!(model = %self.name, error, "its directory cannot be read; its versions continue to serve");
        }
        self.path_error = Some(error);
    }

    /// Takes over the versions that a scan found. Versions that it did not find lose their
    /// directory.
    fn apply_scan(&mut self, context: &ManagerContext, versions: Vec<VersionScan>) {
        let seen: BTreeSet<u64> = versions.iter().map(|scan| scan.version).collect();
        for (_, version) in self.versions.iter_mut().filter(|(number, _)| !seen.contains(number)) {
            version.disk = None;
            version.pinned = false;
        }
        for VersionScan { version, dir, fingerprint, found } in versions {
            self.apply_version_scan(context, version, Disk { dir, fingerprint, found });
        }
        self.check_resumed();
    }

    /// Takes the state of one version on disk. Files that changed end a failure or a withdrawal.
    fn apply_version_scan(&mut self, context: &ManagerContext, number: u64, disk: Disk) {
        let key = self.state_key();
        let Some(version) = self.versions.get_mut(&number) else {
            let reason = context.withdrawals.reason(&key, number, disk.fingerprint);
            self.discover(&*context.observer, number, disk);
            match reason {
                Some(reason) => self.stay_withdrawn(context, number, reason),
                None => self.show_disk(context, number),
            }
            return;
        };
        if version.disk.as_ref() != Some(&disk) {
            let moved =
                version.disk.as_ref().is_some_and(|old| old.dir.parent() != disk.dir.parent());
            if moved {
                // The model was configured with another directory, so its files are other files.
                version.reload |= version
                    .serving
                    .as_ref()
                    .is_some_and(|serving| disk.differs_from(serving.fingerprint));
                version.stop_load();
            }
            let changed = version
                .failure
                .as_ref()
                .is_some_and(|failure| disk.differs_from(failure.fingerprint));
            if changed {
                version.failure = None;
            }
            // A version that could not be read at its first scan may have been withdrawn. So may a
            // version of a directory that the model had before.
            let withdrawn = version.failure.is_none() && (moved || version.unreadable());
            let withdrawn = withdrawn
                .then_some(disk.fingerprint)
                .and_then(|files| context.withdrawals.reason(&key, number, files));
            version.disk = Some(disk);
            match withdrawn {
                Some(reason) => self.stay_withdrawn(context, number, reason),
                None => self.show_disk(context, number),
            }
        }
    }

    /// Shows the state on disk of a version that is neither loaded nor being loaded.
    pub(super) fn show_disk(&mut self, context: &ManagerContext, number: u64) {
        let Some(version) = self.versions.get(&number) else { return };
        let busy =
            version.serving.is_some() || version.load.is_some() || !version.draining.is_empty();
        if busy || version.failure.is_some() {
            return;
        }
        let (state, reason) = match version.disk.as_ref().map(|disk| &disk.found) {
            Some(VersionContents::Changing(reason)) => {
                (LifecycleState::Discovered, Some(reason.clone()))
            }
            Some(VersionContents::Unusable(reason) | VersionContents::Unreadable(reason)) => {
                (LifecycleState::Failed, Some(reason.clone()))
            }
            _ if version.state == LifecycleState::Released => return,
            _ => (LifecycleState::Discovered, None),
        };
        context.set_state(self, number, state, reason);
    }
}
