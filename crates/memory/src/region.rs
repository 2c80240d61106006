//! Regions: runs of slots that hold parameters. One owner writes them, then many readers share
//! them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};

use crate::{SLOT_BYTES, SlotPool};

/// A run of slots in use. Dropping it returns them to the pool, which takes a system call only if
/// the run is sealed.
struct Run {
    pool: Arc<SlotPool>,
    slots: Range<usize>,
    bytes: usize,
    /// True if slots may be read-only.
    sealed: AtomicBool,
}

impl Run {
    fn start(&self) -> *mut u8 {
        self.pool.slot_address(self.slots.start)
    }

    /// Sets the access rights of the slots.
    fn protect(&self, protection: libc::c_int) -> std::io::Result<()> {
        let bytes = self.slots.len() * SLOT_BYTES;
        // SAFETY: the slots are mapped and this run's alone. Removing write access is safe because
        // no mutable reference exists. `seal` is on a frozen region, whose bytes are never written.
        // Restoring it always is.
        match unsafe { libc::mprotect(self.start().cast(), bytes, protection) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if *self.sealed.get_mut()
            && let Err(error) = self.protect(libc::PROT_READ | libc::PROT_WRITE)
        {
            // The next owner could not write, so the slots are lost.
            tracing::error!(
                slots = ?self.slots, %error,
                "slots stay read-only, so the pool cannot use them"
            );
            return;
        }
        self.pool.give_back(self.slots.clone());
    }
}

/// Memory that its only owner fills. It starts at a multiple of the slot size and has the slots'
/// old content.
pub struct RegionMut(Run);

impl RegionMut {
    pub(crate) fn new(pool: Arc<SlotPool>, slots: Range<usize>, bytes: usize) -> RegionMut {
        RegionMut(Run { pool, slots, bytes, sealed: AtomicBool::new(false) })
    }

    /// Returns the requested number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller asks if it is empty")]
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Returns the bytes, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the pool mapped these slots, faulted them in and passed them to this run alone;
        // `bytes` lies within them, every byte pattern is a valid `u8`, and `&mut self` excludes
        // other references.
        unsafe { std::slice::from_raw_parts_mut(self.0.start(), self.0.bytes) }
    }

    /// Ends the filling: the bytes never change again.
    pub fn freeze(self) -> Region {
        Region(self.0)
    }
}

/// Immutable parameters, shared through `Arc<Region>`. The slots return to the pool with the last
/// holder.
pub struct Region(Run);

impl Region {
    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller asks if it is empty")]
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: as in `RegionMut::as_mut_slice`, and nothing writes to a frozen region.
        unsafe { std::slice::from_raw_parts(self.0.start(), self.0.bytes) }
    }

    /// Makes the processor refuse writes until the slots return to the pool. It is for a library
    /// that gets pointers it could write through.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system cannot split its mappings further.
    pub fn seal(&self) -> Result<()> {
        // Set before the call, because a call that fails may have made a part of the slots
        // read-only.
        self.0.sealed.store(true, Ordering::Relaxed);
        self.0
            .protect(libc::PROT_READ)
            .map_err(|e| Error::exhausted("parameters cannot be sealed").caused_by(e))
    }

    /// Returns the start address, a multiple of the slot size. Valid during the life of the region.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.start()
    }
}

impl std::fmt::Debug for RegionMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegionMut({} bytes, slots {:?})", self.0.bytes, self.0.slots)
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes, slots {:?})", self.0.bytes, self.0.slots)
    }
}

#[cfg(test)]
mod tests {
    use crate::{PoolConfig, SlotPool};
    use os::Rate;

    #[test]
    fn a_sealed_region_is_read_only_until_it_returns() {
        let config =
            PoolConfig { bytes_max: 2 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
        let pool = SlotPool::new(config).unwrap();
        for round in 0..3 {
            let mut region = pool.allocate(100).unwrap();
            region.as_mut_slice().fill(round);
            let region = region.freeze();
            region.seal().unwrap();
            assert!(mapping_of(region.as_ptr() as usize).starts_with("r--"), "round {round}");
            assert_eq!(region.as_slice()[99], round);
        }
    }

    /// Returns the access rights of the mapping that holds `address`.
    fn mapping_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &&str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&address)
        };
        maps.lines().find(holds).unwrap().split(' ').nth(1).unwrap().to_owned()
    }
}
