//! Progress of one work in slices, which belongs to the work and not to a collection.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

use super::inner::Collection;
use super::state::CollectionState;

/// Progress of one work in slices: one value of each type, and the states that it reads. The work
/// finds them again in its next slice, and threads that do parts of the work share them.
#[derive(Default)]
pub struct SliceProgress {
    values: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    states: Mutex<Vec<ReadState>>,
}

/// State of a collection that a work reads.
struct ReadState {
    /// [`Collection::identity`].
    collection: Arc<()>,
    state: Arc<CollectionState>,
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

    /// Drops all values. The states stay: parts of a response must agree.
    pub(super) fn clear(&self) {
        self.values.lock().clear();
    }

    /// Returns the state of a collection at the first call for it.
    pub(super) fn state_of(&self, collection: &Collection) -> Arc<CollectionState> {
        let mut states = self.states.lock();
        let is_known = |known: &&ReadState| Arc::ptr_eq(&known.collection, &collection.identity);
        if let Some(known) = states.iter().find(is_known) {
            return known.state.clone();
        }
        let state = collection.state();
        states.push(ReadState { collection: collection.identity.clone(), state: state.clone() });
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
