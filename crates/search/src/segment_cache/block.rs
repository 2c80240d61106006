//! Blocks of segment files in memory.

use std::ops::Range;
use std::sync::Arc;

use coarse::CodeBlock;
use storage::Sealed;

use crate::budget::BudgetReservation;

/// Part of a segment's file that was read from the medium and verified.
#[derive(Debug)]
pub(crate) struct VerifiedBlock {
    content: BlockContent,
    /// Reservation in the memory budget. `None` if there was no room, and for mapped memory.
    _held: Option<BudgetReservation>,
}

/// Content of a [`VerifiedBlock`].
#[derive(Debug)]
pub(crate) enum BlockContent {
    /// Bytes of codes or of a payload index, or pages of embeddings or payloads.
    Bytes(Box<[u8]>),
    /// Numbers that belong to codes.
    Floats(Box<[f32]>),
    /// Bytes of codes in mapped memory.
    Mapped(Arc<dyn Sealed>, Range<usize>),
}

impl BlockContent {
    /// Returns the bytes of memory that the content takes, or 0 in mapped memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            BlockContent::Bytes(bytes) => bytes.len(),
            BlockContent::Floats(values) => values.len() * 4,
            BlockContent::Mapped(..) => 0,
        }
    }
}

impl VerifiedBlock {
    pub(crate) fn new(content: BlockContent, held: Option<BudgetReservation>) -> VerifiedBlock {
        VerifiedBlock { content, _held: held }
    }

    /// Returns the bytes. Empty for a block of numbers.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.content {
            BlockContent::Bytes(bytes) => bytes,
            BlockContent::Floats(_) => &[],
            BlockContent::Mapped(file, range) => {
                file.in_place().and_then(|bytes| bytes.get(range.clone())).unwrap_or(&[])
            }
        }
    }
}

impl CodeBlock for VerifiedBlock {
    fn bytes(&self) -> &[u8] {
        self.bytes()
    }

    fn floats(&self) -> &[f32] {
        match &self.content {
            BlockContent::Floats(values) => values,
            _ => &[],
        }
    }
}
