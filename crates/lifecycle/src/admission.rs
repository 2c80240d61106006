//! Reserving bytes of the pool before a load begins.
//!
//! Between the decision and the moment the pool itself counts the bytes as used, a second load
//! could be promised the same ones; the ledger keeps what was promised. A load that does not fit
//! now is deferred as long as something else is on its way out or in, and refused when nothing is
//! left to wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::units::format_bytes;
use base::{Error, Result};
use memory::{Chunk, ParameterStore};
use parking_lot::Mutex;

use crate::Transition;

/// What was promised and what will come back.
#[derive(Default)]
pub(crate) struct Ledger {
    promised: Mutex<u64>,
    releasing: AtomicUsize,
}

/// A promise; given back when dropped.
pub(crate) struct Promise {
    ledger: Arc<Ledger>,
    bytes: u64,
}

/// A version that gives its memory back soon; counted until dropped.
pub(crate) struct Releasing(Arc<Ledger>);

/// What became of a request for bytes.
pub(crate) enum Admission {
    Admitted(Promise),
    /// Try again soon: memory is about to come back.
    Deferred(String),
}

impl Ledger {
    /// Asks for the bytes that loading `chunks` takes.
    ///
    /// # Errors
    /// `ResourceExhausted` when they do not fit and nothing is about to come back.
    pub(crate) fn admit(
        self: &Arc<Self>,
        store: &ParameterStore,
        chunks: &[Chunk],
        transition: Transition,
    ) -> Result<Admission> {
        self.admit_when(store, || store.bytes_needed(chunks), transition)
    }

    /// Asks for so many bytes of the pool.
    ///
    /// # Errors
    /// Those of [`Ledger::admit`].
    pub(crate) fn admit_bytes(
        self: &Arc<Self>,
        store: &ParameterStore,
        bytes: u64,
        transition: Transition,
    ) -> Result<Admission> {
        self.admit_when(store, || bytes, transition)
    }

    fn admit_when(
        self: &Arc<Self>,
        store: &ParameterStore,
        needed: impl FnOnce() -> u64,
        transition: Transition,
    ) -> Result<Admission> {
        let mut promised = self.promised.lock();
        // Before the pool is asked: what is released in between is then seen as free.
        let releasing = self.releasing.load(Ordering::SeqCst);
        let needed = needed();
        let stats = store.pool().stats();
        let free = stats.bytes_max.saturating_sub(stats.used);
        if needed <= free.saturating_sub(*promised) {
            *promised += needed;
            return Ok(Admission::Admitted(Promise { ledger: self.clone(), bytes: needed }));
        }
        let short = format!(
            "needs {}, the pool has {} free of {}",
            format_bytes(needed),
            format_bytes(free.saturating_sub(*promised)),
            format_bytes(stats.bytes_max)
        );
        if needed <= stats.bytes_max && (releasing > 0 || *promised > 0) {
            return Ok(Admission::Deferred(format!(
                "{short}; waiting for memory that is on its way back"
            )));
        }
        let remedy = match transition {
            Transition::AvailabilityPreserving if needed <= stats.bytes_max => {
                "raise --swap-reserve or --pool, or use transition = \"resource-preserving\""
            }
            _ => "raise --pool",
        };
        Err(Error::exhausted(format!("{short}; {remedy}")))
    }

    /// Counts a version that is about to give memory back.
    pub(crate) fn releasing(self: &Arc<Self>) -> Releasing {
        self.releasing.fetch_add(1, Ordering::SeqCst);
        Releasing(self.clone())
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        *self.ledger.promised.lock() -= self.bytes;
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.0.releasing.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{PoolConfig, SlotPool, StoreConfig};
    use os::Rate;

    const SLOT: u64 = memory::SLOT_BYTES as u64;

    fn chunk(bytes: u64) -> [Chunk; 1] {
        [Chunk { hash: blake3::hash(&bytes.to_le_bytes()), offset: 0, bytes }]
    }

    fn store(slots: u64) -> Arc<ParameterStore> {
        let fault_rate = Rate::unlimited();
        let pool =
            SlotPool::new(PoolConfig { bytes_max: slots * SLOT, huge_pages: false, fault_rate })
                .unwrap();
        ParameterStore::new(pool, StoreConfig { read_rate: Rate::unlimited(), direct: false })
    }

    #[test]
    fn nothing_is_promised_twice() {
        let (store, ledger) = (store(4), Arc::new(Ledger::default()));
        let ask = |slots: u64| {
            ledger.admit(&store, &chunk(slots * SLOT), Transition::AvailabilityPreserving)
        };
        let Ok(Admission::Admitted(first)) = ask(3) else { panic!("3 of 4 fit") };
        assert!(matches!(ask(2), Ok(Admission::Deferred(_))));
        assert!(matches!(ask(1), Ok(Admission::Admitted(_))));
        let error = ask(5).err().unwrap();
        assert!(
            error.message().starts_with("needs 10.0 MiB, the pool has 2.00 MiB free of 8.00 MiB"),
            "{error}"
        );
        drop(first);
        assert!(matches!(ask(2), Ok(Admission::Admitted(_))));
    }

    #[test]
    fn a_release_is_waited_for() {
        let (store, ledger) = (store(4), Arc::new(Ledger::default()));
        let _used = store.pool().allocate(3 * SLOT as usize).unwrap();
        let ask = || ledger.admit(&store, &chunk(2 * SLOT), Transition::AvailabilityPreserving);
        assert!(ask().is_err_and(|e| e.message().contains("resource-preserving")));
        let releasing = ledger.releasing();
        assert!(matches!(ask(), Ok(Admission::Deferred(_))));
        drop(releasing);
        assert!(ask().is_err());
    }
}
