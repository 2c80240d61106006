//! Parses a server's streamed response for a recording: one JSON object per line.

use audio::decode::AudioFormat;
use audio::pipeline::{AudioSummary, PipelineEvent};
use audio::{Fault, Label};
use base::{Error, Result};
use serde::Deserialize;

/// Maximum length of a line: a label with an embedding.
pub(crate) const LINE_BYTES_MAX: usize = 1 << 20;

/// One line of the response.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum NdjsonLine {
    Opened {
        #[serde(default)]
        seconds: Option<f64>,
    },
    Label {
        start: f64,
        end: f64,
        text: String,
        score: f32,
        #[serde(default)]
        embedding: Option<Vec<f32>>,
    },
    Fault {
        at: f64,
        what: String,
    },
    Progress {
        seconds: f64,
        #[serde(default)]
        total: Option<f64>,
    },
    Summary {
        seconds: f64,
        labels: u64,
        faults: u64,
        partial: bool,
        #[serde(default)]
        windows: u64,
    },
    Error {
        error: String,
    },
    /// A type that later servers may send.
    #[serde(other)]
    Other,
}

/// A parsed line.
#[derive(Debug)]
pub(crate) enum ServerLine {
    Event(PipelineEvent),
    Summary(AudioSummary),
    Ignored,
}

/// Parses a line.
///
/// # Errors
/// Returns `Internal` for a line of another form, and the server's own error if the line is one.
pub(crate) fn parse(line: &[u8]) -> Result<ServerLine> {
    let line: NdjsonLine = serde_json::from_slice(line).map_err(|error| {
        Error::internal("the server sent a line that is not understood").caused_by(error)
    })?;
    Ok(match line {
        NdjsonLine::Opened { seconds } => ServerLine::Event(PipelineEvent::Opened(AudioFormat {
            container_and_codec: String::new(),
            rate: 0,
            channels: 0,
            seconds,
        })),
        NdjsonLine::Label { start, end, text, score, embedding } => {
            ServerLine::Event(PipelineEvent::Label(Label { start, end, text, score, embedding }))
        }
        NdjsonLine::Fault { at, what } => {
            ServerLine::Event(PipelineEvent::Fault(Fault { at, what }))
        }
        NdjsonLine::Progress { seconds, total } => {
            ServerLine::Event(PipelineEvent::Progress { seconds, total })
        }
        NdjsonLine::Summary { seconds, labels, faults, partial, windows } => {
            ServerLine::Summary(AudioSummary { seconds, labels, faults, partial, windows })
        }
        NdjsonLine::Error { error } => return Err(Error::invalid(error)),
        NdjsonLine::Other => ServerLine::Ignored,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_server_are_parsed() {
        let label =
            Label { start: 1.0, end: 2.5, text: "speech".into(), score: 0.5, embedding: None };
        let events = [
            PipelineEvent::Label(label),
            PipelineEvent::Fault(Fault { at: 3.0, what: "gone".into() }),
        ];
        for event in events {
            let Some(line) = audio::write::ndjson(&event) else { continue };
            let ServerLine::Event(back) = parse(line.as_bytes()).unwrap() else { panic!("{line}") };
            assert_eq!(format!("{back:?}"), format!("{event:?}"));
        }
        assert!(matches!(
            parse(br#"{"type":"progress","seconds":1}"#),
            Ok(ServerLine::Event(PipelineEvent::Progress { .. }))
        ));
        assert!(matches!(parse(br#"{"type":"news"}"#), Ok(ServerLine::Ignored)));
        assert_eq!(parse(br#"{"type":"error","error":"empty"}"#).unwrap_err().message(), "empty");
        assert!(parse(b"<html>").is_err());
    }
}
