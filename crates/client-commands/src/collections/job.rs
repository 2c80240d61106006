//! Jobs of a server: sends a request that takes long, and shows its progress until it ends.

use std::time::Duration;

use command_line::exit::{CommandError, CommandResult};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use crate::client::{ServerClient, text};
use crate::poll::poll;

/// First interval between two requests for the state of a job. Each next interval is twice as long,
/// up to [`POLL_LAST`].
const POLL_FIRST: Duration = Duration::from_millis(20);
/// Longest interval between two requests.
const POLL_LAST: Duration = Duration::from_millis(500);

/// Part of the server's message for a job that it does not know.
const UNKNOWN_JOB: &str = "there is no job";
/// Remedy if the server has lost its jobs.
const RESTARTED: &str = "if the server was restarted, the job ended with it: run the command again, \
     which continues a backup";

/// Sends `body` by POST to `path` and waits for the job. Returns its report.
///
/// # Errors
/// Returns the server's error or the error of the job.
pub(super) fn post(client: &ServerClient, path: &str, body: &Value) -> CommandResult<Value> {
    let queued = client.post(path, body)?;
    wait(client, &queued)
}

/// Waits for the job that `queued` names. Returns its report.
///
/// # Errors
/// Returns the error of the job.
pub(super) fn wait(client: &ServerClient, queued: &Value) -> CommandResult<Value> {
    let number = queued.get("job").and_then(Value::as_u64);
    let number = number.ok_or_else(|| {
        CommandError::failed("the answer names no job").hint("is --url a Millpond server?")
    })?;
    // indicatif hides a bar if its target is not a terminal.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}  {msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let mut interval = POLL_FIRST;
    let path = format!("/v1/backups/jobs/{number}");
    let continues = format!(
        "the job continues while the server runs: GET {}{path} has its state and its report",
        client.base()
    );
    let mut known: Option<Value> = None;
    loop {
        let job = poll(client, &path, &continues, Ok).map_err(|error| {
            if error.message().contains(UNKNOWN_JOB) { error.hint(RESTARTED) } else { error }
        })?;
        check_same(known.as_ref(), &job)?;
        let state = text(&job, "state");
        match state.as_str() {
            "done" => {
                bar.finish_and_clear();
                return Ok(job.get("report").cloned().unwrap_or_default());
            }
            "failed" => {
                bar.finish_and_clear();
                return Err(CommandError::failed(text(&job, "error")));
            }
            _ => show(&bar, &job, &state),
        }
        known = Some(job);
        std::thread::sleep(interval);
        interval = (interval * 2).min(POLL_LAST);
    }
}

/// Checks that a read has the same job as the read before it, whose job is `known`.
///
/// # Errors
/// Returns an error for a job with other work: a restarted server numbers its jobs anew.
fn check_same(known: Option<&Value>, job: &Value) -> CommandResult {
    let is_same = |known: &Value| {
        ["work", "collection"].iter().all(|member| known.get(member) == job.get(member))
    };
    if known.is_none_or(is_same) {
        return Ok(());
    }
    Err(CommandError::failed("the server does not know the job any more").hint(RESTARTED))
}

fn show(bar: &ProgressBar, job: &Value, state: &str) {
    let number = |key: &str| job.get(key).and_then(Value::as_u64).unwrap_or(0);
    bar.set_length(number("bytes_total"));
    bar.set_position(number("bytes_done"));
    bar.set_message(format!("{} of {}: {state}", text(job, "work"), text(job, "collection")));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_of_a_restarted_server_is_another_one() {
        let job = |collection: &str| json!({ "work": "backup", "collection": collection });
        assert!(check_same(None, &job("b")).is_ok());
        assert!(check_same(Some(&job("b")), &job("b")).is_ok());
        let error = check_same(Some(&job("a")), &job("b")).unwrap_err();
        assert!(error.message().contains("does not know the job"), "{}", error.message());
    }
}
