//! What a request's body is: a recording as it is, or the first file of a form.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use http::{HeaderMap, header};
use multer::{Constraints, Field, Multipart, SizeLimit};
use tokio_stream::StreamExt;

use super::upload::{UploadLimits, too_long};

/// Bytes that a form may have beside its file.
const FORM_BYTES_MAX: u64 = 64 << 10;
/// Fields looked at before the file.
const FORM_FIELDS_MAX: usize = 16;
/// Longest name of a file that is passed on.
const FILE_NAME_BYTES_MAX: usize = 255;

/// The recording's bytes as they come.
pub(crate) enum Pieces {
    /// The body is the recording.
    Raw(Box<BodyDataStream>),
    /// It is a form's file.
    Form(Box<Field<'static>>),
    /// Given pieces, and then the end or, where it says so, silence.
    #[cfg(test)]
    Given(std::collections::VecDeque<Vec<u8>>, bool),
}

/// A recording that is being sent.
pub(super) struct Sent {
    pub(super) pieces: Pieces,
    /// What it may be: a file name's extension, else a media type.
    pub(super) hint: Option<String>,
    /// What it is called, where the client says so.
    pub(super) file_name: Option<String>,
}

impl Pieces {
    #[cfg(test)]
    pub(super) fn of(pieces: Vec<Vec<u8>>, stall: bool) -> Pieces {
        Pieces::Given(pieces.into(), stall)
    }

    /// The next piece; `None` after the last.
    ///
    /// # Errors
    /// `ClientTimeout` when there is none in time, `Cancelled` when the body breaks off, `InvalidArgument` when it is
    /// no form.
    pub(super) async fn next(&mut self, timeout: Duration) -> Result<Option<Bytes>> {
        in_time(timeout, self.piece()).await
    }

    async fn piece(&mut self) -> Result<Option<Bytes>> {
        match self {
            Pieces::Raw(body) => {
                let piece = body.next().await.transpose();
                piece.map_err(|error| Error::cancelled(format!("the upload broke off: {error}")))
            }
            Pieces::Form(field) => field.chunk().await.map_err(|error| wrong(&error)),
            #[cfg(test)]
            Pieces::Given(pieces, stall) => match pieces.pop_front() {
                Some(piece) => Ok(Some(piece.into())),
                None if *stall => std::future::pending().await,
                None => Ok(None),
            },
        }
    }
}

/// What is wrong with a form, or with the connection that it comes by.
fn wrong(error: &multer::Error) -> Error {
    match error {
        multer::Error::StreamReadFailed(error) => Error::cancelled(format!("the upload broke off: {error}")),
        multer::Error::StreamSizeExceeded { limit } => {
            Error::too_large(format!("the form has more than {limit} bytes; send the recording in parts"))
        }
        error => Error::invalid(format!("the form cannot be read: {error}")),
    }
}

async fn in_time<T>(timeout: Duration, what: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(timeout, what).await.unwrap_or_else(|_| {
        let text = format!("the client sent nothing for {} s", timeout.as_secs_f32());
        Err(Error::new(ErrorKind::ClientTimeout, text))
    })
}

/// The recording in a request's body. Of a form, everything before its file is read here.
///
/// # Errors
/// `TooLarge` for an announced length over the limit; `InvalidArgument` for a compressed body, a form without a file,
/// and media types that are neither sound nor unnamed bytes.
pub(super) async fn sent(headers: &HeaderMap, body: Body, limits: UploadLimits) -> Result<Sent> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    if text(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Error::invalid("compressed bodies are not supported; send the recording as it is"));
    }
    let announced: Option<u64> = text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
    if announced.is_some_and(|length| length > limits.bytes_max.saturating_add(FORM_BYTES_MAX)) {
        return Err(too_long(limits.bytes_max));
    }
    let content_type = text(header::CONTENT_TYPE).unwrap_or("application/octet-stream");
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media.as_str() {
        "multipart/form-data" => form(content_type, body, limits).await,
        // What curl --data-binary says when nobody tells it better.
        "application/octet-stream"
        | "application/x-www-form-urlencoded"
        | "application/ogg"
        | "video/mp4"
        | "video/ogg" => raw(body, None),
        sound if sound.starts_with("audio/") => raw(body, Some(media)),
        other => Err(Error::invalid(format!(
            "the body's type is \"{other}\"; send a recording as audio/* or application/octet-stream, or a form with a \
             file (multipart/form-data)"
        ))),
    }
}

fn raw(body: Body, hint: Option<String>) -> Result<Sent> {
    Ok(Sent { pieces: Pieces::Raw(Box::new(body.into_data_stream())), hint, file_name: None })
}

async fn form(content_type: &str, body: Body, limits: UploadLimits) -> Result<Sent> {
    let boundary = multer::parse_boundary(content_type).map_err(|error| wrong(&error))?;
    let size = SizeLimit::new().whole_stream(limits.bytes_max.saturating_add(FORM_BYTES_MAX));
    let constraints = Constraints::new().size_limit(size);
    let mut form = Multipart::with_constraints(body.into_data_stream(), boundary, constraints);
    for _ in 0..FORM_FIELDS_MAX {
        let field =
            in_time(limits.piece_timeout, async { form.next_field().await.map_err(|error| wrong(&error)) })
                .await?;
        let Some(field) = field else { break };
        if field.file_name().is_none() && field.name() != Some("file") {
            continue;
        }
        let file_name = field.file_name().map(file_name).filter(|name| !name.is_empty());
        let extension = file_name.as_deref().and_then(|name| name.rsplit_once('.')).map(|(_, end)| end);
        let media = field.content_type().map(|media| media.essence_str().to_ascii_lowercase());
        let hint =
            extension.map(str::to_ascii_lowercase).or(media.filter(|media| media.starts_with("audio/")));
        return Ok(Sent { hint, file_name, pieces: Pieces::Form(Box::new(field)) });
    }
    Err(Error::invalid(
        "the form has no file; send the recording as one, such as with curl -F file=@recording.wav",
    ))
}

/// The last part of a path, without what would break a line, and short.
fn file_name(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const LIMITS: UploadLimits = UploadLimits { bytes_max: 100, piece_timeout: Duration::from_secs(5) };

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    /// Hint, file name and bytes of a request.
    type Told = (Option<String>, Option<String>, Vec<u8>);

    fn request(content_type: &str, more: &[(http::HeaderName, &str)], body: &[u8]) -> Result<Told> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
        for (name, value) in more {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        // In small pieces, as a network may cut them.
        let pieces: Vec<_> = body.chunks(3).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let body = Body::from_stream(tokio_stream::iter(pieces));
        run(async {
            let mut sent = sent(&headers, body, LIMITS).await?;
            let mut all = Vec::new();
            while let Some(piece) = sent.pieces.next(LIMITS.piece_timeout).await? {
                all.extend_from_slice(&piece);
            }
            Ok((sent.hint, sent.file_name, all))
        })
    }

    fn form_body(parts: &[(&str, &str)]) -> Vec<u8> {
        let mut body = String::new();
        for (head, content) in parts {
            body += &format!("--edge\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
        }
        (body + "--edge--\r\n").into_bytes()
    }

    const FORM: &str = "multipart/form-data; boundary=edge";

    #[test]
    fn a_body_is_the_recording() {
        let raw = request("Audio/WAV; codecs=1", &[], b"RIFFxyz").unwrap();
        assert_eq!(raw, (Some("audio/wav".into()), None, b"RIFFxyz".to_vec()));
        assert_eq!(request("application/octet-stream", &[], b"").unwrap(), (None, None, Vec::new()));
        assert!(request("text/html", &[], b"x").unwrap_err().message().contains("text/html"));
        assert!(request("audio/wav", &[(header::CONTENT_ENCODING, "gzip")], b"x").is_err());
        let long = request("audio/wav", &[(header::CONTENT_LENGTH, "100000")], b"x");
        assert_eq!(long.unwrap_err().kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn a_forms_first_file_is_the_recording() {
        let parts = [
            ("name=\"note\"", "words"),
            ("name=\"upload\"; filename=\"C:\\\\a\\\\my clip.FLAC\"", "fLaC--edge?"),
            ("name=\"upload\"; filename=\"other.wav\"", "not this"),
        ];
        let (hint, name, all) = request(FORM, &[], &form_body(&parts)).unwrap();
        assert_eq!((hint.as_deref(), name.as_deref()), (Some("flac"), Some("my clip.FLAC")));
        assert_eq!(all, b"fLaC--edge?");
    }

    #[test]
    fn a_form_without_a_file_and_a_broken_one_are_refused() {
        let none = request(FORM, &[], &form_body(&[("name=\"note\"", "words")]));
        assert!(none.unwrap_err().message().contains("no file"));
        assert!(request("multipart/form-data", &[], b"").is_err());
        let mut cut = form_body(&[("name=\"f\"; filename=\"a.wav\"", "sound")]);
        cut.truncate(cut.len() - 12);
        assert!(request(FORM, &[], &cut).is_err());
    }
}
