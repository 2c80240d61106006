//! Parts that the protocols of models share: the version and the signature that a request names,
//! requests with examples, keys of rollouts, descriptions of versions, and requests from files.
//!
//! TensorFlow Serving's API and the Open Inference Protocol use it, over HTTP and over gRPC, and
//! so do warm-up and rollouts. The routes are in `server`.
//!
//! # Modules
//! * Parts of a request: `signatures` finds the version, `request_key` reads the key of a rollout.
//! * Classify, Regress and MultiInference: `examples` plans the runs, `example_call` runs one.
//! * Answers about models: `view`.
//! * Requests from files: `warmup`, `golden`.

mod example_call;
mod examples;
mod golden;
pub mod request_key;
pub mod signatures;
pub mod view;
mod warmup;

pub use example_call::ExampleCall;
pub use examples::{ExampleMethod, ExamplePlan, plan_tasks};
pub use warmup::RecordedRequests;
