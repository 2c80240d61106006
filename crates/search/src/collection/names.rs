//! Names of a collection's files. Their numbers come from one counter and are never reused.

/// Digits of a file number in a name.
const NUMBER_DIGITS: usize = 12;
/// Highest number that a name can have.
pub(super) const FILE_NUMBER_MAX: u64 = 999_999_999_999;
/// Highest number in a copy. The numbers above it are left for files that are written later.
pub(super) const COPIED_NUMBER_MAX: u64 = FILE_NUMBER_MAX / 2;

/// File of a collection, by kind and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectionFile {
    /// Changes, of which some are not flushed.
    Log(u64),
    /// Segment.
    Segment(u64),
    /// Deleted rows of a segment.
    Deletes(u64),
    /// Ids to delete from a segment that is not open. Called `waiting` on disk.
    PendingDeletes(u64),
}

impl CollectionFile {
    /// Parses a file name. Returns `None` if it is not a file of a collection.
    pub(super) fn of(name: &str) -> Option<CollectionFile> {
        let (kind, digits) = name.split_once('-')?;
        // `parse` also accepts a sign.
        let is_number =
            digits.len() == NUMBER_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| is_number)?;
        match kind {
            "log" => Some(CollectionFile::Log(number)),
            "segment" => Some(CollectionFile::Segment(number)),
            "deletes" => Some(CollectionFile::Deletes(number)),
            "waiting" => Some(CollectionFile::PendingDeletes(number)),
            _ => None,
        }
    }

    pub(super) fn number(self) -> u64 {
        match self {
            CollectionFile::Log(number)
            | CollectionFile::Segment(number)
            | CollectionFile::Deletes(number)
            | CollectionFile::PendingDeletes(number) => number,
        }
    }

    pub(super) fn name(self) -> String {
        let kind = match self {
            CollectionFile::Log(_) => "log",
            CollectionFile::Segment(_) => "segment",
            CollectionFile::Deletes(_) => "deletes",
            CollectionFile::PendingDeletes(_) => "waiting",
        };
        format!("{kind}-{:0NUMBER_DIGITS$}", self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for file in [
            CollectionFile::Log(0),
            CollectionFile::Log(FILE_NUMBER_MAX),
            CollectionFile::Segment(7),
            CollectionFile::Deletes(123_456_789_012),
            CollectionFile::PendingDeletes(1),
        ] {
            assert_eq!(CollectionFile::of(&file.name()), Some(file));
        }
        for foreign in [
            "manifest",
            "list-000000000001",
            "log-1",
            "segment-",
            "log-00000000000x",
            "log-+00000000001",
            "segment-0000000000001",
        ] {
            assert_eq!(CollectionFile::of(foreign), None, "{foreign}");
        }
    }
}
