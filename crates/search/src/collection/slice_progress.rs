//! Progress of one work in slices, which belongs to the work and not to a collection.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

/// Progress of one work in slices. It has one value of each type, and the states that the work
/// reads. The work finds them again in its next slice, and threads that do parts of the work share
/// them.
#[derive(Default)]
pub struct SliceProgress {
    values: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    states: Mutex<Vec<ReadState>>,
}

/// State of a collection that a work reads.
struct ReadState {
    /// Identity of the collection.
    collection: Arc<()>,
    state: Arc<dyn Any + Send + Sync>,
}

impl SliceProgress {
    /// Returns the value of the type `T`. The first call creates it.
    pub(super) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut values = self.values.lock();
        let known = values.iter().find_map(|value| value.clone().downcast::<T>().ok());
        known.unwrap_or_else(|| {
            let value = Arc::<T>::default();
            values.push(value.clone());
            value
        })
    }

    /// Drops all values. The states stay, because parts of a response must agree.
    pub(super) fn clear(&self) {
        self.values.lock().clear();
    }

    /// Returns the state of the collection with an identity, which is the result of `current` at
    /// the first call for the collection.
    pub(super) fn state_of<T: Send + Sync + 'static>(
        &self,
        collection: &Arc<()>,
        current: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut states = self.states.lock();
        let known = states.iter().find(|known| Arc::ptr_eq(&known.collection, collection));
        if let Some(state) = known.and_then(|known| known.state.clone().downcast::<T>().ok()) {
            return state;
        }
        let state = current();
        states.push(ReadState { collection: collection.clone(), state: state.clone() });
        state
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
