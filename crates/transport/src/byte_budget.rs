//! One budget of bytes for all requests in flight.
//!
//! A request's cost is not its length. A small compressed body can become a large message, and a
//! small message a large answer. So handlers reserve bytes before they allocate. They do so for the
//! body, the body after decompression, the decoded message, tensors, decoded images, and the answer
//! until it is sent. A reservation that exceeds the budget is refused. The budget never blocks. A
//! refusal is immediate and says when to try again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use base::units::{GIB, MIB};
use base::{Error, Result};
use bytes::Bytes;
use metrics::{KindLabels, Metrics};

/// Bytes that a request may allocate without a reservation, for each of its parts. The number of
/// requests bounds them: 1,024 requests (the default of --max-requests) of at most 4 KiB a part.
pub const FREE_BYTES_MAX: u64 = 4 << 10;
/// Default budget as a share of the memory of the machine or container.
const DEFAULT_SHARE: f64 = 0.125;
/// Smallest default budget in bytes.
const DEFAULT_MIN: u64 = 256 * MIB;
/// Largest default budget in bytes.
const DEFAULT_MAX: u64 = 8 * GIB;
/// Advice to a client whose request is refused because other requests hold the budget.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Budget of the bytes that requests in flight hold. It refuses reservations above its maximum.
pub struct ByteBudget {
    max: u64,
    used: AtomicU64,
    peak: AtomicU64,
    metrics: Arc<Metrics>,
}

impl ByteBudget {
    /// Creates a budget of `max` bytes.
    pub fn new(max: u64, metrics: Arc<Metrics>) -> Arc<ByteBudget> {
        Arc::new(ByteBudget { max, used: AtomicU64::new(0), peak: AtomicU64::new(0), metrics })
    }

    /// Returns the default budget in bytes for `memory` bytes of machine or container. It is an
    /// eighth, from 256 MiB to 8 GiB.
    pub fn default_bytes(memory: u64) -> u64 {
        ((memory as f64 * DEFAULT_SHARE) as u64).clamp(DEFAULT_MIN, DEFAULT_MAX)
    }

    /// Reserves `bytes` until the reservation is dropped.
    ///
    /// # Errors
    /// `TooLarge` if the budget could never hold `bytes`, `ResourceExhausted` with retry advice if
    /// it cannot now.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.empty();
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// Returns a reservation of 0 bytes, which can grow.
    pub fn empty(self: &Arc<Self>) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }

    /// Returns the maximum in bytes.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the bytes reserved now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the largest number of bytes that were reserved at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> Result<()> {
        self.try_take(bytes).map_err(|used| self.refusal(bytes, used))
    }

    /// Returns the bytes in use if there is no room.
    fn try_take(&self, bytes: u64) -> Result<(), u64> {
        let room = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.max);
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)?;
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a refusal, and returns its error. `used` are the bytes in use.
    fn refusal(&self, bytes: u64, used: u64) -> Error {
        self.metrics.refused.get_or_create(&KindLabels { kind: "request_memory" }).inc();
        let max = self.max;
        if bytes > max {
            return Error::too_large(format!(
                "the request needs {bytes} bytes of memory and all requests together may use {max}; send less or raise \
                 --request-memory"
            ));
        }
        Error::exhausted(format!(
            "the request needs {bytes} bytes of memory and requests in flight use {used} of {max}; try again later or \
             raise --request-memory"
        ))
        .with_retry_after(RETRY_AFTER)
    }
}

/// Bytes of the budget that one request holds until the drop.
pub struct Reservation {
    budget: Arc<ByteBudget>,
    bytes: u64,
}

impl Reservation {
    /// Reserves `bytes` more. On an error the reservation stays as it was.
    ///
    /// # Errors
    /// Returns the errors of [`ByteBudget::reserve`].
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        self.budget.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Reserves `bytes` more if they are free. Does not count a refusal, since the caller can
    /// continue without them.
    pub fn grow_if_free(&mut self, bytes: u64) -> bool {
        let grows = self.budget.try_take(bytes).is_ok();
        if grows {
            self.bytes += bytes;
        }
        grows
    }

    /// Reserves `bytes` more if they exceed [`FREE_BYTES_MAX`].
    ///
    /// # Errors
    /// Returns the errors of [`ByteBudget::reserve`].
    pub fn cover(&mut self, bytes: u64) -> Result<()> {
        if bytes <= FREE_BYTES_MAX { Ok(()) } else { self.grow(bytes) }
    }

    /// Takes the bytes of another reservation of the same budget.
    pub fn join(&mut self, mut other: Reservation) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget), "two budgets");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Ties this reservation to `bytes`, so that it ends when the last reference to them is
    /// dropped.
    pub fn attach(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 {
            bytes
        } else {
            Bytes::from_owner(Attached { bytes, _reservation: self, _progress: None })
        }
    }

    /// Does the same as [`Reservation::attach`], and returns a mark that ends with the bytes.
    pub(crate) fn attach_held(self, bytes: Bytes) -> ReservedBytes {
        if self.bytes == 0 {
            return ReservedBytes { bytes, held: None };
        }
        self.attach_marked(bytes)
    }

    /// Does the same as [`Reservation::attach_held`], and marks bytes without a reservation too.
    pub(crate) fn attach_marked(self, bytes: Bytes) -> ReservedBytes {
        let progress = AnswerProgress::begin();
        let held = Some(HeldAnswer::of(&progress));
        ReservedBytes { bytes: self.attach_piece(bytes, progress), held }
    }

    /// Ties this reservation to one piece of an answer, whose mark does not end before the piece.
    pub(crate) fn attach_piece(self, bytes: Bytes, progress: Arc<AnswerProgress>) -> Bytes {
        Bytes::from_owner(Attached { bytes, _reservation: self, _progress: Some(progress) })
    }

    /// Returns the part of the reservation above `bytes` to the budget.
    pub fn shrink_to(&mut self, bytes: u64) {
        let freed = self.bytes.saturating_sub(bytes);
        if freed > 0 {
            self.bytes -= freed;
            self.budget.used.fetch_sub(freed, Ordering::Relaxed);
        }
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes with their reservation.
struct Attached {
    bytes: Bytes,
    _reservation: Reservation,
    _progress: Option<Arc<AnswerProgress>>,
}

/// Mark of an answer whose bytes are counted in the memory of requests, or that is one answer of a
/// stream. The mark ends when these bytes are dropped.
#[derive(Clone, Debug)]
pub struct HeldAnswer(Weak<AnswerProgress>);

impl HeldAnswer {
    pub(crate) fn of(progress: &Arc<AnswerProgress>) -> HeldAnswer {
        HeldAnswer(Arc::downgrade(progress))
    }

    /// Returns true until the bytes of the answer are dropped.
    pub(crate) fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Returns the time at which the connection took the last piece, or the wait for the client
    /// began. Returns `None` if the answer is not held any more.
    pub(crate) fn last_progress(&self) -> Option<Instant> {
        let progress = self.0.upgrade()?;
        let last = progress.last.lock().unwrap_or_else(PoisonError::into_inner);
        Some(*last)
    }

    /// Restarts the time for which the answer is unread, because it waited for other answers until
    /// now.
    pub(crate) fn restart(&self) {
        if let Some(progress) = self.0.upgrade() {
            progress.record();
        }
    }

    /// Returns true at the first call, so that a slow reader of one answer counts once.
    pub(crate) fn count_slow(&self) -> bool {
        self.0.upgrade().is_none_or(|progress| !progress.is_counted.swap(true, Ordering::Relaxed))
    }
}

/// Progress of an answer. The parts of the answer that exist hold it.
#[derive(Debug)]
pub(crate) struct AnswerProgress {
    last: Mutex<Instant>,
    /// True once its slow reader is counted.
    is_counted: AtomicBool,
}

impl AnswerProgress {
    pub(crate) fn begin() -> Arc<AnswerProgress> {
        let last = Mutex::new(Instant::now());
        let is_counted = AtomicBool::new(false);
        Arc::new(AnswerProgress { last, is_counted })
    }

    /// Records that the connection took a piece.
    pub(crate) fn record(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Bytes that hold a reservation.
pub(crate) struct ReservedBytes {
    pub(crate) bytes: Bytes,
    /// `None` for bytes without a mark.
    pub(crate) held: Option<HeldAnswer>,
}

impl AsRef<[u8]> for Attached {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn reservations_stay_within_the_maximum() {
        let budget = ByteBudget::new(100, Arc::new(Metrics::default()));
        let mut first = budget.reserve(60).unwrap();
        let error = budget.reserve(41).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert!(error.retry_after().is_some(), "{error}");
        assert_eq!(first.grow(41).unwrap_err().kind(), ErrorKind::ResourceExhausted);
        assert_eq!((first.bytes(), budget.used()), (60, 60));
        first.grow(40).unwrap();
        first.shrink_to(10);
        assert_eq!((budget.used(), budget.peak()), (10, 100));
        first.join(budget.reserve(5).unwrap());
        assert_eq!((first.bytes(), budget.used()), (15, 15));
        drop(first);
        assert_eq!(budget.used(), 0);
        assert_eq!(budget.reserve(101).map(drop).unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(budget.reserve(u64::MAX).map(drop).unwrap_err().kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn attached_bytes_hold_their_reservation() {
        let budget = ByteBudget::new(1 << 20, Arc::new(Metrics::default()));
        let mut reservation = budget.empty();
        reservation.cover(FREE_BYTES_MAX).unwrap();
        assert_eq!(budget.used(), 0, "small parts are free");
        reservation.cover(FREE_BYTES_MAX + 1).unwrap();
        let whole = reservation.attach(Bytes::from_static(b"whole"));
        let part = whole.slice(1..2);
        drop(whole);
        assert_eq!((&part[..], budget.used()), (&b"h"[..], FREE_BYTES_MAX + 1));
        drop(part);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_default_follows_the_memory() {
        assert_eq!(ByteBudget::default_bytes(8 * GIB), GIB);
        assert_eq!(ByteBudget::default_bytes(64 * MIB), 256 * MIB);
        assert_eq!(ByteBudget::default_bytes(1024 * GIB), 8 * GIB);
    }
}
