//! The session of an isolated model: passes runs to the worker process.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, NamedTensor, Result, Signature};
use bytes::Bytes;
use crossbeam_channel::bounded;
use engine::{Engine, LoadRequest, NamedSignature, Session};

use crate::channel::WorkerChannels;
use crate::message::{LoadMessage, ModelFacts, decode_outputs, encode_run};
use crate::supervisor::{FirstLoad, Supervised, supervise};
use crate::{Isolation, frame};

/// Advised delay of another try while a worker process starts again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A model in a worker process.
pub(crate) struct IsolatedSession {
    supervised: Arc<Supervised>,
    facts: ModelFacts,
    run_time_max: Duration,
}

impl IsolatedSession {
    /// Starts a worker process and waits until it has opened the model, or until the request's stop
    /// flag is set. Then the process is ended. The flag also ends the process during the warm-up,
    /// while the caller keeps a reference to the flag.
    ///
    /// # Errors
    /// Returns the errors of [`engine::Engine::load`] in the worker process; `Internal` if the
    /// process ends, with the reason; `Cancelled` if the load was stopped.
    pub(crate) fn open(
        isolation: &Arc<Isolation>,
        engine: &dyn Engine,
        request: &LoadRequest,
    ) -> Result<IsolatedSession> {
        let message = LoadMessage {
            model: request.model.to_string(),
            engine: engine.name().to_owned(),
            graph: request.graph.clone(),
            options: request.options.clone(),
            memory: isolation.config.memory.clone(),
            background: os::thread::has_idle_priority(),
        };
        let keeps_spare = isolation.config.spares && engine.capabilities().opens_slowly;
        let supervised = Arc::new(Supervised::default());
        let (first, opened) = bounded(1);
        let shared = supervised.clone();
        let theirs = isolation.clone();
        let stop = request.stop.clone();
        isolation.start(Box::new(move || {
            let failed = first.clone();
            let load = FirstLoad { message, keeps_spare, stop, outcome: first };
            let body = move || supervise(&theirs, &shared, load);
            if let Err(error) = os::thread::spawn("isolate-model", body) {
                // The receiver waits, and the channel has room for one.
                let _ = failed.send(Err(error));
            }
        }));
        // No polling here: a thread of idle priority that wakes up often would count as starving.
        let facts = opened
            .recv()
            .unwrap_or_else(|_| Err(Error::internal("the supervisor of a worker ended")))?;
        Ok(IsolatedSession { supervised, facts, run_time_max: isolation.config.run_time_max })
    }

    /// Sends a run to the worker process on a free socket and waits for its outputs.
    fn exchange(
        &self,
        signature: Option<usize>,
        inputs: &[NamedTensor],
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        let channels = self.supervised.channels().map_err(unavailable)?;
        let mut channel = channels.take().map_err(unavailable)?;
        let reply = match call(&mut channel, encode_run(signature, inputs, outputs)) {
            Ok(reply) => reply,
            // Nothing was written: the inputs are too large.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                channels.put_back(channel);
                return Err(Error::invalid(error.to_string()));
            }
            Err(error) => return Err(self.handle_broken_socket(&channels, &error)),
        };
        match decode_outputs(reply) {
            Ok(outcome) => {
                channels.put_back(channel);
                outcome
            }
            Err(error) => {
                self.supervised.kill(&channels, error.message());
                Err(error)
            }
        }
    }

    /// Handles a socket that failed in the middle of a run.
    fn handle_broken_socket(
        &self,
        channels: &Arc<WorkerChannels>,
        error: &std::io::Error,
    ) -> Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let seconds = self.run_time_max.as_secs_f64();
                let why = format!("a run took longer than {seconds} s in its worker process");
                self.supervised.kill(channels, &why);
                Error::deadline(format!("{why}, which is started again"))
            }
            ErrorKind::InvalidData => {
                self.supervised.kill(channels, &error.to_string());
                Error::internal(error.to_string())
            }
            _ => {
                let reason = channels.wait_for_reason();
                // The socket is lost. If the process has ended, this does nothing.
                self.supervised.kill(channels, &reason);
                unavailable(reason)
            }
        }
    }
}

fn call(channel: &mut UnixStream, body: Vec<u8>) -> std::io::Result<Bytes> {
    frame::write(channel, body)?;
    frame::read(channel)?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
}

fn unavailable(reason: Arc<str>) -> Error {
    Error::unavailable(format!("the model is started again: {reason}"))
        .with_retry_after(RETRY_AFTER)
}

impl Session for IsolatedSession {
    fn signature(&self) -> &Signature {
        &self.facts.signature
    }

    fn signatures(&self) -> &[NamedSignature] {
        &self.facts.signatures
    }

    fn default_signature(&self) -> usize {
        self.facts.default_signature
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.facts.metadata
    }

    fn runs_elsewhere(&self) -> bool {
        true
    }

    fn is_available(&self) -> bool {
        self.supervised.channels().is_ok_and(|channels| !channels.has_ended())
    }

    fn stateful(&self) -> bool {
        self.facts.stateful
    }

    fn changes_state(&self) -> bool {
        self.facts.changes_state
    }

    fn fork(&self) -> Result<Box<dyn Session>> {
        Err(Error::unimplemented(
            "an isolated model keeps no state between requests; set isolate = false",
        ))
    }

    fn run_signature(
        &self,
        number: usize,
        inputs: &[NamedTensor],
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        self.exchange(Some(number), inputs, outputs)
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.exchange(None, inputs, outputs)
    }
}

impl Drop for IsolatedSession {
    fn drop(&mut self) {
        self.supervised.close();
    }
}
