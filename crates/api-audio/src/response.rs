//! The answer to one recording: events become lines or a document's pieces, and those become bytes
//! for the client.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use audio::pipeline::{AudioSummary, PipelineEvent};
use audio::write::{self, LabelFormat, LabelWriter};
use base::{Error, Result};
use bytes::Bytes;

use super::listen::{Listening, blamed};
use super::spool;
use transport::result_stream::ResultWriter;

/// Bytes of a document that are sent together.
const DOCUMENT_PIECE: usize = 4 << 10;

/// What the client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A line of JSON for every event, as they happen.
    Lines,
    /// One of the formats of the field.
    Document(LabelFormat),
}

impl Form {
    /// By its name in a request.
    ///
    /// # Errors
    /// `InvalidArgument` that lists the names.
    pub(super) fn parse(name: &str) -> Result<Form> {
        let document = match name {
            "ndjson" => return Ok(Form::Lines),
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
        Ok(Form::Document(document))
    }

    /// The media type of its answers.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Form::Lines => "application/x-ndjson",
            Form::Document(LabelFormat::Json) => "application/json",
            Form::Document(LabelFormat::Csv) => "text/csv; charset=utf-8",
            Form::Document(LabelFormat::Srt) => "application/x-subrip; charset=utf-8",
            Form::Document(_) => "text/plain; charset=utf-8",
        }
    }
}

/// Where a document is written to, and read from in pieces.
#[derive(Clone, Default)]
struct Page(Rc<RefCell<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Page {
    /// What has been written since the last time, once there are `least` bytes.
    fn take(&self, least: usize) -> Bytes {
        let mut written = self.0.borrow_mut();
        if written.len() < least { Bytes::new() } else { std::mem::take(&mut *written).into() }
    }
}

/// Turns events into bytes.
enum Printer {
    Lines,
    Document(Page, Box<LabelWriter<Page>>),
}

impl Printer {
    fn new(form: Form, file_name: &str) -> Result<Printer> {
        let Form::Document(format) = form else { return Ok(Printer::Lines) };
        let page = Page::default();
        let writer = LabelWriter::new(format, page.clone(), file_name)?;
        Ok(Printer::Document(page, Box::new(writer)))
    }

    fn event(&mut self, event: &PipelineEvent) -> Result<Bytes> {
        let (page, writer) = match self {
            Printer::Lines => return Ok(write::ndjson(event).unwrap_or_default().into()),
            Printer::Document(page, writer) => (page, writer),
        };
        let least = match event {
            PipelineEvent::Label(label) => writer.label(label).map(|()| DOCUMENT_PIECE)?,
            PipelineEvent::Fault(fault) => writer.fault(fault).map(|()| DOCUMENT_PIECE)?,
            // A pause: what there is may be looked at.
            PipelineEvent::Opened(_) | PipelineEvent::Progress { .. } => 1,
        };
        Ok(page.take(least))
    }

    fn finish(self, summary: &AudioSummary) -> Result<Bytes> {
        match self {
            Printer::Lines => Ok(write::ndjson_summary(summary).into()),
            Printer::Document(page, writer) => writer.finish(summary).map(|_| page.take(1)),
        }
    }
}

/// An error as the last line, where an answer of lines has begun already.
fn error_line(error: &Error) -> Bytes {
    let line = serde_json::json!({ "type": "error", "kind": error.kind().name(), "error": error.message() });
    format!("{line}\n").into()
}

/// Listens to a recording to its end; the body of its thread.
pub(super) fn recognise(listening: Listening, form: Form, spool: bool, writer: &ResultWriter) {
    let Listening {
        recogniser,
        model,
        options,
        upload,
        failure,
        hint,
        file_name,
        config,
        mut count,
        ..
    } = listening;
    let mut begun = false;
    let file_name = file_name.unwrap_or_else(|| "recording".to_owned());
    let result = spool::input(upload, spool, &config).and_then(|input| {
        let mut printer = Printer::new(form, &file_name)?;
        let mut sink = |event: PipelineEvent| {
            if let PipelineEvent::Progress { seconds, .. } = &event {
                count.heard(*seconds);
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
        count.heard(summary.seconds);
        Ok((summary, printer))
    });
    let ended = blamed(&failure, result).and_then(|(summary, printer)| {
        writer.send(printer.finish(&summary)?)?;
        Ok(if summary.partial { "partial" } else { "ok" })
    });
    count.ended(match &ended {
        Ok(outcome) => outcome,
        Err(error) => error.kind().name(),
    });
    writer.end(match ended {
        Err(error) if begun && form == Form::Lines => writer.send(error_line(&error)),
        ended => ended.map(|_| ()),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names_and_types() {
        for name in ["ndjson", "json", "csv", "srt", "rttm", "audacity"] {
            assert!(Form::parse(name).unwrap().content_type().contains('/'), "{name}");
        }
        assert!(Form::parse("table").unwrap_err().message().contains("audacity"));
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
