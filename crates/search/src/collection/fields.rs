//! Fields in the payload indexes of a collection's segments.

use std::collections::BTreeMap;

use base::Result;

use super::inner::Collection;

/// Type of most values of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldType {
    /// Truth values.
    Bool,
    /// Whole numbers.
    Integer,
    /// Numbers, some of them fractions.
    Float,
    /// Texts that are dates.
    Datetime,
    /// Texts.
    Keyword,
}

/// Indexed field of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedField {
    /// Path, as in a filter.
    pub path: String,
    /// Type of the values, or `None` if all are objects or long texts.
    pub data_type: Option<FieldType>,
    /// Points with a value that the indexes cover. Unflushed points are not counted.
    pub points: u64,
    /// Segments without an index on the field, and one of the reasons.
    pub unindexed: Option<String>,
}

/// Values of a field in all segments, by type.
#[derive(Default)]
struct FieldSum {
    values: [u64; 5],
    points: u64,
    unindexed: Option<String>,
}

impl FieldSum {
    /// Returns the most frequent type of the values, or `None` without values of a known type.
    fn data_type(&self) -> Option<FieldType> {
        let [bools, integers, floats, dates, texts] = self.values;
        let types = [
            (bools, FieldType::Bool),
            (if floats > 0 { 0 } else { integers }, FieldType::Integer),
            (if floats > 0 { integers + floats } else { 0 }, FieldType::Float),
            // Several texts may be one date.
            (if 2 * dates > texts { texts } else { 0 }, FieldType::Datetime),
            (if 2 * dates > texts { 0 } else { texts }, FieldType::Keyword),
        ];
        types.into_iter().filter(|(count, _)| *count > 0).max().map(|(_, data_type)| data_type)
    }
}

impl Collection {
    /// Returns true if the payload indexes of all open segments have the field. Otherwise a filter
    /// on it reads payloads.
    pub fn has_index(&self, path: &str) -> bool {
        self.read_state().open().all(|(_, _, view)| view.segment.indexes(path))
    }

    /// Returns the fields in the payload indexes of the open segments, by path.
    ///
    /// # Errors
    /// The error of the medium.
    pub fn indexed_fields(&self) -> Result<Vec<IndexedField>> {
        let mut sums: BTreeMap<String, FieldSum> = BTreeMap::new();
        for (_, _, view) in self.state().open() {
            let allow = view.allowed().map(|allowed| &**allowed);
            for field in view.segment.indexed_fields() {
                let points = if field.unindexed.is_empty() {
                    view.segment.present(&field.path, allow)?.unwrap_or(0)
                } else {
                    0
                };
                let sum = sums.entry(field.path).or_default();
                sum.points += points;
                sum.values.iter_mut().zip(field.values).for_each(|(sum, count)| *sum += count);
                if !field.unindexed.is_empty() {
                    sum.unindexed = Some(format!("{}: {}", view.segment.name(), field.unindexed));
                }
            }
        }
        let field = |(path, sum): (String, FieldSum)| IndexedField {
            path,
            data_type: sum.data_type(),
            points: sum.points,
            unindexed: sum.unindexed,
        };
        Ok(sums.into_iter().map(field).collect())
    }
}
