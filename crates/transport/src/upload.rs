//! A recording on its way in: from the connection to the thread that listens, piece by piece.
//!
//! Pieces wait in a queue of [`PIECES_WAITING_MAX`]; when it is full nothing more is taken from the connection, so that
//! the client sends as fast as the recording is listened to and memory does not grow with its length.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use audio::decode::AudioInput;
use base::{Error, ErrorKind, Result};
use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use super::form::Pieces;
use super::places::Place;
use crate::config::AudioConfig;

/// Pieces that wait for the thread; the connection's buffer bounds each, at some hundred kilobytes.
const PIECES_WAITING_MAX: usize = 8;
/// When a recording is refused or done with before all of it has come, so much of the rest is taken and thrown away, and
/// for so long, so that a client that only reads after sending gets its answer instead of a broken connection.
const DISCARD_BYTES_MAX: u64 = 256 << 20;
const DISCARD_TIME_MAX: Duration = Duration::from_secs(20);
/// Bytes that tell whether a container must be read out of order.
const HEAD_BYTES: usize = 12;
/// Bytes copied at once to a temporary file.
const SPOOL_PIECE: usize = 64 << 10;

/// Limits of one recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadLimits {
    /// Bytes of it.
    pub(crate) bytes_max: u64,
    /// Longest wait for the next piece.
    pub(crate) piece_timeout: Duration,
}

/// The thread's end: reads what comes.
pub(crate) struct Upload {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
    failure: Failure,
    /// Taken for as long as anybody may still read.
    _place: Option<Arc<Place>>,
}

/// Why the upload ended early, if it did. The pipeline takes such an end for a short file; this says what it was.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<OnceLock<Error>>);

impl Failure {
    pub(crate) fn get(&self) -> Option<Error> {
        self.0.get().cloned()
    }

    fn set(&self, error: Error) {
        // The first one is the reason.
        let _ = self.0.set(error);
    }
}

/// The connection's end.
pub(crate) struct Feeder {
    to: mpsc::Sender<Bytes>,
    failure: Failure,
}

/// Both ends, and what went wrong between them, of a recording that has `place`.
pub(crate) fn upload(place: Option<Arc<Place>>) -> (Feeder, Upload, Failure) {
    let (to, pieces) = mpsc::channel(PIECES_WAITING_MAX);
    let failure = Failure::default();
    let feeder = Feeder { to, failure: failure.clone() };
    (feeder, Upload { pieces, current: Bytes::new(), failure: failure.clone(), _place: place }, failure)
}

impl Feeder {
    /// Hands pieces over until the last, the limit, or the client's silence.
    pub(crate) async fn feed(self, mut pieces: Pieces, limits: UploadLimits) {
        let mut received = 0;
        loop {
            let piece = match pieces.next(limits.piece_timeout).await {
                Ok(Some(piece)) => piece,
                Ok(None) => return,
                Err(error) => return self.failure.set(error),
            };
            received += piece.len() as u64;
            if received > limits.bytes_max {
                self.failure.set(too_long(limits.bytes_max));
                break;
            }
            if self.to.send(piece).await.is_err() {
                break;
            }
        }
        drop(self.to);
        discard_rest(pieces, limits.piece_timeout).await;
    }
}

/// Takes what still comes of a recording that nobody wants, within limits.
pub(super) async fn discard_rest(mut pieces: Pieces, timeout: Duration) {
    let all = async {
        let mut left = DISCARD_BYTES_MAX;
        while let Ok(Some(piece)) = pieces.next(timeout).await {
            match left.checked_sub(piece.len() as u64) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    // What comes later than that meets a closed connection.
    let _ = tokio::time::timeout(DISCARD_TIME_MAX, all).await;
}

/// The refusal of a recording with more bytes than allowed.
pub(super) fn too_long(bytes_max: u64) -> Error {
    Error::too_large(format!("the recording has more than {bytes_max} bytes; send it in parts"))
}

impl Read for Upload {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece,
                None => return self.failure.get().map_or(Ok(0), |error| Err(io::Error::other(error))),
            }
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

impl Upload {
    /// What the pipeline reads: the upload itself while it still comes, or, where the container keeps its table of
    /// contents at the end or `spool` asks for it, a temporary file that holds all of it.
    ///
    /// # Errors
    /// `TooLarge` for one that must lie in a file and is larger than such a file may be; what ended the upload.
    pub(super) fn input(mut self, spool: bool, config: &AudioConfig) -> Result<AudioInput> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        let read = self.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head);
        read.map_err(|error| self.ended(&error))?;
        if !spool && head.get(4..8) != Some(b"ftyp") {
            return Ok(AudioInput::Stream(Box::new(Read::chain(io::Cursor::new(head), self))));
        }
        self.spool(&head, config).map(AudioInput::File)
    }

    fn spool(&mut self, head: &[u8], config: &AudioConfig) -> Result<std::fs::File> {
        let made = match &config.spool_dir {
            Some(dir) => tempfile::tempfile_in(dir),
            None => tempfile::tempfile(),
        };
        let disk =
            |error: io::Error| Error::exhausted(format!("the recording cannot be kept in a file: {error}"));
        let mut file = made.map_err(disk)?;
        file.write_all(head).map_err(disk)?;
        let (mut length, mut buffer) = (head.len() as u64, vec![0; SPOOL_PIECE]);
        loop {
            let count = self.read(&mut buffer).map_err(|error| self.ended(&error))?;
            if count == 0 {
                break;
            }
            length += count as u64;
            if length > config.spool_bytes_max {
                return Err(Error::too_large(format!(
                    "a recording in this container is kept in a file first, and it has more than {} bytes; send it as \
                     WAV, FLAC, MP3 or Ogg",
                    config.spool_bytes_max
                )));
            }
            file.write_all(&buffer[..count]).map_err(disk)?;
        }
        file.seek(SeekFrom::Start(0)).map_err(disk)?;
        Ok(file)
    }

    fn ended(&self, error: &io::Error) -> Error {
        let broken = || Error::new(ErrorKind::Cancelled, format!("the upload ended early: {error}"));
        self.failure.get().unwrap_or_else(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: UploadLimits = UploadLimits { bytes_max: 1000, piece_timeout: Duration::from_millis(50) };

    /// Feeds `pieces`, then the end or, with `stall`, silence; reads on a thread of its own.
    fn through(pieces: Vec<Vec<u8>>, stall: bool, limits: UploadLimits) -> (Vec<u8>, Option<Error>) {
        let (feeder, mut upload, failure) = upload(None);
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            // What went wrong is in `failure`.
            let _ = upload.read_to_end(&mut all);
            all
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(feeder.feed(Pieces::of(pieces, stall), limits));
        (thread.join().unwrap(), failure.get())
    }

    #[test]
    fn all_bytes_arrive_in_order() {
        let pieces: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n; usize::from(n % 7)]).collect();
        let (all, failure) = through(pieces.clone(), false, LIMITS);
        assert_eq!((all, failure), (pieces.concat(), None));
    }

    #[test]
    fn the_limit_and_the_silence_are_told() {
        let (_, failure) = through(vec![vec![0; 600], vec![0; 600]], false, LIMITS);
        assert_eq!(failure.unwrap().kind(), ErrorKind::TooLarge);
        let (all, failure) = through(vec![vec![1; 10]], true, LIMITS);
        assert_eq!((all.len(), failure.unwrap().kind()), (10, ErrorKind::ClientTimeout));
    }

    #[test]
    fn a_reader_that_goes_does_not_keep_the_client() {
        let (feeder, upload, failure) = upload(None);
        drop(upload);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(feeder.feed(Pieces::of(vec![vec![0; 100]; 5], false), LIMITS));
        assert!(failure.get().is_none());
    }

    fn input(bytes: &[u8], spool: bool, spool_bytes_max: u64) -> Result<AudioInput> {
        let (feeder, upload, _) = upload(None);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(feeder.feed(Pieces::of(vec![bytes.to_vec()], false), LIMITS));
        upload.input(spool, &AudioConfig { spool_bytes_max, ..AudioConfig::default() })
    }

    fn text(input: AudioInput) -> (bool, Vec<u8>) {
        let mut all = Vec::new();
        match input {
            AudioInput::File(mut file) => (true, file.read_to_end(&mut all).map(|_| all).unwrap()),
            AudioInput::Stream(mut stream) => (false, stream.read_to_end(&mut all).map(|_| all).unwrap()),
        }
    }

    #[test]
    fn only_what_must_be_read_out_of_order_goes_to_a_file() {
        let (mp4, wav) = (b"\0\0\0\x20ftypM4A and more".to_vec(), b"RIFF....WAVE and more".to_vec());
        assert_eq!(text(input(&mp4, false, 100).unwrap()), (true, mp4.clone()));
        assert_eq!(text(input(&wav, false, 100).unwrap()), (false, wav.clone()));
        assert_eq!(text(input(&wav, true, 100).unwrap()), (true, wav));
        assert_eq!(text(input(b"RI", false, 100).unwrap()), (false, b"RI".to_vec()));
        assert!(input(&mp4, false, 15).is_err_and(|error| error.kind() == ErrorKind::TooLarge));
    }
}
