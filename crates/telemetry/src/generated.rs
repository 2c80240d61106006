//! Messages made from `proto/` by `cargo xtask codegen`; not edited by hand.
#![allow(missing_docs, unreachable_pub, clippy::all)]

include!("generated/otlp.rs");
