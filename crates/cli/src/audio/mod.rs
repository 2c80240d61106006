//! `millpond audio`: recognises recordings in this process or through a running server.

mod allocator;
mod cores;
pub(crate) mod model;
mod ndjson;
mod output;
mod progress;
mod recognise;
pub(crate) mod recognisers;
mod streaming;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use command_line::exit::{CommandError, CommandResult, ExitStatus, print};
use loadgen::report::TextTable;

use model::EngineArgs;
use output::LabelOutput;
use recognise::{Backend, FileResult};
use recognisers::RecogniserDirArgs;

/// `millpond audio FILE...`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  millpond audio meeting.mp3 --recogniser vad-onnx
  millpond audio *.wav --recogniser notes --format csv --output notes.csv
  ffmpeg -i film.mkv -f wav - | millpond audio - --recogniser vad-onnx --format srt
  millpond audio --list

`pip install \"millpond[recognisers]\"` installs ready recognisers. In a checkout, `make recognisers` builds them.

Exit status 1 means that a file failed or could be read only in part. The labels of the other parts are kept. Standard \
error names each fault and its time, and so do the formats that have a field for it.")]
pub(crate) struct AudioCommand {
    /// Recordings (wav, aiff, flac, mp3, ogg, m4a); - is standard input
    #[arg(value_name = "FILE", required_unless_present = "list")]
    files: Vec<PathBuf>,
    /// Recogniser to use
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    recogniser: Option<String>,
    #[command(flatten)]
    directory: RecogniserDirArgs,
    /// List the recognisers and exit
    #[arg(long, conflicts_with_all = [
        "files", "recogniser", "format", "output", "embeddings", "speakers", "timing",
    ])]
    list: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: OutputFormat,
    /// Output file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the embedding of each label, if the recogniser computes one and the format can hold it
    #[arg(long)]
    embeddings: bool,
    /// File of enrolled voices, for recognisers of speakers [default: that of `millpond speakers`]
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    speakers: Option<PathBuf>,
    /// Use the running server at this HTTP address
    #[arg(long, value_name = "URL", conflicts_with_all = [
        "recognisers", "threads", "cores", "intra_op", "onnxruntime", "libtorch", "cache_dir",
        "list",
    ])]
    url: Option<String>,
    /// Write processing times and, separately, the loading time as JSON
    #[arg(long, value_name = "FILE")]
    timing: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Formats of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// Columns for reading
    Table,
    /// One document with labels, scores and faults; a list of documents for several recordings
    Json,
    /// Comma-separated values with a header
    Csv,
    /// Subtitles, for one recording
    Srt,
    /// NIST's format for speech and speakers
    Rttm,
    /// A label track for Audacity, for one recording
    Audacity,
}

impl From<OutputFormat> for audio::write::LabelFormat {
    fn from(format: OutputFormat) -> audio::write::LabelFormat {
        match format {
            OutputFormat::Table => audio::write::LabelFormat::Table,
            OutputFormat::Json => audio::write::LabelFormat::Json,
            OutputFormat::Csv => audio::write::LabelFormat::Csv,
            OutputFormat::Srt => audio::write::LabelFormat::Srt,
            OutputFormat::Rttm => audio::write::LabelFormat::Rttm,
            OutputFormat::Audacity => audio::write::LabelFormat::Audacity,
        }
    }
}

/// Recognises every file, or lists the recognisers.
///
/// # Errors
/// Returns an error if nothing can be started, and a silent one with code 1 if a file failed or was
/// read only in part.
pub(crate) fn run(args: &AudioCommand) -> CommandResult {
    let name = match (&args.recogniser, args.list) {
        (Some(name), false) => name,
        _ => return list(&args.directory),
    };
    if let Some(path) = &args.timing {
        recognise::check_timing(path, args.output.as_deref())?;
    }
    if args.url.is_none() {
        allocator::restart_frugally(args.engine.threads);
    }
    let mut output = LabelOutput::open(args.output.as_deref(), args.format.into(), &args.files)?;
    args.engine.prepare()?;
    let mut source = match &args.url {
        Some(url) => Backend::server(url, name, args.embeddings)?,
        None => {
            let opened = args.engine.open(&args.directory, name)?;
            let speakers = recognise::speakers(&opened.recogniser, args.speakers.as_deref())?;
            Backend::Local {
                options: opened.options(args.embeddings, speakers),
                opened: Box::new(opened),
            }
        }
    };
    let mut done: Vec<FileResult> = Vec::with_capacity(args.files.len());
    for file in &args.files {
        done.push(recognise::recognise_file(&mut source, file, &mut output)?);
    }
    output.close()?;
    if let Some(path) = &args.timing {
        recognise::write_timing(path, source.load(), &done)?;
    }
    if done.iter().all(FileResult::is_whole) {
        Ok(())
    } else {
        Err(CommandError::silent(ExitStatus::Failed))
    }
}

fn list(directory: &RecogniserDirArgs) -> CommandResult {
    let mut table = TextTable::left(&["NAME", "TITLE", "KIND", "RATE"]);
    for found in directory.all()? {
        match audio::recogniser::Recogniser::parse(&found.name, &found.text) {
            Ok(recogniser) => table.row([
                found.name,
                recogniser.title.clone(),
                format!("{:?}", recogniser.kind).to_lowercase(),
                format!("{} Hz", recogniser.rate),
            ]),
            // An invalid section does not hide the other recognisers.
            Err(error) => {
                table.row([found.name, error.message().to_owned(), "-".into(), "-".into()])
            }
        }
    }
    print(&table.to_string())
}
