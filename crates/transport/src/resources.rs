//! Limits and resources that all requests share, and the reading of bodies within them.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use http::{HeaderMap, header};
use metrics::{KindLabels, Metrics};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body_reader::{self, BodyAccounting, BodyLimits};
use crate::byte_budget::{ByteBudget, FREE_BYTES_MAX};
use crate::codec_threads::{CodecStep, CodecThreads, INLINE_BYTES_MAX};
use crate::decompress;
use crate::receive_permits::ReceivePermits;

/// The state that a router's handlers share.
pub type Shared<S> = axum::extract::State<Arc<S>>;

/// Maximum bytes of a JSON value besides its text, while a list of such values grows.
const JSON_VALUE_BYTES: u64 = 96;
/// Maximum bytes of a JSON object besides its members. A node of a B-tree has room for eleven of
/// them.
const JSON_OBJECT_BYTES: u64 = 704;

/// Limits of the size, number and duration of requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Largest body in bytes, before and after decompression.
    pub body_bytes_max: usize,
    /// Maximum requests that are answered at the same time.
    pub requests_max: usize,
    /// Longest wait for the next piece of a body.
    pub client_timeout: Duration,
    /// Longest time for a whole body, and longest deadline of a request.
    pub request_timeout: Duration,
    /// Time between two checks that a client reads a large answer.
    pub answer_window: Duration,
}

/// Limits and resources that all requests share.
pub struct RequestResources {
    /// Limits of requests.
    pub limits: RequestLimits,
    /// Bytes that requests in flight hold.
    pub memory: Arc<ByteBudget>,
    /// Permits of requests that wait for their body.
    pub receive_permits: ReceivePermits,
    /// Threads that decode and encode large messages.
    pub codec: CodecThreads,
    /// Metrics with the counts of refusals.
    pub metrics: Arc<Metrics>,
    answering: Arc<Semaphore>,
}

impl RequestResources {
    /// Creates the resources. Requests in flight may hold `memory_bytes` bytes.
    pub fn new(
        limits: RequestLimits,
        memory_bytes: u64,
        metrics: Arc<Metrics>,
    ) -> RequestResources {
        RequestResources {
            limits,
            memory: ByteBudget::new(memory_bytes, metrics.clone()),
            receive_permits: ReceivePermits::new(limits.requests_max, metrics.clone()),
            codec: CodecThreads::new(metrics.clone()),
            answering: Arc::new(Semaphore::new(limits.requests_max)),
            metrics,
        }
    }

    /// Admits a request that is about to be answered, until the permit is dropped. A request with a
    /// body is admitted once its body is complete.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if [`RequestLimits::requests_max`] requests are being
    /// answered.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit> {
        self.answering.clone().try_acquire_owned().map_err(|_| self.no_room())
    }

    /// Refuses a request before its body is read if none could be answered now, which costs less
    /// than receiving it. Takes no permit, not even for a moment, because a complete request may
    /// need it.
    ///
    /// # Errors
    /// Returns the errors of [`RequestResources::admit`].
    pub fn check_room(&self) -> Result<()> {
        if self.answering.available_permits() > 0 { Ok(()) } else { Err(self.no_room()) }
    }

    /// Counts a refused request. Returns its error.
    fn no_room(&self) -> Error {
        self.metrics.refused.get_or_create(&KindLabels { kind: "requests_max" }).inc();
        Error::exhausted(format!(
            "{} requests are being answered already; try again later or raise --max-requests",
            self.limits.requests_max
        ))
        .with_retry_after(Duration::from_millis(100))
    }

    /// Returns the number of requests being answered. For tests.
    #[doc(hidden)]
    pub fn admitted(&self) -> usize {
        self.limits.requests_max - self.answering.available_permits()
    }

    /// Returns the limits of a body of at most `bytes_max` bytes besides `framing_bytes`.
    pub fn body_limits(&self, bytes_max: usize, framing_bytes: usize) -> BodyLimits {
        BodyLimits {
            bytes_max,
            flag: (bytes_max == self.limits.body_bytes_max).then_some("--max-body"),
            framing_bytes,
            piece_timeout: self.limits.client_timeout,
            total_timeout: self.limits.request_timeout,
        }
    }

    /// Reads the body of an HTTP/1.1 request and decompresses it. The returned bytes hold their
    /// part of the budget.
    ///
    /// # Errors
    /// Returns the errors of [`body_reader::read`] and [`decompress::decompress`].
    /// `InvalidArgument` for another compression.
    pub async fn read_body(&self, headers: &HeaderMap, body: axum::body::Body) -> Result<Bytes> {
        let coding = decompress::coding(headers)?;
        let announced =
            headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes_max = self.limits.body_bytes_max;
        // An HTTP/1.1 connection has one request at a time, so the number of connections bounds
        // these bodies.
        let accounting = BodyAccounting { reservation: self.memory.empty(), receive_permits: None };
        let body =
            body_reader::read(body, announced, self.body_limits(bytes_max, 0), accounting).await?;
        let Some(coding) = coding else { return Ok(body) };
        let reservation = self.memory.empty();
        let decompress = move || decompress::decompress(coding, &body, bytes_max, reservation);
        self.codec.run(CodecStep::Decompress, decompress).await
    }

    /// Reads a body that becomes a tree of JSON values. The returned bytes hold a reservation for
    /// the memory of that tree.
    ///
    /// # Errors
    /// Returns the errors of [`RequestResources::read_body`] and of the budget.
    pub async fn read_json_body(
        &self,
        headers: &HeaderMap,
        body: axum::body::Body,
    ) -> Result<Bytes> {
        let body = self.read_body(headers, body).await?;
        if body.len() as u64 <= FREE_BYTES_MAX {
            return Ok(body);
        }
        let large = body.len() > INLINE_BYTES_MAX;
        let mut reservation = self.memory.empty();
        let reserve = move || {
            reservation.cover(json_tree_bytes_max(&body))?;
            Ok(reservation.attach(body))
        };
        self.codec.run_if(large, CodecStep::Decode, reserve).await
    }

    /// Reads a body of JSON, which is parsed on a codec thread if it is large.
    ///
    /// # Errors
    /// Returns the errors of [`RequestResources::read_json_body`] and
    /// [`RequestResources::parse_json`].
    pub async fn read_json<T>(&self, headers: &HeaderMap, body: axum::body::Body) -> Result<T>
    where
        T: serde::de::DeserializeOwned + Send + 'static,
    {
        let body = self.read_json_body(headers, body).await?;
        self.parse_json(body).await
    }

    /// Parses a JSON body, on a codec thread if it is large.
    ///
    /// # Errors
    /// `InvalidArgument` if the body is not the JSON of a `T`.
    pub async fn parse_json<T>(&self, body: Bytes) -> Result<T>
    where
        T: serde::de::DeserializeOwned + Send + 'static,
    {
        self.convert_json(body, Ok).await
    }

    /// Parses a JSON body, frees it, and converts the value by `convert`. Does so on a codec thread
    /// if the body is large. For values with further encoded bytes, such as files in base64.
    ///
    /// # Errors
    /// As [`RequestResources::parse_json`]. Also the errors of `convert`.
    pub async fn convert_json<T, U>(
        &self,
        body: Bytes,
        convert: impl FnOnce(T) -> Result<U> + Send + 'static,
    ) -> Result<U>
    where
        T: serde::de::DeserializeOwned + 'static,
        U: Send + 'static,
    {
        let large = body.len() > INLINE_BYTES_MAX;
        let work = move || {
            let value = json_of(&body)?;
            // Returns the memory of the body to the budget.
            drop(body);
            convert(value)
        };
        self.codec.run_if(large, CodecStep::Decode, work).await
    }
}

/// Parses a body of JSON.
///
/// # Errors
/// `InvalidArgument` for an empty body, and for one that is not the JSON of a `T`.
fn json_of<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T> {
    if body.is_empty() {
        return Err(Error::invalid("the body is empty; send JSON"));
    }
    serde_json::from_slice(body)
        .map_err(|error| Error::invalid("the body is not the expected JSON").caused_by(error))
}

/// Returns an upper bound of the bytes of `json` as a tree of values, besides its text.
fn json_tree_bytes_max(json: &[u8]) -> u64 {
    let objects = json.iter().filter(|byte| **byte == b'{').count() as u64;
    json_values_max(json) * JSON_VALUE_BYTES + objects * JSON_OBJECT_BYTES
}

/// Returns an upper bound of the number of values in `json`. Each but the last is before a comma or
/// a colon.
pub fn json_values_max(json: &[u8]) -> u64 {
    1 + json.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count() as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn large_json_is_converted_on_a_codec_thread() {
        let limits = RequestLimits {
            body_bytes_max: 1 << 20,
            requests_max: 1,
            client_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            answer_window: crate::ANSWER_WINDOW,
        };
        let resources = RequestResources::new(limits, 1 << 20, Arc::new(Metrics::default()));
        let thread = |text: String| {
            Ok((text.len(), std::thread::current().name().unwrap_or_default().to_owned()))
        };
        for length in [INLINE_BYTES_MAX, 4] {
            let body = format!("\"{}\"", "A".repeat(length)).into_bytes();
            let (read, name) = resources.convert_json(body.into(), thread).await.unwrap();
            let is_large = length == INLINE_BYTES_MAX;
            assert_eq!((read, name.starts_with("decoder-")), (length, is_large), "{name}");
        }
    }

    #[test]
    fn a_check_takes_no_permit_from_a_complete_request() {
        let limits = RequestLimits {
            body_bytes_max: 1024,
            requests_max: 1,
            client_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            answer_window: crate::ANSWER_WINDOW,
        };
        let resources = RequestResources::new(limits, 1 << 20, Arc::new(Metrics::default()));
        let checks = AtomicBool::new(true);
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| {
                while checks.load(Ordering::Relaxed) {
                    // Refused while the other thread holds the only permit.
                    let _ = resources.check_room();
                }
            });
            let refused = (0..20_000).filter(|_| resources.admit().is_err()).count();
            checks.store(false, Ordering::Relaxed);
            refused
        });
        assert_eq!(refused, 0);
        let counted =
            resources.metrics.refused.get_or_create_owned(&KindLabels { kind: "requests_max" });
        let before = counted.get();
        let _permit = resources.admit().unwrap();
        assert!(resources.check_room().is_err() && resources.admit().is_err());
        assert_eq!(counted.get() - before, 2);
    }

    #[test]
    fn an_empty_body_is_named_as_such() {
        let error = |body: &[u8]| json_of::<serde_json::Value>(body).unwrap_err().to_string();
        assert!(error(b"").contains("the body is empty"));
        assert!(error(b"{").contains("not the expected JSON"));
    }

    /// Each of these objects has a node of a B-tree of its own.
    #[test]
    fn objects_are_counted_with_their_nodes() {
        let conditions = vec![r#"{"key":"k","match":{"value":1}}"#; 1000].join(",");
        let body = format!(r#"{{"filter":{{"must":[{conditions}]}}}}"#);
        let node = 11 * (size_of::<String>() + size_of::<serde_json::Value>()) as u64;
        assert!(json_tree_bytes_max(body.as_bytes()) >= 2002 * node);
    }
}
