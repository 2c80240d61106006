//! Lists, reads and removes collections and images.

use std::sync::Arc;
use std::time::Instant;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image_features::collection::{ImageCollection, has_images};
use image_features::features::{self, BLOCK, DecodingInput};
use image_features::point_checks::stored_graph;
use image_features::settings::ImageKind;
use image_features::template_file::{self, FileFormat};
use search::collection::{PointParts, until};
use search::points::{FetchedPoint, PointId, PointSelection};
use search::registry::{ListedState, NamedCollection, is_version_of};
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use transport::{ByteBudget, Reservation};
use vision::{thumbnail, thumbnail_bytes};

use super::hits::at;
use super::removal;
use super::removal_task::remove_collection;
use super::services::ImageServices;
use super::state::ImagesState;

/// Maximum images of one page.
const PAGE_MAX: usize = 1000;
/// Maximum ids of one request.
const IDS_MAX: usize = 1000;
/// Maximum bytes of an original that is hashed on a connection thread, in about half a millisecond.
const HASHED_HERE_MAX: usize = 1 << 20;
/// Allowed sides of thumbnails in pixels.
const SIDES: std::ops::RangeInclusive<u32> = 16..=1024;

/// Returns the collections of images as JSON, and the model that embeds the images of new ones.
/// Leaves out collections without a name for which `may_see` returns true.
///
/// # Errors
/// Returns the errors of the registry.
pub(crate) fn collections(
    services: &ImageServices,
    may_see: impl Fn(&str) -> bool,
) -> Result<Value> {
    let registry = services.registry()?;
    let aliases = registry.aliases();
    // The first alias that the caller may use, or the collection's own name. The name under which
    // its images are added comes before the aliases that clients have made.
    let name_of = |own: &str| {
        let known = aliases.iter().filter(|(_, real)| real == own).map(|(alias, _)| alias.as_str());
        let mut names: Vec<&str> = known.collect();
        names.sort_by_key(|alias| !is_version_of(own, alias));
        names.push(own);
        names.into_iter().find(|name| may_see(name)).map(str::to_owned)
    };
    let mut listed = Vec::new();
    for entry in registry.list() {
        let Some(name) = name_of(&entry.name) else { continue };
        match entry.state {
            ListedState::Ready(named) => {
                let Some(target) = ImageCollection::of(&named) else { continue };
                listed.push(json!({
                    "name": name, "collection": entry.name, "state": "ready", "kind": target.kind.name(),
                    "model": target.model, "count": named.collection().count(), "dims": named.settings().dims,
                }));
            }
            ListedState::Opening => {
                listed.push(json!({ "name": name, "collection": entry.name, "state": "opening" }))
            }
            ListedState::Broken(error) => listed.push(json!({
                "name": name, "collection": entry.name, "state": "broken", "reason": error.message(),
            })),
        }
    }
    Ok(json!({ "collections": listed, "embedding": embedding_default(services) }))
}

/// Returns the model that a new collection gets, or the reason why it gets none, as JSON.
pub(crate) fn embedding_default(services: &ImageServices) -> Value {
    match services.embedder(None, None) {
        Ok(embedder) => json!({ "model": embedder.name() }),
        Err(error) => json!({ "error": error.message() }),
    }
}

/// Returns a page of a collection's images as JSON.
///
/// # Errors
/// Returns the errors of [`NamedCollection::scroll`]; `InvalidArgument` for a page that is too
/// large; `DeadlineExceeded` if the filter has to read payloads for longer than a request may take.
pub(crate) async fn page(
    services: &Arc<ImageServices>,
    name: &str,
    limit: usize,
    offset: Option<PointId>,
    filter: Option<String>,
) -> Result<Value> {
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Error::invalid(format!("limit is 1 to {PAGE_MAX}")));
    }
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    let deadline = Instant::now() + services.requests.limits.request_timeout;
    let work = move || until(deadline, || page_json(&target.named, limit, offset, filter));
    services.pool.run_wanted(work).await
}

/// Returns a page of the images of a collection as JSON.
fn page_json(
    named: &NamedCollection,
    limit: usize,
    offset: Option<PointId>,
    filter: Option<String>,
) -> Result<Value> {
    let clause = filter.map(|filter| api_qdrant::parse_filter(named, &filter)).transpose()?;
    let page = named.scroll(offset.as_ref(), limit, clause.as_ref(), PointParts::PAYLOAD)?;
    let count = named.count(clause.as_ref())?;
    let images: Vec<Value> =
        page.points.into_iter().map(|point| page_entry(&point.id, point.payload)).collect();
    Ok(json!({
        "images": images, "next": page.next, "count": count.count, "partial": page.partial || count.partial,
    }))
}

/// Returns the entry of an image in a page, from its point's id and payload.
pub fn page_entry(id: &PointId, mut payload: Map<String, Value>) -> Value {
    let block = payload.remove(BLOCK).unwrap_or_default();
    let of = |key: &str| block.get(key).cloned().unwrap_or_default();
    json!({
        "id": id, "name": of("name"), "format": of("format"), "width": of("width"), "height": of("height"),
        "bytes": of("bytes"), "keypoints": of("keypoints"), "payload": payload,
    })
}

/// Returns the ids that the collection does not have, as JSON.
///
/// # Errors
/// `InvalidArgument` for too many ids or an invalid one; errors of the collection.
pub(crate) async fn missing(
    services: &Arc<ImageServices>,
    name: &str,
    ids: Vec<Value>,
) -> Result<Value> {
    if ids.len() > IDS_MAX {
        return Err(Error::invalid(format!("at most {IDS_MAX} ids at a time")));
    }
    let ids: Vec<PointId> = serde_json::from_value(ids.into())
        .map_err(|error| Error::invalid("ids").caused_by(error))?;
    let registry = services.registry()?;
    let target = match ImageCollection::open(&registry, name) {
        Ok(target) => target,
        // A collection that does not exist has no image.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(json!({ "missing": ids })),
        Err(error) => return Err(error),
    };
    let work = move || {
        let found = target.named.get_parts(&ids, PointParts::NONE);
        let mut missing = Vec::new();
        for (id, found) in ids.iter().zip(found) {
            if found?.is_none() {
                missing.push(*id);
            }
        }
        Ok(json!({ "missing": missing }))
    };
    services.pool.run_wanted(work).await
}

/// Reads the point of an image.
///
/// # Errors
/// `NotFound`; errors of the collection.
pub(crate) async fn point(
    services: &Arc<ImageServices>,
    named: &Arc<NamedCollection>,
    id: PointId,
    parts: PointParts,
) -> Result<FetchedPoint> {
    let named = named.clone();
    let work = move || {
        let found = named.get_parts(&[id], parts).into_iter().next().unwrap_or(Ok(None))?;
        found.ok_or_else(|| no_image(id))
    };
    services.pool.run_wanted(work).await
}

/// Returns the key of a point's original in the directory `space`.
///
/// # Errors
/// `NotFound` for a point of features alone.
fn key(point: &FetchedPoint, space: &str) -> Result<String> {
    let key = features::original_key(&point.payload);
    key.map(|key| features::original_in(space, key)).ok_or_else(|| {
        Error::not_found(format!(
            "point {} has no original image: only its features were uploaded; upload the image to add it",
            point.id
        ))
    })
}

/// An image as it was sent.
pub(crate) struct OriginalFile {
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Bytes,
    /// Memory of the bytes.
    pub(crate) memory: Reservation,
}

/// Checks that an original is the file that was added as the image `id`. Clients may keep the
/// response for a day, and a rebuild would make another image of other bytes.
///
/// # Errors
/// `DataLoss` if it is not.
pub(crate) fn check_original(id: PointId, bytes: &[u8]) -> Result<()> {
    if PointId::Uuid(features::id_of(bytes)) == id {
        return Ok(());
    }
    Err(Error::data_loss(
        "the original is damaged: its bytes are not those of the image that was added; copy it back from a copy of \
         the store, or delete the image and add it again",
    ))
}

/// Returns an image as it was sent.
///
/// # Errors
/// `NotFound`; `DataLoss` for an original that has changed; errors of the store of originals;
/// `ResourceExhausted` with retry advice if requests hold the memory.
pub(crate) async fn original(
    services: &Arc<ImageServices>,
    name: &str,
    id: PointId,
) -> Result<OriginalFile> {
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    let point = point(services, &target.named, id, PointParts::PAYLOAD).await?;
    let key = key(&point, &target.space)?;
    let (bytes, memory) = services.originals.get_reserved(&key, &services.requests.memory).await?;
    let file = OriginalFile { media_type: template_file::media_type(&bytes), bytes, memory };
    if file.bytes.len() <= HASHED_HERE_MAX {
        return check_original(id, &file.bytes).map(|()| file);
    }
    services.pool.run_wanted(move || check_original(id, &file.bytes).map(|()| file)).await
}

/// Returns a JPEG of an image that is scaled to `size` pixels.
///
/// # Errors
/// As [`original`], and `NotFound` for a template; `InvalidArgument` for a side out of range.
pub(crate) async fn small(
    services: &Arc<ImageServices>,
    name: &str,
    id: PointId,
    size: u32,
) -> Result<Vec<u8>> {
    if !SIDES.contains(&size) {
        return Err(Error::invalid(format!("size is {} to {}", SIDES.start(), SIDES.end())));
    }
    let file = original(services, name, id).await?;
    let budget = services.requests.memory.clone();
    let work = move || {
        let OriginalFile { bytes, memory: _file_memory, .. } = file;
        if matches!(FileFormat::sniff(&bytes), Some(FileFormat::Template(_))) {
            return Err(Error::not_found(format!(
                "image {id} was uploaded as a template, which has no pixels; GET .../{id}/keypoints returns its minutiae"
            )));
        }
        thumbnail_of(&budget, &bytes, size)
    };
    services.pool.run_wanted(work).await
}

/// Decodes a file and scales its image, in memory that is reserved for both.
///
/// # Errors
/// The errors of the file; the errors of [`ByteBudget::reserve`].
fn thumbnail_of(budget: &Arc<ByteBudget>, bytes: &[u8], size: u32) -> Result<Vec<u8>> {
    let kind = ImageKind::Photo;
    let decoding = DecodingInput { kind, bytes, name: "", embedder: None, has_view: false };
    let mut memory = features::reserve(budget, &decoding)?;
    let image = features::decoded(&memory, bytes, "")?.image;
    let needed = thumbnail_bytes(&image, size);
    if needed > budget.max() {
        // `grow` would advise to try again, but the scaling never fits.
        budget.reserve(needed)?;
    }
    memory.grow(needed.saturating_sub(memory.bytes()))?;
    thumbnail(&image, size)
}

/// Returns an image's keypoints in its own pixels, as JSON.
///
/// # Errors
/// `NotFound`, also for a point without keypoints; `DataLoss` for a damaged record.
pub(crate) async fn keypoints(
    services: &Arc<ImageServices>,
    name: &str,
    id: PointId,
) -> Result<Value> {
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    let point = point(
        services,
        &target.named,
        id,
        PointParts { embedding: false, record: true, payload: true },
    )
    .await?;
    let graph = stored_graph(&point.id, &point.record)?;
    let side = |key: &str| {
        point.payload.get(BLOCK).and_then(|block| block.get(key)?.as_f64()).unwrap_or(0.0)
    };
    let (width, height) = (side("width"), side("height"));
    let places = graph.vertices.iter().enumerate().filter_map(|(number, vertex)| {
        let (x, y) = at(&graph, number, width, height)?;
        Some(json!([x, y, vertex.direction, vertex.kind]))
    });
    Ok(json!({
        "width": width as u64, "height": height as u64, "kind": target.kind.name(), "keypoints": places.collect::<Vec<_>>(),
    }))
}

/// Removes an image, and its original if no other version of the collection names it. Continues if
/// the client disconnects.
///
/// # Errors
/// `NotFound`; the errors of the collection and of the store of originals.
pub(crate) async fn delete(services: &Arc<ImageServices>, name: &str, id: PointId) -> Result<()> {
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    let name = name.to_owned();
    let own = services.clone();
    let runtime = Handle::current();
    let work = move || {
        let delete = || target.writing(&registry, &name)?.delete(&[id]);
        match removal::remove(&own, &runtime, &target, &[id], delete)? {
            0 => Err(no_image(id)),
            _ => Ok(()),
        }
    };
    services.store_waits.run(work).await
}

fn no_image(id: PointId) -> Error {
    Error::not_found(format!("there is no image {id}"))
}

/// Removes a collection, durably. Its originals that no other version names are removed in the
/// background. Continues if the client disconnects.
///
/// # Errors
/// `NotFound`; the errors of [`remove_collection`].
pub(crate) async fn drop_collection(services: &Arc<ImageServices>, name: &str) -> Result<()> {
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    let services = services.clone();
    let removal = tokio::spawn(async move { remove_collection(&services, registry, target).await });
    removal.await.map_err(|error| Error::internal("a removal ended early").caused_by(error))?
}

/// The collections of images as Qdrant's interface uses them.
pub struct ImageRemoval(Arc<ImageServices>);

impl ImageRemoval {
    /// Creates the view of the collections of `state`.
    pub fn new(state: &ImagesState) -> ImageRemoval {
        ImageRemoval(state.services.clone())
    }
}

impl api_qdrant::ImageCollections for ImageRemoval {
    fn holds_images(&self, named: &NamedCollection) -> bool {
        has_images(named)
    }

    fn default_model(&self) -> Option<String> {
        let only = || Some(self.0.embedder(None, None).ok()?.name().to_owned());
        self.0.embedding_model.clone().or_else(only)
    }

    fn remove<'a>(&'a self, name: &'a str) -> api_qdrant::BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            // Qdrant's interface handles a collection that is missing or unreadable.
            let images = |named: Arc<NamedCollection>| {
                named.name() == name && ImageCollection::of(&named).is_some()
            };
            if !self.0.registry()?.get(name).is_ok_and(images) {
                return Ok(false);
            }
            drop_collection(&self.0, name).await.map(|()| true)
        })
    }

    fn delete_points(&self, name: &str, selection: &PointSelection) -> Result<bool> {
        let named = self.0.registry()?.get(name)?;
        let Some(target) = ImageCollection::of(&named) else { return Ok(false) };
        removal::remove_selected(&self.0, &target, name, selection).map(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use search::Metric;
    use search::points::NewPoint;
    use search::registry::{CollectionSettings, Registry, RegistryOptions};

    use super::*;

    #[test]
    fn a_large_thumbnail_is_made_in_reserved_memory() {
        let image = vision::Image { width: 1000, height: 1000, rgb: vec![9; 3_000_000] };
        let file = thumbnail(&image, 1000).unwrap();
        let budget = ByteBudget::new(1 << 30, Arc::default());
        assert!(!thumbnail_of(&budget, &file, 900).unwrap().is_empty());
        // The decoded image, and the plane between the two steps of the scaling.
        assert!(budget.peak() > 3_000_000 + 1000 * 900 * 16, "{}", budget.peak());
        assert_eq!(budget.used(), 0);
        // Decoding fits, and the scaling never does.
        let small = ByteBudget::new(12_000_000, Arc::default());
        let refused = thumbnail_of(&small, &file, 900).unwrap_err();
        assert_eq!((refused.kind(), small.used()), (ErrorKind::TooLarge, 0));
        assert!(!thumbnail_of(&small, &file, 100).unwrap().is_empty());
    }

    #[test]
    fn a_page_ends_at_its_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(dir.path())).unwrap();
        let named = registry.create("c", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = Map::from_iter([("n".to_owned(), json!([1]))]);
        let id = PointId::Number(1);
        let embedding = &[1.0, 0.0];
        named.upsert(&[NewPoint { id, embedding, record: &[], payload: &payload }]).unwrap();
        named.collection().flush().unwrap();
        // Numbers of values have no index.
        let filter = || Some(r#"{"must":[{"key":"n","values_count":{"gt":0}}]}"#.to_owned());
        let page = |deadline| until(deadline, || page_json(&named, 9, None, filter()));
        let late = page(Instant::now()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        let found = page(Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!(found["count"], 1);
    }
}
