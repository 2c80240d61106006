//! Models and workers inside one program, without listeners, for recordings in files.

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

/// Time between two reads of the models' states.
const STATE_POLL: Duration = Duration::from_millis(50);

/// Models that only this program uses. They stop when this is dropped. Drop the results of
/// [`Local::recogniser`] before, because a model in use delays the stop.
pub struct Local {
    core: Core,
}

impl Local {
    /// Starts the workers, loads the models of `config` and waits until all serve. Listeners and
    /// audio limits are not used. Calls `progress` with a line, such as "vad: loading", at each
    /// change.
    ///
    /// # Errors
    /// The reason of a model that fails. `NotFound` for a model without a version.
    /// `DeadlineExceeded` after `timeout`. Also errors of the engines' libraries.
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

    /// Waits until all models are loaded, and passes each change of a state to `progress`.
    fn wait(&self, timeout: Duration, progress: &mut dyn FnMut(&str)) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut reported = BTreeMap::new();
        loop {
            let settled = self.core.lifecycle.wait_settled(STATE_POLL);
            let statuses = self.core.lifecycle.status();
            for (key, line) in statuses.iter().flat_map(lines) {
                if reported.get(&key) != Some(&line) {
                    progress(&line);
                    reported.insert(key, line);
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

    /// Returns the number of inference threads.
    pub fn workers(&self) -> usize {
        self.core.scheduler.workers()
    }

    /// Returns a recogniser and the model that it runs. Queued runs are dropped once `stop` is set,
    /// which should be the flag that stops the pipeline. The calling thread, which should be the
    /// pipeline's, runs in short time slices from now on. Otherwise workers that wait for their
    /// next run also wait for its long time slices.
    ///
    /// # Errors
    /// Returns the errors of [`find_recogniser`].
    pub fn recogniser(
        &self,
        name: &str,
        stop: &Arc<AtomicBool>,
    ) -> Result<(Recogniser, Arc<dyn audio::AudioModel>)> {
        if let Err(error) = os::thread::set_short_turns() {
            tracing::debug!(%error, "the pipeline keeps long time slices");
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

/// Returns one line per version of a model.
fn lines(status: &ModelStatus) -> Vec<((Arc<str>, u64), String)> {
    let line = |version: &lifecycle::VersionStatus| {
        let reason = version.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
        let line =
            format!("{}: version {} {}{reason}", status.name, version.version, version.state);
        ((status.name.clone(), version.version), line)
    };
    status.versions.iter().map(line).collect()
}

/// Returns the error of a model that will not serve.
fn failure(status: &ModelStatus) -> Option<Error> {
    let failed = || status.versions.iter().find(|version| version.state == LifecycleState::Failed);
    let reason = match &status.error {
        Some(error) => error.clone(),
        None if status.ready() => return None,
        None => failed()?.reason.clone().unwrap_or_else(|| "it cannot be loaded".to_owned()),
    };
    Some(Error::precondition(format!("model \"{}\": {reason}", status.name)))
}
