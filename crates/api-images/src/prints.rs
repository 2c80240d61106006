//! Fingerprints of requests: images and templates, comparison of two, and templates of stored
//! ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use image_features::collection::ImageCollection;
use image_features::features::{self, DecodingInput, MinutiaeSource};
use image_features::point_checks::{self, stored_graph};
use image_features::print_files::stated_print;
use image_features::settings::ImageKind;
use image_features::template_file::{self, is_template};
use matching::template::{self, TemplateFormat};
use matching::{Graph, MatchOptions, Probe, Scratch};
use search::collection::PointParts;
use search::points::{FetchedPoint, PointId};
use search::registry::NamedCollection;
use serde_json::{Value, json};
use transport::ByteBudget;

use super::limits::{accept_score, check_threshold};
use super::services::ImageServices;

/// Minutiae of a file.
pub(crate) struct FilePrint {
    pub(crate) graph: Graph,
    /// Size of the image in pixels; of a template at 500 dots per inch.
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) decode: Duration,
    pub(crate) keypoints: Duration,
}

/// Reads the minutiae of an image, or of the first view of a template that has some.
///
/// # Errors
/// `InvalidArgument` or `TooLarge` for a file that cannot be read, with `name`; the errors of
/// [`ByteBudget::reserve`].
pub(crate) fn read(budget: &Arc<ByteBudget>, bytes: &[u8], name: &str) -> Result<FilePrint> {
    let started = Instant::now();
    let decoding = DecodingInput {
        kind: ImageKind::Fingerprint,
        bytes,
        name,
        embedder: None,
        has_view: false,
    };
    let memory = features::reserve(budget, &decoding)?;
    if is_template(ImageKind::Fingerprint, bytes) {
        let read = template_file::read(bytes).map_err(|error| features::of_image(error, name))?;
        let graph = read.view.graph;
        let (width, height) = (u32::from(graph.width), u32::from(graph.height));
        let decode = started.elapsed();
        return Ok(FilePrint { graph, width, height, decode, keypoints: Duration::ZERO });
    }
    let decoded = features::decoded(&memory, bytes, name)?;
    let after_decode = Instant::now();
    let graph = features::keypoints(ImageKind::Fingerprint, &decoded)?.graph;
    Ok(FilePrint {
        graph,
        width: decoded.image.width,
        height: decoded.image.height,
        decode: after_decode - started,
        keypoints: after_decode.elapsed(),
    })
}

/// A fingerprint to compare.
pub(crate) enum PrintSource {
    /// Bytes of an image or a template.
    File(Bytes),
    /// Id of a fingerprint in the collection.
    Point(PointId),
    /// Bytes of a keypoint graph.
    Record(Bytes),
}

/// Returns the error for a request with `id=` whose JSON body names both prints.
pub fn both_named() -> Error {
    Error::invalid("id= is for a file in the body; JSON names both prints")
}

/// Compares two fingerprints, one to one.
///
/// # Errors
/// `FailedPrecondition` for a collection of photographs; `NotFound` for an unknown id; the errors
/// of [`read`]; `InvalidArgument` for a print without minutiae: a score of 0 would say that the
/// fingers differ.
pub(crate) async fn verify(
    services: &Arc<ImageServices>,
    name: &str,
    threshold: Option<f32>,
    prints: [PrintSource; 2],
) -> Result<Value> {
    let target = prints_of(services, name)?;
    check_threshold(threshold)?;
    let threshold = threshold.unwrap_or_else(|| accept_score(ImageKind::Fingerprint, 1));
    let budget = services.requests.memory.clone();
    let work = move || {
        // A stored print and a file have different errors.
        let are_sent = prints.iter().all(|print| !matches!(print, PrintSource::Point(_)));
        let loaded = |print: PrintSource, name: &str| {
            let loaded = load(&target.named, &budget, print);
            loaded.map_err(|error| if are_sent { error.context(name) } else { error })
        };
        let [first, second] = prints;
        let first = loaded(first, "first")?;
        let second = loaded(second, "second")?;
        let probe = Probe::new(&first, MatchOptions::default());
        let mut record = Vec::new();
        second.encode(&mut record);
        let found = matching::explain(&probe, &record, &mut Scratch::new())?;
        Ok(json!({
            "score": found.score, "accepted": found.score >= threshold, "threshold": threshold,
            "pairs": found.pairs.len(),
            "minutiae": [first.vertices.len(), second.vertices.len()],
        }))
    };
    services.pool.run_wanted(work).await
}

/// Returns the template of a stored fingerprint. It states the finger and the quality of the print,
/// if the payload has them.
///
/// # Errors
/// As [`verify`]; `InvalidArgument` if the format cannot hold it.
pub(crate) async fn template(
    services: &Arc<ImageServices>,
    name: &str,
    id: PointId,
    format: TemplateFormat,
) -> Result<Vec<u8>> {
    let target = prints_of(services, name)?;
    let work = move || {
        let parts = PointParts { embedding: false, record: true, payload: true };
        let point = stored_point(&target.named, &id, parts)?;
        let graph = stored_graph(&id, &point.record)?;
        template::write_stating(&graph, stated_print(&point.payload), format)
    };
    services.pool.run_wanted(work).await
}

/// Opens a collection of fingerprints.
pub(crate) fn prints_of(services: &ImageServices, name: &str) -> Result<ImageCollection> {
    let target = ImageCollection::open(&*services.registry()?, name)?;
    if target.kind == ImageKind::Fingerprint {
        return Ok(target);
    }
    Err(Error::precondition(format!(
        "collection \"{name}\" holds photographs; this needs a collection of fingerprints"
    )))
}

/// Returns the minutiae of a print to compare.
fn load(named: &NamedCollection, budget: &Arc<ByteBudget>, print: PrintSource) -> Result<Graph> {
    let graph = match print {
        PrintSource::File(bytes) => {
            return read_to_compare(budget, &bytes).map(|print| print.graph);
        }
        PrintSource::Point(id) => stored(named, &id)?,
        PrintSource::Record(bytes) => point_checks::decode_graph(&bytes, ImageKind::Fingerprint)?,
    };
    if graph.vertices.is_empty() {
        // A root of a cluster sends the record of a stored print: both have the same error.
        return Err(Error::invalid(
            "the record of a print has no minutiae, so it cannot be compared; add another \
             impression",
        ));
    }
    Ok(graph)
}

/// Reads the minutiae of a file that is compared with other prints.
///
/// # Errors
/// As [`read`]; `InvalidArgument` for a print without minutiae.
pub(crate) fn read_to_compare(budget: &Arc<ByteBudget>, bytes: &[u8]) -> Result<FilePrint> {
    let print = read(budget, bytes, "")?;
    let source = if is_template(ImageKind::Fingerprint, bytes) {
        MinutiaeSource::Template
    } else {
        MinutiaeSource::Image
    };
    features::check_minutiae(&print.graph, source, "compared")?;
    Ok(print)
}

fn stored(named: &NamedCollection, id: &PointId) -> Result<Graph> {
    let parts = PointParts { embedding: false, record: true, payload: false };
    stored_graph(id, &stored_point(named, id, parts)?.record)
}

/// Returns the parts of a stored point.
///
/// # Errors
/// `NotFound`; the errors of the collection.
fn stored_point(named: &NamedCollection, id: &PointId, parts: PointParts) -> Result<FetchedPoint> {
    let point = named.get_parts(&[*id], parts).into_iter().next();
    let missing = || Error::not_found(format!("there is no image {id}"));
    point.ok_or_else(missing)??.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use matching::synthetic;

    use super::*;

    #[test]
    fn a_template_is_read_in_reserved_memory() {
        let file = template::write(&synthetic::fingerprint(3), TemplateFormat::Iso2005).unwrap();
        let budget = |bytes| ByteBudget::new(bytes, Arc::default());
        let large = budget(1 << 20);
        assert!(!read(&large, &file, "").unwrap().graph.vertices.is_empty());
        assert!(large.peak() > file.len() as u64 && large.used() == 0);
        let small = budget(file.len() as u64);
        assert_eq!(read(&small, &file, "").err().unwrap().kind(), ErrorKind::TooLarge);
    }
}
