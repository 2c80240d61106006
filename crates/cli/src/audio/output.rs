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
}

impl Write for Sink {
    /// A reader that has gone (`millpond audio ... | head -1`) is no failure: what is written to it is dropped.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.gone {
            return Ok(bytes.len());
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
        Ok(Output { format, name, out: Some(LineWriter::new(Sink { out, gone: false })) })
    }

    /// Begins the part of the recording `name`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn begin(&mut self, name: &str) -> Result<Part<'_>> {
        let out =
            self.out.take().ok_or_else(|| Error::internal("the output was lost with an earlier error"))?;
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
