//! `millpond audio`: recordings through a recogniser, in this process or by a running server.

mod allocator;
mod cores;
mod exchange;
mod lines;
pub(crate) mod model;
mod output;
pub(crate) mod place;
mod progress;
pub(crate) mod work;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::exit::{Exit, Failure, Outcome, print};
use crate::table::Table;
use model::EngineArgs;
use output::Output;
use place::PlaceArgs;
use work::{Done, Source};

/// `millpond audio FILE...`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  millpond audio meeting.mp3 --recogniser vad
  millpond audio *.wav --recogniser notes --format csv --output notes.csv
  ffmpeg -i film.mkv -f wav - | millpond audio - --recogniser vad --format srt
  millpond audio --list

Exit status 1 means that a file failed or could be read only in part. What was recognised is kept; standard error, and \
formats that have a place for it, say what is wrong and where.")]
pub(crate) struct AudioArgs {
    /// Recordings (wav, flac, mp3, ogg, m4a); - is standard input
    #[arg(value_name = "FILE", required_unless_present = "list")]
    files: Vec<PathBuf>,
    /// What to recognise with
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    recogniser: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// List the recognisers and end
    #[arg(long, conflicts_with_all = ["files", "recogniser"])]
    list: bool,
    /// How labels are written
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Where labels are written [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the embedding of each label, for recognisers that give one and formats that have a place for it
    #[arg(long)]
    embeddings: bool,
    /// Enrolled voices, for recognisers of speakers [default: what `millpond speakers` uses]
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    speakers: Option<PathBuf>,
    /// Let a running server recognise, at this HTTP address
    #[arg(long, value_name = "URL", conflicts_with_all = ["recognisers", "threads", "cores", "intra_op", "list"])]
    url: Option<String>,
    /// Write how long it took, loading apart, as JSON
    #[arg(long, value_name = "FILE")]
    timing: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// How labels are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns for people
    Table,
    /// A document with labels, scores and faults; of several recordings, a list of them
    Json,
    /// Comma-separated values with a head
    Csv,
    /// Subtitles of one recording
    Srt,
    /// NIST's format for speech and speakers
    Rttm,
    /// A label track for Audacity, of one recording
    Audacity,
}

impl From<Format> for audio::write::LabelFormat {
    fn from(format: Format) -> audio::write::LabelFormat {
        match format {
            Format::Table => audio::write::LabelFormat::Table,
            Format::Json => audio::write::LabelFormat::Json,
            Format::Csv => audio::write::LabelFormat::Csv,
            Format::Srt => audio::write::LabelFormat::Srt,
            Format::Rttm => audio::write::LabelFormat::Rttm,
            Format::Audacity => audio::write::LabelFormat::Audacity,
        }
    }
}

/// Recognises every file, or lists the recognisers.
///
/// # Errors
/// A failure when nothing can be started; a silent one with code 1 when a file failed or is there only in part.
pub(crate) fn run(args: &AudioArgs) -> Outcome {
    let name = match (&args.recogniser, args.list) {
        (Some(name), false) => name,
        _ => return list(&args.place),
    };
    if args.url.is_none() {
        allocator::restart_frugally(args.engine.threads);
    }
    let mut output = Output::open(args.output.as_deref(), args.format.into(), &args.files)?;
    args.engine.prepare()?;
    let mut source = match &args.url {
        Some(url) => Source::server(url, name, args.embeddings)?,
        None => {
            let opened = args.engine.open(&args.place, name)?;
            let speakers = work::speakers(&opened.recogniser, args.speakers.as_deref())?;
            Source::Here { options: opened.options(args.embeddings, speakers), opened: Box::new(opened) }
        }
    };
    let mut done: Vec<Done> = Vec::with_capacity(args.files.len());
    for file in &args.files {
        done.push(work::recognise(&mut source, file, &mut output)?);
    }
    output.close()?;
    if let Some(path) = &args.timing {
        work::write_timing(path, source.load(), &done)?;
    }
    if done.iter().all(Done::is_whole) { Ok(()) } else { Err(Failure::silent(Exit::Failed)) }
}

fn list(place: &PlaceArgs) -> Outcome {
    let mut table = Table::new(["NAME", "TITLE", "KIND", "RATE"]);
    for found in place.all()? {
        match audio::recogniser::Recogniser::parse(&found.name, &found.text) {
            Ok(recogniser) => table.row([
                found.name,
                recogniser.title.clone(),
                format!("{:?}", recogniser.kind).to_lowercase(),
                format!("{} Hz", recogniser.rate),
            ]),
            // One that is described wrongly does not hide the others.
            Err(error) => table.row([found.name, error.message().to_owned(), "-".into(), "-".into()]),
        }
    }
    print(&table.text())
}
