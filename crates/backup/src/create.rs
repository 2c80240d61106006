//! A backup of a collection.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use search::collection::{FileRole, PinnedFile, PinnedFiles};
use search::registry::{CollectionSettings, NamedCollection};
use serde::Serialize;

use crate::list::{BackupFile, BackupId, BackupList};
use crate::marks::{Mark, MarkKind};
use crate::prune::remove_unused;
use crate::store::StoredObject;
use crate::transfer::BackupContext;
use crate::upload_source::UploadSource;

/// Number of digits of the hash in the name of an object.
const HASH_DIGITS: usize = 32;

/// Files that a backup uploads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackupExtent {
    /// Files that the store lacks.
    #[default]
    Missing,
    /// All files, also files that the store has. Replaces damaged objects.
    All,
    /// As `Missing`, and no backup if nothing has changed since the newest one and the store has
    /// all files of that one.
    Changed,
}

/// Outcome of a backup.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackupReport {
    /// Id of the backup, or of the newest one if nothing has changed.
    pub backup: BackupId,
    /// True if nothing has changed since the newest backup, so no other was made.
    pub unchanged: bool,
    /// Live points when the backup was made.
    pub points: u64,
    /// Number of files, including files that the store had already.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of files that the store lacked.
    pub uploaded_files: usize,
    /// Bytes of the uploaded files.
    pub uploaded_bytes: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of reads of lists of earlier backups.
    #[serde(skip)]
    pub lists_read: usize,
}

/// Objects that the store has already.
struct KnownObjects {
    stored: BTreeMap<String, StoredObject>,
    /// True if they are replaced.
    replaces: bool,
    /// Files of earlier backups, by the name of the object.
    listed: HashMap<String, BackupFile>,
    /// Number of reads of lists.
    lists_read: usize,
}

impl KnownObjects {
    /// Returns true if the store has the file with its length, and it is not replaced.
    fn has(&self, object: &str, bytes: u64) -> bool {
        !self.replaces && self.stored.get(object).is_some_and(|found| found.bytes == bytes)
    }

    /// Returns true if the store has all files of a backup. A rule of the store may have removed
    /// some.
    fn has_files_of(&self, list: &BackupList) -> bool {
        list.files.iter().all(|file| self.has(&file.object, file.bytes))
    }

    /// Returns the newest of the lists `ids`, which are the oldest first, that can be read.
    async fn newest_list(
        &mut self,
        context: &BackupContext<'_>,
        collection: &str,
        ids: &[BackupId],
    ) -> Option<BackupList> {
        for id in ids.iter().rev() {
            self.lists_read += 1;
            match context.store.list(collection, id).await {
                Ok(list) => return Some(list),
                Err(error) => warn_of_unread(id, &error),
            }
        }
        None
    }

    /// Adds the files of the lists `ids`.
    ///
    /// # Errors
    /// `Internal` if a read ended in a panic.
    async fn add_lists(
        &mut self,
        context: &BackupContext<'_>,
        collection: &str,
        ids: &[BackupId],
    ) -> Result<()> {
        let add = |id: BackupId, list: Result<BackupList>| {
            self.lists_read += 1;
            match list {
                Ok(list) => {
                    let files = list.files.into_iter();
                    self.listed.extend(files.map(|file| (file.object.clone(), file)));
                }
                Err(error) => warn_of_unread(&id, &error),
            }
            Ok(())
        };
        context.store.read_lists(collection, ids, add).await
    }
}

/// The pinned files of a collection, all of one moment.
struct BackupSource<'a> {
    named: &'a NamedCollection,
    settings: &'a CollectionSettings,
    pinned: &'a PinnedFiles<'a>,
}

/// Backs a collection up as it is now: uploads files, and then the list.
///
/// # Errors
/// `Unavailable` while the collection is being opened, `FailedPrecondition` if it is damaged,
/// `DataLoss` if a segment or its deletes do not match their checksums, `Cancelled` if the progress
/// was stopped; otherwise the errors of the medium and of the store. The store then has no
/// incomplete backup, and the next one continues.
pub async fn create(
    context: &BackupContext<'_>,
    named: &NamedCollection,
    extent: BackupExtent,
) -> Result<BackupReport> {
    let began = Instant::now();
    let collection = named.name();
    let id = BackupId::after(context.store.ids(collection).await?.last());
    let mark = Mark::put(context.store, collection, MarkKind::Backup, &id).await?;
    let work = async {
        mark.wait_for_removals(context.progress).await?;
        let stored = context.store.objects(collection).await?;
        let replaces = extent == BackupExtent::All;
        let mut known = KnownObjects { stored, replaces, listed: HashMap::new(), lists_read: 0 };
        let ids = context.store.ids(collection).await?;
        let newest = if extent == BackupExtent::Changed {
            known.newest_list(context, collection, &ids).await
        } else {
            None
        };
        named.collection().flush_before_pin()?;
        // Read before the files are pinned: settings may name a position in the files, which must
        // not be ahead of them.
        let settings = named.settings();
        let pinned = named.collection().pin()?;
        let source = BackupSource { named, settings: &settings, pinned: &pinned };
        if let Some(list) = &newest
            && known.has_files_of(list)
            && is_same(context, list, &source).await?
        {
            return Ok(BackupReport {
                unchanged: true,
                lists_read: known.lists_read,
                ..report(list)
            });
        }
        // Most collections of a schedule have not changed, and need no other list.
        known.add_lists(context, collection, &ids).await?;
        upload(context, &source, &known, &id, &mark).await
    };
    let outcome = mark.during(work).await;
    mark.remove().await;
    outcome.map(|report| BackupReport { seconds: began.elapsed().as_secs_f64(), ..report })
}

/// Does the same as [`create`]. If the disk lacks the space, removes objects that no backup needs
/// and that are older than `grace`, and tries again. The removal of old backups follows a backup.
/// If all backups were refused, such objects would stay.
///
/// # Errors
/// As [`create`].
pub async fn create_with_room(
    context: &BackupContext<'_>,
    named: &NamedCollection,
    extent: BackupExtent,
    grace: Duration,
) -> Result<BackupReport> {
    match Box::pin(create(context, named, extent)).await {
        Err(error) if error.kind() == ErrorKind::StorageFull => {
            let removed = Box::pin(remove_unused(context, named.name(), grace)).await;
            if removed.is_ok_and(|removed| removed.objects > 0) {
                Box::pin(create(context, named, extent)).await
            } else {
                Err(error)
            }
        }
        made => made,
    }
}

/// Logs that a list is not read. Its files are uploaded again if no other list has them.
fn warn_of_unread(id: &BackupId, error: &Error) {
    tracing::warn!(%error, backup = %id, "an earlier backup is not read");
}

/// Returns true if the pinned state equals the state of `list`.
///
/// # Errors
/// As [`hash`].
async fn is_same(
    context: &BackupContext<'_>,
    list: &BackupList,
    source: &BackupSource<'_>,
) -> Result<bool> {
    let BackupSource { named, settings, pinned } = *source;
    let same_file = |(listed, file): (&BackupFile, &PinnedFile)| {
        listed.name == file.name && listed.bytes == file.bytes
    };
    let has_same_names = list.source == named.points_name()
        && list.settings == *settings
        && list.files.len() == pinned.files().len()
        && list.files.iter().zip(pinned.files()).all(same_file);
    if !has_same_names {
        return Ok(false);
    }
    for (listed, file) in list.files.iter().zip(pinned.files()) {
        if !has_unique_name(file) && hash(context, pinned, file).await? != listed.blake3 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if all files of the name of `file` are equal. The server gives a name once, but
/// gives the names of deletes and logs again after its disk was set back to an earlier state.
fn has_unique_name(file: &PinnedFile) -> bool {
    matches!(file.role, FileRole::Segment { .. })
}

/// Uploads the files that the store lacks, and then the list of the backup.
async fn upload(
    context: &BackupContext<'_>,
    source: &BackupSource<'_>,
    known: &KnownObjects,
    id: &BackupId,
    mark: &Mark<'_>,
) -> Result<BackupReport> {
    let BackupSource { named, pinned, .. } = *source;
    let points = named.collection().count();
    context.progress.set_total(pinned.files().iter().map(|file| file.bytes).sum());
    let sent_before = context.progress.bytes_moved();
    let mut files = Vec::with_capacity(pinned.files().len());
    let mut uploaded_files = 0;
    let mut objects = Vec::with_capacity(pinned.files().len());
    for file in pinned.files() {
        objects.push(object_name(context, source, file, id).await?);
    }
    let missing = pinned.files().iter().zip(&objects);
    let missing = missing.filter(|(_, object)| !known.stored.contains_key(*object));
    let mut missing_bytes: u64 = missing.map(|(file, _)| file.bytes).sum();
    for (file, object) in pinned.files().iter().zip(objects) {
        let stored = known.has(&object, file.bytes);
        let earlier = known.listed.get(&object);
        let listed = earlier.filter(|found| found.bytes == file.bytes);
        let blake3 = match listed.filter(|_| stored) {
            Some(listed) => {
                context.progress.add_done(file.bytes);
                listed.blake3.clone()
            }
            // Objects appear whole, so one that a stopped backup left is not sent again.
            None if stored => {
                let hash = hash(context, pinned, file).await?;
                context.progress.add_done(file.bytes);
                hash
            }
            None => {
                if let Some(earlier) = earlier {
                    check_unchanged(context, pinned, file, earlier).await?;
                }
                // A replaced object stays until the new one is complete.
                let is_replaced = known.stored.contains_key(&object);
                let replaced_bytes = if is_replaced { file.bytes } else { 0 };
                check_room(context, named, mark, missing_bytes + replaced_bytes)?;
                missing_bytes -= file.bytes - replaced_bytes;
                uploaded_files += 1;
                upload_file(context, source, file, &object).await?
            }
        };
        files.push(BackupFile { name: file.name.clone(), object, bytes: file.bytes, blake3 });
    }
    let list = backup_list(source, id, points, files)?;
    mark.put_list(&list).await?;
    let uploaded_bytes = context.progress.bytes_moved() - sent_before;
    let lists_read = known.lists_read;
    Ok(BackupReport { uploaded_files, uploaded_bytes, lists_read, ..report(&list) })
}

/// Uploads a file as `object`. Returns the file's hash.
async fn upload_file(
    context: &BackupContext<'_>,
    source: &BackupSource<'_>,
    file: &PinnedFile,
    object: &str,
) -> Result<String> {
    let key = context.store.object_key(source.named.name(), object);
    let opened = source.pinned.open(file)?;
    let sent = context.upload(&UploadSource::File(&opened), &key).await;
    sent.map_err(|error| error.context(&file.name))
}

/// Returns the list of the backup `id` with `points` points.
fn backup_list(
    source: &BackupSource<'_>,
    id: &BackupId,
    points: u64,
    files: Vec<BackupFile>,
) -> Result<BackupList> {
    let BackupSource { named, settings, pinned } = *source;
    let state = String::from_utf8(pinned.list()?)
        .map_err(|error| Error::internal("the list of files").caused_by(error.utf8_error()))?;
    Ok(BackupList {
        id: id.clone(),
        collection: named.name().to_owned(),
        source: named.points_name().to_owned(),
        points,
        settings: settings.clone(),
        state,
        files,
    })
}

/// Checks that `bytes` more in the store leave the reserve of the collection's disk free. A backup
/// on the same disk would otherwise stop all writes, and its objects would stay for a day.
///
/// # Errors
/// `StorageFull` if the store is on the disk of the collection, and this disk lacks the space.
fn check_room(
    context: &BackupContext<'_>,
    named: &NamedCollection,
    mark: &Mark<'_>,
    bytes: u64,
) -> Result<()> {
    let Some(path) = context.store.local_path(mark.key())? else { return Ok(()) };
    named.check_room_beside(&path, bytes).map_err(|error| error.context("the backup"))
}

/// Returns the BLAKE3 hash of a file.
///
/// # Errors
/// `DataLoss` that names the file if it is damaged; the error of the medium.
async fn hash(
    context: &BackupContext<'_>,
    pinned: &PinnedFiles<'_>,
    file: &PinnedFile,
) -> Result<String> {
    let opened = pinned.open(file)?;
    context.hash(&opened).await.map_err(|error| error.context(&file.name))
}

/// Checks that a file still matches an earlier backup, before its object is replaced. A damaged
/// file must not replace an undamaged object that earlier backups need.
///
/// # Errors
/// `DataLoss` if it differs; the error of the medium.
async fn check_unchanged(
    context: &BackupContext<'_>,
    pinned: &PinnedFiles<'_>,
    file: &PinnedFile,
    earlier: &BackupFile,
) -> Result<()> {
    if earlier.bytes == file.bytes && hash(context, pinned, file).await? == earlier.blake3 {
        return Ok(());
    }
    Err(Error::data_loss(format!(
        "{} differs from the file of the same name in an earlier backup, so it is damaged, or the \
         directory of the collection was copied; restore the collection from a backup, or back it \
         up to another store",
        file.name
    )))
}

/// Returns the report of a backup that uploaded no files.
fn report(list: &BackupList) -> BackupReport {
    BackupReport {
        backup: list.id.clone(),
        unchanged: false,
        points: list.points,
        files: list.files.len(),
        bytes: list.bytes(),
        uploaded_files: 0,
        uploaded_bytes: 0,
        seconds: 0.0,
        lists_read: 0,
    }
}

/// Returns the name of a file's object. Different contents never get the same name.
///
/// # Errors
/// As [`hash`].
async fn object_name(
    context: &BackupContext<'_>,
    source: &BackupSource<'_>,
    file: &PinnedFile,
    id: &BackupId,
) -> Result<String> {
    Ok(match &file.role {
        FileRole::Segment { uuid } => format!("segment-{uuid}"),
        FileRole::Deletes => {
            // One bit per row, so reading it for each backup costs little.
            let hash = hash(context, source.pinned, file).await?;
            let points = source.named.points_name();
            format!("{points}-{}-{hash:.HASH_DIGITS$}", file.name)
        }
        FileRole::Log => format!("{id}-{}", file.name),
    })
}
