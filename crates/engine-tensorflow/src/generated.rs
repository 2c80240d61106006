//! Messages made from `proto/` by `cargo xtask codegen`; not edited by hand. Every `bytes` field is
//! [`bytes::Bytes`], so that decoding shares the file's buffer.
#![allow(missing_docs, unreachable_pub, clippy::all)]

include!("generated/saved_model.rs");
