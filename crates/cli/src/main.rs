//! The `millpond` binary: reads arguments, environment and settings file, and hands plain values to the crates
//! that do the work.
//!
//! In two stages: what was typed ([`arguments`], cheap to check), then what it means on this machine (each
//! command's own module, which may look at files). Nothing below this crate reads arguments or the environment.

mod arguments;
mod audio;
mod bench;
mod client;
mod completion;
mod doctor;
mod environment;
mod exit;
mod foreign;
mod images;
mod infer;
mod layout;
mod models;
mod publish;
mod serve;
mod speakers;
mod table;
mod tune;
mod values;

use std::process::ExitCode;

/// One allocator for the whole process, so that the engines' own requests for memory meet it too: requests and
/// scratch memory then never wait for the kernel, and freed memory goes back to it in the background. Its settings
/// are compiled in (see `.cargo/config.toml`); `MALLOC_CONF` changes them at run time. Without the feature there is
/// no jemalloc in the program, which `bench audio` compares with.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match arguments::parse().and_then(|arguments| arguments.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
