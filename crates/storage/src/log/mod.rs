//! The write-ahead log: acknowledged payloads survive any crash.
//!
//! Threads append payloads, each of which becomes a frame with a sequence number, and then wait
//! until theirs is durable. One of the waiting threads persists for all. Meanwhile the others'
//! frames gather for the next flush, so the number of flushes does not grow with the number of
//! threads.
//!
//! A failed write or flush ends the log. Every later wait fails and nothing more is appended. The
//! file must be opened again, which keeps the whole frames. Bytes that a failed fsync may have lost
//! never count as safe.
//!
//! A log whose file is cut off cannot know its end. [`Log::durable`] returns the position up to
//! which it was durable. A caller stores that elsewhere ([`crate::watermark`]) and opens the log
//! with it ([`Log::open_at`]).

mod frame;
mod replay;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use base::{Error, ErrorKind, Result};

use crate::directory::refusal;
use crate::medium::{Medium, Salvaged, Writer};

pub use frame::PAYLOAD_BYTES_MAX;
pub use replay::{Damage, Replay};

/// Bytes of unwritten frames at which an appender must flush them itself.
const PENDING_BYTES_MAX: usize = 32 << 20;
/// Maximum bytes of a buffer that is kept for later frames. There may be a thousand idle logs.
const SPARE_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of a log. Opening reads the whole log, so its user starts a new log long before
/// this size.
pub const LOG_BYTES_MAX: u64 = 256 << 20;

/// Keys of earlier payloads that each flush repeats, in case damage also destroys the keys of a
/// flush. A page has as many payloads with embeddings of 100 values.
const KEYS_REPEATED: usize = 8;

/// Position up to which a log was durable at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Bytes of the file.
    pub bytes: u64,
    /// The number before which all payloads were durable, or 0 or 1 if none was.
    pub next: u64,
}

/// A log, shared by the threads that write to it.
///
/// # Example: a payload after a restart
/// ```
/// use std::sync::Arc;
///
/// use memory::{PoolConfig, SlotPool};
/// use millpond_storage::log::Log;
/// use millpond_storage::{DramMedium, Medium};
/// use os::Rate;
///
/// let fault_rate = Rate::unlimited();
/// let pool = SlotPool::new(PoolConfig { bytes_max: 8 << 20, huge_pages: false, fault_rate })?;
/// let medium: Arc<dyn Medium> = Arc::new(DramMedium::new(pool, None)?);
/// let (log, _) = Log::open(&medium, "log")?;
/// let number = log.append(b"a payload")?;
/// log.commit(number)?;
/// drop(log);
///
/// let (_, replay) = Log::open(&medium, "log")?;
/// assert_eq!(replay.records, [(number, b"a payload".to_vec())]);
/// # Ok::<(), base::Error>(())
/// ```
pub struct Log {
    name: String,
    state: Mutex<LogState>,
    /// Signalled when a flush is over.
    flushed: Condvar,
}

struct LogState {
    /// `None` while a thread writes with it.
    writer: Option<Box<dyn Writer>>,
    /// Frames not yet written.
    pending: Vec<u8>,
    spare: Vec<u8>,
    /// Keys of the last payloads, including the keys since the last flush.
    keys: Vec<u64>,
    /// Number of those keys since the last flush.
    keys_fresh: usize,
    next: u64,
    /// All payloads before this number are durable.
    durable: u64,
    /// Durable bytes of the file.
    durable_bytes: u64,
    bytes: u64,
    flushes: u64,
    failed: Option<Error>,
}

impl Log {
    /// Opens a log, or creates an empty one whose numbers start at 1, and returns its contents. A
    /// torn end is cut off, holes before it are closed, and damaged parts are reported and skipped.
    /// A log with unreadable pages stays unchanged, in case they can be read later. It takes no
    /// more payloads, and appending fails as after a failed flush.
    ///
    /// # Errors
    /// The medium's error. `FailedPrecondition` for a log of another version, which stays as it is.
    /// Damaged bytes and unreadable pages are not errors.
    pub fn open(medium: &Arc<dyn Medium>, name: &str) -> Result<(Log, Replay)> {
        match medium.reopen(name) {
            Ok(writer) => {
                let (log, replay) = Log::reopen_with(medium, name, writer, LogPosition::default())?;
                match log.failure() {
                    Some(error) if error.kind() == ErrorKind::StorageFull => Err(error),
                    _ => Ok((log, replay)),
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made =
                    medium.create(name).and_then(|writer| Log::create_with(medium, name, writer));
                // A log without its header is useless.
                made.inspect_err(|_| drop(medium.remove(name)))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a log that was durable up to `mark`. If its file ends earlier or is missing, that is
    /// reported as damage. The log then stays unchanged and takes no more payloads. The same holds
    /// if the medium has no room to repair the log. It can be read, and the next opening repairs
    /// it.
    ///
    /// # Errors
    /// As [`open`](Self::open), except for a full medium.
    pub fn open_at(
        medium: &Arc<dyn Medium>,
        name: &str,
        mark: LogPosition,
    ) -> Result<(Log, Replay)> {
        match medium.reopen(name) {
            Ok(writer) => Log::reopen_with(medium, name, writer, mark),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut replay = replay::replay(&Salvaged::default(), mark);
                if !replay.cut {
                    replay.damaged.push(Damage { offset: 0, bytes: mark.bytes, lost: 1..1 });
                    replay.cut = true;
                }
                let gone = Error::data_loss("its file is missing");
                Ok((Log::new(name, None, &replay, mark, Some(gone)), replay))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the header of a new log with `writer` and returns the log. Its replay is empty.
    fn create_with(
        medium: &Arc<dyn Medium>,
        name: &str,
        mut writer: Box<dyn Writer>,
    ) -> Result<(Log, Replay)> {
        let replay = replay::replay(&Salvaged::default(), LogPosition::default());
        repair(&mut *writer, &replay)?;
        medium.persist_names()?;
        Ok((Log::new(name, Some(writer), &replay, LogPosition::default(), None), replay))
    }

    /// Opens a log that was written before. A log with unreadable pages or without its end, or on a
    /// full medium, takes no more payloads.
    fn reopen_with(
        medium: &Arc<dyn Medium>,
        name: &str,
        mut writer: Box<dyn Writer>,
        mark: LogPosition,
    ) -> Result<(Log, Replay)> {
        let found = medium.salvage(name)?;
        // Before the repair, which cuts off all that is not a frame of this version.
        frame::check_version(&found.bytes).map_err(|error| error.context(name))?;
        let replay = replay::replay(&found, mark);
        drop(found);
        let mut failed = None;
        if replay.unreadable > 0 {
            let pages = replay.unreadable;
            failed = Some(Error::data_loss(format!("{pages} of its pages cannot be read")));
        } else if replay.cut {
            failed = Some(Error::data_loss("its end is missing"));
        } else if let Err(error) = repair(&mut *writer, &replay) {
            if error.kind() != ErrorKind::StorageFull {
                return Err(error);
            }
            failed = Some(error);
        }
        medium.persist_names()?;
        Ok((Log::new(name, Some(writer), &replay, mark, failed), replay))
    }

    fn new(
        name: &str,
        writer: Option<Box<dyn Writer>>,
        replay: &Replay,
        mark: LogPosition,
        failed: Option<Error>,
    ) -> Log {
        for damage in &replay.damaged {
            tracing::error!(
                log = name,
                offset = damage.offset,
                bytes = damage.bytes,
                "a damaged part of a log is skipped"
            );
        }
        let bytes = writer.as_ref().map_or(0, |writer| writer.bytes());
        let state = LogState {
            bytes,
            durable_bytes: if replay.cut { mark.bytes } else { bytes },
            writer,
            pending: Vec::new(),
            spare: Vec::new(),
            keys: Vec::new(),
            keys_fresh: 0,
            next: replay.next,
            durable: replay.next,
            flushes: 0,
            failed,
        };
        Log { name: name.to_owned(), state: Mutex::new(state), flushed: Condvar::new() }
    }

    /// Appends a payload and returns its number. Numbers only grow. The payload is durable once
    /// [`commit`](Self::commit) of that number returns.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`PAYLOAD_BYTES_MAX`], `ResourceExhausted` if the log is at
    /// its [`LOG_BYTES_MAX`] or has no number left, `FailedPrecondition` after a failure.
    pub fn append(&self, payload: &[u8]) -> Result<u64> {
        self.append_frame(payload, None)
    }

    /// Appends a payload that changes the value of `key`, as [`append`](Self::append) does. The
    /// log also holds the key outside the payload, so the key is most probably still known if the
    /// payload is damaged ([`Replay::keys_of`]).
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_keyed(&self, payload: &[u8], key: u64) -> Result<u64> {
        self.append_frame(payload, Some(key))
    }

    /// Appends a frame in memory and returns its number. Writes earlier frames to the file first if
    /// too many wait.
    fn append_frame(&self, payload: &[u8], key: Option<u64>) -> Result<u64> {
        let bytes = frame::frame_bytes(payload.len())?;
        let mut state = self.state();
        self.check_usable(&state)?;
        let keys = key.map_or(0, |_| frame::keys_bytes(state.keys.len() + 1));
        if state.bytes + (bytes + keys) as u64 > LOG_BYTES_MAX {
            let name = &self.name;
            return Err(Error::exhausted(format!(
                "log {name} is full at {} bytes; flush it to a segment",
                state.bytes
            )));
        }
        // Replay accepts no frame with the last number, so none is written.
        if state.next == u64::MAX {
            return Err(Error::exhausted(format!(
                "log {} has no number left; flush it to a segment",
                self.name
            )));
        }
        if state.pending.len() + bytes > PENDING_BYTES_MAX && !state.pending.is_empty() {
            let last = state.next - 1;
            state = self.flush_to(state, last)?;
            self.check_usable(&state)?;
        }
        let number = state.next;
        state.next += 1;
        state.bytes += bytes as u64;
        let durable = state.durable;
        frame::encode(number, durable, payload, &mut state.pending);
        match key {
            Some(key) => {
                state.keys.push(key);
                state.keys_fresh += 1;
            }
            // Keys belong to consecutive payloads.
            None => {
                state.keys.clear();
                state.keys_fresh = 0;
            }
        }
        Ok(number)
    }

    /// Waits until the payload of that number, and all before it, are durable.
    ///
    /// # Errors
    /// The medium's error if it failed to make them durable, for every waiting caller.
    /// `FailedPrecondition` after that. `InvalidArgument` for a number not assigned yet.
    pub fn commit(&self, number: u64) -> Result<()> {
        let state = self.state();
        if number >= state.next {
            return Err(Error::invalid(format!("log {} has no payload {number} yet", self.name)));
        }
        self.flush_to(state, number).map(drop)
    }

    /// Returns the length of the log in bytes, with frames that are not written yet.
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Returns the number of the next payload.
    pub fn next(&self) -> u64 {
        self.state().next
    }

    /// Returns the position up to which the log is durable. For a log that was found cut off, it is
    /// the position passed to [`open_at`](Self::open_at).
    pub fn durable(&self) -> LogPosition {
        let state = self.state();
        LogPosition { bytes: state.durable_bytes, next: state.durable }
    }

    /// Returns the reason why the log accepts no more payloads, or `None` if it accepts them.
    pub fn failure(&self) -> Option<Error> {
        self.state().failed.clone()
    }

    /// Returns the number of flushes since the log was opened. For tests and examples.
    #[doc(hidden)]
    pub fn flushes(&self) -> u64 {
        self.state().flushes
    }

    /// Flushes or waits until `number` is durable. Takes the writer if it is free, and otherwise
    /// waits for the thread that has it.
    fn flush_to<'a>(
        &'a self,
        mut state: MutexGuard<'a, LogState>,
        number: u64,
    ) -> Result<MutexGuard<'a, LogState>> {
        while state.durable <= number {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = match state.writer.take() {
                Some(writer) => self.flush(state, writer),
                None => self.flushed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        Ok(state)
    }

    /// Writes and persists all pending frames, without the lock.
    fn flush<'a>(
        &'a self,
        mut state: MutexGuard<'a, LogState>,
        mut writer: Box<dyn Writer>,
    ) -> MutexGuard<'a, LogState> {
        let spare = std::mem::take(&mut state.spare);
        let mut frames = std::mem::replace(&mut state.pending, spare);
        let next = state.next;
        if state.keys_fresh > 0 {
            frame::encode_keys(next, state.durable, &state.keys, &mut frames);
            let old = state.keys.len().saturating_sub(KEYS_REPEATED);
            state.keys.drain(..old);
            state.keys_fresh = 0;
        }
        drop(state);
        let outcome = writer.append(&frames).and_then(|_| writer.persist());
        frames.clear();
        frames.shrink_to(SPARE_BYTES_MAX);
        let mut state = self.state();
        state.spare = frames;
        match outcome {
            Ok(()) => {
                state.durable = next;
                state.durable_bytes = writer.bytes();
                state.bytes = writer.bytes() + state.pending.len() as u64;
                state.flushes += 1;
            }
            Err(error) => state.failed = Some(error.context(format!("log {}", self.name))),
        }
        state.writer = Some(writer);
        self.flushed.notify_all();
        state
    }

    fn check_usable(&self, state: &LogState) -> Result<()> {
        match &state.failed {
            None => Ok(()),
            Some(error) => Err(refusal(&format!("log {}", self.name), error)),
        }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Repairs a log after a loss of power. Cuts the torn end and closes holes.
fn repair(writer: &mut dyn Writer, replay: &Replay) -> Result<()> {
    if let Some(end) = replay.torn_tail {
        writer.truncate(end)?;
    }
    for hole in &replay.holes {
        if let Some(head) = frame::closing(hole.bytes, hole.lost.end) {
            writer.write_at(hole.offset, &head)?;
        }
    }
    if writer.bytes() < frame::HEADER_BYTES as u64 {
        writer.truncate(0)?;
        writer.append(&frame::header(replay.next))?;
    }
    writer.persist()
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        write!(
            f,
            "Log({}, {} bytes, next {}, durable before {})",
            self.name, state.bytes, state.next, state.durable
        )
    }
}
