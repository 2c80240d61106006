//! Reports about the stores whose copies are served.

use std::time::Instant;

use super::Manager;
use crate::message::SourceReport;
use crate::{LifecycleEvent, ModelConfig};

impl Manager {
    /// Takes over a report. Problems that the last one did not have become events.
    pub(super) fn on_sources(&mut self, report: SourceReport) {
        if report.complete && self.first_scan.is_none() {
            self.first_scan = Some(self.scans.request());
            self.started = Instant::now();
        }
        for event in new_problems(&self.sources, &report) {
            self.context.observer.event(&event);
        }
        for (name, model) in &mut self.models {
            model.source_error = report.errors.get(name).cloned();
            model.unfinished = report.unfinished.get(name).cloned();
        }
        self.sources = report;
    }

    /// Returns true if the directory of a model with this configuration mirrors a store.
    pub(super) fn is_copy(&self, config: &ModelConfig) -> bool {
        let set = self.configured.load_full();
        let mut roots = set.roots.iter().filter(|root| root.store.is_some());
        let parent = config.base_path.parent();
        config.store.is_some() || roots.any(|root| parent == Some(root.dir.as_path()))
    }
}

/// Returns the problems of `new` that `old` does not have.
fn new_problems(old: &SourceReport, new: &SourceReport) -> Vec<LifecycleEvent> {
    let unlisted =
        new.unlisted.iter().filter(|(store, error)| old.unlisted.get(*store) != Some(*error));
    let unlisted = unlisted.map(|(store, error)| LifecycleEvent::StoreUnlisted {
        store: store.clone(),
        reason: error.clone(),
    });
    let failed = new.errors.keys().filter_map(|model| {
        let reason = new.copy_error(model)?;
        (old.copy_error(model) != Some(reason))
            .then(|| LifecycleEvent::CopyFailed { model: model.clone(), reason: reason.to_owned() })
    });
    unlisted.chain(failed).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_problem_of_a_store_is_one_event() {
        let report = |problems: &[(&str, &str)], unlisted: &[(&str, &str)]| {
            let map = |pairs: &[(&str, &str)]| -> BTreeMap<Arc<str>, String> {
                pairs.iter().map(|(name, text)| ((*name).into(), (*text).to_owned())).collect()
            };
            SourceReport {
                complete: true,
                errors: map(problems),
                unlisted: map(unlisted),
                ..SourceReport::default()
            }
        };
        let fine = report(&[], &[]);
        let down = report(
            &[("a", "version 2 cannot be copied"), ("b", "refused"), ("c", "refused")],
            &[("s3://b/models", "refused")],
        );
        let unlisted = LifecycleEvent::StoreUnlisted {
            store: "s3://b/models".into(),
            reason: "refused".to_owned(),
        };
        let failed = LifecycleEvent::CopyFailed {
            model: "a".into(),
            reason: "version 2 cannot be copied".to_owned(),
        };
        assert_eq!(new_problems(&fine, &down), [unlisted, failed.clone()]);
        assert!(new_problems(&down, &down).is_empty() && new_problems(&down, &fine).is_empty());
        let copying = report(&[("a", "version 2 cannot be copied")], &[]);
        assert_eq!(new_problems(&fine, &copying), [failed]);
        assert!(new_problems(&down, &copying).is_empty(), "it has that problem already");
    }
}
