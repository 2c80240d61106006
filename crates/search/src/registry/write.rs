//! Changes of a collection's points. Each change runs under one lock, so it modifies the points
//! that it read. The lock is released before the wait for the log, so threads that write at the
//! same time share one sync.

use std::collections::HashMap;

use base::{Error, ErrorKind, Result};

use super::named::NamedCollection;
use crate::collection::{Applied, IDS_MAX, IdList, PointParts, begin_change, keep_long_filters};
use crate::filter::Filter;
use crate::ingest::{Op, PointRef};
use crate::points::{self, NewPoint, PayloadChange, PointId, PointSelection};

/// Points per lock of a payload change, a conditional write or a delete by filter. Other writers
/// get their turn in between.
pub(super) const CHUNK: usize = 256;

/// Points that matched a filter when they were looked up.
#[derive(Clone, Debug)]
pub struct MatchingPoints {
    ids: Vec<u64>,
    /// Generation of the collection before the lookup.
    generation: u64,
}

impl MatchingPoints {
    /// Returns their internal ids.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }
}

impl NamedCollection {
    /// Adds points or replaces the points of their ids, with one sync of the log. Durable when this
    /// returns. Not a transaction. After an error or a crash, only some may be written.
    ///
    /// # Errors
    /// As [`crate::collection::Collection::upsert`]. `InvalidArgument` for a payload with the
    /// reserved key. `AlreadyExists` for a UUID whose hash belongs to another point. `NotFound` if
    /// the collection was removed.
    pub fn upsert(&self, new: &[NewPoint<'_>]) -> Result<()> {
        self.collection().throttle();
        let payloads: Vec<Vec<u8>> = new
            .iter()
            .map(|point| points::encode(point.id, point.payload))
            .collect::<Result<_>>()?;
        let ops: Vec<Op<'_>> = new
            .iter()
            .zip(&payloads)
            .map(|(point, payload)| {
                let NewPoint { id, embedding, record, .. } = *point;
                Op::Upsert(PointRef { id: self.internal(&id), embedding, record, payload })
            })
            .collect();
        let ids: Vec<PointId> = new.iter().map(|point| point.id).collect();
        let applied = {
            let _changes = self.lock_changes()?;
            self.check_hashes(&ids)?;
            let applied = self.collection().apply(&ops);
            self.changed();
            applied?
        };
        applied.commit()
    }

    /// Deletes the points of `ids` and returns how many existed. Durable when this returns.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`].
    pub fn delete(&self, ids: &[PointId]) -> Result<u64> {
        let (applied, count) = {
            let _changes = self.lock_changes()?;
            let mut existing = Vec::new();
            for (id, found) in ids.iter().zip(self.get_parts(ids, PointParts::NONE)) {
                match found {
                    // A UUID of another point with the same hash, or no point.
                    Ok(None) => {}
                    Ok(Some(_)) => existing.push(self.internal(id)),
                    // A point that cannot be read can still be deleted.
                    Err(error) if error.kind() == ErrorKind::DataLoss => {
                        existing.push(self.internal(id));
                    }
                    Err(error) => return Err(error),
                }
            }
            // A request may name a point twice.
            existing.sort_unstable();
            existing.dedup();
            let ops: Vec<Op<'_>> = existing.into_iter().map(Op::Delete).collect();
            let applied = self.collection().apply(&ops);
            self.changed();
            (self.with_seen(applied?, ops.len() < ids.len()), ops.len() as u64)
        };
        applied.commit()?;
        Ok(count)
    }

    /// Deletes the points that match `filter` and returns their number. Durable when this returns.
    /// Points added meanwhile may stay.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`]. `InvalidArgument` for an invalid filter. `Unavailable` while
    /// segments are being opened, and `DataLoss` if data cannot be read, because matching points
    /// would stay. `DeadlineExceeded` after the deadline of [`crate::collection::until`]. Nothing
    /// is deleted then. A deadline that passes later does not end the deletion.
    pub fn delete_where(&self, filter: &Filter) -> Result<u64> {
        self.each_matching(filter, |points| Ok(self.delete_matching(points, filter)?.len() as u64))
    }

    /// Calls `change` with the points that match `filter`, in chunks, and returns the sum of its
    /// results. Points added meanwhile may be left out.
    ///
    /// # Errors
    /// The errors of `change`. Otherwise as [`NamedCollection::delete_where`].
    pub fn each_matching(
        &self,
        filter: &Filter,
        mut change: impl FnMut(&MatchingPoints) -> Result<u64>,
    ) -> Result<u64> {
        keep_long_filters(|| {
            let mut from = 0;
            let mut count = 0;
            loop {
                let generation = self.generation();
                // Reading payloads can take minutes, so other changes continue meanwhile.
                let list = self.all_from(from, filter)?;
                begin_change()?;
                let last = list.ids.last().copied().filter(|_| list.more);
                count += change(&MatchingPoints { ids: list.ids, generation })?;
                match last.and_then(|last| last.checked_add(1)) {
                    Some(after) => from = after,
                    None => {
                        // A change that is not durable yet may be why other points do not match.
                        self.commit_visible()?;
                        return Ok(count);
                    }
                }
            }
        })
    }

    /// Waits until all changes that readers see now are durable. Called before an answer that
    /// promises the state of points that the request has found and not changed.
    ///
    /// # Errors
    /// The error of the medium. An earlier change that has returned this error may be lost.
    pub fn commit_visible(&self) -> Result<()> {
        self.collection().visible().commit()
    }

    /// Returns `applied`, or all changes that readers see if the request has left some points as
    /// they are. A change that is not durable yet may be the reason.
    pub(super) fn with_seen(&self, applied: Applied, has_left_some: bool) -> Applied {
        if has_left_some { self.collection().visible() } else { applied }
    }

    /// Deletes the points that still match `filter`, and returns their internal ids. Durable when
    /// this returns.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`].
    pub fn delete_matching(&self, points: &MatchingPoints, filter: &Filter) -> Result<Vec<u64>> {
        let (applied, ids) = {
            let _changes = self.lock_changes()?;
            let ids = if self.generation() == points.generation {
                points.ids.clone()
            } else {
                self.still_matching(&points.ids, filter)?
            };
            let ops: Vec<Op<'_>> = ids.iter().map(|&id| Op::Delete(id)).collect();
            let applied = self.collection().apply(&ops);
            self.changed();
            (applied?, ids)
        };
        applied.commit()?;
        Ok(ids)
    }

    /// Returns the ids among `ids` whose points match `filter` now. A point that cannot be read
    /// still counts as matching, because it matched before.
    fn still_matching(&self, ids: &[u64], filter: &Filter) -> Result<Vec<u64>> {
        let mut matching = Vec::new();
        for (&id, point) in ids.iter().zip(self.collection().points(ids, PointParts::PAYLOAD)) {
            match point {
                Ok(Some(point)) => {
                    let value = serde_json::from_slice(&point.payload).unwrap_or_default();
                    matching.extend(filter.matches(id, &value).then_some(id));
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::DataLoss => matching.push(id),
                Err(error) => return Err(error),
            }
        }
        Ok(matching)
    }

    /// Changes payloads and returns the number of points. Durable when this returns. Each point
    /// changes as a whole, so no change of another caller is lost, and no half change is visible.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`]. `TooLarge` for a payload that would become too large, after
    /// which earlier points are changed. With a filter also as [`NamedCollection::delete_where`].
    pub fn change_payload(
        &self,
        selection: &PointSelection,
        change: &PayloadChange,
    ) -> Result<u64> {
        change.check()?;
        match selection {
            PointSelection::Ids(ids) => {
                let mut count = 0;
                for chunk in ids.chunks(CHUNK) {
                    let internal: Vec<u64> = chunk.iter().map(|id| self.internal(id)).collect();
                    count += self.change_chunk(&internal, Some(chunk), None, change)?;
                }
                Ok(count)
            }
            PointSelection::Filter(filter) => {
                let chunk = |points: &MatchingPoints| {
                    self.change_chunk(points.ids(), None, Some(filter), change)
                };
                self.each_matching(filter, chunk)
            }
        }
    }

    /// Returns the first ids from `from` on that match `filter`, for a change of all of them.
    fn all_from(&self, from: u64, filter: &Filter) -> Result<IdList> {
        let list = self.collection().ids_from(from, CHUNK, Some(filter))?;
        match list.unseen {
            Some(error) => Err(error.context("a change by filter would leave some points out")),
            None => Ok(list),
        }
    }

    /// Changes the payloads of some points. `ids` are the clients' ids, if known. Checks `filter`
    /// again, because a point may have changed since it was chosen.
    fn change_chunk(
        &self,
        internal: &[u64],
        ids: Option<&[PointId]>,
        filter: Option<&Filter>,
        change: &PayloadChange,
    ) -> Result<u64> {
        self.collection().throttle();
        let (applied, count) = {
            let _changes = self.lock_changes()?;
            let mut changed = Vec::new();
            for (at, point) in
                self.collection().points(internal, PointParts::ALL).into_iter().enumerate()
            {
                let Some(mut point) = point? else { continue };
                let (id, mut payload) = points::decode(point.id, &point.payload)?;
                let is_other = ids.and_then(|ids| ids.get(at)).is_some_and(|wanted| *wanted != id);
                let fits = |filter: &Filter| match serde_json::from_slice(&point.payload) {
                    Ok(value) => filter.matches(point.id, &value),
                    Err(_) => filter.matches(point.id, &serde_json::Value::Null),
                };
                if is_other || !filter.is_none_or(fits) {
                    continue;
                }
                points::apply(change, &mut payload)?;
                point.payload = points::encode(id, &payload)?;
                changed.push(point);
            }
            let ops: Vec<Op<'_>> = changed
                .iter()
                .map(|point| {
                    let embedding = &point.embedding;
                    let record = &point.record;
                    let payload = &point.payload;
                    Op::Upsert(PointRef { id: point.id, embedding, record, payload })
                })
                .collect();
            let applied = self.collection().apply(&ops);
            self.changed();
            (self.with_seen(applied?, ops.len() < internal.len()), ops.len() as u64)
        };
        applied.commit()?;
        Ok(count)
    }

    /// Refuses an id whose internal id belongs to another id, among `ids` or the stored points.
    pub(super) fn check_hashes(&self, ids: &[PointId]) -> Result<()> {
        let mut seen: HashMap<u64, PointId> = HashMap::new();
        let taken = |id: &PointId, by: &PointId| {
            let message = format!(
                "point {id} has the hash of point {by}, so both cannot be in one collection; give it another id"
            );
            Error::new(ErrorKind::AlreadyExists, message)
        };
        for id in ids.iter().filter(|id| id.is_in_payload()) {
            let other = *seen.entry(self.internal(id)).or_insert(*id);
            if other != *id {
                return Err(taken(id, &other));
            }
        }
        let internal: Vec<u64> = seen.keys().copied().collect();
        for (at, found) in internal.iter().zip(self.resolve(&internal, PointParts::NONE)) {
            match (found, seen.get(at)) {
                (Ok(Some(point)), Some(id)) if point.id != *id => return Err(taken(id, &point.id)),
                // A lost point cannot be compared, and must not keep new points out forever.
                (Err(error), _) if error.kind() != ErrorKind::DataLoss => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

const _: () = assert!(CHUNK < IDS_MAX);

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use coarse::Metric;
    use os::Rate;
    use storage::{FaultMedium, FaultPlan, UringMedium};

    use super::super::core::tests::small_core;
    use super::super::files::CollectionSettings;
    use super::super::named::CollectionParts;
    use super::*;
    use crate::budget::MemoryBudget;
    use crate::collection::{Collection, CollectionOptions, Resources, until};
    use crate::filter::{Condition, CountRange, Match};
    use crate::points::{UpsertCondition, UpsertMode, uuid_hash};
    use crate::rerank::SharedCaches;

    /// Returns a collection, and its disk, which a test can fill.
    fn on_disk(directory: &Path) -> (NamedCollection, Arc<FaultMedium>) {
        let files = Arc::new(UringMedium::plain(directory.to_owned()).unwrap());
        let medium = Arc::new(FaultMedium::new(files, FaultPlan::default()).unwrap());
        let budget = MemoryBudget::new(64 << 20);
        let resources = Resources::new(budget, 1 << 20, Rate::unlimited()).unwrap();
        let options = CollectionOptions::new(2, Metric::L2);
        let options = CollectionOptions { disk_reserve: Some(0), ..options };
        let caches = Arc::new(SharedCaches::new(0, 512));
        let collection = Collection::open(medium.clone(), options, &resources, caches).unwrap();
        let parts = CollectionParts {
            directory: directory.to_owned(),
            points: "points-1".to_owned(),
            settings: CollectionSettings::new(2, Metric::L2),
            collection,
            hash: uuid_hash,
            serial: 1,
        };
        (NamedCollection::new("a", parts), medium)
    }

    /// The log fails after a change is in memory, where a second request finds it.
    #[test]
    fn a_repeated_change_is_not_acknowledged_before_it_is_durable() {
        let directory = tempfile::tempdir().unwrap();
        let (named, disk) = on_disk(directory.path());
        let full = |changed: Result<u64>| {
            assert_eq!(changed.map_err(|error| error.kind()), Err(ErrorKind::StorageFull));
        };
        let payload = serde_json::Map::new();
        let id = PointId::Number(1);
        let new = [NewPoint { id, embedding: &[1.0, 0.0], record: &[], payload: &payload }];
        let all = Filter::default();
        for by_filter in [false, true] {
            let delete = || if by_filter { named.delete_where(&all) } else { named.delete(&[id]) };
            named.upsert(&new).unwrap();
            disk.set_space(Some(0));
            full(delete());
            assert!(named.get(&id).unwrap().is_none());
            full(delete());
            disk.set_space(None);
            named.collection().flush().unwrap();
            assert_eq!(delete(), Ok(0));
        }
        let condition = UpsertCondition { mode: UpsertMode::InsertOnly, filter: None };
        let insert = || named.upsert_if(&new, &condition).map(|()| 1);
        disk.set_space(Some(0));
        full(insert());
        full(insert());
        full(named.try_upsert_if(&new, |_, stored| stored.is_none()).map(|()| 1));
    }

    #[test]
    fn a_refusal_names_the_uuid_of_its_point() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = serde_json::json!({"text": "x".repeat(70_000)});
        let payload = payload.as_object().cloned().unwrap();
        for id in ["00000000-0000-0000-0000-000000000007", "7"] {
            let embedding = &[1.0, 0.0];
            let new =
                NewPoint { id: id.parse().unwrap(), embedding, record: &[], payload: &payload };
            let error = named.upsert(&[new]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            let wanted = format!("point {id}: its payload has ");
            assert!(error.message().starts_with(&wanted), "{error}");
        }
    }

    #[test]
    fn a_point_that_is_named_twice_is_deleted_once() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = serde_json::Map::new();
        let id = PointId::Number(1);
        let embedding = &[1.0, 0.0];
        named.upsert(&[NewPoint { id, embedding, record: &[], payload: &payload }]).unwrap();
        assert_eq!(named.delete(&[id, PointId::Number(2), id]), Ok(1));
        assert_eq!(named.collection().count(), 0);
    }

    #[test]
    fn all_numbers_of_64_bits_are_ids() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = serde_json::json!({"n": 1}).as_object().cloned().unwrap();
        let ids = [7, 1 << 63, u64::MAX].map(PointId::Number);
        let point = |id| NewPoint { id, embedding: &[1.0, 0.0], record: &[], payload: &payload };
        named.upsert(&ids.map(point)).unwrap();
        for _ in 0..2 {
            let page = named.scroll(None, 9, None, PointParts::PAYLOAD).unwrap();
            assert_eq!((page.points.len(), page.next), (3, None));
            for (found, id) in page.points.iter().zip(ids) {
                assert_eq!((found.id, &found.payload), (id, &payload));
                assert_eq!(named.external(id.internal()).unwrap(), id);
            }
            named.collection().flush().unwrap();
        }
        assert_eq!(named.delete(&ids[1..]), Ok(2));
        assert!(named.get(&ids[2]).unwrap().is_none() && named.get(&ids[0]).unwrap().is_some());
    }

    #[test]
    fn the_filter_of_a_delete_is_evaluated_without_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = serde_json::json!({"n": 1}).as_object().cloned().unwrap();
        for id in 0..3 {
            let (id, embedding) = (PointId::Number(id), &[1.0, 0.0]);
            named.upsert(&[NewPoint { id, embedding, record: &[], payload: &payload }]).unwrap();
        }
        named.collection().flush().unwrap();
        // Numbers of values have no index.
        let range = CountRange { gte: Some(1), ..CountRange::default() };
        let must = vec![Condition::ValuesCount { key: "n".into(), range }];
        let filter = Filter { must, ..Filter::default() };
        let held = named.lock_changes().unwrap();
        std::thread::scope(|scope| {
            let deleting = scope.spawn(|| named.delete_where(&filter).unwrap());
            let until = Instant::now() + Duration::from_secs(60);
            while core.resources.filter_stats().scanned == 0 {
                assert!(Instant::now() < until, "it waits for the lock");
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(held);
            assert_eq!(deleting.join().unwrap(), 3);
        });
    }

    #[test]
    fn a_late_write_by_filter_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = serde_json::json!({"n": 1}).as_object().cloned().unwrap();
        let (id, embedding) = (PointId::Number(1), &[1.0, 0.0]);
        named.upsert(&[NewPoint { id, embedding, record: &[], payload: &payload }]).unwrap();
        named.collection().flush().unwrap();
        let range = CountRange { gte: Some(1), ..CountRange::default() };
        let must = vec![Condition::ValuesCount { key: "n".into(), range }];
        let reading = Filter { must, ..Filter::default() };
        // The second filter reads no payloads.
        for filter in [reading, Filter::default()] {
            let delete = |deadline| until(deadline, || named.delete_where(&filter));
            assert_eq!(delete(Instant::now()).unwrap_err().kind(), ErrorKind::DeadlineExceeded);
            let selection = PointSelection::Filter(filter.clone());
            let clear = |deadline| {
                until(deadline, || named.change_payload(&selection, &PayloadChange::Clear))
            };
            assert_eq!(clear(Instant::now()).unwrap_err().kind(), ErrorKind::DeadlineExceeded);
            let point = named.get(&id).unwrap().unwrap();
            assert_eq!(point.payload, payload);
        }
        let filter = Filter::default();
        let deadline = Instant::now() + Duration::from_secs(3600);
        assert_eq!(until(deadline, || named.delete_where(&filter)), Ok(1));
    }

    #[test]
    fn a_long_filter_of_a_write_is_evaluated_once() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = serde_json::json!({"n": 1}).as_object().cloned().unwrap();
        let points = 3 * CHUNK as u64;
        let new = |id| NewPoint {
            id: PointId::Number(id),
            embedding: &[1.0, 0.0],
            record: &[],
            payload: &payload,
        };
        named.upsert(&(0..points).map(new).collect::<Vec<_>>()).unwrap();
        named.collection().flush().unwrap();
        // Longer than filters that are cached.
        let matching =
            Match::Any((0..4000).map(serde_json::Value::from).collect::<Vec<_>>().into());
        // Numbers of values have no index.
        let range = CountRange { gte: Some(1), ..CountRange::default() };
        let must = vec![
            Condition::Match { key: "n".into(), matching },
            Condition::ValuesCount { key: "n".into(), range },
        ];
        let filter = Filter { must, ..Filter::default() };
        assert_eq!(named.delete_where(&filter).unwrap(), points);
        let stats = core.resources.filter_stats();
        assert_eq!(stats.scanned + stats.verified, 1);
    }
}
