//! Archives and folders. The root reads the images. All nodes with the role extract add them at
//! idle priority, this root too if it has the role.
//!
//! If all asked nodes are overloaded, or none can be reached, the image is sent again until
//! [`BUSY_WAIT_MAX`] has passed. That is safe: an image that was added before is not added again.
//! If the shard of an image refuses it, the images of this shard wait, and those of other shards
//! continue ([`RefusedShards`]). Any other error fails that image alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api_images::{
    BulkImage, BulkOutcome, BulkReporter, BulkRequest, BulkResources, BulkTarget,
    ExtractionPriority, ImageInput, PrintOutcome, WantedImages, image_id, may_have_several_prints,
};
use axum::response::Response;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster_node::ShardKey;
use cluster_root::split::shard_of_id;
use cluster_root::writes::is_shard_refusal;
use cluster_root::{NewShards, RootContext};
use http_client::HttpAnswer;
use search::points::PointId;
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::call::ImageCall;
use super::extraction_nodes::take_slot;
use super::extraction_slots::{ExtractionPlace, ExtractionSlot};
use super::put::{BACKGROUND_TIME_MAX, ImagePut, RootPutParams, count};
use super::refused_shards::{RefusedShards, RefusedStep};
use super::repeats::{ImageRepeats, RunningImage};
use super::state::ImageRootState;
use super::{pass_on, reply};

/// Maximum images of one request in flight. Images that wait to be sent again count too.
const IN_FLIGHT_MAX: usize = 256;
/// Longest time in which an image that no node takes is sent again.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(120);
/// Pause before an image is sent again, if no node advises one.
const BUSY_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause that a node may advise.
const BUSY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Adds the images of the archive in the body.
pub(super) async fn archive(call: ImageCall) -> Result<Response> {
    let BulkCall { resources, request, upload } = BulkCall::new(call)?;
    resources.archive(request, |stop| Ok(ClusterTarget::new(upload, stop))).await
}

/// Adds the images of the folder of this machine that the body names.
pub(super) async fn folder(call: ImageCall) -> Result<Response> {
    let BulkCall { resources, request, upload } = BulkCall::new(call)?;
    resources.folder(request, |stop| Ok(ClusterTarget::new(upload, stop))).await
}

/// A request with many images, whose parameters are checked.
struct BulkCall {
    resources: Arc<BulkResources>,
    request: BulkRequest,
    upload: BulkUpload,
}

impl BulkCall {
    fn new(call: ImageCall) -> Result<BulkCall> {
        call.context.check_creates()?;
        let parameters: RootPutParams = call.query.route_parameters()?;
        parameters.check_bulk()?;
        let resources = call.state.bulk.clone().ok_or_else(|| {
            Error::precondition("this node takes no archives and no folders; send them to a root")
        })?;
        let upload = BulkUpload {
            wanted: parameters.wanted_images()?,
            new: parameters.new_shards()?,
            // No image has bytes yet.
            input: ImageInput {
                priority: ExtractionPriority::Idle,
                ..parameters.input(Bytes::new())?
            },
            path: call.head.target.split('?').next().unwrap_or_default().to_owned(),
            query: passed_query(&call),
            context: call.context.clone(),
            state: call.state.clone(),
        };
        Ok(BulkCall { resources, request: call.into_bulk(), upload })
    }
}

/// Returns the query string of the request of each image, without its name.
fn passed_query(call: &ImageCall) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(call.query.own.as_bytes()) {
        if name != "background" {
            query.append_pair(&name, &value);
        }
    }
    query.append_pair("background", "1");
    if call.context.params.strong {
        query.append_pair("consistency", "strong");
    }
    if let Some(timeout) = call.context.params.timeout {
        query.append_pair("timeout", &timeout.as_secs().to_string());
    }
    query.finish()
}

/// Properties of the request that all of its images share.
struct BulkUpload {
    context: RootContext,
    state: Arc<ImageRootState>,
    /// Path of the collection.
    path: String,
    /// Query string of each image's request, without its name.
    query: String,
    wanted: WantedImages,
    new: NewShards,
    /// Properties of each image, without its name and its bytes.
    input: ImageInput,
}

/// Target of bulk work whose images are added by the nodes of the cluster.
struct ClusterTarget {
    images: Arc<ClusterImages>,
    runtime: Handle,
}

impl ClusterTarget {
    /// Creates the target of a request. Must be called on the runtime of the request.
    fn new(upload: BulkUpload, stop: Arc<AtomicBool>) -> ClusterTarget {
        let refused = RefusedShards::new(upload.context.params.timeout);
        let images = ClusterImages {
            upload,
            stop,
            refused,
            repeats: Arc::default(),
            creating: Arc::default(),
            is_stalled: AtomicBool::new(false),
        };
        ClusterTarget { images: Arc::new(images), runtime: Handle::current() }
    }
}

impl BulkTarget for ClusterTarget {
    fn in_flight_max(&self) -> usize {
        IN_FLIGHT_MAX
    }

    fn put(&self, image: BulkImage, report: BulkReporter) -> Result<()> {
        let images = self.images.clone();
        let id = image_id(&image.bytes);
        // This thread has idle priority, and beginning takes locks of queries.
        let begun = self.runtime.spawn(async move { images.begin(id).await });
        let begun = self.runtime.block_on(begun).map_err(|error| {
            Error::internal("the work on an image ended early").caused_by(error)
        })?;
        let images = self.images.clone();
        match begun {
            Some(begun) => drop(self.runtime.spawn(async move {
                match images.put(&image, begun).await {
                    Ok(reply) => reply.report(report),
                    Err(error) => report.send(Err(error)),
                }
            })),
            None => report.send(Ok(BulkOutcome { id, added: false })),
        }
        Ok(())
    }

    /// Returns true if the cluster has no space at all. The refusal of a shard concerns the images
    /// of that shard only.
    fn refuses_all(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::StorageFull && !is_shard_refusal(error)
    }
}

/// An image that may be sent now.
struct BegunImage {
    id: PointId,
    running: RunningImage,
    /// Held by the image that may create the collection.
    turn: Option<OwnedMutexGuard<()>>,
    /// Slot of the first node that is asked; `None` if no node extracts now.
    slot: Option<ExtractionSlot>,
}

/// The images of one request.
struct ClusterImages {
    upload: BulkUpload,
    /// Flag that is set once the remaining images are not wanted.
    stop: Arc<AtomicBool>,
    refused: RefusedShards,
    repeats: Arc<ImageRepeats>,
    /// Held by the image that may create the collection.
    creating: Arc<Mutex<()>>,
    /// True after an image was not taken in time, until the next one is. Images are then not sent
    /// again, so that a cluster that extracts nothing does not keep the client waiting.
    is_stalled: AtomicBool,
}

impl ClusterImages {
    /// Waits until the collection exists, or no other image of the request can create it. Images
    /// that create it at the same time would only wait for each other, or for another node's view.
    async fn turn_to_create(&self) -> Option<OwnedMutexGuard<()>> {
        let exists = || self.upload.context.state.record(&self.upload.context.collection).is_ok();
        if exists() {
            return None;
        }
        let turn = self.creating.clone().lock_owned().await;
        (!exists()).then_some(turn)
    }

    /// Waits until an image may be sent. Returns `None` if the request has added it already.
    async fn begin(&self, id: PointId) -> Option<BegunImage> {
        let Some(running) = self.repeats.begin(id).await else {
            count(&self.upload.context.state, "present");
            return None;
        };
        let turn = self.turn_to_create().await;
        let slot = take_slot(&self.upload.state, &[]).await;
        Some(BegunImage { id, running, turn, slot })
    }

    /// Returns the shard that gets an image. Returns `None` for a file with several prints, which
    /// may be in different shards, and before the collection exists.
    fn shard_of(&self, id: &PointId, file: &[u8]) -> Option<ShardKey> {
        if may_have_several_prints(file) {
            return None;
        }
        let context = &self.upload.context;
        let record = context.state.record(&context.collection).ok()?;
        let shard = shard_of_id(id, record.shards).ok()?;
        Some(ShardKey::new(&record.id, shard))
    }

    /// Waits while the shard of an image refuses images. Frees the image's slot before. Returns
    /// true if it has waited.
    ///
    /// # Errors
    /// The refusal of the shard if the wait takes too long; `Cancelled` if the client does not want
    /// the remaining images.
    async fn wait_for_shard(
        &self,
        shard: &ShardKey,
        slot: &mut Option<ExtractionSlot>,
    ) -> Result<bool> {
        let mut has_waited = false;
        loop {
            let pause = match self.refused.step(shard, Instant::now()) {
                RefusedStep::Send => return Ok(has_waited),
                RefusedStep::Fail(error) => return Err(error),
                RefusedStep::Wait(pause) => pause,
            };
            drop(slot.take());
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::cancelled("the remaining images are not wanted"));
            }
            has_waited = true;
            tokio::time::sleep(pause).await;
        }
    }

    /// Adds an image. Sends it again if its shard refused it or all nodes were overloaded, until
    /// the wait takes too long.
    async fn put(&self, image: &BulkImage, begun: BegunImage) -> Result<PutReply> {
        let BegunImage { id, running, turn: _turn, mut slot } = begun;
        let shard = self.shard_of(&id, &image.bytes);
        // End of the time in which the image is sent again, from the first overload on.
        let mut give_up: Option<Instant> = None;
        loop {
            if let Some(shard) = &shard
                && self.wait_for_shard(shard, &mut slot).await?
            {
                // No node was overloaded in this time.
                give_up = None;
            }
            let error = match (self.ask_nodes(image, slot.take()).await, &shard) {
                (Err(error), Some(shard)) if is_shard_refusal(&error) => {
                    self.is_stalled.store(false, Ordering::Relaxed);
                    if self.refused.record(shard, &error, Instant::now()) {
                        return Err(error);
                    }
                    continue;
                }
                (Err(error), _) if error.is_overload() => error,
                (outcome, _) => {
                    self.is_stalled.store(false, Ordering::Relaxed);
                    if outcome.is_ok() {
                        running.succeeded();
                    }
                    if let Some(shard) = &shard {
                        self.end_of_shard_write(shard, &outcome);
                    }
                    return outcome;
                }
            };
            if let Some(shard) = &shard {
                self.refused.release(shard);
            }
            let pause = error.retry_after().unwrap_or(BUSY_PAUSE).min(BUSY_PAUSE_MAX);
            let end = *give_up.get_or_insert_with(|| Instant::now() + BUSY_WAIT_MAX);
            if Instant::now() + pause > end {
                self.is_stalled.store(true, Ordering::Relaxed);
            }
            if self.is_stalled.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed) {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Records the outcome of an image that its shard did not refuse.
    fn end_of_shard_write(&self, shard: &ShardKey, outcome: &Result<PutReply>) {
        match outcome {
            Ok(reply) if reply.status == "added" => self.refused.end(shard),
            // An image that is present or invalid says nothing about writes.
            _ => self.refused.release(shard),
        }
    }

    /// Asks up to [`pass_on::NODES_ASKED_MAX`] nodes that extract, each once, until one of them is
    /// not overloaded.
    async fn ask_nodes(
        &self,
        image: &BulkImage,
        mut slot: Option<ExtractionSlot>,
    ) -> Result<PutReply> {
        let state = &self.upload.state;
        let mut tried: Vec<String> = Vec::new();
        let mut refusal = pass_on::no_extraction();
        loop {
            let taken = match slot.take() {
                Some(slot) => Some(slot),
                None => take_slot(state, &tried).await,
            };
            let Some(taken) = taken else { return Err(refusal) };
            match self.put_at(&taken.place, image).await {
                // Another node would send the image to the same shard.
                Err(error) if error.is_overload() && !is_shard_refusal(&error) => refusal = error,
                outcome => return outcome,
            }
            tried.push(taken.place.name().to_owned());
            if tried.len() >= pass_on::NODES_ASKED_MAX {
                return Err(refusal);
            }
        }
    }

    async fn put_at(&self, place: &ExtractionPlace, image: &BulkImage) -> Result<PutReply> {
        let context = self.upload.context.clone().with_time(BACKGROUND_TIME_MAX);
        match place {
            ExtractionPlace::Here => self.put_here(&context, image).await,
            ExtractionPlace::Node(name) => self.put_elsewhere(&context, name, image).await,
        }
    }

    /// Extracts and writes an image in this process.
    async fn put_here(&self, context: &RootContext, image: &BulkImage) -> Result<PutReply> {
        let Some(images) = context.state.extraction().cloned() else {
            return Err(pass_on::no_extraction());
        };
        let BulkImage { name, bytes } = image.clone();
        let input = ImageInput { name, bytes, ..self.upload.input.clone() };
        let BulkUpload { wanted, new, .. } = &self.upload;
        let priority = input.priority;
        let put = ImagePut { context, images, wanted: wanted.clone(), new: *new, priority };
        let answer = put.run_file(input).await?;
        serde_json::from_value(answer.json)
            .map_err(|error| Error::internal("the answer to an image").caused_by(error))
    }

    /// Sends an image to another node, which extracts and writes it.
    async fn put_elsewhere(
        &self,
        context: &RootContext,
        node: &str,
        image: &BulkImage,
    ) -> Result<PutReply> {
        let BulkUpload { path, query, .. } = &self.upload;
        let name: String = form_urlencoded::byte_serialize(image.name.as_bytes()).collect();
        let path = format!("{path}?name={name}&{query}");
        let answer = pass_on::send_image(context, node, &path, image.bytes.clone()).await?;
        reply_of(&answer, node)
    }
}

/// Answer to a file that was added.
#[derive(Debug, Deserialize)]
struct PutReply {
    id: PointId,
    status: String,
    /// Empty unless the file has several prints.
    #[serde(default)]
    prints: Vec<PrintReply>,
}

/// Answer to one print of a file.
#[derive(Debug, Deserialize)]
struct PrintReply {
    /// `None` for a print that was not added.
    id: Option<PointId>,
    status: String,
    finger: Option<u8>,
    error: Option<String>,
}

impl PutReply {
    fn report(self, report: BulkReporter) {
        if self.prints.is_empty() {
            report.send(Ok(BulkOutcome { id: self.id, added: self.status == "added" }));
        } else {
            report.send_prints(self.prints.into_iter().map(PrintReply::outcome).collect());
        }
    }
}

impl PrintReply {
    fn outcome(self) -> PrintOutcome {
        let PrintReply { id, status, finger, error } = self;
        let outcome = match id {
            Some(id) => Ok(BulkOutcome { id, added: status == "added" }),
            None => Err(Error::invalid(error.unwrap_or(status))),
        };
        PrintOutcome { finger, outcome }
    }
}

/// Reads a node's answer to an image.
///
/// # Errors
/// `ResourceExhausted` or `Unavailable` with the node's retry advice if the image can be sent
/// again; the node's error.
fn reply_of(answer: &HttpAnswer, node: &str) -> Result<PutReply> {
    if answer.status != 200 {
        return Err(refusal_of(answer, node));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|error| Error::internal(format!("the answer of node {node}")).caused_by(error))
}

fn refusal_of(answer: &HttpAnswer, node: &str) -> Error {
    let error = pass_on::refusal_of_shard(reply::error_of(answer), answer);
    match answer.status {
        429 | 503 | 507 => error,
        // An earlier version has no background work in a cluster. Other nodes may be of this one.
        501 => Error::unavailable(error.message().to_owned()).context(format_args!("node {node}")),
        // A second try with this image would fail in the same way.
        _ if error.is_overload() => Error::new(ErrorKind::Internal, error.message().to_owned())
            .context(format_args!("node {node} answers with status {}", answer.status)),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header};

    use super::*;

    fn answer(status: u16, body: &'static str) -> HttpAnswer {
        HttpAnswer { status, headers: HeaderMap::new(), body: body.into() }
    }

    #[test]
    fn answers_of_nodes_become_outcomes() {
        for (status, added) in [("added", true), ("present", false)] {
            let body = format!(r#"{{"id":7,"status":"{status}","name":"x"}}"#);
            let found = HttpAnswer { body: body.into(), ..answer(200, "") };
            let reply = reply_of(&found, "a").unwrap();
            let is_added = reply.status == "added";
            assert_eq!((reply.id, is_added), (PointId::Number(7), added));
            assert!(reply.prints.is_empty());
        }
        let other = reply_of(&answer(200, "{}"), "a").unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Internal);
    }

    #[test]
    fn each_print_of_a_file_has_an_outcome() {
        let body = r#"{"id":7,"status":"added","person":"x","prints":[
            {"id":7,"status":"added","finger":1,"name":"x"},
            {"id":8,"status":"present","finger":null},
            {"id":null,"status":"failed","finger":3,"error":"why"}]}"#;
        let reply = reply_of(&answer(200, body), "a").unwrap();
        let found: Vec<PrintOutcome> = reply.prints.into_iter().map(PrintReply::outcome).collect();
        let stored = |id, added| Ok(BulkOutcome { id: PointId::Number(id), added });
        let wanted = [
            PrintOutcome { finger: Some(1), outcome: stored(7, true) },
            PrintOutcome { finger: None, outcome: stored(8, false) },
            PrintOutcome { finger: Some(3), outcome: Err(Error::invalid("why")) },
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn only_overloads_are_sent_again() {
        let error = r#"{"error":"why"}"#;
        for status in [429, 503] {
            let mut busy = answer(status, error);
            busy.headers.insert(header::RETRY_AFTER, HeaderValue::from_static("3"));
            let refusal = reply_of(&busy, "a").unwrap_err();
            assert_eq!(refusal.kind().http_status(), status);
            assert_eq!(refusal.retry_after(), Some(Duration::from_secs(3)));
        }
        for (status, overload) in [(400, false), (413, false), (500, false), (501, true)] {
            let refusal = reply_of(&answer(status, error), "a").unwrap_err();
            assert_eq!(refusal.is_overload(), overload, "{status}: {refusal}");
            assert!(refusal.message().ends_with("why"), "{refusal}");
        }
    }
}
