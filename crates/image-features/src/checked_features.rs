//! Features that were checked for a collection: they fit its kind, its model and its index.

use std::collections::HashMap;

use base::{Error, Result};
use search::collection::PointParts;
use search::points::{NewPoint, PointId};
use search::registry::NamedCollection;
use serde_json::{Map, Value};

use super::collection::ImageCollection;
use super::features::{BLOCK, checked_name, checked_quality, original_key};
use super::point_checks::{
    PAYLOAD_BYTES_MAX, check_embedding, check_own_keys, check_payload_size, decode_graph,
};
use super::point_features::PointFeatures;
use super::settings::{
    ImageKind, PLACEHOLDER_DIMS, WantedImages, default_model, has_embeddings, placeholder,
};

/// Properties that the points of a collection have.
pub struct ExpectedFeatures {
    /// Subject of the images.
    pub kind: ImageKind,
    /// Name of the model; "none" without embeddings.
    pub model: String,
    /// Number of values of an embedding.
    pub dims: usize,
}

impl ExpectedFeatures {
    /// Returns the properties of a collection's points.
    pub fn of(target: &ImageCollection) -> ExpectedFeatures {
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
    /// `NotFound` if no model of photographs is named. Fingerprints without a model get no
    /// embeddings.
    pub fn of_new(
        name: &str,
        wanted: &WantedImages,
        first: Option<&PointFeatures>,
    ) -> Result<ExpectedFeatures> {
        let kind = wanted.kind.or_else(|| first?.kind).unwrap_or(ImageKind::Photo);
        let named = wanted.model.clone().or_else(|| first?.model.clone());
        let model = named.or_else(|| default_model(kind));
        let model = model.ok_or_else(|| {
            Error::not_found(format!(
                "there is no collection \"{name}\"; name the model of the embeddings with model= to create it"
            ))
        })?;
        let dims = if has_embeddings(kind, &model) {
            first.map_or(0, |point| point.embedding.len())
        } else {
            PLACEHOLDER_DIMS
        };
        Ok(ExpectedFeatures { kind, model, dims })
    }

    /// Returns the error for an embedding of another model.
    fn other_model(&self, model: &str) -> Error {
        if !has_embeddings(self.kind, &self.model) {
            return Error::invalid(format!(
                "the embedding is of model \"{model}\", and the collection has no embeddings: leave \"embedding\" and \
                 \"model\" out"
            ));
        }
        Error::invalid(format!(
            "the embedding is of model \"{model}\", and the collection has embeddings of \"{}\"; extract it with that \
             model",
            self.model
        ))
    }

    /// Checks the points of one request.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first wrong point by its index in the request.
    pub fn check(&self, points: Vec<PointFeatures>) -> Result<Vec<CheckedFeatures>> {
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

impl PointFeatures {
    /// Checks that the collection can hold the point, and sets the placeholder of a missing
    /// embedding.
    fn checked(mut self, wanted: &ExpectedFeatures) -> Result<CheckedFeatures> {
        if let Some(kind) = self.kind.filter(|kind| *kind != wanted.kind) {
            return Err(Error::invalid(format!(
                "features of kind {} do not fit a collection of kind {}",
                kind.name(),
                wanted.kind.name()
            )));
        }
        if let Some(model) = self.model.as_ref().filter(|model| **model != wanted.model) {
            return Err(wanted.other_model(model));
        }
        if !has_embeddings(wanted.kind, &wanted.model) {
            let placeholder = placeholder(&self.id);
            // Points in the log of a cluster have the placeholder.
            if !self.embedding.is_empty() && self.embedding != placeholder {
                return Err(Error::invalid(
                    "the collection has no embeddings: leave \"embedding\" out, or name the model with model= when \
                     you create the collection",
                ));
            }
            self.embedding = placeholder;
        }
        check_embedding(&self.embedding, wanted.dims)?;
        let graph = decode_graph(&self.record, wanted.kind)?;
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

/// Adds the index of a point in its request to an error.
pub fn of_point(error: Error, at: usize) -> Error {
    error.context(format_args!("points[{at}]"))
}

/// Features that a collection can hold.
#[derive(Debug)]
pub struct CheckedFeatures {
    /// The features. In a collection without embeddings, they have the placeholder.
    pub features: PointFeatures,
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
    pub fn payload(&self, before: Option<&Map<String, Value>>) -> Result<Map<String, Value>> {
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

/// Writes features. `before` has the payload of each stored point, and `None` for a new one.
///
/// # Errors
/// `TooLarge` for a payload that collections refuse, before any point is written; the errors of
/// [`NamedCollection::upsert`].
pub fn upsert(
    named: &NamedCollection,
    points: &[CheckedFeatures],
    before: &[Option<Map<String, Value>>],
) -> Result<()> {
    let mut payloads = Vec::with_capacity(points.len());
    for (at, (point, before)) in points.iter().zip(before).enumerate() {
        let payload = point.payload(before.as_ref()).map_err(|error| of_point(error, at))?;
        payloads.push(payload);
    }
    let new = points.iter().zip(&payloads).map(|(point, payload)| NewPoint {
        id: point.features.id,
        embedding: &point.features.embedding,
        record: &point.features.record,
        payload,
    });
    named.upsert(&new.collect::<Vec<_>>())
}

/// Returns the payload of each stored point, and `None` for a new one.
///
/// # Errors
/// Per point, `DataLoss` for a damaged one, and `Unavailable` while the collection is being opened.
pub fn payloads(
    named: &NamedCollection,
    ids: &[PointId],
) -> Vec<Result<Option<Map<String, Value>>>> {
    let found = named.get_parts(ids, PointParts::PAYLOAD).into_iter();
    found.map(|point| Ok(point?.map(|point| point.payload))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::point_features::tests::{point, record};
    use crate::settings::NO_MODEL;

    fn photos() -> ExpectedFeatures {
        ExpectedFeatures { kind: ImageKind::Photo, model: "colour".to_owned(), dims: 3 }
    }

    fn fingers() -> ExpectedFeatures {
        ExpectedFeatures { kind: ImageKind::Fingerprint, ..photos() }
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
    fn embeddings_of_a_collection_without_them_are_refused() {
        let bare = ExpectedFeatures { model: NO_MODEL.to_owned(), dims: 4, ..fingers() };
        let bare_point = |point: &mut PointFeatures| {
            point.record = record(2, false);
            point.embedding = Vec::new();
        };
        let checked = bare.check(vec![point(bare_point)]).unwrap();
        let placeholder = placeholder(&checked[0].features.id);
        assert_eq!(checked[0].features.embedding, placeholder);
        // Points in the log of a cluster have the placeholder.
        let logged = point(|point| {
            bare_point(point);
            point.embedding = placeholder;
        });
        assert!(bare.check(vec![logged]).is_ok());
        for (model, words) in [(None, "has no embeddings"), (Some("m"), "and \"model\" out")] {
            let other = point(|point| {
                bare_point(point);
                point.embedding = vec![0.5; 4];
                point.model = model.map(str::to_owned);
            });
            let error = bare.check(vec![other]).unwrap_err();
            assert!(error.message().contains(words), "{error}");
        }
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
    fn a_block_has_the_facts_of_the_new_features() {
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
