//! Features of images and of queries, extracted on a node that runs models.

use std::time::Duration;

use base::Result;
use bytes::Bytes;
use image_features::embedding_plan::EmbeddingPlan;
use image_features::features::{
    Features, checked_name, checked_payload, checked_quality, id_of, originals_of,
};
use image_features::logged::{LoggedImage, LoggedPoint, text_of};
use image_features::point_checks::{
    PAYLOAD_BYTES_MAX, check_embedding, check_own_keys, check_payload_depth, check_payload_size,
};
use image_features::point_features::{PointFeatures, parse_json};
use image_features::settings::{ImageSettings, WantedImages};
use matching::Graph;
use search::points::PointId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::browse;
use crate::extraction::{self, EmbeddedFeatures, ExtractionInput, ExtractionPriority};
use crate::old_uploads::OldUploads;
use crate::query_features::{QueryFeatures, Stages, extract, milliseconds};
use crate::state::ImagesState;
use crate::store::PutOutcome;
use crate::uploads::UploadClaim;
use crate::views::{QueryView, ViewFeatures, extract_step};

/// Returns the id of an image, which follows from the bytes of its file.
pub fn image_id(bytes: &[u8]) -> PointId {
    PointId::Uuid(id_of(bytes))
}

/// Returns the response of `PUT` for an existing point, from its payload. `None` if it has no
/// original. Then the image is added.
pub fn present_answer(id: &PointId, payload: &Map<String, Value>) -> Option<Value> {
    PutOutcome::present(*id, payload).map(|outcome| outcome.to_json())
}

/// An image to add.
#[derive(Clone, Debug)]
pub struct ImageInput {
    /// Name that is shown; empty if the image has none.
    pub name: String,
    /// Payload of the caller.
    pub payload: Map<String, Value>,
    /// File of the image.
    pub bytes: Bytes,
    /// Minimum quality of a fingerprint, 0 to 100.
    pub quality_min: u8,
    /// Priority of the extraction.
    pub priority: ExtractionPriority,
}

impl ImageInput {
    /// Creates the input from the parameters of a request. `payload` is JSON.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter out of range.
    pub fn new(
        name: Option<&str>,
        payload: Option<&str>,
        quality_min: Option<u8>,
        bytes: Bytes,
    ) -> Result<ImageInput> {
        let name = checked_name(name.unwrap_or_default())?;
        let payload = checked_payload(payload)?;
        let quality_min = checked_quality(quality_min)?;
        let priority = ExtractionPriority::Ordinary;
        let input = ImageInput { name, payload, bytes, quality_min, priority };
        input.check()?;
        Ok(input)
    }

    fn check(&self) -> Result<()> {
        checked_name(&self.name)?;
        checked_quality(Some(self.quality_min))?;
        check_own_keys(&self.payload)?;
        check_payload_depth(&self.payload)
    }
}

/// Features of an image, ready to be logged.
pub struct ExtractedImage {
    settings: ImageSettings,
    features: Features,
    embedding: Vec<f32>,
    /// Payload of the caller.
    payload: Map<String, Value>,
    /// Other prints of the file, whose features are not extracted.
    prints_left_out: usize,
}

impl ExtractedImage {
    /// Returns the settings of the collection, or of the one to create for the image.
    pub fn settings(&self) -> &ImageSettings {
        &self.settings
    }

    /// Returns the number of values of the embedding.
    pub fn dims(&self) -> usize {
        self.embedding.len()
    }

    /// Returns the id of the point.
    pub fn id(&self) -> PointId {
        PointId::Uuid(self.features.facts.id)
    }

    /// Returns the key of the original of one upload in `space`. Each upload must have a key of its
    /// own, so that the removal of one upload does not remove the original of another.
    pub fn original_key(&self, space: &str, upload: &str) -> String {
        self.features.facts.upload(space, upload)
    }

    /// Returns the point of an operation `put_images`. `original` is the key of the original.
    /// Holders skip an operation that no collection takes, so it is refused here.
    ///
    /// # Errors
    /// `TooLarge` for a payload that collections refuse, `InvalidArgument` for an embedding whose
    /// length cannot be compared.
    pub fn logged(&self, original: &str) -> Result<LoggedPoint> {
        check_embedding(&self.embedding, self.embedding.len())?;
        let payload = self.features.facts.payload(&self.payload, original);
        check_payload_size(&payload, PAYLOAD_BYTES_MAX)?;
        let id = self.id();
        let record = self.features.record();
        let embedding = self.embedding.clone();
        let text = text_of(&LoggedImage { id, embedding, record, payload })?;
        Ok(LoggedPoint { id, text })
    }

    /// Returns the response of `POST /v1/images/NAME/features`, which stores nothing.
    ///
    /// # Errors
    /// `Internal` if it cannot be written.
    pub fn features(&self) -> Result<String> {
        PointFeatures::extracted(&self.features, &self.embedding, &self.settings)
            .with_prints_left_out(self.prints_left_out)
            .to_json()
    }

    /// Returns the response of `PUT` once the image is added.
    pub fn added(&self) -> Value {
        PutOutcome::added(&self.features).to_json()
    }
}

/// Features of a query image. They travel between nodes as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExtractedQuery {
    /// Encoded keypoint graph; base64 in JSON.
    #[serde(with = "image_features::base64_text")]
    pub record: Vec<u8>,
    /// Embedding; empty for a file of a fingerprint, whose index needs none.
    pub embedding: Vec<f32>,
    /// Width of the image in pixels.
    pub width: u32,
    /// Height of the image in pixels.
    pub height: u32,
    /// Number of keypoints.
    pub keypoints: usize,
    /// Time of decoding in milliseconds.
    pub decode_ms: f64,
    /// Time of embedding in milliseconds.
    pub embed_ms: f64,
    /// Time of finding keypoints in milliseconds.
    pub keypoints_ms: f64,
}

impl ExtractedQuery {
    /// Reads the features of a stored image, from the JSON of `GET /v1/images/NAME/ID/features`.
    ///
    /// # Errors
    /// `InvalidArgument` for other JSON; `DataLoss` for a damaged record.
    pub fn of_features(json: &[u8]) -> Result<ExtractedQuery> {
        let features: PointFeatures = parse_json(json)?;
        let keypoints = Graph::decode(&features.record)?.vertices.len();
        let PointFeatures { record, embedding, width, height, .. } = features;
        Ok(ExtractedQuery {
            record,
            embedding,
            width: width.unwrap_or(0),
            height: height.unwrap_or(0),
            keypoints,
            decode_ms: 0.0,
            embed_ms: 0.0,
            keypoints_ms: 0.0,
        })
    }

    fn of(features: QueryFeatures) -> ExtractedQuery {
        let QueryFeatures { width, height, graph, embedding, stages } = features;
        let Stages { decode, embed, keypoints } = stages;
        let mut record = Vec::new();
        graph.encode(&mut record);
        ExtractedQuery {
            record,
            embedding,
            width: width as u32,
            height: height as u32,
            keypoints: graph.vertices.len(),
            decode_ms: milliseconds(decode),
            embed_ms: milliseconds(embed),
            keypoints_ms: milliseconds(keypoints),
        }
    }
}

/// Features of a view of a query image. They travel between nodes as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExtractedView {
    /// The view.
    pub view: QueryView,
    /// Features of its pixels. The embedding is empty if the view has the embedding of the whole
    /// photograph.
    pub query: ExtractedQuery,
}

impl ImagesState {
    /// Extracts the features of an image on this server. `existing` are the settings of the
    /// collection and the number of values of its embeddings. If it does not exist, `wanted` and
    /// then the defaults decide on kind and model.
    ///
    /// # Errors
    /// Returns the errors of the image and the model; `FailedPrecondition` if the model gives
    /// embeddings of another length than the collection's; `InvalidArgument` for a name, a payload
    /// or a quality out of range.
    pub async fn extract_image(
        &self,
        image: ImageInput,
        wanted: &WantedImages,
        existing: Option<(&ImageSettings, usize)>,
    ) -> Result<ExtractedImage> {
        image.check()?;
        let plan = EmbeddingPlan::of(existing.map(|(settings, _)| settings), wanted);
        let ImageInput { name, payload, bytes, quality_min, priority } = image;
        let embedder = self.services.embedder_of(&plan, &bytes)?;
        let file = ExtractionInput { kind: plan.kind, name, bytes, quality_min };
        let EmbeddedFeatures { features, embedding, prints_left_out } =
            extraction::extract(&self.services, embedder.as_ref(), file, priority).await?;
        let settings = plan.settings(embedder.as_ref());
        let dims = match existing {
            Some((_, dims)) => dims,
            None => settings.new_dims(&embedding)?,
        };
        let id = PointId::Uuid(features.facts.id);
        let embedding = settings.vector(&id, embedding, dims);
        settings.check_dims(dims, embedding.len())?;
        Ok(ExtractedImage { settings, features, embedding, payload, prints_left_out })
    }

    /// Extracts the features of a query on this server. A fingerprint needs no model, and may be a
    /// template. `dims` is the number of values of the collection's embeddings.
    ///
    /// # Errors
    /// As [`ImagesState::extract_image`].
    pub async fn extract_query(
        &self,
        settings: &ImageSettings,
        dims: usize,
        bytes: Bytes,
    ) -> Result<ExtractedQuery> {
        let features = extract(&self.services, settings, dims, bytes).await?;
        features.stages.record(&self.services);
        Ok(ExtractedQuery::of(features))
    }

    /// Extracts the features of the views of a photograph in one of [`view_steps`] on this server.
    ///
    /// [`view_steps`]: crate::view_steps
    ///
    /// # Errors
    /// As [`ImagesState::extract_image`].
    pub async fn extract_views(
        &self,
        settings: &ImageSettings,
        dims: usize,
        bytes: Bytes,
        step: usize,
    ) -> Result<Vec<ExtractedView>> {
        let embedder = self.services.embedder(None, Some(&settings.model))?;
        let mut extracted = Vec::new();
        for found in extract_step(&self.services, &embedder, bytes, step).await? {
            let ViewFeatures { view, mut features, tensor } = found;
            if let Some(tensor) = tensor {
                features.embedding = self.services.embed(&embedder, tensor).await?;
                settings.check_dims(dims, features.embedding.len())?;
            }
            extracted
                .push(ExtractedView { view: view.into(), query: ExtractedQuery::of(features) });
        }
        Ok(extracted)
    }

    /// Waits until no other upload of the image runs on this server.
    pub async fn claim_upload(&self, id: PointId) -> UploadClaim {
        self.uploads.claim(id).await
    }

    /// Writes an original, which is durable when this returns.
    ///
    /// # Errors
    /// Returns the errors of the store of originals.
    pub async fn put_original(&self, key: &str, bytes: Bytes) -> Result<()> {
        self.services.originals.put(key, bytes).await
    }

    /// Removes an original if it exists.
    ///
    /// # Errors
    /// Returns the errors of the store of originals.
    pub async fn delete_original(&self, key: &str) -> Result<()> {
        self.services.originals.delete(key).await
    }

    /// Removes the originals of all uploads of an image in `space` that are older than `age` by the
    /// clock of the store.
    ///
    /// # Errors
    /// Returns the errors of the store of originals.
    pub async fn delete_uploads(&self, space: &str, id: &PointId, age: Duration) -> Result<()> {
        self.services.originals.delete_older(space, &originals_of(id, space), age).await
    }

    /// Lists the originals of uploads in the part `part` of `space` that are older than `age` by
    /// the clock of the store. A part has the images whose ids begin with these two hexadecimal
    /// digits.
    ///
    /// # Errors
    /// Returns the error of opening the store of originals.
    pub fn old_uploads(&self, space: &str, part: u8, age: Duration) -> Result<OldUploads<'_>> {
        OldUploads::new(&self.services.originals, space, part, age)
    }

    /// Returns the model that a new collection gets, as `GET /v1/images` shows it:
    /// `{"model": NAME}` or `{"error": REASON}`.
    pub fn embedding_default(&self) -> Value {
        browse::embedding_default(&self.services)
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use image_features::features::ImageFacts;
    use image_features::settings::ImageKind;
    use image_features::template_file::FileFormat;
    use vision::Format;

    use super::*;

    fn extracted(embedding: Vec<f32>) -> ExtractedImage {
        let facts = ImageFacts {
            id: id_of(b"an image"),
            name: String::new(),
            format: FileFormat::Image(Format::Png),
            width: 8,
            height: 8,
            bytes: 64,
            keypoints: 0,
            quality: None,
        };
        ExtractedImage {
            settings: ImageSettings { kind: ImageKind::Photo, model: "m".to_owned() },
            features: Features { facts, graph: Graph::default(), tensor: Vec::new() },
            embedding,
            payload: Map::new(),
            prints_left_out: 0,
        }
    }

    #[test]
    fn an_embedding_that_no_holder_takes_is_not_logged() {
        assert!(extracted(vec![0.5, -0.5]).logged("c").is_ok());
        assert!(extracted(vec![0.0, 0.0]).logged("c").is_ok());
        for value in [1e-20, 3e18, f32::INFINITY] {
            let error = extracted(vec![value, 0.0]).logged("c").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }
}
