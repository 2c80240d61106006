//! Threads of a [`BackgroundRunner`](super::BackgroundRunner).

use base::Result;
use crossbeam_channel::{Sender, bounded};

use super::{Task, start_starter};
use crate::sched_stat::SchedStat;
use crate::thread;

/// Thread that does the work of a runner.
pub(super) struct RunnerThread {
    pub(super) tasks: Sender<Task>,
    /// Times of a thread of idle priority, if the kernel counts them.
    pub(super) stat: Option<SchedStat>,
}

impl RunnerThread {
    /// Starts the thread `name-hi` of ordinary priority.
    pub(super) fn start_ordinary(name: &str) -> Result<RunnerThread> {
        let (tasks, queue) = bounded::<Task>(1);
        thread::spawn(format!("{name}-hi"), move || queue.iter().for_each(|task| task()))?;
        Ok(RunnerThread { tasks, stat: None })
    }

    /// Starts the thread `name-idle` of idle priority. `doing` names its work in the log.
    pub(super) fn start_idle(name: &str, doing: &'static str) -> Result<RunnerThread> {
        start_starter()?;
        let (tasks, queue) = bounded::<Task>(1);
        let (send_stat, stat) = bounded(1);
        let body = move || {
            // Still at ordinary priority, because the caller waits for this.
            let _ = send_stat.send(SchedStat::of_this_thread());
            thread::enter_background(doing);
            queue.iter().for_each(|task| task());
        };
        thread::spawn(format!("{name}-idle"), body)?;
        Ok(RunnerThread { tasks, stat: stat.recv().unwrap_or_default() })
    }
}
