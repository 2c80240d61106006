//! Child processes that run the program of their parent.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use command_line::exit::{CommandError, CommandResult, ExitStatus};
use engine::LibrarySearch;
use os::ChildProgram;

/// Returns the program that child processes run: the file that this process runs.
///
/// # Errors
/// Returns an error if the system does not name the file.
pub(crate) fn program() -> CommandResult<ChildProgram> {
    ChildProgram::running()
        .map_err(|error| CommandError::from(error).with_exit(ExitStatus::CannotStart))
}

/// Gives this process the name of its program. If `tune`, `demo` or a benchmark started it by a
/// link, the kernel has taken the name of the link. If the system refuses, the name stays.
pub(crate) fn name_server() {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    if let Some(program) = std::env::args_os().next()
        && is_link(name.trim_end())
    {
        set_name(Path::new(&program));
    }
}

/// Returns true for the last part of the path of a link: /proc/self/exe or /proc/self/fd/NUMBER.
fn is_link(name: &str) -> bool {
    name == "exe" || (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()))
}

fn set_name(program: &Path) {
    let name = program.file_name().and_then(|name| CString::new(name.as_bytes()).ok());
    if let Some(Err(error)) = name.map(|name| os::thread::set_name(&name)) {
        tracing::debug!(%error, "the name of the process is not set");
    }
}

/// Arguments of the commands that a server starts in a child process.
#[derive(Args, Debug)]
pub(crate) struct ChildArgs {
    /// Path of the server's program, beside which libraries are searched
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

impl ChildArgs {
    /// Returns the argument that passes the path of `program` to a child process.
    pub(crate) fn flag(program: &ChildProgram) -> String {
        format!("--program={}", program.path().display())
    }

    /// Gives this process the name of the program. The kernel took the name from the link by which
    /// the server started it. If the system refuses, the name stays.
    pub(crate) fn name_process(&self) {
        if let Some(program) = &self.program {
            set_name(program);
        }
    }

    /// Lets `search` find libraries beside the server's program, even if an upgrade has moved or
    /// deleted the file that this process runs.
    pub(crate) fn beside(&self, search: LibrarySearch) -> LibrarySearch {
        match &self.program {
            Some(program) => search.beside(Some(program)),
            None => search,
        }
    }
}
