//! Codes of coarse indexes that lie on the medium: the setting, the blocks that queries read, and
//! the cache that keeps them, and other parts of segments, while memory is free.

mod cache;

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use storage::Sealed;

use crate::budget::BudgetReservation;

pub(crate) use cache::{BlockOwner, CodeCache, CodeKey};
pub use cache::{BlockReads, CodeCacheStats};

/// Place of the codes of a segment's coarse index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodesPlace {
    /// In memory if it has room for them, and otherwise on the medium; chosen for each segment.
    /// After a start, codes above 4 MiB a segment are read into memory in the background.
    #[default]
    Auto,
    /// In memory. A segment whose codes do not fit is not opened.
    Dram,
    /// On the medium: queries read the lists that they scan.
    Medium,
}

impl CodesPlace {
    /// Returns its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            CodesPlace::Auto => "auto",
            CodesPlace::Dram => "dram",
            CodesPlace::Medium => "medium",
        }
    }
}

/// Block of codes that was read from the medium and verified.
#[derive(Debug)]
pub struct CodeBlock {
    content: CodeContent,
    /// Reservation in the memory budget; `None` if there was no room, and for mapped memory.
    _held: Option<BudgetReservation>,
}

/// Content of a [`CodeBlock`].
#[derive(Debug)]
pub(crate) enum CodeContent {
    /// Bytes of codes.
    Bytes(Box<[u8]>),
    /// Numbers that belong to codes.
    Floats(Box<[f32]>),
    /// Bytes of codes in mapped memory.
    Mapped(Arc<dyn Sealed>, Range<usize>),
}

impl CodeContent {
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            CodeContent::Bytes(bytes) => bytes.len(),
            CodeContent::Floats(values) => values.len() * 4,
            CodeContent::Mapped(..) => 0,
        }
    }
}

impl CodeBlock {
    pub(crate) fn new(content: CodeContent, held: Option<BudgetReservation>) -> CodeBlock {
        CodeBlock { content, _held: held }
    }

    /// Returns the codes; empty for a block of numbers.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            CodeContent::Bytes(bytes) => bytes,
            CodeContent::Floats(_) => &[],
            CodeContent::Mapped(file, range) => {
                file.in_place().and_then(|bytes| bytes.get(range.clone())).unwrap_or(&[])
            }
        }
    }

    /// Returns the numbers; empty for a block of codes.
    pub fn floats(&self) -> &[f32] {
        match &self.content {
            CodeContent::Floats(values) => values,
            _ => &[],
        }
    }
}
