//! Memory of the points of a response. It is part of the memory of requests until the response is
//! encoded. The text is counted after that, as for every response.

use std::sync::Arc;

use base::{Error, Result};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use transport::{ByteBudget, Reservation};

use crate::json::{PointRecord, Vector};

/// Bytes of each response that are not counted, so that small responses do not use the budget.
const FREE_BYTES: u64 = 64 << 10;
/// Minimum bytes that are reserved at once.
const STEP_BYTES: u64 = 64 << 10;
/// Divisor of the budget. A page, which can end early, leaves the quotient free for other requests.
const OTHERS_SHARE: u64 = 4;
/// Maximum bytes of a node of a JSON object. A node has room for eleven members.
const NODE_BYTES: usize = 704;
/// Minimum members of a node, if the object has several nodes.
const NODE_MEMBERS_MIN: usize = 5;

/// Memory of requests that a response holds until it is encoded.
pub(crate) struct ResponseMemory {
    budget: Arc<ByteBudget>,
    held: Mutex<HeldMemory>,
}

#[derive(Default)]
struct HeldMemory {
    /// Bytes of the points so far.
    used: u64,
    reservation: Option<Reservation>,
}

impl HeldMemory {
    /// Counts `bytes` more. Returns the bytes to reserve for them.
    fn count(&mut self, bytes: u64) -> u64 {
        self.used += bytes;
        let reserved = self.reservation.as_ref().map_or(0, Reservation::bytes);
        match self.used.saturating_sub(FREE_BYTES + reserved) {
            0 => 0,
            missing => missing.max(STEP_BYTES),
        }
    }
}

impl ResponseMemory {
    /// Creates the memory of a response without points.
    pub(crate) fn new(budget: &Arc<ByteBudget>) -> Arc<ResponseMemory> {
        Arc::new(ResponseMemory { budget: budget.clone(), held: Mutex::default() })
    }

    /// Counts `bytes` more.
    ///
    /// # Errors
    /// `InvalidArgument` if the response takes more than the whole budget, `ResourceExhausted` with
    /// retry advice if other requests use too much of it.
    pub(crate) fn add(&self, bytes: u64) -> Result<()> {
        let mut held = self.held.lock();
        let missing = held.count(bytes);
        if missing == 0 {
            return Ok(());
        }
        let max = self.budget.max();
        if held.used > max {
            return Err(Error::invalid(format!(
                "the points of the answer take more than the {max} bytes of --request-memory; request fewer points, \
                 or less of each"
            )));
        }
        let reservation = held.reservation.get_or_insert_with(|| self.budget.empty());
        reservation.grow(missing)
    }

    /// Counts `bytes` more of a page. Returns false if they are not free beside the part for other
    /// requests. This is not counted as a refused request.
    pub(crate) fn add_if_free(&self, bytes: u64) -> bool {
        let mut held = self.held.lock();
        let missing = held.count(bytes);
        if missing == 0 {
            return true;
        }
        let max = self.budget.max();
        if self.budget.used().saturating_add(missing) > max - max / OTHERS_SHARE {
            return false;
        }
        let reservation = held.reservation.get_or_insert_with(|| self.budget.empty());
        reservation.grow_if_free(missing)
    }

    /// Ends the count, because the points were dropped.
    pub(crate) fn release(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        drop(held);
    }
}

/// Returns the memory of a point, in bytes.
pub(crate) fn record_bytes(record: &PointRecord) -> u64 {
    let vector = match &record.vector {
        None => 0,
        Some(Vector::Plain(values)) => size_of_val(values.as_slice()),
        Some(Vector::Named(vectors)) => vectors
            .iter()
            .map(|(name, values)| {
                size_of::<(String, Vec<f32>)>() + name.len() + size_of_val(values.as_slice())
            })
            .sum(),
    };
    let payload = record.payload.as_ref().map_or(0, members_bytes);
    (size_of::<PointRecord>() + vector + payload) as u64
}

fn members_bytes(members: &Map<String, Value>) -> usize {
    if members.is_empty() {
        return 0;
    }
    let nodes = 1 + members.len() / NODE_MEMBERS_MIN;
    let parts = members.iter().map(|(name, value)| name.len() + value_bytes(value));
    nodes * NODE_BYTES + parts.sum::<usize>()
}

/// Returns the number of bytes of a value besides the value itself.
fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => {
            size_of_val(list.as_slice()) + list.iter().map(value_bytes).sum::<usize>()
        }
        Value::Object(members) => members_bytes(members),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn a_large_response_holds_request_memory() {
        let budget = ByteBudget::new(1 << 20, Arc::default());
        let memory = ResponseMemory::new(&budget);
        memory.add(FREE_BYTES).unwrap();
        assert_eq!(budget.used(), 0, "a small response is not counted");
        memory.add(100 << 10).unwrap();
        assert_eq!(budget.used(), 100 << 10);
        memory.add(1).unwrap();
        assert_eq!(budget.used(), (100 << 10) + STEP_BYTES);
        memory.release();
        assert_eq!(budget.used(), 0);
        let others = budget.reserve(1 << 20).unwrap();
        let refused = memory.add(FREE_BYTES + 1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        assert!(refused.retry_after().is_some());
        drop(others);
        memory.release();
        let refused = memory.add((1 << 20) + 1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "it could never fit");
    }

    #[test]
    fn small_payloads_count_their_nodes() {
        let record = |payload: Value| PointRecord {
            id: search::points::PointId::Number(1),
            payload: payload.as_object().cloned(),
            vector: None,
            order_value: None,
        };
        let empty = record_bytes(&record(serde_json::json!({})));
        let one = record_bytes(&record(serde_json::json!({ "a": 1 })));
        assert_eq!(one, empty + NODE_BYTES as u64 + 1);
    }
}
