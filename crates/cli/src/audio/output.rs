//! Where labels go: standard output or a file, a line at a time, so that what was recognised is kept whatever comes.

use std::fs::File;
use std::io::{LineWriter, Write};
use std::path::{Path, PathBuf};

use audio::pipeline::{Event, Summary};
use audio::write::{Format, Writer};
use base::{Error, Result};

use crate::exit::{Failure, Outcome};

/// A sink that may have lost its reader.
struct Sink {
    out: Box<dyn Write>,
    gone: bool,
    /// Drop everything up to the next line: the head of a table that has one already.
    skip_line: bool,
}

impl Write for Sink {
    /// A reader that has gone (`millpond audio ... | head -1`) is no failure: what is written to it is dropped.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.gone {
            return Ok(bytes.len());
        }
        if self.skip_line {
            let end = bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
            self.skip_line = end.is_none();
            return Ok(end.unwrap_or(bytes.len()));
        }
        match self.out.write(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                self.gone = true;
                Ok(bytes.len())
            }
            other => other,
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self.out.flush() {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

type Lines = LineWriter<Sink>;

/// The labels of one recording after another.
pub(crate) struct Output {
    format: Format,
    name: PathBuf,
    /// Taken while a recording is being written.
    out: Option<Lines>,
    /// Whether a recording has been begun.
    begun: bool,
}

/// One recording's part.
pub(crate) struct Part<'a> {
    output: &'a mut Output,
    writer: Writer<Lines>,
}

impl Output {
    /// Opens `path`, or standard output.
    ///
    /// # Errors
    /// A failure when the file cannot be made.
    pub(crate) fn open(path: Option<&Path>, format: Format) -> Outcome<Output> {
        let (out, name): (Box<dyn Write>, PathBuf) = match path {
            Some(path) => {
                let file = File::create(path)
                    .map_err(|error| Failure::failed(format!("--output {}: {error}", path.display())))?;
                (Box::new(file), path.to_owned())
            }
            None => (Box::new(std::io::stdout()), "standard output".into()),
        };
        Ok(Output {
            format,
            name,
            begun: false,
            out: Some(LineWriter::new(Sink { out, gone: false, skip_line: false })),
        })
    }

    /// Begins the part of the recording `name`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn begin(&mut self, name: &str) -> Result<Part<'_>> {
        let mut out =
            self.out.take().ok_or_else(|| Error::internal("the output was lost with an earlier error"))?;
        // One table, one head, however many recordings: its first column names them.
        out.get_mut().skip_line = self.begun && self.format == Format::Csv;
        self.begun = true;
        let writer = Writer::new(self.format, out, name)?;
        Ok(Part { output: self, writer })
    }

    /// Flushes.
    ///
    /// # Errors
    /// A failure when it cannot be written.
    pub(crate) fn close(self) -> Outcome {
        let name = self.name;
        let written = self.out.map_or(Ok(()), |mut out| out.flush());
        written.map_err(|error| Failure::failed(format!("cannot write to {}: {error}", name.display())))
    }
}

impl Part<'_> {
    /// Writes what an event has to say.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn event(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Label(label) => self.writer.label(label),
            Event::Fault(fault) => self.writer.fault(fault),
            Event::Opened(_) | Event::Progress { .. } => Ok(()),
        }
    }

    /// Ends the part.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn finish(self, summary: &Summary) -> Result<()> {
        self.output.out = Some(self.writer.finish(summary)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use audio::Label;

    #[test]
    fn a_table_of_several_recordings_has_one_head() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("labels.csv");
        let mut output = Output::open(Some(&path), Format::Csv).unwrap();
        for name in ["a.wav", "b.wav"] {
            let mut part = output.begin(name).unwrap();
            let label = Label { start: 0.0, end: 1.0, text: "speech".into(), score: 1.0, embedding: None };
            part.event(&Event::Label(label)).unwrap();
            part.finish(&Summary::default()).unwrap();
        }
        output.close().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let starts: Vec<&str> = text.lines().filter_map(|line| line.split(',').next()).collect();
        assert_eq!(starts, ["file", "a.wav", "b.wav"], "{text}");
        assert!(Output::open(Some(dir.path()), Format::Csv).is_err());
    }
}
