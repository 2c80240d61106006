//! `millpond-bench`: every benchmark of `millpond bench`, in a program of its own so that the
//! product links none.

use std::process::ExitCode;

use base::{Error, ErrorKind};
use millpond_bench::arguments;

/// The server's allocator, because benchmarks compare this process with the server.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match arguments::run() {
        // Standard error has the reason.
        Ok(()) if loadgen::report::output_is_lost() => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

/// Prints `error` as `millpond` does and returns its exit code.
fn report(error: &Error) -> ExitCode {
    eprintln!("error: {}", error.message());
    ExitCode::from(match error.kind() {
        ErrorKind::InvalidArgument => 2,
        ErrorKind::Internal | ErrorKind::DataLoss => 4,
        _ => 1,
    })
}
