//! Models that change while the server runs, by a file that is read again and by requests.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::{Error, ErrorKind, Result};
use import::tfs::ModelListRules;
use lifecycle::{AdminCallback, Catalog, ConfigSet, Lifecycle};
use metrics::{KindLabels, Metrics};
use observe::{EventJournal, EventLevel, NewEvent};
use os::{ReloadNotice, ServiceManager};
use parking_lot::Mutex;
use protocol::tensorflow::serving::ModelServerConfig;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::config::ModelsConfig;

/// Longest wait for the models of a new configuration. The loads continue after it.
const APPLY_TIMEOUT: Duration = Duration::from_secs(3600);

/// A configuration of models outside the server, such as a file.
pub trait ConfigSource: Send {
    /// Receives the versions that serve, before each call of [`ConfigSource::poll`].
    fn see_versions(&mut self, _catalog: &Catalog) {}

    /// Returns the models that should be served instead of `current`. Returns `None` if nothing
    /// changed since the last call. `forced` is true after SIGHUP. An unchanged source is then read
    /// too.
    ///
    /// # Errors
    /// The reason why the source cannot be used, with file and line. The models stay as they are.
    fn poll(&mut self, current: &ConfigSet, forced: bool) -> Result<Option<ConfigSet>>;

    /// Notes that the last result of [`ConfigSource::poll`] was not applied. A request has replaced
    /// the models meanwhile, or too many requests wait for the lifecycle. If the source had
    /// changed, the next call reads it again.
    fn not_applied(&mut self);
}

/// A source and the time between two calls of it.
pub struct ConfigWatch {
    /// Source of the configuration, such as a settings file.
    pub source: Box<dyn ConfigSource>,
    /// Time between two calls. `None` waits for SIGHUP.
    pub poll: Option<Duration>,
}

/// Signals that request a reload, and the service manager that is notified of it.
pub(crate) struct ReloadSignal {
    pub(crate) hangups: Signal,
    pub(crate) manager: ServiceManager,
}

/// Outcome of a replacement of the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplaceOutcome {
    /// The lifecycle replaces the models.
    Replaced,
    /// Another replacement came first. Nothing has changed.
    Outdated,
    /// The lifecycle has refused the replacement. Nothing has changed.
    Refused,
}

/// Handle that replaces the models that are served.
pub(crate) struct ModelConfigurator {
    lifecycle: Arc<Lifecycle>,
    metrics: Arc<Metrics>,
    journal: Arc<EventJournal>,
    rules: ModelListRules,
    current: Mutex<Arc<ConfigSet>>,
}

impl ModelConfigurator {
    pub(crate) fn new(
        lifecycle: Arc<Lifecycle>,
        metrics: Arc<Metrics>,
        journal: Arc<EventJournal>,
        config: &ModelsConfig,
    ) -> ModelConfigurator {
        let current = ConfigSet { models: config.models.clone(), roots: config.roots.clone() };
        ModelConfigurator {
            lifecycle,
            metrics,
            journal,
            rules: config.lists.clone(),
            current: Mutex::new(Arc::new(current)),
        }
    }

    /// Returns the models that are served now.
    pub(crate) fn current(&self) -> Arc<ConfigSet> {
        self.current.lock().clone()
    }

    /// Replaces `from` by `to` through `configure`, if `from` is still current. `configure` returns
    /// false if the lifecycle refuses `to`.
    fn replace(
        &self,
        from: &Arc<ConfigSet>,
        to: ConfigSet,
        configure: impl FnOnce(&Lifecycle, ConfigSet) -> bool,
    ) -> ReplaceOutcome {
        let mut current = self.current.lock();
        if !Arc::ptr_eq(&current, from) {
            return ReplaceOutcome::Outdated;
        }
        let replacement = Arc::new(to.clone());
        // Under the lock, so that the lifecycle sees replacements in this order.
        if !configure(&self.lifecycle, to) {
            return ReplaceOutcome::Refused;
        }
        *current = replacement;
        ReplaceOutcome::Replaced
    }

    /// Replaces the named models by a list in TensorFlow Serving's form and waits until each that
    /// is new or changed serves. Roots stay.
    ///
    /// # Errors
    /// The errors of [`ModelListRules`], after which nothing has changed. `FailedPrecondition` if a
    /// model could not be loaded.
    pub(crate) async fn replace_list(&self, config: &ModelServerConfig) -> Result<()> {
        let applied = loop {
            let current = self.current();
            let to = self.list(config, &current).inspect_err(|_| self.count("failed"))?;
            let (sender, receiver) = oneshot::channel();
            let done: AdminCallback = Box::new(move |result| drop(sender.send(result)));
            let configure = |lifecycle: &Lifecycle, set| lifecycle.configure(set, done);
            match self.replace(&current, to, configure) {
                ReplaceOutcome::Outdated => {}
                // After a refusal the receiver has its error.
                ReplaceOutcome::Replaced | ReplaceOutcome::Refused => break receiver,
            }
        };
        let result = match tokio::time::timeout(APPLY_TIMEOUT, applied).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Error::unavailable("the server is shutting down")),
            Err(_) => Err(Error::deadline(
                "it takes longer than an hour and continues; see `millpond models status`",
            )),
        };
        self.count(if result.is_ok() { "ok" } else { "failed" });
        result
    }

    fn list(&self, config: &ModelServerConfig, current: &ConfigSet) -> Result<ConfigSet> {
        let models = self.rules.models(config, &current.models)?;
        self.rules.check_labels(&models, &current.models, self.lifecycle.catalog())?;
        let set = ConfigSet { models, roots: current.roots.clone() };
        set.check()?;
        self.rules.unlogged(config).iter().for_each(|note| tracing::warn!("{note}"));
        Ok(set)
    }

    /// Reads the source of `watch` again in its interval, and at once after SIGHUP. Applies
    /// changes. Returns once `stopped` is true, or if the reader of the source panics.
    pub(crate) async fn follow(
        self: Arc<Self>,
        watch: ConfigWatch,
        mut reloads: ReloadSignal,
        mut stopped: watch::Receiver<bool>,
    ) {
        let ConfigWatch { mut source, poll } = watch;
        loop {
            let pause = async {
                match poll {
                    Some(poll) => tokio::time::sleep(poll).await,
                    None => std::future::pending().await,
                }
            };
            let forced = tokio::select! {
                () = pause => false,
                _ = reloads.hangups.recv() => true,
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            // Until the first load is finished, the service manager would take the end of a reload
            // for the end of the first load.
            let notice =
                (forced && self.lifecycle.settled()).then(|| Arc::new(reloads.manager.reloading()));
            let configurator = self.clone();
            // Files may be on a slow disk.
            let polled = tokio::task::spawn_blocking(move || {
                configurator.poll(&mut *source, forced, notice);
                source
            });
            match polled.await {
                Ok(back) => source = back,
                Err(error) => {
                    tracing::error!(%error, "its reader failed, so the configuration is not read again");
                    return;
                }
            }
        }
    }

    /// Asks `source` once. `notice` lives until its models serve or have failed.
    fn poll(
        self: &Arc<Self>,
        source: &mut dyn ConfigSource,
        mut forced: bool,
        notice: Option<Arc<ReloadNotice>>,
    ) {
        loop {
            let current = self.current();
            source.see_versions(self.lifecycle.catalog());
            let polled = source.poll(&current, forced).and_then(|set| {
                set.as_ref().map_or(Ok(()), ConfigSet::check)?;
                Ok(set)
            });
            let set = match polled {
                Ok(None) => return,
                Ok(Some(set)) => set,
                Err(error) => {
                    let text = "the configuration is wrong; the models stay as they are";
                    return self.failed(text, &error);
                }
            };
            let waiting = self.clone();
            let held = notice.clone();
            let done: AdminCallback = Box::new(move |result: Result<()>| {
                match &result {
                    Ok(()) => {
                        tracing::info!("the new configuration of models is in effect");
                        waiting.count("ok");
                    }
                    Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
                        let text = "the new configuration is not in effect until it is read again";
                        waiting.failed(text, error);
                    }
                    Err(error) => {
                        let text = "the new configuration is in effect, but not all models serve";
                        waiting.failed(text, error);
                    }
                }
                drop(held);
            });
            // All servers of a fleet may follow the same file, so new versions wait for their turn.
            let configure = |lifecycle: &Lifecycle, set| lifecycle.follow_configuration(set, done);
            match self.replace(&current, set, configure) {
                ReplaceOutcome::Replaced => return,
                ReplaceOutcome::Refused => return source.not_applied(),
                ReplaceOutcome::Outdated => source.not_applied(),
            }
            // An unchanged source does not undo the request.
            forced = false;
        }
    }

    /// Counts and logs a change that failed, and adds it to the events.
    fn failed(&self, text: &str, error: &Error) {
        self.count("failed");
        let event = NewEvent {
            kind: "config_failed",
            level: EventLevel::Error,
            model: None,
            version: None,
            text: format!("{text}: {error}"),
        };
        self.journal.add_or_count(event, 1);
        tracing::error!(%error, "{text}");
    }

    /// Counts a change by its outcome.
    fn count(&self, kind: &'static str) {
        let labels = KindLabels { kind };
        self.metrics.config_reloads.get_or_create(&labels).inc();
        let now = base::unix_time(SystemTime::now());
        self.metrics.config_reload_time.get_or_create(&labels).set(now.as_secs_f64());
    }
}

/// Installs the handler of SIGHUP, which otherwise ends the process.
///
/// # Errors
/// `Internal` if the system refuses.
pub(crate) fn hangups() -> Result<Signal> {
    signal(SignalKind::hangup()).map_err(|error| Error::internal("signals").caused_by(error))
}

#[cfg(test)]
mod tests {
    use engine::fake::FakeEngine;
    use engine::fake::publish::publish;

    use super::*;
    use crate::loopback::{self, Loopback};

    const ECHO: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";

    /// A source that is so slow that a request replaces the models during its first poll.
    struct SlowSource {
        configurator: Arc<ModelConfigurator>,
        forced: Vec<bool>,
        not_applied: usize,
    }

    impl ConfigSource for SlowSource {
        fn poll(&mut self, current: &ConfigSet, forced: bool) -> Result<Option<ConfigSet>> {
            self.forced.push(forced);
            if self.forced.len() > 1 {
                return Ok(None);
            }
            let from = self.configurator.current();
            let ignored: AdminCallback = Box::new(|_| {});
            let replaced = self.configurator.replace(&from, current.clone(), |lifecycle, set| {
                lifecycle.configure(set, ignored)
            });
            assert_eq!(replaced, ReplaceOutcome::Replaced);
            Ok(Some(current.clone()))
        }

        fn not_applied(&mut self) {
            self.not_applied += 1;
        }
    }

    #[test]
    fn a_request_during_a_poll_is_not_undone() {
        let dir = tempfile::tempdir().unwrap();
        publish(&dir.path().join("models/echo/1"), ECHO, &[]).unwrap();
        let config = loopback::configuration(dir.path(), &dir.path().join("models"));
        let served = Loopback::start(&config, Arc::new(FakeEngine::new()));
        let configurator = served.server.models.configurator.clone();
        let mut source =
            SlowSource { configurator: configurator.clone(), forced: Vec::new(), not_applied: 0 };
        configurator.poll(&mut source, true, None);
        assert_eq!((source.forced, source.not_applied), (vec![true, false], 1));
    }

    /// A source whose configuration differs from the current one.
    struct ChangedSource {
        to: ConfigSet,
        not_applied: usize,
    }

    impl ConfigSource for ChangedSource {
        fn poll(&mut self, current: &ConfigSet, _: bool) -> Result<Option<ConfigSet>> {
            Ok((*current != self.to).then(|| self.to.clone()))
        }

        fn not_applied(&mut self) {
            self.not_applied += 1;
        }
    }

    /// The lifecycle refuses a configuration if it has stopped, or if too many requests wait.
    #[test]
    fn a_refused_configuration_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        publish(&dir.path().join("models/echo/1"), ECHO, &[]).unwrap();
        let config = loopback::configuration(dir.path(), &dir.path().join("models"));
        let served = Loopback::start(&config, Arc::new(FakeEngine::new()));
        let configurator = served.server.models.configurator.clone();
        let before = configurator.current();
        configurator.lifecycle.shutdown();
        let mut source = ChangedSource { to: ConfigSet::default(), not_applied: 0 };
        configurator.poll(&mut source, false, None);
        assert_eq!(source.not_applied, 1);
        assert!(Arc::ptr_eq(&configurator.current(), &before), "nothing has changed");
    }
}
