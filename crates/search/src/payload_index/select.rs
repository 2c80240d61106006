//! Evaluates a filter with a segment's payload index.

use base::{ErrorKind, Result};
use coarse::RowSet;
use serde_json::Value;
use storage::Sealed;

use super::TEXT_BYTES_MAX;
use super::directory::{BitmapPlace, DictionaryBlock, FieldDirectory};
use super::key::{KeyOf, KeyRef, NumberKey, compare_values, is_before};
use super::read::{FieldLookup, PayloadIndex, RowPiece};
use super::selection::{RowSelection, SelectionParts};
use crate::filter::{
    Condition, DateRange, Filter, IdSlice, Match, MatchValues, Range, RangeLimit, WholeRange,
};
use crate::points::{NUMBERS_MAX, PointId};
use crate::segment::ids::SegmentIds;

/// Maximum bytes of a field's list that are read for [`Match::Except`] of a field with several
/// values a row. Above, rows with an excluded value are undecided.
const EXCEPT_BYTES_MAX: u64 = 16 << 20;

/// Segment whose rows are selected.
#[derive(Clone, Copy)]
pub(crate) struct FilterInput<'a> {
    /// `None` for a segment without an index. All conditions on fields are then undecided.
    pub(crate) index: Option<&'a PayloadIndex>,
    pub(crate) file: &'a dyn Sealed,
    pub(crate) ids: &'a SegmentIds,
    pub(crate) rows: u32,
}

/// Rows selected by a filter.
#[derive(Debug)]
pub(crate) struct IndexAnswer {
    pub(crate) selection: RowSelection,
    /// Fields of conditions that the index could not decide, with the reason.
    pub(crate) unindexed: Vec<String>,
}

/// Selects the rows that meet `filter`.
///
/// # Errors
/// The error of the medium. Damaged parts of the index leave rows undecided.
pub(crate) fn select(input: FilterInput<'_>, filter: &Filter) -> Result<IndexAnswer> {
    let mut evaluation = Evaluation { input, unindexed: Vec::new() };
    let selection = evaluation.filter(filter)?;
    Ok(IndexAnswer { selection, unindexed: evaluation.unindexed })
}

struct Evaluation<'a> {
    input: FilterInput<'a>,
    unindexed: Vec<String>,
}

impl<'a> Evaluation<'a> {
    fn all(&self) -> RowSelection {
        RowSelection::sure(RowSet::all(self.input.rows))
    }

    fn none(&self) -> RowSelection {
        RowSelection::sure(RowSet::none(self.input.rows))
    }

    /// Selects the rows that meet a filter, and the rows that may meet it.
    fn filter(&mut self, filter: &Filter) -> Result<RowSelection> {
        let mut selection: Option<RowSelection> = None;
        let and = |selection: &mut Option<RowSelection>, next: RowSelection| match selection {
            Some(known) => known.and(&next),
            None => *selection = Some(next),
        };
        for condition in &filter.must {
            let met = self.condition(condition)?;
            and(&mut selection, met);
            if selection.as_ref().is_some_and(RowSelection::is_impossible) {
                return Ok(self.none());
            }
        }
        for condition in &filter.must_not {
            let met = self.condition(condition)?;
            and(&mut selection, met.not());
        }
        if !filter.should.is_empty() {
            let mut met = self.none();
            for condition in &filter.should {
                met.or(&self.condition(condition)?);
            }
            and(&mut selection, met);
        }
        if let Some(min) = &filter.min_should {
            let met = self.at_least(&min.conditions, min.min_count)?;
            and(&mut selection, met);
        }
        Ok(selection.unwrap_or_else(|| self.all()))
    }

    /// Selects the rows that meet at least `least` of the conditions.
    fn at_least(&mut self, conditions: &[Condition], least: usize) -> Result<RowSelection> {
        let rows = self.input.rows;
        let mut sure = vec![0_u16; rows as usize];
        let mut possible = sure.clone();
        for condition in conditions {
            let SelectionParts { sure: met, undecided } = self.condition(condition)?.into_parts();
            for row in met.iter() {
                sure[row as usize] += 1;
                possible[row as usize] += 1;
            }
            undecided.iter().flat_map(RowSet::iter).for_each(|row| possible[row as usize] += 1);
        }
        let enough = |counts: &[u16]| {
            let rows_of = (0..).zip(counts).filter(|(_, count)| usize::from(**count) >= least);
            RowSet::from_rows(rows, rows_of.map(|(row, _)| row))
        };
        let mut undecided = enough(&possible);
        let mut met = RowSelection::sure(enough(&sure));
        undecided.subtract(&enough(&sure));
        met.add_undecided(&undecided);
        Ok(met)
    }

    /// Selects the rows that meet a condition. Rows are undecided if the index lacks their values,
    /// and the reason is noted.
    fn condition(&mut self, condition: &Condition) -> Result<RowSelection> {
        let key = match condition {
            Condition::Nested(filter) => return self.filter(filter),
            Condition::HasId(ids) => {
                let rows = ids.iter().filter_map(|&id| self.input.ids.find(id));
                let rows = RowSet::from_rows(self.input.rows, rows);
                return Ok(RowSelection::sure(rows));
            }
            Condition::Slice(slice) => return Ok(self.slice(*slice)),
            Condition::HasVector { is_present: true, .. } => return Ok(self.all()),
            Condition::HasVector { is_present: false, .. } => return Ok(self.none()),
            Condition::Match { key, .. }
            | Condition::Geo { key, .. }
            | Condition::Element { key, .. }
            | Condition::Range { key, .. }
            | Condition::WholeRange { key, .. }
            | Condition::DateRange { key, .. }
            | Condition::ValuesCount { key, .. }
            | Condition::IsEmpty { key }
            | Condition::IsNull { key } => key,
        };
        let Some(index) = self.input.index else {
            return Ok(self.undecided(key, "the segment was written without indexes"));
        };
        match index.field(key) {
            FieldLookup::Unindexed(reason) => Ok(self.undecided(key, &reason)),
            FieldLookup::Absent => Ok(match condition {
                Condition::IsEmpty { .. } => self.all(),
                Condition::ValuesCount { range, .. } if range.contain(0) => self.all(),
                _ => self.none(),
            }),
            FieldLookup::Indexed { field, elements_only } => {
                let reader = FieldReader { index, file: self.input.file, field };
                let met = reader.condition(condition, elements_only);
                match met {
                    Ok(Some(met)) => {
                        if !met.is_decided() {
                            let reason = undecided_reason(condition);
                            self.note(format!("\"{key}\" {reason}"));
                        }
                        Ok(met)
                    }
                    Ok(None) => Ok(self.undecided(key, "values are not counted")),
                    // The payloads have their own checksums, so they can still decide.
                    Err(error) if error.kind() == ErrorKind::DataLoss => {
                        Ok(self.undecided(key, "its index is damaged"))
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Selects the rows of a slice. Rows whose ids are in their payloads are undecided.
    fn slice(&mut self, slice: IdSlice) -> RowSelection {
        let ids = self.input.ids;
        let rows = self.input.rows;
        let of_rows = |is_wanted: &dyn Fn(u64) -> bool| {
            RowSet::from_rows(rows, (0..rows).filter(|row| ids.id(*row).is_some_and(is_wanted)))
        };
        let is_in = |id| id < NUMBERS_MAX && slice.contains(&PointId::Number(id));
        let mut met = RowSelection::sure(of_rows(&is_in));
        met.add_undecided(&of_rows(&|id| id >= NUMBERS_MAX));
        if !met.is_decided() {
            self.note("slices have no index of UUIDs".to_owned());
        }
        met
    }

    fn undecided(&mut self, key: &str, reason: &str) -> RowSelection {
        self.note(format!("\"{key}\" has no index: {reason}"));
        RowSelection::undecided(RowSet::all(self.input.rows))
    }

    fn note(&mut self, reason: String) {
        if !self.unindexed.contains(&reason) {
            self.unindexed.push(reason);
        }
    }
}

/// Returns the reason why an index leaves rows undecided, after the name of the field.
fn undecided_reason(condition: &Condition) -> &'static str {
    match condition {
        Condition::Match {
            matching: Match::Text(_) | Match::Prefix(_) | Match::Substring(_),
            ..
        } => "has no index of words and parts of texts",
        Condition::Geo { .. } => "has no index of areas",
        Condition::WholeRange { .. } => "has large whole numbers near a limit",
        Condition::Element { .. } => "has no index of the objects of its list",
        _ => "has values that its index lacks",
    }
}

/// One field of an index.
struct FieldReader<'a> {
    index: &'a PayloadIndex,
    file: &'a dyn Sealed,
    field: &'a FieldDirectory,
}

/// Rows with one of some values.
struct MatchedValues {
    rows: RowSet,
    /// True if the dictionary may lack a wanted value because it is a long text.
    long: bool,
    /// True if a wanted value is a list or an object.
    other: bool,
}

impl FieldReader<'_> {
    /// Returns the rows that meet a condition, or `None` if the index cannot decide it.
    /// `elements_only` is true if the path stands for elements of lists only.
    fn condition(
        &self,
        condition: &Condition,
        elements_only: bool,
    ) -> Result<Option<RowSelection>> {
        let bitmaps = &self.field.bitmaps;
        let mut met = match condition {
            Condition::Match { matching: Match::Except(values), .. } => self.except(values)?,
            Condition::Match { matching: Match::Value(value), .. } => {
                self.any(std::slice::from_ref(value))?
            }
            Condition::Match { matching: Match::Any(values), .. } => self.any(values)?,
            Condition::Range { range, .. } => RowSelection::sure(self.range(range)?),
            Condition::WholeRange { range, .. } => self.whole_range(range)?,
            Condition::DateRange { range, .. } => RowSelection::sure(self.dates(range)?),
            Condition::IsEmpty { .. } => {
                let present = self.bitmap(&bitmaps.present)?;
                let mut null = self.bitmap(&bitmaps.null)?;
                null.subtract(&present);
                let mut empty = RowSelection::sure(present).not();
                // Null is empty, and a list of nulls is not.
                empty.add_undecided(&null);
                empty
            }
            Condition::IsNull { .. } => RowSelection::sure(self.bitmap(&bitmaps.null)?),
            // The index has the rows with a value. Their payloads decide.
            Condition::Match {
                matching: Match::Text(_) | Match::Prefix(_) | Match::Substring(_),
                ..
            }
            | Condition::Geo { .. }
            | Condition::Element { .. } => {
                return Ok(Some(RowSelection::undecided(self.bitmap(&bitmaps.present)?)));
            }
            Condition::ValuesCount { .. }
            | Condition::HasId(_)
            | Condition::Slice(_)
            | Condition::HasVector { .. }
            | Condition::Nested(_) => return Ok(None),
        };
        if elements_only {
            // A value outside of a list is not an element of a list.
            let outside = match condition {
                Condition::IsNull { .. } => &bitmaps.null,
                _ => &bitmaps.bare,
            };
            met.add_undecided(&self.bitmap(outside)?);
            // The index lacks the elements of a list in a list.
            met.add_undecided(&self.bitmap(&bitmaps.other)?);
        }
        Ok(Some(met))
    }

    fn bitmap(&self, place: &BitmapPlace) -> Result<RowSet> {
        self.index.bitmap(self.file, place)
    }

    /// Selects the rows with one of `values`.
    fn any(&self, values: &[Value]) -> Result<RowSelection> {
        let matched = self.matched(values)?;
        let mut met = RowSelection::sure(matched.rows);
        if matched.long {
            met.add_undecided(&self.bitmap(&self.field.bitmaps.long)?);
        }
        if matched.other {
            met.add_undecided(&self.bitmap(&self.field.bitmaps.other)?);
        }
        Ok(met)
    }

    /// Finds the rows with one of `values` in the dictionary.
    fn matched(&self, values: &[Value]) -> Result<MatchedValues> {
        let mut wanted: Vec<KeyRef<'_>> = values.iter().filter_map(KeyRef::of).collect();
        let keys = wanted.len();
        wanted.retain(|key| key.text_bytes() <= TEXT_BYTES_MAX);
        let long = wanted.len() < keys;
        let other = keys < values.len();
        wanted.sort_unstable();
        wanted.dedup();
        let mut rows = RowSet::none(self.index.rows());
        for dense in &self.field.dense {
            if is_wanted(&wanted, dense.key.as_ref()) {
                self.index.add_bitmap(self.file, &dense.rows, &mut rows)?;
            }
        }
        let blocks = self.field.blocks_of(&wanted);
        let mut pieces = Vec::new();
        self.index.entries(self.file, &blocks, &mut |entry| {
            if is_wanted(&wanted, entry.key) {
                pieces.push(RowPiece { position: entry.position, count: entry.count });
            }
            Ok(())
        })?;
        self.index.add_rows(self.file, self.field, &pieces, &mut rows)?;
        Ok(MatchedValues { rows, long, other })
    }

    /// Selects the rows with a value other than all of `values`.
    fn except(&self, values: &MatchValues) -> Result<RowSelection> {
        let bitmaps = &self.field.bitmaps;
        let matched = self.matched(values)?;
        let mut rows = self.bitmap(&bitmaps.present)?;
        rows.subtract(&matched.rows);
        let mut different = matched.rows;
        different.intersect(&self.bitmap(&bitmaps.several)?);
        let list_bytes = self.field.postings * 4;
        let mut undecided = RowSet::none(self.index.rows());
        if !different.is_empty() {
            if list_bytes <= EXCEPT_BYTES_MAX {
                self.add_others(values, &mut rows)?;
            } else {
                undecided.unite(&different);
            }
        }
        let others = self.bitmap(&bitmaps.other)?;
        let long = self.bitmap(&bitmaps.long)?;
        if matched.other {
            undecided.unite(&others)
        } else {
            rows.unite(&others)
        }
        if matched.long {
            undecided.unite(&long)
        } else {
            rows.unite(&long)
        }
        let mut met = RowSelection::sure(rows);
        met.add_undecided(&undecided);
        Ok(met)
    }

    /// Adds the rows of all values except the values of `excluded`.
    fn add_others(&self, excluded: &MatchValues, rows: &mut RowSet) -> Result<()> {
        let counts = |key: KeyRef<'_>| key.to_value().is_some_and(|value| !excluded.has(&value));
        for dense in self.field.dense.iter().filter(|dense| counts(dense.key.as_ref())) {
            self.index.add_bitmap(self.file, &dense.rows, rows)?;
        }
        let blocks: Vec<_> = self.field.blocks.iter().collect();
        let mut pieces: Vec<RowPiece> = Vec::new();
        self.index.entries(self.file, &blocks, &mut |entry| {
            if counts(entry.key) {
                match pieces.last_mut() {
                    Some(last) if last.position + last.count == entry.position => {
                        last.count += entry.count;
                    }
                    _ => pieces.push(RowPiece { position: entry.position, count: entry.count }),
                }
            }
            Ok(())
        })?;
        self.index.add_rows(self.file, self.field, &pieces, rows)
    }

    fn range(&self, range: &Range) -> Result<RowSet> {
        let Range { gt, gte, lt, lte } = *range;
        if [gt, gte, lt, lte].into_iter().flatten().any(f64::is_nan) {
            return Ok(RowSet::none(self.index.rows()));
        }
        let number = |value| KeyOf::Number(NumberKey::float(value));
        let lower = [(gt, true), (gte, false), (Some(f64::NEG_INFINITY), false)];
        let upper = [(lt, false), (lte, true), (Some(f64::INFINITY), true)];
        self.between(&bounds(lower, number), &bounds(upper, number))
    }

    /// Selects the rows with a number within `range`. Rows that have such a number only if the
    /// border counts are undecided, because their payloads are compared exactly.
    fn whole_range(&self, range: &WholeRange) -> Result<RowSelection> {
        if let Some(range) = range.as_floats() {
            return Ok(RowSelection::sure(self.range(&range)?));
        }
        let inner = self.floats_within(range, RangeBorder::Outside)?;
        let mut border = self.floats_within(range, RangeBorder::Within)?;
        border.subtract(&inner);
        let mut met = RowSelection::sure(inner);
        met.add_undecided(&border);
        Ok(met)
    }

    /// Selects the rows with a number whose float is within `range`. The border is the floats of
    /// limits that several whole numbers have.
    fn floats_within(&self, range: &WholeRange, border: RangeBorder) -> Result<RowSet> {
        let is_within = border == RangeBorder::Within;
        let WholeRange { gt, gte, lt, lte } = *range;
        let number = |limit: RangeLimit| KeyOf::Number(NumberKey::float(limit.float()));
        let limit = |limit: Option<RangeLimit>, own: bool, shared: bool| {
            (limit, if limit.is_none_or(RangeLimit::has_own_float) { own } else { shared })
        };
        let lowest = Some(RangeLimit::Float(f64::NEG_INFINITY));
        let highest = Some(RangeLimit::Float(f64::INFINITY));
        let lower = [limit(gt, true, !is_within), limit(gte, false, !is_within), (lowest, false)];
        let upper = [limit(lt, false, is_within), limit(lte, true, is_within), (highest, true)];
        self.between(&bounds(lower, number), &bounds(upper, number))
    }

    fn dates(&self, range: &DateRange) -> Result<RowSet> {
        let DateRange { gt, gte, lt, lte } = *range;
        let lower = [(gt, true), (gte, false), (Some(i64::MIN), false)];
        let upper = [(lt, false), (lte, true), (Some(i64::MAX), true)];
        self.between(&bounds(lower, KeyOf::Date), &bounds(upper, KeyOf::Date))
    }

    /// Selects the rows with a value that is not before any of `lower` and before all of `upper`.
    fn between(&self, lower: &[ValueBound], upper: &[ValueBound]) -> Result<RowSet> {
        let mut rows = RowSet::none(self.index.rows());
        for dense in &self.field.dense {
            let key = dense.key.as_ref();
            let above = !lower.iter().any(|bound| is_before(key, bound.key, bound.after));
            if above && upper.iter().all(|bound| is_before(key, bound.key, bound.after)) {
                self.index.add_bitmap(self.file, &dense.rows, &mut rows)?;
            }
        }
        let place = |it: &ValueBound| self.index.position(self.file, self.field, it.key, it.after);
        let mut start = 0;
        for bound in lower {
            start = place(bound)?.max(start);
        }
        let mut end = u64::MAX;
        for bound in upper {
            end = place(bound)?.min(end);
        }
        let piece = RowPiece { position: start, count: end.saturating_sub(start) };
        if piece.count > 0 {
            self.index.add_range(self.file, self.field, piece, &mut rows)?;
        }
        Ok(rows)
    }
}

/// Treatment of the floats of limits that several whole numbers have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RangeBorder {
    Within,
    Outside,
}

/// Place before a value, or after it.
struct ValueBound {
    key: KeyRef<'static>,
    after: bool,
}

fn bounds<T: Copy>(
    limits: [(Option<T>, bool); 3],
    key: impl Fn(T) -> KeyRef<'static>,
) -> Vec<ValueBound> {
    let limits = limits.into_iter();
    limits.filter_map(|(limit, after)| Some(ValueBound { key: key(limit?), after })).collect()
}

/// Returns true if one of `wanted`, which are sorted, equals `key`.
fn is_wanted(wanted: &[KeyRef<'_>], key: KeyRef<'_>) -> bool {
    let first = wanted.partition_point(|wanted| compare_values(*wanted, key).is_lt());
    let mut equal = wanted[first..].iter().take_while(|it| compare_values(**it, key).is_le());
    equal.any(|it| it.same(key))
}

impl FieldDirectory {
    /// Returns the blocks that may have one of `wanted`, which are sorted.
    fn blocks_of(&self, wanted: &[KeyRef<'_>]) -> Vec<&DictionaryBlock> {
        let mut found = Vec::new();
        let mut next = 0;
        for key in wanted {
            // The value may begin in the last block whose first value is below it, and it may
            // continue in blocks that begin with it.
            let compare = |it: &DictionaryBlock| compare_values(it.first.as_ref(), *key);
            let from = self.blocks.partition_point(|it| compare(it).is_lt());
            let to = self.blocks.partition_point(|it| compare(it).is_le());
            let from = from.saturating_sub(1).max(next);
            found.extend(self.blocks.get(from..to).unwrap_or(&[]));
            next = to.max(next);
        }
        found
    }
}
