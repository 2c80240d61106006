//! Processes of other engines: a script in Python that says its progress on standard error.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use loadgen::process::{end_with_us, let_go};
use loadgen::report::StepProgress;

/// Maximum of `--peers-build-limit`.
pub(crate) const BUILD_LIMIT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Signal of the timer that a script sets before it builds an index. It ends the script even while
/// the engine holds Python's lock.
const TIMER_SIGNAL: i32 = 14;
/// Time without a line of the script after which its last line is passed on again.
const REMINDER: Duration = Duration::from_secs(15);
/// Maximum number of characters of a line that are passed on.
const LINE_MAX: usize = 500;

/// Handling of a script if a signal ends this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerEnd {
    /// The script is killed.
    Kill,
    /// The script notices the end of its parent and removes its files.
    Itself,
}

/// Runs the script of an engine to its end. Passes the lines of its standard error to `say`. A line
/// that begins with two spaces is a detail. While the script writes nothing, its last line is
/// repeated as a detail.
///
/// # Errors
/// The reason, if the script cannot be started, fails, or needs longer than `build_limit` for an
/// index. The scripts in bench/peers set a timer for this limit.
pub(crate) fn run_peer(
    command: &mut Command,
    end: PeerEnd,
    build_limit: Duration,
    say: &dyn Fn(&str),
) -> Result<(), String> {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(|error| {
        format!("{} cannot be started: {error}", command.get_program().display())
    })?;
    if end == PeerEnd::Kill {
        end_with_us(child.id());
    }
    let last = child.stderr.take().map(|stderr| pass_on(&lines(stderr), say)).unwrap_or_default();
    let status = child.wait();
    let_go(child.id());
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) if status.signal() == Some(TIMER_SIGNAL) => {
            Err(format!("its index was not built within {build_limit:?} (--peers-build-limit)"))
        }
        Ok(status) if last.is_empty() => Err(format!("it said nothing and ended with {status}")),
        Ok(_) => Err(last),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads lines in a thread of their own, which ends with the output.
fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let Ok(line) = line else { return };
            let text: String = String::from_utf8_lossy(&line).chars().take(LINE_MAX).collect();
            if !text.trim().is_empty() && sender.send(text).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Passes all lines to `say`. Returns the last one.
fn pass_on(lines: &Receiver<String>, say: &dyn Fn(&str)) -> String {
    let mut last = String::new();
    loop {
        match lines.recv_timeout(REMINDER) {
            Ok(line) => {
                say(&line);
                last = line.trim().to_owned();
            }
            Err(RecvTimeoutError::Timeout) if last.is_empty() => {}
            Err(RecvTimeoutError::Timeout) => say(&format!("  {last}")),
            Err(RecvTimeoutError::Disconnected) => return last,
        }
    }
}

/// Shows a line of an engine's script: details as the message of the current step, others as a
/// line.
pub(crate) fn show(progress: &StepProgress, engine: &str, line: &str) {
    let text = format!("{engine}: {}", line.trim());
    if line.starts_with("  ") { progress.say(text) } else { progress.line(&text) }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Runs a shell script. Returns its lines and its reason.
    fn run(script: &str) -> (Vec<String>, Result<(), String>) {
        let said = RefCell::new(Vec::new());
        let limit = Duration::from_secs(90);
        let ended = run_peer(
            Command::new("/bin/sh").args(["-c", script]),
            PeerEnd::Kill,
            limit,
            &|line: &str| said.borrow_mut().push(line.to_owned()),
        );
        (said.into_inner(), ended)
    }

    #[test]
    fn lines_are_passed_on_and_the_last_one_is_the_reason() {
        assert_eq!(
            run("echo one >&2; echo out; echo '  two' >&2"),
            (vec!["one".to_owned(), "  two".to_owned()], Ok(()))
        );
        let (_, failed) = run("echo first >&2; echo 'no module x' >&2; echo >&2; exit 3");
        assert_eq!(failed, Err("no module x".to_owned()));
        let (_, silent) = run("exit 3");
        assert!(silent.unwrap_err().starts_with("it said nothing"));
    }

    #[test]
    fn an_index_that_takes_too_long_is_named() {
        let (said, ended) = run("echo building >&2; kill -ALRM $$");
        assert_eq!(said, ["building"]);
        let reason = "its index was not built within 90s (--peers-build-limit)";
        assert_eq!(ended, Err(reason.to_owned()));
    }
}
