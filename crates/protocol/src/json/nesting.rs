//! Finds the shape of nested lists while they are read.

use base::Shape;
use smallvec::SmallVec;

use crate::wire::RANK_MAX;

/// The shape that is known so far. It is the length of the closed lists at each depth, and the
/// depth of the leaves.
#[derive(Debug, Default)]
pub(crate) struct Nesting {
    /// Length of the lists at each depth, or `None` before the first one was closed.
    lengths: SmallVec<[Option<usize>; 8]>,
    /// Depth of the values, once there was one.
    leaf: Option<usize>,
}

/// The reason why lists do not form a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ragged {
    /// Lists of one depth differ in length, or a value stands where another has a list.
    Uneven,
    /// More axes than a tensor may have.
    TooDeep,
}

impl Nesting {
    /// Starts a list at `depth`, 0 for the outermost. Returns the reason if a tensor cannot have
    /// it.
    pub(crate) fn open(&mut self, depth: usize) -> Result<(), Ragged> {
        if depth >= RANK_MAX {
            return Err(Ragged::TooDeep);
        }
        if self.leaf.is_some_and(|leaf| depth >= leaf) {
            return Err(Ragged::Uneven);
        }
        if self.lengths.len() <= depth {
            self.lengths.resize(depth + 1, None);
        }
        Ok(())
    }

    /// Ends the list at `depth` after `length` elements. Returns the reason if another list of this
    /// depth has another length.
    pub(crate) fn close(&mut self, depth: usize, length: usize) -> Result<(), Ragged> {
        match &mut self.lengths[depth] {
            Some(known) if *known != length => Err(Ragged::Uneven),
            known => {
                *known = Some(length);
                Ok(())
            }
        }
    }

    /// Adds a value at `depth`.
    pub(crate) fn leaf(&mut self, depth: usize) -> Result<(), Ragged> {
        match self.leaf {
            Some(known) if known == depth => Ok(()),
            None if self.lengths.len() == depth => {
                self.leaf = Some(depth);
                Ok(())
            }
            _ => Err(Ragged::Uneven),
        }
    }

    /// Returns the shape of the values read.
    pub(crate) fn shape(&self) -> Shape {
        self.lengths.iter().map(|length| length.unwrap_or(0)).collect()
    }
}
