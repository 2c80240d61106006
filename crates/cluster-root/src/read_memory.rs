//! Memory for the answers of nodes to one read of shards.
//!
//! All answers of a read share one limit, however many nodes there are. Their bytes belong to the
//! budget of all requests from the moment that they arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use http_client::AnswerRoom;
use metrics::KindLabels;
use parking_lot::Mutex;
use transport::{FREE_BYTES_MAX, RequestResources, Reservation};

/// Maximum bytes of the answers to one read.
pub(super) const READ_BYTES_MAX: u64 = 256 << 20;

/// Memory for the answers to one read.
pub(super) struct ReadMemory {
    requests: Arc<RequestResources>,
    state: Mutex<ReadMemoryState>,
}

struct ReadMemoryState {
    reservation: Reservation,
    /// Bytes of answers that arrived, or arrive now.
    taken: u64,
    /// Bytes of answers that count.
    kept: u64,
    /// Error of an answer for which there was not enough memory.
    refusal: Option<Error>,
}

impl ReadMemoryState {
    /// Reserves the taken bytes. Few bytes need no reservation.
    fn reserve(&mut self) -> Result<()> {
        let wanted = if self.taken > FREE_BYTES_MAX { self.taken } else { 0 };
        let held = self.reservation.bytes();
        if wanted > held {
            self.reservation.grow(wanted - held)
        } else {
            self.reservation.shrink_to(wanted);
            Ok(())
        }
    }
}

impl ReadMemory {
    pub(super) fn new(requests: Arc<RequestResources>) -> Arc<ReadMemory> {
        let reservation = requests.memory.empty();
        let state = ReadMemoryState { reservation, taken: 0, kept: 0, refusal: None };
        Arc::new(ReadMemory { requests, state: Mutex::new(state) })
    }

    /// Returns the memory of one more answer.
    pub(super) fn answer(self: &Arc<ReadMemory>) -> AnswerMemory {
        AnswerMemory { read: self.clone(), bytes: AtomicU64::new(0) }
    }

    /// Returns the error of an answer for which there was not enough memory. Other holders' answers
    /// would be as large.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.state.lock().refusal.clone()
    }

    /// Returns the reservation of the answers that count.
    pub(super) fn finish(&self) -> Reservation {
        let mut state = self.state.lock();
        state.taken = state.kept;
        // It only shrinks.
        let _ = state.reserve();
        std::mem::replace(&mut state.reservation, self.requests.memory.empty())
    }

    /// Reserves memory for `bytes` of an answer of a shard.
    ///
    /// # Errors
    /// `TooLarge` if the answers have more than [`READ_BYTES_MAX`] together; the error of the
    /// reservation.
    fn take(&self, bytes: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.taken += bytes;
        let taken = if state.taken > READ_BYTES_MAX {
            let kind = "read_bytes_max";
            self.requests.metrics.refused.get_or_create(&KindLabels { kind }).inc();
            Err(Error::too_large(format!(
                "the answers of the shards have more than {} MiB together; request less at a time, with a smaller \
                     limit or without vectors",
                READ_BYTES_MAX >> 20
            )))
        } else {
            state.reserve()
        };
        if let Err(error) = &taken {
            state.taken -= bytes;
            state.refusal.get_or_insert_with(|| error.clone());
        }
        taken
    }
}

/// Memory for one answer. It is free again when this is dropped, unless the answer counts.
pub(super) struct AnswerMemory {
    read: Arc<ReadMemory>,
    bytes: AtomicU64,
}

impl AnswerMemory {
    /// Keeps the memory until the end of the read.
    pub(super) fn keep(self) {
        self.read.state.lock().kept += self.bytes.swap(0, Ordering::Relaxed);
    }
}

impl AnswerRoom for AnswerMemory {
    fn take(&self, bytes: u64) -> Result<()> {
        self.read.take(bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for AnswerMemory {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        if bytes > 0 {
            let mut state = self.read.state.lock();
            state.taken = state.taken.saturating_sub(bytes);
            // It only shrinks.
            let _ = state.reserve();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::ErrorKind;
    use metrics::Metrics;
    use transport::RequestLimits;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(budget: u64) -> Arc<ReadMemory> {
        let limits = RequestLimits {
            body_bytes_max: 1,
            requests_max: 1,
            client_timeout: Duration::ZERO,
            request_timeout: Duration::ZERO,
            answer_window: Duration::ZERO,
        };
        let metrics = Arc::new(Metrics::default());
        ReadMemory::new(Arc::new(RequestResources::new(limits, budget, metrics)))
    }

    #[test]
    fn all_answers_of_a_read_share_one_limit() {
        let memory = memory(1024 * MIB);
        let (first, second) = (memory.answer(), memory.answer());
        first.take(200 * MIB).unwrap();
        second.take(50 * MIB).unwrap();
        let error = second.take(10 * MIB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert_eq!(memory.refusal(), Some(error));
        let refused = &memory.requests.metrics.refused;
        assert_eq!(refused.get_or_create(&KindLabels { kind: "read_bytes_max" }).get(), 1);
        // An answer that does not count frees its memory for others.
        drop(first);
        second.take(200 * MIB).unwrap();
    }

    #[test]
    fn arriving_bytes_belong_to_the_budget_of_all_requests() {
        let memory = memory(10 * MIB);
        let budget = memory.requests.memory.clone();
        let (first, second) = (memory.answer(), memory.answer());
        first.take(FREE_BYTES_MAX).unwrap();
        assert_eq!(budget.used(), 0, "small answers are free");
        second.take(6 * MIB).unwrap();
        assert_eq!(budget.used(), 6 * MIB + FREE_BYTES_MAX);
        assert_eq!(first.take(6 * MIB).unwrap_err().kind(), ErrorKind::ResourceExhausted);
        second.keep();
        let reservation = memory.finish();
        assert_eq!((reservation.bytes(), budget.used()), (6 * MIB, 6 * MIB));
        drop((first, reservation));
        assert_eq!(budget.used(), 0);
    }
}
