//! Isolated models with the fake engine. The worker process is this test program itself.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

mod crashes;
mod runs;
mod spares;
mod support;
