//! Settings of all models: batching, threads, warm-up and tags, from flags or a platform's file.

use std::path::Path;

use engine::ScheduleOptions;
use lifecycle::ModelConfig;
use protocol::tensorflow::ConfigProto;
use protocol::tensorflow::serving as pb;

use super::batching::{self, ConvertedBatching};
use super::flags::Flags;
use super::platform::{self, SessionThreads};
use crate::{ImportError, text};

/// Flags whose settings `--platform_config_file` has too.
const PLATFORM_FLAGS: [&str; 10] = [
    "enable_batching",
    "batching_parameters_file",
    "enable_per_model_batching_parameters",
    "tensorflow_session_parallelism",
    "tensorflow_session_config_file",
    "tensorflow_intra_op_parallelism",
    "tensorflow_inter_op_parallelism",
    "saved_model_tags",
    "enable_model_warmup",
    "num_request_iterations_for_warmup",
];
/// Maximum number of threads that warm a version up.
const WARMUP_THREADS_MAX: usize = 256;

/// Settings of all models.
#[derive(Default)]
pub struct SessionSettings {
    batching: Option<pb::BatchingParameters>,
    /// File of `batching`; empty without one.
    batching_file: String,
    /// True to read batching parameters beside the files of versions.
    pub per_model: bool,
    threads: SessionThreads,
    warmup: bool,
    iterations: Option<u32>,
    warmup_threads: Option<u32>,
    tags: Vec<String>,
    notes: Vec<String>,
}

impl SessionSettings {
    /// Takes the settings of `--platform_config_file`, or else those of the other flags, and reads
    /// the files that the flags name.
    ///
    /// # Errors
    /// Returns an error that names the flag, or the file with the line.
    pub fn read(flags: &Flags) -> Result<SessionSettings, ImportError> {
        match flags.text("platform_config_file") {
            Some(path) => {
                let mut settings = SessionSettings::of_platform(Path::new(path))?;
                let unused = flags.unused(&PLATFORM_FLAGS, "with --platform_config_file");
                settings.notes.extend(unused);
                Ok(settings)
            }
            None => SessionSettings::of_flags(flags),
        }
    }

    /// Reads the settings of sessions from flags, and the file of batching parameters that they
    /// name.
    fn of_flags(flags: &Flags) -> Result<SessionSettings, ImportError> {
        let mut settings = SessionSettings {
            warmup: flags.bool("enable_model_warmup").unwrap_or(true),
            iterations: positive(flags.int("num_request_iterations_for_warmup").unwrap_or(0)),
            tags: flags
                .text("saved_model_tags")
                .unwrap_or("serve")
                .split(',')
                .map(str::to_owned)
                .collect(),
            ..SessionSettings::default()
        };
        let file = flags.text("batching_parameters_file");
        if flags.bool("enable_batching") == Some(true) {
            let read = |path| text::read(Path::new(path));
            settings.batching = Some(file.map(read).transpose()?.unwrap_or_default());
            settings.batching_file = file.unwrap_or_default().to_owned();
            settings.per_model =
                flags.bool("enable_per_model_batching_parameters").unwrap_or(false);
        } else if file.is_some() {
            return Err(ImportError::usage(
                "--batching_parameters_file is set without setting --enable_batching to true",
            ));
        } else if flags.bool("enable_per_model_batching_parameters") == Some(true) {
            settings.notes.push(
                "--enable_per_model_batching_parameters has no effect without --enable_batching"
                    .to_owned(),
            );
        }
        if let Some(path) = flags.text("tensorflow_session_config_file") {
            let config: ConfigProto = text::read(Path::new(path))?;
            let (threads, note) = SessionThreads::of(&config);
            settings.threads = threads;
            settings.notes.extend(note.map(|note| format!("{path}: {note}")));
        }
        settings.thread_flags(flags)?;
        Ok(settings)
    }

    /// Takes the flags of threads, which win over the file of a session.
    fn thread_flags(&mut self, flags: &Flags) -> Result<(), ImportError> {
        let number = |name| flags.int(name).unwrap_or(0).max(0);
        let session = number("tensorflow_session_parallelism");
        let intra_op = number("tensorflow_intra_op_parallelism");
        let inter_op = number("tensorflow_inter_op_parallelism");
        match (intra_op > 0 || inter_op > 0, session > 0) {
            (true, true) if intra_op > 0 && inter_op > 0 => Err(ImportError::usage(
                "give either --tensorflow_session_parallelism or --tensorflow_intra_op_parallelism and \
                 --tensorflow_inter_op_parallelism, not all",
            )),
            (true, _) => {
                self.threads = SessionThreads { intra_op, inter_op };
                Ok(())
            }
            (false, true) => {
                self.threads = SessionThreads { intra_op: session, inter_op: session };
                Ok(())
            }
            (false, false) => Ok(()),
        }
    }

    fn of_platform(path: &Path) -> Result<SessionSettings, ImportError> {
        let bundle = platform::read(path)?;
        let mut notes = platform::without_effect(&bundle);
        let (threads, note) = SessionThreads::of(&bundle.session_config.unwrap_or_default());
        notes.extend(note);
        let warmup = bundle.model_warmup_options.unwrap_or_default();
        Ok(SessionSettings {
            per_model: bundle.enable_per_model_batching_params
                && bundle.batching_parameters.is_some(),
            batching: bundle.batching_parameters,
            batching_file: path.display().to_string(),
            threads,
            warmup: bundle.enable_model_warmup,
            iterations: positive(warmup.num_request_iterations.unwrap_or(0).into()),
            warmup_threads: positive(warmup.num_model_warmup_threads.unwrap_or(0).into()),
            tags: bundle.saved_model_tags,
            notes: notes.iter().map(|note| format!("{}: {note}", path.display())).collect(),
        })
    }

    /// Sets the settings of all models in `template`. `threads` is the number of inference threads.
    ///
    /// # Errors
    /// Returns an error for batching parameters that TensorFlow Serving refuses too.
    pub fn apply(
        &mut self,
        template: &mut ModelConfig,
        threads: usize,
        warnings: &mut Vec<String>,
    ) -> Result<(), ImportError> {
        if let Some(parameters) = &self.batching {
            let file = &self.batching_file;
            let ConvertedBatching { schedule, notes } =
                batching::convert(parameters, threads).map_err(|error| error.context(file))?;
            template.schedule = ScheduleOptions { weight: template.schedule.weight, ..schedule };
            self.notes.extend(notes.iter().map(|note| format!("{file}: {note}")));
        }
        template.warmup.enabled = self.warmup;
        template.warmup.iterations = self.iterations;
        if let Some(count) = self.warmup_threads {
            template.warmup.threads = (count as usize).min(WARMUP_THREADS_MAX);
        }
        let mut set = |name: &str, wanted: i64, threads_of: &mut usize| {
            let Some(wanted) = usize::try_from(wanted).ok().filter(|wanted| *wanted > 0) else {
                return;
            };
            *threads_of = wanted.min(threads);
            if wanted > threads {
                self.notes.push(format!(
                    "{wanted} {name} threads: the {threads} inference threads bound those of a run"
                ));
            }
        };
        set("intra-op", self.threads.intra_op, &mut template.session.intra_op_threads);
        set("inter-op", self.threads.inter_op, &mut template.session.inter_op_threads);
        if self.tags != ["serve"] {
            template.session.graph_tags.clone_from(&self.tags);
        }
        warnings.append(&mut self.notes);
        Ok(())
    }
}

fn positive(number: i64) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| *number > 0)
}
