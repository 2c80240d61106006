//! Groups of duplicates as lines of JSON.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_images::{GroupImage, GroupImagesRequest};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster_node::CollectionRecord;
use cluster_root::RootState;
use cluster_root::reads::{ReadBody, ReadPriority, ShardRead, is_final};
use cluster_root::split::raw;
use search::duplicates::{DuplicateGroup, DuplicatePair};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use transport::{Reply, UploadPermit, set_stream_headers};

use super::super::call::{ImageCall, NoRouteParams};
use super::collection_job::CollectionJob;
use super::job::{blocking, read_all};
use super::merge;
use super::pairs::ShardPair;
use super::steps::{JobStep, JobSteps};

/// Maximum number of images that are looked up at the same time.
const IMAGES_MAX: usize = 1000;
/// Longest time of all attempts of a lookup.
const LOOKUP_WAIT_MAX: Duration = Duration::from_secs(30);
/// Pause between two attempts of a lookup.
const LOOKUP_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of batches of lines that wait for the client.
const BATCHES_MAX: usize = 4;
/// Longest time in which a client reads nothing.
const CLIENT_STALL_MAX: Duration = Duration::from_secs(60);

/// Returns the groups of a collection. A job that still runs has the groups of its newest step.
pub(in super::super) async fn groups(call: ImageCall) -> Response {
    // By value, since a body cannot be shared by threads.
    let answer = async move {
        call.query.route_parameters::<NoRouteParams>()?;
        let job = CollectionJob::open(&call)?;
        let permit = job.permit().await?;
        let step = job.newest().await?.step;
        let (sender, receiver) = mpsc::channel(BATCHES_MAX);
        let CollectionJob { state, record, steps } = job;
        let state = state.root.clone();
        let lines = GroupLines { state, record, steps, sender, _permit: permit };
        tokio::spawn(lines.run(step));
        streamed(receiver).await
    };
    answer.await.unwrap_or_else(|error| Reply::error(&error).into_response())
}

/// Returns the lines as a response. An error before the first line becomes the status.
async fn streamed(mut lines: mpsc::Receiver<Result<Bytes>>) -> Result<Response> {
    let ended = || Error::internal("the groups ended without a line");
    let first = lines.recv().await.ok_or_else(ended)??;
    // An error breaks the connection off, so that the client sees that lines are missing.
    let rest = ReceiverStream::new(lines).map(|lines| lines.map_err(io::Error::other));
    let body = Body::from_stream(tokio_stream::once(Ok(first)).chain(rest));
    let mut response = Response::new(body);
    set_stream_headers(response.headers_mut(), "application/x-ndjson");
    Ok(response)
}

/// Groups, and the shards of their points.
struct FoundGroups {
    groups: Vec<DuplicateGroup>,
    shards: HashMap<u64, u32>,
}

impl FoundGroups {
    /// Joins pairs to groups. Keeps the shard of each image.
    fn of(pairs: &[ShardPair]) -> FoundGroups {
        let mut shards = HashMap::new();
        for pair in pairs {
            shards.insert(pair.pair.a, pair.shard_a);
            shards.insert(pair.pair.b, pair.shard_b);
        }
        let pairs: Vec<DuplicatePair> = pairs.iter().map(|pair| pair.pair).collect();
        FoundGroups { groups: search::duplicates::groups(&pairs), shards }
    }
}

/// Counts in the last line of a response.
#[derive(Default)]
struct GroupCounts {
    groups: u64,
    images: u64,
}

/// Writer of the groups of a job to a client.
struct GroupLines {
    state: Arc<RootState>,
    record: Arc<CollectionRecord>,
    steps: JobSteps,
    sender: mpsc::Sender<Result<Bytes>>,
    _permit: UploadPermit,
}

impl GroupLines {
    async fn run(self, step: JobStep) {
        if let Err(error) = Box::pin(self.write(step)).await
            && error.kind() != ErrorKind::Cancelled
        {
            // The client may have disconnected.
            let _ = self.sender.send_timeout(Err(error), CLIENT_STALL_MAX).await;
        }
    }

    /// Writes the groups of all pairs of a job, in batches.
    async fn write(&self, step: JobStep) -> Result<()> {
        let mut pairs = step.pending;
        for part in &step.parts {
            pairs.extend(self.steps.pairs(part).await?);
        }
        let FoundGroups { groups, shards } = blocking(move || Ok(FoundGroups::of(&pairs))).await?;
        let mut counts = GroupCounts::default();
        let mut batch = Vec::new();
        let mut images = 0;
        for group in groups {
            images += group.ids.len();
            batch.push(group);
            if images >= IMAGES_MAX {
                self.write_batch(&std::mem::take(&mut batch), &shards, &mut counts).await?;
                images = 0;
            }
        }
        self.write_batch(&batch, &shards, &mut counts).await?;
        let summary = json!({ "summary": { "groups": counts.groups, "images": counts.images } });
        self.send(format!("{summary}\n")).await
    }

    /// Writes a line for each group.
    async fn write_batch(
        &self,
        batch: &[DuplicateGroup],
        shards: &HashMap<u64, u32>,
        counts: &mut GroupCounts,
    ) -> Result<()> {
        let ids: Vec<u64> = batch.iter().flat_map(|group| &group.ids).copied().collect();
        let mut images = HashMap::new();
        for ids in ids.chunks(IMAGES_MAX) {
            images.extend(self.look_up_images(ids, shards).await?);
        }
        let mut text = String::new();
        for group in batch {
            // All but one may have been removed since.
            let Some(line) = group_line(group, &images) else { continue };
            counts.groups += 1;
            counts.images += line.images;
            text.push_str(&line.text);
        }
        if text.is_empty() {
            return Ok(());
        }
        self.send(text).await
    }

    /// Looks up images by their internal ids.
    async fn look_up_images(
        &self,
        ids: &[u64],
        shards: &HashMap<u64, u32>,
    ) -> Result<HashMap<u64, Value>> {
        let mut wanted: Vec<u32> = ids.iter().filter_map(|id| shards.get(id)).copied().collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut read = ShardRead {
            record: self.record.clone(),
            shards: wanted,
            path: "images/duplicates/images",
            body: ReadBody::Same(raw(&GroupImagesRequest { ids: ids.to_vec() })?),
            deadline: Instant::now(),
            strong: false,
            priority: ReadPriority::Background,
        };
        let give_up = Instant::now() + LOOKUP_WAIT_MAX;
        let results = loop {
            match read_all(&self.state, &mut read).await {
                Ok(results) => break results,
                Err(error) if is_final(&error) || Instant::now() >= give_up => return Err(error),
                Err(_) => tokio::time::sleep(LOOKUP_PAUSE).await,
            }
            if self.sender.is_closed() {
                return Err(Error::cancelled("the client has disconnected"));
            }
        };
        let parse = move || {
            let mut images = HashMap::new();
            for result in results.values() {
                let found: Vec<GroupImage> = merge::parsed(result)?;
                images.extend(found.into_iter().map(|image| (image.key, image.shown)));
            }
            Ok(images)
        };
        blocking(parse).await
    }

    async fn send(&self, text: String) -> Result<()> {
        let sent = self.sender.send_timeout(Ok(text.into()), CLIENT_STALL_MAX).await;
        sent.map_err(|error| match error {
            SendTimeoutError::Closed(_) => Error::cancelled("the client has disconnected"),
            SendTimeoutError::Timeout(_) => Error::new(
                ErrorKind::ClientTimeout,
                format!("the client has read nothing for {} s", CLIENT_STALL_MAX.as_secs()),
            ),
        })
    }
}

/// Line of JSON for a group.
struct DuplicateGroupText {
    text: String,
    /// Number of images in the line.
    images: u64,
}

/// Returns the JSON line of a group, with its images and its pairs. `images` has the images that
/// still exist, by internal id. Returns `None` if fewer than two of the group still exist.
fn group_line(group: &DuplicateGroup, images: &HashMap<u64, Value>) -> Option<DuplicateGroupText> {
    let shown: Vec<&Value> = group.ids.iter().filter_map(|id| images.get(id)).collect();
    if shown.len() < 2 {
        return None;
    }
    // Each part becomes text at once: a value takes about ten times the memory of its text.
    let mut text = "{\"images\":[".to_owned();
    for (at, image) in shown.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        text.push_str(&format!("{comma}{image}"));
    }
    text.push_str("],\"pairs\":[");
    let id = |key: u64| images.get(&key)?.get("id");
    let mut is_first = true;
    for pair in &group.pairs {
        let (Some(a), Some(b)) = (id(pair.a), id(pair.b)) else { continue };
        let pair = json!({ "a": a, "b": b, "similarity": pair.similarity, "score": pair.score });
        let comma = if std::mem::take(&mut is_first) { "" } else { "," };
        text.push_str(&format!("{comma}{pair}"));
    }
    text.push_str("]}\n");
    Some(DuplicateGroupText { text, images: shown.len() as u64 })
}

#[cfg(test)]
mod tests {
    use super::super::pairs::ShardPoint;
    use super::super::pairs::tests::pair;
    use super::*;

    #[test]
    fn removed_images_are_left_out_of_a_line() {
        let point = |id: u64| ShardPoint { id, shard: (id * 10) as u32 };
        let FoundGroups { groups, shards } =
            FoundGroups::of(&[pair(point(1), point(2)), pair(point(3), point(2))]);
        assert_eq!(shards, HashMap::from([(1, 10), (2, 20), (3, 30)]));
        let image = |id: u64| (id, json!({ "id": id, "name": format!("{id}.jpg") }));
        let mut images = HashMap::from([image(1), image(2), image(3)]);
        let whole = group_line(&groups[0], &images).unwrap();
        let json: Value = serde_json::from_str(&whole.text).unwrap();
        assert_eq!((whole.images, &json["images"][2]["name"]), (3, &json!("3.jpg")));
        assert_eq!(json["pairs"][1]["b"], 3);
        assert_eq!(json["pairs"][0]["score"], 300.5);
        images.remove(&1);
        let rest = group_line(&groups[0], &images).unwrap();
        let json: Value = serde_json::from_str(&rest.text).unwrap();
        assert_eq!((rest.images, json["pairs"].as_array().unwrap().len()), (2, 1));
        images.remove(&2);
        assert!(group_line(&groups[0], &images).is_none());
    }
}
