//! Writes images as points of a collection. The original is written before the point.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Result;
use bytes::Bytes;
use image_features::collection::ImageCollection;
use image_features::features::{BLOCK, Features, original_key};
use image_features::point_checks::{check_embedding, check_payload_size};
use search::collection::PointParts;
use search::points::{FetchedPoint, NewPoint, PointId, check_levels};
use search::registry::NamedCollection;
use serde_json::{Map, Value, json};

use super::bulk::BulkOutcome;
use super::job::IngestJob;
use super::originals::{StoredOriginal, WrittenOriginal};
use super::removal::remove_refused;
use super::services::ImageServices;

/// Time between two attempts of bulk work to write while memory is short.
const WRITE_RETRY: Duration = Duration::from_millis(100);
/// Longest time of the attempts of bulk work to write while memory is short.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(120);
/// Maximum bytes of a payload's JSON with the service's block. Collections take 64 KiB with the id,
/// which has fewer than 64 bytes.
const STORED_BYTES_MAX: usize = (64 << 10) - 64;

#[derive(Clone, Debug)]
pub(crate) struct PutOutcome {
    /// True if the collection did not have the image before.
    pub(crate) added: bool,
    id: PointId,
    /// The service's block of its payload.
    block: Value,
}

impl PutOutcome {
    pub(crate) fn added(features: &Features) -> PutOutcome {
        let facts = &features.facts;
        let block = json!({
            "name": facts.name, "width": facts.width, "height": facts.height, "keypoints": facts.keypoints,
        });
        PutOutcome { added: true, id: PointId::Uuid(facts.id), block }
    }

    /// Returns the outcome for an existing point. Returns `None` for a point of features alone: the
    /// image replaces it and adds the original.
    pub(crate) fn present(id: PointId, payload: &Map<String, Value>) -> Option<PutOutcome> {
        original_key(payload)?;
        let block = payload.get(BLOCK).cloned().unwrap_or_default();
        Some(PutOutcome { added: false, id, block })
    }

    /// Returns the outcome of a repetition of the same image.
    pub(crate) fn of_repetition(&self) -> PutOutcome {
        PutOutcome { added: false, ..self.clone() }
    }

    pub(crate) fn status(&self) -> &'static str {
        if self.added { "added" } else { "present" }
    }

    /// Returns the response to one image.
    pub(crate) fn to_json(&self) -> Value {
        let of = |key: &str| self.block.get(key).cloned().unwrap_or_default();
        json!({
            "id": self.id, "status": self.status(), "name": of("name"), "width": of("width"),
            "height": of("height"), "keypoints": of("keypoints"),
        })
    }

    /// Returns the outcome as requests with many images report it.
    pub(crate) fn of_bulk(&self) -> BulkOutcome {
        BulkOutcome { id: self.id, added: self.added }
    }
}

/// Returns "added", "present" or the kind of error.
pub(crate) fn status_of(outcome: &Result<PutOutcome>) -> &'static str {
    outcome.as_ref().map_or_else(|error| error.kind().name(), PutOutcome::status)
}

/// Returns the outcome of each image that the collection has, as [`PutOutcome::present`] does, and
/// `None` for others. The images that it has are durable when this returns.
///
/// # Errors
/// Per image, the errors of [`NamedCollection::get`] and [`NamedCollection::commit_visible`].
pub(crate) fn present(
    named: &NamedCollection,
    ids: &[[u8; 16]],
) -> Vec<Result<Option<PutOutcome>>> {
    let points: Vec<PointId> = ids.iter().map(|id| PointId::Uuid(*id)).collect();
    let found = named.get_parts(&points, PointParts::PAYLOAD);
    let outcome = |found: Result<Option<FetchedPoint>>| {
        Ok(found?.and_then(|point| PutOutcome::present(point.id, &point.payload)))
    };
    let mut outcomes: Vec<Result<Option<PutOutcome>>> = found.into_iter().map(outcome).collect();
    let is_present = |outcome: &Result<Option<PutOutcome>>| matches!(outcome, Ok(Some(_)));
    // Another request has added them, perhaps a moment ago.
    if outcomes.iter().any(is_present)
        && let Err(error) = named.commit_visible()
    {
        let present = outcomes.iter_mut().filter(|outcome| is_present(outcome));
        present.for_each(|outcome| *outcome = Err(error.clone()));
    }
    outcomes
}

/// An image whose features are known.
pub(crate) struct EmbeddedImage<'a> {
    pub(crate) features: Features,
    pub(crate) embedding: Vec<f32>,
    /// Payload of the caller.
    pub(crate) payload: &'a Map<String, Value>,
    /// Bytes of its file.
    pub(crate) bytes: Bytes,
}

/// An image that is being added to a collection, and whose original is written.
pub(crate) struct ReadyImage {
    pub(crate) features: Features,
    pub(crate) embedding: Vec<f32>,
    pub(crate) payload: Map<String, Value>,
    pub(crate) original: WrittenOriginal,
}

impl ReadyImage {
    /// Returns its original in the store.
    pub(crate) fn stored_original(&self) -> StoredOriginal {
        self.original.stored(PointId::Uuid(self.features.facts.id))
    }
}

/// Writes the original of an image. The point follows. A point that the collection refuses leaves
/// no original.
///
/// # Errors
/// `FailedPrecondition` for an embedding of another length than the collection's; `InvalidArgument`
/// for one that cannot be compared; `TooLarge` for a payload; the errors of the store of originals.
pub(crate) async fn with_original(
    services: &ImageServices,
    target: &ImageCollection,
    image: EmbeddedImage<'_>,
) -> Result<ReadyImage> {
    let EmbeddedImage { mut features, embedding, payload, bytes } = image;
    target.check_dims(embedding.len())?;
    check_embedding(&embedding, embedding.len())?;
    features.tensor = Vec::new();
    let key = features.facts.original(&target.space);
    let payload = features.facts.payload(payload, &key);
    check_payload_size(&payload, STORED_BYTES_MAX)?;
    check_levels(PointId::Uuid(features.facts.id), &payload)?;
    let original = services.originals.put_first(key, bytes).await?;
    Ok(ReadyImage { features, embedding, payload, original })
}

/// Writes a point, which is durable when this returns.
///
/// # Errors
/// Returns the errors of [`NamedCollection::upsert`].
pub(crate) fn write(named: &NamedCollection, image: &ReadyImage) -> Result<()> {
    with_points(std::slice::from_ref(image), |points| named.upsert(points))
}

fn with_points<T>(
    images: &[ReadyImage],
    then: impl FnOnce(&[NewPoint<'_>]) -> Result<T>,
) -> Result<T> {
    let records: Vec<Vec<u8>> = images.iter().map(|image| image.features.record()).collect();
    let points = images.iter().zip(&records).map(|(image, record)| NewPoint {
        id: PointId::Uuid(image.features.facts.id),
        embedding: &image.embedding,
        record,
        payload: &image.payload,
    });
    then(&points.collect::<Vec<_>>())
}

/// Writes the images that the collection does not have, as [`NamedCollection::try_upsert_if`] does.
/// Returns the outcome of each image that another request has added meanwhile, and whose payload
/// may have changed since. Returns `None` for the written ones. The caller has claimed their ids.
///
/// # Errors
/// Returns the errors of [`NamedCollection::try_upsert_if`].
fn write_missing(
    named: &NamedCollection,
    points: &[NewPoint<'_>],
) -> Result<Vec<Option<PutOutcome>>> {
    let mut by_others = Vec::with_capacity(points.len());
    named.try_upsert_if(points, |new, stored| {
        // An equal point may be of an earlier attempt, and not durable yet.
        let other = stored.filter(|stored| *stored != new.payload);
        let other = other.and_then(|stored| PutOutcome::present(new.id, stored));
        let is_missing = other.is_none();
        by_others.push(other);
        is_missing
    })?;
    Ok(by_others)
}

/// Writes some images of a bulk job, and waits while there is no memory for them. It waits here and
/// not in the collection, so that other writers are not blocked and no flush is escalated. The
/// alias is locked only during each attempt. Returns the outcome of each image.
///
/// # Errors
/// Returns the errors of [`NamedCollection::try_upsert_if`] after the wait, or once the client has
/// disconnected; the errors of [`ImageCollection::writing`] at once.
pub(crate) fn write_or_wait(
    job: &IngestJob,
    target: &ImageCollection,
    images: &Arc<Vec<ReadyImage>>,
    which: Range<usize>,
) -> Result<Vec<PutOutcome>> {
    let attempt = || -> Result<Result<Vec<PutOutcome>>> {
        let services = job.services.clone();
        let registry = services.registry()?;
        let name = job.wanted.name.clone();
        let target = target.clone();
        let images = images.clone();
        let which = which.clone();
        let runtime = job.runtime.clone();
        job.at_ordinary_priority(move || {
            let images = images.get(which).unwrap_or_default();
            let ids: Vec<[u8; 16]> = images.iter().map(|image| image.features.facts.id).collect();
            let _claim = services.writes.take(&ids);
            for image in images {
                runtime.block_on(services.originals.keep(&image.original))?;
            }
            let writing = target.writing(&registry, &name)?;
            let outcome = |(other, image): (Option<PutOutcome>, &ReadyImage)| {
                other.unwrap_or_else(|| PutOutcome::added(&image.features))
            };
            let written = with_points(images, |points| write_missing(&writing, points));
            Ok(written.map(|others| others.into_iter().zip(images).map(outcome).collect()))
        })
    };
    while_overloaded(attempt, || job.stopped())
}

/// Removes the original of an image of a bulk job whose point was refused.
pub(crate) fn discard(
    job: &IngestJob,
    target: &ImageCollection,
    images: &Arc<Vec<ReadyImage>>,
    at: usize,
) {
    let Some(original) = images.get(at).map(ReadyImage::stored_original) else { return };
    let services = job.services.clone();
    let runtime = job.runtime.clone();
    let target = target.clone();
    let space = target.space.clone();
    let discarded = job.at_ordinary_priority(move || {
        remove_refused(&services, &runtime, &target, original);
        Ok(())
    });
    if let Err(error) = discarded {
        tracing::warn!(space, %error, "the original of an image that was not added stays");
    }
}

/// Repeats `attempt` while its write, the inner result, is refused because of an overload, and at
/// most until `stopped` returns true. The outer error of an attempt is final.
fn while_overloaded<T>(
    mut attempt: impl FnMut() -> Result<Result<T>>,
    stopped: impl Fn() -> bool,
) -> Result<T> {
    let give_up = Instant::now() + WRITE_WAIT_MAX;
    loop {
        match attempt()? {
            Err(error) if error.is_overload() && Instant::now() < give_up && !stopped() => {
                std::thread::sleep(WRITE_RETRY)
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Error;
    use search::Metric;
    use search::points::{PayloadChange, PointSelection};
    use search::registry::{CollectionSettings, Registry, RegistryOptions};

    use super::*;

    fn registry(directory: &std::path::Path) -> Arc<Registry> {
        Registry::open(RegistryOptions::for_tests(directory)).unwrap()
    }

    #[test]
    fn images_of_other_requests_keep_their_payload() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let named = registry.create("c", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = |tag: &str| {
            let block = json!({ "original": "0/1.png", "name": tag });
            Map::from_iter([(BLOCK.to_owned(), block), ("tag".to_owned(), tag.into())])
        };
        let (own, other) = (payload("own"), payload("other"));
        let point = |id: u8, payload| NewPoint {
            id: PointId::Uuid([id; 16]),
            embedding: &[1.0, 0.0],
            record: &[],
            payload,
        };
        named.upsert(&[point(1, &other)]).unwrap();
        let stored = |id: u8| named.get(&PointId::Uuid([id; 16])).unwrap().unwrap().payload;
        let batch = [point(1, &own), point(2, &own)];
        for _ in 0..2 {
            let outcomes = write_missing(&named, &batch).unwrap();
            let added: Vec<Option<bool>> =
                outcomes.iter().map(|other| other.as_ref().map(|other| other.added)).collect();
            // The second time, the equal point counts as one of an earlier attempt.
            assert_eq!(added, [Some(false), None]);
            assert_eq!((stored(1), stored(2)), (other.clone(), own.clone()));
        }
    }

    #[test]
    fn a_repeated_bulk_write_keeps_a_payload_that_a_client_changed() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let named = registry.create("c", CollectionSettings::new(2, Metric::L2)).unwrap();
        let block = json!({ "original": "0/1.png" });
        let own = Map::from_iter([(BLOCK.to_owned(), block), ("n".to_owned(), 0.into())]);
        let id = PointId::Uuid([1; 16]);
        let point = NewPoint { id, embedding: &[1.0, 0.0], record: &[], payload: &own };
        let selection = PointSelection::Ids(vec![id]);
        let payload = Map::from_iter([("n".to_owned(), 1.into())]);
        let change = PayloadChange::Set { payload, key: None };
        let is_there = || write_missing(&named, &[point]).unwrap().remove(0).is_some();
        // Two attempts, and then one after the client's change.
        assert!(!is_there() && !is_there());
        assert_eq!(named.change_payload(&selection, &change).unwrap(), 1);
        assert!(is_there());
        assert_eq!(named.get(&id).unwrap().unwrap().payload["n"], 1);
    }

    #[test]
    fn only_the_write_is_repeated() {
        let mut calls = 0;
        let moved = || -> Result<Result<()>> {
            calls += 1;
            Err(Error::unavailable("it has just become another collection"))
        };
        assert!(while_overloaded(moved, || false).is_err());
        assert_eq!(calls, 1);
        let written = || {
            calls += 1;
            Ok(if calls < 4 { Err(Error::exhausted("no memory")) } else { Ok(()) })
        };
        assert!(while_overloaded(written, || false).is_ok());
        assert_eq!(calls, 4);
    }

    #[test]
    fn a_write_without_a_client_is_not_repeated() {
        let mut calls = 0;
        let refused = || -> Result<Result<()>> {
            calls += 1;
            Ok(Err(Error::exhausted("no memory")))
        };
        assert!(while_overloaded(refused, || true).is_err());
        assert_eq!(calls, 1);
    }
}
