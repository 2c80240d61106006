//! Jobs of a server: sends a request that takes long, and shows its progress until it ends.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use crate::client::{ServerClient, text};
use crate::exit::{CommandError, CommandResult};

/// First interval between two requests for the state of a job. Each next interval is twice as long,
/// up to [`POLL_LAST`].
const POLL_FIRST: Duration = Duration::from_millis(20);
/// Longest interval between two requests.
const POLL_LAST: Duration = Duration::from_millis(500);

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
    loop {
        let job = client.get(&format!("/v1/backups/jobs/{number}"))?;
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
        std::thread::sleep(interval);
        interval = (interval * 2).min(POLL_LAST);
    }
}

fn show(bar: &ProgressBar, job: &Value, state: &str) {
    let number = |key: &str| job.get(key).and_then(Value::as_u64).unwrap_or(0);
    bar.set_length(number("bytes_total"));
    bar.set_position(number("bytes_done"));
    bar.set_message(format!("{} of {}: {state}", text(job, "work"), text(job, "collection")));
}
