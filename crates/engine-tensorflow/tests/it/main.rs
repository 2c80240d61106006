//! Integration tests of `engine-tensorflow`, in one binary. They need TensorFlow in `.venv` (`make
//! tensorflow` installs it; `MILLPOND_TEST_TENSORFLOW` names another) and the models of
//! `make saved-models`. Without TensorFlow they are skipped, and say so.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// Under the name that other crates use it by.
extern crate millpond_engine_tensorflow as engine_tensorflow;

mod conformance;
mod cycles;
mod damage;
mod published;
mod running;
mod support;
mod threads;
