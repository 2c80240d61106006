//! Bodies of requests: a recording as it is, or the first file of a form.

use axum::body::Body;
use base::{Error, Result};
use http::{HeaderMap, header};
use transport::upload::{FormFile, UploadLimits, UploadPieces};

/// A recording in a body.
pub(crate) struct AudioBody {
    pub(crate) pieces: UploadPieces,
    /// Format of the recording: the extension of the file name, or else the media type.
    pub(crate) hint: Option<String>,
    /// Name of the file, if the client sent one.
    pub(crate) file_name: Option<String>,
}

/// Form of a body according to the headers of its request.
#[derive(Debug)]
pub(crate) enum BodyForm {
    /// The body is the recording, perhaps with a media type of audio.
    Raw(Option<String>),
    /// A form with this content type.
    Multipart(String),
}

impl BodyForm {
    /// Finds the form of a body, of which nothing is read.
    ///
    /// # Errors
    /// `TooLarge` for an announced length over the limit; `InvalidArgument` for a compressed body,
    /// and for media types that are neither audio nor video nor bytes of any type.
    pub(crate) fn of(headers: &HeaderMap, limits: UploadLimits) -> Result<BodyForm> {
        let text =
            |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        if text(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(Error::invalid(
                "compressed bodies are not supported; send the recording as it is",
            ));
        }
        let announced: Option<u64> =
            text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
        announced.map_or(Ok(()), |length| limits.check_announced(length))?;
        let content_type = text(header::CONTENT_TYPE).unwrap_or("application/octet-stream");
        let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match media.as_str() {
            "multipart/form-data" => Ok(BodyForm::Multipart(content_type.to_owned())),
            // curl --data-binary sends this type by default.
            "application/octet-stream"
            | "application/x-www-form-urlencoded"
            | "application/ogg"
            | "application/mp4" => Ok(BodyForm::Raw(None)),
            film if film.starts_with("video/") => Ok(BodyForm::Raw(None)),
            sound if sound.starts_with("audio/") => Ok(BodyForm::Raw(Some(media))),
            other => Err(Error::invalid(format!(
                "the body's type is \"{other}\"; send a recording as audio/*, video/* or \
                 application/octet-stream, or a form with a file (multipart/form-data)"
            ))),
        }
    }

    /// Finds the recording in a body. Reads a form up to its first file.
    ///
    /// # Errors
    /// `InvalidArgument` for a form without a file; the errors of [`FormFile::first`].
    pub(crate) async fn read(self, body: Body, limits: UploadLimits) -> Result<AudioBody> {
        match self {
            BodyForm::Raw(hint) => {
                Ok(AudioBody { pieces: UploadPieces::raw(body), hint, file_name: None })
            }
            BodyForm::Multipart(content_type) => form(&content_type, body, limits).await,
        }
    }
}

async fn form(content_type: &str, body: Body, limits: UploadLimits) -> Result<AudioBody> {
    let file = FormFile::first(content_type, body, limits).await?.ok_or_else(|| {
        Error::invalid(
            "the form has no file; send the recording as one, such as with curl -F file=@recording.wav",
        )
    })?;
    let extension =
        file.file_name.as_deref().and_then(|name| name.rsplit_once('.')).map(|(_, end)| end);
    let media = file.media_type.filter(|media| media.starts_with("audio/"));
    let hint = extension.map(str::to_ascii_lowercase).or(media);
    Ok(AudioBody { hint, file_name: file.file_name, pieces: file.pieces })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::ErrorKind;
    use http::HeaderValue;

    use super::*;

    const LIMITS: UploadLimits =
        UploadLimits { noun: "recording", bytes_max: 100, piece_timeout: Duration::from_secs(5) };

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(future)
    }

    /// Hint, file name and bytes of a request.
    type Received = (Option<String>, Option<String>, Vec<u8>);

    fn request(
        content_type: &str,
        more: &[(http::HeaderName, &str)],
        body: &[u8],
    ) -> Result<Received> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
        for (name, value) in more {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        // In small pieces, as a network may cut them.
        let pieces: Vec<_> =
            body.chunks(3).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let body = Body::from_stream(tokio_stream::iter(pieces));
        run(async {
            let mut sent = BodyForm::of(&headers, LIMITS)?.read(body, LIMITS).await?;
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
            body +=
                &format!("--edge\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
        }
        (body + "--edge--\r\n").into_bytes()
    }

    const FORM: &str = "multipart/form-data; boundary=edge";

    #[test]
    fn a_body_is_the_recording() {
        let raw = request("Audio/WAV; codecs=1", &[], b"RIFFxyz").unwrap();
        assert_eq!(raw, (Some("audio/wav".into()), None, b"RIFFxyz".to_vec()));
        assert_eq!(
            request("application/octet-stream", &[], b"").unwrap(),
            (None, None, Vec::new())
        );
        // The sound of films in several containers is read, and others are named by their content.
        for film in ["video/mp4", "video/quicktime", "video/3gpp", "application/mp4"] {
            assert_eq!(request(film, &[], b"xyz").unwrap(), (None, None, b"xyz".to_vec()));
        }
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
