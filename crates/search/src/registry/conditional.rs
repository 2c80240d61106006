//! Writes that depend on the stored points: upserts under a condition, and new vectors of points
//! that exist. As in `write`, each reads and changes its points under one lock.

use std::collections::HashMap;

use base::Result;
use serde_json::{Map, Value};

use super::named::NamedCollection;
use super::write::CHUNK;
use crate::collection::PointParts;
use crate::filter::Filter;
use crate::ingest::{Op, PointRef, StoredPoint};
use crate::points::{self, NewPoint, PointId, UpsertCondition, VectorChange};

impl NamedCollection {
    /// Adds points or replaces the points of their ids, each if it meets `condition`. A later point
    /// of the same id is checked against the earlier one. Durable when this returns. Not a
    /// transaction: after an error some points may have been written.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`]. `DataLoss` or `Unavailable` if a stored point cannot be
    /// read.
    pub fn upsert_if(&self, new: &[NewPoint<'_>], condition: &UpsertCondition) -> Result<()> {
        if condition.is_always() {
            return self.upsert(new);
        }
        for chunk in new.chunks(CHUNK) {
            self.upsert_chunk_if(chunk, condition)?;
        }
        Ok(())
    }

    /// Writes those points of `new` whose stored payloads meet the condition. No other change comes
    /// in between.
    fn upsert_chunk_if(&self, new: &[NewPoint<'_>], condition: &UpsertCondition) -> Result<()> {
        let payloads: Vec<Vec<u8>> = new
            .iter()
            .map(|point| points::encode(point.id, point.payload))
            .collect::<Result<_>>()?;
        let internal: Vec<u64> = new.iter().map(|point| self.internal(&point.id)).collect();
        self.collection().throttle();
        let applied = {
            let _changes = self.lock_changes()?;
            let mut stored = self.stored_payloads(&internal)?;
            let mut ids = Vec::new();
            let mut ops = Vec::new();
            for ((point, payload), &id) in new.iter().zip(&payloads).zip(&internal) {
                // Another id has the same internal id.
                let before = stored.get(&id).filter(|(stored, _)| *stored == point.id);
                if !condition.permits(id, before.map(|(_, payload)| payload.as_slice())) {
                    continue;
                }
                let NewPoint { embedding, record, .. } = *point;
                ids.push(point.id);
                ops.push(Op::Upsert(PointRef { id, embedding, record, payload }));
                stored.insert(id, (point.id, payload.clone()));
            }
            self.check_hashes(&ids)?;
            let applied = self.collection().apply(&ops);
            self.changed();
            self.with_seen(applied?, ops.len() < new.len())
        };
        applied.commit()
    }

    /// Adds points or replaces the points of their ids. Writes each point only if `permits` returns
    /// true for its stored payload, or for `None` if there is none. No other change comes between
    /// the call of `permits` and the write. `new` has each id once. Never waits for room, as
    /// [`crate::collection::Collection::try_apply`], so it is for background callers. Durable when
    /// this returns. Not a transaction: after an error some points may have been written.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`]. `DataLoss` or `Unavailable` if a stored point cannot be
    /// read.
    pub fn try_upsert_if(
        &self,
        new: &[NewPoint<'_>],
        mut permits: impl FnMut(&NewPoint<'_>, Option<&Map<String, Value>>) -> bool,
    ) -> Result<()> {
        let payloads: Vec<Vec<u8>> = new
            .iter()
            .map(|point| points::encode(point.id, point.payload))
            .collect::<Result<_>>()?;
        let ids: Vec<PointId> = new.iter().map(|point| point.id).collect();
        let applied = {
            let _changes = self.lock_changes()?;
            let mut written = Vec::new();
            let mut ops = Vec::new();
            let stored = self.get_parts(&ids, PointParts::PAYLOAD);
            for ((point, payload), stored) in new.iter().zip(&payloads).zip(stored) {
                let stored = stored?;
                if !permits(point, stored.as_ref().map(|stored| &stored.payload)) {
                    continue;
                }
                let NewPoint { id, embedding, record, .. } = *point;
                written.push(id);
                ops.push(Op::Upsert(PointRef {
                    id: self.internal(&id),
                    embedding,
                    record,
                    payload,
                }));
            }
            if ops.is_empty() {
                self.collection().visible()
            } else {
                self.check_hashes(&written)?;
                let applied = self.collection().try_apply(&ops);
                self.changed();
                self.with_seen(applied?, ops.len() < new.len())
            }
        };
        applied.commit()
    }

    /// Returns the ids and stored payloads of the points of internal ids.
    fn stored_payloads(&self, internal: &[u64]) -> Result<HashMap<u64, (PointId, Vec<u8>)>> {
        let mut stored = HashMap::new();
        for point in self.collection().points(internal, PointParts::PAYLOAD) {
            let Some(point) = point? else { continue };
            let (id, _) = points::decode(point.id, &point.payload)?;
            stored.insert(point.id, (id, point.payload));
        }
        Ok(stored)
    }

    /// Replaces the vectors of points that exist and match `filter`. Payloads and records stay.
    /// Returns the first id without a point, after the other points are changed. Durable when this
    /// returns. Each point changes as a whole, so no payload change by another caller is lost.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`]. `DataLoss` or `Unavailable` if a stored point cannot be
    /// read. Earlier points are changed then.
    pub fn change_vectors(
        &self,
        changes: &[VectorChange<'_>],
        filter: Option<&Filter>,
    ) -> Result<Option<PointId>> {
        let mut missing = None;
        for chunk in changes.chunks(CHUNK) {
            let missing_here = self.change_vectors_chunk(chunk, filter)?;
            missing = missing.or(missing_here);
        }
        Ok(missing)
    }

    /// Changes the embeddings of the points that `filter` accepts. No other change comes in
    /// between. Returns the first id without a point.
    fn change_vectors_chunk(
        &self,
        changes: &[VectorChange<'_>],
        filter: Option<&Filter>,
    ) -> Result<Option<PointId>> {
        let internal: Vec<u64> = changes.iter().map(|change| self.internal(&change.id)).collect();
        let parts = PointParts { embedding: false, ..PointParts::ALL };
        let mut missing = None;
        self.collection().throttle();
        let applied = {
            let _changes = self.lock_changes()?;
            let mut chosen: Vec<(StoredPoint, &[f32])> = Vec::new();
            for (change, point) in changes.iter().zip(self.collection().points(&internal, parts)) {
                let point = of_id(point?, &change.id)?;
                let Some(point) = point else {
                    missing = missing.or(Some(change.id));
                    continue;
                };
                if filter.is_none_or(|filter| points::accepts(filter, point.id, &point.payload)) {
                    chosen.push((point, change.embedding));
                }
            }
            let ops: Vec<Op<'_>> = chosen
                .iter()
                .map(|(point, embedding)| {
                    let record = &point.record;
                    let payload = &point.payload;
                    Op::Upsert(PointRef { id: point.id, embedding, record, payload })
                })
                .collect();
            let applied = self.collection().apply(&ops);
            self.changed();
            self.with_seen(applied?, ops.len() < changes.len())
        };
        applied.commit()?;
        Ok(missing)
    }
}

/// Returns a stored point if it is the point of `id`, and not of a UUID with the same hash.
///
/// # Errors
/// `DataLoss` if the stored payload is damaged.
fn of_id(point: Option<StoredPoint>, id: &PointId) -> Result<Option<StoredPoint>> {
    let Some(point) = point else { return Ok(None) };
    let (stored, _) = points::decode(point.id, &point.payload)?;
    Ok((stored == *id).then_some(point))
}

#[cfg(test)]
mod tests {
    use coarse::Metric;
    use serde_json::json;

    use super::super::core::tests::small_core;
    use super::super::files::CollectionSettings;
    use super::*;
    use crate::filter::{Condition, Match};
    use crate::points::{PayloadChange, PointSelection, UpsertMode};

    const UUID: PointId = PointId::Uuid([9; 16]);

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    fn n_is(value: u64) -> Filter {
        let matching = Match::Value(json!(value));
        let must = vec![Condition::Match { key: "n".to_owned(), matching }];
        Filter { must, ..Filter::default() }
    }

    fn write(named: &NamedCollection, id: PointId, n: u64, condition: &UpsertCondition) {
        let payload = object(json!({ "n": n }));
        let embedding = &[n as f32, 1.0];
        let point = NewPoint { id, embedding, record: &[], payload: &payload };
        named.upsert_if(&[point], condition).unwrap();
    }

    fn n_of(named: &NamedCollection, id: PointId) -> Option<u64> {
        named.get(&id).unwrap().map(|point| point.payload["n"].as_u64().unwrap())
    }

    #[test]
    fn an_upsert_follows_its_condition_in_memory_and_in_segments() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let mode = |mode| UpsertCondition { mode, filter: None };
        let one = PointId::Number(1);
        for id in [one, UUID] {
            write(&named, id, 1, &mode(UpsertMode::UpdateOnly));
            assert_eq!(n_of(&named, id), None);
            write(&named, id, 2, &mode(UpsertMode::InsertOnly));
            write(&named, id, 3, &mode(UpsertMode::InsertOnly));
            assert_eq!(n_of(&named, id), Some(2));
            named.collection().flush().unwrap();
            write(&named, id, 4, &mode(UpsertMode::InsertOnly));
            assert_eq!(n_of(&named, id), Some(2));
            write(&named, id, 5, &mode(UpsertMode::UpdateOnly));
            assert_eq!(n_of(&named, id), Some(5));
            let filtered = UpsertCondition { filter: Some(n_is(5)), ..UpsertCondition::default() };
            write(&named, id, 6, &filtered);
            write(&named, id, 7, &filtered);
            assert_eq!(n_of(&named, id), Some(6));
        }
    }

    #[test]
    fn a_later_point_is_checked_against_the_earlier_one() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payloads = [1, 2, 3].map(|n| object(json!({ "n": n })));
        let id = PointId::Number(1);
        let embedding = &[1.0, 0.0];
        let points: Vec<NewPoint<'_>> = payloads
            .iter()
            .map(|payload| NewPoint { id, embedding, record: &[], payload })
            .collect();
        let insert = UpsertCondition { mode: UpsertMode::InsertOnly, filter: None };
        named.upsert_if(&points, &insert).unwrap();
        assert_eq!(n_of(&named, id), Some(1));
        let filtered = UpsertCondition { filter: Some(n_is(1)), ..UpsertCondition::default() };
        named.upsert_if(&points[1..], &filtered).unwrap();
        assert_eq!(n_of(&named, id), Some(2));
    }

    #[test]
    fn a_change_during_a_conditional_write_comes_after_it() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let own = object(json!({ "n": 1 }));
        let selection = PointSelection::Ids(vec![UUID]);
        let change = PayloadChange::Set { payload: object(json!({ "n": 2 })), key: None };
        let point = NewPoint { id: UUID, embedding: &[1.0, 0.0], record: &[], payload: &own };
        named.upsert(&[point]).unwrap();
        std::thread::scope(|scope| {
            let mut changed = None;
            let equal = |new: &NewPoint<'_>, stored: Option<&Map<String, Value>>| {
                changed = Some(scope.spawn(|| named.change_payload(&selection, &change).unwrap()));
                stored == Some(new.payload)
            };
            named.try_upsert_if(&[point], equal).unwrap();
            assert_eq!(changed.unwrap().join().unwrap(), 1);
        });
        assert_eq!(n_of(&named, UUID), Some(2));
        // The change came first.
        let equal =
            |new: &NewPoint<'_>, stored: Option<&Map<String, Value>>| stored == Some(new.payload);
        named.try_upsert_if(&[point], equal).unwrap();
        assert_eq!(n_of(&named, UUID), Some(2));
    }

    #[test]
    fn vectors_change_and_payloads_stay() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let always = UpsertCondition::default();
        write(&named, PointId::Number(1), 1, &always);
        write(&named, UUID, 2, &always);
        named.collection().flush().unwrap();
        write(&named, PointId::Number(3), 3, &always);
        let ids = [1, 3, 4].map(PointId::Number);
        let changes = [ids[2], ids[0], UUID, ids[1]];
        let changes = changes.map(|id| VectorChange { id, embedding: &[8.0, 9.0] });
        assert_eq!(named.change_vectors(&changes, None).unwrap(), Some(ids[2]));
        for (id, n) in [(ids[0], 1), (UUID, 2), (ids[1], 3)] {
            assert_eq!(named.get(&id).unwrap().unwrap().embedding, [8.0, 9.0]);
            assert_eq!(n_of(&named, id), Some(n));
        }
        let changes = [ids[0], ids[1]].map(|id| VectorChange { id, embedding: &[0.0, 1.0] });
        assert_eq!(named.change_vectors(&changes, Some(&n_is(3))).unwrap(), None);
        assert_eq!(named.get(&ids[0]).unwrap().unwrap().embedding, [8.0, 9.0]);
        assert_eq!(named.get(&ids[1]).unwrap().unwrap().embedding, [0.0, 1.0]);
    }

    #[test]
    fn vectors_and_payloads_change_at_the_same_time() {
        const CHANGES: u8 = 30;
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let id = PointId::Number(1);
        write(&named, id, 0, &UpsertCondition::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let selection = PointSelection::Ids(vec![id]);
                for n in 1..=CHANGES {
                    let change = PayloadChange::Overwrite(object(json!({ "n": n })));
                    assert_eq!(named.change_payload(&selection, &change).unwrap(), 1);
                }
            });
            for x in 1..=CHANGES {
                let embedding = [f32::from(x), 0.0];
                let change = VectorChange { id, embedding: &embedding };
                assert_eq!(named.change_vectors(&[change], None).unwrap(), None);
            }
        });
        assert_eq!(n_of(&named, id), Some(u64::from(CHANGES)));
        assert_eq!(named.get(&id).unwrap().unwrap().embedding, [f32::from(CHANGES), 0.0]);
    }
}
