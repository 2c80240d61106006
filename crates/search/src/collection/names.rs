//! The names of a collection's files. Numbers come from one counter and are never used twice.

/// What a file is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectionFile {
    /// Changes that are not all sealed.
    Log(u64),
    /// A segment.
    Segment(u64),
    /// Which rows of a segment are gone.
    Deletes(u64),
    /// Ids that a segment which is not open shall forget.
    PendingDeletes(u64),
}

impl CollectionFile {
    /// What `name` is; `None` for a file that is not a collection's.
    pub(super) fn of(name: &str) -> Option<CollectionFile> {
        let (kind, digits) = name.split_once('-').filter(|(_, digits)| digits.len() == 12)?;
        let number = digits.parse().ok()?;
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
        format!("{kind}-{:012}", self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for file in [
            CollectionFile::Log(0),
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
            "segment-0000000000001",
        ] {
            assert_eq!(CollectionFile::of(foreign), None, "{foreign}");
        }
    }
}
