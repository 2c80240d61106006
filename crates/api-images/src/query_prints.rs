//! Prints of the fingers that a query searches for.

use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use image_features::print_files::{self, FilePrints};
use transport::{ByteBudget, Reservation};

/// Prints of the files of a query. A file with several prints has several fingers.
pub struct QueryPrints {
    /// Prints to search for.
    pub prints: Vec<QueryPrint>,
    /// Number of prints of the files that are not searched for.
    pub left_out: usize,
    /// Memory of the files that were made of parts of others.
    _memory: Reservation,
}

/// Print of one finger of a query.
pub struct QueryPrint {
    /// File of the print.
    pub file: Bytes,
    /// True if the print was sent with others in one file.
    is_of_several: bool,
    /// Index of its file in the request; `None` if the request has one file.
    number: Option<usize>,
}

impl QueryPrint {
    /// Returns true if this error of its search leaves the print out of the query. The print cannot
    /// be read then, and its file has others.
    pub fn is_left_out(&self, error: &Error) -> bool {
        self.is_of_several && print_files::is_of_one_print(error)
    }

    /// Adds the index of the print's file in the request to an error of the print.
    pub fn named(&self, error: Error) -> Error {
        of_file(error, self.number)
    }
}

/// Adds the index of a file in the request to an error that concerns one print.
pub(crate) fn of_file(error: Error, number: Option<usize>) -> Error {
    match number {
        Some(number) if print_files::is_of_one_print(&error) => {
            error.context(format_args!("prints[{number}]"))
        }
        _ => error,
    }
}

impl QueryPrints {
    /// Returns true if a file of a query may have several prints. Splitting it then takes time.
    pub(crate) fn may_be_split(files: &[Bytes]) -> bool {
        files.iter().any(|file| print_files::may_have_several(file))
    }

    /// Splits the files of a query into their prints.
    ///
    /// # Errors
    /// `InvalidArgument` for a file with too many prints; the errors of [`ByteBudget::reserve`].
    pub fn split(files: Vec<Bytes>, budget: &Arc<ByteBudget>) -> Result<QueryPrints> {
        let mut memory = budget.empty();
        let mut prints = Vec::with_capacity(files.len());
        let mut left_out = 0;
        let are_files_several = files.len() > 1;
        for (number, file) in files.into_iter().enumerate() {
            let number = are_files_several.then_some(number);
            let _splitting = budget.reserve(print_files::split_bytes(&file))?;
            let split = FilePrints::split(&file, |bytes| memory.grow(bytes))
                .map_err(|error| of_file(error, number))?;
            let count = split.prints.len();
            let is_of_several = split.are_several();
            let wanted = split.into_query();
            left_out += count - wanted.len();
            let query = |file| QueryPrint { file, is_of_several, number };
            prints.extend(wanted.into_iter().map(query));
        }
        Ok(QueryPrints { prints, left_out, _memory: memory })
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use matching::synthetic;
    use matching::template::{self, TemplateFormat};
    use metrics::Metrics;

    use super::*;

    /// Bytes of the header of a template of ISO/IEC 19794-2:2005, before the first view.
    const HEADER_BYTES: usize = 24;

    #[test]
    fn reading_the_views_of_a_template_reserves_memory() {
        let one = template::write(&synthetic::fingerprint(1), TemplateFormat::Iso2005).unwrap();
        let mut two = [&one[..], &one[HEADER_BYTES..]].concat();
        let length = (two.len() as u32).to_be_bytes();
        two[8..12].copy_from_slice(&length);
        two[22] = 2;
        let file = Bytes::from(two);
        let bytes = file.len() as u64;
        let budget = |max: u64| ByteBudget::new(max, Arc::new(Metrics::default()));
        let small = budget(2 * bytes);
        let refused = QueryPrints::split(vec![file.clone()], &small).err().unwrap();
        assert_eq!((refused.kind(), small.used()), (ErrorKind::TooLarge, 0));
        let large = budget(4 * bytes);
        let sought = QueryPrints::split(vec![file], &large).unwrap();
        // The file of the second print remains.
        assert_eq!((sought.prints.len(), large.used()), (2, one.len() as u64));
        assert!(large.peak() >= 3 * bytes);
        drop(sought);
        assert_eq!(large.used(), 0);
    }
}
