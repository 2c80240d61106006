//! Requests and answers of the two rounds of a search, as nodes exchange them.
//!
//! Round 1 asks every shard for its most similar embeddings. Round 2 asks the shards of the best of
//! all for exact scores. Fingerprints have round 2 only: scores of the indexes of different shards
//! cannot be compared, so every shard compares its share.

use search::points::PointId;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::views::QueryView;

/// Request of round 1, for photographs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoarseSearchRequest {
    /// Embedding of the query.
    pub embedding: Vec<f32>,
    /// Number of images to return.
    pub candidates: usize,
    /// Filter in Qdrant's JSON.
    #[serde(default)]
    pub filter: Option<Value>,
}

/// Answer of round 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoarseAnswer {
    /// Internal ids of the images with the most similar embeddings, best first.
    pub ids: Vec<u64>,
    /// Similarity of the embedding of each.
    pub coarse: Vec<f32>,
    /// Number of images of the shard that the filter allows.
    pub of: u64,
    /// True if images may be missing.
    pub partial: bool,
}

/// Images that the exact stage compares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoarseCandidates {
    /// Internal ids. Ids of other shards are left out.
    pub ids: Vec<u64>,
    /// Similarity of the embedding of each.
    pub coarse: Vec<f32>,
}

/// Share of a shard in the fingerprints that a search compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrintShare {
    /// Number for the whole collection; `None` for the default.
    pub candidates: Option<usize>,
    /// Number of shards of the collection.
    pub shards: u32,
}

/// Request of round 2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankRequest {
    /// Encoded keypoint graph of the query; base64 in JSON.
    #[serde(with = "image_features::base64_text")]
    pub record: Vec<u8>,
    /// Width of the query's image in pixels.
    pub width: u32,
    /// Height of the query's image in pixels.
    pub height: u32,
    /// Maximum hits.
    pub k: usize,
    /// Smallest score of an accepted image.
    pub threshold: f32,
    /// True to return the matched pairs of keypoints.
    pub explain: bool,
    /// Photographs: candidates of all shards.
    #[serde(default)]
    pub candidates: Option<CoarseCandidates>,
    /// Fingerprints: the share of the shard.
    #[serde(default)]
    pub prints: Option<PrintShare>,
    /// Filter in Qdrant's JSON, for fingerprints only, because round 1 has the filter of
    /// photographs.
    #[serde(default)]
    pub filter: Option<Value>,
    /// The view of a photograph whose keypoints these are; `None` for a whole image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<QueryView>,
}

/// Answer of round 2.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankAnswer {
    /// Best hits of the shard, best first.
    pub hits: Vec<RankedImage>,
    /// Number of images that were compared.
    pub compared: u64,
    /// Number of images of the shard that the filter allows.
    pub of: u64,
    /// True if hits may be missing.
    pub partial: bool,
}

/// A hit of a shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankedImage {
    /// Internal id of the point. If scores are equal, the smaller id comes first.
    pub key: u64,
    /// Id of the point.
    pub id: PointId,
    /// Score of the keypoints.
    pub score: f32,
    /// Similarity of the embeddings, or the score of the index of fingerprints.
    pub coarse: f32,
    /// Element of "results" in the response of a search.
    pub shown: Value,
}

impl<'de> Deserialize<'de> for RankedImage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RankedImage, D::Error> {
        #[derive(Deserialize)]
        struct Sent {
            key: u64,
            id: PointId,
            score: f32,
            coarse: f32,
            shown: Value,
        }
        let Sent { key, id, score, coarse, mut shown } = Sent::deserialize(deserializer)?;
        // Numbers of 64 bits can change in their last digit when JSON is read, and these have 32
        // bits. So the response has the same digits as that of a single server.
        if let Some(members) = shown.as_object_mut() {
            members.insert("score".to_owned(), score.into());
            members.insert("coarse".to_owned(), coarse.into());
        }
        Ok(RankedImage { key, id, score, coarse, shown })
    }
}
