//! Common parts of all readers of sound.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest packet that is decoded, in bytes.
pub(super) const PACKET_MAX: usize = 16 << 20;

/// Result of one step of a reader.
#[derive(Debug)]
pub(super) enum DecodeStep {
    /// Samples were appended, perhaps none. `at` is the frame where they begin, if the recording
    /// states it.
    Sound { at: Option<u64> },
    /// A damaged stretch of about `frames` frames.
    Lost { frames: u64, what: String },
    /// The end.
    End,
    /// Nothing more can be read.
    Broken(String),
}

/// Reader of sound, block by block.
pub(super) trait BlockReader: Send {
    /// Performs the next step. Appends interleaved samples to `samples`.
    fn next(&mut self, samples: &mut Vec<f32>) -> DecodeStep;
}

/// Calls a decoder and returns `None` if it panics, because no bytes may end the process.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    // The callers discard a decoder's state after a panic, so no partial state is seen.
    catch_unwind(AssertUnwindSafe(call)).ok()
}
