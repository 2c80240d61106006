//! Writes labels to standard output or a file, line by line, so that a later error loses none of
//! them.

use std::fs::{File, OpenOptions};
use std::io::{LineWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use audio::pipeline::{AudioSummary, PipelineEvent};
use audio::write::{LabelFormat, LabelWriter};
use base::{Error, Result};
use command_line::exit::{CommandError, CommandResult};

/// A writer that ignores a closed pipe.
struct LabelSink {
    out: LabelTarget,
    closed: bool,
    /// Drops everything up to the next line: the repeated header of a table.
    skip_line: bool,
}

impl Write for LabelSink {
    /// Writes `bytes`, or drops them if the reader has closed the pipe (`millpond audio ... | head
    /// -1`).
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        if self.skip_line {
            let end = bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
            self.skip_line = end.is_none();
            return Ok(end.unwrap_or(bytes.len()));
        }
        match self.out.write(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                self.closed = true;
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

enum LabelTarget {
    Standard(std::io::Stdout),
    /// The file keeps its content until the first recording is open, so that a mistyped name loses
    /// no earlier result.
    File(File),
}

impl LabelTarget {
    /// Opens `path` without truncating it.
    fn file(path: &Path, recordings: &[PathBuf]) -> CommandResult<LabelTarget> {
        let named = |error: std::io::Error| {
            CommandError::failed(format!("--output {}: {error}", path.display()))
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(named)?;
        let place = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let own = file.metadata().map(place).map_err(named)?;
        let same = |recording: &&PathBuf| {
            std::fs::metadata(recording).map(place).is_ok_and(|at| at == own)
        };
        match recordings.iter().find(same) {
            None => Ok(LabelTarget::File(file)),
            Some(recording) => Err(CommandError::usage(format!(
                "--output {} is the recording {} itself",
                path.display(),
                recording.display()
            ))),
        }
    }

    /// Truncates a regular file. Other files, such as a pipe or a terminal, hold nothing.
    fn clear(&self) -> std::io::Result<()> {
        match self {
            LabelTarget::File(file) if file.metadata()?.is_file() => file.set_len(0),
            _ => Ok(()),
        }
    }
}

impl Write for LabelTarget {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            LabelTarget::Standard(out) => out.write(bytes),
            LabelTarget::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            LabelTarget::Standard(out) => out.flush(),
            LabelTarget::File(file) => file.flush(),
        }
    }
}

type LabelLines = LineWriter<LabelSink>;

/// Writer of the labels of all recordings, one after the other.
pub(crate) struct LabelOutput {
    format: LabelFormat,
    name: PathBuf,
    /// The output. `None` while a recording is being written.
    out: Option<LabelLines>,
    /// True once a recording has been started.
    begun: bool,
    /// True if several documents are written as a list.
    list: bool,
}

/// Writer of the labels of one recording.
pub(crate) struct FileLabels<'a> {
    output: &'a mut LabelOutput,
    writer: LabelWriter<LabelLines>,
}

impl LabelOutput {
    /// Opens `path`, or standard output, for the labels of `recordings`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created, is one of the recordings, or the format
    /// holds only one recording.
    pub(crate) fn open(
        path: Option<&Path>,
        format: LabelFormat,
        recordings: &[PathBuf],
    ) -> CommandResult<LabelOutput> {
        let several = recordings.len() > 1;
        if several && matches!(format, LabelFormat::Srt | LabelFormat::Audacity) {
            let name = format.name();
            return Err(CommandError::usage(format!("--format {name} is for one recording, and {} are given", recordings.len()))
                .hint("call it once for each, or take json, csv, rttm or table, which say which recording a label is of"));
        }
        let (out, name) = match path {
            Some(path) => (LabelTarget::file(path, recordings)?, path.to_owned()),
            None => (LabelTarget::Standard(std::io::stdout()), "standard output".into()),
        };
        Ok(LabelOutput {
            format,
            name,
            begun: false,
            list: several && format == LabelFormat::Json,
            out: Some(LineWriter::new(LabelSink { out, closed: false, skip_line: false })),
        })
    }

    /// Starts the recording `name`.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub(crate) fn begin(&mut self, name: &str) -> Result<FileLabels<'_>> {
        let mut out = self
            .out
            .take()
            .ok_or_else(|| Error::internal("the output was lost with an earlier error"))?;
        let written = if self.begun { Ok(()) } else { out.get_ref().out.clear() };
        let between = if self.begun { "," } else { "[" };
        let written = written
            .and_then(|()| if self.list { out.write_all(between.as_bytes()) } else { Ok(()) });
        written.map_err(|error| Error::io(&self.name, &error))?;
        // One table has one header; its first column names the recording.
        out.get_mut().skip_line = self.begun && self.format == LabelFormat::Csv;
        self.begun = true;
        let writer = LabelWriter::new(self.format, out, name)?;
        Ok(FileLabels { output: self, writer })
    }

    /// Ends the output and flushes it.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub(crate) fn close(self) -> CommandResult {
        let name = self.name;
        let end: &[u8] = match (self.list, self.begun) {
            (true, true) => b"]\n",
            (true, false) => b"[]\n",
            (false, _) => b"",
        };
        let written =
            self.out.map_or(Ok(()), |mut out| out.write_all(end).and_then(|()| out.flush()));
        written.map_err(|error| {
            CommandError::failed(format!("cannot write to {}: {error}", name.display()))
        })
    }
}

impl FileLabels<'_> {
    /// Writes a label or a fault. Ignores other events.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub(crate) fn event(&mut self, event: &PipelineEvent) -> Result<()> {
        match event {
            PipelineEvent::Label(label) => self.writer.label(label),
            PipelineEvent::Fault(fault) => self.writer.fault(fault),
            PipelineEvent::Opened(_) | PipelineEvent::Progress { .. } => Ok(()),
        }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub(crate) fn finish(self, summary: &AudioSummary) -> Result<()> {
        self.output.out = Some(self.writer.finish(summary)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use audio::Label;

    /// Writes one label per recording to `path`.
    fn written(path: &Path, format: LabelFormat, names: &[&str]) -> String {
        let recordings: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
        let mut output = LabelOutput::open(Some(path), format, &recordings).unwrap();
        for name in names {
            let mut part = output.begin(name).unwrap();
            let label =
                Label { start: 0.0, end: 1.0, text: "speech".into(), score: 1.0, embedding: None };
            part.event(&PipelineEvent::Label(label)).unwrap();
            part.finish(&AudioSummary::default()).unwrap();
        }
        output.close().unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_table_of_several_recordings_has_one_header() {
        let dir = tempfile::tempdir().unwrap();
        let text = written(&dir.path().join("labels.csv"), LabelFormat::Csv, &["a.wav", "b.wav"]);
        let starts: Vec<&str> = text.lines().filter_map(|line| line.split(',').next()).collect();
        assert_eq!(starts, ["file", "a.wav", "b.wav"], "{text}");
        assert!(LabelOutput::open(Some(dir.path()), LabelFormat::Csv, &[]).is_err());
    }

    #[test]
    fn documents_of_several_recordings_are_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("labels.json");
        let parsed = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let both = parsed(written(&path, LabelFormat::Json, &["a.wav", "b.wav"]));
        assert_eq!((&both[0]["file"], &both[1]["file"]), (&"a.wav".into(), &"b.wav".into()));
        assert_eq!(parsed(written(&path, LabelFormat::Json, &["a.wav"]))["file"], "a.wav");
        let recordings = ["a.wav".into(), "b.wav".into()];
        LabelOutput::open(Some(&path), LabelFormat::Json, &recordings).unwrap().close().unwrap();
        for format in [LabelFormat::Srt, LabelFormat::Audacity] {
            assert!(LabelOutput::open(Some(&path), format, &recordings).is_err());
        }
    }

    #[test]
    fn a_file_is_replaced_once_a_recording_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("labels.csv");
        std::fs::write(&path, "of before").unwrap();
        LabelOutput::open(Some(&path), LabelFormat::Csv, &["absent.wav".into()])
            .unwrap()
            .close()
            .unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of before");
        let link = dir.path().join("a.wav");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(
            LabelOutput::open(Some(&path), LabelFormat::Csv, &[link]).is_err(),
            "it is a recording"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of before");
        assert!(!written(&path, LabelFormat::Csv, &["a.wav"]).contains("before"));
    }
}
