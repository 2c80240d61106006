//! Features of a point without its image, as servers and bulk jobs exchange them: the embedding,
//! the record of the keypoint graph, the payload.

use std::collections::HashMap;

use base::{Error, Result};
use matching::Graph;
use search::points::{FetchedPoint, PointId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::collection::ImageCollection;
use super::features::{BLOCK, Facts, Features, checked_name, checked_quality, original_key};
use super::settings::{ImageKind, WantedImages};

/// Maximum points of one request.
pub(crate) const POINTS_MAX: usize = 1000;
/// Maximum bytes of the JSON of one request.
pub(crate) const FEATURES_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of a payload's JSON with the service's block. Collections take 64 KiB, and the
/// rest is for the id that they keep with it.
pub(crate) const PAYLOAD_BYTES_MAX: usize = (64 << 10) - 256;
/// Maximum levels of a payload's JSON. The log of a shard nests it deeper, and JSON readers stop at
/// 128.
const PAYLOAD_DEPTH_MAX: usize = 120;
/// Start of the keys that collections keep in payloads for themselves.
const RESERVED_KEYS: &str = "__millpond";
/// Lengths of an embedding, besides 0, that every index can compare. Collections check this too,
/// with slightly wider limits, but their error does not say which point of the request it is.
const LENGTHS: std::ops::RangeInclusive<f64> = 1e-18..=1e17;

/// Features of a point, as they are sent and returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PointFeatures {
    pub(crate) id: PointId,
    /// Name of the image.
    #[serde(default)]
    pub(crate) name: Option<String>,
    pub(crate) embedding: Vec<f32>,
    /// Encoded keypoint graph, in base64.
    #[serde(with = "super::base64_text")]
    pub(crate) record: Vec<u8>,
    /// Payload without the service's block.
    #[serde(default)]
    pub(crate) payload: Map<String, Value>,
    /// Number of keypoints in the record.
    #[serde(default)]
    pub(crate) keypoints: Option<usize>,
    /// Size of the image in pixels. Without it, the size of the graph counts.
    #[serde(default)]
    pub(crate) width: Option<u32>,
    #[serde(default)]
    pub(crate) height: Option<u32>,
    /// Quality of a fingerprint, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quality: Option<u8>,
    /// Kind of the collection, which decided how keypoints were found.
    #[serde(default)]
    pub(crate) kind: Option<ImageKind>,
    /// Model that made the embedding.
    #[serde(default)]
    pub(crate) model: Option<String>,
}

impl PointFeatures {
    /// Returns the features that were extracted from an image.
    pub(crate) fn extracted(
        features: &Features,
        embedding: &[f32],
        kind: ImageKind,
        model: &str,
    ) -> PointFeatures {
        let record = features.record();
        let Facts { id, name, width, height, keypoints, quality, .. } = features.facts.clone();
        PointFeatures {
            id: PointId::Uuid(id),
            name: Some(name),
            embedding: embedding.to_vec(),
            record,
            payload: Map::new(),
            keypoints: Some(keypoints),
            width: Some(width),
            height: Some(height),
            quality,
            kind: Some(kind),
            model: Some(model.to_owned()),
        }
    }

    /// Returns the features of a stored point.
    ///
    /// # Errors
    /// `NotFound` for a point without keypoints; `DataLoss` for a damaged record.
    pub(crate) fn stored(point: FetchedPoint, target: &ImageCollection) -> Result<PointFeatures> {
        let FetchedPoint { id, embedding, record, mut payload } = point;
        let keypoints = stored_graph(&id, &record)?.vertices.len();
        let block = payload.remove(BLOCK).unwrap_or_default();
        let side = |key: &str| block.get(key)?.as_u64()?.try_into().ok();
        Ok(PointFeatures {
            id,
            name: block.get("name").and_then(Value::as_str).map(str::to_owned),
            embedding,
            record,
            keypoints: Some(keypoints),
            width: side("width"),
            height: side("height"),
            quality: block.get("quality").and_then(|quality| quality.as_u64()?.try_into().ok()),
            kind: Some(target.kind),
            model: Some(target.model.clone()),
            payload,
        })
    }

    /// Returns the JSON of a response.
    ///
    /// # Errors
    /// `Internal` if it cannot be written.
    pub(crate) fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::internal(format!("features: {error}")))
    }

    /// Checks that the collection can hold the point.
    fn checked(self, wanted: &ExpectedFeatures) -> Result<CheckedFeatures> {
        if let Some(kind) = self.kind.filter(|kind| *kind != wanted.kind) {
            return Err(Error::invalid(format!(
                "features of kind {} do not fit a collection of kind {}",
                kind.name(),
                wanted.kind.name()
            )));
        }
        if let Some(model) = self.model.as_ref().filter(|model| **model != wanted.model) {
            return Err(Error::invalid(format!(
                "the embedding is of model \"{model}\", and the collection has embeddings of \"{}\"; extract it \
                 with that model",
                wanted.model
            )));
        }
        check_embedding(&self.embedding, wanted.dims)?;
        let graph = graph(&self.record, wanted.kind)?;
        let found = graph.vertices.len();
        if let Some(keypoints) = self.keypoints.filter(|keypoints| *keypoints != found) {
            return Err(Error::invalid(format!(
                "\"keypoints\" is {keypoints}, and the record has {found}"
            )));
        }
        check_own_keys(&self.payload)?;
        checked_name(self.name.as_deref().unwrap_or_default())?;
        checked_quality(self.quality)?;
        if self.quality.is_some() && wanted.kind == ImageKind::Photo {
            return Err(Error::invalid("\"quality\" is for fingerprints; leave it out"));
        }
        Ok(CheckedFeatures {
            features: self,
            keypoints: found,
            frame_width: graph.width.into(),
            frame_height: graph.height.into(),
        })
    }
}

/// Decodes the record of a stored point.
///
/// # Errors
/// `NotFound` for a point without keypoints; `DataLoss` for a damaged record.
pub(crate) fn stored_graph(id: &PointId, record: &[u8]) -> Result<Graph> {
    if record.is_empty() {
        return Err(Error::not_found(format!(
            "point {id} has no keypoints: it was written as a vector alone; add its image"
        )));
    }
    Graph::decode(record)
}

/// Checks that a caller's payload has no key of the service.
///
/// # Errors
/// `InvalidArgument` with the key.
pub(crate) fn check_own_keys(payload: &Map<String, Value>) -> Result<()> {
    if payload.contains_key(BLOCK) {
        return Err(own_key(BLOCK));
    }
    check_reserved_keys(payload)
}

/// Checks that a payload, which may have the service's block, has no key that collections use.
///
/// # Errors
/// `InvalidArgument` with the key.
pub(crate) fn check_reserved_keys(payload: &Map<String, Value>) -> Result<()> {
    let reserved = payload.keys().find(|key| key.starts_with(RESERVED_KEYS));
    reserved.map_or(Ok(()), |key| Err(own_key(key)))
}

fn own_key(key: &str) -> Error {
    Error::invalid(format!("the payload's key \"{key}\" is the service's own; use another one"))
}

/// Checks the size of a payload with the service's block.
///
/// # Errors
/// `TooLarge` for more than `bytes_max` bytes.
pub(crate) fn check_payload_size(payload: &Map<String, Value>, bytes_max: usize) -> Result<()> {
    let bytes = serde_json::to_vec(payload).map_or(usize::MAX, |text| text.len());
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "the payload has {bytes} bytes with the service's own, {bytes_max} at most"
    )))
}

/// Checks that a payload can be read again after a log has nested it deeper.
///
/// # Errors
/// `InvalidArgument` for more than [`PAYLOAD_DEPTH_MAX`] levels.
pub(crate) fn check_payload_depth(payload: &Map<String, Value>) -> Result<()> {
    if payload.values().all(|value| is_within(value, PAYLOAD_DEPTH_MAX - 1)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the payload is nested deeper than {PAYLOAD_DEPTH_MAX} levels; write it flatter"
    )))
}

/// Returns true if a value has at most `depth` levels.
fn is_within(value: &Value, depth: usize) -> bool {
    let Some(inner) = depth.checked_sub(1) else {
        return !matches!(value, Value::Array(_) | Value::Object(_));
    };
    match value {
        Value::Array(values) => values.iter().all(|value| is_within(value, inner)),
        Value::Object(members) => members.values().all(|value| is_within(value, inner)),
        _ => true,
    }
}

/// Checks that an embedding has `dims` finite values that every index can compare.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_embedding(embedding: &[f32], dims: usize) -> Result<()> {
    if embedding.len() != dims {
        return Err(Error::invalid(format!(
            "the embedding has {} values, and the collection's have {dims}",
            embedding.len()
        )));
    }
    if let Some(at) = embedding.iter().position(|value| !value.is_finite()) {
        return Err(Error::invalid(format!("embedding[{at}] is not a finite 32-bit number")));
    }
    let square: f64 = embedding.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let length = square.sqrt();
    if length == 0.0 || LENGTHS.contains(&length) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the embedding has the length {length:.1e}, and one from {:.0e} to {:.0e} can be compared; scale it",
        LENGTHS.start(),
        LENGTHS.end()
    )))
}

/// Decodes a record, and checks that it is of the kind.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn graph(record: &[u8], kind: ImageKind) -> Result<Graph> {
    let graph = Graph::decode(record)
        .map_err(|error| Error::invalid(format!("record: {}", error.message())))?;
    let fits = match kind {
        ImageKind::Photo => graph.described() || graph.vertices.is_empty(),
        ImageKind::Fingerprint => graph.descriptors.is_empty(),
    };
    if fits {
        return Ok(graph);
    }
    Err(Error::invalid(match kind {
        ImageKind::Photo => {
            "record: its keypoints have no descriptors, as those of fingerprints; the collection holds photographs"
        }
        ImageKind::Fingerprint => {
            "record: its keypoints have descriptors, as those of photographs; the collection holds fingerprints"
        }
    }))
}

/// Properties that the points of a collection have.
pub(crate) struct ExpectedFeatures {
    pub(crate) kind: ImageKind,
    pub(crate) model: String,
    /// Values of an embedding.
    pub(crate) dims: usize,
}

impl ExpectedFeatures {
    /// Returns the properties of a collection's points.
    pub(crate) fn of(target: &ImageCollection) -> ExpectedFeatures {
        ExpectedFeatures {
            kind: target.kind,
            model: target.model.clone(),
            dims: target.named.settings().dims,
        }
    }

    /// Returns the properties of a collection that does not exist yet: the properties in the
    /// request, or of its first point.
    ///
    /// # Errors
    /// `NotFound` if no model is named.
    pub(crate) fn of_new(
        name: &str,
        wanted: &WantedImages,
        first: Option<&PointFeatures>,
    ) -> Result<ExpectedFeatures> {
        let model = wanted.model.clone().or_else(|| first?.model.clone());
        let model = model.ok_or_else(|| {
            Error::not_found(format!(
                "there is no collection \"{name}\"; name the model of the embeddings with model= to create it"
            ))
        })?;
        let kind = wanted.kind.or_else(|| first?.kind).unwrap_or(ImageKind::Photo);
        let dims = first.map_or(0, |point| point.embedding.len());
        Ok(ExpectedFeatures { kind, model, dims })
    }

    /// Checks the points of one request.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first wrong point by its index in the request.
    pub(crate) fn check(&self, points: Vec<PointFeatures>) -> Result<Vec<CheckedFeatures>> {
        let mut seen: HashMap<PointId, usize> = HashMap::new();
        let mut checked = Vec::with_capacity(points.len());
        for (at, point) in points.into_iter().enumerate() {
            let id = point.id;
            let first = *seen.entry(id).or_insert(at);
            if first != at {
                return Err(Error::invalid(format!(
                    "points[{at}]: points[{first}] has the same id {id}"
                )));
            }
            checked.push(point.checked(self).map_err(|error| of_point(error, at))?);
        }
        Ok(checked)
    }
}

/// Adds the index of a point in its request to an error.
pub(crate) fn of_point(error: Error, at: usize) -> Error {
    error.context(format_args!("points[{at}]"))
}

/// Features that a collection can hold.
#[derive(Debug)]
pub(crate) struct CheckedFeatures {
    pub(crate) features: PointFeatures,
    keypoints: usize,
    /// Size of the graph's image in pixels, 0 if unknown.
    frame_width: u32,
    frame_height: u32,
}

impl CheckedFeatures {
    /// Returns the payload to store. `before` is the payload of the stored point, whose original
    /// remains.
    ///
    /// # Errors
    /// `TooLarge` for one that collections refuse.
    pub(crate) fn payload(
        &self,
        before: Option<&Map<String, Value>>,
    ) -> Result<Map<String, Value>> {
        let features = &self.features;
        let kept = before.filter(|payload| original_key(payload).is_some());
        let kept = kept.and_then(|payload| payload.get(BLOCK)?.as_object()).cloned();
        let mut block = kept.unwrap_or_default();
        let mut fact = |key: &str, given: Option<Value>, default: Value| match given {
            Some(value) => drop(block.insert(key.to_owned(), value)),
            None => drop(block.entry(key).or_insert(default)),
        };
        fact("name", features.name.clone().map(Value::from), "".into());
        fact("width", features.width.map(Value::from), self.frame_width.into());
        fact("height", features.height.map(Value::from), self.frame_height.into());
        fact("keypoints", Some(self.keypoints.into()), Value::Null);
        match features.quality {
            Some(quality) => drop(block.insert("quality".to_owned(), quality.into())),
            // The quality of the features before.
            None => drop(block.remove("quality")),
        }
        let mut payload = features.payload.clone();
        payload.insert(BLOCK.to_owned(), block.into());
        check_payload_size(&payload, PAYLOAD_BYTES_MAX)?;
        Ok(payload)
    }
}

/// Points of a request or of an operation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PointList<T> {
    points: Vec<T>,
}

impl<T> PointList<T> {
    /// Returns the points.
    ///
    /// # Errors
    /// `InvalidArgument` for no point, and for more than [`POINTS_MAX`].
    pub(crate) fn checked(self) -> Result<Vec<T>> {
        let count = self.points.len();
        if !(1..=POINTS_MAX).contains(&count) {
            return Err(Error::invalid(format!("{count} points: a request has 1 to {POINTS_MAX}")));
        }
        Ok(self.points)
    }
}

/// Reads JSON.
///
/// # Errors
/// `InvalidArgument` for another form, with the path of the wrong field.
pub(crate) fn parse_json<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let prefix = if path == "." { String::new() } else { format!("{path}: ") };
        Error::invalid(format!("{prefix}{}", error.inner()))
    })?;
    reader.end().map_err(|error| Error::invalid(format!("the body: {error}")))?;
    Ok(value)
}

/// Reads the points of a request.
///
/// # Errors
/// `TooLarge` for more than [`FEATURES_BYTES_MAX`] bytes; the errors of [`parse_json`] and
/// [`PointList::checked`].
pub(crate) fn parse(body: &[u8]) -> Result<Vec<PointFeatures>> {
    if body.len() > FEATURES_BYTES_MAX {
        return Err(Error::too_large(format!(
            "the body has {} bytes, {FEATURES_BYTES_MAX} at most; send the points in several requests",
            body.len()
        )));
    }
    parse_json::<PointList<PointFeatures>>(body)?.checked()
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use matching::{DESCRIPTOR_BYTES, Vertex};
    use serde_json::json;

    use super::*;

    const UUID: &str = "5c56c793-69f3-8fbf-87e6-c4bf54c28c26";

    fn photos() -> ExpectedFeatures {
        ExpectedFeatures { kind: ImageKind::Photo, model: "colour".to_owned(), dims: 3 }
    }

    fn fingers() -> ExpectedFeatures {
        ExpectedFeatures { kind: ImageKind::Fingerprint, ..photos() }
    }

    fn record(vertices: usize, described: bool) -> Vec<u8> {
        let vertex = |at: usize| Vertex { x: at as i16, y: 7, direction: 9, kind: 1 };
        let graph = Graph {
            width: 640,
            height: 480,
            vertices: (0..vertices).map(vertex).collect(),
            descriptors: vec![[3; DESCRIPTOR_BYTES]; if described { vertices } else { 0 }],
        };
        let mut record = Vec::new();
        graph.encode(&mut record);
        record
    }

    fn point(change: impl FnOnce(&mut PointFeatures)) -> PointFeatures {
        let mut point = PointFeatures {
            id: UUID.parse().unwrap(),
            name: None,
            embedding: vec![0.5, -0.25, 0.1],
            record: record(4, true),
            payload: Map::new(),
            keypoints: None,
            width: None,
            height: None,
            quality: None,
            kind: None,
            model: None,
        };
        change(&mut point);
        point
    }

    #[track_caller]
    fn refused(wanted: &ExpectedFeatures, words: &str, change: impl FnOnce(&mut PointFeatures)) {
        let good = point(|point| {
            point.id = PointId::Number(1);
            point.record = record(2, wanted.kind == ImageKind::Photo);
        });
        let error = wanted.check(vec![good, point(change)]).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().starts_with("points[1]: "), "{error}");
        assert!(error.message().contains(words), "{error}");
    }

    #[test]
    fn the_form_survives_json() {
        let whole = point(|point| {
            point.name = Some("a\"b.jpg".to_owned());
            point.embedding = vec![0.1, f32::MIN_POSITIVE, -3.402_823_5e38];
            point.payload = json!({"seed": 7}).as_object().cloned().unwrap();
            point.keypoints = Some(4);
            point.width = Some(1280);
            point.height = Some(960);
            point.quality = Some(50);
            point.kind = Some(ImageKind::Fingerprint);
            point.model = Some("colour".to_owned());
        });
        let number = point(|point| point.id = PointId::Number(7));
        for point in [whole, number] {
            let body = format!("{{\"points\":[{}]}}", point.to_json().unwrap());
            assert_eq!(parse(body.as_bytes()).unwrap(), [point]);
        }
    }

    #[test]
    fn errors_of_the_form_name_the_field() {
        let record = STANDARD.encode(record(1, true));
        let body = |fields: &str| {
            let point = format!(r#""id":1,"embedding":[1],"record":"{record}""#);
            format!(r#"{{"points":[{{{point}}},{{{fields}}}]}}"#)
        };
        for (fields, words) in [
            ("", "points[1]: missing field `id`"),
            (r#""id":"x""#, "points[1].id: "),
            (r#""id":-1"#, "points[1].id: "),
            (r#""id":2,"embedding":[1,"a"]"#, "points[1].embedding[1]: "),
            (r#""id":2,"embedding":[NaN]"#, "points[1].embedding"),
            (r#""id":2,"embedding":[1e999]"#, "points[1].embedding"),
            (r#""id":2,"embedding":[1],"record":"?""#, "points[1].record: not base64"),
            (r#""id":2,"embedding":[1],"record":null"#, "points[1].record: "),
            (r#""id":2,"payload":[]"#, "points[1].payload: "),
            (r#""id":2,"quality":256"#, "points[1].quality: "),
            (r#""id":2,"kind":"riddle""#, "points[1].kind: unknown variant"),
            (r#""id":2,"colour":1"#, "points[1].colour: unknown field"),
        ] {
            let error = parse(body(fields).as_bytes()).unwrap_err();
            assert_eq!(error.kind(), base::ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().starts_with(words), "{error}, not {words}");
        }
        for (body, words) in [
            ("", "EOF"),
            ("{}", "missing field `points`"),
            (r#"{"points":[]}"#, "0 points: a request has 1 to 1000"),
            (r#"{"points":[]} x"#, "trailing characters"),
        ] {
            let error = parse(body.as_bytes()).unwrap_err();
            assert!(error.message().contains(words), "{error}, not {words}");
        }
    }

    #[test]
    fn a_request_is_limited() {
        let record = STANDARD.encode(record(0, true));
        let body = |count: usize| {
            let point = |id: usize| format!(r#"{{"id":{id},"embedding":[],"record":"{record}"}}"#);
            format!(r#"{{"points":[{}]}}"#, (0..count).map(point).collect::<Vec<_>>().join(","))
        };
        assert_eq!(parse(body(POINTS_MAX).as_bytes()).unwrap().len(), POINTS_MAX);
        let error = parse(body(POINTS_MAX + 1).as_bytes()).unwrap_err();
        assert!(error.message().contains("1001 points"), "{error}");
        let error = parse(&vec![b' '; FEATURES_BYTES_MAX + 1]).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::TooLarge);
    }

    #[test]
    fn wrong_embeddings_are_refused_by_index() {
        refused(&photos(), "has 2 values, and the collection's have 3", |point| {
            point.embedding.truncate(2);
        });
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            refused(&photos(), "embedding[1] is not a finite 32-bit number", |point| {
                point.embedding[1] = value;
            });
        }
        for value in [1e18, 1e-20] {
            refused(&photos(), "scale it", |point| point.embedding = vec![value, 0.0, 0.0]);
        }
        assert!(photos().check(vec![point(|point| point.embedding = vec![0.0; 3])]).is_ok());
    }

    #[test]
    fn wrong_records_are_refused_by_index() {
        let whole = record(4, true);
        let mut version = whole.clone();
        version[0] = 9;
        let many = {
            let mut record = record(0, true);
            record[2..4].copy_from_slice(&257_u16.to_le_bytes());
            record.resize(8 + 257 * 6, 0);
            record
        };
        let longer = [whole.as_slice(), &[0]].concat();
        for wrong in [Vec::new(), whole[..7].to_vec(), whole[..20].to_vec(), longer, version, many]
        {
            refused(&photos(), "record: a graph record", |point| point.record = wrong);
        }
        refused(&photos(), "no descriptors", |point| point.record = record(4, false));
        refused(&fingers(), "have descriptors", |_| {});
        refused(&photos(), "\"keypoints\" is 5, and the record has 4", |point| {
            point.keypoints = Some(5);
        });
        assert!(photos().check(vec![point(|point| point.record = record(0, true))]).is_ok());
    }

    #[test]
    fn other_wrong_fields_are_refused_by_index() {
        for key in ["image", "__millpond_id"] {
            refused(&photos(), key, |point| {
                point.payload.insert(key.to_owned(), 1.into());
            });
        }
        refused(&photos(), "model \"other\"", |point| point.model = Some("other".to_owned()));
        refused(&photos(), "kind fingerprint", |point| point.kind = Some(ImageKind::Fingerprint));
        refused(&photos(), "points[0] has the same id 1", |point| point.id = PointId::Number(1));
        refused(&photos(), "512 bytes", |point| point.name = Some("x".repeat(513)));
        refused(&photos(), "is for fingerprints", |point| point.quality = Some(50));
        refused(&fingers(), "0 to 100", |point| {
            point.record = record(4, false);
            point.quality = Some(101);
        });
    }

    fn stored_payload(
        features: PointFeatures,
        before: Option<&Value>,
    ) -> Result<Map<String, Value>> {
        let checked = photos().check(vec![features])?.remove(0);
        checked.payload(before.and_then(Value::as_object))
    }

    #[test]
    fn the_block_of_a_new_point() {
        let own = json!({"seed": 7}).as_object().cloned().unwrap();
        let payload = stored_payload(point(|point| point.payload = own.clone()), None).unwrap();
        let frame = json!({"name": "", "width": 640, "height": 480, "keypoints": 4});
        assert_eq!(Value::from(payload), json!({"seed": 7, "image": frame}));
        let given = point(|point| {
            point.name = Some("a.jpg".to_owned());
            point.width = Some(1280);
            point.height = Some(960);
        });
        let before = json!({"image": {"name": "old", "quality": 3, "bytes": 9}});
        let payload = stored_payload(given, Some(&before)).unwrap();
        let block = json!({"name": "a.jpg", "width": 1280, "height": 960, "keypoints": 4});
        assert_eq!(payload["image"], block);
    }

    #[test]
    fn the_original_of_a_point_remains() {
        let before = json!({"old": 1, "image": {
            "name": "old.png", "format": "png", "bytes": 9, "width": 10, "height": 20, "keypoints": 1,
            "quality": 3, "original": "photos/5c/x.png",
        }});
        let payload = stored_payload(point(|_| {}), Some(&before)).unwrap();
        let block = json!({
            "name": "old.png", "format": "png", "bytes": 9, "width": 10, "height": 20, "keypoints": 4,
            "original": "photos/5c/x.png",
        });
        assert_eq!(Value::from(payload), json!({"image": block}));
    }

    #[test]
    fn a_payload_is_limited_with_its_block() {
        let long = |bytes: usize| {
            let payload = json!({"text": "x".repeat(bytes)}).as_object().cloned().unwrap();
            stored_payload(point(|point| point.payload = payload), None)
        };
        assert!(long(PAYLOAD_BYTES_MAX - 128).is_ok());
        assert_eq!(long(PAYLOAD_BYTES_MAX).unwrap_err().kind(), base::ErrorKind::TooLarge);
    }
}
