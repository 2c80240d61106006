//! Calls into directories whose file system may not answer, such as a network mount whose server is
//! down. Such a call cannot be stopped. Its thread is left behind until the call ends.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

use command_line::exit::{CommandError, CommandResult, ExitStatus};
use parking_lot::Mutex;

/// Longest wait for a call: the mount may be made because of it.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum directories that do not answer and have a thread each.
const SILENT_MAX: usize = 32;

/// Directory with a call that did not end in time, and the receiver of its result.
type SilentCall = (PathBuf, Receiver<CommandResult<PathBuf>>);

static SILENT: Mutex<Vec<SilentCall>> = Mutex::new(Vec::new());

/// Returns the result of `call` for the directory `dir`.
///
/// # Errors
/// The error of `call`. An error that names the directory if `call` does not end within `wait`, and
/// at once if an earlier call for the directory has not ended.
pub(super) fn in_time(
    dir: &Path,
    wait: Duration,
    call: impl FnOnce(&Path) -> CommandResult<PathBuf> + Send + 'static,
) -> CommandResult<PathBuf> {
    {
        let mut silent = SILENT.lock();
        silent.retain(|(_, result)| matches!(result.try_recv(), Err(TryRecvError::Empty)));
        if silent.len() >= SILENT_MAX || silent.iter().any(|(other, _)| other == dir) {
            return Err(no_answer(dir));
        }
    }
    let (to, result) = sync_channel(1);
    let path = dir.to_owned();
    let body = move || {
        // Fails if the result came too late.
        let _ = to.send(call(&path));
    };
    os::thread::spawn("source-read", body)?;
    match result.recv_timeout(wait) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => {
            SILENT.lock().push((dir.to_owned(), result));
            Err(no_answer(dir))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(CommandError::failed(format!("cannot serve {}: its check failed", dir.display())))
        }
    }
}

fn no_answer(dir: &Path) -> CommandError {
    let message = format!("cannot serve {}: its file system does not answer", dir.display());
    CommandError::new(ExitStatus::CannotStart, message)
        .hint("check the mount (NFS, FUSE), or remove the directory from the settings")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_directory_that_does_not_answer_is_named() {
        let dir = Path::new("/silent/in/a/test");
        let (end, ending) = channel::<()>();
        let silent = move |dir: &Path| {
            let _ = ending.recv();
            Ok(dir.to_owned())
        };
        let error = in_time(dir, Duration::from_millis(20), silent).unwrap_err();
        let message = "cannot serve /silent/in/a/test: its file system does not answer";
        assert_eq!(error.message(), message);
        let answers = || in_time(dir, WAIT_MAX, |dir| Ok(dir.to_owned()));
        // No second thread waits for it.
        assert_eq!(answers().unwrap_err().message(), message);
        drop(end);
        while answers().is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
