//! Changes of points that a filter chooses. The points are looked up, and changed by their ids.
//!
//! Only operations by ids go to the log: after a restart a holder may make some of them twice. By
//! ids it ends with the same points. A filter could match points then that it did not match the
//! first time. Points that are added meanwhile may stay as they are. A point that another client
//! changes between the lookup and the change is changed too, even if it then does not match.

use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use cluster_node::{CollectionRecord, ShardKey};
use search::points::PointId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::call::RootContext;
use super::fan_out::read_shards;
use super::payload_sizes;
use super::removed_originals::RemovedOriginals;
use super::shard_read::{RETRY_AFTER, ReadBody, ReadPriority, ShardRead};
use super::split::raw;
use super::split_changes::FilterChange;
use super::state::RootState;
use super::write::{ShardWrite, check_ids, run_all};

/// Number of points of one page of a shard, and of one operation.
const PAGE_POINTS: usize = 1000;
/// Number of points of one page if their payloads are read too. They take at most 16 MiB.
const PAGE_PAYLOADS: usize = 256;

/// Makes a change of the points that its filter chooses. Returns the largest number of an entry
/// that has a part of the change; 0 if the filter chooses no point.
///
/// # Errors
/// The first error of a shard, after which some points are changed and others are not; as
/// [`RootState::check_current`].
pub(super) async fn make(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    change: FilterChange,
) -> Result<u64> {
    // A removed collection may have no point that matches, and a newer one of its name some.
    context.state.check_current(record, context.deadline).await?;
    let change = Arc::new(change);
    let writes = (0..record.shards).map(|shard| {
        let write = FilterWrite {
            state: context.state.clone(),
            record: record.clone(),
            shard,
            deadline: context.deadline,
            change: change.clone(),
        };
        async move { write.run().await }
    });
    run_all(writes).await
}

/// A change of the points of one shard.
struct FilterWrite {
    state: Arc<RootState>,
    record: Arc<CollectionRecord>,
    shard: u32,
    deadline: Instant,
    change: Arc<FilterChange>,
}

/// Body of the request for a page.
#[derive(Serialize)]
struct PageBody<'a> {
    filter: &'a RawValue,
    limit: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<PointId>,
    with_payload: bool,
    with_vector: bool,
}

/// Points that the filter chooses, in the order of their ids.
#[derive(Deserialize)]
struct PointsPage {
    points: Vec<PagePoint>,
    next_page_offset: Option<PointId>,
    /// True if points may be missing.
    #[serde(default)]
    partial: bool,
}

#[derive(Deserialize)]
struct PagePoint {
    id: PointId,
    payload: Option<Map<String, Value>>,
}

impl FilterWrite {
    /// Changes the points of the shard that match the filter, page by page. Returns the log entry
    /// of the last change, or 0 if no point matches.
    async fn run(&self) -> Result<u64> {
        let write = ShardWrite {
            state: self.state.clone(),
            key: ShardKey::new(&self.record.id, self.shard),
            deadline: self.deadline,
        };
        let mut entry = 0;
        let mut offset = None;
        loop {
            let made = entry > 0;
            let partly = |error: Error| {
                if made {
                    error.context("some of the points are changed already; send it again")
                } else {
                    error
                }
            };
            let page = self.page(offset).await.map_err(partly)?;
            let ids: Vec<PointId> = page.points.iter().map(|point| point.id).collect();
            let originals = self.originals(&page.points);
            if !ids.is_empty() {
                check_ids(&self.state, &ids).map_err(partly)?;
                let operation = self.change.of(&ids)?;
                let points = page.points.into_iter();
                let payloads = points.map(|point| (point.id, point.payload.unwrap_or_default()));
                payload_sizes::check_page(&self.record, &operation, payloads.collect())
                    .map_err(partly)?;
                entry = write.run(&[operation]).await.map_err(partly)?;
                originals.remove(&self.state, &self.record).await;
            }
            match page.next_page_offset {
                Some(next) => offset = Some(next),
                None => return Ok(entry),
            }
        }
    }

    fn removes_originals(&self) -> bool {
        self.change.deletes() && RemovedOriginals::are_removed(&self.state, &self.record)
    }

    /// Returns the originals to remove with these points.
    fn originals(&self, points: &[PagePoint]) -> RemovedOriginals {
        let mut originals = RemovedOriginals::default();
        for point in points.iter().filter(|_| self.removes_originals()) {
            if let Some(payload) = &point.payload {
                originals.add(point.id, payload);
            }
        }
        originals
    }

    /// Reads a page from a holder that has applied the whole log.
    async fn page(&self, offset: Option<PointId>) -> Result<PointsPage> {
        let filter = &*self.change.filter;
        let holds_images = self.record.images.is_some();
        let with_payload = self.change.needs_payloads(holds_images) || self.removes_originals();
        let with_vector = false;
        let limit = if with_payload { PAGE_PAYLOADS } else { PAGE_POINTS };
        let body = PageBody { filter, limit, offset, with_payload, with_vector };
        let read = ShardRead {
            record: self.record.clone(),
            shards: vec![self.shard],
            path: "points/scroll",
            body: ReadBody::Same(raw(&body)?),
            deadline: self.deadline,
            strong: true,
            priority: ReadPriority::Client,
        };
        let answers = Box::pin(read_shards(&self.state, &read)).await?;
        answers.check(1.0)?;
        let missing = || Error::internal("a shard answered and has no result");
        let result = answers.results.get(&self.shard).ok_or_else(missing)?;
        let page: PointsPage = serde_json::from_str(result.get())
            .map_err(|error| Error::internal("a shard's page of points").caused_by(error))?;
        if page.partial {
            let shard = self.shard;
            return Err(Error::unavailable(format!(
                "shard {shard} cannot read all of its points now, so points that match would stay \
                 unchanged; try again"
            ))
            .with_retry_after(RETRY_AFTER));
        }
        Ok(page)
    }
}
