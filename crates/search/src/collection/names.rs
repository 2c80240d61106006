//! The names of a collection's files. Numbers come from one counter and are never used twice.

/// What a file is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum File {
    /// Changes that are not all sealed.
    Log(u64),
    /// A segment.
    Segment(u64),
    /// Which rows of a segment are gone.
    Deletes(u64),
    /// Ids that a segment which is not open shall forget.
    Waiting(u64),
}

impl File {
    /// What `name` is; `None` for a file that is not a collection's.
    pub(super) fn of(name: &str) -> Option<File> {
        let (kind, digits) = name.split_once('-').filter(|(_, digits)| digits.len() == 12)?;
        let number = digits.parse().ok()?;
        match kind {
            "log" => Some(File::Log(number)),
            "segment" => Some(File::Segment(number)),
            "deletes" => Some(File::Deletes(number)),
            "waiting" => Some(File::Waiting(number)),
            _ => None,
        }
    }

    pub(super) fn number(self) -> u64 {
        match self {
            File::Log(number) | File::Segment(number) | File::Deletes(number) | File::Waiting(number) => {
                number
            }
        }
    }

    pub(super) fn name(self) -> String {
        let kind = match self {
            File::Log(_) => "log",
            File::Segment(_) => "segment",
            File::Deletes(_) => "deletes",
            File::Waiting(_) => "waiting",
        };
        format!("{kind}-{:012}", self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for file in [File::Log(0), File::Segment(7), File::Deletes(123_456_789_012), File::Waiting(1)] {
            assert_eq!(File::of(&file.name()), Some(file));
        }
        for foreign in [
            "manifest",
            "list-000000000001",
            "log-1",
            "segment-",
            "log-00000000000x",
            "segment-0000000000001",
        ] {
            assert_eq!(File::of(foreign), None, "{foreign}");
        }
    }
}
