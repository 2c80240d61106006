//! Answers of shards merged to the answer of the whole collection. Points stay as the text that
//! their holder wrote.
//!
//! A point is in one shard only, so no point appears twice. All functions are pure.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;

use api_qdrant::json::check_ordered_limit;
use base::{Error, Result};
use search::collection::{FacetValue, OrderValue};
use search::points::PointId;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Deserializer, Number, Value, json};

/// Bytes of points after which a page ends. Its rest comes with the next page.
const PAGE_BYTES_MAX: usize = 128 << 20;

/// Order of the hits of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HitOrder {
    /// The largest score first. Hits of equal scores are in the order of their ids.
    HigherScore,
    /// The smallest score first, because it is a distance. Hits of equal scores are in the order of
    /// their ids, but hits of one shard stay in its order. The shard compares squared distances,
    /// and several of them can have the same root.
    LowerScore,
    /// By a value of the payload, and then by the id.
    Value { descending: bool },
}

/// Part of the merged hits that the answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HitRange {
    /// Number of hits to skip.
    pub(super) offset: usize,
    /// Maximum hits of the answer.
    pub(super) limit: usize,
}

/// Results of the shards that answered.
#[derive(Clone, Copy, Debug)]
pub struct ShardResults<'a> {
    /// Results as JSON text.
    pub results: &'a [&'a RawValue],
    /// True if shards are missing.
    pub incomplete: bool,
}

impl ShardResults<'_> {
    /// Returns the results, incomplete if `incomplete` or if they are already.
    pub(super) fn or_incomplete(self, incomplete: bool) -> Self {
        ShardResults { incomplete: self.incomplete || incomplete, ..self }
    }
}

/// A shard's page of points.
#[derive(Deserialize)]
pub(super) struct PointsText<'a> {
    #[serde(borrow)]
    pub(super) points: Vec<&'a RawValue>,
    #[serde(default)]
    next_page_offset: Option<PointId>,
    #[serde(default)]
    pub(super) partial: bool,
    /// Positions of the points that a date ordered.
    #[serde(default)]
    order_dates: Range<usize>,
}

impl<'a> PointsText<'a> {
    /// Reads the keys of the points.
    ///
    /// # Errors
    /// As [`read`].
    pub(super) fn into_keyed(self) -> Result<Vec<KeyedPoint<'a>>> {
        let dates = self.order_dates;
        let points = self.points.into_iter().enumerate();
        points.map(|(at, point)| keyed_in_order(point, dates.contains(&at))).collect()
    }
}

/// Members of a point that its [`PointKey`] needs.
#[derive(Deserialize)]
struct PointKeyText {
    id: PointId,
    score: Option<f32>,
    order_value: Option<Number>,
}

impl PointKeyText {
    /// Returns the key of the point. `is_date` is true if a date ordered it.
    fn key(self, is_date: bool) -> PointKey {
        let value = self.order_value.and_then(|number| {
            if is_date {
                number.as_i64().map(OrderValue::date)
            } else {
                OrderValue::of(&Value::Number(number))
            }
        });
        PointKey { id: with_position(self.id), score: self.score, value }
    }
}

/// Parts of a point that decide its position in a merged answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PointKey {
    /// The id with its position among the ids of a collection, as [`with_position`] returns it.
    id: (u64, PointId),
    score: Option<f32>,
    /// Value of the payload field by which points are ordered.
    value: Option<OrderValue>,
}

/// A point and its JSON text.
pub(super) struct KeyedPoint<'a> {
    pub(super) key: PointKey,
    pub(super) text: &'a str,
}

impl PointKey {
    /// Creates the key of a hit.
    pub(super) fn scored(id: PointId, score: f32) -> PointKey {
        PointKey { id: with_position(id), score: Some(score), value: None }
    }

    /// Returns the point's id.
    pub(super) fn point(&self) -> PointId {
        self.id.1
    }

    /// Returns the hit's score.
    pub(super) fn score(&self) -> Option<f32> {
        self.score
    }
}

/// Returns an id with its position among the ids of a collection: numbers, then UUIDs by their
/// hash.
fn with_position(id: PointId) -> (u64, PointId) {
    (id.internal(), id)
}

/// Parses the result of a shard.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a RawValue) -> Result<T> {
    read_text(text.get())
}

/// Parses a part of the result of a shard.
///
/// # Errors
/// As [`read`].
pub(super) fn read_text<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::internal("a shard's result").caused_by(error))
}

/// Reads the key of a point.
///
/// # Errors
/// As [`read`].
pub(super) fn keyed(text: &RawValue) -> Result<KeyedPoint<'_>> {
    keyed_in_order(text, false)
}

/// Reads the key of a point of an ordered page. `is_date` is true if a date ordered the point.
///
/// # Errors
/// As [`read`].
pub(super) fn keyed_in_order(text: &RawValue, is_date: bool) -> Result<KeyedPoint<'_>> {
    let point: PointKeyText = read(text)?;
    Ok(KeyedPoint { key: point.key(is_date), text: text.get() })
}

impl HitOrder {
    /// Compares two points of one query. The point that comes first is less.
    pub(super) fn compare(self, one: &PointKey, other: &PointKey) -> Ordering {
        let by_id = || one.id.cmp(&other.id);
        match self {
            // A score that is not a number has no JSON and comes last.
            HitOrder::HigherScore => {
                let score = |key: &PointKey| key.score.unwrap_or(f32::NEG_INFINITY);
                score(other).total_cmp(&score(one)).then_with(by_id)
            }
            HitOrder::LowerScore => {
                let score = |key: &PointKey| key.score.unwrap_or(f32::INFINITY);
                score(one).total_cmp(&score(other)).then_with(by_id)
            }
            HitOrder::Value { descending } => {
                let order = one.value.cmp(&other.value).then_with(by_id);
                if descending { order.reverse() } else { order }
            }
        }
    }
}

/// Merged hits of a query, best first.
pub(super) struct MergedHits<'a> {
    pub(super) points: Vec<KeyedPoint<'a>>,
    /// True if hits may be missing.
    pub(super) partial: bool,
}

/// Points of one shard, or of all shards in no order.
struct KeyedPoints<'a> {
    points: Vec<KeyedPoint<'a>>,
    /// True if points may be missing.
    partial: bool,
}

/// Reads the points of all shards.
///
/// # Errors
/// As [`read`].
fn all_points(shards: ShardResults<'_>) -> Result<KeyedPoints<'_>> {
    let mut all = KeyedPoints { points: Vec::new(), partial: shards.incomplete };
    for result in shards.results {
        let KeyedPoints { mut points, partial } = shard_points(result)?;
        all.partial |= partial;
        all.points.append(&mut points);
    }
    Ok(all)
}

/// Reads the points of a shard.
///
/// # Errors
/// As [`read`].
fn shard_points(result: &RawValue) -> Result<KeyedPoints<'_>> {
    if let Some(points) = points_in_one_pass(result.get()) {
        return Ok(KeyedPoints { points, partial: false });
    }
    let result: PointsText<'_> = read(result)?;
    let partial = result.partial;
    Ok(KeyedPoints { points: result.into_keyed()?, partial })
}

/// Reads the points of a page that has no other member and no space between its points. Returns
/// `None` for every other text. [`PointsText`] reads every page, but scans each point twice.
fn points_in_one_pass(page: &str) -> Option<Vec<KeyedPoint<'_>>> {
    let mut rest = page.strip_prefix("{\"points\":[")?;
    let mut points = Vec::new();
    while rest != "]}" {
        if !points.is_empty() {
            rest = rest.strip_prefix(',')?;
        }
        if !rest.starts_with('{') {
            return None;
        }
        let mut reader = Deserializer::from_str(rest);
        let point = PointKeyText::deserialize(&mut reader).ok()?;
        let end = reader.into_iter::<IgnoredAny>().byte_offset();
        let (text, after) = rest.split_at_checked(end)?;
        points.push(KeyedPoint { key: point.key(false), text });
        rest = after;
    }
    Some(points)
}

/// Hit of a shard, and its place among the hits of all shards.
struct PlacedHit<'a> {
    point: KeyedPoint<'a>,
    /// Key that decides the place.
    key: PointKey,
    /// Position among the hits of the shard. It decides between equal keys.
    at: usize,
}

/// Returns the hits of a shard with their places, in the order of the shard.
fn placed(order: HitOrder, points: Vec<KeyedPoint<'_>>) -> impl Iterator<Item = PlacedHit<'_>> {
    let mut last: Option<PointKey> = None;
    points.into_iter().enumerate().map(move |(at, point)| {
        let mut key = point.key;
        // With the largest id so far, a hit comes right after the hits of its shard before it. A
        // larger limit then changes no place, so each hit is on one page.
        if order == HitOrder::LowerScore
            && let Some(before) = last
            && before.score == key.score
        {
            key.id = key.id.max(before.id);
        }
        last = Some(key);
        PlacedHit { point, key, at }
    })
}

/// Returns the merged hits of a query.
///
/// # Errors
/// As [`read`].
pub(super) fn merged_hits<'a>(
    shards: ShardResults<'a>,
    order: HitOrder,
    range: HitRange,
) -> Result<MergedHits<'a>> {
    let mut partial = shards.incomplete;
    let mut all: Vec<PlacedHit<'a>> = Vec::new();
    for result in shards.results {
        let KeyedPoints { points, partial: is_partial } = shard_points(result)?;
        partial |= is_partial;
        all.extend(placed(order, points));
    }
    let compare = |one: &PlacedHit<'_>, other: &PlacedHit<'_>| {
        order.compare(&one.key, &other.key).then(one.at.cmp(&other.at))
    };
    let kept = range.offset.saturating_add(range.limit);
    if kept < all.len() {
        all.select_nth_unstable_by(kept, compare);
        all.truncate(kept);
    }
    all.sort_unstable_by(compare);
    all.drain(..range.offset.min(all.len()));
    let points = all.into_iter().map(|hit| hit.point).collect();
    Ok(MergedHits { points, partial })
}

/// Returns the JSON of the merged hits of a query.
///
/// # Errors
/// As [`merged_hits`].
pub(super) fn hits(shards: ShardResults<'_>, order: HitOrder, range: HitRange) -> Result<Vec<u8>> {
    let merged = merged_hits(shards, order, range)?;
    Ok(page_text(merged.points.iter().map(|point| point.text), None, merged.partial))
}

/// Checks that a merged answer is JSON and returns it as such.
///
/// # Errors
/// `Internal` if the text is not JSON.
pub(super) fn text(result: Vec<u8>) -> Result<Box<RawValue>> {
    let not_json = || Error::internal("a merged answer");
    // Not the error itself, which keeps the bytes of the answer.
    let text =
        String::from_utf8(result).map_err(|error| not_json().caused_by(error.utf8_error()))?;
    RawValue::from_string(text).map_err(|error| not_json().caused_by(error))
}

/// Returns the JSON of a page of points. `next` is the text of the next page's offset, if the
/// answer has this member.
fn page_text<'a>(
    points: impl Iterator<Item = &'a str>,
    next: Option<&str>,
    partial: bool,
) -> Vec<u8> {
    let mut text = b"{\"points\":".to_vec();
    push_list(&mut text, points);
    if let Some(next) = next {
        text.extend_from_slice(b",\"next_page_offset\":");
        text.extend_from_slice(next.as_bytes());
    }
    if partial {
        text.extend_from_slice(b",\"partial\":true");
    }
    text.push(b'}');
    text
}

fn push_list<'a>(text: &mut Vec<u8>, values: impl Iterator<Item = &'a str>) {
    text.push(b'[');
    for (at, value) in values.enumerate() {
        if at > 0 {
            text.push(b',');
        }
        text.extend_from_slice(value.as_bytes());
    }
    text.push(b']');
}

/// Returns the results of each query of a batch, by query and shard.
///
/// # Errors
/// As [`read`]; `Internal` if a shard answered another number of queries.
fn by_query<'a>(shards: ShardResults<'a>, queries: usize) -> Result<Vec<Vec<&'a RawValue>>> {
    let mut columns: Vec<Vec<&RawValue>> = vec![Vec::new(); queries];
    for result in shards.results {
        let answers: Vec<&RawValue> = read(result)?;
        if answers.len() != queries {
            return Err(Error::internal(format!(
                "a shard answered {} of {queries} queries",
                answers.len()
            )));
        }
        columns.iter_mut().zip(answers).for_each(|(column, answer)| column.push(answer));
    }
    Ok(columns)
}

/// Returns the JSON list of the merged hits of each query of a batch. `queries` has the order and
/// the range of each.
///
/// # Errors
/// As [`hits`] and [`by_query`].
pub(super) fn batch(shards: ShardResults<'_>, queries: &[(HitOrder, HitRange)]) -> Result<Vec<u8>> {
    let mut text = b"[".to_vec();
    for (at, (column, query)) in by_query(shards, queries.len())?.iter().zip(queries).enumerate() {
        if at > 0 {
            text.push(b',');
        }
        let one = ShardResults { results: column, incomplete: shards.incomplete };
        text.append(&mut hits(one, query.0, query.1)?);
    }
    text.push(b']');
    Ok(text)
}

/// Ids and scores of the merged hits of a query, best first.
#[derive(Debug, Default, PartialEq)]
pub(super) struct MergedKeys {
    pub(super) hits: Vec<PointKey>,
    /// True if hits may be missing.
    pub(super) partial: bool,
}

/// Returns the ids and scores of the merged hits of each query of a batch.
///
/// # Errors
/// As [`batch`].
pub(super) fn batch_keys(
    shards: ShardResults<'_>,
    queries: &[(HitOrder, HitRange)],
) -> Result<Vec<MergedKeys>> {
    let columns = by_query(shards, queries.len())?;
    let merged = columns.iter().zip(queries).map(|(column, (order, range))| {
        let one = ShardResults { results: column, incomplete: shards.incomplete };
        let merged = merged_hits(one, *order, *range)?;
        let hits = merged.points.iter().map(|point| point.key).collect();
        Ok(MergedKeys { hits, partial: merged.partial })
    });
    merged.collect()
}

/// Returns the JSON of a page of points in the order of their ids, with the id of the next page's
/// first point. A page ends after `limit` points or 128 MiB.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
pub fn scroll(shards: ShardResults<'_>, limit: usize) -> Result<Vec<u8>> {
    let mut partial = shards.incomplete;
    let mut all = Vec::new();
    // A shard may end its page early. Points after that end come with the next page.
    let mut next: Option<(u64, PointId)> = None;
    for result in shards.results {
        let result: PointsText<'_> = read(result)?;
        partial |= result.partial;
        let end = result.next_page_offset.map(with_position);
        next = [next, end].into_iter().flatten().min();
        for point in result.points {
            all.push(keyed(point)?);
        }
    }
    all.sort_by_key(|point| point.key.id);
    let mut bytes = 0;
    let mut count = 0;
    for point in &all {
        let id = point.key.id;
        let is_full = count >= limit || (count > 0 && bytes >= PAGE_BYTES_MAX);
        if is_full || next.is_some_and(|next| id >= next) {
            next = Some(next.map_or(id, |next| next.min(id)));
            break;
        }
        count += 1;
        bytes += point.text.len();
    }
    let next = match next {
        Some((_, id)) => json!(id).to_string(),
        None => "null".to_owned(),
    };
    Ok(page_text(all[..count].iter().map(|point| point.text), Some(&next), partial))
}

/// Returns the JSON of at most `limit` points in the order of a payload field. There is no next
/// page.
///
/// # Errors
/// As [`hits`] and [`check_ordered_limit`].
pub(super) fn ordered_scroll(
    shards: ShardResults<'_>,
    descending: bool,
    limit: usize,
) -> Result<Vec<u8>> {
    let KeyedPoints { points: mut all, partial } = all_points(shards)?;
    check_ordered_limit(limit, all.len())?;
    let order = HitOrder::Value { descending };
    all.sort_by(|one, other| order.compare(&one.key, &other.key));
    Ok(page_text(all.iter().take(limit).map(|point| point.text), Some("null"), partial))
}

/// Returns the JSON list of points in the order of the requested ids. Ids without a point are left
/// out.
///
/// # Errors
/// As [`hits`].
pub(super) fn records(results: &[&RawValue], ids: &[PointId]) -> Result<Vec<u8>> {
    let mut found: HashMap<PointId, &str> = HashMap::new();
    for result in results {
        let points: Vec<&RawValue> = read(result)?;
        for point in points {
            found.insert(keyed(point)?.key.point(), point.get());
        }
    }
    let mut text = Vec::new();
    push_list(&mut text, ids.iter().filter_map(|id| found.get(id).copied()));
    Ok(text)
}

/// Number of points of several shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedPoints {
    /// Number of points that were counted.
    pub count: u64,
    /// True if points of some shards are not counted.
    pub partial: bool,
}

/// Adds counts of points.
///
/// # Errors
/// As [`scroll`].
pub fn sum(shards: ShardResults<'_>) -> Result<CountedPoints> {
    #[derive(Deserialize)]
    struct CountText {
        count: u64,
        #[serde(default)]
        partial: bool,
    }
    let mut sum = CountedPoints { count: 0, partial: shards.incomplete };
    for result in shards.results {
        let counted: CountText = read(result)?;
        sum.count += counted.count;
        sum.partial |= counted.partial;
    }
    Ok(sum)
}

/// Returns the JSON of the sum of the shards' counts.
///
/// # Errors
/// As [`hits`].
pub(super) fn count(shards: ShardResults<'_>) -> Result<Vec<u8>> {
    let CountedPoints { count, partial } = sum(shards)?;
    let mut answer = json!({ "count": count });
    if partial {
        answer["partial"] = Value::Bool(true);
    }
    Ok(answer.to_string().into_bytes())
}

/// Returns the JSON of at most `limit` values of a field with their counts. The most frequent come
/// first, and values of equal counts in their own order. The answer is partial if a shard returned
/// `shard_limit` values, since counts of its other values are missing.
///
/// # Errors
/// As [`hits`].
pub(super) fn facet(shards: ShardResults<'_>, limit: usize, shard_limit: usize) -> Result<Vec<u8>> {
    #[derive(Deserialize)]
    struct FacetHitText {
        value: Value,
        count: u64,
    }
    #[derive(Deserialize)]
    struct FacetText {
        hits: Vec<FacetHitText>,
        #[serde(default)]
        partial: bool,
    }
    let mut partial = shards.incomplete;
    let mut counts: HashMap<FacetValue, u64> = HashMap::new();
    for result in shards.results {
        let result: FacetText = read(result)?;
        partial |= result.partial || result.hits.len() >= shard_limit;
        for hit in result.hits {
            *counts.entry(facet_value(hit.value)?).or_default() += hit.count;
        }
    }
    let mut hits: Vec<(FacetValue, u64)> = counts.into_iter().collect();
    hits.sort_unstable_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    hits.truncate(limit);
    let hit = |(value, count): (FacetValue, u64)| match value {
        FacetValue::Bool(value) => json!({ "value": value, "count": count }),
        FacetValue::Whole(value) => json!({ "value": value, "count": count }),
        FacetValue::Text(value) => json!({ "value": value, "count": count }),
    };
    let mut answer = json!({ "hits": hits.into_iter().map(hit).collect::<Vec<Value>>() });
    if partial {
        answer["partial"] = Value::Bool(true);
    }
    Ok(answer.to_string().into_bytes())
}

fn facet_value(value: Value) -> Result<FacetValue> {
    let whole = value.as_i64().map(FacetValue::Whole);
    match value {
        Value::Bool(value) => Ok(FacetValue::Bool(value)),
        Value::String(text) => Ok(FacetValue::Text(text)),
        other => whole
            .ok_or_else(|| Error::internal(format!("{other} is not a value of a facet's result"))),
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
