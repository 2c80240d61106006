//! Requests and answers of a search for duplicates, as a root and the holders of shards exchange
//! them.
//!
//! The root reads the embeddings of one shard page by page, and asks all shards for their
//! neighbours. It reads the records of the points that have neighbours, and sends them to the
//! shards of the neighbours, which compare the keypoints.

use search::duplicates::NearPoint;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Request for a page of the embeddings of a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingsRequest {
    /// First internal id.
    pub from: u64,
    /// Maximum points.
    pub max: usize,
}

/// A page of the embeddings of a shard, in the order of internal ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingsPage {
    /// Internal ids.
    pub ids: Vec<u64>,
    /// Embeddings one after the other, as floats of 32 bits, little-endian.
    #[serde(with = "image_features::base64_text")]
    pub embeddings: Vec<u8>,
    /// Number of points that cannot be read.
    pub unreadable: u64,
    /// First internal id of the next page; `None` after the last one.
    pub next: Option<u64>,
}

/// Request for the neighbours of embeddings in a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighboursRequest {
    /// Minimum similarity.
    pub threshold: f32,
    /// Embeddings in the form of [`EmbeddingsPage::embeddings`].
    #[serde(with = "image_features::base64_text")]
    pub embeddings: Vec<u8>,
}

/// Neighbours of embeddings in a shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NeighboursAnswer {
    /// Neighbours of each embedding. A point is a neighbour of its own embedding.
    pub near: Vec<Vec<NearPoint>>,
    /// Number of points that cannot be read.
    pub unreadable: u64,
}

/// Request for the records of points of a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordsRequest {
    /// Internal ids.
    pub ids: Vec<u64>,
    /// Bytes of records after which the answer ends.
    pub bytes_max: usize,
}

/// Records of the first points of a request, at least of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordsAnswer {
    /// Records, in the order of the request.
    pub records: Vec<StoredRecord>,
}

/// Record of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredRecord {
    /// Bytes of the record; empty for a point without an image.
    Present(#[serde(with = "image_features::base64_text")] Vec<u8>),
    /// The point was removed.
    Removed,
    /// The record is damaged.
    Unreadable,
}

/// Request to compare records with the records of neighbours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// Minimum score of an accepted pair.
    pub accept: f32,
    /// Records, each with the neighbours to compare it with.
    pub probes: Vec<NeighbourProbe>,
}

/// Record of a point, and its neighbours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourProbe {
    /// The record; empty for a point without an image.
    #[serde(with = "image_features::base64_text")]
    pub record: Vec<u8>,
    /// Internal ids of the neighbours. Ids of other shards are left out.
    pub ids: Vec<u64>,
}

/// Outcome of the comparisons in a shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyAnswer {
    /// Accepted pairs.
    pub accepted: Vec<AcceptedNeighbour>,
    /// Number of pairs whose keypoints do not agree.
    pub refused: u64,
    /// Number of records that cannot be read.
    pub unreadable: u64,
}

/// A neighbour whose keypoints agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptedNeighbour {
    /// Index of the record in the request.
    pub probe: usize,
    /// Internal id of the neighbour.
    pub id: u64,
    /// Score; `None` if a point has no record to compare.
    pub score: Option<f32>,
}

/// Request for the images of groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupImagesRequest {
    /// Internal ids. Ids of other shards are left out.
    pub ids: Vec<u64>,
}

/// An image of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupImage {
    /// Internal id.
    pub key: u64,
    /// Element of "images" in the line of a group.
    pub shown: Value,
}
