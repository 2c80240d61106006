//! Load generator, server processes, statistics and text reports for `millpond tune`, `bench` and
//! `demo`.
//!
//! A client shares the machine with the server that it measures, so it is built to cost little.
//! Bodies are encoded before the clock starts, one thread paces, sends and receives, and a caller's
//! own code checks the raw bytes of answers. Latency counts from the moment at which a request was
//! due, and not from the moment of sending. So a stalled server cannot hide its stall by slowing
//! the client down.
//!
//! Nothing here reads arguments or the environment. The programs fill the `Args` structs and
//! [`BenchEnv`].
//!
//! # Modules
//! * Load: `drive` runs an open or a closed loop, `schedule` has the times of requests, `timer`
//!   waits for them, `wire` encodes requests, `random` makes numbers from a seed.
//! * Servers under test: `process` starts them, `endpoint` is their address, `connection` and `tls`
//!   reach it, `port` finds a port's protocol, `settings` changes a served model's settings,
//!   `scrape` reads metrics.
//! * Machine: `machine` records it with its load, `settle` waits until it runs evenly, `cpu_group`
//!   limits processor time, `disk_space` checks free space.
//! * Files: `cache` keeps generated models, `run_folder` is removed at the end of a run.
//! * Results: `measure` makes a run, `samples` collects, `stats` summarises, `report` prints.

/// Prints as the standard library does, but does not panic if standard output is closed (`... |
/// head`).
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::report::print_text(format_args!($($text)*)) };
}
/// Prints like `print`, with a line feed.
#[macro_export]
macro_rules! println {
    ($($text:tt)*) => { $crate::print!("{}\n", format_args!($($text)*)) };
}

pub mod cache;
pub mod connection;
pub mod cpu_group;
pub mod disk_space;
pub mod drive;
mod endpoint;
pub mod machine;
pub mod measure;
pub mod port;
pub mod process;
pub mod random;
pub mod report;
pub mod run_folder;
pub mod samples;
pub mod schedule;
pub mod scrape;
pub mod settings;
pub mod settle;
pub mod stats;
mod timer;
pub mod tls;
pub mod wire;

use std::path::PathBuf;

use clap::Args;
use engine::LibrarySearch;
use os::ChildProgram;

/// Libraries and directories of this machine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "This machine")]
pub struct MachineArgs {
    /// ONNX Runtime's shared library [default: found in a virtual environment, beside the program
    /// or in the system]
    #[arg(long, value_name = "PATH", global = true)]
    pub onnxruntime: Option<PathBuf>,
    /// Library libmillpond_torch.so, or its directory [default: found in a virtual environment or
    /// beside the program]
    #[arg(long, value_name = "PATH", global = true)]
    pub libtorch: Option<PathBuf>,
    /// TensorFlow's shared library, or the directory of its Python package [default: found in a
    /// virtual environment or beside the program]
    #[arg(long, value_name = "PATH", global = true)]
    pub tensorflow: Option<PathBuf>,
    /// Directory of generated models and logs [default: the user's cache directory]
    #[arg(long, value_name = "DIR", global = true)]
    pub cache_dir: Option<PathBuf>,
}

/// Programs, libraries and directories of this machine that benchmarks need.
#[derive(Clone, Debug, Default)]
pub struct BenchEnv {
    /// The `millpond` program to start as a server: usually this one.
    pub millpond: PathBuf,
    /// File of `millpond`. All servers run this build, even if an upgrade replaces the file. `None`
    /// to start the file at this path.
    pub program: Option<ChildProgram>,
    /// Search for ONNX Runtime.
    pub onnxruntime: LibrarySearch,
    /// Search for the LibTorch shim.
    pub libtorch: LibrarySearch,
    /// Search for TensorFlow's library.
    pub tensorflow: LibrarySearch,
    /// Folder of audio data that the user named, if any.
    pub audio_data: Option<PathBuf>,
    /// Directory of models, logs and run directories. A second run finds its models there.
    pub cache_dir: PathBuf,
}

impl BenchEnv {
    /// Returns a path of the checkout if it exists: below the current directory, or in the checkout
    /// in which the program was built.
    pub fn in_checkout(&self, path: &str) -> Option<PathBuf> {
        // The program is target/release/millpond.
        let checkout = self.millpond.ancestors().nth(3).map(|root| root.join(path));
        let here = std::env::current_dir().ok().map(|dir| dir.join(path));
        here.into_iter().chain(checkout).find(|path| path.exists())
    }
}
