//! The response to one recording: labels as lines or as a document.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use audio::pipeline::{AudioSummary, PipelineEvent};
use audio::write::{self, LabelFormat, LabelWriter};
use base::{Error, Result};
use bytes::Bytes;
use transport::result_stream::ResultWriter;

use super::spool;
use super::upload::{AudioUpload, blamed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    /// A line of JSON for each event, as it happens.
    Lines,
    /// A file of labels in a common format.
    Document(LabelFormat),
}

impl ResponseFormat {
    /// Parses the name in a request.
    ///
    /// # Errors
    /// `InvalidArgument` that lists the formats.
    pub(crate) fn parse(name: &str) -> Result<ResponseFormat> {
        let document = match name {
            "ndjson" => return Ok(ResponseFormat::Lines),
            "json" => LabelFormat::Json,
            "csv" => LabelFormat::Csv,
            "srt" => LabelFormat::Srt,
            "rttm" => LabelFormat::Rttm,
            "audacity" => LabelFormat::Audacity,
            other => {
                let known = "ndjson, json, csv, srt, rttm and audacity";
                return Err(Error::invalid(format!(
                    "there is no format \"{other}\"; there are {known}"
                )));
            }
        };
        Ok(ResponseFormat::Document(document))
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            ResponseFormat::Lines => "application/x-ndjson",
            ResponseFormat::Document(LabelFormat::Json) => "application/json",
            ResponseFormat::Document(LabelFormat::Csv) => "text/csv; charset=utf-8",
            ResponseFormat::Document(LabelFormat::Srt) => "application/x-subrip; charset=utf-8",
            ResponseFormat::Document(_) => "text/plain; charset=utf-8",
        }
    }
}

/// Buffer between the writer of a document and the client.
#[derive(Clone, Default)]
struct DocumentBuffer(Rc<RefCell<Vec<u8>>>);

impl Write for DocumentBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl DocumentBuffer {
    /// Takes the written bytes, perhaps none.
    fn take(&self) -> Bytes {
        RefCell::take(&self.0).into()
    }
}

enum Printer {
    Lines,
    Document(DocumentBuffer, Box<LabelWriter<DocumentBuffer>>),
}

impl Printer {
    fn new(format: ResponseFormat, file_name: &str) -> Result<Printer> {
        let ResponseFormat::Document(format) = format else { return Ok(Printer::Lines) };
        let buffer = DocumentBuffer::default();
        let writer = LabelWriter::new(format, buffer.clone(), file_name)?;
        Ok(Printer::Document(buffer, Box::new(writer)))
    }

    /// Returns the bytes of an event, perhaps none. The next event may come after a long pause of
    /// the upload, so no label waits for it.
    fn event(&mut self, event: &PipelineEvent) -> Result<Bytes> {
        let (buffer, writer) = match self {
            Printer::Lines => return Ok(write::ndjson(event).unwrap_or_default().into()),
            Printer::Document(buffer, writer) => (buffer, writer),
        };
        match event {
            PipelineEvent::Label(label) => writer.label(label)?,
            PipelineEvent::Fault(fault) => writer.fault(fault)?,
            PipelineEvent::Opened(_) | PipelineEvent::Progress { .. } => {}
        }
        Ok(buffer.take())
    }

    fn finish(self, summary: &AudioSummary) -> Result<Bytes> {
        match self {
            Printer::Lines => Ok(write::ndjson_summary(summary).into()),
            Printer::Document(buffer, writer) => writer.finish(summary).map(|_| buffer.take()),
        }
    }
}

/// Returns the line that reports an error after the response has begun.
fn error_line(error: &Error) -> Bytes {
    let line = serde_json::json!({ "type": "error", "kind": error.kind().name(), "error": error.message() });
    format!("{line}\n").into()
}

/// Recognises a recording and writes the response. Runs as the body of the recording's thread.
pub(crate) fn recognise(
    upload: AudioUpload,
    format: ResponseFormat,
    spool: bool,
    writer: &ResultWriter,
) {
    let AudioUpload {
        recogniser,
        model,
        options,
        upload,
        failure,
        hint,
        file_name,
        config,
        mut progress,
        ..
    } = upload;
    let mut begun = false;
    let file_name = file_name.unwrap_or_else(|| "recording".to_owned());
    let result = spool::input(upload, spool, &config).and_then(|input| {
        let mut printer = Printer::new(format, &file_name)?;
        let mut sink = |event: PipelineEvent| {
            if let PipelineEvent::Progress { seconds, .. } = &event {
                progress.advance(*seconds);
            }
            let bytes = printer.event(&event)?;
            begun |= !bytes.is_empty();
            writer.send(bytes)
        };
        let summary = audio::pipeline::recognise(
            input,
            hint.as_deref(),
            &recogniser,
            &model,
            &options,
            &mut sink,
        )?;
        progress.advance(summary.seconds);
        Ok((summary, printer))
    });
    let ended = blamed(&failure, result).and_then(|(summary, printer)| {
        writer.send(printer.finish(&summary)?)?;
        Ok(if summary.partial { "partial" } else { "ok" })
    });
    progress.count_outcome(match &ended {
        Ok(outcome) => outcome,
        Err(error) => error.kind().name(),
    });
    writer.end(match ended {
        Err(error) if begun && format == ResponseFormat::Lines => writer.send(error_line(&error)),
        ended => ended.map(|_| ()),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names_and_types() {
        for name in ["ndjson", "json", "csv", "srt", "rttm", "audacity"] {
            assert!(ResponseFormat::parse(name).unwrap().content_type().contains('/'), "{name}");
        }
        assert!(ResponseFormat::parse("table").unwrap_err().message().contains("audacity"));
    }

    #[test]
    fn a_label_of_a_document_does_not_wait_for_the_next() {
        let label = audio::Label {
            start: 0.0,
            end: 1.0,
            text: "speech".to_owned(),
            score: 1.0,
            embedding: None,
        };
        let event = PipelineEvent::Label(label);
        for format in ["json", "csv", "srt", "rttm", "audacity"] {
            let mut printer =
                Printer::new(ResponseFormat::parse(format).unwrap(), "a.wav").unwrap();
            for _ in 0..2 {
                let bytes = printer.event(&event).unwrap();
                let text = String::from_utf8(bytes.to_vec()).unwrap();
                assert_eq!(text.matches("speech").count(), 1, "{format}: {text}");
            }
        }
    }

    #[test]
    fn an_error_is_one_line() {
        let line = error_line(&Error::invalid("a \"frame\"\nbroke"));
        let text = std::str::from_utf8(&line).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!((&value["type"], &value["kind"]), (&"error".into(), &"invalid_argument".into()));
    }
}
