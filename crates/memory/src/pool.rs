//! The slot pool: parameter memory that is taken from the system once and then recycled.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::units::format_bytes;
use base::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::RegionMut;
use crate::reservation::{AddressReservation, SLOT_BYTES};
use crate::slots::{Shortage, SlotMap, TakenSlots};
use os::{Pacer, Rate};

/// Slots released by one call, so that no call holds the address space's lock for long.
const RELEASE_SLOTS_MAX: usize = 2;

/// Limits of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolConfig {
    /// Maximum bytes of memory, used or not, rounded up to whole slots.
    pub bytes_max: u64,
    /// True to request huge pages. Without them the pool works, with more faults at the start and
    /// slower address translation.
    pub huge_pages: bool,
    /// Rate at which memory is taken from the system and released.
    pub fault_rate: Rate,
}

/// Figures of a pool. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Maximum bytes of all slots: the budget.
    pub bytes_max: u64,
    /// Memory in use, free, or being faulted in.
    pub backed: u64,
    /// Memory in use by regions, in whole slots.
    pub used: u64,
    /// Memory taken from the system since the start. It is counted again after each release.
    pub faulted: u64,
    /// Memory released to the system since the start.
    pub released: u64,
    /// True if huge pages were requested and granted. [`SlotPool::huge_bytes`] returns how many
    /// bytes they hold.
    pub huge_pages: bool,
    /// Description of the requests that the system refused, if it refused any.
    pub fallback: Option<String>,
}

/// Memory for parameters. Several threads may use it at once. Calls that need new memory take the
/// time of the fault rate and hold no lock meanwhile.
///
/// # Example: a region's memory stays in the pool
/// ```
/// use millpond_memory::{PoolConfig, SLOT_BYTES, SlotPool};
/// use os::Rate;
///
/// let fault_rate = Rate::unlimited();
/// let pool = SlotPool::new(PoolConfig { bytes_max: 8 << 20, huge_pages: false, fault_rate })?;
/// let mut region = pool.allocate(1000)?;
/// region.as_mut_slice().fill(7);
/// let region = region.freeze();
/// assert_eq!(region.as_slice()[999], 7);
///
/// drop(region);
/// let stats = pool.stats();
/// assert_eq!(stats.used, 0);
/// assert_eq!(stats.backed, SLOT_BYTES as u64);
/// # Ok::<(), base::Error>(())
/// ```
pub struct SlotPool {
    reservation: AddressReservation,
    slots_max: usize,
    fallback: Option<String>,
    map: Mutex<SlotMap>,
    /// Signalled when slots were faulted in or released.
    settled: Condvar,
    pacer: Pacer,
    faulted: AtomicU64,
    released: AtomicU64,
}

impl SlotPool {
    /// Reserves address space. Memory follows with [`prefault`](Self::prefault), or on demand.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system has no address space.
    pub fn new(config: PoolConfig) -> Result<Arc<SlotPool>> {
        SlotPool::placed(config, None)
    }

    /// Reserves address space as [`new`](Self::new), with memory from NUMA node `node` alone. Such
    /// a node is for example a memory expander on CXL, which has no processors.
    ///
    /// # Errors
    /// As `new`. `InvalidArgument` if the system has no such node or refuses the placement.
    pub fn on_node(config: PoolConfig, node: u32) -> Result<Arc<SlotPool>> {
        SlotPool::placed(config, Some(node))
    }

    /// Reserves the addresses of a pool, on one NUMA node if `node` names it. Takes no memory yet.
    fn placed(config: PoolConfig, node: Option<u32>) -> Result<Arc<SlotPool>> {
        let slots_max = slots_for(config.bytes_max)?.max(1);
        let (reservation, fallback) = AddressReservation::new(slots_max, config.huge_pages)?;
        if let Some(node) = node {
            reservation.bind(node)?;
        }
        if let Some(reason) = &fallback {
            tracing::warn!(reason, "parameter memory has other properties than requested");
        }
        let map = Mutex::new(SlotMap::new(reservation.slots(), slots_max));
        Ok(Arc::new(SlotPool {
            reservation,
            slots_max,
            fallback,
            map,
            settled: Condvar::new(),
            pacer: Pacer::new(config.fault_rate),
            faulted: AtomicU64::new(0),
            released: AtomicU64::new(0),
        }))
    }

    /// Takes memory from the system at the fault rate until the pool holds `bytes`, used and free
    /// together.
    ///
    /// # Errors
    /// `ResourceExhausted` beyond the budget, or if the machine has no memory.
    pub fn prefault(&self, bytes: u64) -> Result<()> {
        let wanted = slots_for(bytes)?;
        if wanted > self.slots_max {
            return Err(Error::exhausted(format!(
                "{} of parameter memory is more than the pool's {}; raise --pool",
                format_bytes(bytes),
                format_bytes(bytes_of(self.slots_max))
            )));
        }
        while let Some(slot) = self.begin_prefault(wanted) {
            let outcome = self.fault_in(slot);
            self.map.lock().end_prefault(slot, outcome.is_ok());
            self.settled.notify_all();
            outcome?;
        }
        Ok(())
    }

    /// Allocates a region of `bytes` in whole slots. It has the slots' old content.
    ///
    /// # Errors
    /// `ResourceExhausted` if the budget or the machine has too little memory.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<RegionMut> {
        self.allocate_unless(bytes, &AtomicBool::new(false))
    }

    /// Allocates as [`allocate`](Self::allocate), but stops faulting in memory once `stop` is set.
    ///
    /// # Errors
    /// Returns the errors of `allocate`, and `Cancelled`.
    pub fn allocate_unless(self: &Arc<Self>, bytes: usize, stop: &AtomicBool) -> Result<RegionMut> {
        if bytes == 0 {
            return Ok(RegionMut::new(self.clone(), 0..0, 0));
        }
        let mut taken = self.take(bytes)?;
        let outcome = self
            .release_slots(&mut taken, stop)
            .and_then(|()| self.fault_in_slots(&mut taken, stop));
        if let Err(error) = outcome {
            self.map.lock().undo(&taken);
            self.settled.notify_all();
            return Err(error);
        }
        Ok(RegionMut::new(self.clone(), taken.run, bytes))
    }

    /// Returns the current figures.
    pub fn stats(&self) -> PoolStats {
        let (backed, used) = {
            let map = self.map.lock();
            (map.committed(), map.used())
        };
        PoolStats {
            bytes_max: bytes_of(self.slots_max),
            backed: bytes_of(backed),
            used: bytes_of(used),
            faulted: self.faulted.load(Ordering::Relaxed),
            released: self.released.load(Ordering::Relaxed),
            huge_pages: self.reservation.huge_pages(),
            fallback: self.fallback.clone(),
        }
    }

    /// Returns the bytes in huge pages. Takes milliseconds, so it is for the start, diagnosis and
    /// tests.
    ///
    /// # Errors
    /// `Internal` if the kernel's figures cannot be read.
    pub fn huge_bytes(&self) -> Result<u64> {
        self.reservation.huge_bytes()
    }

    /// Returns the bytes of slots that a region of `bytes` takes.
    pub fn footprint(bytes: u64) -> u64 {
        bytes.div_ceil(SLOT_BYTES as u64).saturating_mul(SLOT_BYTES as u64)
    }

    pub(crate) fn slot_address(&self, slot: usize) -> *mut u8 {
        self.reservation.address(slot)
    }

    pub(crate) fn give_back(&self, run: Range<usize>) {
        self.map.lock().give_back(run);
    }

    /// Takes the next slot to fault in, unless the pool holds `wanted` slots already.
    fn begin_prefault(&self, wanted: usize) -> Option<usize> {
        let mut map = self.map.lock();
        if map.committed() >= wanted { None } else { map.begin_prefault() }
    }

    fn take(&self, bytes: usize) -> Result<TakenSlots> {
        let count = bytes.div_ceil(SLOT_BYTES);
        let mut map = self.map.lock();
        loop {
            match map.take(count) {
                Ok(taken) => return Ok(taken),
                Err(Shortage::Busy) => self.settled.wait(&mut map),
                Err(shortage) => return Err(self.shortage(shortage, bytes, map.used())),
            }
        }
    }

    /// Returns the error for `bytes` that cannot be taken while `used` slots are in use.
    fn shortage(&self, shortage: Shortage, bytes: usize, used: usize) -> Error {
        let wanted = format_bytes(bytes as u64);
        let used = format_bytes(bytes_of(used));
        let max = format_bytes(bytes_of(self.slots_max));
        Error::exhausted(match shortage {
            Shortage::Budget | Shortage::Busy => format!(
                "{wanted} of parameters do not fit: {used} of the pool's {max} are in use; unload a version or \
                 make the pool larger"
            ),
            Shortage::Addresses => {
                format!(
                    "{wanted} of parameters do not fit in one piece; {used} of the pool's {max} are in use"
                )
            }
        })
    }

    /// Releases the slots of [`TakenSlots::release`] and removes them from it one by one.
    fn release_slots(&self, taken: &mut TakenSlots, stop: &AtomicBool) -> Result<()> {
        while let Some(slots) = taken.release.last_mut() {
            let piece = slots.start..slots.end.min(slots.start + RELEASE_SLOTS_MAX);
            check_stop(stop)?;
            self.pacer.wait(bytes_of(piece.len()));
            self.reservation.release(piece.start, piece.len())?;
            self.released.fetch_add(bytes_of(piece.len()), Ordering::Relaxed);
            slots.start = piece.end;
            if slots.start == slots.end {
                taken.release.pop();
            }
            self.map.lock().released(piece);
            self.settled.notify_all();
        }
        Ok(())
    }

    /// Faults in the slots of [`TakenSlots::unbacked`] and removes them from it one by one.
    fn fault_in_slots(&self, taken: &mut TakenSlots, stop: &AtomicBool) -> Result<()> {
        while let Some(&slot) = taken.unbacked.last() {
            check_stop(stop)?;
            self.fault_in(slot)?;
            taken.unbacked.pop();
        }
        Ok(())
    }

    fn fault_in(&self, slot: usize) -> Result<()> {
        self.pacer.wait(SLOT_BYTES as u64);
        self.reservation.fault_in(slot)?;
        self.faulted.fetch_add(SLOT_BYTES as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl std::fmt::Debug for SlotPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

/// Checks that a load was not stopped.
///
/// # Errors
/// `Cancelled` once `stop` is true.
pub fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        Err(Error::cancelled("the load was stopped"))
    } else {
        Ok(())
    }
}

fn slots_for(bytes: u64) -> Result<usize> {
    usize::try_from(bytes.div_ceil(SLOT_BYTES as u64)).map_err(|_| {
        Error::exhausted(format!("{} of memory cannot be addressed", format_bytes(bytes)))
    })
}

fn bytes_of(slots: usize) -> u64 {
    slots as u64 * SLOT_BYTES as u64
}
