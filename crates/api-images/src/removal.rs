//! Removes points of images, and their originals.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use base::{Error, ErrorKind, Result};
use image_features::collection::ImageCollection;
use image_features::features::{
    BLOCK, original_in, original_key, originals_of, own_original, uuid,
};
use image_features::template_file::FileFormat;
use search::collection::PointParts;
use search::filter::Filter;
use search::points::{FetchedPoint, PointId, PointSelection};
use search::registry::MatchingPoints;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::originals::StoredOriginal;
use super::removal_task::check_later;
use super::services::ImageServices;

/// Number of points that are removed at once. No upload of their images ends until their originals
/// are removed.
const POINTS_AT_ONCE: usize = 256;
/// Maximum requests of one removal to the store of originals at the same time.
const REQUESTS_AT_ONCE: usize = 16;

/// Removes points of a version of a collection by `delete`, and their originals that no other
/// version names. Returns the number of points. Does not call `delete` if no point exists.
///
/// # Errors
/// The errors of the collection and of the store of originals.
pub(crate) fn remove(
    services: &Arc<ImageServices>,
    runtime: &Handle,
    target: &ImageCollection,
    ids: &[PointId],
    delete: impl FnOnce() -> Result<u64>,
) -> Result<u64> {
    // Until the originals are removed, no upload writes the points again.
    let _claim = services.writes.take(&uuids(ids));
    let found = target.named.get_parts(ids, PointParts::PAYLOAD);
    if found.iter().all(|point| matches!(point, Ok(None))) {
        // The removal of another request may not be durable yet.
        return target.named.commit_visible().map(|()| 0);
    }
    let images = readable(found)?;
    let count = delete()?;
    remove_originals(services, runtime, &target.space, named_originals(&images, &target.space))?;
    Ok(count)
}

/// Removes the selected points of a version of a collection, which was found as `name`, and their
/// originals that no other version names. Runs on a thread that has entered a runtime.
///
/// # Errors
/// As [`remove`]; the errors of [`ImageCollection::writing`].
pub(crate) fn remove_selected(
    services: &Arc<ImageServices>,
    target: &ImageCollection,
    name: &str,
    selection: &PointSelection,
) -> Result<u64> {
    let registry = services.registry()?;
    let runtime = Handle::current();
    match selection {
        PointSelection::Ids(ids) => {
            let mut count = 0;
            for chunk in ids.chunks(POINTS_AT_ONCE) {
                let delete = || target.writing(&registry, name)?.delete(chunk);
                count += remove(services, &runtime, target, chunk, delete)?;
            }
            Ok(count)
        }
        PointSelection::Filter(filter) => target.named.each_matching(filter, |points| {
            remove_matching(services, &runtime, target, name, points, filter)
        }),
    }
}

/// Removes points that still match `filter`.
fn remove_matching(
    services: &Arc<ImageServices>,
    runtime: &Handle,
    target: &ImageCollection,
    name: &str,
    points: &MatchingPoints,
    filter: &Filter,
) -> Result<u64> {
    let named = &target.named;
    let known = named.resolve(points.ids(), PointParts::NONE).into_iter().flatten().flatten();
    let ids: Vec<PointId> = known.map(|point| point.id).collect();
    let _claim = services.writes.take(&uuids(&ids));
    let mut images = readable(named.resolve(points.ids(), PointParts::PAYLOAD))?;
    let removed = {
        let registry = services.registry()?;
        let _writing = target.writing(&registry, name)?;
        named.delete_matching(points, filter)?
    };
    images.retain(|image| removed.contains(&named.internal(&image.id)));
    remove_originals(services, runtime, &target.space, named_originals(&images, &target.space))?;
    Ok(removed.len() as u64)
}

fn uuids(ids: &[PointId]) -> Vec<[u8; 16]> {
    ids.iter().filter_map(uuid).collect()
}

/// Returns the points that can be read.
///
/// # Errors
/// Returns the first error that is not a damaged point.
fn readable(found: Vec<Result<Option<FetchedPoint>>>) -> Result<Vec<FetchedPoint>> {
    let mut images = Vec::new();
    for point in found {
        match point {
            Ok(point) => images.extend(point),
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                tracing::warn!(%error, "a damaged image is removed; its original stays");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(images)
}

/// Removes the original of an image whose point was refused, if no version of the collection names
/// it. A collection that was removed meanwhile names none. Runs on a thread that may block.
pub(crate) fn remove_refused(
    services: &Arc<ImageServices>,
    runtime: &Handle,
    target: &ImageCollection,
    original: StoredOriginal,
) {
    let _claim = services.writes.take(&uuids(&[original.id]));
    let space = &target.space;
    if let Err(error) = remove_originals(services, runtime, space, vec![original]) {
        tracing::warn!(space, %error, "the original of an image that was not added is not removed yet");
    }
}

/// Removes originals in the directory `space` that no version of the collection names. If that
/// fails, or a collection that may need them is not open, they are removed in the background later.
/// The caller has claimed the ids of their images. Does not open the registry, because an upload
/// can end after a server that is stopping has closed it.
///
/// # Errors
/// Returns the errors of the store of originals.
fn remove_originals(
    services: &Arc<ImageServices>,
    runtime: &Handle,
    space: &str,
    originals: Vec<StoredOriginal>,
) -> Result<()> {
    if originals.is_empty() {
        return Ok(());
    }
    match known_versions(services, space) {
        Ok(versions) => remove_if_unnamed(services, runtime, &versions, space, originals.clone())
            .inspect_err(|_| check_later(services, runtime, space, &originals)),
        Err(error) => {
            tracing::warn!(space, %error, "originals that no image names are removed later");
            check_later(services, runtime, space, &originals);
            Ok(())
        }
    }
}

/// Returns the originals that points name in the directory `space`.
fn named_originals(images: &[FetchedPoint], space: &str) -> Vec<StoredOriginal> {
    images.iter().flat_map(|image| originals_of_point(image, space)).collect()
}

/// Returns the original that a point names in the directory `space`. A client may have removed the
/// service's block from the payload, or replaced it by that of another image. The original can then
/// have any format.
fn originals_of_point(image: &FetchedPoint, space: &str) -> Vec<StoredOriginal> {
    let of = |key: String| StoredOriginal { id: image.id, key };
    let named = original_key(&image.payload);
    if let Some(key) = named.and_then(|key| own_original(&image.id, space, key)) {
        return vec![of(key)];
    }
    let has_features_alone = named.is_none() && image.payload.contains_key(BLOCK);
    if has_features_alone || uuid(&image.id).is_none() {
        return Vec::new();
    }
    let start = originals_of(&image.id, space);
    FileFormat::names().map(|format| of(format!("{start}.{format}"))).collect()
}

/// Removes the originals in the directory `space` that no version of the collection names. Leaves
/// originals that were written after `until`, by the clock of the store. Keeps no reference to a
/// removed version. The work can take hours, and a reference would keep the memory and the disk
/// space of the version. An upload whose point is not written yet writes its original again
/// ([`Originals::keep`]).
///
/// [`Originals::keep`]: super::originals::Originals::keep
///
/// # Errors
/// `Unavailable` if the registry is closed; the errors of [`ImageCollection::known_of`] and of the
/// store of originals.
pub(crate) async fn remove_unnamed(
    services: &Arc<ImageServices>,
    space: &str,
    until: SystemTime,
) -> Result<()> {
    // Checked before the list of originals is read, which can take long.
    known_versions(services, space)?;
    let remove =
        |originals: Vec<StoredOriginal>| remove_part(services.clone(), space.to_owned(), originals);
    services.originals.each_written_until(space, until, POINTS_AT_ONCE, remove).await
}

/// Removes those of `originals` in the directory `space` that no version of the collection names.
///
/// # Errors
/// As [`remove_unnamed`].
pub(crate) async fn remove_listed(
    services: &Arc<ImageServices>,
    space: &str,
    originals: BTreeSet<StoredOriginal>,
) -> Result<()> {
    let mut originals = originals.into_iter();
    loop {
        let part: Vec<StoredOriginal> = originals.by_ref().take(POINTS_AT_ONCE).collect();
        if part.is_empty() {
            return Ok(());
        }
        remove_part(services.clone(), space.to_owned(), part).await?;
    }
}

/// Removes one part of the originals of [`remove_unnamed`] or [`remove_listed`].
async fn remove_part(
    services: Arc<ImageServices>,
    space: String,
    originals: Vec<StoredOriginal>,
) -> Result<()> {
    let runtime = Handle::current();
    let work = move || -> Result<()> {
        let count = originals.len();
        let ids: Vec<PointId> = originals.iter().map(|original| original.id).collect();
        let _claim = services.writes.take(&uuids(&ids));
        let versions = known_versions(&services, &space)?;
        remove_if_unnamed(&services, &runtime, &versions, &space, originals)?;
        services.removed.count_checked(count);
        Ok(())
    };
    let removed = tokio::task::spawn_blocking(work).await;
    removed
        .map_err(|error| Error::internal("the removal of originals ended early").caused_by(error))?
}

/// Returns the collections whose originals are in the directory `space`. Does not open the
/// registry, because a server that is stopping has closed it.
fn known_versions(services: &ImageServices, space: &str) -> Result<Vec<ImageCollection>> {
    let registry = services.registry.opened();
    let registry = registry.ok_or_else(|| Error::unavailable("the collections are not open"))?;
    ImageCollection::known_of(&registry, space)
}

/// Removes the originals in the directory `space` that no point of `versions`, the versions of the
/// collection, names. The caller has claimed the ids of their images.
fn remove_if_unnamed(
    services: &Arc<ImageServices>,
    runtime: &Handle,
    versions: &[ImageCollection],
    space: &str,
    mut originals: Vec<StoredOriginal>,
) -> Result<()> {
    for version in versions {
        let ids: Vec<PointId> = originals.iter().map(|original| original.id).collect();
        let points = version.named.get_parts(&ids, PointParts::PAYLOAD);
        // A deletion that failed is in memory until a crash undoes it, and then the image needs its
        // original.
        version.named.commit_visible()?;
        let left = originals.into_iter().zip(points);
        let left = left.filter(|(original, point)| !names(point, original, space));
        originals = left.map(|(original, _)| original).collect();
    }
    let keys = originals.into_iter().map(|original| original.key).collect();
    runtime.block_on(remove_all(services, keys))
}

/// Returns true if a point names an original. A point that cannot be read may name it.
fn names(point: &Result<Option<FetchedPoint>>, original: &StoredOriginal, space: &str) -> bool {
    match point {
        Ok(Some(point)) => {
            original_key(&point.payload).is_some_and(|key| original_in(space, key) == original.key)
        }
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Removes originals. If the store refuses one, still removes the others.
///
/// # Errors
/// The first error of the store.
async fn remove_all(services: &Arc<ImageServices>, keys: Vec<String>) -> Result<()> {
    let mut keys = keys.into_iter();
    let mut running = JoinSet::new();
    let mut outcome = Ok(());
    loop {
        while running.len() < REQUESTS_AT_ONCE {
            let Some(key) = keys.next() else { break };
            let services = services.clone();
            running.spawn(async move { services.originals.remove(&key).await });
        }
        let Some(ended) = running.join_next().await else { return outcome };
        let removed = ended.unwrap_or_else(|error| {
            Err(Error::internal("the removal of an original ended early").caused_by(error))
        });
        outcome = outcome.and(removed);
    }
}
