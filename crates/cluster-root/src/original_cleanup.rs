//! Removal of originals without a point. A node that is killed between the write of an original and
//! the write of its point leaves one. A client that disconnects at that moment does too.
//!
//! One node of the cluster reads the originals of all collections, a part of one collection in each
//! pass. An original is a candidate if it is old by the clock of the store and no point names it.
//! It is removed if a second strong read, at least an hour later, shows the same. A strong read
//! asks each node that serves the shard, because copies may differ after an upgrade. All originals
//! stay in case of doubt. There is doubt after an error, without the answer of a shard, and if a
//! copy of a shard is marked as damaged. There is doubt too if so many originals have no point that
//! points may be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_images::{ImagesState, OriginalUpload, original_in, original_key};
use base::{Error, Result};
use bytes::Bytes;
use cluster_node::{ClusterView, CollectionRecord, NodeInfo, ShardKey};
use search::points::PointId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::fan_out::read_shards;
use super::merge;
use super::read_memory::ReadMemory;
use super::removed_originals::upload_over;
use super::shard_read::{ReadBody, ReadPriority, ShardRead};
use super::split::{self, IdsBody};
use super::state::RootState;
use super::wire::{NodeReadBody, read_node, timeout_ms};

/// Route that returns points by their ids.
const POINTS_PATH: &str = "points";
/// Body of a read of points, without their ids.
const POINTS_BODY: &[u8] = br#"{"with_payload":["image"],"with_vector":false}"#;
/// Time between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum age of an original, by the clock of the store. Much more than an upload takes, because
/// nodes may have other timeouts than this one, and a node may be stopped during an upload.
const AGE_MIN: Duration = Duration::from_secs(24 * 3600);
/// Maximum originals of a shard in a part that are removed although most of these have no point.
const FEW_ABANDONED: usize = 4;
/// Shortest time between the two strong reads that find no point of an original.
const CONFIRM_AFTER: Duration = Duration::from_secs(3600);
/// Pause after each batch of originals.
const BATCH_PAUSE: Duration = Duration::from_secs(1);
/// Maximum originals whose points are read together, and that one pass removes.
const BATCH_MAX: usize = 256;
/// Maximum originals that one pass reads. Further ones of a part are not reached.
const PASS_ORIGINALS_MAX: usize = 1 << 20;
/// Maximum originals that wait for their second read. Further ones are found again later.
const CANDIDATES_MAX: usize = 4096;
/// Longest time of a read of points.
const READ_MAX: Duration = Duration::from_secs(30);

/// Times of the removal of originals without a point.
#[derive(Clone, Copy, Debug)]
pub struct CleanupTimes {
    /// Smallest age of an original, by the clock of the store.
    pub age: Duration,
    /// Shortest time between the two reads that find no point.
    pub confirm_after: Duration,
    /// Pause after each batch of originals.
    pub pause: Duration,
}

/// A part of the originals of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OriginalsPart {
    /// Id of the collection.
    collection: String,
    number: u8,
}

/// An original that had no point when it was read first.
struct CleanupCandidate {
    /// Id of the collection.
    collection: String,
    upload: OriginalUpload,
    since: Instant,
}

/// Removal of originals without a point, with its state between two passes.
pub struct OriginalCleanup {
    times: CleanupTimes,
    /// Part of the last pass.
    last: Option<OriginalsPart>,
    /// Candidates by the key of the original. At most [`CANDIDATES_MAX`].
    candidates: BTreeMap<String, CleanupCandidate>,
}

impl OriginalCleanup {
    /// Creates a removal that begins with the first collection.
    pub fn new(times: CleanupTimes) -> OriginalCleanup {
        OriginalCleanup { times, last: None, candidates: BTreeMap::new() }
    }

    /// Removes originals while this node is the one that removes unused data. Never returns.
    pub async fn run(state: Arc<RootState>) {
        let times = CleanupTimes {
            age: AGE_MIN.max(upload_over(&state)),
            confirm_after: CONFIRM_AFTER,
            pause: BATCH_PAUSE,
        };
        let mut cleanup = OriginalCleanup::new(times);
        let mut failure = None;
        loop {
            tokio::time::sleep(PASS_INTERVAL).await;
            if !state.view.current().is_collector(&state.node) {
                cleanup.candidates.clear();
                continue;
            }
            let outcome = cleanup.pass(&state).await.err();
            // An error that lasts is logged once.
            if let Some(error) = outcome.as_ref().filter(|_| outcome != failure) {
                tracing::warn!(%error, "originals without a point stay until a later pass");
            }
            failure = outcome;
        }
    }

    /// Removes the candidates that still have no point, and reads the next part. Returns the number
    /// of removed originals.
    ///
    /// # Errors
    /// `Unavailable` if the points of a shard are not certain; `DataLoss` if most originals of a
    /// part have no point; the errors of the store of originals. The next pass continues with the
    /// next part.
    pub async fn pass(&mut self, state: &RootState) -> Result<u64> {
        let Some(images) = state.images() else { return Ok(0) };
        let view = state.loaded_view()?;
        let removed = self.remove_confirmed(state, images, &view).await?;
        self.read_next_part(state, images, &view).await?;
        Ok(removed)
    }

    /// Takes candidates of one collection that are due at `now`, at most [`BATCH_MAX`].
    fn take_due(&mut self, now: Instant) -> Vec<CleanupCandidate> {
        let is_due = |candidate: &CleanupCandidate| {
            now.saturating_duration_since(candidate.since) >= self.times.confirm_after
        };
        let mut due = self.candidates.values().filter(|candidate| is_due(candidate)).peekable();
        let collection = due.peek().map(|first| first.collection.clone());
        let of_one = due.filter(|it| Some(&it.collection) == collection.as_ref());
        let keys: Vec<String> = of_one.take(BATCH_MAX).map(|it| it.upload.key.clone()).collect();
        keys.iter().filter_map(|key| self.candidates.remove(key)).collect()
    }

    /// Removes the originals that are due and still have no point in any shard. Returns their
    /// number.
    ///
    /// # Errors
    /// As [`abandoned_everywhere`]; the errors of the store of originals.
    async fn remove_confirmed(
        &mut self,
        state: &RootState,
        images: &ImagesState,
        view: &ClusterView,
    ) -> Result<u64> {
        let due = self.take_due(Instant::now());
        // The originals of a collection that was removed are removed with it.
        let record = due.first().and_then(|first| view.by_id(&first.collection));
        let Some(record) = record else { return Ok(0) };
        let record = Arc::new(record.clone());
        let uploads: Vec<OriginalUpload> = due.into_iter().map(|it| it.upload).collect();
        let mut removed = 0;
        for upload in abandoned_everywhere(state, &record, uploads).await? {
            images.delete_original(&upload.key).await?;
            tracing::info!(key = upload.key, "an original without a point was removed");
            state.requests.metrics.cluster.abandoned_originals.inc();
            removed += 1;
        }
        Ok(removed)
    }

    /// Lists the originals of the next part of a collection, and keeps those without a point as
    /// candidates.
    async fn read_next_part(
        &mut self,
        state: &RootState,
        images: &ImagesState,
        view: &ClusterView,
    ) -> Result<()> {
        let Some(part) = next_part(view, self.last.as_ref()) else { return Ok(()) };
        // Set first, so that a part with an error does not stop the others.
        self.last = Some(part.clone());
        let Some(record) = view.by_id(&part.collection) else { return Ok(()) };
        let record = Arc::new(record.clone());
        let space = record.originals_space();
        let mut listed = images.old_uploads(&space, part.number, self.times.age)?;
        let mut count = 0;
        let mut found = Vec::new();
        let mut shares = OriginalShares::new(record.shards);
        while count < PASS_ORIGINALS_MAX && self.candidates.len() + found.len() < CANDIDATES_MAX {
            let uploads = listed.next_batch(BATCH_MAX).await?;
            if uploads.is_empty() {
                break;
            }
            count += uploads.len();
            shares.add_listed(&uploads)?;
            // Most originals have a point, so most batches need no strong read.
            let uploads = abandoned(state, &record, uploads).await?;
            let uploads = abandoned_everywhere(state, &record, uploads).await?;
            shares.add_abandoned(&uploads)?;
            found.extend(uploads);
            tokio::time::sleep(self.times.pause).await;
        }
        shares.check().map_err(|error| error.context(&record.name))?;
        for upload in found {
            self.add(&part.collection, upload, Instant::now());
        }
        Ok(())
    }

    /// Adds a candidate unless it is known or there are too many.
    fn add(&mut self, collection: &str, upload: OriginalUpload, now: Instant) {
        if self.candidates.len() < CANDIDATES_MAX {
            let key = upload.key.clone();
            let collection = collection.to_owned();
            let candidate = CleanupCandidate { collection, upload, since: now };
            self.candidates.entry(key).or_insert(candidate);
        }
    }
}

/// Numbers of originals of a shard in a part.
#[derive(Clone, Copy, Debug, Default)]
struct ShardOriginals {
    listed: usize,
    /// Listed ones without a point.
    abandoned: usize,
}

/// Shares of originals without a point, by shard. Killed nodes leave few of them. If there are
/// many, the shard has lost points, and only the originals of the images remain.
struct OriginalShares {
    shards: u32,
    counts: BTreeMap<u32, ShardOriginals>,
}

impl OriginalShares {
    /// Creates the shares of a collection with this number of shards.
    fn new(shards: u32) -> OriginalShares {
        OriginalShares { shards, counts: BTreeMap::new() }
    }

    fn count(&mut self, upload: &OriginalUpload) -> Result<&mut ShardOriginals> {
        let shard = split::shard_of_id(&upload.id, self.shards)?;
        Ok(self.counts.entry(shard).or_default())
    }

    fn add_listed(&mut self, uploads: &[OriginalUpload]) -> Result<()> {
        for upload in uploads {
            self.count(upload)?.listed += 1;
        }
        Ok(())
    }

    fn add_abandoned(&mut self, uploads: &[OriginalUpload]) -> Result<()> {
        for upload in uploads {
            self.count(upload)?.abandoned += 1;
        }
        Ok(())
    }

    /// Checks that no shard has too many originals without a point.
    ///
    /// # Errors
    /// `DataLoss` for the first shard that has.
    fn check(&self) -> Result<()> {
        let is_high = |count: &ShardOriginals| {
            count.abandoned > FEW_ABANDONED && count.abandoned > count.listed / 2
        };
        match self.counts.iter().find(|entry| is_high(entry.1)) {
            None => Ok(()),
            Some((shard, _)) => Err(Error::data_loss(format!(
                "more than half of the originals of shard {shard} have no point, so it may have lost points"
            ))),
        }
    }
}

/// Returns the part after `last`, in the order of the collections' ids and of the parts. Begins
/// again after the last one. Returns `None` without collections of images.
fn next_part(view: &ClusterView, last: Option<&OriginalsPart>) -> Option<OriginalsPart> {
    let of_images = view.collections.values().filter(|record| record.images.is_some());
    let ids: BTreeSet<&str> = of_images.map(|record| record.id.as_str()).collect();
    if let Some(last) = last
        && ids.contains(last.collection.as_str())
        && let Some(number) = last.number.checked_add(1)
    {
        return Some(OriginalsPart { collection: last.collection.clone(), number });
    }
    let is_behind = |id: &&&str| last.is_some_and(|last| **id > last.collection.as_str());
    let id = ids.iter().find(is_behind).or_else(|| ids.first())?;
    Some(OriginalsPart { collection: (*id).to_owned(), number: 0 })
}

/// Original of a stored point.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PointOriginal {
    /// The point names this key.
    Named(String),
    /// The point names no original, or a client has removed the key from its payload.
    Unnamed,
}

/// Returns true if no point names the original `key`. `point` is the original of its image's point,
/// `None` if there is no point. The point may name the original of another upload, which is in the
/// same directory. If it names another key, a client has changed the payload, and all originals
/// stay.
fn is_abandoned(key: &str, point: Option<&PointOriginal>) -> bool {
    let directory = |key: &str| key.rsplit_once('/').map(|(directory, _)| directory.to_owned());
    match point {
        None => true,
        Some(PointOriginal::Named(named)) => named != key && directory(named) == directory(key),
        Some(PointOriginal::Unnamed) => false,
    }
}

/// Returns the images of uploads by shard, each once.
///
/// # Errors
/// As [`split::ids_by_shard`].
fn ids_of(uploads: &[OriginalUpload], shards: u32) -> Result<BTreeMap<u32, Vec<PointId>>> {
    let ids: BTreeSet<PointId> = uploads.iter().map(|upload| upload.id).collect();
    let ids: Vec<PointId> = ids.into_iter().collect();
    split::ids_by_shard(&ids, shards)
}

/// Returns the originals that no point names by a read of one holder of each shard. Some of them
/// may have a point that was written a moment ago.
///
/// # Errors
/// `Unavailable` if a shard does not answer.
async fn abandoned(
    state: &RootState,
    record: &Arc<CollectionRecord>,
    mut uploads: Vec<OriginalUpload>,
) -> Result<Vec<OriginalUpload>> {
    let ids = ids_of(&uploads, record.shards)?;
    let read = ShardRead {
        record: record.clone(),
        shards: ids.keys().copied().collect(),
        path: POINTS_PATH,
        body: ReadBody::Ids(IdsBody { members: split::members(POINTS_BODY)?, ids }),
        deadline: Instant::now() + READ_MAX,
        strong: false,
        priority: ReadPriority::Background,
    };
    let answers = Box::pin(read_shards(state, &read)).await?;
    answers.check(1.0)?;
    let space = record.originals_space();
    let mut points = BTreeMap::new();
    for result in answers.results.values() {
        points.extend(parsed(result, &space)?);
    }
    uploads.retain(|upload| is_abandoned(&upload.key, points.get(&upload.id)));
    Ok(uploads)
}

/// Returns the originals that no point names by a strong read of each node that serves a shard.
///
/// # Errors
/// `Unavailable` if no node serves a shard, if one of these nodes does not answer, or if a copy is
/// marked as damaged: it may lack points.
async fn abandoned_everywhere(
    state: &RootState,
    record: &CollectionRecord,
    mut uploads: Vec<OriginalUpload>,
) -> Result<Vec<OriginalUpload>> {
    if uploads.is_empty() {
        return Ok(uploads);
    }
    let ids = ids_of(&uploads, record.shards)?;
    let mut unread: BTreeSet<u32> = ids.keys().copied().collect();
    let shards: Vec<u32> = unread.iter().copied().collect();
    let body = IdsBody { members: split::members(POINTS_BODY)?, ids };
    let view = state.view.current();
    for node in view.nodes.values() {
        let mut served = shards.clone();
        served.retain(|shard| node.serves(&ShardKey::new(&record.id, *shard)));
        if served.is_empty() {
            continue;
        }
        let points = points_of_node(state, record, node, &served, &body).await?;
        // Images of shards that the node does not serve stay in the list.
        uploads.retain(|upload| is_abandoned(&upload.key, points.get(&upload.id)));
        unread.retain(|shard| !served.contains(shard));
    }
    if let Some(shard) = unread.first() {
        return Err(Error::unavailable(format!("no node serves shard {shard}")));
    }
    check_whole_copies(&state.view.current(), record, &shards)?;
    Ok(uploads)
}

/// Reads the originals that the points of `shards` on a node name, with a strong read. Absent
/// points have no item.
///
/// # Errors
/// `Unavailable` if the node does not answer for one of the shards.
async fn points_of_node(
    state: &RootState,
    record: &CollectionRecord,
    node: &NodeInfo,
    shards: &[u32],
    ids: &IdsBody,
) -> Result<BTreeMap<PointId, PointOriginal>> {
    let written = |shard: &u32| state.last_written(&ShardKey::new(&record.id, *shard));
    let ids = ids.of(shards)?;
    let body = NodeReadBody {
        collection: &record.id,
        shards: shards.iter().map(|shard| (*shard, written(shard))).collect(),
        path: POINTS_PATH,
        body: &ids,
        timeout_ms: timeout_ms(Instant::now() + READ_MAX),
        strong: true,
    };
    let body = serde_json::to_vec(&body)
        .map_err(|error| Error::internal("a read cannot be written").caused_by(error))?;
    state.count("background");
    let client = state.client.clone();
    let requests = state.requests.clone();
    let memory = ReadMemory::new(requests.clone()).answer();
    let address = node.address.clone();
    let read = read_node(client, requests, address, Bytes::from(body), READ_MAX, memory);
    let mut answer = Box::pin(read).await?;
    let space = record.originals_space();
    let mut points = BTreeMap::new();
    for shard in shards {
        let missing =
            || Error::unavailable(format!("{} answered without shard {shard}", node.name));
        let result = answer.shards.remove(shard).ok_or_else(missing)?;
        points.extend(parsed(&result?, &space)?);
    }
    Ok(points)
}

/// Checks that no serving copy of `shards` is marked.
///
/// # Errors
/// `Unavailable` for the first shard with a marked copy.
fn check_whole_copies(view: &ClusterView, record: &CollectionRecord, shards: &[u32]) -> Result<()> {
    for shard in shards {
        let key = ShardKey::new(&record.id, *shard);
        if view.nodes.values().any(|node| node.serves(&key) && node.is_damaged(&key)) {
            return Err(Error::unavailable(format!("a copy of shard {key} may lack points")));
        }
    }
    Ok(())
}

/// Reads the points of a shard's answer.
///
/// # Errors
/// `Internal` for another text.
fn parsed(result: &RawValue, space: &str) -> Result<BTreeMap<PointId, PointOriginal>> {
    #[derive(Deserialize)]
    struct PointWithBlock {
        id: PointId,
        payload: Option<Map<String, Value>>,
    }
    let points: Vec<PointWithBlock> = merge::read(result)?;
    let original = |point: PointWithBlock| {
        let payload = point.payload.unwrap_or_default();
        let key = original_key(&payload).map(|key| original_in(space, key));
        (point.id, key.map_or(PointOriginal::Unnamed, PointOriginal::Named))
    };
    Ok(points.into_iter().map(original).collect())
}

#[cfg(test)]
mod tests {
    use api_images::{ImageKind, ImageSettings};
    use base::ErrorKind;

    use super::*;

    fn record(id: &str, has_images: bool) -> CollectionRecord {
        let settings = ImageSettings { kind: ImageKind::Photo, model: "colour".to_owned() };
        CollectionRecord {
            name: format!("name of {id}"),
            id: id.to_owned(),
            shards: 2,
            copies: 1,
            create: Value::Null,
            images: has_images.then_some(settings),
        }
    }

    fn view(records: &[CollectionRecord]) -> ClusterView {
        let mut view = ClusterView::default();
        for record in records {
            view.collections.insert(record.name.clone(), record.clone());
        }
        view
    }

    fn part(collection: &str, number: u8) -> OriginalsPart {
        OriginalsPart { collection: collection.to_owned(), number }
    }

    fn upload(number: u8) -> OriginalUpload {
        OriginalUpload { id: PointId::Uuid([number; 16]), key: number.to_string() }
    }

    #[test]
    fn an_original_that_its_point_names_stays() {
        let named = |key: &str| PointOriginal::Named(key.to_owned());
        let key = "1a/originals/5c/5c56/1.png";
        assert!(is_abandoned(key, None));
        let other = named("1a/originals/5c/5c56/2.png");
        assert!(is_abandoned(key, Some(&other)), "another upload has written the point");
        assert!(!is_abandoned(key, Some(&named(key))));
        for changed in ["1a/originals/5c/5c57/1.png", "1a/originals", "x", ""] {
            assert!(!is_abandoned(key, Some(&named(changed))), "{changed}");
        }
        assert!(!is_abandoned(key, Some(&PointOriginal::Unnamed)));
    }

    #[test]
    fn all_parts_of_all_collections_of_images_are_read_in_turn() {
        let two = view(&[record("1", true), record("2", false), record("3", true)]);
        let mut last = None;
        for collection in ["1", "3", "1"] {
            for number in 0..=u8::MAX {
                last = next_part(&two, last.as_ref());
                assert_eq!(last, Some(part(collection, number)));
            }
        }
        let removed = next_part(&two, Some(&part("2", 7)));
        assert_eq!(removed, Some(part("3", 0)), "behind a collection that was removed");
        assert_eq!(next_part(&two, Some(&part("4", 7))), Some(part("1", 0)));
        assert_eq!(next_part(&view(&[record("2", false)]), None), None);
    }

    #[test]
    fn originals_stay_if_most_of_a_shard_have_no_point() {
        const SHARDS: u32 = 4;
        let uploads: Vec<OriginalUpload> = (0..200).map(upload).collect();
        let is_lost = |it: &&OriginalUpload| split::shard_of_id(&it.id, SHARDS).unwrap() == 1;
        let of_shard: Vec<OriginalUpload> = uploads.iter().filter(is_lost).cloned().collect();
        let half = of_shard.len() / 2;
        assert!(half > FEW_ABANDONED && of_shard.len() < uploads.len() / 2);
        let check = |listed: &[OriginalUpload], abandoned: &[OriginalUpload]| {
            let mut shares = OriginalShares::new(SHARDS);
            shares.add_listed(listed).unwrap();
            shares.add_abandoned(abandoned).unwrap();
            shares.check()
        };
        check(&uploads, &[]).unwrap();
        check(&uploads, &of_shard[..half]).unwrap();
        let few = &of_shard[..FEW_ABANDONED];
        check(few, few).unwrap();
        for abandoned in [&of_shard[..], &of_shard[..=half]] {
            let error = check(&uploads, abandoned).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DataLoss);
            assert!(error.message().contains("shard 1"), "{error}");
        }
    }

    #[test]
    fn candidates_are_due_later_and_have_a_maximum() {
        let times = CleanupTimes {
            age: Duration::ZERO,
            confirm_after: CONFIRM_AFTER,
            pause: Duration::ZERO,
        };
        let start = Instant::now();
        let mut cleanup = OriginalCleanup::new(times);
        cleanup.add("1", upload(1), start);
        cleanup.add("2", upload(2), start);
        cleanup.add("1", upload(3), start);
        cleanup.add("1", upload(1), start + CONFIRM_AFTER);
        assert!(cleanup.take_due(start).is_empty());
        let end = start + CONFIRM_AFTER;
        let mut taken = || {
            let due = cleanup.take_due(end).into_iter();
            due.map(|candidate| candidate.upload).collect::<Vec<_>>()
        };
        assert_eq!(taken(), [upload(1), upload(3)], "those of one collection");
        assert_eq!(taken(), [upload(2)]);
        assert!(taken().is_empty());
        for number in 0..=CANDIDATES_MAX {
            let key = number.to_string();
            cleanup.add("1", OriginalUpload { key, ..upload(0) }, start);
        }
        assert_eq!(cleanup.candidates.len(), CANDIDATES_MAX);
        assert_eq!(cleanup.take_due(end).len(), BATCH_MAX);
    }

    #[test]
    fn points_name_the_originals_of_their_collection() {
        let text = r#"[{"id":1,"payload":{"image":{"original":"9f/originals/5c/x/2b.png"}}},
                       {"id":2,"payload":{"image":{}}},{"id":3,"payload":null},{"id":4}]"#;
        let result: &RawValue = serde_json::from_str(text).unwrap();
        let found = parsed(result, "1a/originals").unwrap();
        let named = PointOriginal::Named("1a/originals/5c/x/2b.png".to_owned());
        assert_eq!(found[&PointId::Number(1)], named);
        for id in [2, 3, 4] {
            assert_eq!(found[&PointId::Number(id)], PointOriginal::Unnamed);
        }
    }

    #[test]
    fn a_marked_copy_shows_no_absent_point() {
        let record = record("1", true);
        let mut view = view(std::slice::from_ref(&record));
        let shards = BTreeMap::from([("1".to_owned(), BTreeSet::from([1]))]);
        let mut node = NodeInfo { serving: shards.clone(), ..NodeInfo::default() };
        view.nodes.insert("a".to_owned(), node.clone());
        check_whole_copies(&view, &record, &[0, 1]).unwrap();
        node.damaged = shards;
        view.nodes.insert("a".to_owned(), node);
        check_whole_copies(&view, &record, &[0]).unwrap();
        let error = check_whole_copies(&view, &record, &[0, 1]).unwrap_err();
        assert!(error.message().contains("1/0001"), "{error}");
    }
}
