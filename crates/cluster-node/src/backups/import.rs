//! Archives of one server's snapshots that become collections of a cluster.
//!
//! An archive is received into a local collection under a temporary name. So all its files are
//! compared with their checksums before anything is written to the cluster's store. Then its points
//! are read page by page, and written to the logs of a new collection that no node knows yet. The
//! caller adds the record to the catalog at the end. If anything fails before that, the written
//! logs have no record, and are removed an hour later.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use api_images::{ImageSettings, check_image_operation, images_operation, moved_image};
use api_qdrant::PortableSettings;
use api_qdrant::json::{self, UpdateOperation, Vector};
use backup::RestoreTarget;
use base::{Error, Result};
use bytes::Bytes;
use cluster::{EntryBody, EntryNumber, Epoch, LogEntry, WriterId, shard_of};
use cluster_log::{Batch, ShardLog};
use search::collection::PointParts;
use search::points::{FetchedPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection, check_name};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::task::{JoinError, JoinSet};

use super::restore::{RESTORE_TIME_MAX, restore_too_long};
use super::staged::{self, StagedCollection};
use super::{ClusterBackups, log_parts};
use crate::changes::CollectionChanges;
use crate::node::local::at_low_priority;
use crate::types::{CollectionRecord, ShardKey, check_known_ids, new_id};

/// Bytes from which an operation is complete.
const OPERATION_BYTES: usize = 1 << 20;
/// Maximum points of an operation.
const OPERATION_POINTS_MAX: usize = 500;
/// Bytes from which an entry is complete.
const ENTRY_BYTES: usize = 8 << 20;
/// Bytes of waiting operations from which they are written.
const WAITING_BYTES: usize = 32 << 20;
/// Maximum number of shards whose logs are written at the same time.
const SHARDS_AT_ONCE_MAX: usize = 16;
/// Estimated maximum bytes of the points that are read at once.
const PAGE_BYTES: usize = 16 << 20;
/// Maximum points that are read at once.
const PAGE_POINTS_MAX: usize = 256;
/// Estimated bytes of the text of a value.
const VALUE_BYTES: usize = 16;
/// Estimated bytes of a point without its embedding.
const POINT_BYTES: usize = 64 << 10;
/// Maximum levels of a payload's JSON. A root takes requests of 120 levels, and three of them are
/// around the payload. Answers nest it deeper, and JSON readers stop at 128.
const PAYLOAD_LEVELS_MAX: usize = 117;
/// Maximum bytes of the settings of a collection in its record.
const CREATE_BYTES_MAX: usize = 256 << 10;

/// Function that refuses settings of images which the server cannot use. Its parameter is `None`
/// for a collection without images. It runs on a thread that may block.
pub type ImagesCheck = Box<dyn FnOnce(Option<&ImageSettings>) -> Result<()> + Send>;

/// Collection that an archive becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportTarget {
    /// Name of the collection.
    pub name: String,
    /// Number of shards.
    pub shards: u32,
    /// Number of copies of each shard.
    pub copies: u32,
}

/// A collection whose data is written and that is not in the catalog yet.
#[derive(Clone, Debug)]
pub struct ImportedCollection {
    /// Record of the collection.
    pub record: CollectionRecord,
    /// Settings that its record does not have.
    pub changes: CollectionChanges,
    /// Number of points.
    pub points: u64,
}

impl ClusterBackups {
    /// Writes the data of a new collection from the archive that `open` returns, if `check` permits
    /// its settings. `open` runs on a thread that may block.
    ///
    /// # Errors
    /// The errors of `open` and `check`; `ResourceExhausted` if another archive is being
    /// transferred; the errors of [`backup::read_archive`]; `StorageFull` if this node has not
    /// enough space for the archive, or all holders of a shard would have full disks;
    /// `FailedPrecondition` for a collection that a cluster cannot have; as [`check_known_ids`];
    /// `DeadlineExceeded` if the points take longer than [`RESTORE_TIME_MAX`]; the store's error.
    pub async fn import<R: Read>(
        &self,
        target: &ImportTarget,
        check: ImagesCheck,
        open: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> Result<ImportedCollection> {
        let imported = Box::pin(self.import_staged(target, check, open)).await;
        self.count("upload", &imported);
        imported
    }

    /// Writes the data of a new collection from the archive at `location`, which is read as
    /// [`backup::open_location`] does, if `check` permits its settings.
    ///
    /// # Errors
    /// As [`ClusterBackups::import`] and [`backup::open_location`].
    pub async fn import_from(
        &self,
        target: &ImportTarget,
        check: ImagesCheck,
        location: String,
        options: Vec<(String, String)>,
    ) -> Result<ImportedCollection> {
        self.import(target, check, move || backup::open_location(&location, &options)).await
    }

    /// Receives an archive into a staged collection, and writes its points to the target. Removes
    /// the staged collection at the end.
    async fn import_staged<R: Read>(
        &self,
        target: &ImportTarget,
        check: ImagesCheck,
        open: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> Result<ImportedCollection> {
        check_name(&target.name)?;
        let _transfer = self.transfer().await?;
        let registry = self.local.registry()?;
        StagedCollection::remove_all(&registry).await;
        let staged = StagedCollection::new(&registry);
        let imported = self.import_into(&staged, target, check, open).await;
        staged.remove().await;
        imported
    }

    async fn import_into<R: Read>(
        &self,
        staged: &StagedCollection,
        target: &ImportTarget,
        check: ImagesCheck,
        open: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> Result<ImportedCollection> {
        let registry = staged.registry().clone();
        let local = RestoreTarget { name: staged.name().to_owned(), replaces: false };
        let report = at_low_priority("receiving a snapshot", move || {
            let check_settings = |settings: &CollectionSettings| {
                let moved = MovedSettings::of(settings)?;
                check(moved.images.as_ref())
            };
            backup::read_archive(&registry, open()?, &local, check_settings)
        })
        .await?;
        let named = staged.registry().get(staged.name())?;
        let written = Box::pin(self.write_points(named, target));
        let written = tokio::time::timeout(RESTORE_TIME_MAX, written).await;
        let imported = written.map_err(|_| restore_too_long())??;
        let collection = &target.name;
        let points = imported.points;
        tracing::info!(collection, backup = %report.backup, points, "a snapshot was uploaded");
        Ok(imported)
    }

    /// Writes the points of a local collection to the logs of a new collection.
    async fn write_points(
        &self,
        named: Arc<NamedCollection>,
        target: &ImportTarget,
    ) -> Result<ImportedCollection> {
        let moved = Arc::new(MovedSettings::of(&named.settings())?);
        let record = moved.record(target);
        self.prepare(&record).await?;
        let mut logs = NewLogs::new(self, &record);
        let mut points = 0;
        let mut from: Option<PointId> = None;
        loop {
            let source = named.clone();
            let settings = moved.clone();
            let shards = record.shards;
            let old_holder = self.view.current().old_holder().map(str::to_owned);
            let page = at_low_priority("reading a snapshot", move || {
                settings.read_page(&source, from.as_ref(), shards, old_holder.as_deref())
            });
            let page = page.await?;
            points += page.points;
            logs.add(page.operations).await?;
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        logs.flush().await?;
        Ok(ImportedCollection { record, changes: moved.changes.clone(), points })
    }
}

/// Settings of a collection of one server, as a cluster keeps them.
#[derive(Debug)]
struct MovedSettings {
    create: Value,
    changes: CollectionChanges,
    images: Option<ImageSettings>,
    dims: usize,
    vector_name: String,
}

/// Points of one page, as operations by shard.
struct ImportPage {
    points: u64,
    operations: BTreeMap<u32, Vec<Bytes>>,
    /// Id to continue with.
    next: Option<PointId>,
}

/// A point of an upsert.
#[derive(Serialize)]
struct MovedPoint<'a> {
    id: PointId,
    vector: Vector,
    payload: &'a Map<String, Value>,
}

impl MovedSettings {
    /// Returns the settings that a cluster keeps of the settings of a collection.
    ///
    /// # Errors
    /// `TooLarge` if they do not fit into a record; `Unimplemented` for a text index that splits
    /// texts in a way that a cluster does not have.
    fn of(settings: &CollectionSettings) -> Result<MovedSettings> {
        let PortableSettings { create, payload_schema, hints } = PortableSettings::of(settings);
        for (field, index) in &payload_schema {
            let data_type = index["data_type"].as_str().unwrap_or_default();
            json::check_default_tokenizer(data_type, &index["params"])
                .map_err(|error| error.context(format_args!("the index on {field}")))?;
        }
        let bytes = create.to_string().len();
        if bytes > CREATE_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the settings of the collection have {bytes} bytes, and a cluster keeps at most {CREATE_BYTES_MAX}; store \
                 less metadata, and make another snapshot"
            )));
        }
        Ok(MovedSettings {
            create,
            changes: CollectionChanges { payload_schema, hints, ..CollectionChanges::default() },
            images: ImageSettings::of(settings),
            dims: settings.dims,
            vector_name: settings.vector_name.clone(),
        })
    }

    /// Returns the record of a new collection.
    fn record(&self, target: &ImportTarget) -> CollectionRecord {
        CollectionRecord {
            name: target.name.clone(),
            id: new_id(),
            shards: target.shards,
            copies: target.copies,
            create: self.create.clone(),
            images: self.images.clone(),
        }
    }

    /// Reads a page of points from `from` on.
    ///
    /// # Errors
    /// `DataLoss` for damaged points; `FailedPrecondition` for points with a record that this
    /// interface does not have; `InvalidArgument` for points that no holder could write; as
    /// [`check_known_ids`].
    fn read_page(
        &self,
        named: &NamedCollection,
        from: Option<&PointId>,
        shards: u32,
        old_holder: Option<&str>,
    ) -> Result<ImportPage> {
        let page = named.scroll(from, page_points(self.dims), None, PointParts::ALL)?;
        let page = staged::check_complete(page)?;
        let points = page.points.len() as u64;
        let mut texts: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for point in page.points {
            check_known_ids(&[point.id], old_holder)?;
            let shard = shard_of(point.id.to_string().as_bytes(), shards)
                .ok_or_else(|| Error::invalid(format!("no collection has {shards} shards")))?;
            texts.entry(shard.0).or_default().push(self.text(point)?);
        }
        let mut operations = BTreeMap::new();
        for (shard, texts) in texts {
            operations.insert(shard, self.operations(texts)?);
        }
        Ok(ImportPage { points, operations, next: page.next })
    }

    /// Returns the JSON text of a point.
    fn text(&self, point: FetchedPoint) -> Result<String> {
        if let Some(images) = &self.images {
            return moved_image(point, images, self.dims).map(|logged| logged.text);
        }
        let FetchedPoint { id, embedding, record, payload } = point;
        if !record.is_empty() {
            return Err(Error::precondition(format!(
                "point {id} has a record besides its vector, and the collection does not hold images; a cluster cannot \
                 have it"
            )));
        }
        if 1 + levels_of(payload.values()) > PAYLOAD_LEVELS_MAX {
            return Err(Error::invalid(format!(
                "the payload of point {id} is nested deeper than {PAYLOAD_LEVELS_MAX} levels, which a cluster does not \
                 accept; write it with fewer levels, and make another snapshot"
            )));
        }
        let vector = Vector::labelled(&self.vector_name, embedding);
        serde_json::to_string(&MovedPoint { id, vector, payload: &payload })
            .map_err(|error| Error::internal(format!("point {id}")).caused_by(error))
    }

    /// Returns the operations that write the points of a shard. Each is read as a holder reads it.
    /// Holders skip an operation that they cannot read.
    fn operations(&self, texts: Vec<String>) -> Result<Vec<Bytes>> {
        let mut operations = Vec::new();
        for chunk in chunks(texts, OPERATION_BYTES, OPERATION_POINTS_MAX, String::len) {
            let operation = match self.images {
                Some(_) => {
                    let points: Vec<&str> = chunk.iter().map(String::as_str).collect();
                    let operation = images_operation(&points);
                    check_image_operation(operation.as_bytes())?;
                    operation
                }
                None => {
                    let operation = format!("{{\"upsert\":{{\"points\":[{}]}}}}", chunk.join(","));
                    json::parse::<UpdateOperation>(operation.as_bytes())?;
                    operation
                }
            };
            operations.push(Bytes::from(operation));
        }
        Ok(operations)
    }
}

/// Returns the maximum nesting of the JSON of some values, in levels.
fn levels_of<'a>(values: impl Iterator<Item = &'a Value>) -> usize {
    values.map(levels).max().unwrap_or(0)
}

fn levels(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + levels_of(values.iter()),
        Value::Object(members) => 1 + levels_of(members.values()),
        _ => 0,
    }
}

/// Returns the number of points that are read at once, for embeddings of `dims` values.
pub(super) fn page_points(dims: usize) -> usize {
    let bytes = dims.saturating_mul(VALUE_BYTES).saturating_add(POINT_BYTES);
    (PAGE_BYTES / bytes).clamp(1, PAGE_POINTS_MAX)
}

/// Splits a list into runs that end with the item with which they have `bytes` bytes or `items_max`
/// items.
fn chunks<T>(
    items: Vec<T>,
    bytes: usize,
    items_max: usize,
    bytes_of: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    let mut chunks = Vec::new();
    let mut current = Vec::new();
    let mut current_bytes = 0;
    for item in items {
        current_bytes += bytes_of(&item);
        current.push(item);
        if current_bytes >= bytes || current.len() >= items_max {
            chunks.push(std::mem::take(&mut current));
            current_bytes = 0;
        }
    }
    if !current.is_empty() {
        chunks.push(current);
    }
    chunks
}

/// Logs of a collection that no node knows yet.
struct NewLogs<'a> {
    backups: &'a ClusterBackups,
    /// Id of the collection.
    id: String,
    /// Operations that are not written yet, by shard.
    waiting: BTreeMap<u32, Vec<Bytes>>,
    waiting_bytes: usize,
    /// Ends of the logs, by shard.
    ends: BTreeMap<u32, EntryNumber>,
}

impl<'a> NewLogs<'a> {
    fn new(backups: &'a ClusterBackups, record: &CollectionRecord) -> NewLogs<'a> {
        NewLogs {
            backups,
            id: record.id.clone(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            ends: BTreeMap::new(),
        }
    }

    /// Adds operations, and writes all of them if they have [`WAITING_BYTES`].
    async fn add(&mut self, operations: BTreeMap<u32, Vec<Bytes>>) -> Result<()> {
        for (shard, added) in operations {
            self.waiting_bytes += added.iter().map(Bytes::len).sum::<usize>();
            self.waiting.entry(shard).or_default().extend(added);
        }
        if self.waiting_bytes >= WAITING_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Writes all operations, some shards at the same time.
    async fn flush(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.waiting_bytes);
        tokio::time::sleep_until(self.backups.pacer.reserve(bytes as u64).into()).await;
        let mut running = JoinSet::new();
        for (shard, operations) in std::mem::take(&mut self.waiting) {
            if running.len() >= SHARDS_AT_ONCE_MAX
                && let Some(ended) = running.join_next().await
            {
                self.written(ended)?;
            }
            let key = ShardKey::new(&self.id, shard);
            let log = ShardLog::new(self.backups.cluster.place(), &key);
            let from = self.ends.get(&shard).copied().unwrap_or(EntryNumber(0));
            let entries = entries_of(operations);
            running.spawn(async move {
                log_parts::write(&log, from, &entries).await.map(|end| (shard, end))
            });
        }
        while let Some(ended) = running.join_next().await {
            self.written(ended)?;
        }
        Ok(())
    }

    fn written(&mut self, ended: Result<Result<(u32, EntryNumber)>, JoinError>) -> Result<()> {
        let (shard, end) = ended
            .map_err(|error| Error::internal("a write of a log ended early").caused_by(error))??;
        self.ends.insert(shard, end);
        Ok(())
    }
}

/// Returns entries with epoch 0, which is below that of each owner, as in a restored log.
fn entries_of(operations: Vec<Bytes>) -> Vec<LogEntry<Batch>> {
    let batches = chunks(operations, ENTRY_BYTES, usize::MAX, Bytes::len);
    let entry = |batch: Vec<Bytes>| LogEntry {
        epoch: Epoch(0),
        writer: WriterId(0),
        body: EntryBody::Writes(Batch::from(batch)),
    };
    batches.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_of_json_are_counted() {
        for (value, expected) in
            [(json!(1), 0), (json!([]), 1), (json!({"a": [1, {"b": 2}], "c": {}}), 3)]
        {
            assert_eq!(levels(&value), expected, "{value}");
        }
    }

    #[test]
    fn chunks_end_at_their_limits() {
        let of =
            |bytes, items_max| chunks(vec![3_usize, 3, 3, 1, 9, 2], bytes, items_max, |it| *it);
        assert_eq!(of(6, 10), [vec![3, 3], vec![3, 1, 9], vec![2]]);
        assert_eq!(of(100, 2), [vec![3, 3], vec![3, 1], vec![9, 2]]);
        assert!(chunks(Vec::<usize>::new(), 1, 1, |it| *it).is_empty());
    }

    #[test]
    fn pages_are_bounded_for_all_dimensions() {
        assert_eq!(page_points(1), PAGE_BYTES / (VALUE_BYTES + POINT_BYTES));
        assert!(page_points(65_536) < 20);
        assert_eq!(page_points(usize::MAX), 1);
    }
}
