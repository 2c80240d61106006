//! Prints of the fingers that a query searches for.

use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use transport::{ByteBudget, Reservation};

use super::print_files::{self, FilePrints};

/// Prints of the files of a query. A file with several prints has several fingers.
pub struct QueryPrints {
    /// Prints to search for.
    pub prints: Vec<QueryPrint>,
    /// Prints of the files that are not searched for.
    pub left_out: usize,
    /// Memory of the files that were cut out of others.
    _memory: Reservation,
}

/// Print of one finger of a query.
pub struct QueryPrint {
    /// File of the print.
    pub file: Bytes,
    /// True if the print was sent with others in one file.
    is_of_several: bool,
}

impl QueryPrint {
    /// Returns true if the print is left out because of this error of its search: the print cannot
    /// be read, and its file has others.
    pub fn is_left_out(&self, error: &Error) -> bool {
        self.is_of_several && print_files::is_of_one_print(error)
    }
}

impl QueryPrints {
    /// Returns true if a file of a query may have several prints, which takes time to find out.
    pub(crate) fn may_be_cut(files: &[Bytes]) -> bool {
        files.iter().any(|file| print_files::may_have_several(file))
    }

    /// Cuts the files of a query into their prints.
    ///
    /// # Errors
    /// `InvalidArgument` for a file with too many prints; the errors of [`ByteBudget::reserve`].
    pub fn cut(files: Vec<Bytes>, budget: &Arc<ByteBudget>) -> Result<QueryPrints> {
        let mut memory = budget.empty();
        let mut prints = Vec::with_capacity(files.len());
        let mut left_out = 0;
        for file in files {
            let split = FilePrints::split(&file, |bytes| memory.grow(bytes))?;
            let count = split.prints.len();
            let is_of_several = split.are_several();
            let wanted = split.into_query();
            left_out += count - wanted.len();
            prints.extend(wanted.into_iter().map(|file| QueryPrint { file, is_of_several }));
        }
        Ok(QueryPrints { prints, left_out, _memory: memory })
    }
}
