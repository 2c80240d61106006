//! Features of a point without its image, as servers and bulk jobs exchange them: the embedding,
//! the record of the keypoint graph, the payload.

use base::{Error, Result};
use search::points::{FetchedPoint, PointId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::collection::ImageCollection;
use super::features::{BLOCK, Features, ImageFacts};
use super::point_checks::stored_graph;
use super::settings::{ImageKind, ImageSettings};

/// Maximum points of one request.
pub(crate) const POINTS_MAX: usize = 1000;
/// Maximum bytes of the JSON of one request.
pub(crate) const FEATURES_BYTES_MAX: usize = 64 << 20;

/// Features of a point, as they are sent and returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PointFeatures {
    /// Id of the point.
    pub id: PointId,
    /// Name of the image.
    #[serde(default)]
    pub name: Option<String>,
    /// Empty in a collection without embeddings.
    #[serde(default)]
    pub embedding: Vec<f32>,
    /// Encoded keypoint graph, in base64.
    #[serde(with = "super::base64_text")]
    pub record: Vec<u8>,
    /// Payload without the service's block.
    #[serde(default)]
    pub payload: Map<String, Value>,
    /// Number of keypoints in the record.
    #[serde(default)]
    pub keypoints: Option<usize>,
    /// Width of the image in pixels. Without it, the width of the graph counts.
    #[serde(default)]
    pub width: Option<u32>,
    /// Height of the image in pixels. Without it, the height of the graph counts.
    #[serde(default)]
    pub height: Option<u32>,
    /// Quality of a fingerprint, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<u8>,
    /// Kind of the collection, which decided how keypoints were found.
    #[serde(default)]
    pub kind: Option<ImageKind>,
    /// Model that made the embedding.
    #[serde(default)]
    pub model: Option<String>,
    /// Other prints of the file, whose features are not here. No point keeps the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prints_left_out: Option<usize>,
}

impl PointFeatures {
    /// Returns the features that were extracted from an image of a collection with these settings.
    pub fn extracted(
        features: &Features,
        embedding: &[f32],
        settings: &ImageSettings,
    ) -> PointFeatures {
        let embedding = if settings.has_embeddings() { embedding } else { &[] };
        let record = features.record();
        let ImageFacts { id, name, width, height, keypoints, quality, .. } = features.facts.clone();
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
            kind: Some(settings.kind),
            model: Some(settings.model.clone()),
            prints_left_out: None,
        }
    }

    /// Adds the number of the other prints of the file.
    pub fn with_prints_left_out(mut self, count: usize) -> PointFeatures {
        self.prints_left_out = (count > 0).then_some(count);
        self
    }

    /// Returns the features of a stored point.
    ///
    /// # Errors
    /// `NotFound` for a point without keypoints; `DataLoss` for a damaged record.
    pub fn stored(point: FetchedPoint, target: &ImageCollection) -> Result<PointFeatures> {
        let FetchedPoint { id, embedding, record, mut payload } = point;
        let keypoints = stored_graph(&id, &record)?.vertices.len();
        let block = payload.remove(BLOCK).unwrap_or_default();
        let side = |key: &str| block.get(key)?.as_u64()?.try_into().ok();
        let has_embeddings = target.settings().has_embeddings();
        let embedding = if has_embeddings { embedding } else { Vec::new() };
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
            prints_left_out: None,
        })
    }

    /// Returns the JSON of a response.
    ///
    /// # Errors
    /// `Internal` if it cannot be written.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::internal("features").caused_by(error))
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
pub fn parse_json<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let prefix = if path == "." { String::new() } else { format!("{path}: ") };
        Error::invalid(format!("{prefix}{}", error.inner()))
    })?;
    reader.end().map_err(|error| Error::invalid("the body").caused_by(error))?;
    Ok(value)
}

/// Reads the points of a request.
///
/// # Errors
/// `TooLarge` for more than 64 MiB; `InvalidArgument` for no point and for more than 1000; the
/// errors of [`parse_json`].
pub fn parse(body: &[u8]) -> Result<Vec<PointFeatures>> {
    if body.len() > FEATURES_BYTES_MAX {
        return Err(Error::too_large(format!(
            "the body has {} bytes, {FEATURES_BYTES_MAX} at most; send the points in several requests",
            body.len()
        )));
    }
    parse_json::<PointList<PointFeatures>>(body)?.checked()
}

#[cfg(test)]
pub(crate) mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use matching::{DESCRIPTOR_BYTES, Graph, Vertex};
    use serde_json::json;

    use super::*;

    const UUID: &str = "5c56c793-69f3-8fbf-87e6-c4bf54c28c26";

    pub(crate) fn record(vertices: usize, described: bool) -> Vec<u8> {
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

    pub(crate) fn point(change: impl FnOnce(&mut PointFeatures)) -> PointFeatures {
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
            prints_left_out: None,
        };
        change(&mut point);
        point
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
}
