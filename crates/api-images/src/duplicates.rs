//! Duplicates of a whole collection: starts, watches and cancels the job
//! ([`search::duplicates`]), and returns its groups.
//!
//! A collection of images is verified by keypoints. Other collections have none, so similarity
//! alone decides. A root of a cluster has a job of its own, with the same requests and responses
//! ([`super::duplicates_wire`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{ErrorKind, Result};
use image_features::collection::ImageCollection;
use parking_lot::Mutex;
use search::collection::PointParts;
use search::duplicates::{
    self, DuplicateControl, DuplicateGroup, DuplicatePair, DuplicateProgress, DuplicateStore,
};
use search::points::PointId;
use search::registry::NamedCollection;
use serde_json::{Value, json};
use transport::UploadPermit;
use transport::result_stream::ResultWriter;

use super::duplicates_wire::{
    DuplicatesRequest, begun_json, duplicate_image, duplicates_running, no_duplicates,
    progress_json,
};
use super::job_end::BackgroundJob;
use super::state::ImagesState;

/// Number of ids whose names are read at a time.
const NAMES: usize = 1000;
/// Bytes of a line from which a part of it is sent.
const PART_BYTES: usize = 64 << 10;

/// Jobs since the start of the server, by the collection's own name.
#[derive(Default)]
pub(crate) struct DuplicateJobs {
    all: Mutex<BTreeMap<String, DuplicateJob>>,
}

#[derive(Clone)]
struct DuplicateJob {
    control: Arc<DuplicateControl>,
    /// Progress until the job's own is published, because the file may still have the progress of
    /// an earlier job.
    begun: Value,
    /// Outcome of the job, set by its thread at the end.
    ended: Arc<Mutex<Option<Result<()>>>>,
}

impl DuplicateJob {
    fn running(&self) -> bool {
        self.ended.lock().is_none()
    }

    fn progress(&self) -> Value {
        let published = self.control.progress();
        published.map_or_else(|| self.begun.clone(), |progress| progress_json(&progress, true))
    }
}

impl DuplicateJobs {
    fn running(&self, name: &str) -> Option<DuplicateJob> {
        self.all.lock().get(name).filter(|job| job.running()).cloned()
    }

    /// Returns a running job without a wait; `None` also if another request holds the jobs. Such a
    /// request may remove files meanwhile.
    fn running_at_once(&self, name: &str) -> Option<DuplicateJob> {
        let all = self.all.try_lock()?;
        all.get(name).filter(|job| job.running()).cloned()
    }
}

/// Starts or continues the job of a collection, and returns its progress. Runs on a thread that may
/// block.
///
/// # Errors
/// `AlreadyExists` if it is running, `ResourceExhausted` if too much bulk work is,
/// `InvalidArgument` for options that cannot work, `FailedPrecondition` for a collection without
/// embeddings.
pub(crate) fn begin(
    state: &Arc<ImagesState>,
    name: &str,
    request: &DuplicatesRequest,
) -> Result<Value> {
    let named = state.services.registry()?.get(name)?;
    let target = ImageCollection::of(&named);
    if let Some(target) = &target {
        target.settings().check_embeddings(name)?;
    }
    let options = request.options(target.map(|target| target.kind), named.settings().metric)?;
    let mut all = state.duplicates.all.lock();
    if all.get(named.name()).is_some_and(DuplicateJob::running) {
        return Err(duplicates_running(name));
    }
    all.retain(|_, job| job.running());
    let permit = state.bulk_permit_now()?;
    if request.restart() {
        DuplicateStore::of(&named).remove()?;
    }
    let begun = begun_json(&options, named.collection().count());
    let job = DuplicateJob { control: Arc::default(), begun: begun.clone(), ended: Arc::default() };
    all.insert(named.name().to_owned(), job.clone());
    drop(all);
    let ended = job.ended.clone();
    let spawned = os::thread::spawn("duplicates", move || {
        // Not idle priority, because it takes locks of queries.
        os::thread::enter_low_priority("finding duplicates");
        let collection = named.name();
        let ended = &*job.ended;
        let search = BackgroundJob { name: "the search for duplicates", collection, permit, ended };
        search.run(|| duplicates::run(&named, options, &job.control).map(drop));
    });
    if let Err(error) = spawned {
        *ended.lock() = Some(Err(error.clone()));
        return Err(error);
    }
    Ok(begun)
}

/// Returns the progress of a running job, which is in memory; `None` if no job runs, or if the
/// thread would have to wait.
///
/// # Errors
/// Returns the errors of the registry.
pub(crate) fn running_progress(state: &ImagesState, name: &str) -> Result<Option<Value>> {
    let named = state.services.registry()?.get(name)?;
    Ok(state.duplicates.running_at_once(named.name()).map(|job| job.progress()))
}

/// Returns the progress of a collection's job. Reads a file unless the job runs.
///
/// # Errors
/// `NotFound` if there was none; `DataLoss` if its file is damaged.
pub(crate) fn progress(state: &ImagesState, name: &str) -> Result<Value> {
    let named = state.services.registry()?.get(name)?;
    if let Some(job) = state.duplicates.running(named.name()) {
        return Ok(job.progress());
    }
    let kept = DuplicateProgress::read(&DuplicateStore::of(&named))?;
    kept.map(|progress| progress_json(&progress, false)).ok_or_else(|| no_duplicates(name))
}

/// Cancels a running job, or removes the result of an ended one. Runs on a thread that may block.
///
/// # Errors
/// `NotFound` if there is neither a job nor a result.
pub(crate) fn cancel(state: &ImagesState, name: &str) -> Result<Value> {
    let named = state.services.registry()?.get(name)?;
    // No job starts meanwhile.
    let all = state.duplicates.all.lock();
    if let Some(job) = all.get(named.name()).filter(|job| job.running()) {
        job.control.stop.store(true, Ordering::Relaxed);
        return Ok(json!({ "cancelled": name }));
    }
    let store = DuplicateStore::of(&named);
    if DuplicateProgress::read(&store).is_ok_and(|progress| progress.is_none()) {
        return Err(no_duplicates(name));
    }
    store.remove()?;
    Ok(json!({ "deleted": name }))
}

/// Starts a thread that writes the groups of a collection as lines to `writer`. A job that still
/// runs has the groups that were found so far. Runs on a thread that may block.
///
/// # Errors
/// `NotFound` if there was no job; `ResourceExhausted` if no thread can be started.
pub(crate) fn write_groups(
    state: &Arc<ImagesState>,
    name: &str,
    permit: UploadPermit,
    writer: ResultWriter,
) -> Result<()> {
    let named = state.services.registry()?.get(name)?;
    let store = DuplicateStore::of(&named);
    let pairs = match state.duplicates.running(named.name()) {
        Some(job) => job.control.progress().map_or(0, |progress| progress.pairs),
        None => DuplicateProgress::read(&store)?.ok_or_else(|| no_duplicates(name))?.pairs,
    };
    let body = move || {
        os::thread::enter_low_priority("writing groups of duplicates");
        let written = store
            .pairs(pairs)
            .and_then(|pairs| GroupWriter { named: &named, writer: &writer }.write(&pairs));
        writer.end(written);
        drop(permit);
    };
    os::thread::spawn("duplicates-out", body).map(drop)
}

struct GroupWriter<'a> {
    named: &'a NamedCollection,
    writer: &'a ResultWriter,
}

impl GroupWriter<'_> {
    /// Writes a line for each group, and a summary as the last line.
    fn write(&self, pairs: &[DuplicatePair]) -> Result<()> {
        let mut groups = 0_u64;
        let mut images = 0_u64;
        for group in duplicates::groups(pairs) {
            // All but one may have been removed since.
            let Some(count) = self.write_line(&group)? else { continue };
            groups += 1;
            images += count;
        }
        let summary = json!({ "summary": { "groups": groups, "images": images } });
        self.writer.send(format!("{summary}\n").into())
    }

    /// Writes the line of a group in parts, because one group can have most pairs of a job. Returns
    /// the number of its images. Writes nothing and returns `None` if fewer than two are left.
    ///
    /// # Errors
    /// `Unavailable` while the collection is being opened; the errors of [`ResultWriter::send`].
    fn write_line(&self, group: &DuplicateGroup) -> Result<Option<u64>> {
        // In the order of the group's ids, which ascend.
        let mut known: Vec<(u64, PointId)> = Vec::new();
        let mut text = "{\"images\":[".to_owned();
        for ids in group.ids.chunks(NAMES) {
            let points = self.named.resolve(ids, PointParts::PAYLOAD);
            for (id, point) in ids.iter().zip(points) {
                let point = match point {
                    Ok(Some(point)) => point,
                    Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                    // The image was removed, or it is damaged and cannot be shown.
                    Ok(None) | Err(_) => continue,
                };
                if !known.is_empty() {
                    text.push(',');
                }
                known.push((*id, point.id));
                text.push_str(&duplicate_image(&point).to_string());
            }
            if known.len() >= 2 {
                self.send_part(&mut text)?;
            }
        }
        if known.len() < 2 {
            return Ok(None);
        }
        text.push_str("],\"pairs\":[");
        let shown = |id: u64| {
            let at = known.binary_search_by_key(&id, |(known, _)| *known).ok()?;
            known.get(at).map(|(_, shown)| *shown)
        };
        let mut is_first = true;
        for pair in &group.pairs {
            let (Some(a), Some(b)) = (shown(pair.a), shown(pair.b)) else { continue };
            if !std::mem::take(&mut is_first) {
                text.push(',');
            }
            let pair =
                json!({ "a": a, "b": b, "similarity": pair.similarity, "score": pair.score });
            text.push_str(&pair.to_string());
            self.send_part(&mut text)?;
        }
        text.push_str("]}\n");
        self.writer.send(text.into())?;
        Ok(Some(known.len() as u64))
    }

    /// Sends `text` if it is large, and empties it then.
    fn send_part(&self, text: &mut String) -> Result<()> {
        if text.len() < PART_BYTES {
            return Ok(());
        }
        self.writer.send(std::mem::take(text).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_the_progress_does_not_wait_for_files() {
        let jobs = DuplicateJobs::default();
        let ended = Arc::default();
        let job = DuplicateJob { control: Arc::default(), begun: Value::Null, ended };
        jobs.all.lock().insert("c".to_owned(), job);
        assert!(jobs.running_at_once("c").is_some());
        // Another request removes the files of a result.
        let _held = jobs.all.lock();
        assert!(jobs.running_at_once("c").is_none());
    }
}
