//! One recogniser in this process. Its model is loaded as a server would load it, without
//! listeners.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use audio::recogniser::Recogniser;
use clap::Args;
use command_line::environment;
use command_line::environment::{library_search, tensorflow_search, torch_search};
use command_line::exit::{CommandError, CommandResult};
use indicatif::{ProgressBar, ProgressDrawTarget};
use lifecycle::ModelConfig;
use server::local::Local;
use server::{
    AudioConfig, Config, DataConfig, ListenerConfig, MemoryConfig, ModelsConfig, SearchConfig,
};

use crate::audio::cores;
use crate::audio::recognisers::{RecogniserDir, RecogniserDirArgs};
use crate::child_process;
use crate::publish;
use crate::serve::worker_command;

/// Longest time for loading a model. A foreign model is converted on its first load.
const LOAD_MAX: Duration = Duration::from_secs(600);
/// Interval between two scans of the model's directory while it loads.
const POLL: Duration = Duration::from_millis(100);
/// Maximum number of threads of one kind.
const THREADS_MAX: usize = 256;
/// Queued runs per inference thread, in addition to the active one, so that no thread waits for the
/// decoder.
const RUNS_PER_THREAD: usize = 2;

/// Threads, cores and libraries that this process uses.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "This machine")]
pub(crate) struct EngineArgs {
    /// Inference threads; each runs the model once at a time [default: one per core]
    #[arg(long, value_name = "N", global = true)]
    pub(crate) threads: Option<usize>,
    /// Maximum number of cores to use, decoding included [default: all]
    #[arg(long, value_name = "N", global = true)]
    pub(crate) cores: Option<usize>,
    /// Threads inside one operator of the model, per run [default: 1]
    #[arg(long, value_name = "N", global = true)]
    pub(crate) intra_op: Option<usize>,
    /// ONNX Runtime's shared library [default: found in a virtual environment, beside the program
    /// or in the system]
    #[arg(long, value_name = "PATH", global = true)]
    onnxruntime: Option<PathBuf>,
    /// Library libmillpond_torch.so, or its directory [default: found in a virtual environment or
    /// beside the program]
    #[arg(long, value_name = "PATH", global = true)]
    libtorch: Option<PathBuf>,
    /// Directory of converted models [default: the user's cache directory]
    #[arg(long, value_name = "DIR", global = true)]
    cache_dir: Option<PathBuf>,
}

/// A recogniser with its loaded model.
pub(crate) struct LoadedRecogniser {
    pub(crate) recogniser: Recogniser,
    pub(crate) model: Arc<dyn audio::AudioModel>,
    /// Stops the work early if set.
    pub(crate) stop: Arc<AtomicBool>,
    /// Loading time.
    pub(crate) load: Duration,
    /// Dropped last, since its drop waits for every holder of a model.
    local: Local,
}

impl EngineArgs {
    /// Checks the numbers and restricts the process to `--cores`. Call it before a thread is
    /// started.
    ///
    /// # Errors
    /// Returns a usage error that names the flag.
    pub(crate) fn prepare(&self) -> CommandResult {
        for (name, value) in [("threads", self.threads), ("intra-op", self.intra_op)] {
            if value.is_some_and(|value| !(1..=THREADS_MAX).contains(&value)) {
                return Err(CommandError::usage(format!("--{name} must be 1 to {THREADS_MAX}")));
            }
        }
        self.cores.map_or(Ok(()), cores::restrict)
    }

    /// Finds and loads the recogniser `name` and the model it uses.
    ///
    /// # Errors
    /// Returns an error with the model's own reason.
    pub(crate) fn open(
        &self,
        directory: &RecogniserDirArgs,
        name: &str,
    ) -> CommandResult<LoadedRecogniser> {
        let started = Instant::now();
        let found = directory.find(name)?;
        let config = self.config(&found)?;
        let waiting = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        waiting.enable_steady_tick(POLL);
        let local =
            Local::open(&config, LOAD_MAX, &mut |line| waiting.set_message(line.to_owned()));
        waiting.finish_and_clear();
        let local = local?;
        let stop = Arc::new(AtomicBool::new(false));
        let (recogniser, model) = local.recogniser(name, &stop)?;
        Ok(LoadedRecogniser { local, recogniser, model, stop, load: started.elapsed() })
    }

    /// Returns the configuration of a server without listeners that has only the recogniser and
    /// its model.
    fn config(&self, found: &RecogniserDir) -> CommandResult<Config> {
        let program = child_process::program()?;
        let model = |name: &str, dir: PathBuf| {
            let mut model = ModelConfig::new(name, dir);
            model.session.intra_op_threads =
                self.intra_op.unwrap_or(model.session.intra_op_threads);
            model
        };
        let mut models = vec![model(&found.name, found.dir.clone())];
        if let Some(other) = found.model.as_deref().filter(|other| *other != found.name) {
            let beside = found.dir.parent().map(|dir| dir.join(other)).unwrap_or_default();
            models.push(model(other, beside));
        }
        let cache_dir = self.cache_dir.clone().unwrap_or_else(environment::cache_dir);
        Ok(Config {
            listeners: ListenerConfig::default(),
            data: DataConfig {
                workers: self.threads.unwrap_or(0),
                oversubscribe: self.threads.is_some(),
                ..DataConfig::default()
            },
            // No client would notice a load, so it is not paced.
            memory: MemoryConfig {
                load_rate: 0,
                fault_rate: 0,
                spare_workers: false,
                ..MemoryConfig::default()
            },
            models: ModelsConfig {
                poll_once: false,
                lists: server::ModelListRules::default(),
                stores: server::StoresConfig::default(),
                updates: server::UpdateSettings::default(),
                models,
                roots: Vec::new(),
                poll: POLL,
                load_threads: 1,
                unload_threads: 1,
                load_retries: 0,
                load_retry_interval: Duration::ZERO,
                load_timeout: lifecycle::LOAD_TIMEOUT_DEFAULT,
                background: false,
                cache_dir: cache_dir.join("converted"),
                converter: publish::converter(&program, None),
                worker: worker_command(
                    &program,
                    self.onnxruntime.as_deref(),
                    self.libtorch.as_deref(),
                    None,
                ),
            },
            onnxruntime: library_search(self.onnxruntime.clone()),
            libtorch: torch_search(self.libtorch.clone()),
            tensorflow: tensorflow_search(None),
            audio: AudioConfig::default(),
            search: SearchConfig::default(),
            cluster: None,
            traces: None,
            log: None,
        })
    }
}

impl LoadedRecogniser {
    /// Returns the options of the pipeline.
    pub(crate) fn options(
        &self,
        embeddings: bool,
        speakers: Option<audio::speakers::Speakers>,
    ) -> audio::pipeline::PipelineOptions {
        let in_flight = self.local.workers().max(1) * RUNS_PER_THREAD;
        let stop = self.stop.clone();
        audio::pipeline::PipelineOptions {
            in_flight,
            embeddings,
            speakers,
            stop,
            ..Default::default()
        }
    }
}
