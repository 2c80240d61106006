//! How many threads there are of each kind: the one place that decides.
//!
//! Inference threads are the parallelism of the server. Each runs the engine at one thread, so more
//! of them than cores only take the cores from each other: every run gets longer, and with it every
//! tail. That is refused rather than done. A model that asks for more threads inside one run takes
//! them from the same number (checked by `lifecycle` when it loads). Doors come on top: they are
//! bound by the network, and give way to the inference threads when requests pile up. Background
//! threads run at idle priority and are not counted.

use base::{Error, Result};

use crate::WORKERS_MAX;

/// What somebody asked for, and the machine it is asked of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadPolicy {
    /// Cores this process may use.
    pub cores: usize,
    /// Inference threads; 0 is one a core.
    pub workers: usize,
    /// Merged batches of one model at the same time, for models that do not say; 0 is as many as
    /// there are inference threads.
    pub runtime_threads: usize,
    /// Threads that receive, decode and encode; 0 is one a core.
    pub connection_threads: usize,
    /// Pin inference thread i to core i.
    pub pin: bool,
    /// Allow more inference threads than cores.
    pub oversubscribe: bool,
}

/// How many threads there will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// Inference threads, at least 1. Also the most threads that the runs of one model may take
    /// together.
    pub workers: usize,
    /// Threads that receive, decode and encode, at least 1.
    pub connection_threads: usize,
    /// Whether inference thread i is pinned to core i.
    pub pin: bool,
}

impl ThreadPolicy {
    /// Decides.
    ///
    /// # Errors
    /// `InvalidArgument` naming the flag and what to use instead, for more inference threads than
    /// cores (unless allowed), more than [`WORKERS_MAX`], pinned ones without a core each, or more
    /// batches at the same time than inference threads.
    pub fn plan(&self) -> Result<ThreadPlan> {
        let cores = self.cores.max(1);
        // One a core is a default, so it yields to the bound; a number that somebody gave does not.
        let workers = if self.workers == 0 { cores.min(WORKERS_MAX) } else { self.workers };
        let connection_threads =
            if self.connection_threads == 0 { cores } else { self.connection_threads };
        let on = format!("{cores} core{}", if cores == 1 { "" } else { "s" });
        if workers > WORKERS_MAX {
            return Err(Error::invalid(format!("--threads {workers} is more than {WORKERS_MAX}")));
        }
        if workers > cores && self.pin {
            return Err(Error::invalid(format!(
                "--threads {workers} on {on} cannot be pinned one a core; use at most {cores}, or leave out --pin"
            )));
        }
        if workers > cores && !self.oversubscribe {
            return Err(Error::invalid(format!(
                "--threads {workers} on {on} would make them fight for the cores; use at most {cores}, or \
                 --oversubscribe"
            )));
        }
        if self.runtime_threads > workers {
            return Err(Error::invalid(format!(
                "--runtime-threads {} is more than the inference threads, of which there are {workers}; use at most \
                 {workers}, or raise --threads",
                self.runtime_threads
            )));
        }
        Ok(ThreadPlan { workers, connection_threads, pin: self.pin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: ThreadPolicy = ThreadPolicy {
        cores: 4,
        workers: 0,
        runtime_threads: 0,
        connection_threads: 0,
        pin: false,
        oversubscribe: false,
    };

    fn refusal(policy: ThreadPolicy) -> String {
        policy.plan().unwrap_err().message().to_owned()
    }

    #[test]
    fn one_a_core_unless_said_otherwise() {
        assert_eq!(FOUR.plan(), Ok(ThreadPlan { workers: 4, connection_threads: 4, pin: false }));
        let said = ThreadPolicy {
            workers: 3,
            connection_threads: 9,
            pin: true,
            runtime_threads: 3,
            ..FOUR
        };
        assert_eq!(said.plan(), Ok(ThreadPlan { workers: 3, connection_threads: 9, pin: true }));
        let unknown = ThreadPolicy { cores: 0, ..FOUR };
        assert_eq!(
            unknown.plan(),
            Ok(ThreadPlan { workers: 1, connection_threads: 1, pin: false })
        );
        let huge = ThreadPolicy { cores: 1000, ..FOUR };
        assert_eq!(
            huge.plan(),
            Ok(ThreadPlan { workers: WORKERS_MAX, connection_threads: 1000, pin: false })
        );
    }

    #[test]
    fn more_threads_than_cores_are_refused() {
        assert_eq!(
            refusal(ThreadPolicy { cores: 2, workers: 8, ..FOUR }),
            "--threads 8 on 2 cores would make them fight for the cores; use at most 2, or --oversubscribe"
        );
        assert!(refusal(ThreadPolicy { cores: 1, workers: 2, ..FOUR }).contains("on 1 core would"));
        let insisted = ThreadPolicy { workers: 8, oversubscribe: true, ..FOUR };
        assert_eq!(
            insisted.plan(),
            Ok(ThreadPlan { workers: 8, connection_threads: 4, pin: false })
        );
        assert!(refusal(ThreadPolicy { pin: true, ..insisted }).contains("leave out --pin"));
        assert!(refusal(ThreadPolicy { workers: 1000, ..insisted }).contains("more than 256"));
    }

    #[test]
    fn more_batches_at_a_time_than_threads_are_refused() {
        let policy = ThreadPolicy { workers: 2, runtime_threads: 3, ..FOUR };
        assert!(refusal(policy).contains("--runtime-threads 3"), "{}", refusal(policy));
    }
}
