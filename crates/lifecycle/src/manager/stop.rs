//! Shutdown: no new loads, an empty catalogue, and a bounded wait for versions in use.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Manager, TouchedModels};
use crate::message::Message;
use crate::{LifecycleEvent, SHUTDOWN_WAIT_MAX};

impl Manager {
    /// Stops loads, retires every version and waits for their release, for a bounded time.
    pub(super) fn stop(mut self) {
        self.refuse_waiters();
        self.scans.stop();
        for model in self.models.values_mut() {
            model.down = true;
            model.rollout.interrupt();
            let numbers: Vec<u64> = model.versions.keys().copied().collect();
            for number in numbers {
                if let Some(version) = model.versions.get_mut(&number) {
                    version.stop_load();
                }
                model.unload(&mut self.context, number);
            }
            model.report();
        }
        self.context.observer.event(&LifecycleEvent::Reported);
        let deadline = Instant::now() + SHUTDOWN_WAIT_MAX;
        while !self.models.values().all(super::Model::at_rest) {
            self.context.flush();
            let Ok(message) = self.inbox.recv_deadline(deadline) else {
                self.log_unfinished(Instant::now());
                break;
            };
            self.wind_down(message);
        }
        self.abandon.store(true, Ordering::Relaxed);
        // A request that still uses one must not be the one to release it.
        self.context.backlog.drain(..).for_each(|retired| std::mem::forget(retired.servable));
    }

    /// Logs the versions that end with the process.
    fn log_unfinished(&self, now: Instant) {
        for (name, model) in &self.models {
            for (version, state) in &model.versions {
                if let Some(load) = &state.load {
                    let seconds = load.age(now).as_secs();
                    tracing::warn!(model = %name, version, seconds, "its load has not ended; it ends with the process");
                }
                if !state.draining.is_empty() {
                    tracing::warn!(model = %name, version, "is in use or being released; it ends with the process");
                }
            }
        }
    }

    /// Handles a message during the stop. Refuses requests, and continues with releases.
    fn wind_down(&mut self, message: Message) {
        match message {
            Message::Load { done, .. }
            | Message::Unload { done, .. }
            | Message::Rollout { done, .. }
            | Message::Configure { done, .. } => {
                done(Err(base::Error::unavailable("the server is shutting down")));
            }
            Message::Stage { .. } | Message::LoadEnded { .. } | Message::Released { .. } => {
                // A report takes longer than a release, so the other models wait for their own.
                if let TouchedModels::One(name) = self.handle(message)
                    && let Some(model) = self.models.get_mut(&name)
                {
                    model.report();
                }
            }
            _ => {}
        }
    }
}
