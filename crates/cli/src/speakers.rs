//! `millpond speakers`: manages enrolled voices and identifies speakers.

use std::path::{Path, PathBuf};

use audio::pipeline;
use audio::recogniser::RecogniserKind;
use audio::speakers::Speakers;
use clap::{Args, Subcommand};
use loadgen::report::TextTable;

use crate::audio::model::{EngineArgs, LoadedRecogniser};
use crate::audio::recognise;
use crate::audio::recognisers::RecogniserDirArgs;
use crate::environment;
use crate::exit::{CommandError, CommandResult, ExitStatus, print};

/// Minimum similarity of a known voice, if the recogniser sets none.
const THRESHOLD: f32 = 0.6;

/// `millpond speakers ACTION`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  millpond speakers enrol alice alice-1.wav alice-2.wav
  millpond speakers identify unknown.wav
  millpond audio meeting.mp3 --recogniser voiceprint --format rttm

Exit status of verify: 0 if the voice is that speaker's; 4 if it is not; 1, 2 or 3 if the command failed.")]
pub(crate) struct SpeakersArgs {
    #[command(subcommand)]
    action: SpeakersAction,
    /// Recogniser that computes embeddings of voices
    #[arg(long, value_name = "NAME", default_value = "voiceprint", global = true)]
    recogniser: String,
    #[command(flatten)]
    directory: GlobalRecogniserDirArgs,
    /// File of enrolled voices [default: millpond/speakers.json in the user's data directory]
    #[arg(long, value_name = "FILE", global = true)]
    speakers: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// [`RecogniserDirArgs`] that is accepted after the subcommand too.
#[derive(Args, Clone, Debug)]
struct GlobalRecogniserDirArgs {
    /// Directory of recognisers [default: .cache/recognisers in or above the current directory or
    /// this program's, else the Python package millpond-recognisers]
    #[arg(long, value_name = "DIR", global = true)]
    recognisers: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum SpeakersAction {
    /// List the enrolled speakers
    List,
    /// Add recordings of a speaker's voice
    Enrol {
        /// Name of the speaker
        name: String,
        /// Recordings of this speaker alone
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Remove a speaker
    Remove {
        /// Name of the speaker
        name: String,
    },
    /// Identify the enrolled speaker of each recording
    Identify {
        /// Recordings
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Check that a recording is of a speaker
    Verify {
        /// Name of the expected speaker
        name: String,
        /// The recording
        file: PathBuf,
    },
}

/// Runs `millpond speakers`.
///
/// # Errors
/// Returns an error for a faulty model or recording, and a silent one with code 1 if the voice is
/// not the speaker's.
pub(crate) fn run(args: &SpeakersArgs) -> CommandResult {
    let file = args.speakers.clone().or_else(environment::speakers_file).ok_or_else(|| {
        CommandError::usage("there is no home directory to keep voices in; give --speakers FILE")
    })?;
    let speakers = Speakers::open(&file)?;
    match &args.action {
        SpeakersAction::List => {
            print(&speakers.names().iter().map(|name| format!("{name}\n")).collect::<String>())
        }
        SpeakersAction::Enrol { name, files } => {
            let opened = open(args)?;
            for recording in files {
                speakers.enrol(name, &embed(&opened, recording)?)?;
            }
            print(&format!(
                "enrolled {name} with {} recordings in {}\n",
                files.len(),
                file.display()
            ))
        }
        SpeakersAction::Remove { name } => {
            if speakers.remove(name)? {
                print(&format!("removed {name}\n"))
            } else {
                Err(CommandError::failed(format!(
                    "\"{name}\" is not enrolled in {}",
                    file.display()
                )))
            }
        }
        SpeakersAction::Identify { files } => identify(args, &speakers, files),
        SpeakersAction::Verify { name, file } => {
            if verify(args, &speakers, name, file)? {
                Ok(())
            } else {
                Err(CommandError::silent(ExitStatus::Wrong))
            }
        }
    }
}

fn identify(args: &SpeakersArgs, speakers: &Speakers, files: &[PathBuf]) -> CommandResult {
    if speakers.names().is_empty() {
        return Err(CommandError::failed("no voice is enrolled")
            .hint("millpond speakers enrol NAME FILE..."));
    }
    let opened = open(args)?;
    let threshold = opened.recogniser.threshold().unwrap_or(THRESHOLD);
    let mut table = TextTable::left(&["FILE", "SPEAKER", "SIMILARITY"]);
    for file in files {
        let embedding = embed(&opened, file)?;
        speakers.check_dimension(&embedding)?;
        let Some((name, similarity)) = speakers.nearest(&embedding) else { continue };
        let who = if similarity >= threshold { name } else { format!("unknown (nearest: {name})") };
        table.row([file.display().to_string(), who, format!("{similarity:.3}")]);
    }
    print(&table.to_string())
}

/// Returns true, and prints "yes", if the voice in `file` is `name`'s.
fn verify(
    args: &SpeakersArgs,
    speakers: &Speakers,
    name: &str,
    file: &Path,
) -> CommandResult<bool> {
    let unknown = || CommandError::failed(format!("\"{name}\" is not enrolled"));
    if !speakers.names().iter().any(|other| other == name) {
        return Err(unknown());
    }
    let opened = open(args)?;
    let embedding = embed(&opened, file)?;
    speakers.check_dimension(&embedding)?;
    let similarity = speakers.similarity(name, &embedding).ok_or_else(unknown)?;
    let same = similarity >= opened.recogniser.threshold().unwrap_or(THRESHOLD);
    print(&format!(
        "{}: {} (similarity {similarity:.3})\n",
        if same { "yes" } else { "no" },
        file.display()
    ))?;
    Ok(same)
}

fn open(args: &SpeakersArgs) -> CommandResult<LoadedRecogniser> {
    args.engine.prepare()?;
    let directory = RecogniserDirArgs { recognisers: args.directory.recognisers.clone() };
    let opened = args.engine.open(&directory, &args.recogniser)?;
    if opened.recogniser.kind != RecogniserKind::Embeddings {
        return Err(CommandError::usage(format!(
            "recogniser \"{}\" makes no embeddings of voices; give --recogniser NAME of one that does",
            args.recogniser
        )));
    }
    Ok(opened)
}

/// Computes the voice embedding of a recording, a unit vector.
fn embed(opened: &LoadedRecogniser, file: &Path) -> CommandResult<Vec<f32>> {
    let (input, hint) = recognise::open(file)?;
    let options = opened.options(false, None);
    let named = |error: base::Error| {
        CommandError::failed(format!("{}: {}", file.display(), error.message()))
    };
    let embedding =
        pipeline::embed(input, hint.as_deref(), &opened.recogniser, &opened.model, &options)
            .map_err(named)?;
    if embedding.summary.partial {
        eprintln!("warning: {}: only a part of it could be used", file.display());
    }
    Ok(embedding.vector)
}
