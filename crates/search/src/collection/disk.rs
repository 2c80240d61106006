//! Free disk space. Writes are refused before the disk is full, so that flushes, lists and new logs
//! still have room.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::units::format_bytes;
use base::{Error, Result};
use parking_lot::Mutex;
use storage::{Medium, Space};

use super::inner::Collection;
use crate::ingest::{Op, row_bytes};

/// Time for which a measurement of free space is used.
const MEASURE_AGAIN: Duration = Duration::from_millis(100);
/// Default reserve: a hundredth of the file system, between [`RESERVE_BYTES_MIN`] and
/// [`RESERVE_BYTES_MAX`].
const RESERVE_SHARE: u64 = 100;
const RESERVE_BYTES_MIN: u64 = 64 << 20;
const RESERVE_BYTES_MAX: u64 = 4 << 30;
/// The default reserve is at most this share of a small file system.
const RESERVE_SHARE_MAX: u64 = 8;
/// Files that must still be possible. A segment, its deletes, a list and a log fit many times.
const FILES_RESERVED: u64 = 128;

/// Limit on the free space of a collection's medium.
pub(super) struct DiskGuard {
    /// Bytes to keep free. `None` is a share of the file system, 0 switches the check off.
    reserve: Option<u64>,
    measured: Mutex<Option<(Instant, Option<Space>)>>,
    refused: AtomicU64,
}

impl DiskGuard {
    pub(super) fn new(reserve: Option<u64>) -> DiskGuard {
        DiskGuard { reserve, measured: Mutex::default(), refused: AtomicU64::new(0) }
    }

    /// Returns the number of writes refused since the start.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the free space before `bytes` are written, and subtracts them from the measurement.
    fn space(&self, medium: &dyn Medium, bytes: u64) -> Option<Space> {
        let mut measured = self.measured.lock();
        if let Some((when, space)) = &mut *measured
            && when.elapsed() < MEASURE_AGAIN
        {
            let before = *space;
            if let Some(space) = space {
                space.free = space.free.saturating_sub(bytes);
            }
            return before;
        }
        let space = medium.space().unwrap_or_else(|error| {
            tracing::debug!(%error, "free space is not known");
            None
        });
        *measured = Some((Instant::now(), space));
        space
    }

    /// Forgets the measurement, because much was written or removed.
    pub(super) fn changed(&self) {
        *self.measured.lock() = None;
    }

    /// Returns the bytes to keep free on a file system of `total` bytes.
    fn reserve_of(&self, total: u64) -> u64 {
        self.reserve.unwrap_or_else(|| {
            (total / RESERVE_SHARE)
                .clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
                .min(total / RESERVE_SHARE_MAX)
        })
    }

    /// Returns the reason why `needed` more bytes cannot be written, or `None` if they can. The
    /// part 1 / `share` of the reserve must stay free.
    fn lacks(&self, space: Space, needed: u64, share: u64) -> Option<String> {
        let reserve = self.reserve_of(space.total);
        if reserve == 0 {
            return None;
        }
        let files = FILES_RESERVED / share;
        if let Some(free) = space.files_free.filter(|free| *free < files) {
            return Some(format!(
                "the disk of the collection has room for {free} more files, fewer than {files}"
            ));
        }
        (space.free < needed.saturating_add(reserve / share)).then(|| {
            let needed = if needed == 0 { String::new() } else { format!(" for {}", format_bytes(needed)) };
            format!(
                "the disk of the collection has {} left{needed}, and {} are kept free (--search-disk-reserve)",
                format_bytes(space.free),
                format_bytes(reserve / share)
            )
        })
    }
}

/// Checks that `medium` has room for a new collection with files of `bytes` bytes together.
///
/// # Errors
/// `StorageFull` if less than the reserve would be free afterwards.
pub(crate) fn check_room_to_create(
    medium: &dyn Medium,
    reserve: Option<u64>,
    bytes: u64,
) -> Result<()> {
    let disk = DiskGuard::new(reserve);
    let lacks = disk.space(medium, 0).and_then(|space| disk.lacks(space, bytes, 1));
    lacks.map_or(Ok(()), |why| Err(Error::storage_full(format!("{why}; free space on the disk"))))
}

impl Collection {
    /// Returns the reason why writes are refused for lack of space, or `None` if they are not.
    pub(super) fn low_disk(&self) -> Option<String> {
        self.disk.lacks(self.disk.space(&*self.medium, 0)?, 0, 1)
    }

    /// Checks that there is room for changes. Changes that are all deletes may use half of the
    /// reserve, because deletes make room.
    ///
    /// # Errors
    /// `StorageFull` if less than the reserve is free, or less than half of it for deletes.
    pub(super) fn check_room(&self, ops: &[Op<'_>]) -> Result<()> {
        let bytes = |op: &Op<'_>| match op {
            Op::Delete(_) => 0,
            Op::Upsert(point) => {
                row_bytes(point.embedding.len(), point.record.len(), point.payload.len())
            }
        };
        let removals = ops.iter().all(|op| matches!(op, Op::Delete(_)));
        let Some(space) = self.disk.space(&*self.medium, ops.iter().map(bytes).sum()) else {
            return Ok(());
        };
        let share = if removals { 2 } else { 1 };
        match self.disk.lacks(space, 0, share) {
            None => Ok(()),
            Some(why) => {
                self.disk.refused.fetch_add(1, Ordering::Relaxed);
                Err(Error::storage_full(format!("{why}; free space. Searches continue")))
            }
        }
    }

    /// Returns the free bytes of the disk now, or `None` if they are not known.
    pub(crate) fn free_disk(&self) -> Option<u64> {
        self.medium.space().ok().flatten().map(|space| space.free)
    }

    /// Checks that other files of `bytes` bytes on the same disk leave the reserve free.
    ///
    /// # Errors
    /// `StorageFull` if less than the reserve would be free afterwards.
    pub(crate) fn check_room_for(&self, bytes: u64) -> Result<()> {
        check_room_to_create(&*self.medium, self.options.disk_reserve, bytes)
    }

    /// Checks that merging segments of `bytes` leaves the room that flushes need.
    ///
    /// # Errors
    /// `StorageFull` if the disk does not have that room.
    pub(super) fn check_room_to_merge(&self, bytes: u64) -> Result<()> {
        let lacks =
            self.disk.space(&*self.medium, 0).and_then(|space| self.disk.lacks(space, bytes, 2));
        lacks.map_or(Ok(()), |why| {
            Err(Error::storage_full(format!("{why}; merging waits for room")))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::ErrorKind;
    use storage::{FaultMedium, FaultPlan, UringMedium};

    use super::*;

    #[test]
    fn a_new_collection_leaves_the_reserve_free() {
        let directory = tempfile::tempdir().unwrap();
        let files = UringMedium::plain(directory.path().to_owned()).unwrap();
        let plan = FaultPlan { space: Some(1000), ..FaultPlan::default() };
        let medium = FaultMedium::new(Arc::new(files), plan).unwrap();
        assert_eq!(check_room_to_create(&medium, Some(300), 700), Ok(()));
        let error = check_room_to_create(&medium, Some(300), 701).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.message().contains("--search-disk-reserve"), "{error}");
    }

    #[test]
    fn the_reserve_follows_the_size_of_the_file_system() {
        let disk = DiskGuard::new(None);
        let mib = 1 << 20;
        let gib = 1 << 30;
        for (total, reserve) in [
            (1000 * gib, 4 * gib),
            (100 * gib, gib),
            (2 * gib, 64 * mib),
            (64 * mib, 8 * mib),
            (0, 0),
        ] {
            assert_eq!(disk.reserve_of(total), reserve, "{total}");
        }
        assert_eq!(DiskGuard::new(Some(7)).reserve_of(gib), 7);
    }

    #[test]
    fn bytes_and_files_are_kept_free() {
        let disk = DiskGuard::new(Some(1000));
        let space = |free, files_free| Space { free, total: 1 << 30, files_free };
        assert_eq!(disk.lacks(space(1000, None), 0, 1), None);
        assert!(disk.lacks(space(999, None), 0, 1).unwrap().contains("--search-disk-reserve"));
        assert_eq!(disk.lacks(space(500, Some(64)), 0, 2), None, "half of it for removals");
        assert!(disk.lacks(space(1499, None), 1000, 2).is_some());
        assert!(disk.lacks(space(1 << 20, Some(127)), 0, 1).unwrap().contains("127 more files"));
        assert_eq!(DiskGuard::new(Some(0)).lacks(space(0, Some(0)), 0, 1), None, "switched off");
    }
}
