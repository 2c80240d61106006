//! Messages and services made from `proto/` by `cargo xtask codegen`; not edited by hand.
//!
//! The modules are nested as the packages are, because the generated code refers to itself by those
//! paths. Every `bytes` field is [`bytes::Bytes`], so that decoding a message shares its buffer
//! with the tensors inside.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::large_futures)]

/// The Open Inference Protocol with Triton's extensions.
pub mod inference {
    include!("generated/inference.rs");
}

/// TensorFlow's tensors and signatures.
pub mod tensorflow {
    include!("generated/tensorflow.rs");

    /// TensorFlow's status codes.
    pub mod error {
        include!("generated/tensorflow.error.rs");
    }

    /// TensorFlow Serving's services.
    pub mod serving {
        include!("generated/tensorflow.serving.rs");
    }
}
