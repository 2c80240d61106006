//! The client against listeners with TLS.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// The name that other crates use.
extern crate millpond_http_client as http_client;

mod https;
