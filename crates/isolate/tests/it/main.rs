//! Isolated models with the fake engine. The worker process is this test program itself.

mod crashes;
mod runs;
mod support;
