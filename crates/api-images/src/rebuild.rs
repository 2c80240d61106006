//! Embeds a collection's images by another model while the old collection serves.
//!
//! Bulk work fills the next version from the originals in passes. Each pass copies images that are
//! new in the old collection, copies changed payloads, and removes deleted images. After a pass
//! without changes, all writers are paused for a moment and the alias is changed. The old
//! collection is kept, so that changing the alias back undoes the rebuild. A rebuild that is
//! started again, even after a crash, continues.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{Error, ErrorKind, Result};
use image_features::collection::{CollectionSpec, ImageCollection};
use image_features::embedder::Embedder;
use image_features::embedding_plan::EmbeddingPlan;
use image_features::features::{BLOCK, original_in, uuid};
use image_features::settings::PLACEHOLDER_DIMS;
use parking_lot::Mutex;
use search::collection::PointParts;
use search::points::{FetchedPoint, PayloadChange, PointId, PointSelection};
use search::registry::{AliasChange, Registry};
use serde_json::Value;

use super::browse::check_original;
use super::ingest::IngestImage;
use super::job::IngestJob;
use super::job_end::BackgroundJob;
use super::progress::{Rebuild, excluding};
use super::removal;
use super::state::ImagesState;

/// Number of points of one page.
const PAGE: usize = 32;
/// Maximum passes. A collection that changes faster than it can be copied is not switched.
const PASSES_MAX: usize = 50;
/// Maximum failed images of a rebuild. Their names and reasons take about 20 MB of memory.
const FAILURES_MAX: usize = 100_000;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RebuildRequest {
    pub(crate) model: String,
    /// True to change the alias once the copy is complete.
    #[serde(default)]
    switch: bool,
    /// Maximum images that may be missing in the new version because they cannot be read or
    /// embedded.
    #[serde(default)]
    max_failed: usize,
}

/// Starts a rebuild, and returns its progress.
///
/// # Errors
/// `InvalidArgument` for more than [`FAILURES_MAX`] failures; `FailedPrecondition` for a model that
/// is not served, to switch a name that is not an alias, or if the collection's name is an alias of
/// the version of the model; `AlreadyExists` while a rebuild of the name runs, or one that fills
/// the same version; `ResourceExhausted` if too many rebuilds and uploads run.
pub(crate) fn begin(
    state: &Arc<ImagesState>,
    name: &str,
    request: &RebuildRequest,
) -> Result<Value> {
    let model = request.model.as_str();
    let switch = request.switch;
    if request.max_failed > FAILURES_MAX {
        return Err(Error::invalid(format!("\"max_failed\" is {FAILURES_MAX} at most")));
    }
    let registry = state.services.registry()?;
    let old = ImageCollection::open(&registry, name)?;
    let wanted = CollectionSpec::rebuilt(old.kind, model);
    let plan = EmbeddingPlan::of(None, &wanted.images());
    let planned = plan.has_embeddings().then(|| state.services.planned_embedder(&plan));
    let embedder = planned.transpose()?;
    if old.model == model {
        return Err(Error::precondition(format!(
            "\"{name}\" is of model \"{model}\" already; name another model"
        )));
    }
    if switch && !registry.aliases().iter().any(|(alias, _)| alias == name) {
        return Err(Error::precondition(format!(
            "\"{name}\" is not an alias and cannot be switched; rebuild its alias, or leave out \"switch\""
        )));
    }
    begun_version(&registry, &old, model)?;
    let mut all = state.rebuilds.lock();
    if let Some(other) = excluding(&all, name, &old.space, model) {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("\"{other}\" is being rebuilt already; wait until this rebuild has ended"),
        ));
    }
    let permit = state.bulk_permit_now()?;
    let rebuild = Arc::new(Rebuild {
        from: old.named.name().to_owned(),
        space: old.space.clone(),
        to: Mutex::default(),
        model: model.to_owned(),
        switch,
        max_failed: request.max_failed,
        total: AtomicU64::new(old.named.collection().count()),
        done: AtomicU64::new(0),
        ended: Mutex::default(),
        failures: Mutex::default(),
    });
    all.insert(name.to_owned(), rebuild.clone());
    let answer = rebuild.to_json();
    let stop = Arc::new(AtomicBool::new(false));
    let job = IngestJob::new(&state.services, wanted, stop);
    let name = name.to_owned();
    let thread = format!("ingest-in-{}", permit.number);
    let ended = rebuild.clone();
    let state = state.clone();
    let spawned = os::thread::spawn(thread, move || {
        // Not idle priority, because it takes locks of queries.
        os::thread::enter_low_priority("rebuilding a collection");
        let work = RebuildWork { state, registry, rebuild: &rebuild, old, name };
        let collection = work.name.as_str();
        let ended = &rebuild.ended;
        let whole = BackgroundJob { name: "the rebuild", collection, permit, ended };
        whole.run(|| work.run(&job, embedder.as_ref()));
    });
    if let Err(error) = spawned {
        *ended.ended.lock() = Some(Err(error.clone()));
        return Err(error);
    }
    Ok(answer)
}

struct RebuildWork<'a> {
    state: Arc<ImagesState>,
    registry: Arc<Registry>,
    rebuild: &'a Rebuild,
    old: ImageCollection,
    /// The requested name; an alias if it is to be switched.
    name: String,
}

impl RebuildWork<'_> {
    /// Runs the rebuild. Returns true if the alias was changed.
    fn run(&self, job: &IngestJob, embedder: Option<&Embedder>) -> Result<bool> {
        let new = self.version(embedder)?;
        *self.rebuild.to.lock() = Some(new.named.name().to_owned());
        let wanted = CollectionSpec { name: new.named.name().to_owned(), ..job.wanted.clone() };
        let job = Arc::new(IngestJob {
            services: job.services.clone(),
            wanted,
            runtime: job.runtime.clone(),
            stop: job.stop.clone(),
        });
        for _ in 0..PASSES_MAX {
            let generation = self.old.named.generation();
            let mut unseen = None;
            let mut lost = Vec::new();
            let moved = self.copy(&job, &new, &mut unseen, &mut lost)?
                + self.prune(&job, &new, &mut unseen)?;
            if moved > 0 {
                continue;
            }
            // Another pass would lose them again.
            for id in lost {
                self.record_failure(id, &panicked())?;
            }
            if let Some(error) = unseen {
                return Err(error.context(format!(
                    "\"{}\" is unchanged, because not all images could be seen",
                    self.name
                )));
            }
            let failed = self.rebuild.failures.lock().len();
            if failed > self.rebuild.max_failed {
                return Err(Error::precondition(format!(
                    "{failed} images could not be copied, so \"{}\" is unchanged; see \"failures\". To do \
                     without them, rebuild with \"max_failed\": {failed}",
                    self.name
                )));
            }
            if !self.rebuild.switch {
                return Ok(false);
            }
            let collection = new.named.name().to_owned();
            let switch = [AliasChange::Create { alias: self.name.clone(), collection }];
            let is_unchanged = || {
                let old = &self.old.named;
                old.generation() == generation && !old.removed()
            };
            match self.registry.change_aliases_if(&switch, is_unchanged) {
                Ok(true) => return Ok(true),
                // The collection has been written to, or still is.
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::unavailable(
            "the collection changes faster than it can be rebuilt; try again when less comes in",
        ))
    }

    /// Returns the version that an earlier rebuild with this model has begun, or a new one.
    fn version(&self, embedder: Option<&Embedder>) -> Result<ImageCollection> {
        if let Some(begun) = begun_version(&self.registry, &self.old, &self.rebuild.model)? {
            return Ok(begun);
        }
        let dims = match embedder {
            Some(embedder) => {
                // A blank image shows the number of values of an embedding.
                let blank = vision::Image { width: 1, height: 1, rgb: vec![0; 3] };
                embedder.run(&[embedder.tensor(&blank)?])?.first().map_or(0, Vec::len)
            }
            None => PLACEHOLDER_DIMS,
        };
        self.old.next_version(&self.registry, dims, &self.rebuild.model)
    }

    /// Copies missing images and changed payloads to the new collection, and returns their number.
    /// Sets `unseen` if damage may have hidden images. Adds images without an outcome to `lost`.
    fn copy(
        &self,
        job: &Arc<IngestJob>,
        new: &ImageCollection,
        unseen: &mut Option<Error>,
        lost: &mut Vec<PointId>,
    ) -> Result<u64> {
        let mut from = None;
        let mut moved = 0;
        let mut seen = 0;
        // An image that failed in an earlier pass is not tried again. It does not count as a
        // failure once it is removed.
        let before: BTreeSet<String> = self.rebuild.failures.lock().keys().cloned().collect();
        let mut lacking = BTreeSet::new();
        loop {
            check_roles(&self.registry, &self.old, new)?;
            let page = self.old.named.scroll(from.as_ref(), PAGE, None, PointParts::PAYLOAD)?;
            *unseen = unseen.take().or(page.unseen);
            let ids: Vec<PointId> = page.points.iter().map(|point| point.id).collect();
            seen += ids.len() as u64;
            let mut missing = Vec::new();
            for (point, there) in
                page.points.into_iter().zip(new.named.get_parts(&ids, PointParts::PAYLOAD))
            {
                match there {
                    Ok(Some(copy)) if copy.payload == point.payload => {}
                    Ok(Some(_)) => moved += self.copy_payload(job, new, point.id)?,
                    _ if before.contains(&point.id.to_string()) => {
                        lacking.insert(point.id.to_string());
                    }
                    _ => missing.push(point),
                }
            }
            moved += self.send(job, missing, lost)?;
            self.rebuild.done.store(seen, Ordering::Relaxed);
            match page.next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        self.rebuild.total.store(seen, Ordering::Relaxed);
        self.rebuild.failures.lock().retain(|id, _| lacking.contains(id) || !before.contains(id));
        Ok(moved)
    }

    /// Copies the payload of an image. Returns the number of copied payloads: 1, or 0 if the image
    /// was removed from the old collection. The payload can name an original, so no removal of the
    /// image comes between the read and the write.
    fn copy_payload(&self, job: &IngestJob, new: &ImageCollection, id: PointId) -> Result<u64> {
        let claimed: Vec<[u8; 16]> = uuid(&id).into_iter().collect();
        let _claim = job.services.writes.take(&claimed);
        let found = self.old.named.get_parts(&[id], PointParts::PAYLOAD).into_iter().next();
        let Some(point) = found.transpose()?.flatten() else { return Ok(0) };
        let change = PayloadChange::Overwrite(point.payload);
        new.named.change_payload(&PointSelection::Ids(vec![id]), &change)
    }

    /// Adds images to the new collection, and returns the number of added images. Adds those
    /// without an outcome to `lost`. Their thread has panicked, perhaps because of another image.
    fn send(
        &self,
        job: &Arc<IngestJob>,
        points: Vec<FetchedPoint>,
        lost: &mut Vec<PointId>,
    ) -> Result<u64> {
        let (sender, outcomes) = crossbeam_channel::bounded(PAGE);
        let mut pending: BTreeSet<PointId> = points.iter().map(|point| point.id).collect();
        for point in points {
            let id = point.id;
            match read(job, point, &self.old.space) {
                Ok(RebuildImage { name, bytes, payload }) => {
                    let sender = sender.clone();
                    let bytes_held = self.state.bulk.files().hold(bytes.len() as u64);
                    // The channel holds a page.
                    let done = Box::new(move |outcome: Result<_>| {
                        drop(bytes_held);
                        drop(sender.try_send((id, outcome.map(drop))))
                    });
                    self.state.ingest.send(IngestImage {
                        job: job.clone(),
                        name,
                        bytes,
                        payload,
                        done,
                    })?;
                }
                Err(error) => drop(sender.try_send((id, Err(error)))),
            }
        }
        drop(sender);
        let mut arrived = 0;
        for (id, outcome) in outcomes {
            pending.remove(&id);
            match outcome {
                Ok(()) => arrived += 1,
                Err(error) => self.record_failure(id, &error)?,
            }
        }
        lost.extend(pending);
        Ok(arrived)
    }

    /// Records an image that could not be copied.
    fn record_failure(&self, id: PointId, error: &Error) -> Result<()> {
        let mut failures = self.rebuild.failures.lock();
        if failures.len() >= FAILURES_MAX {
            return Err(Error::exhausted(format!(
                "more than {FAILURES_MAX} images could not be copied"
            )));
        }
        failures.insert(id.to_string(), error.message().to_owned());
        Ok(())
    }

    /// Removes images that the old collection does not have, and returns their number. Their
    /// originals are removed too: while the new collection named them, a client's removal left
    /// them. Sets `unseen` if damage may have hidden images.
    fn prune(
        &self,
        job: &IngestJob,
        new: &ImageCollection,
        unseen: &mut Option<Error>,
    ) -> Result<u64> {
        let mut from = None;
        let mut removed = 0;
        loop {
            check_roles(&self.registry, &self.old, new)?;
            let page = new.named.scroll(from.as_ref(), PAGE, None, PointParts::NONE)?;
            *unseen = unseen.take().or(page.unseen);
            let ids: Vec<PointId> = page.points.iter().map(|point| point.id).collect();
            let there = self.old.named.get_parts(&ids, PointParts::NONE);
            for (id, there) in ids.into_iter().zip(there) {
                if matches!(there, Ok(None)) {
                    let delete = || {
                        // No alias changes between the check and the removal.
                        let writing = new.writing(&self.registry, new.named.name())?;
                        check_roles(&self.registry, &self.old, new)?;
                        writing.delete(&[id])
                    };
                    removed += removal::remove(&job.services, &job.runtime, new, &[id], delete)?;
                }
            }
            match page.next {
                Some(next) => from = Some(next),
                None => return Ok(removed),
            }
        }
    }
}

/// Returns the version of `old` with embeddings of `model`, if there is one.
///
/// # Errors
/// As [`check_roles`].
fn begun_version(
    registry: &Registry,
    old: &ImageCollection,
    model: &str,
) -> Result<Option<ImageCollection>> {
    let found = old.siblings(registry).into_iter().find(|target| target.model == model);
    if let Some(begun) = &found {
        check_roles(registry, old, begun)?;
    }
    Ok(found)
}

/// Checks that a rebuild of `old` may change `new`. Clients can remove `old` and change aliases
/// while the rebuild runs.
///
/// # Errors
/// `NotFound` if `old` was removed or replaced; `FailedPrecondition` if the name of the collection
/// is an alias of `new`: the rebuild removes its images that `old` does not have.
fn check_roles(registry: &Registry, old: &ImageCollection, new: &ImageCollection) -> Result<()> {
    let from = old.named.name();
    if old.named.removed() {
        return Err(Error::not_found(format!(
            "\"{from}\" was removed or replaced, so its rebuild has ended"
        )));
    }
    // Clients add images by this name.
    let name = &old.space;
    let own = new.named.name();
    if !registry.aliases().iter().any(|(alias, collection)| alias == name && collection == own) {
        return Ok(());
    }
    Err(Error::precondition(format!(
        "\"{name}\" is the alias of \"{own}\" with model \"{}\"; a rebuild of \"{from}\" would \
         remove images from it: rebuild \"{name}\"",
        new.model
    )))
}

/// Returns the error of an image without an outcome.
fn panicked() -> Error {
    Error::internal("a panic ended the work on this image, or on one that was embedded with it")
}

struct RebuildImage {
    name: String,
    bytes: bytes::Bytes,
    payload: serde_json::Map<String, Value>,
}

/// Reads the original of a point in the directory `space`.
///
/// # Errors
/// `FailedPrecondition` for a point of features alone; `DataLoss` for an original that has changed;
/// the errors of the store of originals.
fn read(job: &IngestJob, point: FetchedPoint, space: &str) -> Result<RebuildImage> {
    let mut payload = point.payload;
    let block = payload.remove(BLOCK).unwrap_or_default();
    let text = |key: &str| block.get(key).and_then(Value::as_str);
    let key = text("original").ok_or_else(|| {
        Error::precondition(
            "this point has only features, and another model needs its image; add the image",
        )
    })?;
    let bytes = job.runtime.block_on(job.services.originals.get(&original_in(space, key)))?;
    // Other bytes would become another image, and this one would be missing in each pass.
    check_original(point.id, &bytes)?;
    Ok(RebuildImage { name: text("name").unwrap_or_default().to_owned(), bytes, payload })
}

#[cfg(test)]
mod tests {
    use search::registry::RegistryOptions;

    use super::*;

    #[test]
    fn a_rebuild_ends_if_its_versions_change_their_roles() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(dir.path())).unwrap();
        let wanted =
            CollectionSpec { name: "c".to_owned(), kind: None, model: None, quality_min: 0 };
        let old = ImageCollection::make(&registry, &wanted, 4, "m").unwrap();
        let new = old.next_version(&registry, 4, "n").unwrap();
        let checked = || check_roles(&registry, &old, &new).map_err(|error| error.kind());
        let switch = |collection: &str| {
            let change =
                AliasChange::Create { alias: "c".to_owned(), collection: collection.to_owned() };
            registry.change_aliases(&[change]).unwrap();
        };
        assert_eq!(checked(), Ok(()));
        switch("c.v2");
        assert_eq!(checked(), Err(ErrorKind::FailedPrecondition));
        switch("c.v1");
        assert_eq!(checked(), Ok(()));
        registry.remove("c.v1").unwrap();
        assert_eq!(checked(), Err(ErrorKind::NotFound));
    }
}
