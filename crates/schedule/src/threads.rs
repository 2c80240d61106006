//! Number of threads of each kind, decided in this module only.
//!
//! Inference threads are the parallelism of the server. Each runs the engine at one thread. More of
//! them than cores only take the cores from each other and make every run longer, so that is
//! refused. A model that requests more threads inside one run takes them from the same number
//! (`lifecycle` checks it during the load). Connection threads come on top. They are bound by the
//! network, and use batch scheduling when requests queue. Background threads run at idle priority
//! and are not counted.

use base::{Error, Result};

use crate::WORKERS_MAX;

/// Requested numbers, and the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadPolicy {
    /// Cores this process may use.
    pub cores: usize,
    /// Inference threads. 0 means one a core.
    pub workers: usize,
    /// Concurrent merged batches of one model that has no setting of its own. 0 means the number of
    /// inference threads.
    pub runtime_threads: usize,
    /// Threads that receive, decode and encode. 0 means one a core.
    pub connection_threads: usize,
    /// True to pin inference thread i to the i-th core that this process may use.
    pub pin: bool,
    /// True to allow more inference threads than cores.
    pub oversubscribe: bool,
}

/// Numbers of threads that a [`ThreadPolicy`] results in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// Inference threads, at least 1. Also the most threads of one model's runs together.
    pub workers: usize,
    /// Threads that receive, decode and encode, at least 1.
    pub connection_threads: usize,
    /// True if inference thread i is pinned to the i-th core that this process may use.
    pub pin: bool,
}

impl ThreadPolicy {
    /// Decides the numbers of threads.
    ///
    /// # Errors
    /// `InvalidArgument` for more inference threads than [`WORKERS_MAX`], or than cores unless
    /// allowed. Also for pinned threads without a core each, and for more concurrent batches than
    /// inference threads. The message has the flag and its remedy.
    pub fn plan(&self) -> Result<ThreadPlan> {
        let cores = self.cores.max(1);
        // One a core is a default, so it yields to the limit. An explicit number does not.
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
                "--threads {workers} on {on} would make them compete for the cores; use at most {cores}, or \
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
    fn one_thread_a_core_is_the_default() {
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
            "--threads 8 on 2 cores would make them compete for the cores; use at most 2, or --oversubscribe"
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
