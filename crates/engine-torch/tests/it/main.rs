//! Integration tests of `engine-torch`, in one binary. They need the shim in `.venv` (`make torch`
//! builds it; `MILLPOND_TEST_LIBTORCH` names another) and fail without it. Some need a model and a
//! simulated GPU (`make test-rust` fetches and builds them).
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// Under the name that other crates use it by.
extern crate millpond_engine_torch as engine_torch;

mod conformance;
mod damage;
mod device;
mod library;
mod memory_use;
mod package;
mod running;
mod silero;
mod state;
mod support;
mod threads;
