//! A store with faults from a seed, and helpers of the tests of logs.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{EntryBody, EntryNumber, Epoch, LogEntry, ShardKey, WriterId};
use cluster_log::{Batch, CreateOutcome, FollowStep, LogFollower, ShardLog, WriterOptions};
use model_store::StorePlace;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, StreamExt};

/// Longest wait of a test for an event.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

/// Seeded numbers (SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Faults of requests, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Requests that fail and change nothing.
    pub(crate) refused: u64,
    /// Requests that do their work, and still return an error.
    pub(crate) answers_lost: u64,
    /// Requests that arrive up to half a second late.
    pub(crate) late: u64,
}

/// A mistake that the test with faults must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlantedFault {
    /// Creates replace entries that exist.
    Overwrites,
    /// Listings are empty, so owners see no floor.
    HidesFloors,
}

/// One process's connection to a store. A request continues if its caller stops waiting.
#[derive(Debug)]
pub(crate) struct Connection {
    inner: Arc<dyn ObjectStore>,
    line: Arc<Line>,
}

/// State that requests on their way share.
#[derive(Debug)]
pub(crate) struct Line {
    random: Mutex<Random>,
    faults: Mutex<Faults>,
    planted: Mutex<Option<PlantedFault>>,
    /// True if the process is stopped: requests and answers wait.
    stopped: watch::Sender<bool>,
    pub(crate) gets: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) faults_made: AtomicU64,
}

impl Line {
    pub(crate) fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    pub(crate) fn plant(&self, planted: Option<PlantedFault>) {
        *self.planted.lock() = planted;
    }

    fn is_planted(&self, fault: PlantedFault) -> bool {
        *self.planted.lock() == Some(fault)
    }

    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub(crate) fn go_on(&self) {
        self.stopped.send_replace(false);
    }

    async fn running(&self) {
        self.stopped.subscribe().wait_for(|stopped| !*stopped).await.unwrap();
    }

    fn draw(&self) -> (bool, bool, Duration) {
        let faults = *self.faults.lock();
        let mut random = self.random.lock();
        let drawn = (random.percent(faults.refused), random.percent(faults.answers_lost));
        let delay = if random.percent(faults.late) { random.below(500) } else { 0 };
        let made = u64::from(drawn.0 || drawn.1 || delay > 0);
        self.faults_made.fetch_add(made, Ordering::Relaxed);
        (drawn.0, drawn.1, Duration::from_millis(delay))
    }

    async fn carry<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.running().await;
        let (refused, answer_lost, delay) = self.draw();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if refused {
            return Err(broken());
        }
        let answer = request.await;
        self.running().await;
        if answer_lost { Err(broken()) } else { answer }
    }
}

fn broken() -> Error {
    Error::Generic { store: "faulty", source: "the connection broke off".into() }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a connection with faults")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Connection {
    async fn put_opts(
        &self,
        at: &Path,
        load: PutPayload,
        mut with: PutOptions,
    ) -> Result<PutResult> {
        if self.line.is_planted(PlantedFault::Overwrites) {
            with.mode = PutMode::Overwrite;
        }
        let (inner, line, at) = (self.inner.clone(), self.line.clone(), at.clone());
        let put = async move { line.carry(inner.put_opts(&at, load, with)).await };
        tokio::spawn(put).await.unwrap()
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        with: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, with).await
    }

    async fn get_opts(&self, at: &Path, with: GetOptions) -> Result<GetResult> {
        self.line.gets.fetch_add(1, Ordering::Relaxed);
        self.line.carry(self.inner.get_opts(at, with)).await
    }

    fn delete_stream(&self, at: BoxStream<Path>) -> BoxStream<Path> {
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<ObjectMeta> {
        self.line.lists.fetch_add(1, Ordering::Relaxed);
        let (inner, line, prefix) = (self.inner.clone(), self.line.clone(), prefix.cloned());
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let listing = async {
                let mut listing = inner.list(prefix.as_ref());
                let mut found = Vec::new();
                while let Some(object) = listing.next().await {
                    found.push(object?);
                }
                Ok(found)
            };
            let objects = match line.carry(listing).await {
                Ok(_) if line.is_planted(PlantedFault::HidesFloors) => Vec::new(),
                Ok(objects) => objects.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            // The receiver may have stopped waiting.
            objects.into_iter().all(|object| sender.send(object).is_ok());
        });
        Box::pin(UnboundedReceiverStream::new(receiver))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, with: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, with).await
    }
}

/// A store, to which processes have connections of their own.
pub(crate) struct TestStore {
    pub(crate) objects: Arc<dyn ObjectStore>,
}

impl TestStore {
    pub(crate) fn in_memory() -> TestStore {
        TestStore { objects: Arc::new(InMemory::new()) }
    }

    /// Returns the log of the tests' shard without faults.
    pub(crate) fn log(&self) -> ShardLog {
        ShardLog::new(&StorePlace::new(self.objects.clone(), "", "the store"), &key())
    }

    /// Returns the log of the tests' shard through a connection of its own.
    pub(crate) fn connect(&self, seed: u64) -> (ShardLog, Arc<Line>) {
        let line = Arc::new(Line {
            random: Mutex::new(Random(seed)),
            faults: Mutex::default(),
            planted: Mutex::default(),
            stopped: watch::Sender::new(false),
            gets: AtomicU64::new(0),
            lists: AtomicU64::new(0),
            faults_made: AtomicU64::new(0),
        });
        let connection = Connection { inner: self.objects.clone(), line: line.clone() };
        let place = StorePlace::new(Arc::new(connection), "", "the store");
        (ShardLog::new(&place, &key()), line)
    }
}

pub(crate) fn key() -> ShardKey {
    ShardKey::new("c1", 3)
}

pub(crate) fn deadline() -> Instant {
    Instant::now() + WAIT_MAX
}

/// Returns the output of `event`, which must come within [`WAIT_MAX`].
pub(crate) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, event).await.expect("the event came in time")
}

/// Options with short pauses, and a timeout that no test reaches.
pub(crate) fn options() -> WriterOptions {
    WriterOptions {
        request_timeout: 2 * WAIT_MAX,
        retry_pause_min: Duration::from_millis(1),
        retry_pause_max: Duration::from_millis(20),
        ..WriterOptions::default()
    }
}

pub(crate) fn operations(texts: &[&str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
}

pub(crate) fn writes(epoch: u64, texts: &[&str]) -> LogEntry<Batch> {
    let body = EntryBody::Writes(Batch::from(operations(texts)));
    LogEntry { epoch: Epoch(epoch), writer: WriterId(u128::from(epoch)), body }
}

pub(crate) fn fence(epoch: u64) -> LogEntry<Batch> {
    let writer = WriterId(u128::from(epoch));
    LogEntry { epoch: Epoch(epoch), writer, body: EntryBody::Fence }
}

/// Appends entries from `from` on.
pub(crate) async fn append(log: &ShardLog, from: u64, entries: &[LogEntry<Batch>]) {
    for (number, entry) in (from..).zip(entries) {
        assert_eq!(log.create(EntryNumber(number), entry).await, CreateOutcome::Created);
    }
}

/// An operation that counts, and the number of its entry.
pub(crate) type Applied = (EntryNumber, String);

/// Reads until the end of the log. Returns the operations that count.
pub(crate) async fn read_to_end(follower: &mut LogFollower) -> Vec<Applied> {
    let mut applied = Vec::new();
    loop {
        match follower.next().await.unwrap() {
            FollowStep::End => return applied,
            FollowStep::Removed(floor) => panic!("the log begins at {floor}"),
            FollowStep::Entry { number, batch } => {
                let batch = batch.unwrap_or_default();
                let texts = batch.0.iter().map(|text| String::from_utf8(text.to_vec()).unwrap());
                applied.extend(texts.map(|text| (number, text)));
            }
        }
    }
}

/// Returns the operations that count, from entry 0 on.
pub(crate) async fn whole_log(log: &ShardLog) -> Vec<Applied> {
    let mut follower = LogFollower::new(log.clone(), EntryNumber(0), Epoch(0));
    read_to_end(&mut follower).await
}
