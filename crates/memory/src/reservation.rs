//! A reservation of address space, cut into slots. Only this module talks to the kernel about
//! address space.

use std::io;
use std::ptr::{NonNull, null_mut};

use base::units::format_bytes;
use base::{Error, Result};

/// Bytes of a slot: one huge page.
pub const SLOT_BYTES: usize = 2 << 20;

/// Bytes of a small page, the unit of faults without huge pages.
const PAGE_BYTES: usize = 4096;
/// Address space as a multiple of the budget, best first. With more than the budget, a long run can
/// always be found at fresh addresses. The smaller factors are for systems that limit address
/// space.
const SPREADS: [usize; 4] = [8, 4, 2, 1];
/// Limit of NUMA nodes. The kernel's own is 1024 (`MAX_NUMNODES`).
const NODES_MAX: u32 = 1024;
/// Files in which the kernel says if it grants huge pages. Either may say "never".
const HUGE_PAGE_SETTINGS: [&str; 2] = [
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled",
];

/// Private anonymous address space, aligned to slots, with a guard on either side, so that the
/// kernel never merges it with a neighbour. Unmapped on drop.
pub(crate) struct AddressReservation {
    /// The whole mapping, guards included.
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    /// Address of the first slot.
    base: NonNull<u8>,
    /// Number of slots.
    slots: usize,
    /// True if the kernel has MADV_POPULATE_WRITE.
    populates: bool,
    huge_pages: bool,
}

// SAFETY: the struct only names an address range; its owner's bookkeeping decides which thread may
// touch which slot.
unsafe impl Send for AddressReservation {}
// SAFETY: as above; no method changes a field.
unsafe impl Sync for AddressReservation {}

impl AddressReservation {
    /// Reserves several times `slots_min` slots. Also returns, in words, the requests that the
    /// system refused.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system has no address space.
    pub(crate) fn new(
        slots_min: usize,
        want_huge_pages: bool,
    ) -> Result<(AddressReservation, Option<String>)> {
        let mut reservation = Self::map(slots_min)?;
        let mut refusals = Vec::new();
        if want_huge_pages {
            match reservation.use_huge_pages() {
                Ok(()) => reservation.huge_pages = true,
                Err(reason) => {
                    refusals.push(format!("4 KiB pages instead of huge pages: {reason}"))
                }
            }
        } else {
            // Has an effect if the system's default is "always". Fails harmlessly in a kernel
            // without huge pages.
            let _ = reservation.advise_all(libc::MADV_NOHUGEPAGE);
        }
        // Parameters are on disk already, so core dumps leave them out. So do forked children,
        // because a fork would copy page tables and write-protect every page.
        let _ = reservation.advise_all(libc::MADV_DONTDUMP);
        let _ = reservation.advise_all(libc::MADV_DONTFORK);
        // Advice on zero bytes only checks that the kernel knows it.
        reservation.populates = reservation.advise(0, 0, libc::MADV_POPULATE_WRITE).is_ok();
        if !reservation.populates {
            refusals.push(
                "pages are touched one by one: the kernel is older than MADV_POPULATE_WRITE (5.14)"
                    .into(),
            );
        }
        Ok((reservation, (!refusals.is_empty()).then(|| refusals.join("; "))))
    }

    /// Maps address space for at least `slots_min` slots. Tries the larger sizes of [`SPREADS`]
    /// first.
    fn map(slots_min: usize) -> Result<AddressReservation> {
        let mut refusal = io::Error::from(io::ErrorKind::OutOfMemory);
        for spread in SPREADS {
            let bytes = slots_min.checked_mul(spread * SLOT_BYTES);
            let Some((bytes, mapping_bytes)) =
                bytes.and_then(|b| Some((b, b.checked_add(2 * SLOT_BYTES)?)))
            else {
                continue;
            };
            match Self::map_guarded(bytes, mapping_bytes) {
                Ok(reservation) => return Ok(reservation),
                Err(error) => refusal = error,
            }
        }
        let wanted = format_bytes((slots_min as u64).saturating_mul(SLOT_BYTES as u64));
        Err(Error::exhausted(format!(
            "{wanted} of address space for parameters cannot be reserved: {refusal}; give a \
             smaller --pool, or raise ulimit -v and ulimit -d"
        )))
    }

    /// Maps `mapping_bytes` without access, and opens `bytes` in the middle.
    fn map_guarded(bytes: usize, mapping_bytes: usize) -> io::Result<AddressReservation> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let mapping =
            unsafe { libc::mmap(null_mut(), mapping_bytes, libc::PROT_NONE, flags, -1, 0) };
        let mapping = match NonNull::new(mapping.cast::<u8>()) {
            Some(address) if mapping != libc::MAP_FAILED => address,
            _ => return Err(io::Error::last_os_error()),
        };
        // At least one page and at most one slot is left before the base, so a guard remains on
        // both sides.
        let before = SLOT_BYTES - mapping.as_ptr().addr() % SLOT_BYTES;
        // SAFETY: `before <= SLOT_BYTES`, and the mapping is two slots longer than `bytes`.
        let base = unsafe { mapping.add(before) };
        let slots = bytes / SLOT_BYTES;
        let reservation = AddressReservation {
            mapping,
            mapping_bytes,
            base,
            slots,
            populates: false,
            huge_pages: false,
        };
        // SAFETY: the range lies within the mapping made above, which no other code knows yet.
        match unsafe {
            libc::mprotect(base.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_WRITE)
        } {
            0 => Ok(reservation),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Binds all slots to the memory of one NUMA node (mbind(2), `MPOL_BIND`). Only pages that are
    /// faulted in later follow.
    ///
    /// # Errors
    /// `InvalidArgument` if the system has no such node or refuses.
    pub(crate) fn bind(&self, node: u32) -> Result<()> {
        if node >= NODES_MAX {
            return Err(Error::invalid(format!(
                "NUMA node {node}: nodes have numbers below {NODES_MAX}"
            )));
        }
        let word_bits = libc::c_ulong::BITS;
        let mut mask = [0 as libc::c_ulong; (NODES_MAX / libc::c_ulong::BITS) as usize];
        mask[(node / word_bits) as usize] = 1 << (node % word_bits);
        // The kernel subtracts one from the number of bits.
        // SAFETY: the range is this reservation and the mask has `NODES_MAX` bits; binding changes
        // where later faults take memory from, never the content of a page.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.address(0),
                self.slots * SLOT_BYTES,
                libc::MPOL_BIND,
                mask.as_ptr(),
                libc::c_ulong::from(NODES_MAX) + 1,
                0,
            )
        };
        match outcome {
            0 => Ok(()),
            _ => Err(Error::invalid(format!(
                "memory of NUMA node {node} cannot be used ({}); `numactl --hardware` lists the nodes",
                io::Error::last_os_error()
            ))),
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Returns true if huge pages were requested and granted.
    pub(crate) fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Returns the address of slot number `slot`. `slots()` gives the end.
    pub(crate) fn address(&self, slot: usize) -> *mut u8 {
        assert!(slot <= self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: within the mapping or one past its open part, by the assertion.
        unsafe { self.base.add(slot * SLOT_BYTES) }.as_ptr()
    }

    /// Takes memory from the system for a slot. The caller must own the slot.
    ///
    /// # Errors
    /// `ResourceExhausted` if the machine has no memory.
    pub(crate) fn fault_in(&self, slot: usize) -> Result<()> {
        if self.populates {
            return self.advise(slot, 1, libc::MADV_POPULATE_WRITE).map_err(|error| {
                Error::exhausted(format!(
                    "the system has no memory for parameters: {error}; give a smaller --pool"
                ))
                .with_source(error)
            });
        }
        let start = self.address(slot);
        for offset in (0..SLOT_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: within the slot, which the caller owns; its content means nothing yet.
            // Volatile, so that the write happens.
            unsafe { start.add(offset).write_volatile(0) };
        }
        Ok(())
    }

    /// Returns the memory of slots to the system. The caller must own the slots.
    ///
    /// # Errors
    /// `Internal` if the system refuses, for which there is no known reason.
    pub(crate) fn release(&self, slot: usize, count: usize) -> Result<()> {
        self.advise(slot, count, libc::MADV_DONTNEED).map_err(|error| {
            Error::internal("parameter memory cannot be given back").caused_by(error)
        })
    }

    /// Returns the bytes of the reservation in huge pages. Reads all mappings of the process, which
    /// takes milliseconds.
    ///
    /// # Errors
    /// `Internal` if the kernel's figures cannot be read.
    pub(crate) fn huge_bytes(&self) -> Result<u64> {
        let path = std::path::Path::new("/proc/self/smaps");
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, &e))?;
        Ok(huge_bytes_in(&text, self.address(0).addr(), self.address(self.slots).addr()))
    }

    fn use_huge_pages(&self) -> Result<(), String> {
        for path in HUGE_PAGE_SETTINGS {
            if std::fs::read_to_string(path).is_ok_and(|setting| setting.contains("[never]")) {
                return Err(format!("{path} says never; set it to madvise"));
            }
        }
        self.advise_all(libc::MADV_HUGEPAGE)
            .map_err(|error| format!("MADV_HUGEPAGE is refused: {error}"))
    }

    fn advise_all(&self, advice: libc::c_int) -> io::Result<()> {
        self.advise(0, self.slots, advice)
    }

    /// Calls `madvise` on slots. Private, because some advice discards their content.
    fn advise(&self, slot: usize, count: usize, advice: libc::c_int) -> io::Result<()> {
        let start = self.address(slot);
        assert!(count <= self.slots - slot, "{count} slots from {slot} of {}", self.slots);
        loop {
            // SAFETY: the range lies within the reservation, by the assertion and that in
            // `address`; advice that discards content is given only by `release`, to slots that no
            // region holds.
            if unsafe { libc::madvise(start.cast(), count * SLOT_BYTES, advice) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if !matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) {
                return Err(error);
            }
        }
    }
}

impl Drop for AddressReservation {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no region is left: each holds the pool, which holds this.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}

/// Sums `AnonHugePages` over the mappings of `smaps` between two addresses.
fn huge_bytes_in(smaps: &str, start: usize, end: usize) -> u64 {
    let mut inside = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some(range) = mapping_range(line) {
            inside = range.0 >= start && range.1 <= end;
        } else if inside && let Some(value) = line.strip_prefix("AnonHugePages:") {
            let kib = value.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
            sum += kib << 10;
        }
    }
    sum
}

/// Parses the addresses of a mapping's first line, "7f00-7f10 rw-p ...".
fn mapping_range(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_summed_inside_the_range_only() {
        let smaps = "1000-2000 rw-p 0 00:00 0\nAnonHugePages:  2 kB\n\
                     2000-4000 rw-p 0 00:00 0\nRss: 9 kB\nAnonHugePages:  4 kB\n\
                     4000-5000 ---p 0 00:00 0 [x-y]\nAnonHugePages:  8 kB\n";
        assert_eq!(huge_bytes_in(smaps, 0x2000, 0x4000), 4 << 10);
        assert_eq!(huge_bytes_in(smaps, 0x1000, 0x4000), 6 << 10);
    }

    #[test]
    fn slots_are_aligned_and_writable() {
        let (reservation, _) = AddressReservation::new(2, false).unwrap();
        assert!(reservation.slots() >= 2);
        let last = reservation.slots() - 1;
        assert_eq!(reservation.address(last).addr() % SLOT_BYTES, 0);
        reservation.fault_in(last).unwrap();
        // SAFETY: the slot was just faulted in and no other code knows it.
        unsafe { reservation.address(last).add(SLOT_BYTES - 1).write(7) };
        reservation.release(last, 1).unwrap();
        // SAFETY: as above; released anonymous memory reads as zero.
        assert_eq!(unsafe { reservation.address(last).add(SLOT_BYTES - 1).read() }, 0);
    }

    #[test]
    fn slots_are_bound_to_a_node_that_exists() {
        let (reservation, _) = AddressReservation::new(1, false).unwrap();
        for missing in [NODES_MAX - 1, NODES_MAX, u32::MAX] {
            let error = reservation.bind(missing).unwrap_err();
            assert_eq!(error.kind(), base::ErrorKind::InvalidArgument, "{missing}");
        }
        // A container may forbid mbind; then the refusal names the node.
        match reservation.bind(0) {
            Ok(()) => reservation.fault_in(0).unwrap(),
            Err(error) => assert!(error.message().contains("node 0"), "{error}"),
        }
    }

    #[test]
    fn touching_stands_in_for_populating() {
        let (mut reservation, _) = AddressReservation::new(1, false).unwrap();
        reservation.populates = false;
        let before = os::thread::minor_faults();
        reservation.fault_in(0).unwrap();
        let faults = os::thread::minor_faults() - before;
        assert!(faults >= (SLOT_BYTES / PAGE_BYTES) as u64, "{faults} faults");
    }

    #[test]
    fn more_address_space_than_there_is_is_refused() {
        let error =
            AddressReservation::new(usize::MAX / SLOT_BYTES / 2, false).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::ResourceExhausted);
        assert!(error.message().ends_with("smaller --pool, or raise ulimit -v and ulimit -d"));
    }
}
