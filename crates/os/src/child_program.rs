//! A program that this process starts as a child process.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use base::{Error, Result};

/// Link of the kernel to the file that the calling process runs. It stays valid if another file
/// takes the place of this file, or if this file is deleted.
const RUNNING_FILE: &str = "/proc/self/exe";

/// A program to start, by its path or as the file that this process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildProgram {
    path: PathBuf,
    is_running_file: bool,
}

impl ChildProgram {
    /// Returns the program of this process. Children run the same file as this process, even if an
    /// upgrade has replaced the file at its path. The kernel names such a child `exe`, so the child
    /// should set its name ([`crate::thread::set_name`]).
    ///
    /// # Errors
    /// `Internal` if the system does not name the file, for example without /proc.
    pub fn running() -> Result<ChildProgram> {
        // Read once: after an upgrade, the kernel appends " (deleted)" to the path.
        static PATH: OnceLock<PathBuf> = OnceLock::new();
        let path = match PATH.get() {
            Some(path) => path.clone(),
            None => {
                let path = std::env::current_exe()
                    .map_err(|e| Error::internal("this program cannot find itself").caused_by(e))?;
                PATH.get_or_init(|| path).clone()
            }
        };
        Ok(ChildProgram { path, is_running_file: true })
    }

    /// Returns the path of the program, which another file may have by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that starts the program.
    pub fn command(&self) -> Command {
        if !self.is_running_file {
            return Command::new(&self.path);
        }
        let mut command = Command::new(RUNNING_FILE);
        // Lists of processes show the path as before.
        command.arg0(&self.path);
        command
    }
}

impl From<PathBuf> for ChildProgram {
    fn from(path: PathBuf) -> ChildProgram {
        ChildProgram { path, is_running_file: false }
    }
}

impl From<&str> for ChildProgram {
    fn from(path: &str) -> ChildProgram {
        PathBuf::from(path).into()
    }
}
