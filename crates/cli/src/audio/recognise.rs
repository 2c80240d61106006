//! Recognises recordings one after the other and passes events to output and progress bar.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use audio::decode::AudioInput;
use audio::pipeline::{AudioSummary, PipelineEvent, PipelineOptions};
use audio::recogniser::{Recogniser, RecogniserKind};
use audio::speakers::Speakers;
use audio::{Fault, pipeline};
use base::Result;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, pretty, print_note};
use command_line::recording;
use serde_json::json;

use crate::audio::model::LoadedRecogniser;
use crate::audio::output::{FileLabels, LabelOutput};
use crate::audio::progress::{RecordingBar, clock, factor, summary};
use crate::audio::streaming::StreamingClient;

/// Maximum number of faults printed to standard error per recording. The output has all of them.
const FAULTS_SHOWN_MAX: u64 = 20;

/// Process that runs the recogniser.
pub(crate) enum Backend {
    /// Recognition in this process.
    Local { opened: Box<LoadedRecogniser>, options: PipelineOptions },
    /// Recognition by a running server.
    Server(StreamingClient),
}

/// Result of one recording.
pub(crate) struct FileResult {
    name: String,
    summary: AudioSummary,
    /// Time from its first byte to its last label.
    work: Duration,
    /// Processor time during `work`, in seconds.
    cpu_s: f64,
    /// The error that ended it early.
    error: Option<String>,
}

impl FileResult {
    /// Returns true if the recording was recognised completely.
    pub(crate) fn is_whole(&self) -> bool {
        self.error.is_none() && !self.summary.partial
    }
}

impl Backend {
    /// Returns a backend for the server at `url`.
    ///
    /// # Errors
    /// Returns a usage error for an address that is not `http://HOST[:PORT]`.
    pub(crate) fn server(url: &str, recogniser: &str, embeddings: bool) -> CommandResult<Backend> {
        let client = StreamingClient::new(url, recogniser, embeddings)?;
        client.with_key(environment::client_key(None)).map(Backend::Server)
    }

    /// Returns the loading time of a local recogniser.
    pub(crate) fn load(&self) -> Option<Duration> {
        match self {
            Backend::Local { opened, .. } => Some(opened.load),
            Backend::Server(_) => None,
        }
    }

    fn recognise(
        &mut self,
        input: AudioInput,
        hint: Option<&str>,
        sink: &mut dyn FnMut(PipelineEvent) -> Result<()>,
    ) -> Result<AudioSummary> {
        match self {
            Backend::Local { opened, options } => {
                pipeline::recognise(input, hint, &opened.recogniser, &opened.model, options, sink)
            }
            Backend::Server(exchange) => exchange.recognise(input, hint, sink),
        }
    }
}

/// Opens the enrolled voices for a recogniser of speakers: the file `given`, else the default file.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(crate) fn speakers(
    recogniser: &Recogniser,
    given: Option<&Path>,
) -> CommandResult<Option<Speakers>> {
    if recogniser.kind != RecogniserKind::Embeddings {
        return match given {
            Some(_) => Err(CommandError::usage("--speakers is for recognisers of speakers")),
            None => Ok(None),
        };
    }
    let file = given.map(Path::to_owned).or_else(environment::speakers_file);
    Ok(file.map(|file| Speakers::open(&file)).transpose()?)
}

/// Recognises one recording. An error of the recording is part of the result.
///
/// # Errors
/// Returns an error if the output cannot be written, since all other recordings would fail too.
pub(crate) fn recognise_file(
    source: &mut Backend,
    file: &Path,
    output: &mut LabelOutput,
) -> CommandResult<FileResult> {
    let name = file.display().to_string();
    let started = Instant::now();
    let cpu_before = cpu_seconds();
    let mut progress = FileProgress {
        bar: RecordingBar::new(&name),
        name: name.clone(),
        seen: AudioSummary::default(),
    };
    let mut part: Option<FileLabels<'_>> = None;
    let mut output = Some(output);
    let result = recording::open(file).and_then(|(input, hint)| {
        source.recognise(input, hint.as_deref(), &mut |event| {
            progress.see(&event);
            // A recording that cannot be opened adds nothing to the output.
            if let Some(output) = output.take() {
                part = Some(output.begin(&name)?);
            }
            part.as_mut().map_or(Ok(()), |part| part.event(&event))
        })
    });
    let work = started.elapsed();
    let cpu_s = cpu_seconds() - cpu_before;
    let FileProgress { bar, mut seen, .. } = progress;
    bar.finish();
    let error = match result {
        Ok(summary) => {
            seen = summary;
            None
        }
        Err(error) => {
            seen.partial = true;
            seen.faults += 1;
            // An error of opening the file names it, and so does the report.
            let text = error.message();
            Some(text.strip_prefix(&format!("{name}: ")).unwrap_or(text).to_owned())
        }
    };
    if let Some(part) = part {
        finish(part, &seen, error.as_deref())?;
    } else if let (Some(output), None) = (output, &error) {
        output.begin(&name)?.finish(&seen)?;
    }
    let done = FileResult { name, summary: seen, work, cpu_s, error };
    done.report();
    Ok(done)
}

/// Ends the output of a recording. An error becomes its last fault.
fn finish(mut part: FileLabels<'_>, seen: &AudioSummary, error: Option<&str>) -> CommandResult {
    if let Some(error) = error {
        part.event(&PipelineEvent::Fault(Fault { at: seen.seconds, what: error.to_owned() }))?;
    }
    Ok(part.finish(seen)?)
}

/// The progress bar, and the counts so far in case the work ends early.
struct FileProgress {
    bar: RecordingBar,
    name: String,
    seen: AudioSummary,
}

impl FileProgress {
    /// Shows an event, and counts labels and faults.
    fn see(&mut self, event: &PipelineEvent) {
        match event {
            PipelineEvent::Opened(format) => self.bar.show(0.0, format.seconds),
            PipelineEvent::Progress { seconds, total } => {
                self.seen.seconds = *seconds;
                self.bar.show(*seconds, *total);
            }
            PipelineEvent::Label(_) => self.seen.labels += 1,
            PipelineEvent::Fault(fault) => {
                self.seen.faults += 1;
                if self.seen.faults <= FAULTS_SHOWN_MAX {
                    self.bar.line(&format!("warning: {}", fault_text(&self.name, fault)));
                } else if self.seen.faults == FAULTS_SHOWN_MAX + 1 {
                    self.bar.line(&format!("warning: {}: more faults are not shown", self.name));
                }
            }
        }
    }
}

fn fault_text(name: &str, fault: &Fault) -> String {
    format!("{name} at {} ({:.2} s): {}", clock(fault.at), fault.at, fault.what)
}

impl FileResult {
    /// Prints the result to standard error.
    fn report(&self) {
        if let Some(error) = &self.error {
            let kept = match self.summary.labels {
                0 => String::new(),
                labels => {
                    format!("; the {labels} labels up to {} are kept", clock(self.summary.seconds))
                }
            };
            print_note(&format!("error: {}: {error}{kept}", self.name));
            return;
        }
        let work_s = self.work.as_secs_f64();
        print_note(&summary(&self.name, self.summary.seconds, work_s, peak_bytes()));
        if self.summary.partial {
            print_note(&format!(
                "warning: {}: only a part could be recognised; the faults above say where",
                self.name
            ));
        }
    }
}

/// Returns the peak memory of this process in bytes, or 0 if the system does not report it.
fn peak_bytes() -> u64 {
    os::process::memory().map_or(0, |memory| memory.rss_peak)
}

/// Checks that the file of `--timing` is missing, empty, or a file of an earlier call, and not that
/// of `--output`.
///
/// # Errors
/// Returns a usage error for another file, such as a recording: the flag looks like a switch.
pub(crate) fn check_timing(path: &Path, output: Option<&Path>) -> CommandResult {
    if output.is_some_and(|output| is_same_file(path, output)) {
        return Err(CommandError::usage(format!(
            "--timing {}: --output writes the labels to this file; name another",
            path.display()
        )));
    }
    let mut first = Vec::new();
    let is_regular = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    // The write reports a file that cannot be read.
    let read = is_regular.then(|| File::open(path).and_then(|f| f.take(1).read_to_end(&mut first)));
    match read {
        Some(Ok(1..)) if first != b"{" => Err(CommandError::usage(format!(
            "--timing {}: this file exists and has no times; name the file to write",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Returns true if both paths name one regular file, or a file that does not exist yet.
fn is_same_file(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Err(_), Err(_)) => {
            one == other || resolved_path(one).is_some_and(|it| Some(it) == resolved_path(other))
        }
        _ => false,
    }
}

/// Returns the path of a new file, without links and `..` in its directory.
fn resolved_path(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?;
    let directory = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Some(std::fs::canonicalize(directory).ok()?.join(path.file_name()?))
}

/// Writes the file of `--timing`: seconds of work and of each recording, and of loading.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn write_timing(
    path: &Path,
    load: Option<Duration>,
    done: &[FileResult],
) -> CommandResult {
    let files: Vec<_> = done
        .iter()
        .map(|done| {
            json!({
                "file": done.name,
                "audio_s": done.summary.seconds,
                "seconds": done.work.as_secs_f64(),
                "cpu_s": done.cpu_s,
                "real_time_factor": factor(done.work.as_secs_f64(), done.summary.seconds),
                "labels": done.summary.labels,
                "windows": done.summary.windows,
                "faults": done.summary.faults,
                "partial": !done.is_whole(),
                "error": done.error,
            })
        })
        .collect();
    let report = json!({
        "load_s": load.map(|load| load.as_secs_f64()),
        "peak_bytes": peak_bytes(),
        "files": files,
    });
    std::fs::write(path, pretty(&report))
        .map_err(|error| CommandError::failed(format!("--timing {}: {error}", path.display())))
}

/// Returns the processor time of this process in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
