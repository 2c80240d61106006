//! Hard limit on the memory of collections: bytes are reserved before they are allocated.
//!
//! Everything that grows with the data is counted. That is unflushed rows, codes and maps of open
//! segments, and working memory of flushes and merges. Small fixed memory (threads, names, one page
//! per reader) is not. A reservation that does not fit fails at once. The caller decides whether to
//! wait, to do less, or to return the error.

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use base::units::format_bytes;
use base::{Error, Result};

/// Maximum attempts of a reservation to reclaim idle memory. Other threads may take the memory
/// first.
const TAKES_MAX: usize = 4;
/// New points, and bitmaps of live rows, leave this part of the memory free for searches, deletions
/// and merges.
const WORKING_SHARE: u64 = 64;
/// Maximum bytes of this part. Holds the filters of several requests in the largest segments.
const WORKING_BYTES_MAX: u64 = 16 << 20;

/// Memory limit shared by collections.
pub struct MemoryBudget {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
    /// Reservations that reclaim idle memory now.
    reclaiming: AtomicUsize,
    /// Holder of reserved memory that can be released on demand.
    idle: OnceLock<Weak<dyn FreeOnDemand>>,
    /// Holder of results that are expensive to compute again. Its memory does not count as free,
    /// and is released only for a reservation that would be refused otherwise.
    results: OnceLock<Weak<dyn FreeOnDemand>>,
}

/// Holder of memory that counts as free, because the holder releases its reservations on demand.
pub(crate) trait FreeOnDemand: Send + Sync {
    /// Returns the bytes that it has reserved.
    fn bytes(&self) -> u64;

    /// Releases at least `bytes`, or all that is not in use.
    fn free(&self, bytes: u64);
}

/// Use of a budget, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetStats {
    /// Maximum of all reservations together.
    pub limit: u64,
    /// Bytes reserved now, without `cached`.
    pub used: u64,
    /// Bytes of cached blocks, which are freed on demand.
    pub cached: u64,
    /// Maximum of `used` since the start, never above the limit.
    pub peak: u64,
    /// Reservations refused since the start.
    pub refused: u64,
}

impl MemoryBudget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget {
            limit,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            reclaiming: AtomicUsize::new(0),
            idle: OnceLock::new(),
            results: OnceLock::new(),
        })
    }

    /// Sets the holder of memory that reservations can take back. The first one stays.
    pub(crate) fn set_free_on_demand(&self, idle: Weak<dyn FreeOnDemand>) {
        let _ = self.idle.set(idle);
    }

    /// Sets the holder of results to release before a reservation is refused. The first one stays.
    pub(crate) fn set_results(&self, results: Weak<dyn FreeOnDemand>) {
        let _ = self.results.set(results);
    }

    fn idle(&self) -> Option<Arc<dyn FreeOnDemand>> {
        self.idle.get().and_then(Weak::upgrade)
    }

    /// Reserves `bytes` for `what` (such as "a merge of 3 segments"), which the error names.
    ///
    /// # Errors
    /// `ResourceExhausted` if less is free.
    pub fn reserve(self: &Arc<MemoryBudget>, bytes: u64, what: &str) -> Result<BudgetReservation> {
        self.take(bytes, what)?;
        Ok(BudgetReservation { budget: self.clone(), bytes })
    }

    /// Reserves `bytes` for a new point, and leaves [`working_bytes`](Self::working_bytes) free.
    /// Otherwise points would take the last bytes, and a filter, a deletion by filter or a merge
    /// would find no memory until the next start.
    ///
    /// # Errors
    /// `ResourceExhausted` if less is free.
    pub(crate) fn reserve_point(
        self: &Arc<MemoryBudget>,
        bytes: u64,
        what: &str,
    ) -> Result<BudgetReservation> {
        match self.lacks_for_point(bytes) {
            None => self.reserve(bytes, what),
            Some(why) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(Error::exhausted(format!("{what} needs {}, but {why}", format_bytes(bytes))))
            }
        }
    }

    /// Returns the reason why a new point of `bytes` is refused, or `None` if there is room.
    pub(crate) fn lacks_for_point(&self, bytes: u64) -> Option<String> {
        let kept = self.working_bytes();
        let wanted = bytes.saturating_add(kept);
        let free = self.free();
        // Results are only counted if needed, because that locks the filters of each collection.
        if wanted <= free || wanted <= free.saturating_add(self.result_bytes()) {
            return None;
        }
        Some(format!(
            "{} of the {} for all collections are in use, and {} stay free for searches; \
             raise --search-memory, or delete points",
            format_bytes(self.limit.saturating_sub(free)),
            format_bytes(self.limit),
            format_bytes(kept)
        ))
    }

    /// Returns the bytes that new points and bitmaps of live rows leave free.
    fn working_bytes(&self) -> u64 {
        (self.limit / WORKING_SHARE).min(WORKING_BYTES_MAX)
    }

    /// Returns the bytes of results that can be released.
    fn result_bytes(&self) -> u64 {
        self.results.get().and_then(Weak::upgrade).map_or(0, |results| results.bytes())
    }

    /// Reserves unused `bytes` for the [`FreeOnDemand`] holder itself. Does not reclaim memory and
    /// does not count a refusal. Returns `None` while another reservation reclaims memory.
    /// Otherwise the holder would take the reclaimed bytes first, and that reservation could be
    /// refused.
    pub(crate) fn reserve_idle(self: &Arc<MemoryBudget>, bytes: u64) -> Option<BudgetReservation> {
        if self.is_reclaiming() {
            return None;
        }
        self.try_take(bytes).ok()?;
        Some(BudgetReservation { budget: self.clone(), bytes })
    }

    /// Reserves `bytes` if they are free. Does not count a refusal, since callers can continue.
    pub(crate) fn reserve_if_free(
        self: &Arc<MemoryBudget>,
        bytes: u64,
    ) -> Option<BudgetReservation> {
        self.take_if_free(bytes).then(|| BudgetReservation { budget: self.clone(), bytes })
    }

    /// Reserves `bytes` if they are free, and leaves [`working_bytes`](Self::working_bytes) free as
    /// new points do. Does not count a refusal.
    pub(crate) fn reserve_beside_work(
        self: &Arc<MemoryBudget>,
        bytes: u64,
    ) -> Option<BudgetReservation> {
        let wanted = bytes.saturating_add(self.working_bytes());
        if wanted > self.free() {
            return None;
        }
        self.reserve_if_free(bytes)
    }

    /// Returns true while a reservation reclaims idle memory.
    pub(crate) fn is_reclaiming(&self) -> bool {
        self.reclaiming.load(Ordering::Relaxed) > 0
    }

    fn cached(&self) -> u64 {
        self.idle().map_or(0, |idle| idle.bytes())
    }

    /// Returns the bytes that can be reserved.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed)) + self.cached()
    }

    /// Returns the bytes that nothing has reserved, not even a cache.
    pub(crate) fn unused(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Returns true if less than a quarter is free.
    pub(crate) fn is_short(&self) -> bool {
        self.free() < self.limit / 4
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the use of the budget.
    pub fn stats(&self) -> BudgetStats {
        let cached = self.cached();
        let used = self.used.load(Ordering::Relaxed).saturating_sub(cached);
        BudgetStats {
            limit: self.limit,
            used,
            cached,
            // Evicted blocks that queries still use count as used, but no reservation saw them so.
            peak: self.peak.fetch_max(used, Ordering::Relaxed).max(used),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// Returns the bytes in use if there is no room.
    fn try_take(&self, bytes: u64) -> Result<(), u64> {
        let grown = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).map(|_| ())
    }

    /// Takes `bytes` for `what`, and reclaims idle memory if necessary.
    ///
    /// # Errors
    /// `ResourceExhausted`, which is counted, if there is no room.
    fn take(&self, bytes: u64, what: &str) -> Result<()> {
        self.take_uncounted(bytes).map_err(|used| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            Error::exhausted(format!(
                "{what} needs {}, but {} of the {} for all collections are in use; raise --search-memory, or delete points",
                format_bytes(bytes),
                format_bytes(used),
                format_bytes(self.limit)
            ))
        })
    }

    /// Takes `bytes` as [`MemoryBudget::take`] does, but does not count a refusal. Returns the
    /// bytes in use if there is no room.
    fn take_uncounted(&self, bytes: u64) -> Result<(), u64> {
        let taken = self.try_take(bytes).or_else(|used| self.take_reclaimed(bytes, used));
        if taken.is_ok() {
            let used = self.used.load(Ordering::Relaxed).saturating_sub(self.cached());
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        taken
    }

    /// Takes `bytes` if they are free. Returns false, and counts no refusal, if they are not.
    fn take_if_free(&self, bytes: u64) -> bool {
        // Cached blocks count as free, but those in use cannot be reclaimed.
        bytes <= self.free() && self.take_uncounted(bytes).is_ok()
    }

    /// Reserves `bytes` after it has reclaimed idle memory. `used` bytes are in use. Returns the
    /// bytes in use if there is no room.
    fn take_reclaimed(&self, bytes: u64, mut used: u64) -> Result<(), u64> {
        if bytes > self.limit {
            return Err(used);
        }
        self.reclaiming.fetch_add(1, Ordering::Relaxed);
        for _ in 0..TAKES_MAX {
            if !self.reclaim(used.saturating_add(bytes).saturating_sub(self.limit)) {
                break;
            }
            match self.try_take(bytes) {
                Ok(()) => {
                    self.reclaiming.fetch_sub(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(now) => used = now,
            }
        }
        self.reclaiming.fetch_sub(1, Ordering::Relaxed);
        Err(used)
    }

    /// Takes `missing` bytes back from the holders. Returns false, and takes nothing, if they have
    /// less. Otherwise callers that retry a refused reservation would keep the holders empty.
    fn reclaim(&self, missing: u64) -> bool {
        let idle = self.idle();
        let results = self.results.get().and_then(Weak::upgrade);
        let idle_bytes = idle.as_ref().map_or(0, |idle| idle.bytes());
        // Only counted if it is needed, because the idle memory is enough for most reservations.
        let lacks = missing.saturating_sub(idle_bytes);
        if lacks > 0 && results.as_ref().map_or(0, |results| results.bytes()) < lacks {
            return false;
        }
        let mut left = missing;
        if let Some(idle) = idle {
            idle.free(missing);
            // Less is released if some of it is in use.
            left = left.saturating_sub(idle_bytes.saturating_sub(idle.bytes()));
        }
        if let Some(results) = results.filter(|results| left > 0 && results.bytes() >= left) {
            results.free(left);
        }
        true
    }

    fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

/// Reserved bytes of a [`MemoryBudget`], released on drop.
#[must_use = "dropping it gives the bytes back"]
pub struct BudgetReservation {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl BudgetReservation {
    /// Returns the reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Changes the size to `bytes`. Shrinking never fails.
    ///
    /// # Errors
    /// `ResourceExhausted` if the reservation grows by more than the free memory. The size is then
    /// unchanged.
    pub(crate) fn resize(&mut self, bytes: u64, what: &str) -> Result<()> {
        if bytes > self.bytes {
            self.budget.take(bytes - self.bytes, what)?;
        } else {
            self.budget.release(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Grows to `bytes` if it is smaller. Returns false and changes nothing if too little is free.
    /// Does not count a refusal, since the caller can continue without the memory.
    pub(crate) fn grow_if_free(&mut self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(self.bytes);
        let grows = missing == 0 || self.budget.take_if_free(missing);
        if grows {
            self.bytes += missing;
        }
        grows
    }

    /// Splits `bytes` off as a separate reservation, so that they are never free in between.
    ///
    /// # Errors
    /// `ResourceExhausted` if this one has less.
    pub(crate) fn split(&mut self, bytes: u64, what: &str) -> Result<BudgetReservation> {
        if bytes > self.bytes {
            return Err(Error::exhausted(format!(
                "{what} needs {}, but only {} are set aside for it; raise --search-memory",
                format_bytes(bytes),
                format_bytes(self.bytes)
            )));
        }
        self.bytes -= bytes;
        Ok(BudgetReservation { budget: self.budget.clone(), bytes })
    }

    /// Merges back a reservation that was [split](Self::split) off. Its bytes stay reserved.
    pub(crate) fn join(&mut self, mut other: BudgetReservation) {
        if Arc::ptr_eq(&self.budget, &other.budget) {
            self.bytes += std::mem::take(&mut other.bytes);
        }
    }

    /// Grows to `bytes`, or by as much as is free. Does not count a refusal.
    pub(crate) fn refill(&mut self, bytes: u64) {
        let wanted = bytes.saturating_sub(self.bytes).min(self.budget.free());
        // Another thread may have been faster. The next call tries again.
        if self.budget.take_uncounted(wanted).is_ok() {
            self.bytes += wanted;
        }
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

impl Debug for BudgetReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({})", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;

    #[test]
    fn a_refused_reservation_changes_nothing() {
        let budget = MemoryBudget::new(100);
        let mut first = budget.reserve(60, "rows").unwrap();
        let error = budget.reserve(41, "a merge").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert!(error.message().contains("a merge needs 41"), "{error}");
        assert!(error.message().contains("raise --search-memory"), "{error}");
        let second = budget.reserve(40, "rows").unwrap();
        assert!(first.resize(61, "rows").is_err() && first.bytes() == 60);
        first.resize(10, "rows").unwrap();
        assert_eq!(budget.free(), 50);
        drop(second);
        assert!(budget.reserve(u64::MAX, "too much").is_err());
        // These are not refusals.
        assert!(first.grow_if_free(5) && !first.grow_if_free(101));
        assert_eq!(first.bytes(), 10);
        assert!(first.grow_if_free(20) && first.bytes() == 20);
        first.resize(10, "rows").unwrap();
        assert_eq!(
            budget.stats(),
            BudgetStats { limit: 100, used: 10, cached: 0, peak: 100, refused: 3 }
        );
    }

    /// Holder that tries to take each reclaimed byte again.
    struct GreedyHolder {
        budget: Arc<MemoryBudget>,
        held: parking_lot::Mutex<Vec<BudgetReservation>>,
    }

    impl FreeOnDemand for GreedyHolder {
        fn bytes(&self) -> u64 {
            self.held.lock().iter().map(BudgetReservation::bytes).sum()
        }

        fn free(&self, bytes: u64) {
            let mut held = self.held.lock();
            for _ in 0..bytes {
                drop(held.pop());
                held.extend(self.budget.reserve_idle(1));
            }
        }
    }

    #[test]
    fn the_idle_holder_does_not_take_reclaimed_memory() {
        let budget = MemoryBudget::new(100);
        let held = (0..100).map(|_| budget.reserve_idle(1).unwrap()).collect();
        let holder = GreedyHolder { budget: budget.clone(), held: parking_lot::Mutex::new(held) };
        let holder = Arc::new(holder);
        let idle: Weak<GreedyHolder> = Arc::downgrade(&holder);
        budget.set_free_on_demand(idle);
        let rows = budget.reserve(30, "rows").unwrap();
        assert_eq!((holder.bytes(), budget.stats().used, budget.stats().refused), (70, 30, 0));
        assert!(!budget.is_reclaiming());
        drop(rows);
        assert!(budget.reserve_idle(1).is_some());
    }

    #[test]
    fn points_leave_memory_for_searches() {
        let budget = MemoryBudget::new(64 << 10);
        let kept = budget.working_bytes();
        assert_eq!(kept, 1 << 10);
        let mut points = budget.reserve_point(63 << 10, "a point").unwrap();
        let error = budget.reserve_point(1, "a point").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert!(error.message().contains("1.00 KiB stay free for searches"), "{error}");
        assert!(error.message().contains("raise --search-memory"), "{error}");
        assert_eq!((budget.stats().refused, budget.free()), (1, kept));
        let filter = budget.reserve(kept, "a filter").unwrap();
        points.resize(32 << 10, "fewer points").unwrap();
        drop(filter);
        assert!(budget.reserve_point(31 << 10, "a point").is_ok());
        assert_eq!(MemoryBudget::new(u64::MAX).working_bytes(), WORKING_BYTES_MAX);
    }

    /// Holder of no results that counts how often its bytes are requested.
    #[derive(Default)]
    struct CountedHolder(AtomicUsize);

    impl FreeOnDemand for CountedHolder {
        fn bytes(&self) -> u64 {
            self.0.fetch_add(1, Ordering::Relaxed);
            0
        }

        fn free(&self, _: u64) {}
    }

    #[test]
    fn points_take_the_memory_of_idle_blocks() {
        let budget = MemoryBudget::new(64 << 10);
        let held = vec![budget.reserve_idle(64 << 10).unwrap()];
        let holder = GreedyHolder { budget: budget.clone(), held: parking_lot::Mutex::new(held) };
        let holder = Arc::new(holder);
        let idle: Weak<GreedyHolder> = Arc::downgrade(&holder);
        budget.set_free_on_demand(idle);
        let results = Arc::new(CountedHolder::default());
        let held_results: Weak<CountedHolder> = Arc::downgrade(&results);
        budget.set_results(held_results);
        let point = budget.reserve_point(62 << 10, "a point").unwrap();
        assert_eq!((point.bytes(), holder.bytes()), (62 << 10, 0));
        assert_eq!(results.0.load(Ordering::Relaxed), 0, "the idle blocks are enough");
        // Cached blocks are not in use.
        let cached = budget.reserve_idle(1 << 10).unwrap();
        holder.held.lock().push(cached);
        let error = budget.reserve_point((1 << 10) + 1, "a point").unwrap_err();
        assert!(error.message().contains("but 62.0 KiB of the 64.0 KiB"), "{error}");
        assert_eq!(results.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn split_bytes_are_never_free() {
        let budget = MemoryBudget::new(100);
        let mut aside = budget.reserve(80, "flush").unwrap();
        let segment = aside.split(50, "a segment").unwrap();
        assert!(aside.split(31, "a segment").is_err());
        assert_eq!((aside.bytes(), segment.bytes(), budget.free()), (30, 50, 20));
        aside.refill(80);
        assert_eq!((aside.bytes(), budget.free()), (50, 0));
        drop(segment);
        aside.refill(80);
        assert_eq!((aside.bytes(), budget.free()), (80, 20));
        let working = aside.split(30, "a segment").unwrap();
        aside.join(working);
        assert_eq!((aside.bytes(), budget.free()), (80, 20));
    }

    #[test]
    fn threads_never_exceed_the_limit() {
        let budget = MemoryBudget::new(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2000_u64 {
                        let held = budget.reserve(200 + round % 300, "rows");
                        assert!(budget.stats().used <= 1000);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(budget.stats().used, 0);
        assert!(budget.stats().peak <= 1000);
    }
}
