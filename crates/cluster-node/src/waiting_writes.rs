//! Memory of writes that wait for the log of a shard: on a root for its owner, and on the owner for
//! the store. They may wait until the timeout of their request.
//!
//! They belong to the memory of all requests, and take a part of it only. Reads need the rest while
//! a shard, or the whole store, takes no writes. So do the requests between nodes that end the
//! wait.

use std::sync::Arc;

use base::Result;
use transport::{ByteBudget, RequestResources, Reservation};

/// Memory of the writes of a node that wait.
pub struct WaitingWrites {
    /// The part of the memory that they may take.
    part: Arc<ByteBudget>,
    requests: Arc<RequestResources>,
}

/// Memory of a write until it has its answer.
pub struct WaitingMemory {
    _part: Reservation,
    _all: Reservation,
}

impl WaitingWrites {
    /// Creates the memory of writes that may take one of `parts` parts of the memory of `requests`.
    pub fn new(requests: Arc<RequestResources>, parts: u64) -> WaitingWrites {
        let bytes_max = requests.memory.max() / parts.max(1);
        WaitingWrites { part: ByteBudget::new(bytes_max, requests.metrics.clone()), requests }
    }

    /// Reserves the memory of a write of `bytes` bytes. A write that is larger than the part takes
    /// all of it.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if other writes or requests hold the memory.
    pub fn reserve(&self, bytes: u64) -> Result<WaitingMemory> {
        let bytes = bytes.min(self.part.max());
        let mut part = self.part.empty();
        part.cover(bytes)?;
        let mut all = self.requests.memory.empty();
        all.cover(bytes)?;
        Ok(WaitingMemory { _part: part, _all: all })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::ErrorKind;
    use transport::RequestLimits;

    use super::*;

    #[test]
    fn writes_that_wait_leave_memory_to_reads() {
        const KIB: u64 = 1 << 10;
        let limits = RequestLimits {
            body_bytes_max: 1,
            requests_max: 1,
            client_timeout: Duration::ZERO,
            request_timeout: Duration::ZERO,
            answer_window: Duration::ZERO,
        };
        let requests = Arc::new(RequestResources::new(limits, 100 * KIB, Arc::default()));
        let budget = requests.memory.clone();
        let writes = WaitingWrites::new(requests, 2);
        let first = writes.reserve(30 * KIB).unwrap();
        let refused = writes.reserve(30 * KIB).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(budget.used(), 30 * KIB);
        let read = budget.reserve(70 * KIB).unwrap();
        assert!(writes.reserve(10 * KIB).is_err(), "reads hold the memory");
        drop((first, read));
        let large = writes.reserve(90 * KIB).unwrap();
        assert_eq!(budget.used(), 50 * KIB);
        drop(large);
        assert_eq!(budget.used(), 0);
    }
}
