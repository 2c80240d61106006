//! What all readers of sound have in common.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest packet that is decoded, in bytes.
pub(super) const PACKET_MAX: usize = 16 << 20;

/// What one step of a reader brought.
#[derive(Debug)]
pub(super) enum DecodeStep {
    /// Samples were appended, perhaps none. `at` is the frame where they begin, if the recording says.
    Sound { at: Option<u64> },
    /// A damaged stretch of about so many frames.
    Lost { frames: u64, what: String },
    /// The end.
    End,
    /// Nothing more can be read.
    Broken(String),
}

/// Reads sound step by step.
pub(super) trait BlockReader: Send {
    /// The next step. Samples are appended to `samples`, interleaved.
    fn next(&mut self, samples: &mut Vec<f32>) -> DecodeStep;
}

/// Calls a decoder, which must not end the process whatever the bytes are; `None` if it panicked.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    // What a decoder leaves behind is thrown away by the callers, so nothing half done is seen.
    catch_unwind(AssertUnwindSafe(call)).ok()
}
