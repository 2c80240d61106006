//! Reports of the last complete scan of each directory of models.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::{LifecycleEvent, Observer};

/// Time of the last complete scan of each directory of models that had one.
#[derive(Default)]
pub(super) struct ScanTimes(BTreeMap<PathBuf, SystemTime>);

impl ScanTimes {
    /// Replaces the times by those of the newest scan. Reports each directory whose time has
    /// changed or is missing now.
    pub(super) fn update(&mut self, times: BTreeMap<PathBuf, SystemTime>, observer: &dyn Observer) {
        for (root, at) in &times {
            if self.0.get(root) != Some(at) {
                let event = LifecycleEvent::RootScanned { root: root.clone(), at: Some(*at) };
                observer.event(&event);
            }
        }
        for root in self.0.keys().filter(|root| !times.contains_key(*root)) {
            observer.event(&LifecycleEvent::RootScanned { root: root.clone(), at: None });
        }
        self.0 = times;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct SeenEvents(Mutex<Vec<LifecycleEvent>>);

    impl Observer for SeenEvents {
        fn event(&self, event: &LifecycleEvent) {
            self.0.lock().push(event.clone());
        }
    }

    #[test]
    fn changed_and_removed_times_are_reported() {
        let early = SystemTime::UNIX_EPOCH;
        let late = early + Duration::from_secs(1);
        let scans = |scans: &[(&str, SystemTime)]| -> BTreeMap<PathBuf, SystemTime> {
            scans.iter().map(|(root, at)| (PathBuf::from(root), *at)).collect()
        };
        let seen = SeenEvents::default();
        let mut times = ScanTimes::default();
        times.update(scans(&[("/changed", early), ("/removed", early), ("/same", early)]), &seen);
        seen.0.lock().clear();
        times.update(scans(&[("/changed", late), ("/same", early)]), &seen);
        let event = |root: &str, at| LifecycleEvent::RootScanned { root: root.into(), at };
        assert_eq!(*seen.0.lock(), [event("/changed", Some(late)), event("/removed", None)]);
    }
}
