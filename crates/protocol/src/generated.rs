//! Messages and services made from `proto/` by `cargo xtask codegen`; not edited by hand.
//!
//! The modules are nested as the packages are, because the generated code refers to itself by those
//! paths. Every `bytes` field is [`bytes::Bytes`], so that decoding a message shares its buffer
//! with the tensors inside.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::large_futures)]

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;

/// Descriptors of all messages and services; empty if the generated file is damaged, which a test
/// excludes.
pub(crate) static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let bytes = include_bytes!("generated/descriptors.binpb").as_slice();
    DescriptorPool::decode(bytes).unwrap_or_default()
});

/// gRPC's own services.
pub mod grpc {
    /// Status of the server and its models.
    pub mod health {
        /// Version 1.
        pub mod v1 {
            include!("generated/grpc.health.v1.rs");
        }
    }

    /// Descriptors of the services. The messages of v1alpha are the same on the wire.
    pub mod reflection {
        /// Version 1.
        pub mod v1 {
            include!("generated/grpc.reflection.v1.rs");
        }
        /// The version before 1.
        pub mod v1alpha {
            include!("generated/grpc.reflection.v1alpha.rs");
        }
    }
}

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

/// Qdrant's services: collections, points and snapshots.
pub mod qdrant {
    include!("generated/qdrant.rs");
}
