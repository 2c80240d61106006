//! The rows that a clause allows, segment by segment, kept for the next query that asks the same.
//!
//! A segment's payloads never change, so what a clause allows of it holds for as long as the segment does; deletes are
//! taken away when a query needs it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use base::Result;
use serde_json::Value;

use super::inner::lock;
use crate::budget::{Budget, Reservation};
use crate::filter::{Clause, Filter};
use crate::ingest::Row;
use crate::segment::Segment;

/// Filters kept: those of some clauses, for each of many segments. The memory limit may allow fewer.
const FILTERS_MAX: usize = 1024;
/// Bytes of a clause whose filters are kept: what people ask for again is short.
const CLAUSE_BYTES_MAX: u64 = 16 << 10;
/// Clauses used last whose filters a new segment gets before it is searched.
const WARMED_MAX: usize = 8;

/// What a clause allows of one segment.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) filter: Filter,
    /// Rows whose payloads could not be read; they are not allowed.
    pub(super) lost: u32,
}

#[derive(Debug, Default)]
pub(super) struct Filters {
    /// The one used last comes last.
    kept: Mutex<VecDeque<Kept>>,
}

#[derive(Debug)]
struct Kept {
    segment: [u8; 16],
    /// Shared by those of all segments.
    clause: Arc<KeptClause>,
    selected: Arc<Selected>,
    /// The memory it takes.
    _held: Reservation,
}

/// A clause and the memory it takes.
#[derive(Debug)]
struct KeptClause {
    clause: Clause,
    _held: Reservation,
}

impl Filters {
    /// What `clause` allows of a segment. The first time every payload is read.
    pub(super) fn select(
        &self,
        segment: &Segment,
        clause: &Clause,
        budget: &Arc<Budget>,
    ) -> Result<Arc<Selected>> {
        let uuid = segment.uuid();
        {
            let mut kept = lock(&self.kept);
            let found = kept.iter().position(|kept| kept.segment == uuid && kept.clause.clause == *clause);
            if let Some(found) = found.and_then(|at| kept.remove(at)) {
                let selected = found.selected.clone();
                kept.push_back(found);
                return Ok(selected);
            }
        }
        let bytes = u64::from(segment.rows().div_ceil(64)) * 8;
        let held = budget.reserve(bytes, "a filter")?;
        let selected = Arc::new(read(segment, clause)?);
        // One with losses is not kept: the medium may do better next time.
        if selected.lost == 0 {
            self.keep(uuid, clause, selected.clone(), held, budget);
        }
        Ok(selected)
    }

    /// Keeps what a clause allows, where the clause is not too large and there is memory for it.
    fn keep(
        &self,
        segment: [u8; 16],
        clause: &Clause,
        selected: Arc<Selected>,
        held: Reservation,
        budget: &Arc<Budget>,
    ) {
        let bytes = clause.memory_bytes();
        if bytes > CLAUSE_BYTES_MAX {
            return;
        }
        let mut kept = lock(&self.kept);
        let same = kept.iter().map(|kept| &kept.clause).find(|kept| kept.clause == *clause).cloned();
        let clause = match same {
            Some(same) => same,
            None => {
                let Ok(held) = budget.reserve(bytes, "a filter's conditions") else { return };
                Arc::new(KeptClause { clause: clause.clone(), _held: held })
            }
        };
        if kept.len() >= FILTERS_MAX {
            kept.pop_front();
        }
        kept.push_back(Kept { segment, clause, selected, _held: held });
    }

    /// Makes the filters of the clauses used last for a segment that is about to be searched, so that no query has to
    /// read all its payloads. Where it fails, a query does it.
    pub(super) fn warm(&self, segment: &Segment, budget: &Arc<Budget>) {
        let mut clauses: Vec<Arc<KeptClause>> = Vec::new();
        for kept in lock(&self.kept).iter().rev() {
            if clauses.len() >= WARMED_MAX {
                break;
            }
            if !clauses.iter().any(|known| Arc::ptr_eq(known, &kept.clause)) {
                clauses.push(kept.clause.clone());
            }
        }
        for clause in &clauses {
            if let Err(error) = self.select(segment, &clause.clause, budget) {
                tracing::debug!(%error, "a filter is left to the next query");
                return;
            }
        }
    }

    /// Drops all that is kept, to make room.
    pub(super) fn clear(&self) {
        lock(&self.kept).clear();
    }
}

fn read(segment: &Segment, clause: &Clause) -> Result<Selected> {
    let mut filter = Filter::none(segment.rows());
    let mut unreadable = 0;
    let mut each = |row: u32, value: Option<Value>| match (segment.ids().id(row), value) {
        (Some(id), Some(value)) if clause.matches(id, &value) => filter.insert(row),
        (Some(_), Some(_)) => {}
        _ => unreadable += 1,
    };
    let lost = if clause.needs_payload() {
        segment.payloads(&mut |row, bytes| each(row, value_of(bytes)))?
    } else {
        (0..segment.rows()).for_each(|row| each(row, Some(Value::Null)));
        0
    };
    Ok(Selected { filter, lost: lost + unreadable })
}

/// A payload; `None` for what is not JSON.
pub(super) fn value_of(bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() { Some(Value::Null) } else { serde_json::from_slice(bytes).ok() }
}

/// Whether a clause allows a point that is not sealed yet.
pub(super) fn allows(clause: &Clause, row: &Row) -> bool {
    value_of(&row.payload).is_some_and(|value| clause.matches(row.id, &value))
}
