//! The write-ahead log: what was acknowledged is found again, whatever happened.
//!
//! Threads append payloads, each of which becomes a frame with a sequence number, and then wait for
//! theirs to be durable. One of the waiting threads persists for all: while it does, the others'
//! frames gather for the next turn, so the number of flushes does not grow with the number of
//! threads.
//!
//! A failed write or flush ends the log: every wait after it fails, nothing more is appended, and
//! the file must be opened again, which keeps what is whole. What a failed fsync may have lost is
//! never counted as safe.
//!
//! A log does not know where it ended when its file is cut off. [`Log::durable`] says up to which
//! frame it was durable, for whoever keeps that elsewhere ([`crate::watermark`]) and opens the log
//! with it ([`Log::open_at`]).

mod frame;
mod replay;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use base::{Error, ErrorKind, Result};

use crate::directory::refusal;
use crate::medium::{Medium, Salvaged, Writer};

pub use frame::PAYLOAD_BYTES_MAX;
pub use replay::{Damage, Replay};

/// Bytes of frames that gather before an appender must write them out itself.
pub const PENDING_BYTES_MAX: usize = 32 << 20;
/// Bytes of the longest log. It is read whole when it is opened, so whoever seals starts a new one
/// long before.
pub const LOG_BYTES_MAX: u64 = 256 << 20;

/// Keys of earlier payloads that each flush repeats, for damage that takes the keys of a flush as
/// well: as many as a page holds of embeddings of 100 values.
const KEYS_REPEATED: usize = 8;

/// Up to where a log was durable at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Bytes of its file.
    pub bytes: u64,
    /// The number before which all payloads were durable; 0 or 1 if none was.
    pub next: u64,
}

/// A log, shared by the threads that write to it.
pub struct Log {
    name: String,
    state: Mutex<LogState>,
    /// Signalled when a flush is over.
    flushed: Condvar,
}

struct LogState {
    /// `None` while a thread writes with it.
    writer: Option<Box<dyn Writer>>,
    /// Frames not yet written, and an empty buffer to take their place.
    pending: Vec<u8>,
    spare: Vec<u8>,
    /// Keys of the last payloads, those since the last flush included.
    keys: Vec<u64>,
    /// How many of them came since the last flush.
    keys_fresh: usize,
    next: u64,
    /// Everything before this number is durable.
    durable: u64,
    /// Bytes of the file that are durable.
    durable_bytes: u64,
    bytes: u64,
    flushes: u64,
    failed: Option<Error>,
}

impl Log {
    /// Opens a log, or makes an empty one whose numbers start at 1, and says what was in it. A torn
    /// end is cut off, holes before it are closed, and what is damaged is reported and skipped. A
    /// log with pages that cannot be read stays as it is, in case they can be later, and takes no
    /// more payloads: appending to it fails as after a failed flush.
    ///
    /// # Errors
    /// What the medium says. Damaged bytes are no error, nor are pages that it cannot read.
    pub fn open(medium: &Arc<dyn Medium>, name: &str) -> Result<(Log, Replay)> {
        Log::open_from(medium, name, 1)
    }

    /// As [`open`](Self::open); in a new log the first payload gets number `first`, or 1 if that is
    /// 0.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open_from(medium: &Arc<dyn Medium>, name: &str, first: u64) -> Result<(Log, Replay)> {
        match medium.reopen(name) {
            Ok(writer) => {
                let (log, replay) =
                    Log::reopened(medium, name, writer, first.max(1), LogPosition::default())?;
                match log.failure() {
                    Some(error) if error.kind() == ErrorKind::StorageFull => Err(error),
                    _ => Ok((log, replay)),
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = medium
                    .create(name)
                    .and_then(|writer| Log::made(medium, name, writer, first.max(1)));
                // A log without its header is of no use to anybody.
                made.inspect_err(|_| drop(medium.remove(name)))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a log that was durable up to `mark` before. If its file ends earlier, or is not there
    /// at all, that is reported as damage, and the log stays as it is and takes no more payloads.
    /// The same holds if the medium has no room to put the log in order: it can be read, and is put
    /// in order when it is opened again.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), but for a full medium.
    pub fn open_at(
        medium: &Arc<dyn Medium>,
        name: &str,
        mark: LogPosition,
    ) -> Result<(Log, Replay)> {
        match medium.reopen(name) {
            Ok(writer) => Log::reopened(medium, name, writer, 1, mark),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut replay = replay::replay(&Salvaged::default(), 1, mark);
                if !replay.cut {
                    replay.damaged.push(Damage { offset: 0, bytes: mark.bytes, lost: 1..1 });
                    replay.cut = true;
                }
                let gone = Error::data_loss("its file is gone");
                Ok((Log::new(name, None, &replay, mark, Some(gone)), replay))
            }
            Err(error) => Err(error),
        }
    }

    fn made(
        medium: &Arc<dyn Medium>,
        name: &str,
        mut writer: Box<dyn Writer>,
        first: u64,
    ) -> Result<(Log, Replay)> {
        let replay = replay::replay(&Salvaged::default(), first, LogPosition::default());
        mend(&mut *writer, &replay)?;
        medium.persist_names()?;
        Ok((Log::new(name, Some(writer), &replay, LogPosition::default(), None), replay))
    }

    fn reopened(
        medium: &Arc<dyn Medium>,
        name: &str,
        mut writer: Box<dyn Writer>,
        first: u64,
        mark: LogPosition,
    ) -> Result<(Log, Replay)> {
        let replay = replay::replay(&medium.salvage(name)?, first, mark);
        let mut failed = None;
        if replay.unreadable > 0 {
            let pages = replay.unreadable;
            failed = Some(Error::data_loss(format!("{pages} of its pages cannot be read")));
        } else if replay.cut {
            failed = Some(Error::data_loss("its end is missing"));
        } else if let Err(error) = mend(&mut *writer, &replay) {
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

    /// Takes a payload into the log and gives its number; numbers only grow. It is durable once
    /// [`commit`](Self::commit) of that number says so.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`PAYLOAD_BYTES_MAX`], `ResourceExhausted` when the log is
    /// at its [`LOG_BYTES_MAX`] or has no number left, `FailedPrecondition` after a failure.
    pub fn append(&self, payload: &[u8]) -> Result<u64> {
        self.append_frame(payload, None)
    }

    /// As [`append`](Self::append), for a payload that changes what `key` stands for. If the
    /// payload is damaged later, its key is most probably still known ([`Replay::lost_keys`]): it
    /// is written a second time.
    ///
    /// # Errors
    /// Those of `append`.
    pub fn append_keyed(&self, payload: &[u8], key: u64) -> Result<u64> {
        self.append_frame(payload, Some(key))
    }

    fn append_frame(&self, payload: &[u8], key: Option<u64>) -> Result<u64> {
        let bytes = frame::frame_bytes(payload.len())?;
        let mut state = self.state();
        self.fit(&state)?;
        let keys = key.map_or(0, |_| frame::keys_bytes(state.keys.len() + 1));
        if state.bytes + (bytes + keys) as u64 > LOG_BYTES_MAX {
            let name = &self.name;
            return Err(Error::exhausted(format!(
                "log {name} is full at {} bytes; seal what is in it",
                state.bytes
            )));
        }
        // Replay takes no frame of the last number, so none is written.
        if state.next == u64::MAX {
            return Err(Error::exhausted(format!(
                "log {} has no number left; seal what is in it",
                self.name
            )));
        }
        if state.pending.len() + bytes > PENDING_BYTES_MAX && !state.pending.is_empty() {
            let last = state.next - 1;
            state = self.flush_to(state, last)?;
            self.fit(&state)?;
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
            // Keys are of payloads one after another.
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
    /// Those of the medium when it failed to make them durable, to each who waited;
    /// `FailedPrecondition` after that; `InvalidArgument` for a number not given yet.
    pub fn commit(&self, number: u64) -> Result<()> {
        let state = self.state();
        if number >= state.next {
            return Err(Error::invalid(format!("log {} has no payload {number} yet", self.name)));
        }
        self.flush_to(state, number).map(drop)
    }

    /// How long the log is, in bytes, frames that are not written yet included.
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// The number that the next payload will get.
    pub fn next(&self) -> u64 {
        self.state().next
    }

    /// Returns up to where the log is durable. Of a log that was found cut off, what
    /// [`open_at`](Self::open_at) was told.
    pub fn durable(&self) -> LogPosition {
        let state = self.state();
        LogPosition { bytes: state.durable_bytes, next: state.durable }
    }

    /// Returns why the log takes no more payloads, if it does not.
    pub fn failure(&self) -> Option<Error> {
        self.state().failed.clone()
    }

    /// How often it was made durable since it was opened.
    pub fn flushes(&self) -> u64 {
        self.state().flushes
    }

    /// Until `number` is durable: takes the writer if nobody has it, waits for whoever has it
    /// otherwise.
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

    /// Writes and persists all that is pending, without the lock.
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

    fn fit(&self, state: &LogState) -> Result<()> {
        match &state.failed {
            None => Ok(()),
            Some(error) => Err(refusal(&format!("log {}", self.name), error)),
        }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts what a loss of power left of a log in order.
fn mend(writer: &mut dyn Writer, replay: &Replay) -> Result<()> {
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
