//! Progress of one work in slices, which belongs to the work and not to a collection.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

/// Progress of one work in slices: one value of each type. The work finds them again in its next
/// slice, and threads that do parts of the work share them.
#[derive(Default)]
pub struct SliceProgress(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl SliceProgress {
    /// Returns the value of the type `T`. The first call creates it.
    pub(super) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut values = self.0.lock();
        let known = values.iter().find_map(|value| value.clone().downcast::<T>().ok());
        known.unwrap_or_else(|| {
            let value = Arc::<T>::default();
            values.push(value.clone());
            value
        })
    }

    /// Drops all values.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn there_is_one_value_of_each_type() {
        let progress = SliceProgress::default();
        progress.get::<AtomicU32>().store(3, Ordering::Relaxed);
        progress.get::<AtomicU64>().store(4, Ordering::Relaxed);
        assert_eq!(progress.get::<AtomicU32>().load(Ordering::Relaxed), 3);
        assert_eq!(progress.get::<AtomicU64>().load(Ordering::Relaxed), 4);
        progress.clear();
        assert_eq!(progress.get::<AtomicU32>().load(Ordering::Relaxed), 0);
    }
}
