//! Reads of the progress of work on a server. The work continues if a read fails, so a failed read
//! is repeated.

use std::time::{Duration, Instant};

use command_line::exit::{CommandError, CommandResult, print_note};
use serde_json::Value;

use crate::client::{HttpReply, READ_MAX, RequestContent, ServerClient};

/// Longest time for which reads of the progress may fail before the command ends.
const FAILING_MAX: Duration = Duration::from_secs(300);
/// First pause after a failed read. It doubles each time.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after a failed read.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Failed reads after which the terminal shows the reason.
const NOTIFY_FAILURES: u32 = 3;

/// Times of repeated reads.
struct PollTimes {
    failing_max: Duration,
    pause: Duration,
}

/// Failure of a read of the progress.
#[derive(Debug)]
pub(crate) enum PollFailure {
    /// A later read may succeed.
    Temporary(CommandError),
    /// No later read succeeds.
    Lasting(CommandError),
}

/// Sends GET to `path` until `check` accepts the response, and returns the result of `check`.
/// Repeats the request if the connection fails, or if the server is busy or starting. `continues`
/// is the hint of a returned error. It says that the work continues, and how to see its progress.
///
/// # Errors
/// Returns the last failure if requests have failed for [`FAILING_MAX`]. Returns any other refusal
/// of the server at once.
pub(crate) fn poll<T>(
    client: &ServerClient,
    path: &str,
    continues: &str,
    check: impl Fn(Value) -> Result<T, PollFailure>,
) -> CommandResult<T> {
    let times = PollTimes { failing_max: FAILING_MAX, pause: PAUSE };
    let read = || -> Result<T, PollFailure> {
        let reply = client.call_within("GET", path, RequestContent::None, READ_MAX);
        check(progress_of(reply)?)
    };
    repeat(&times, continues, &print_note, read)
}

/// Returns the JSON of a response.
///
/// # Errors
/// Returns a temporary failure if there is no response, or if the server is busy.
fn progress_of(reply: CommandResult<HttpReply>) -> Result<Value, PollFailure> {
    let reply = reply.map_err(PollFailure::Temporary)?;
    let is_busy = reply.is_busy();
    reply.json().map_err(|error| {
        if is_busy { PollFailure::Temporary(error) } else { PollFailure::Lasting(error) }
    })
}

/// Calls `read` until it succeeds. Calls `notify` once with the reason of its failures.
///
/// # Errors
/// As [`poll`].
fn repeat<T>(
    times: &PollTimes,
    continues: &str,
    notify: &dyn Fn(&str),
    mut read: impl FnMut() -> Result<T, PollFailure>,
) -> CommandResult<T> {
    let begin = Instant::now();
    let mut pause = times.pause;
    let mut failures = 0;
    loop {
        let error = match read() {
            Ok(progress) => return Ok(progress),
            Err(PollFailure::Lasting(error)) => return Err(error),
            Err(PollFailure::Temporary(error)) => error,
        };
        failures += 1;
        if begin.elapsed() >= times.failing_max {
            let seconds = times.failing_max.as_secs();
            let message =
                format!("the progress could not be read for {seconds} s: {}", error.message());
            return Err(CommandError::failed(message).hint(continues));
        }
        if failures == NOTIFY_FAILURES {
            notify(&format!("the progress is read again later: {}", error.message()));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn reply(status: u16) -> CommandResult<HttpReply> {
        let body = br#"{"error":"the reason"}"#.to_vec();
        Ok(HttpReply { status, retry_after: None, json_bytes: None, body })
    }

    #[test]
    fn failed_reads_are_repeated_up_to_a_limit() {
        let (reads, notes) = (Cell::new(0), RefCell::new(Vec::new()));
        let read = |failing_max: Duration, failures: &[Option<u16>]| {
            reads.set(0);
            notes.borrow_mut().clear();
            let times = PollTimes { failing_max, pause: Duration::ZERO };
            let notify = |text: &str| notes.borrow_mut().push(text.to_owned());
            repeat(&times, "it continues", &notify, || {
                let at = reads.replace(reads.get() + 1);
                progress_of(match failures.get(at) {
                    None => reply(200),
                    Some(Some(status)) => reply(*status),
                    Some(None) => Err(CommandError::failed("no answer")),
                })
            })
        };
        let hour = Duration::from_secs(3600);
        let failures = [None, Some(503), Some(502), Some(429), None];
        read(hour, &failures).unwrap();
        assert_eq!(reads.get(), 6);
        assert_eq!(notes.borrow().len(), 1);
        assert!(notes.borrow()[0].contains("the reason"), "{notes:?}");
        assert!(read(hour, &[Some(404)]).is_err());
        assert_eq!(reads.get(), 1);
        let Err(error) = read(Duration::ZERO, &[Some(503)]) else { panic!("it has no progress") };
        assert_eq!(reads.get(), 1);
        let shown = format!("{error:?}");
        assert!(shown.contains("the reason") && shown.contains("it continues"), "{shown}");
    }
}
