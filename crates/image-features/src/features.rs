//! Extracts from an image's bytes its id, its facts, its keypoints and the input of its embedding
//! model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use matching::Graph;
use search::points::PointId;
use serde_json::{Map, Value, json};
use transport::{ByteBudget, Reservation};
use vision::fingerprint::MinutiaeOptions;
use vision::{Decoded, Header, Limits, Preprocess, decode};

use super::embedder::Embedder;
use super::point_checks::check_own_keys;
use super::settings::ImageKind;
use super::template_file::{self, FileFormat, ReadTemplate, check_kind, is_template};

/// Key of a payload that the service owns.
pub const BLOCK: &str = api_qdrant::IMAGE_BLOCK;
/// Maximum bytes of an image's file.
pub const IMAGE_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of an image's name.
const NAME_BYTES_MAX: usize = 512;
/// Resolutions of fingerprint scanners in dots per inch. Any other resolution in a file is ignored.
const SCAN_DOTS: std::ops::RangeInclusive<f32> = 250.0..=1200.0;
/// Bytes of memory to read a template, in addition to twice its length.
const TEMPLATE_BYTES: u64 = 64 << 10;
/// Bytes per pixel of a decoded image.
const IMAGE_BYTES: u64 = 3;
/// Bytes per pixel of a decoded image and of a view of it.
const VIEW_BYTES: u64 = 6;
/// Time between two attempts of bulk work to reserve memory for decoding.
const MEMORY_RETRY: Duration = Duration::from_millis(50);
/// Longest wait of bulk work for that memory.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(120);

/// Returns an image's id: the first 16 bytes of its file's BLAKE3 hash as a UUID of version 8 (RFC
/// 9562, 5.8).
pub fn id_of(bytes: &[u8]) -> [u8; 16] {
    let hash = blake3::hash(bytes);
    let number = hash.as_bytes().first_chunk::<16>().copied().map_or(0, u128::from_be_bytes);
    let version = (number & !(0xf << 76)) | (8 << 76);
    let variant = (version & !(0b11 << 62)) | (0b10 << 62);
    variant.to_be_bytes()
}

/// Returns the id of a point that can have an original: a UUID.
#[inline]
pub fn uuid(id: &PointId) -> Option<[u8; 16]> {
    match id {
        PointId::Uuid(bytes) => Some(*bytes),
        PointId::Number(_) => None,
    }
}

/// Returns the key of a point's original from its payload; `None` for a point of features alone.
pub fn original_key(payload: &Map<String, Value>) -> Option<&str> {
    payload.get(BLOCK)?.get("original")?.as_str()
}

/// End of the directory of a cluster's collection.
const CLUSTER_SPACE: &str = "/originals";

/// Returns the key of an original in `space`. The points of a collection that a cluster restored
/// name the originals of the collection that was backed up. Its own originals have the same names
/// in its own directory. Clients can change payloads, so no key leads out of the collection's
/// directory.
pub fn original_in(space: &str, key: &str) -> String {
    if key.strip_prefix(space).is_some_and(|name| name.starts_with('/')) {
        return key.to_owned();
    }
    match key.split_once(CLUSTER_SPACE) {
        Some((_, name)) if space.ends_with(CLUSTER_SPACE) && name.starts_with('/') => {
            format!("{space}{name}")
        }
        _ => format!("{space}/{key}"),
    }
}

/// Returns the key in `space` of the original that the payload of the image `id` names as `key`.
/// Returns `None` if it is not an original of this image, because a client can copy the payload of
/// another one.
pub fn own_original(id: &PointId, space: &str, key: &str) -> Option<String> {
    uuid(id)?;
    let key = original_in(space, key);
    let rest = key.strip_prefix(&originals_of(id, space))?;
    // One server has a file for each image, and a cluster a directory with a file for each upload.
    let is_own = rest.starts_with(['.', '/']);
    is_own.then_some(key)
}

/// Returns the common start of the keys of an image's originals in `space`.
pub fn originals_of(id: &PointId, space: &str) -> String {
    let id = id.to_string();
    format!("{space}/{}/{id}", id.get(..2).unwrap_or("00"))
}

/// Properties of an image that its payload contains.
#[derive(Clone, Debug)]
pub struct ImageFacts {
    /// Id of the image, which follows from the bytes of its file.
    pub id: [u8; 16],
    /// Name that is shown; empty if the image has none.
    pub name: String,
    /// Format of the file.
    pub format: FileFormat,
    /// Width in pixels; that of a template's graph.
    pub width: u32,
    /// Height in pixels; that of a template's graph.
    pub height: u32,
    /// Length of the file, in bytes.
    pub bytes: usize,
    /// Number of keypoints.
    pub keypoints: usize,
    /// Quality of a fingerprint, 0 to 100.
    pub quality: Option<u8>,
}

impl ImageFacts {
    /// Returns the key of its original in `space`.
    pub fn original(&self, space: &str) -> String {
        format!("{}.{}", originals_of(&PointId::Uuid(self.id), space), self.format.name())
    }

    /// Returns the key of the original of one upload in `space`, which no other upload has.
    pub fn upload(&self, space: &str, upload: &str) -> String {
        let image = originals_of(&PointId::Uuid(self.id), space);
        format!("{image}/{upload}.{}", self.format.name())
    }

    /// Returns the user's payload with the service's block. `original` is the key of the original.
    pub fn payload(&self, own: &Map<String, Value>, original: &str) -> Map<String, Value> {
        let mut payload = own.clone();
        let mut block = json!({
            "name": self.name, "format": self.format.name(), "width": self.width, "height": self.height,
            "bytes": self.bytes, "keypoints": self.keypoints, "original": original,
        });
        if let Some(quality) = self.quality {
            block["quality"] = quality.into();
        }
        payload.insert(BLOCK.to_owned(), block);
        payload
    }
}

/// Features of an image that search compares, and its properties.
pub struct Features {
    /// Properties for the payload.
    pub facts: ImageFacts,
    /// Keypoints.
    pub graph: Graph,
    /// The embedding model's input; empty if the image gets no embedding.
    pub tensor: Vec<f32>,
}

impl Features {
    /// Returns the encoded keypoint graph.
    pub fn record(&self) -> Vec<u8> {
        let mut record = Vec::new();
        self.graph.encode(&mut record);
        record
    }
}

/// Adds the name of the image to an error, if it has one.
pub fn of_image(error: Error, name: &str) -> Error {
    if name.is_empty() { error } else { error.context(name) }
}

/// A file to decode.
pub struct DecodingInput<'a> {
    /// Subject of the image.
    pub kind: ImageKind,
    /// Bytes of the file.
    pub bytes: &'a [u8],
    /// Name of the image, which errors show.
    pub name: &'a str,
    /// The model whose input the image becomes, if there is one.
    pub embedder: Option<&'a Embedder>,
    /// True if the input is made of a view, which is a copy of the pixels.
    pub has_view: bool,
}

impl DecodingInput<'_> {
    /// Returns the number of bytes of memory that the work needs.
    ///
    /// # Errors
    /// Returns the errors of the header, with the image's name.
    fn memory(&self) -> Result<u64> {
        let input = self.embedder.map(Embedder::preprocess);
        let pixel_bytes = if self.has_view { VIEW_BYTES } else { IMAGE_BYTES };
        memory(self.kind, self.bytes, input, pixel_bytes)
            .map_err(|error| of_image(error, self.name))
    }
}

/// Returns the number of bytes of memory that it takes to decode an image, to find its keypoints,
/// and to make the `input` of a model. Reads only the header of the file. The input is made while
/// `pixel_bytes` per pixel are held. For a template, returns the bytes to read it.
fn memory(
    kind: ImageKind,
    bytes: &[u8],
    input: Option<&Preprocess>,
    pixel_bytes: u64,
) -> Result<u64> {
    check_kind(kind, bytes)?;
    if is_template(kind, bytes) {
        return Ok(2 * bytes.len() as u64 + TEMPLATE_BYTES);
    }
    let header = Header::read(bytes, &Limits::default())?;
    let keypoints = match kind {
        ImageKind::Photo => 0,
        ImageKind::Fingerprint => {
            let options = minutiae_options(vision::dots_per_inch(header.format, bytes));
            vision::fingerprint::work_bytes(header.width, header.height, &options)
        }
    };
    // The keypoints are found before the input is made.
    let embedding = input.map_or(0, |input| {
        let pixels = u64::from(header.width) * u64::from(header.height);
        pixels * pixel_bytes + input.work_bytes(header.width, header.height)
    });
    Ok((header.decode_bytes + keypoints).max(embedding))
}

/// Returns the options for a scan whose file states this resolution in dots per inch.
fn minutiae_options(stated: Option<f32>) -> MinutiaeOptions {
    let default = MinutiaeOptions::default();
    let stated = stated.filter(|dots| SCAN_DOTS.contains(dots));
    MinutiaeOptions { dots_per_inch: stated.unwrap_or(default.dots_per_inch) }
}

/// Reserves the memory of decoding an image that a caller waits for, of its keypoints, and of the
/// input of its model.
///
/// # Errors
/// Returns the errors of the header, with the image's name; the errors of [`ByteBudget::reserve`].
pub fn reserve(budget: &Arc<ByteBudget>, file: &DecodingInput<'_>) -> Result<Reservation> {
    budget.reserve(file.memory()?)
}

/// Reserves as [`reserve`] does, for bulk work. Waits up to two minutes while requests hold the
/// memory, and at most until `stopped` returns true.
///
/// # Errors
/// Returns the errors of [`reserve`], after having waited.
pub fn reserve_or_wait(
    budget: &Arc<ByteBudget>,
    file: &DecodingInput<'_>,
    stopped: impl Fn() -> bool,
) -> Result<Reservation> {
    let needed = file.memory()?;
    let give_up = Instant::now() + MEMORY_WAIT_MAX;
    loop {
        let waits = Instant::now() < give_up && !stopped();
        // Checked first, so that waiting does not count refusals.
        let full = needed > budget.max().saturating_sub(budget.used()) && needed <= budget.max();
        if !(full && waits) {
            match budget.reserve(needed) {
                Err(error) if waits && error.kind() == ErrorKind::ResourceExhausted => {}
                outcome => return outcome.map_err(|error| of_image(error, file.name)),
            }
        }
        std::thread::sleep(MEMORY_RETRY);
    }
}

/// Decodes an image in memory that was reserved for it.
///
/// # Errors
/// Returns the errors of [`decode`], with the image's name.
pub fn decoded(_memory: &Reservation, bytes: &[u8], name: &str) -> Result<Decoded> {
    decode(bytes, &Limits::default()).map_err(|error| of_image(error, name))
}

/// Keypoints of an image, and the quality of a fingerprint.
pub struct Keypoints {
    /// Keypoints.
    pub graph: Graph,
    /// Quality of a fingerprint, 0 to 100.
    pub quality: Option<u8>,
}

/// Returns the keypoints of a decoded image.
///
/// # Errors
/// `InvalidArgument` for an image that cannot be a fingerprint.
pub fn keypoints(kind: ImageKind, decoded: &Decoded) -> Result<Keypoints> {
    let gray = decoded.image.gray();
    match kind {
        ImageKind::Photo => {
            let options = vision::photo::KeypointOptions::default();
            Ok(Keypoints { graph: vision::photo::keypoints(&gray, &options), quality: None })
        }
        ImageKind::Fingerprint => {
            let options = minutiae_options(decoded.dots_per_inch);
            let found = vision::fingerprint::minutiae(&gray, &options)?;
            Ok(Keypoints { quality: Some(found.score()), graph: found.graph })
        }
    }
}

/// A file to extract features from.
#[derive(Clone, Copy)]
pub struct FeatureSource<'a> {
    /// Subject of the image.
    pub kind: ImageKind,
    /// Bytes of the file.
    pub bytes: &'a [u8],
    /// Name of the image, which errors show.
    pub name: &'a str,
    /// Minimum quality of a fingerprint, 0 to 100.
    pub quality_min: u8,
}

impl<'a> FeatureSource<'a> {
    /// Returns the file as one whose memory can be reserved. `embedder` is the model that embeds
    /// the image, if there is one.
    pub fn decoding(self, embedder: Option<&'a Embedder>) -> DecodingInput<'a> {
        let FeatureSource { kind, bytes, name, .. } = self;
        DecodingInput { kind, bytes, name, embedder, has_view: false }
    }
}

/// Extracts the features of an image, or of a template. Pixels are freed before this returns. The
/// features have the input of `embedder`, if there is one.
///
/// # Errors
/// `InvalidArgument` or `TooLarge` for a file that cannot be read, or for a fingerprint without
/// minutiae or below the minimum quality, with its name.
pub fn extract(
    memory: &Reservation,
    file: FeatureSource<'_>,
    embedder: Option<&Embedder>,
) -> Result<Features> {
    let FeatureSource { kind, bytes, name, quality_min } = file;
    if is_template(kind, bytes) {
        return of_template(file).map_err(|error| of_image(error, name));
    }
    let decoded = decoded(memory, bytes, name)?;
    let Keypoints { graph, quality } =
        keypoints(kind, &decoded).map_err(|error| of_image(error, name))?;
    if quality.is_none() && quality_min > 0 {
        return Err(Error::invalid(
            "quality_min= is for fingerprints; this collection holds photographs",
        ));
    }
    check_quality(quality, quality_min, &graph).map_err(|error| of_image(error, name))?;
    if kind == ImageKind::Fingerprint {
        check_minutiae(&graph, MinutiaeSource::Image, FOUND_AGAIN)
            .map_err(|error| of_image(error, name))?;
    }
    let tensor = embedder.map(|embedder| embedder.tensor(&decoded.image)).transpose()?;
    let facts = ImageFacts {
        id: id_of(bytes),
        name: name.to_owned(),
        format: FileFormat::Image(decoded.format),
        width: decoded.image.width,
        height: decoded.image.height,
        bytes: bytes.len(),
        keypoints: graph.vertices.len(),
        quality,
    };
    Ok(Features { facts, graph, tensor: tensor.unwrap_or_default() })
}

/// Use of a stored print that needs minutiae.
pub(crate) const FOUND_AGAIN: &str = "found again";

/// File from which the minutiae of a print come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinutiaeSource {
    /// A template, which lists them.
    Template,
    /// An image, in which they were found.
    Image,
}

/// Checks that a print has minutiae, without which it resembles no other. `wanted` is the use of
/// the print in the message, such as "compared".
///
/// # Errors
/// `InvalidArgument` with the remedy.
pub fn check_minutiae(graph: &Graph, source: MinutiaeSource, wanted: &str) -> Result<()> {
    if !graph.vertices.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(match source {
        MinutiaeSource::Template => {
            format!("the template has no minutiae, so it cannot be {wanted}")
        }
        MinutiaeSource::Image => format!(
            "the image shows no fingerprint: it has no minutiae, so it cannot be {wanted}; take a \
             better impression, and check that ridges are dark on a light ground"
        ),
    }))
}

/// Reads the features of a template.
///
/// # Errors
/// As [`template_file::read`]; `InvalidArgument` for one without minutiae, or below the minimum
/// quality. A template that states no quality is accepted.
fn of_template(file: FeatureSource<'_>) -> Result<Features> {
    let ReadTemplate { format, view } = template_file::read(file.bytes)?;
    let graph = view.graph;
    check_minutiae(&graph, MinutiaeSource::Template, FOUND_AGAIN)?;
    check_quality(view.quality, file.quality_min, &graph)?;
    let facts = ImageFacts {
        id: id_of(file.bytes),
        name: file.name.to_owned(),
        format: FileFormat::Template(format),
        width: graph.width.into(),
        height: graph.height.into(),
        bytes: file.bytes.len(),
        keypoints: graph.vertices.len(),
        quality: view.quality,
    };
    Ok(Features { facts, graph, tensor: Vec::new() })
}

/// Checks the quality of a fingerprint, if it is known.
///
/// # Errors
/// `InvalidArgument` for a quality below `quality_min`.
fn check_quality(quality: Option<u8>, quality_min: u8, graph: &Graph) -> Result<()> {
    match quality {
        Some(quality) if quality < quality_min => Err(Error::invalid(format!(
            "the fingerprint's quality is {quality}, below quality_min={quality_min}: it has {} \
             minutiae; take a better impression",
            graph.vertices.len()
        ))),
        _ => Ok(()),
    }
}

/// Checks an image's name, which is shown and never opened as a file.
///
/// # Errors
/// `InvalidArgument` for one that is too long.
pub fn checked_name(name: &str) -> Result<String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!("an image's name has at most {NAME_BYTES_MAX} bytes")));
    }
    Ok(name.to_owned())
}

/// Returns a name of a file in an archive or a folder as the name of its image. If it is longer
/// than names of images are, returns its end.
pub fn end_of_name(name: String) -> String {
    let Some(from) = name.len().checked_sub(NAME_BYTES_MAX).filter(|from| *from > 0) else {
        return name;
    };
    let end = (from..name.len()).find_map(|at| name.get(at..));
    end.unwrap_or_default().to_owned()
}

/// Checks the least quality of fingerprints.
///
/// # Errors
/// `InvalidArgument` for a value above 100.
pub fn checked_quality(quality_min: Option<u8>) -> Result<u8> {
    let quality_min = quality_min.unwrap_or(0);
    if quality_min > 100 {
        return Err(Error::invalid("quality_min= is 0 to 100"));
    }
    Ok(quality_min)
}

/// Parses and checks the caller's payload.
///
/// # Errors
/// `InvalidArgument` if it is not a JSON object or has a key of the service.
pub fn checked_payload(text: Option<&str>) -> Result<Map<String, Value>> {
    let Some(text) = text else { return Ok(Map::new()) };
    let payload: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| Error::invalid("payload= is not a JSON object").caused_by(error))?;
    check_own_keys(&payload)?;
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_of_the_contents() {
        let text = PointId::Uuid(id_of(b"an image")).to_string();
        assert_eq!(text, PointId::Uuid(id_of(b"an image")).to_string());
        assert_ne!(text, PointId::Uuid(id_of(b"another")).to_string());
        assert_eq!(text.as_bytes()[14], b'8', "{text}");
        assert!(b"89ab".contains(&text.as_bytes()[19]), "{text}");
        let hash = blake3::hash(b"an image").to_hex();
        assert_eq!(text[..8], hash[..8]);
    }

    /// Returns the header of a BMP file.
    fn bmp(width: u32, height: u32, dots_per_metre: u32) -> Vec<u8> {
        let mut file = vec![0; 54];
        file[..2].copy_from_slice(b"BM");
        file[14] = 40;
        file[18..22].copy_from_slice(&width.to_le_bytes());
        file[22..26].copy_from_slice(&height.to_le_bytes());
        file[38..42].copy_from_slice(&dots_per_metre.to_le_bytes());
        file
    }

    #[test]
    fn memory_of_a_wide_image_includes_the_input_of_its_model() {
        let input = Preprocess::default();
        let needed_by = |width, height, input, pixel_bytes| {
            memory(ImageKind::Photo, &bmp(width, height, 0), input, pixel_bytes).unwrap()
        };
        let needed = |width, height, input| needed_by(width, height, input, IMAGE_BYTES);
        // Rows of 65,535 pixels are scaled to 224 before the columns are.
        let wide = 65_535 * 224 * 16;
        assert!(needed(65_535, 1, None) < wide / 10);
        assert!(needed(65_535, 1, Some(&input)) > wide && needed(1, 65_535, Some(&input)) > wide);
        assert_eq!(needed(4000, 1000, None), needed(4000, 1000, Some(&input)));
        let of_view = needed_by(4000, 1000, Some(&input), VIEW_BYTES);
        assert_eq!(of_view, 4000 * 1000 * 6 + input.work_bytes(4000, 1000));
    }

    #[test]
    fn memory_of_a_print_depends_on_its_resolution() {
        let megabytes = |dots_per_metre: u32| {
            let file = bmp(2000, 1000, dots_per_metre);
            let decoding = memory(ImageKind::Photo, &file, None, IMAGE_BYTES).unwrap();
            (memory(ImageKind::Fingerprint, &file, None, IMAGE_BYTES).unwrap() - decoding)
                / 1_000_000
        };
        // 16 bytes per pixel, and 80 per pixel at 500 dots per inch: 1000 dots per inch, none
        // stated, 72 of an editor, and 250, of which 4 million pixels are accepted.
        assert_eq!([39_370, 0, 2_835, 9_843].map(megabytes), [72, 192, 192, 352]);
    }

    #[test]
    fn a_long_name_of_a_file_loses_its_start() {
        let fits = "x".repeat(NAME_BYTES_MAX);
        assert_eq!(end_of_name(fits.clone()), fits);
        assert_eq!(end_of_name(format!("a/{fits}")), fits);
        // The limit is in the middle of a character of three bytes.
        let cut = end_of_name(format!("{}.jpg", "\u{6771}".repeat(NAME_BYTES_MAX)));
        assert_eq!((cut.len(), cut.ends_with("\u{6771}.jpg")), (511, true));
        assert!(checked_name(&cut).is_ok());
    }

    #[test]
    fn originals_of_a_restored_collection_are_its_own() {
        let key = "1a/originals/5c/5c56/2b.png";
        assert_eq!(original_in("1a/originals", key), key);
        assert_eq!(original_in("9f/originals", key), "9f/originals/5c/5c56/2b.png");
        // A server without a cluster has one directory for all versions of a collection.
        assert_eq!(original_in("photos", "photos/5c/5c56.png"), "photos/5c/5c56.png");
    }

    #[test]
    fn a_payload_names_no_object_of_another_collection() {
        for space in ["9f/originals", "photos"] {
            for other in ["1a/wal/0000/0007", "1a/originals2/5c/5c56.png", "photos2/5c/5c56.png"] {
                assert_eq!(original_in(space, other), format!("{space}/{other}"));
            }
        }
    }

    #[test]
    fn an_image_has_no_original_of_another_one() {
        let [start, other] =
            [1, 2].map(|number| originals_of(&PointId::Uuid([number; 16]), "photos"));
        let own = |key: &str| own_original(&PointId::Uuid([1; 16]), "photos", key);
        for end in [".png", "/2b.png"] {
            let key = format!("{start}{end}");
            assert_eq!(own(&key), Some(key));
        }
        for key in [format!("{other}.png"), format!("{start}1.png"), start, String::new()] {
            assert_eq!(own(&key), None, "{key}");
        }
        assert_eq!(own_original(&PointId::Number(7), "photos", "photos/00/7.png"), None);
    }

    #[test]
    fn a_payload_is_an_object_without_the_services_key() {
        assert!(checked_payload(None).unwrap().is_empty());
        assert_eq!(checked_payload(Some(r#"{"a":1}"#)).unwrap().len(), 1);
        for wrong in ["[]", "1", "{", r#"{"image":{}}"#, r#"{"__millpond_id":"a"}"#] {
            assert!(checked_payload(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
