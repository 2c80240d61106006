//! `millpond speakers`: manages enrolled voices and identifies speakers.

use std::path::{Path, PathBuf};

use audio::pipeline;
use audio::recogniser::RecogniserKind;
use audio::speakers::Speakers;
use clap::{Args, Subcommand};
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, ExitStatus, print, print_note};
use command_line::recording;
use loadgen::report::TextTable;

use crate::audio::model::{EngineArgs, LoadedRecogniser};
use crate::audio::recognisers::RecogniserDirArgs;

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
/// Returns an error for a faulty model or recording, and a silent one with
/// [`ExitStatus::Wrong`] if the voice is not the speaker's.
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
            enrol(&speakers, name, files, |recording| embed(&opened, recording))?;
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

/// Adds the voice of each of `files` to the voice of `name`. If a recording has no embedding, none
/// is added. A recording that was added before it would count twice after the command is repeated.
fn enrol(
    speakers: &Speakers,
    name: &str,
    files: &[PathBuf],
    embed: impl Fn(&Path) -> CommandResult<Vec<f32>>,
) -> CommandResult {
    let embeddings: Vec<Vec<f32>> =
        files.iter().map(|file| embed(file)).collect::<CommandResult<_>>()?;
    for embedding in &embeddings {
        speakers.enrol(name, embedding)?;
    }
    Ok(())
}

fn identify(args: &SpeakersArgs, speakers: &Speakers, files: &[PathBuf]) -> CommandResult {
    if speakers.names().is_empty() {
        return Err(CommandError::failed("no voice is enrolled")
            .hint("millpond speakers enrol NAME FILE..."));
    }
    let opened = open(args)?;
    let threshold = opened.recogniser.threshold().unwrap_or(THRESHOLD);
    let found = nearest_speakers(speakers, threshold, files, |file| embed(&opened, file))?;
    if found.identified > 0 {
        print(&found.table.to_string())?;
    }
    if found.failed > 0 { Err(CommandError::silent(ExitStatus::Failed)) } else { Ok(()) }
}

/// Nearest speakers of several recordings.
struct NearestSpeakers {
    /// One row for each recording that has an embedding.
    table: TextTable,
    identified: usize,
    /// Number of recordings without an embedding. Standard error has the reason of each.
    failed: usize,
}

/// Finds the nearest enrolled speaker of each of `files`. If a recording has no embedding, prints
/// the error and continues with the others.
///
/// # Errors
/// Returns an error if the embeddings are not those of the recogniser that enrolled the speakers.
fn nearest_speakers(
    speakers: &Speakers,
    threshold: f32,
    files: &[PathBuf],
    embed: impl Fn(&Path) -> CommandResult<Vec<f32>>,
) -> CommandResult<NearestSpeakers> {
    let table = TextTable::left(&["FILE", "SPEAKER", "SIMILARITY"]);
    let mut found = NearestSpeakers { table, identified: 0, failed: 0 };
    for file in files {
        let embedding = match embed(file) {
            Ok(embedding) => embedding,
            Err(error) => {
                error.print_to_stderr();
                found.failed += 1;
                continue;
            }
        };
        speakers.check_dimension(&embedding)?;
        let Some((name, similarity)) = speakers.nearest(&embedding) else { continue };
        let who = if similarity >= threshold { name } else { format!("unknown (nearest: {name})") };
        found.table.row([file.display().to_string(), who, format!("{similarity:.3}")]);
        found.identified += 1;
    }
    Ok(found)
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
    let (input, hint) = recording::open(file)?;
    let options = opened.options(false, None);
    let named = |error: base::Error| {
        CommandError::failed(format!("{}: {}", file.display(), error.message()))
    };
    let embedding =
        pipeline::embed(input, hint.as_deref(), &opened.recogniser, &opened.model, &options)
            .map_err(named)?;
    if embedding.summary.partial {
        print_note(&format!("warning: {}: only a part of it could be used", file.display()));
    }
    Ok(embedding.vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Embeds `a.wav` and `b.wav`; no other file can be read.
    fn fake_embed(file: &Path) -> CommandResult<Vec<f32>> {
        match file.to_str() {
            Some("a.wav") => Ok(vec![1.0, 0.0]),
            Some("b.wav") => Ok(vec![0.0, 1.0]),
            _ => Err(CommandError::failed(format!("{}: not a recording", file.display()))),
        }
    }

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn a_damaged_recording_enrols_none() {
        let speakers = Speakers::in_memory();
        let error = enrol(&speakers, "alice", &paths(&["a.wav", "x.wav"]), fake_embed).unwrap_err();
        assert_eq!(error.message(), "x.wav: not a recording");
        assert!(speakers.names().is_empty());
        enrol(&speakers, "alice", &paths(&["a.wav", "b.wav"]), fake_embed).unwrap();
        let similarity = speakers.similarity("alice", &[1.0, 0.0]).unwrap();
        assert!((similarity - 0.5_f32.sqrt()).abs() < 1e-6, "{similarity}");
    }

    #[test]
    fn a_damaged_recording_does_not_stop_others() {
        let speakers = Speakers::in_memory();
        enrol(&speakers, "alice", &paths(&["a.wav"]), fake_embed).unwrap();
        let files = paths(&["x.wav", "a.wav", "b.wav"]);
        let found = nearest_speakers(&speakers, 0.75, &files, fake_embed).unwrap();
        assert_eq!((found.identified, found.failed), (2, 1));
        let text = found.table.to_string();
        assert!(text.contains("a.wav  alice"), "{text}");
        assert!(text.contains("b.wav  unknown (nearest: alice)"), "{text}");
    }
}
