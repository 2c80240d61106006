//! Reports of models and versions above the limits of a scan.
//!
//! Each number is logged and reported once, and again if it changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::source::{ROOT_MODELS_MAX, VERSIONS_MAX};
use crate::{LifecycleEvent, Observer};

/// Number of models above the limit in each root, at the last scan.
#[derive(Default)]
pub(super) struct IgnoredModels(BTreeMap<PathBuf, usize>);

impl IgnoredModels {
    /// Takes the numbers of a scan. Logs and reports each changed number.
    pub(super) fn update(&mut self, numbers: BTreeMap<PathBuf, usize>, observer: &dyn Observer) {
        for (root, count) in &numbers {
            if self.0.get(root) == Some(count) {
                continue;
            }
            tracing::warn!(
                root = %root.display(),
                count,
                "models are not served, as a directory has at most {ROOT_MODELS_MAX}; move them to \
                 another directory of models"
            );
            observer.event(&LifecycleEvent::ModelsIgnored {
                root: root.clone(),
                count: *count,
                models_max: ROOT_MODELS_MAX,
            });
        }
        self.0 = numbers;
    }
}

/// Number of versions of a model above the limit, at the last scan.
#[derive(Default)]
pub(crate) struct IgnoredVersions(usize);

impl IgnoredVersions {
    /// Takes the number of a scan. Logs and reports it if it has changed and is not 0.
    pub(super) fn update(&mut self, count: usize, model: &Arc<str>, observer: &dyn Observer) {
        if self.0 == count {
            return;
        }
        self.0 = count;
        if count == 0 {
            return;
        }
        tracing::warn!(
            model = %model,
            count,
            "the lowest versions are ignored, as a model has at most {VERSIONS_MAX}; remove old \
             versions"
        );
        observer.event(&LifecycleEvent::VersionsIgnored {
            model: model.clone(),
            count,
            versions_max: VERSIONS_MAX,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct ReportedCounts(Mutex<Vec<usize>>);

    impl Observer for ReportedCounts {
        fn event(&self, event: &LifecycleEvent) {
            let count = match event {
                LifecycleEvent::ModelsIgnored { root, count, models_max } => {
                    assert_eq!((root.as_path(), *models_max), (Path::new("/m"), ROOT_MODELS_MAX));
                    *count
                }
                LifecycleEvent::VersionsIgnored { model, count, versions_max } => {
                    assert_eq!((&**model, *versions_max), ("m", VERSIONS_MAX));
                    *count
                }
                other => panic!("{other:?}"),
            };
            self.0.lock().push(count);
        }
    }

    #[test]
    fn ignored_models_are_reported_if_their_number_changes() {
        let reported = ReportedCounts::default();
        let mut ignored = IgnoredModels::default();
        for count in [2, 2, 3, 3, 2] {
            ignored.update([("/m".into(), count)].into(), &reported);
        }
        ignored.update(BTreeMap::new(), &reported);
        ignored.update([("/m".into(), 2)].into(), &reported);
        assert_eq!(*reported.0.lock(), [2, 3, 2, 2]);
    }

    #[test]
    fn ignored_versions_are_reported_if_their_number_changes() {
        let reported = ReportedCounts::default();
        let mut ignored = IgnoredVersions::default();
        let model: Arc<str> = "m".into();
        for count in [0, 1, 1, 5, 0, 0, 5] {
            ignored.update(count, &model, &reported);
        }
        assert_eq!(*reported.0.lock(), [1, 5, 5]);
    }
}
