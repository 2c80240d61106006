//! Reserving bytes of the pool before a load begins.
//!
//! The pool counts bytes as used only when they are allocated. Until then the ledger keeps what was
//! promised, so that no second load gets the same bytes. A load that does not fit is deferred while
//! another version is being loaded or released, and refused if no memory will become free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::units::format_bytes;
use base::{Error, Result};
use memory::{Chunk, ParameterStore};
use parking_lot::Mutex;

use crate::Transition;

/// Bytes promised to loads, and versions about to release memory.
#[derive(Default)]
pub(crate) struct Ledger {
    promised: Mutex<u64>,
    /// Number of versions that are about to release memory.
    releasing: AtomicUsize,
}

/// Bytes promised to one load, returned on drop.
pub(crate) struct Promise {
    ledger: Arc<Ledger>,
    bytes: u64,
}

/// A version that releases its memory soon, counted until dropped.
pub(crate) struct Releasing(Arc<Ledger>);

/// Answer to a request for bytes.
pub(crate) enum Admission {
    Admitted(Promise),
    /// No room now, but memory is about to be released, with the reason.
    Deferred(String),
}

impl Ledger {
    /// Reserves the bytes that loading `chunks` takes.
    ///
    /// # Errors
    /// `ResourceExhausted` if they do not fit and no memory is about to be released.
    pub(crate) fn admit(
        self: &Arc<Self>,
        store: &ParameterStore,
        chunks: &[Chunk],
        transition: Transition,
    ) -> Result<Admission> {
        self.admit_when(store, || store.bytes_needed(chunks), transition)
    }

    /// Reserves `bytes` of the pool.
    ///
    /// # Errors
    /// Returns the errors of [`Ledger::admit`].
    pub(crate) fn admit_bytes(
        self: &Arc<Self>,
        store: &ParameterStore,
        bytes: u64,
        transition: Transition,
    ) -> Result<Admission> {
        self.admit_when(store, || bytes, transition)
    }

    /// Calls `needed` and reserves the bytes that it returns under one lock. No other load takes
    /// them in between.
    fn admit_when(
        self: &Arc<Self>,
        store: &ParameterStore,
        needed: impl FnOnce() -> u64,
        transition: Transition,
    ) -> Result<Admission> {
        let mut promised = self.promised.lock();
        // Read before the pool, so that memory released in between is seen as free.
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
                "{short}; waiting for memory that other loads or retired versions hold"
            )));
        }
        let remedy = match transition {
            Transition::AvailabilityPreserving if needed <= stats.bytes_max => {
                "raise --pool, unload a model, or use transition = \"resource-preserving\" if \
                 another version of the model serves"
            }
            _ => "raise --pool",
        };
        Err(Error::exhausted(format!("{short}; {remedy}")))
    }

    /// Counts a version that is about to release memory.
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
        // A larger --swap-reserve is a part of the same pool, so it makes no room.
        let error = ask().err().unwrap();
        assert!(
            error.message().contains("; raise --pool, unload a model, or use transition"),
            "{error}"
        );
        assert!(!error.message().contains("--swap-reserve"), "{error}");
        let releasing = ledger.releasing();
        assert!(matches!(ask(), Ok(Admission::Deferred(_))));
        drop(releasing);
        assert!(ask().is_err());
    }
}
