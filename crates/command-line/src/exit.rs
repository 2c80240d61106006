//! Exit codes of commands, and the error that carries one.

use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

use base::{Error, ErrorKind, escape_controls};
use import::ImportError;
use serde_json::Value;

/// Exit codes for `--help`. The numbers are defined by [`ExitStatus`].
pub const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done
  1  failed: the message says why
  2  usage: wrong arguments or settings file
  3  cannot start: port in use, collections in use, ONNX Runtime does not load or is too old
  4  wrong: answers differ or are lost, backups are damaged, a recording is not of the speaker,
     or `doctor` found that nothing can be served";

/// Control characters of output. Others are escaped, because a name, a reason or an error can come
/// from another user of a server, and must not change the terminal.
const KEPT_CONTROLS: &[char] = &['\n', '\t'];

/// Exit codes other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// The command failed.
    Failed = 1,
    /// Arguments or settings are wrong.
    Usage = 2,
    /// The server could not start.
    CannotStart = 3,
    /// The command ran, and found a difference or an error.
    Wrong = 4,
    /// A later attempt may succeed. Only the server sees this code, of its own child.
    TryAgain = lifecycle::Converter::TRY_AGAIN as isize,
}

/// An error for the user at the terminal.
#[derive(Debug)]
pub struct CommandError {
    exit: ExitStatus,
    message: String,
    hint: Option<String>,
}

/// Result of a command, or of a part of it.
pub type CommandResult<T = ()> = Result<T, CommandError>;

impl CommandError {
    /// Returns an error with the exit code `exit` and without a hint.
    pub fn new(exit: ExitStatus, message: impl Into<String>) -> CommandError {
        CommandError { exit, message: message.into(), hint: None }
    }

    /// Returns an error with the code [`ExitStatus::Failed`].
    pub fn failed(message: impl Into<String>) -> CommandError {
        CommandError::new(ExitStatus::Failed, message)
    }

    /// Returns an error with the code [`ExitStatus::Usage`].
    pub fn usage(message: impl Into<String>) -> CommandError {
        CommandError::new(ExitStatus::Usage, message)
    }

    /// Returns an error that prints nothing, since the terminal has the reason already.
    pub fn silent(exit: ExitStatus) -> CommandError {
        CommandError::new(exit, "")
    }

    /// Sets the hint: what to do about the error.
    pub fn hint(mut self, hint: impl Into<String>) -> CommandError {
        self.hint = Some(hint.into());
        self
    }

    /// Changes the exit code.
    pub fn with_exit(mut self, exit: ExitStatus) -> CommandError {
        self.exit = exit;
        self
    }

    /// Returns the message without the hint.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prints message and hint to standard error.
    pub fn print_to_stderr(&self) {
        // If standard error is closed, the exit code still reports the error.
        let _ = std::io::stderr().lock().write_all(self.lines().as_bytes());
    }

    /// Returns message and hint as lines, each if there is one.
    fn lines(&self) -> String {
        let mut lines = String::new();
        if !self.message.is_empty() {
            lines.push_str(&format!("error: {}\n", printable(&self.message)));
        }
        if let Some(hint) = &self.hint {
            lines.push_str(&format!("hint: {}\n", printable(hint)));
        }
        lines
    }

    /// Prints message and hint to standard error and returns the exit code.
    pub fn report(&self) -> ExitCode {
        self.print_to_stderr();
        ExitCode::from(self.exit as u8)
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        let failure = CommandError::failed(error.message());
        match error.kind() {
            ErrorKind::PermissionDenied => failure.hint(format!(
                "this runs as {}; give that user the permission, or run it as the owner",
                user()
            )),
            _ => failure,
        }
    }
}

impl From<ImportError> for CommandError {
    fn from(error: ImportError) -> CommandError {
        let exit = if error.is_usage { ExitStatus::Usage } else { ExitStatus::Failed };
        CommandError { exit, message: error.message, hint: error.hint }
    }
}

/// Returns `text` with escapes in place of its control characters, except line ends and tabs. The
/// line ends of HTTP and of Windows, such as those in an error page of a proxy, become `\n`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.contains("\r\n") {
        Cow::Owned(escape_controls(&text.replace("\r\n", "\n"), KEPT_CONTROLS).into_owned())
    } else {
        escape_controls(text, KEPT_CONTROLS)
    }
}

/// Returns the user of this process, for messages.
pub fn user() -> String {
    format!("user {}", rustix::process::geteuid().as_raw())
}

/// Writes a line to standard error. A line that cannot be written is dropped, because the disk is
/// full or the reader of a pipe has ended. Results and exit codes do not depend on it.
pub fn print_note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}

/// Writes `text` to standard output. Control characters are escaped, except line ends and tabs. A
/// reader that closed the pipe (`millpond models ls | head -1`) is not an error.
///
/// # Errors
/// Returns any other error of writing.
pub fn print(text: &str) -> CommandResult {
    print_page(text).map(drop)
}

/// Writes as [`print`] does, for output that needs further requests. Returns false if the reader
/// closed the pipe, so that the caller sends no more requests.
///
/// # Errors
/// Returns any other error of writing.
pub fn print_page(text: &str) -> CommandResult<bool> {
    write_stdout(&printable(text))
}

/// Formats JSON with indentation and a final line break.
pub fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Writes an image as escape sequences for the terminal to standard output.
///
/// # Errors
/// Returns the errors of [`print`].
pub fn print_image(sequences: &str) -> CommandResult {
    write_stdout(sequences).map(drop)
}

/// Returns false if the reader closed the pipe.
fn write_stdout(text: &str) -> CommandResult<bool> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(CommandError::failed(format!("cannot write to standard output: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_cannot_change_the_terminal() {
        let error = CommandError::failed("no model \"a\u{1b}]0;title\u{7}\";\n\tthe models are b");
        assert_eq!(
            error.hint("see\u{9b}2J").lines(),
            "error: no model \"a\\u001b]0;title\\u0007\";\n\tthe models are b\nhint: see\\u009b2J\n"
        );
        assert_eq!(CommandError::silent(ExitStatus::Failed).lines(), "");
    }

    #[test]
    fn line_ends_of_windows_are_line_ends() {
        assert_eq!(printable("<html>\r\n<b>\r</b>\r\n"), "<html>\n<b>\\r</b>\n");
        let names = "\u{65e5}\u{672c}\t\u{1f600}\n";
        assert!(matches!(printable(names), Cow::Borrowed(text) if text == names));
    }
}
