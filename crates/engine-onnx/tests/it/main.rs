//! Integration tests of `engine-onnx`, in one binary. Tests of sessions need the library
//! (`make build` installs it; `MILLPOND_TEST_ONNXRUNTIME` names another) and fail without it.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// Under the name that other crates use it by.
extern crate millpond_engine_onnx as engine_onnx;

mod conformance;
mod library;
mod loading;
mod running;
mod support;
