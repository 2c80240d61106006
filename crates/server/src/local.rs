//! The same composition without doors: models and workers inside one program, for recordings from
//! files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use api_audio::{ServedModel, find_recogniser};
use audio::recogniser::Recogniser;
use base::{Error, Result};
use lifecycle::{LifecycleState, ModelStatus};

use crate::config::Config;
use crate::core::Core;

/// Time between two looks at what is being loaded.
const LOOK: Duration = Duration::from_millis(50);

/// Models that are served to this program alone; stopped when dropped. What [`Local::recogniser`]
/// gave should be dropped before: a model that is still held is waited for.
pub struct Local {
    core: Core,
}

impl Local {
    /// Starts the workers, loads the models of `config` and waits until all serve. Doors and audio
    /// limits are not used. `progress` is told a line, such as "vad: loading", when something has
    /// changed.
    ///
    /// # Errors
    /// A model's own reason where one fails, `NotFound` where there is none, `DeadlineExceeded`
    /// after `timeout`; those of the engines' libraries.
    pub fn open(
        config: &Config,
        timeout: Duration,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Local> {
        let mut config = config.clone();
        config.plan_threads()?;
        let local = Local { core: Core::compose_lazily(&config)? };
        local.wait(timeout, progress)?;
        Ok(local)
    }

    fn wait(&self, timeout: Duration, progress: &mut dyn FnMut(&str)) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut told = BTreeMap::new();
        loop {
            let settled = self.core.lifecycle.wait_settled(LOOK);
            let statuses = self.core.lifecycle.status();
            for (key, line) in statuses.iter().flat_map(lines) {
                if told.get(&key) != Some(&line) {
                    progress(&line);
                    told.insert(key, line);
                }
            }
            if let Some(error) = statuses.iter().find_map(failure) {
                return Err(error);
            }
            if settled {
                return statuses.iter().find(|status| !status.ready()).map_or(Ok(()), |status| {
                    Err(Error::not_found(format!(
                        "model \"{}\" has no version that can be loaded",
                        status.name
                    )))
                });
            }
            if Instant::now() > deadline {
                let text = format!("the models are not loaded after {} s", timeout.as_secs_f32());
                return Err(Error::deadline(text));
            }
        }
    }

    /// The models that serve, sorted.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.core.lifecycle.catalog().names()
    }

    /// Inference threads.
    pub fn workers(&self) -> usize {
        self.core.scheduler.workers()
    }

    /// A recogniser and the model that it runs. Runs that wait are dropped when `stop` is set,
    /// which should be the flag that also stops the pipeline. From now on the calling thread, which
    /// should be the pipeline's, takes its core in short turns: workers that wait for their next
    /// run would otherwise wait for each other's turns as well.
    ///
    /// # Errors
    /// `NotFound` for a model that is not served or is no recogniser, `FailedPrecondition` where
    /// its section `[recogniser]` is wrong or does not fit the model.
    pub fn recogniser(
        &self,
        name: &str,
        stop: &Arc<AtomicBool>,
    ) -> Result<(Recogniser, Arc<dyn audio::AudioModel>)> {
        if let Err(error) = os::thread::set_short_turns() {
            tracing::debug!(%error, "the pipeline waits for whole turns");
        }
        let (recogniser, servable) = find_recogniser(self.core.lifecycle.catalog(), name)?;
        let model = ServedModel::new(self.core.scheduler.clone(), servable, stop.clone());
        Ok((recogniser, Arc::new(model)))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.core.scheduler.shutdown();
        self.core.lifecycle.shutdown();
    }
}

/// What there is to tell of a model: a line a version.
fn lines(status: &ModelStatus) -> Vec<((Arc<str>, u64), String)> {
    let line = |version: &lifecycle::VersionStatus| {
        let reason = version.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
        let line =
            format!("{}: version {} {}{reason}", status.name, version.version, version.state);
        ((status.name.clone(), version.version), line)
    };
    status.versions.iter().map(line).collect()
}

/// Why a model will not serve.
fn failure(status: &ModelStatus) -> Option<Error> {
    let failed = || status.versions.iter().find(|version| version.state == LifecycleState::Failed);
    let reason = match &status.error {
        Some(error) => error.clone(),
        None if status.ready() => return None,
        None => failed()?.reason.clone().unwrap_or_else(|| "it cannot be loaded".to_owned()),
    };
    Some(Error::precondition(format!("model \"{}\": {reason}", status.name)))
}
