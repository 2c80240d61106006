//! Long uploads: from the connection to the thread that reads them, piece by piece.
//!
//! Pieces wait in a queue of `PIECES_WAITING_MAX`. While it is full nothing more is read from the
//! connection. So the client sends as fast as the thread reads, and memory does not grow with the
//! length of the upload.

use std::future::poll_fn;
use std::io::{self, Read};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use base::{Error, ErrorKind, Result};
use bytes::{Buf, Bytes};
use multer::{Constraints, Field, Multipart, SizeLimit};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};

use crate::upload_permits::UploadPermit;

/// Pieces that wait for the thread. The connection's buffer bounds each of them, at some hundred
/// kilobytes.
const PIECES_WAITING_MAX: usize = 8;
/// Maximum bytes that are discarded of the unread rest of an upload. A client that reads only after
/// it has sent everything then gets its answer, and not a broken connection.
const DISCARD_BYTES_MAX: u64 = 256 << 20;
/// Longest time for discarding that rest.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(20);
/// Maximum bytes of a form besides its file.
const FORM_BYTES_MAX: u64 = 64 << 10;
/// Maximum fields of a form before its file.
const FORM_FIELDS_MAX: usize = 16;
/// Longest name of a file in bytes. A longer one is cut.
const FILE_NAME_BYTES_MAX: usize = 255;

/// Limits of the size of one upload and of the time for it.
#[derive(Clone, Copy, Debug)]
pub struct UploadLimits {
    /// The word for the uploaded file in errors, such as "recording".
    pub noun: &'static str,
    /// Maximum bytes of the file.
    pub bytes_max: u64,
    /// Longest wait for the next piece.
    pub piece_timeout: Duration,
}

impl UploadLimits {
    /// Checks the length that the client announces for the whole body.
    ///
    /// # Errors
    /// `TooLarge` if the file and the form around it must be larger than the limit.
    pub fn check_announced(&self, length: u64) -> Result<()> {
        if length > self.bytes_max.saturating_add(FORM_BYTES_MAX) {
            Err(self.too_large())
        } else {
            Ok(())
        }
    }

    fn too_large(&self) -> Error {
        let UploadLimits { noun, bytes_max, .. } = self;
        Error::too_large(format!("the {noun} has more than {bytes_max} bytes; send it in parts"))
    }
}

/// The bytes of an upload as they arrive.
pub enum UploadPieces {
    /// The body is the file.
    Raw(Box<BodyDataStream>),
    /// A field of a form is the file. The noun of [`UploadLimits`] belongs to it.
    Form(Box<Field<'static>>, &'static str),
    /// Sends the pieces. Then the upload stalls if the flag is true, and ends otherwise.
    #[cfg(test)]
    Test(std::collections::VecDeque<Vec<u8>>, bool),
}

impl UploadPieces {
    /// Returns the pieces of a body that is the file.
    pub fn raw(body: Body) -> UploadPieces {
        UploadPieces::Raw(Box::new(body.into_data_stream()))
    }

    /// Returns the next piece, or `None` after the last.
    ///
    /// # Errors
    /// `ClientTimeout` if none arrives in time, `Cancelled` if the body breaks off,
    /// `InvalidArgument` if it is not a form.
    pub async fn next(&mut self, timeout: Duration) -> Result<Option<Bytes>> {
        in_time(timeout, self.piece()).await
    }

    /// Returns the next piece, or `None` at the end.
    async fn piece(&mut self) -> Result<Option<Bytes>> {
        match self {
            UploadPieces::Raw(body) => {
                let piece = body.next().await.transpose();
                piece.map_err(|error| Error::cancelled("the upload ended early").caused_by(error))
            }
            UploadPieces::Form(field, noun) => {
                field.chunk().await.map_err(|error| form_error(&error, noun))
            }
            #[cfg(test)]
            UploadPieces::Test(pieces, stall) => match pieces.pop_front() {
                Some(piece) => Ok(Some(piece.into())),
                None if *stall => std::future::pending().await,
                None => Ok(None),
            },
        }
    }

    /// Discards the rest, within limits.
    pub async fn discard(mut self, timeout: Duration) {
        let all = async {
            let mut left = DISCARD_BYTES_MAX;
            while let Ok(Some(piece)) = self.next(timeout).await {
                match left.checked_sub(piece.len() as u64) {
                    Some(less) => left = less,
                    None => return,
                }
            }
        };
        // The connection is closed for pieces that arrive later.
        let _ = tokio::time::timeout(DISCARD_TIME_MAX, all).await;
    }
}

/// A file in a form.
pub struct FormFile {
    /// The bytes of the file.
    pub pieces: UploadPieces,
    /// Last part of the path that the client states as the file's name.
    pub file_name: Option<String>,
    /// Media type of the file, in lower case and without parameters.
    pub media_type: Option<String>,
}

impl FormFile {
    /// Reads a form up to its first file. Returns `None` if the form ends before a file.
    /// `content_type` is that of the request.
    ///
    /// # Errors
    /// `InvalidArgument` for a body that is not a form, or a form whose first 16 fields are no
    /// file. `TooLarge` for a form above the limit, and the errors of [`UploadPieces::next`].
    pub async fn first(
        content_type: &str,
        body: Body,
        limits: UploadLimits,
    ) -> Result<Option<FormFile>> {
        let failed = |error: multer::Error| form_error(&error, limits.noun);
        let boundary = multer::parse_boundary(content_type).map_err(failed)?;
        let size = SizeLimit::new().whole_stream(limits.bytes_max.saturating_add(FORM_BYTES_MAX));
        let constraints = Constraints::new().size_limit(size);
        let passed = Arc::new(AtomicU64::new(0));
        let pieces =
            FormPieces { body: body.into_data_stream(), passed: passed.clone(), is_paused: false };
        let mut form = Multipart::with_constraints(pieces, boundary, constraints);
        for _ in 0..FORM_FIELDS_MAX {
            let next = async {
                let mut next = pin!(form.next_field());
                poll_fn(|context| match next.as_mut().poll(context) {
                    // The parser has all of these bytes, and they have no file.
                    Poll::Pending if passed.load(Ordering::Relaxed) > FORM_BYTES_MAX => {
                        Poll::Ready(Err(Error::too_large(format!(
                            "the form has more than {FORM_BYTES_MAX} bytes before its file"
                        ))))
                    }
                    polled => polled.map_err(failed),
                })
                .await
            };
            let Some(field) = in_time(limits.piece_timeout, next).await? else { return Ok(None) };
            if field.file_name().is_none() && field.name() != Some("file") {
                continue;
            }
            return Ok(Some(FormFile {
                file_name: field.file_name().map(short_file_name).filter(|name| !name.is_empty()),
                media_type: field
                    .content_type()
                    .map(|media| media.essence_str().to_ascii_lowercase()),
                pieces: UploadPieces::Form(Box::new(field), limits.noun),
            }));
        }
        Err(Error::invalid(format!(
            "none of the first {FORM_FIELDS_MAX} fields of the form is a file; send the {} as the \
             first field",
            limits.noun
        )))
    }
}

/// Stream that passes a form to its parser, piece by piece. The parser takes pieces until one is
/// not ready, and has no limit of its own before a file.
struct FormPieces {
    body: BodyDataStream,
    /// Bytes that were passed.
    passed: Arc<AtomicU64>,
    /// True after a piece that the parser has not read.
    is_paused: bool,
}

impl Stream for FormPieces {
    type Item = std::result::Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::replace(&mut self.is_paused, false) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = ready!(Pin::new(&mut self.body).poll_next(context));
        if let Some(Ok(bytes)) = &piece {
            self.passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.is_paused = true;
        }
        Poll::Ready(piece)
    }
}

/// Turns an error of a form, or of the connection, into one for the client.
fn form_error(error: &multer::Error, noun: &str) -> Error {
    match error {
        multer::Error::StreamReadFailed(error) => {
            Error::cancelled(format!("the upload ended early: {error}"))
        }
        multer::Error::StreamSizeExceeded { limit } => Error::too_large(format!(
            "the form has more than {limit} bytes; send the {noun} in parts"
        )),
        error => Error::invalid(format!("the form cannot be read: {error}")),
    }
}

async fn in_time<T>(timeout: Duration, arrival: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(timeout, arrival).await.unwrap_or_else(|_| {
        let text = format!("the client sent nothing for {} s", timeout.as_secs_f32());
        Err(Error::new(ErrorKind::ClientTimeout, text))
    })
}

/// Returns the last part of a path, cut to [`FILE_NAME_BYTES_MAX`] and without control characters.
fn short_file_name(text: &str) -> String {
    let last = text.rsplit(['/', '\\']).next().unwrap_or_default();
    let mut name = String::new();
    for character in last.chars().filter(|character| !character.is_control()) {
        if name.len() + character.len_utf8() > FILE_NAME_BYTES_MAX {
            break;
        }
        name.push(character);
    }
    name
}

/// The connection's end of an upload. Dropped before the end of the upload, it breaks the upload
/// off.
pub struct UploadSender {
    to: mpsc::Sender<Bytes>,
    failure: UploadFailure,
    /// True once the reader has all pieces, or needs no more.
    ended: bool,
}

/// The thread's end of an upload.
pub struct UploadReader {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
    failure: UploadFailure,
    /// Released when the reader is dropped.
    _permit: Option<Arc<UploadPermit>>,
}

/// The reason for an early end of an upload. To a decoder an early end looks like a short file.
#[derive(Clone, Default)]
pub struct UploadFailure(Arc<OnceLock<Error>>);

impl UploadFailure {
    /// Returns the reason, or `None` if the upload is complete or still arrives.
    pub fn get(&self) -> Option<Error> {
        self.0.get().cloned()
    }

    fn set(&self, error: Error) {
        // The first error is the reason.
        let _ = self.0.set(error);
    }
}

/// Creates both ends of an upload, and the reason for its early end. The reader holds `permit`.
pub fn upload_channel(
    permit: Option<Arc<UploadPermit>>,
) -> (UploadSender, UploadReader, UploadFailure) {
    let (to, pieces) = mpsc::channel(PIECES_WAITING_MAX);
    let failure = UploadFailure::default();
    let sender = UploadSender { to, failure: failure.clone(), ended: false };
    let reader =
        UploadReader { pieces, current: Bytes::new(), failure: failure.clone(), _permit: permit };
    (sender, reader, failure)
}

impl UploadSender {
    /// Passes pieces on until the last, the limit, or the client's silence. Discards the rest.
    pub async fn feed(self, mut pieces: UploadPieces, limits: UploadLimits) {
        if self.pass(&mut pieces, limits).await {
            pieces.discard(limits.piece_timeout).await;
        }
    }

    /// Passes pieces on, and then drops this end. Returns true if the client may send more.
    async fn pass(mut self, pieces: &mut UploadPieces, limits: UploadLimits) -> bool {
        let mut received = 0;
        loop {
            let piece = match pieces.next(limits.piece_timeout).await {
                Ok(Some(piece)) => piece,
                Ok(None) => {
                    self.ended = true;
                    return false;
                }
                Err(error) => {
                    self.failure.set(error);
                    return false;
                }
            };
            received += piece.len() as u64;
            if received > limits.bytes_max {
                self.failure.set(limits.too_large());
                return true;
            }
            if self.to.send(piece).await.is_err() {
                self.ended = true;
                return true;
            }
        }
    }
}

impl Drop for UploadSender {
    /// Sets the failure of an upload whose task was dropped, such as at the end of the grace time
    /// of a shutdown. The reader would take the end for the end of the file.
    fn drop(&mut self) {
        if !self.ended {
            // An earlier error stays.
            self.failure
                .set(Error::cancelled("the upload ended early: the server stopped receiving it"));
        }
    }
}

impl UploadReader {
    /// Returns the reason for a failed read.
    pub fn error(&self, error: &io::Error) -> Error {
        let broken = || Error::cancelled(format!("the upload ended early: {error}"));
        self.failure.get().unwrap_or_else(broken)
    }
}

impl Read for UploadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece,
                None => {
                    return self.failure.get().map_or(Ok(0), |error| Err(io::Error::other(error)));
                }
            }
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    const LIMITS: UploadLimits = UploadLimits {
        noun: "recording",
        bytes_max: 1000,
        piece_timeout: Duration::from_millis(50),
    };

    /// Sends `pieces`, then the end or, with `stall`, silence. Reads on a thread of its own.
    fn through(
        pieces: Vec<Vec<u8>>,
        stall: bool,
        limits: UploadLimits,
    ) -> (Vec<u8>, Option<Error>) {
        let (sender, mut reader, failure) = upload_channel(None);
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            // The error is in `failure`.
            let _ = reader.read_to_end(&mut all);
            all
        });
        run(sender.feed(UploadPieces::Test(pieces.into(), stall), limits));
        (thread.join().unwrap(), failure.get())
    }

    #[test]
    fn all_bytes_arrive_in_order() {
        let pieces: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n; usize::from(n % 7)]).collect();
        let (all, failure) = through(pieces.clone(), false, LIMITS);
        assert_eq!((all, failure), (pieces.concat(), None));
    }

    #[test]
    fn the_limit_and_silence_end_the_upload() {
        let (_, failure) = through(vec![vec![0; 600], vec![0; 600]], false, LIMITS);
        assert_eq!(failure.unwrap().kind(), ErrorKind::TooLarge);
        let (all, failure) = through(vec![vec![1; 10]], true, LIMITS);
        assert_eq!((all.len(), failure.unwrap().kind()), (10, ErrorKind::ClientTimeout));
    }

    #[test]
    fn an_upload_whose_task_is_dropped_breaks_off() {
        let (sender, mut reader, failure) = upload_channel(None);
        let limits = UploadLimits { piece_timeout: Duration::from_secs(60), ..LIMITS };
        let pieces = UploadPieces::Test(vec![vec![1; 10]].into(), true);
        let feed = sender.feed(pieces, limits);
        // Drops the task after its first poll.
        let fed = async { tokio::time::timeout(Duration::ZERO, feed).await };
        assert!(run(fed).is_err());
        let mut all = Vec::new();
        assert!(reader.read_to_end(&mut all).is_err());
        assert_eq!((all.len(), failure.get().unwrap().kind()), (10, ErrorKind::Cancelled));
    }

    #[test]
    fn a_form_without_a_file_is_read_within_its_limit() {
        let pulled = Arc::new(AtomicU64::new(0));
        let counted = pulled.clone();
        let start = "--b\r\nContent-Disposition: form-data; name=\"".to_owned();
        let pieces = std::iter::once(start).chain(std::iter::repeat_n("x".repeat(32 << 10), 100));
        let pieces = pieces.map(move |piece| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, io::Error>(piece)
        });
        let body = Body::from_stream(tokio_stream::iter(pieces));
        let limits = UploadLimits { bytes_max: 1 << 30, ..LIMITS };
        let read = FormFile::first("multipart/form-data; boundary=b", body, limits);
        assert_eq!(run(read).err().unwrap().kind(), ErrorKind::TooLarge);
        assert!(pulled.load(Ordering::Relaxed) < 10);
    }

    #[test]
    fn a_file_is_found_behind_few_fields() {
        let limits = UploadLimits { piece_timeout: Duration::from_secs(60), ..LIMITS };
        let first = |fields: usize| {
            let start = "--b\r\nContent-Disposition: form-data; name=";
            let field = format!("{start}\"x\"\r\n\r\n1\r\n").repeat(fields);
            let file = format!("{start}\"y\"; filename=\"a/b.wav\"\r\n\r\n7\r\n--b--\r\n");
            let body = Body::from(field + &file);
            run(FormFile::first("multipart/form-data; boundary=b", body, limits))
        };
        let found = first(FORM_FIELDS_MAX - 1).unwrap().unwrap();
        assert_eq!(found.file_name.as_deref(), Some("b.wav"));
        let refusal = first(FORM_FIELDS_MAX).err().unwrap();
        assert_eq!(refusal.kind(), ErrorKind::InvalidArgument);
        assert!(refusal.to_string().contains("as the first field"), "{refusal}");
    }

    /// A name may be printed in a line of its own.
    #[test]
    fn names_of_files_are_short_and_one_line() {
        for (sent, kept) in [
            ("a.wav", "a.wav"),
            ("/x/../a", "a"),
            ("C:\\x\\a", "a"),
            ("a\r\n\0b", "ab"),
            ("a/", ""),
        ] {
            assert_eq!(short_file_name(sent), kept);
        }
        let long = short_file_name(&"é".repeat(FILE_NAME_BYTES_MAX));
        assert_eq!(long, "é".repeat(FILE_NAME_BYTES_MAX / 2));
    }

    #[test]
    fn a_dropped_reader_does_not_block_the_client() {
        let (sender, reader, failure) = upload_channel(None);
        drop(reader);
        run(sender.feed(UploadPieces::Test(vec![vec![0; 100]; 5].into(), false), LIMITS));
        assert!(failure.get().is_none());
    }
}
