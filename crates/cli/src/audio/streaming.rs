//! Sends a recording to a running server and reads the response during the upload.
//!
//! The client of the other commands sends a whole request before it reads. A long recording with
//! many labels would then fill the buffers of both sockets and block.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use audio::decode::AudioInput;
use audio::pipeline::{AudioSummary, PipelineEvent};
use base::{Error, Result};
use command_line::exit::{CommandError, CommandResult};

use crate::audio::ndjson::{LINE_BYTES_MAX, ServerLine, parse};
use loadgen::connection::url_segment;

/// Timeout for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Timeout for the next bytes of a working server.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// Size of a sent chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum number of header lines in a response.
const HEAD_LINES_MAX: usize = 128;
/// Maximum number of bytes read from an error response.
const ERROR_BYTES_MAX: u64 = 64 << 10;

/// A client for one recogniser of one server.
pub(crate) struct StreamingClient {
    authority: String,
    path: String,
    key: Option<String>,
}

impl StreamingClient {
    /// Creates a client for `recogniser` of the server at `url`.
    ///
    /// # Errors
    /// Returns a usage error for an address that is not `http://HOST[:PORT]`.
    pub(crate) fn new(
        url: &str,
        recogniser: &str,
        embeddings: bool,
    ) -> CommandResult<StreamingClient> {
        let authority = match url.split_once("://") {
            None => url,
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(CommandError::usage(format!(
                    "--url {url}: this command does not speak {scheme}"
                )));
            }
        };
        let authority = authority.trim_end_matches('/');
        if authority.is_empty() || authority.contains(['/', ' ', '\r', '\n']) {
            return Err(CommandError::usage(format!("--url {url}: write http://HOST:PORT")));
        }
        let query = if embeddings { "?embeddings=1" } else { "" };
        let has_port =
            authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        Ok(StreamingClient {
            authority,
            path: format!("/v1/audio/{}{query}", url_segment(recogniser)),
            key: None,
        })
    }

    /// Sets the API key that each request sends.
    ///
    /// # Errors
    /// Returns a usage error for a key that no header can hold.
    pub(crate) fn with_key(self, key: Option<String>) -> CommandResult<StreamingClient> {
        let is_sendable =
            |key: &String| key.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if key.as_ref().is_none_or(is_sendable) {
            Ok(StreamingClient { key, ..self })
        } else {
            Err(CommandError::usage("the API key has characters that no header can hold"))
        }
    }

    /// Sends a recording and passes the server's events to `sink`.
    ///
    /// # Errors
    /// Returns `Unavailable` if no server answers, the server's own error, and errors of `sink`.
    pub(crate) fn recognise(
        &self,
        input: AudioInput,
        hint: Option<&str>,
        sink: &mut dyn FnMut(PipelineEvent) -> Result<()>,
    ) -> Result<AudioSummary> {
        let stream = self.connect()?;
        let sending = stream.try_clone().map_err(|error| self.lost(&error))?;
        let head = self.head(hint);
        // If the server ends the exchange early, the shut-down socket ends the sender.
        let sender = os::thread::spawn("upload", move || upload(sending, &head, input))?;
        let answer = self.answer(BufReader::new(&stream), sink);
        let _ = stream.shutdown(std::net::Shutdown::Both);
        if answer.is_ok() || sender.is_finished() {
            // An error while reading the file explains the server's error, so it takes precedence.
            match sender.join() {
                Ok(Err(error)) if answer.is_err() => return Err(error),
                Ok(_) => {}
                Err(_) => return Err(Error::internal("the upload panicked")),
            }
        }
        answer
    }

    fn connect(&self) -> Result<TcpStream> {
        let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
        for address in self.authority.to_socket_addrs().map_err(|error| self.lost(&error))? {
            match TcpStream::connect_timeout(&address, CONNECT_MAX) {
                Ok(stream) => {
                    stream
                        .set_read_timeout(Some(SILENCE_MAX))
                        .map_err(|error| self.lost(&error))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(self.lost(&last))
    }

    /// Returns the head of the HTTP request. `hint` is the file extension of the recording.
    fn head(&self, hint: Option<&str>) -> String {
        // The server accepts a file extension as well as a MIME type of audio.
        let kind = match hint {
            Some("mp3") => "audio/mpeg",
            Some("wav") => "audio/wav",
            Some("flac") => "audio/flac",
            Some("ogg" | "oga") => "audio/ogg",
            Some("m4a" | "mp4") => "audio/mp4",
            _ => "application/octet-stream",
        };
        let key = self.key.as_ref().map_or_else(String::new, |key| format!("api-key: {key}\r\n"));
        format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\nuser-agent: millpond/{}\r\naccept: application/x-ndjson\r\n\
             {key}content-type: {kind}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n",
            self.path,
            self.authority,
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Reads the response, and passes its events to `sink`. Returns its summary.
    fn answer(
        &self,
        mut reader: impl BufRead,
        sink: &mut dyn FnMut(PipelineEvent) -> Result<()>,
    ) -> Result<AudioSummary> {
        let (status, chunked) = read_head(&mut reader).map_err(|error| self.lost(&error))?;
        let body: Box<dyn Read + '_> =
            if chunked { Box::new(ChunkedBody::new(reader)) } else { Box::new(reader) };
        if !(200..300).contains(&status) {
            let mut text = String::new();
            let _ = body.take(ERROR_BYTES_MAX).read_to_string(&mut text);
            let message = serde_json::from_str::<serde_json::Value>(&text)
                .ok()
                .and_then(|json| json.get("error")?.as_str().map(str::to_owned));
            let message = message.unwrap_or_else(|| text.trim().to_owned());
            return Err(Error::invalid(format!("the server answered {status}: {message}")));
        }
        let mut lines = BufReader::new(body);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut lines).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
            if read.map_err(|error| self.lost(&error))? == 0 {
                return Err(Error::unavailable("the server ended its answer early"));
            }
            match parse(&line)? {
                ServerLine::Event(event) => sink(event)?,
                ServerLine::Summary(summary) => return Ok(summary),
                ServerLine::Ignored => {}
            }
        }
    }

    fn lost(&self, error: &std::io::Error) -> Error {
        Error::unavailable(format!("no answer from http://{}: {error}", self.authority))
    }
}

/// Sends the request head, then the recording in chunks. A server that stops reading is not an
/// error: its response gives the reason.
fn upload(mut stream: TcpStream, head: &str, input: AudioInput) -> Result<()> {
    let mut reader: Box<dyn Read> = match input {
        AudioInput::File(file) => Box::new(file),
        AudioInput::Stream(stream) => stream,
    };
    if stream.write_all(head.as_bytes()).is_err() {
        return Ok(());
    }
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let count = reader
            .read(&mut bytes)
            .map_err(|error| Error::unavailable("the recording cannot be read").caused_by(error))?;
        let Some(part) = bytes.get(..count) else { return Ok(()) };
        let sent = write!(stream, "{count:x}\r\n")
            .and_then(|()| stream.write_all(part))
            .and_then(|()| stream.write_all(b"\r\n"));
        // An empty chunk ends the body.
        if sent.is_err() || count == 0 {
            return Ok(());
        }
    }
}

/// Reads the response head. Returns the status, and true if the body is chunked.
fn read_head(reader: &mut impl BufRead) -> std::io::Result<(u16, bool)> {
    let wrong = || std::io::Error::new(ErrorKind::InvalidData, "the answer is not HTTP");
    loop {
        let first = read_line(reader)?;
        let status: u16 =
            first.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(wrong)?;
        let mut chunked = false;
        for place in 0.. {
            let line = read_line(reader)?;
            if line.is_empty() {
                break;
            }
            if place == HEAD_LINES_MAX {
                return Err(wrong());
            }
            let line = line.to_ascii_lowercase();
            chunked |= line
                .strip_prefix("transfer-encoding:")
                .is_some_and(|value| value.contains("chunked"));
        }
        // "100 Continue" precedes the final response.
        if status != 100 {
            return Ok((status, chunked));
        }
    }
}

fn read_line(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = Vec::new();
    reader.take(CHUNK_BYTES as u64).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// Decoder of a chunked body.
struct ChunkedBody<R> {
    reader: R,
    left: u64,
    ended: bool,
}

impl<R: BufRead> ChunkedBody<R> {
    fn new(reader: R) -> ChunkedBody<R> {
        ChunkedBody { reader, left: 0, ended: false }
    }
}

impl<R: BufRead> Read for ChunkedBody<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && !self.ended {
            let mut line = read_line(&mut self.reader)?;
            if line.is_empty() {
                // The line end of the previous chunk.
                line = read_line(&mut self.reader)?;
            }
            let size = line.split(';').next().unwrap_or_default().trim();
            self.left = u64::from_str_radix(size, 16).map_err(|_| {
                std::io::Error::new(ErrorKind::InvalidData, "a chunk has no length")
            })?;
            self.ended = self.left == 0;
        }
        if self.ended {
            return Ok(0);
        }
        let count = (&mut self.reader).take(self.left).read(bytes)?;
        if count == 0 && !bytes.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_key_is_sent_if_there_is_one() {
        let client = |key: Option<&str>| {
            let client = StreamingClient::new("h:1", "vad", false).unwrap();
            client.with_key(key.map(str::to_owned))
        };
        assert!(client(Some("k")).unwrap().head(None).contains("\r\napi-key: k\r\n"));
        assert!(!client(None).unwrap().head(None).contains("api-key"));
        assert!(client(Some("a\r\nb: c")).is_err());
    }

    #[test]
    fn addresses_of_plain_http_are_accepted() {
        let new =
            |url: &str| StreamingClient::new(url, "vad", false).map(|exchange| exchange.authority);
        assert_eq!(new("http://h:1/").unwrap(), "h:1");
        assert_eq!(new("h").unwrap(), "h:80");
        assert!(new("https://h:1").is_err() && new("http://").is_err() && new("h:1/x").is_err());
        assert_eq!(
            StreamingClient::new("h:1", "a b", true).unwrap().path,
            "/v1/audio/a%20b?embeddings=1"
        );
    }

    #[test]
    fn chunks_are_joined() {
        let body = b"4\r\nab\nc\r\n1;x\r\nd\r\n0\r\n\r\n";
        let mut text = String::new();
        ChunkedBody::new(&body[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "ab\ncd");
        assert!(ChunkedBody::new(&b"5\r\nab"[..]).read_to_string(&mut text).is_err());
        assert!(ChunkedBody::new(&b"what\r\n"[..]).read_to_string(&mut text).is_err());
    }

    /// The server answers after the first bytes and stops before it has read all.
    #[test]
    fn the_answer_is_read_while_the_upload_runs() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = listener.local_addr().unwrap().to_string();
        let (done, client_done) = std::sync::mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 64];
            stream.read_exact(&mut head).unwrap();
            let body = "{\"type\":\"fault\",\"at\":1,\"what\":\"x\"}\n{\"type\":\"summary\",\"seconds\":2,\"labels\":0,\
                        \"faults\":1,\"partial\":true}\n";
            let head = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            write!(stream, "{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).unwrap();
            let _ = std::io::copy(&mut Read::take(&stream, 1 << 20), &mut std::io::sink());
            // Closing with unread bytes would discard a response that the client has not read.
            let _ = client_done.recv();
        });
        let endless = AudioInput::Stream(Box::new(std::io::repeat(7)));
        let mut faults = 0;
        let summary = StreamingClient::new(&url, "vad", false).unwrap().recognise(
            endless,
            Some("mp3"),
            &mut |event| {
                faults += u64::from(matches!(event, PipelineEvent::Fault(_)));
                Ok(())
            },
        );
        drop(done);
        let summary = summary.unwrap();
        assert_eq!((summary.seconds, summary.partial, faults), (2.0, true, 1));
        server.join().unwrap();
    }
}
