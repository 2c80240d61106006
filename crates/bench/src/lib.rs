//! Load generators, arms and reports: what `millpond bench load|swap|overhead|batch|overload|audio` and
//! `millpond demo` run.
//!
//! Everything here measures a server from outside, over its own protocols, in a process of its own. A client
//! shares the machine with the server it measures, so it is built to cost little: bodies are encoded before the
//! clock starts, one thread paces, sends and receives without handing anything over, and answers are checked by a
//! caller's own code on the raw bytes. Latency counts from the moment a request was due, never from when it could
//! be sent, so a stalled server cannot hide its stall by slowing the client down.
//!
//! Nothing here reads arguments or the environment: `cli` fills the `Args` structs and [`BenchEnv`].

/// Text of a report for people, as the standard library writes it, but that a reader who has gone (`... | head`) is no reason
/// to end with a panic.
macro_rules! print {
    ($($text:tt)*) => { crate::report::print_text(format_args!($($text)*)) };
}
/// The same with a line feed after it.
macro_rules! println {
    ($($text:tt)*) => { print!("{}\n", format_args!($($text)*)) };
}

pub mod audio;
mod bare;
pub mod batch;
mod caller;
mod connection;
mod cpu_group;
pub mod crash;
pub mod demo;
mod drive;
pub mod fingerprints;
pub mod images;
pub mod ingest;
pub mod load;
mod machine;
mod measure;
mod models;
pub mod overhead;
pub mod overload;
mod plot;
pub mod port;
mod process;
mod random;
mod report;
mod samples;
mod schedule;
mod scrape;
mod settings;
mod settle;
mod stats;
pub mod swap;
pub mod tiers;
mod timer;
pub mod tune;
pub mod vectors;
mod wire;

use std::path::PathBuf;

use engine::LibrarySearch;

/// What the command line knows and a benchmark needs.
#[derive(Clone, Debug)]
pub struct BenchEnv {
    /// The `millpond` program to start as a server: usually this one.
    pub millpond: PathBuf,
    /// Where to look for ONNX Runtime.
    pub onnxruntime: LibrarySearch,
    /// Where to look for the LibTorch shim.
    pub libtorch: engine::LibrarySearch,
    /// A folder of recordings that the person who runs this named, where one did.
    pub audio_data: Option<PathBuf>,
    /// Where models, logs and run directories are kept; a second run finds its models there.
    pub cache_dir: PathBuf,
    /// End the demo by itself after this many seconds.
    pub demo_seconds: Option<u64>,
}
