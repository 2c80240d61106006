//! Counts the events of versions in the metrics, and announces changes of their status.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use base::VersionId;
use inference::{CAUSES, InferenceStats, SlowLog};
use lifecycle::{LifecycleEvent, LifecycleState, Observer, StateChange, SwapReport};
use metrics::{Metrics, ModelKindLabels, ModelLabels, RootLabels, SwapLabels};
use tokio::sync::watch;

use crate::journal::{EventJournal, EventLevel, NewEvent};
use crate::traces::LoadTraces;

/// Observer that counts loads, swaps and their costs in metrics.
pub struct MetricsObserver {
    /// Counters and gauges of loads and swaps.
    pub metrics: Arc<Metrics>,
    /// Statistics of versions, which end with a release, and of models.
    pub stats: Arc<InferenceStats>,
    /// Slow requests. Set once the log has started, which needs the lifecycle.
    pub slow: OnceLock<Arc<SlowLog>>,
    /// The events for people.
    pub journal: Arc<EventJournal>,
    /// Notified of each report of the status of models.
    pub changed: watch::Sender<()>,
    /// Names of the engines.
    pub engines: Vec<&'static str>,
    /// Traces of loads.
    pub loads: Option<LoadTraces>,
}

impl Observer for MetricsObserver {
    fn event(&self, event: &LifecycleEvent) {
        self.journal(event);
        if let Some(loads) = &self.loads {
            loads.event(event);
        }
        if let LifecycleEvent::StateChanged(change) = event {
            self.metrics.begin_model(&change.model);
        }
        match event {
            LifecycleEvent::StateChanged(change) if change.to == LifecycleState::Released => {
                self.metrics.release_version(&change.model, change.version, Instant::now());
                self.stats
                    .forget(&VersionId { model: change.model.clone(), version: change.version });
            }
            LifecycleEvent::StateChanged(change)
                if change.to == LifecycleState::Failed && !change.withdrawn =>
            {
                self.load_failed(&change.model);
            }
            LifecycleEvent::StateChanged(change) if change.to == LifecycleState::Ready => {
                self.metrics.keep_version(&change.model, change.version);
            }
            LifecycleEvent::ReloadFailed { model, .. }
            | LifecycleEvent::LoadRetried { model, .. } => self.load_failed(model),
            LifecycleEvent::LoadAbandoned { model, .. } => {
                let labels = ModelLabels { model: model.clone() };
                self.metrics.loads_abandoned.get_or_create(&labels).inc();
            }
            LifecycleEvent::Loaded { model, version, cost } => {
                let labels = ModelLabels { model: model.clone() };
                let metrics = &self.metrics;
                metrics.loader_minor_faults.get_or_create(&labels).inc_by(cost.loader_minor_faults);
                metrics.loader_cpu_seconds.get_or_create(&labels).inc_by(cost.loader_cpu_seconds);
                metrics.loads_escalated.get_or_create(&labels).inc_by(cost.escalated.into());
                metrics.loader_read_bytes.get_or_create(&labels).inc_by(cost.bytes_read);
                metrics.loader_shared_bytes.get_or_create(&labels).inc_by(cost.bytes_shared);
                metrics.tfs.warmed(model, *version, cost.warm_seconds, cost.warm_records);
            }
            LifecycleEvent::SettingsApplied { model, .. } => {
                self.metrics
                    .settings_taken_over
                    .get_or_create(&ModelLabels { model: model.clone() })
                    .inc();
            }
            LifecycleEvent::RolloutStarted { model, .. } => {
                let labels = ModelLabels { model: model.clone() };
                self.metrics.rollouts.running.get_or_create(&labels).set(1);
            }
            LifecycleEvent::RolloutEnded { model, promoted, reason } => {
                self.rollout_ended(model, *promoted, reason);
            }
            LifecycleEvent::UpdateHeldBack { model, .. } => {
                let labels = ModelLabels { model: model.clone() };
                self.metrics.updates.held_back.get_or_create(&labels).inc();
            }
            LifecycleEvent::Swapped(report) => self.swapped(report),
            LifecycleEvent::RootScanned { root, at } => self.root_scanned(root, *at),
            LifecycleEvent::Forgotten { model } => {
                // First, so that no slow request counts after its series was removed.
                if let Some(slow) = self.slow.get() {
                    slow.forget_model(model);
                }
                self.metrics.forget_model(model, &CAUSES, &self.engines);
                self.stats.forget_model(model);
            }
            LifecycleEvent::Reported => self.changed.send_replace(()),
            _ => {}
        }
    }
}

impl MetricsObserver {
    /// Adds the event to those for people.
    fn journal(&self, event: &LifecycleEvent) {
        if let LifecycleEvent::Swapped(report) = event {
            self.journal.replaced(&report.model, report.from, report.to);
        }
        if let Some(new) = for_people(event) {
            self.journal.add_or_count(new, 1);
        }
    }

    fn load_failed(&self, model: &Arc<str>) {
        let labels = ModelLabels { model: model.clone() };
        self.metrics.load_failures.get_or_create(&labels).inc();
    }

    fn root_scanned(&self, root: &Path, at: Option<SystemTime>) {
        let labels = RootLabels { root: root.display().to_string() };
        match at {
            Some(at) => {
                let seconds = base::unix_time(at).as_secs_f64();
                self.metrics.scan_time.get_or_create(&labels).set(seconds);
            }
            None => {
                self.metrics.scan_time.remove(&labels);
            }
        }
    }

    fn rollout_ended(&self, model: &Arc<str>, promoted: bool, reason: &'static str) {
        let labels = ModelLabels { model: model.clone() };
        let rollouts = &self.metrics.rollouts;
        rollouts.running.get_or_create(&labels).set(0);
        if promoted {
            rollouts.promotions.get_or_create(&labels).inc();
        } else {
            let labels = ModelKindLabels { model: model.clone(), kind: reason };
            rollouts.rollbacks.get_or_create(&labels).inc();
        }
    }

    fn swapped(&self, report: &SwapReport) {
        self.metrics.swaps.get_or_create(&ModelLabels { model: report.model.clone() }).inc();
        let steps = [
            ("load", report.load_seconds),
            ("warm", report.warm_seconds),
            ("drain", report.drain_seconds),
            ("unload", report.unload_seconds),
        ];
        for (step, seconds) in steps {
            let labels = SwapLabels { model: report.model.clone(), step };
            self.metrics.swap_last_seconds.get_or_create(&labels).set(seconds);
            self.metrics.swap_seconds.get_or_create(&labels).inc_by(seconds);
        }
    }
}

/// Returns the event for people, or `None` if it is of no use to them.
fn for_people(event: &LifecycleEvent) -> Option<NewEvent> {
    let of = |kind, level, model: &Arc<str>, version: Option<u64>, text: &str| {
        Some(NewEvent { kind, level, model: Some(model.clone()), version, text: text.to_owned() })
    };
    let info = EventLevel::Info;
    match event {
        LifecycleEvent::StateChanged(change) => state_for_people(change),
        LifecycleEvent::Loaded { model, version, cost } => {
            let load = cost.load_seconds;
            let warm = cost.warm_seconds;
            let text = format!("ready, loaded in {load:.2} s and warmed up in {warm:.2} s");
            of("loaded", info, model, Some(*version), &text)
        }
        LifecycleEvent::SettingsApplied { model, version } => {
            of("settings", info, model, Some(*version), "applied the changed settings")
        }
        LifecycleEvent::ReloadFailed { model, version, reason } => {
            let text = format!("could not be loaded again, and serves as before: {reason}");
            of("reload_failed", EventLevel::Warning, model, Some(*version), &text)
        }
        LifecycleEvent::DrainSlow { model, version } => {
            let text = "still has requests, although it should be released";
            of("drain_slow", EventLevel::Warning, model, Some(*version), text)
        }
        LifecycleEvent::LoadStopSlow { model, version } => {
            let text =
                "its load was stopped and has not ended, because the engine has not returned";
            of("load_stop_slow", EventLevel::Warning, model, Some(*version), text)
        }
        LifecycleEvent::LoadAbandoned { model, version } => {
            let text = "its load did not end after it was stopped, so its thread was abandoned; \
                        the thread and its memory stay until the engine returns";
            of("load_abandoned", EventLevel::Warning, model, Some(*version), text)
        }
        LifecycleEvent::RolloutStarted { model, candidate } => {
            of("rollout_started", info, model, Some(*candidate), "a rollout started")
        }
        LifecycleEvent::RolloutEnded { model, promoted, reason } => {
            let outcome = if *promoted { "promoted" } else { "withdrawn" };
            let text = format!("the rollout ended: the new version is {outcome} ({reason})");
            let level = if *promoted { info } else { EventLevel::Warning };
            of("rollout_ended", level, model, None, &text)
        }
        LifecycleEvent::UpdateHeldBack { model, version, reason } => {
            of("held_back", EventLevel::Warning, model, Some(*version), reason)
        }
        LifecycleEvent::Forgotten { model } => {
            of("removed", info, model, None, "removed: its directory was deleted")
        }
        _ => source_for_people(event),
    }
}

/// Returns the event for people about the directory or the store of models, or `None` if it is
/// about something else.
fn source_for_people(event: &LifecycleEvent) -> Option<NewEvent> {
    let warning = EventLevel::Warning;
    let (kind, level, model, text) = match event {
        LifecycleEvent::ModelsIgnored { root, count, models_max } => {
            let root = root.display();
            let text = format!(
                "{root}: models that are not served: {count}; the first {models_max} by name serve"
            );
            ("models_ignored", warning, None, text)
        }
        LifecycleEvent::VersionsIgnored { model, count, versions_max } => {
            let text = format!(
                "versions that are ignored: {count}; the {versions_max} highest numbers count"
            );
            ("versions_ignored", warning, Some(model.clone()), text)
        }
        LifecycleEvent::StoreUnlisted { store, reason } => {
            let text =
                format!("{store} cannot be listed; copied models continue to serve: {reason}");
            ("store_failed", warning, None, text)
        }
        LifecycleEvent::CopyFailed { model, reason } => {
            ("copy_failed", EventLevel::Error, Some(model.clone()), reason.clone())
        }
        _ => return None,
    };
    Some(NewEvent { kind, level, model, version: None, text })
}

/// Converts a failure, a withdrawal or a release of a version to an event of the journal. Returns
/// `None` for other changes of state.
fn state_for_people(change: &StateChange) -> Option<NewEvent> {
    let reason = change.reason.as_deref().unwrap_or("no reason is known");
    let (kind, level, text) = match change.to {
        LifecycleState::Failed if change.withdrawn => {
            ("withdrawn", EventLevel::Warning, format!("withdrawn: {reason}"))
        }
        LifecycleState::Failed => ("failed", EventLevel::Error, format!("failed: {reason}")),
        LifecycleState::Released => ("released", EventLevel::Info, "released".to_owned()),
        _ => return None,
    };
    let model = Some(change.model.clone());
    let version = Some(change.version);
    Some(NewEvent { kind, level, model, version, text })
}

#[cfg(test)]
mod tests {
    use lifecycle::LoadCost;

    use super::*;
    use crate::journal::EventFilter;

    /// The version that is withdrawn.
    const WITHDRAWN: u64 = 4;

    fn observer(metrics: &Arc<Metrics>, journal: &Arc<EventJournal>) -> MetricsObserver {
        MetricsObserver {
            metrics: metrics.clone(),
            stats: Arc::default(),
            slow: OnceLock::new(),
            journal: journal.clone(),
            changed: watch::Sender::new(()),
            engines: Vec::new(),
            loads: None,
        }
    }

    fn changed(version: u64, to: LifecycleState, reason: Option<&str>) -> LifecycleEvent {
        LifecycleEvent::StateChanged(StateChange {
            model: "m".into(),
            version,
            from: (version == WITHDRAWN).then_some(LifecycleState::Released),
            to,
            reason: reason.map(str::to_owned),
            withdrawn: version == WITHDRAWN,
            at: SystemTime::now(),
        })
    }

    #[test]
    fn events_of_versions_are_in_the_journal() {
        let journal = Arc::new(EventJournal::default());
        let metrics = Arc::new(Metrics::default());
        let observer = observer(&metrics, &journal);
        let loaded = |version| LifecycleEvent::Loaded {
            model: "m".into(),
            version,
            cost: LoadCost::default(),
        };
        for event in [
            loaded(1),
            LifecycleEvent::LoadRetried {
                model: "m".into(),
                version: 2,
                reason: "no such file (try 1 of 2; the next in 60 s)".to_owned(),
            },
            changed(2, LifecycleState::Failed, Some("no such file")),
            changed(2, LifecycleState::Failed, Some("no such file")),
            changed(3, LifecycleState::Warming, None),
            loaded(3),
            LifecycleEvent::ReloadFailed {
                model: "m".into(),
                version: 3,
                reason: "no memory".to_owned(),
            },
            changed(1, LifecycleState::Released, None),
            LifecycleEvent::DrainSlow { model: "m".into(), version: 1 },
            LifecycleEvent::LoadStopSlow { model: "m".into(), version: 4 },
            LifecycleEvent::LoadAbandoned { model: "m".into(), version: 4 },
            LifecycleEvent::UpdateHeldBack {
                model: "m".into(),
                version: 5,
                reason: "held back: it failed at b".to_owned(),
            },
            changed(WITHDRAWN, LifecycleState::Failed, Some("p99 1.8 times higher")),
            LifecycleEvent::RolloutEnded { model: "m".into(), promoted: false, reason: "latency" },
        ] {
            observer.event(&event);
        }
        let labels = ModelLabels { model: "m".into() };
        let failures = metrics.load_failures.get_or_create(&labels).get();
        assert_eq!(failures, 4, "three loads and a reload");
        assert_eq!(metrics.loads_abandoned.get_or_create(&labels).get(), 1);
        observer.event(&LifecycleEvent::Forgotten { model: "m".into() });
        let events = journal.read(&EventFilter::default()).events;
        let seen: Vec<_> =
            events.iter().map(|event| (event.kind, event.version, event.count)).collect();
        assert_eq!(
            seen,
            [
                ("loaded", Some(1), 1),
                ("failed", Some(2), 2),
                ("loaded", Some(3), 1),
                ("reload_failed", Some(3), 1),
                ("released", Some(1), 1),
                ("drain_slow", Some(1), 1),
                ("load_stop_slow", Some(4), 1),
                ("load_abandoned", Some(4), 1),
                ("held_back", Some(5), 1),
                ("withdrawn", Some(WITHDRAWN), 1),
                ("rollout_ended", None, 1),
                ("removed", None, 1),
            ]
        );
        assert!(events[1].text.contains("no such file"), "{}", events[1].text);
    }

    #[test]
    fn costs_of_loads_and_swaps_are_counted() {
        let metrics = Arc::new(Metrics::default());
        let observer = observer(&metrics, &Arc::default());
        let model: Arc<str> = "m".into();
        let cost = LoadCost {
            bytes_read: 10,
            bytes_shared: 20,
            loader_minor_faults: 30,
            loader_cpu_seconds: 0.5,
            escalated: true,
            ..LoadCost::default()
        };
        let swap = SwapReport {
            model: model.clone(),
            from: 1,
            to: 2,
            load_seconds: 1.0,
            warm_seconds: 2.0,
            drain_seconds: 3.0,
            unload_seconds: 4.0,
            bytes_read: 0,
            bytes_shared: 0,
            loader_minor_faults: 0,
            loader_cpu_seconds: 0.0,
        };
        for _ in 0..2 {
            let (model, cost) = (model.clone(), cost.clone());
            observer.event(&LifecycleEvent::Loaded { model, version: 2, cost });
            observer.event(&LifecycleEvent::Swapped(swap.clone()));
        }
        observer.event(&LifecycleEvent::SettingsApplied { model: model.clone(), version: 2 });
        let labels = ModelLabels { model: model.clone() };
        let counted = [
            &metrics.loader_read_bytes,
            &metrics.loader_shared_bytes,
            &metrics.loader_minor_faults,
            &metrics.loads_escalated,
            &metrics.swaps,
            &metrics.settings_taken_over,
        ];
        let counted = counted.map(|family| family.get_or_create(&labels).get());
        assert_eq!(counted, [20, 40, 60, 2, 2, 1]);
        assert_eq!(metrics.loader_cpu_seconds.get_or_create(&labels).get(), 1.0);
        for (step, last) in [("load", 1.0), ("warm", 2.0), ("drain", 3.0), ("unload", 4.0)] {
            let labels = SwapLabels { model: model.clone(), step };
            let seconds = metrics.swap_seconds.get_or_create(&labels).get();
            let shown = metrics.swap_last_seconds.get_or_create(&labels).get();
            assert_eq!((shown, seconds), (last, 2.0 * last), "{step}");
        }
    }

    #[test]
    fn swaps_and_failed_loads_begin_with_zero() {
        let metrics = Arc::new(Metrics::default());
        let observer = observer(&metrics, &Arc::default());
        observer.event(&changed(1, LifecycleState::Loading, None));
        let text = metrics.encode();
        for name in ["swaps", "load_failures"] {
            let series = format!("millpond_{name}_total{{model=\"m\"}} 0");
            assert!(text.contains(&series), "{series}: {text}");
        }
        observer.event(&LifecycleEvent::Forgotten { model: "m".into() });
        assert!(!metrics.encode().contains("\"m\""));
    }

    #[test]
    fn ends_of_rollouts_are_counted() {
        let metrics = Arc::new(Metrics::default());
        let observer = observer(&metrics, &Arc::default());
        let model: Arc<str> = "m".into();
        let labels = ModelLabels { model: model.clone() };
        let counts = || {
            let of = |reason| ModelKindLabels { model: model.clone(), kind: reason };
            let rollouts = &metrics.rollouts;
            (
                rollouts.running.get_or_create(&labels).get(),
                rollouts.promotions.get_or_create(&labels).get(),
                rollouts.rollbacks.get_or_create(&of("latency")).get(),
            )
        };
        for (promoted, reason, after) in [(true, "hand", (0, 1, 0)), (false, "latency", (0, 1, 1))]
        {
            let before = counts();
            let model = model.clone();
            observer.event(&LifecycleEvent::RolloutStarted { model: model.clone(), candidate: 2 });
            assert_eq!(counts(), (1, before.1, before.2));
            observer.event(&LifecycleEvent::RolloutEnded { model, promoted, reason });
            assert_eq!(counts(), after);
        }
    }

    #[test]
    fn problems_of_stores_are_events() {
        let store = LifecycleEvent::StoreUnlisted {
            store: "s3://b/models".into(),
            reason: "403 Forbidden".to_owned(),
        };
        let store = for_people(&store).unwrap();
        assert_eq!((store.kind, store.model), ("store_failed", None));
        assert!(store.text.starts_with("s3://b/models cannot be listed"), "{}", store.text);
        let copy = LifecycleEvent::CopyFailed {
            model: "m".into(),
            reason: "version 2 cannot be copied".to_owned(),
        };
        let copy = for_people(&copy).unwrap();
        assert_eq!((copy.kind, copy.level), ("copy_failed", EventLevel::Error));
        assert_eq!(copy.model, Some("m".into()));
    }

    #[test]
    fn ignored_models_and_versions_are_events_with_their_number() {
        let models = LifecycleEvent::ModelsIgnored { root: "/m".into(), count: 7, models_max: 9 };
        let models = for_people(&models).unwrap();
        assert_eq!((models.kind, models.model), ("models_ignored", None));
        assert_eq!(models.text, "/m: models that are not served: 7; the first 9 by name serve");
        let versions =
            LifecycleEvent::VersionsIgnored { model: "m".into(), count: 8, versions_max: 9 };
        let versions = for_people(&versions).unwrap();
        assert_eq!((versions.kind, versions.model), ("versions_ignored", Some("m".into())));
        assert_eq!(versions.text, "versions that are ignored: 8; the 9 highest numbers count");
    }
}
