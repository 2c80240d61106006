//! The kernels from outside: compiled by NVRTC if there is one, executed as plain C++ if there is a
//! compiler for it, and on a device: a pretended one, and a real one if there is one. A skipped
//! test prints the reason.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

extern crate millpond_gpu as gpu;

mod case;
mod compile;
mod device;
mod host;
mod pretended;

/// Prints why a test did nothing.
fn skipped(test: &str, reason: impl std::fmt::Display) {
    println!("SKIPPED {test}: {reason}");
}

/// Returns the search path of the run-time compiler.
fn search() -> gpu::CompilerSearch {
    gpu::CompilerSearch {
        explicit: std::env::var_os("MILLPOND_NVRTC").map(Into::into),
        virtual_env: std::env::var_os("VIRTUAL_ENV").map(Into::into),
    }
}
