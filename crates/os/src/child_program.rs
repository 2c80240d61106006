//! A program that this process starts as a child process.

use std::fs::File;
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use base::{Error, Result};

/// Link of the kernel to the file that the calling process runs. It stays valid if another file
/// takes the place of this file, or if this file is deleted.
const RUNNING_FILE: &str = "/proc/self/exe";

/// A program to start, by its path or as a file that this process runs or has opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildProgram {
    path: PathBuf,
    /// Link of the kernel to the file, valid in this process and in its children before they run
    /// the program. `None` starts the file at `path`.
    link: Option<PathBuf>,
}

impl ChildProgram {
    /// Returns the program of this process. Children run the same file as this process, even if an
    /// upgrade has replaced the file at its path. The kernel names such a child `exe`, so the child
    /// should set its name ([`crate::thread::set_name`]).
    ///
    /// # Errors
    /// `Internal` if the system does not name the file, for example without /proc.
    pub fn running() -> Result<ChildProgram> {
        // Read once, because the kernel appends " (deleted)" to the path after an upgrade.
        static PATH: OnceLock<PathBuf> = OnceLock::new();
        let path = match PATH.get() {
            Some(path) => path.clone(),
            None => {
                let path = std::env::current_exe()
                    .map_err(|e| Error::internal("this program cannot find itself").caused_by(e))?;
                PATH.get_or_init(|| path).clone()
            }
        };
        Ok(ChildProgram { path, link: Some(RUNNING_FILE.into()) })
    }

    /// Returns the program at `path`. Children run the file that is there now, even if an upgrade
    /// replaces it. The file stays open until this process ends. The kernel names such a child by a
    /// number, so the child should set its name.
    ///
    /// # Errors
    /// The error of the system if this process may not read the file.
    pub fn opened(path: PathBuf) -> Result<ChildProgram> {
        let file = File::open(&path).map_err(|e| Error::io(&path, &e))?;
        let link = format!("/proc/self/fd/{}", file.into_raw_fd());
        Ok(ChildProgram { path, link: Some(link.into()) })
    }

    /// Returns the path of the program, which another file may have by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that starts the program.
    pub fn command(&self) -> Command {
        let Some(link) = &self.link else { return Command::new(&self.path) };
        let mut command = Command::new(link);
        // Lists of processes show the path as before.
        command.arg0(&self.path);
        command
    }
}

impl From<PathBuf> for ChildProgram {
    fn from(path: PathBuf) -> ChildProgram {
        ChildProgram { path, link: None }
    }
}

impl From<&str> for ChildProgram {
    fn from(path: &str) -> ChildProgram {
        PathBuf::from(path).into()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_replaced_program_runs_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let [program, next] = ["program", "next"].map(|name| dir.path().join(name));
        // Another process copies, so that no other test's child holds the files open for writing.
        for (from, to) in [("/bin/true", &program), ("/bin/false", &next)] {
            assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
        }
        let opened = ChildProgram::opened(program.clone()).unwrap();
        std::fs::rename(&next, &program).unwrap();
        assert!(opened.command().status().unwrap().success());
        assert!(!ChildProgram::from(program.clone()).command().status().unwrap().success());
        assert_eq!(opened.path(), program);
        assert!(ChildProgram::opened(dir.path().join("none")).is_err());
    }
}
