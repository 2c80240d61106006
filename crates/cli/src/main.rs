//! The `millpond` binary. It reads arguments, environment and settings file, and passes plain
//! values to the crates that do the work.
//!
//! There are two stages: parsing the command line ([`arguments`], cheap), then resolving it on this
//! machine (the module of each command, which may read files). No other crate reads arguments, and
//! only [`command_line::environment`] takes settings from the environment. The commands that send
//! requests to a running server are the crate `client-commands`.
//!
//! # Modules
//! * Command line: `arguments` defines it.
//! * Servers: `serve`, `tfs`; `child_process` starts their children, `worker` is the one of an
//!   isolated model.
//! * Recordings: `audio`, `speakers`.
//! * Files: `publish`, `import`, `triton`, `keys`, `layout`.
//! * Measurements and checks: `bench`, `tune`, `verify`, `doctor`.
//! * Help: `completion`, `manual`, `foreign`.

// The help on the terminal shows addresses as they are typed.
#![allow(rustdoc::bare_urls)]

mod arguments;
mod audio;
mod bench;
mod child_process;
mod completion;
mod doctor;
mod foreign;
mod import;
mod keys;
mod layout;
mod manual;
mod publish;
mod serve;
mod speakers;
mod tfs;
mod triton;
mod tune;
mod verify;
mod worker;

use std::process::ExitCode;

/// One allocator for the whole process, engines included. Requests and scratch memory then never
/// wait for the kernel, and freed memory goes back to it in the background. The settings are
/// compiled in (`.cargo/config.toml`); `MALLOC_CONF` changes them at run time. Without the feature
/// the program uses the system's allocator, with which `bench audio` compares.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    os::process::refuse_writes_beyond_file_limit();
    match arguments::parse().and_then(|arguments| arguments.run()) {
        // Standard error has the reason.
        Ok(()) if loadgen::report::output_is_lost() => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
