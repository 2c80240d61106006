//! The two threads of repeated work.

use std::sync::Arc;
use std::thread::JoinHandle;

use base::Result;

use super::Priority;
use crate::thread;

/// Starts the two threads of repeated work: `name` at low priority, and `name`-hi at ordinary
/// priority. `body` runs on both until it returns. `doing` names the work in the log, such as
/// "flushing".
///
/// # Errors
/// `ResourceExhausted` if a thread cannot be started.
pub fn spawn_pair(
    name: &str,
    doing: &'static str,
    body: impl Fn(Priority) + Send + Sync + 'static,
) -> Result<[JoinHandle<()>; 2]> {
    let escalated = Arc::new(body);
    let background = escalated.clone();
    Ok([
        thread::spawn(name, move || {
            thread::enter_low_priority(doing);
            background(Priority::Background);
        })?,
        thread::spawn(format!("{name}-hi"), move || escalated(Priority::Escalated))?,
    ])
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;

    #[test]
    fn a_pair_has_both_priorities() {
        let (send, priorities) = bounded(2);
        let body = move |priority| {
            // SAFETY: takes numbers only; 0 names the calling thread.
            let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
            let name = std::thread::current().name().map(str::to_owned);
            send.send((priority == Priority::Background, nice >= 15, name)).unwrap();
        };
        for thread in spawn_pair("p", "testing", body).unwrap() {
            thread.join().unwrap();
        }
        let mut seen: Vec<_> = priorities.iter().collect();
        seen.sort();
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(seen, [(false, false, name("p-hi")), (true, true, name("p"))]);
    }
}
