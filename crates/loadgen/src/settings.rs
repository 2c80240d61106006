//! Changes of a served model's settings, made as an operator would. Its `millpond.toml` is
//! replaced, and the served version applies it without a load.

use std::path::Path;
use std::time::{Duration, Instant};

use base::{Error, Result};

use crate::process::ServerProcess;

/// Settings file beside a model's versions.
pub const SETTINGS_FILE: &str = "millpond.toml";
/// Value of `--poll` for a server whose settings change.
pub const POLL: &str = "10ms";
/// Timeout of applying settings.
const APPLY_TIME_MAX: Duration = Duration::from_secs(20);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(3);
/// Metric that counts applied settings.
const APPLIED_METRIC: &str = "millpond_settings_taken_over_total";
/// Log messages of a server that refuses settings.
const REFUSALS: [&str; 2] = ["cannot apply the settings", "settings are not used"];

/// Writes the settings in one step, so that a server never reads half of them.
///
/// # Errors
/// If the file cannot be written.
pub fn put(dir: &Path, text: &str) -> Result<()> {
    let aside = dir.join(".settings");
    let path = dir.join(SETTINGS_FILE);
    std::fs::write(&aside, text).map_err(|e| Error::io(&aside, &e))?;
    std::fs::rename(&aside, &path).map_err(|e| Error::io(&path, &e))
}

/// Makes `server` apply the settings `text` to `model`, whose directory is `dir`. Waits until the
/// server has applied them. The text must change the model's schedule.
///
/// # Errors
/// `FailedPrecondition` with the server's message if it refuses. `DeadlineExceeded` after 20 s.
/// Also the errors of writing the file and of reading the metrics.
pub fn apply(server: &ServerProcess, model: &str, dir: &Path, text: &str) -> Result<()> {
    let applied = || Ok(server.metrics()?.sum(APPLIED_METRIC, &[("model", model)]));
    let before = applied()?;
    let log_before = log(server).len();
    put(dir, text)?;
    let started = Instant::now();
    loop {
        if applied()? > before {
            return Ok(());
        }
        if let Some(why) = refusal(log(server).get(log_before..).unwrap_or_default(), model) {
            return Err(Error::precondition(why));
        }
        if started.elapsed() > APPLY_TIME_MAX {
            let log = server.log().display();
            return Err(Error::deadline(format!(
                "the server did not apply the settings of {model}; its log: {log}"
            )));
        }
        std::thread::sleep(PAUSE);
    }
}

fn log(server: &ServerProcess) -> String {
    std::fs::read_to_string(server.log()).unwrap_or_default()
}

/// Returns the reason in the log for which settings of `model` are not applied.
fn refusal(log: &str, model: &str) -> Option<String> {
    let of_model = format!("model={model} ");
    let refuses =
        |line: &&str| line.contains(&of_model) && REFUSALS.iter().any(|what| line.contains(what));
    log.lines().rev().find(refuses).map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_found_for_its_model_only() {
        let log = "WARN x: cannot apply the settings model=a version=1 error=no axis\nINFO model=b loaded\n";
        assert!(refusal(log, "a").is_some_and(|why| why.ends_with("error=no axis")));
        assert_eq!(refusal(log, "b"), None);
        assert!(refusal("ERROR settings are not used model=b error=\"x\"", "b").is_some());
    }
}
