//! Changing a collection's points. Every change is made under one lock, so that what was looked at is what is changed;
//! the wait for the log is not, so that threads which write at the same time share one flush.

use std::collections::HashMap;

use base::{Error, ErrorKind, Result};

use super::named::NamedCollection;
use crate::collection::{Applied, Collection, IDS_MAX, IdList, PointParts};
use crate::filter::Filter;
use crate::ingest::{Op, PointRef};
use crate::points::{self, NewPoint, PayloadChange, PointId, PointSelection};

/// Points that one payload change or removal by filter holds the lock for. Others get their turn in between.
const CHUNK: usize = 256;

impl NamedCollection {
    /// Adds points, or replaces those of their ids, with one flush for all. Once this returns they survive a loss of
    /// power. They are no transaction: after an error or a crash some may be there without the others.
    ///
    /// # Errors
    /// As [`crate::collection::Collection::upsert`]; `InvalidArgument` for a payload with the reserved key,
    /// `FailedPrecondition` for a UUID whose hash another point's UUID has, `NotFound` where the collection was removed.
    pub fn upsert(&self, new: &[NewPoint<'_>]) -> Result<()> {
        self.collection().throttle();
        self.upsert_by(new, Collection::apply)
    }

    /// The same for callers whom nobody waits for, as [`Collection::try_apply`].
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`].
    pub fn try_upsert(&self, new: &[NewPoint<'_>]) -> Result<()> {
        self.upsert_by(new, Collection::try_apply)
    }

    fn upsert_by(
        &self,
        new: &[NewPoint<'_>],
        apply: impl FnOnce(&Collection, &[Op<'_>]) -> Result<Applied>,
    ) -> Result<()> {
        let payloads: Vec<Vec<u8>> =
            new.iter().map(|point| points::encode(point.id, point.payload)).collect::<Result<_>>()?;
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
            let applied = apply(self.collection(), &ops);
            self.changed();
            applied?
        };
        applied.commit()
    }

    /// Removes the points of ids, and tells how many there were; durable once this returns.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`].
    pub fn delete(&self, ids: &[PointId]) -> Result<u64> {
        let (applied, count) = {
            let _changes = self.lock_changes()?;
            let mut ops = Vec::new();
            for (id, found) in ids.iter().zip(self.get_parts(ids, PointParts::NONE)) {
                match found {
                    // A UUID of another point's hash, or nothing.
                    Ok(None) => {}
                    Ok(Some(_)) => ops.push(Op::Delete(self.internal(id))),
                    // What cannot be read can still be removed.
                    Err(error) if error.kind() == ErrorKind::DataLoss => {
                        ops.push(Op::Delete(self.internal(id)));
                    }
                    Err(error) => return Err(error),
                }
            }
            let applied = self.collection().apply(&ops);
            self.changed();
            (applied?, ops.len() as u64)
        };
        applied.commit()?;
        Ok(count)
    }

    /// Removes the points that `filter` allows, and tells how many; durable once this returns. Points that are added
    /// meanwhile may stay.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`], and `InvalidArgument` for a filter that is too large. `Unavailable` while segments are being
    /// opened, and `DataLoss` where something cannot be read: points that the filter allows would stay. Nothing is removed
    /// then.
    pub fn delete_where(&self, filter: &Filter) -> Result<u64> {
        let mut from = 0;
        let mut count = 0;
        loop {
            let (applied, more, last) = {
                let _changes = self.lock_changes()?;
                let list = self.all_from(from, filter)?;
                let ops: Vec<Op<'_>> = list.ids.iter().map(|&id| Op::Delete(id)).collect();
                count += ops.len() as u64;
                let applied = self.collection().apply(&ops);
                self.changed();
                (applied?, list.more, list.ids.last().copied())
            };
            applied.commit()?;
            match last.and_then(|last| last.checked_add(1)).filter(|_| more) {
                Some(after) => from = after,
                None => return Ok(count),
            }
        }
    }

    /// Changes payloads, and tells of how many points; durable once this returns. Each point is changed as a whole: no
    /// change of another caller is lost, and none is seen half.
    ///
    /// # Errors
    /// As [`NamedCollection::upsert`]; `TooLarge` where a payload would become that; points before it are changed then. With a filter
    /// also those of [`NamedCollection::delete_where`].
    pub fn change_payload(&self, selection: &PointSelection, change: &PayloadChange) -> Result<u64> {
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
                let mut from = 0;
                let mut count = 0;
                loop {
                    let list = self.all_from(from, filter)?;
                    count += self.change_chunk(&list.ids, None, Some(filter), change)?;
                    match list.ids.last().and_then(|last| last.checked_add(1)).filter(|_| list.more) {
                        Some(after) => from = after,
                        None => return Ok(count),
                    }
                }
            }
        }
    }

    /// The first ids from `from` on that `filter` allows, for a change that concerns all of them.
    fn all_from(&self, from: u64, filter: &Filter) -> Result<IdList> {
        let list = self.collection().ids_from(from, CHUNK, Some(filter))?;
        match list.unseen {
            Some(error) => Err(error.context("a change by filter would leave some points out")),
            None => Ok(list),
        }
    }

    /// Changes the payloads of some points. `ids` are what clients call them by, where that is known; `filter` is looked
    /// at again, because a point may have changed since it was chosen.
    fn change_chunk(
        &self,
        internal: &[u64],
        ids: Option<&[PointId]>,
        filter: Option<&Filter>,
        change: &PayloadChange,
    ) -> Result<u64> {
        self.collection().throttle();
        let applied = {
            let _changes = self.lock_changes()?;
            let mut changed = Vec::new();
            for (at, point) in self.collection().points(internal, PointParts::ALL).into_iter().enumerate() {
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
            (applied?, ops.len() as u64)
        };
        applied.0.commit()?;
        Ok(applied.1)
    }

    /// Refuses a UUID whose hash belongs to another one, among `ids` or among the points there are.
    fn check_hashes(&self, ids: &[PointId]) -> Result<()> {
        let mut seen: HashMap<u64, PointId> = HashMap::new();
        let taken = |id: &PointId, by: &PointId| {
            Error::precondition(format!(
                "point {id} has the hash of point {by}, so both cannot be in one collection; give it another UUID"
            ))
        };
        for id in ids.iter().filter(|id| matches!(id, PointId::Uuid(_))) {
            let other = *seen.entry(self.internal(id)).or_insert(*id);
            if other != *id {
                return Err(taken(id, &other));
            }
        }
        let internal: Vec<u64> = seen.keys().copied().collect();
        for (at, found) in internal.iter().zip(self.resolve(&internal, PointParts::NONE)) {
            match (found, seen.get(at)) {
                (Ok(Some(point)), Some(id)) if point.id != *id => return Err(taken(id, &point.id)),
                // What is lost cannot be told from it, and must not keep new points out for ever.
                (Err(error), _) if error.kind() != ErrorKind::DataLoss => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

const _: () = assert!(CHUNK < IDS_MAX);
