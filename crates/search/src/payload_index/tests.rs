//! Index against payloads: any filter selects the rows that it matches.

use std::sync::Arc;

use coarse::{BuildThreads, BuildVectors, CoarseKind, Metric, RowSet};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use storage::{Medium, Sealed, UringMedium};

use super::*;
use crate::budget::MemoryBudget;
use crate::codes::CodesPlace;
use crate::filter::{
    Condition, CountRange, DateRange, Filter, IdSlice, Match, MinShould, Range, RangeLimit,
    WholeRange, each_value, parse_date,
};
use crate::segment::{
    CodesOptions, PreloadScope, RecordKind, RowSource, Segment, SegmentPlan, SegmentSettings,
    VectorEncoding, write,
};
use crate::segment_cache::SegmentCache;

/// Rows with payloads; a row's id is ten times its number.
struct Payloads(Vec<Vec<u8>>);

impl BuildVectors for Payloads {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> base::Result<()>) -> base::Result<()> {
        (0..self.0.len()).try_for_each(|row| each(&[row as f32]))
    }

    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> base::Result<()> {
        out.extend(rows.iter().map(|row| *row as f32));
        Ok(())
    }

    fn id(&self, row: u32) -> u64 {
        u64::from(row) * 10
    }
}

impl RowSource for Payloads {
    fn record(&mut self, _: u32, _: &mut Vec<u8>) -> base::Result<()> {
        Ok(())
    }

    fn payload(&mut self, row: u32, out: &mut Vec<u8>) -> base::Result<()> {
        out.extend_from_slice(&self.0[row as usize]);
        Ok(())
    }
}

/// Segment in a directory of its own.
pub(crate) struct TestSegment {
    _directory: tempfile::TempDir,
    medium: Arc<dyn Medium>,
    cache: Arc<SegmentCache>,
    pub(crate) segment: Segment,
}

const NAME: &str = "segment-000000000001";

fn opened(medium: &dyn Medium) -> (Segment, Arc<SegmentCache>) {
    let file: Arc<dyn Sealed> = medium.open(NAME).unwrap();
    let budget = MemoryBudget::new(1 << 30);
    let cache = SegmentCache::new(&budget);
    let codes = CodesOptions::new(CodesPlace::Auto, &cache);
    (Segment::open(file, NAME, &budget, &codes).unwrap(), cache)
}

fn segment_of(payloads: Vec<Vec<u8>>) -> TestSegment {
    let directory = tempfile::tempdir().unwrap();
    let medium: Arc<dyn Medium> =
        Arc::new(UringMedium::plain(directory.path().to_owned()).unwrap());
    let plan = SegmentPlan {
        settings: SegmentSettings { dims: 1, metric: Metric::L2, encoding: VectorEncoding::F32 },
        kind: CoarseKind::Flat,
        records: RecordKind::Opaque,
        threads: BuildThreads::of(1),
        uuid: [7; 16],
        index_bytes: memory_bytes(payloads.len() as u64),
        index_spare: None,
    };
    write(&*medium, NAME, &plan, &mut Payloads(payloads), &|_| Ok(())).unwrap();
    let (segment, cache) = opened(&*medium);
    TestSegment { _directory: directory, medium, cache, segment }
}

pub(crate) fn segment_of_values(payloads: &[Value]) -> TestSegment {
    segment_of(payloads.iter().map(|it| serde_json::to_vec(it).unwrap()).collect())
}

/// Rows that `filter` matches by the payloads.
fn naive(filter: &Filter, payloads: &[Value]) -> RowSet {
    let rows = (0_u32..).zip(payloads);
    let rows = rows.filter(|(row, payload)| filter.matches(u64::from(*row) * 10, payload));
    RowSet::from_rows(payloads.len() as u32, rows.map(|(row, _)| row))
}

/// Checks that the index excludes no row and adds none. Returns the undecided rows.
fn check(segment: &Segment, filter: &Filter, payloads: &[Value]) -> u32 {
    let answer = segment.select(filter).unwrap();
    let SelectionParts { sure, undecided } = answer.selection.into_parts();
    let expected = naive(filter, payloads);
    let undecided = undecided.unwrap_or_else(|| RowSet::none(sure.rows()));
    for row in 0..sure.rows() {
        let payload = &payloads[row as usize];
        if !undecided.contains(row) {
            assert_eq!(sure.contains(row), expected.contains(row), "{filter:?} on {payload}");
        }
    }
    assert!(undecided.is_empty() || !answer.unindexed.is_empty(), "{filter:?}");
    undecided.count()
}

fn scalar() -> impl Strategy<Value = Value> {
    let texts = ["x", "y", "", "2024-06-15", "2024-06-15T00:00:00Z", "2025-01-01 10:00"];
    prop_oneof![
        (-3i64..4).prop_map(Value::from),
        (-6i64..7).prop_map(|half| Value::from(half as f64 / 2.0)),
        prop::sample::select(texts.to_vec()).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(json!(9_007_199_254_740_993_u64)),
        Just(json!("z".repeat(TEXT_BYTES_MAX + 1))),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![9 => scalar(), 1 => Just(Value::Null)];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            object(inner),
        ]
    })
}

fn object(inner: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Value> {
    let members = prop::collection::btree_map(prop::sample::select(vec!["a", "b"]), inner, 0..3);
    members.prop_map(|map| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Value>())
}

fn key() -> impl Strategy<Value = String> {
    let keys = [
        "a", "b", "a.a", "a.b", "a[].a", "a[]", "a[].b", "b.a[].b", "c", "a[][]", "a[0]", "\"a\".b",
    ];
    prop::sample::select(keys.to_vec()).prop_map(str::to_owned)
}

fn condition() -> impl Strategy<Value = Condition> {
    let half =
        |range: std::ops::Range<i64>| prop::option::of(range.prop_map(|half| half as f64 / 2.0));
    let limits = (half(-6..7), half(-6..7), half(-6..7), half(-6..7));
    let date =
        || prop::option::of(prop::sample::select(vec!["2024-06-15", "2024-12-31", "2026-01-01"]));
    prop_oneof![
        (key(), scalar())
            .prop_map(|(key, value)| Condition::Match { key, matching: Match::Value(value) }),
        (key(), prop::collection::vec(scalar(), 0..4)).prop_map(|(key, values)| {
            Condition::Match { key, matching: Match::Any(values.into()) }
        }),
        (key(), prop::collection::vec(scalar(), 0..4)).prop_map(|(key, values)| {
            Condition::Match { key, matching: Match::Except(values.into()) }
        }),
        (key(), limits).prop_map(|(key, (gt, gte, lt, lte))| {
            Condition::Range { key, range: Range { gt, gte, lt, lte } }
        }),
        (key(), scalar(), scalar()).prop_map(|(key, gt, lte)| {
            let limit = |value: &Value| value.as_number().and_then(RangeLimit::of);
            let range = WholeRange { gt: limit(&gt), gte: None, lt: None, lte: limit(&lte) };
            Condition::WholeRange { key, range }
        }),
        (key(), date(), date()).prop_map(|(key, gte, lt)| {
            let read = |date: Option<&str>| date.and_then(parse_date);
            let range = DateRange { gte: read(gte), lt: read(lt), ..DateRange::default() };
            Condition::DateRange { key, range }
        }),
        (key(), 0_u64..3).prop_map(|(key, count)| {
            let range = CountRange { gte: Some(count), ..CountRange::default() };
            Condition::ValuesCount { key, range }
        }),
        (key(), "[xy]{0,2}")
            .prop_map(|(key, text)| { Condition::Match { key, matching: Match::Substring(text) } }),
        (key(), scalar()).prop_map(|(key, value)| {
            let matching = Match::Value(value);
            let must = vec![Condition::Match { key: "a".into(), matching }];
            Condition::Element { key, filter: Filter { must, ..Filter::default() } }
        }),
        any::<bool>()
            .prop_map(|is_present| { Condition::HasVector { name: String::new(), is_present } }),
        key().prop_map(|key| Condition::IsEmpty { key }),
        key().prop_map(|key| Condition::IsNull { key }),
        prop::collection::vec(0_u64..300, 0..9).prop_map(Condition::has_id),
        (1_u32..4, 0_u32..4).prop_map(|(total, index)| {
            Condition::Slice(IdSlice::new(total, index % total).unwrap())
        }),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let leaf = conditions(condition().boxed());
    leaf.prop_recursive(2, 8, 2, |inner| {
        conditions(prop_oneof![3 => condition(), 1 => inner.prop_map(Condition::Nested)].boxed())
    })
}

fn conditions(one: BoxedStrategy<Condition>) -> impl Strategy<Value = Filter> {
    let list = |max: usize| prop::collection::vec(one.clone(), 0..max);
    (list(3), list(3), list(2), prop::option::of((list(4), 0_usize..4))).prop_map(
        |(must, should, must_not, min_should)| {
            let min_should =
                min_should.map(|(conditions, min_count)| MinShould { conditions, min_count });
            Filter { must, should, must_not, min_should }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_filter_selects_the_rows_that_it_matches(
        payloads in prop::collection::vec(object(value()), 1..30),
        filters in prop::collection::vec(filter(), 1..12),
        repeat in prop::sample::select(vec![1_usize, 200]),
    ) {
        // Repeated rows get bitmaps instead of lists.
        let payloads: Vec<Value> =
            std::iter::repeat_n(&payloads, repeat).flatten().cloned().collect();
        let test = segment_of_values(&payloads);
        for filter in &filters {
            check(&test.segment, filter, &payloads);
        }
    }
}

fn only(condition: Condition) -> Filter {
    Filter { must: vec![condition], ..Filter::default() }
}

fn range(key: &str, gte: f64, lt: f64) -> Filter {
    let range = Range { gte: Some(gte), lt: Some(lt), ..Range::default() };
    only(Condition::Range { key: key.into(), range })
}

/// Returns many different values, so that dictionaries have several blocks.
fn many() -> Vec<Value> {
    (0..4000_i64)
        .map(|row| {
            json!({
                "id": format!("{:032}", row * 7 % 4000),
                "n": row * 11 % 4000,
                "f": (row * 13 % 4000) as f64 / 4000.0,
                "tenant": format!("t{}", row % 400),
                "flag": row % 2 == 0,
                "tags": [row % 3, 10 + row % 5],
                "day": format!("2024-{:02}-{:02}", 1 + row % 12, 1 + row % 28),
            })
        })
        .collect()
}

/// Reads all sections of a segment into memory. Returns their number.
fn preload_all(segment: &Segment) -> usize {
    let room = 1 << 30;
    let mut sections = 0;
    while segment.wants_preload(PreloadScope::All, room) {
        segment.preload(PreloadScope::All, room, &|_| Ok(())).unwrap();
        sections += 1;
    }
    sections
}

#[test]
fn filters_read_a_preloaded_index_from_memory() {
    let payloads = many();
    let test = segment_of_values(&payloads);
    let reads = || test.cache.stats().payload_index.reads;
    let sections = preload_all(&test.segment);
    assert!(sections == 3 && reads() == 0, "{sections} sections, {} reads", reads());
    assert_eq!(check(&test.segment, &range("n", 100.0, 3000.0), &payloads), 0);
    assert_eq!(reads(), 0);
}

#[test]
fn conditions_on_many_values_leave_nothing_undecided() {
    let payloads = many();
    let test = segment_of_values(&payloads);
    let matching =
        |key: &str, matching: Match| only(Condition::Match { key: key.into(), matching });
    let any = |key: &str, values: Vec<Value>| matching(key, Match::Any(values.into()));
    let some = |step: usize| (0..4000).step_by(step).map(|n| json!(n)).collect::<Vec<_>>();
    let mut filters = vec![
        matching("id", Match::Value(json!(format!("{:032}", 17)))),
        matching("id", Match::Value(json!("absent"))),
        any("n", some(7)),
        any("n", some(1)),
        any("tenant", vec![json!("t1"), json!("t399"), json!("t5")]),
        matching("flag", Match::Value(json!(true))),
        matching("tags", Match::Except(vec![json!(1)].into())),
        matching("tags", Match::Except(vec![json!(0), json!(1), json!(2)].into())),
        matching("n", Match::Except(some(2).into())),
        only(Condition::IsEmpty { key: "n".into() }),
        only(Condition::IsEmpty { key: "absent".into() }),
        only(Condition::IsNull { key: "n".into() }),
        only(Condition::DateRange {
            key: "day".into(),
            range: DateRange {
                gt: parse_date("2024-03-01"),
                lte: parse_date("2024-09-10T00:00:00Z"),
                ..DateRange::default()
            },
        }),
    ];
    for start in (0..4000).step_by(333) {
        filters.push(range("n", f64::from(start), f64::from(start + 500)));
        filters.push(range("f", f64::from(start) / 4000.0, 0.9));
    }
    for filter in &filters {
        assert_eq!(check(&test.segment, filter, &payloads), 0, "{filter:?}");
    }
    let fields = test.segment.indexed_fields();
    assert_eq!(fields.len(), 7);
    let day = fields.iter().find(|field| field.path == "day").unwrap();
    assert_eq!((day.rows, day.values), (4000, [0, 0, 0, 84, 84]));
}

#[test]
fn ranges_of_large_numbers_read_payloads_near_their_limits() {
    let base = 1_u64 << 60;
    let payloads: Vec<Value> = (0..2000).map(|n| json!({ "n": base + n })).collect();
    let test = segment_of_values(&payloads);
    let limit = |n: u64| RangeLimit::of(&(base + n).into());
    // 2^60 and more have one float for 256 numbers.
    let range = WholeRange { gt: limit(600), gte: None, lt: limit(1700), lte: None };
    let filter = only(Condition::WholeRange { key: "n".into(), range });
    assert_eq!(naive(&filter, &payloads).count(), 1099);
    let undecided = check(&test.segment, &filter, &payloads);
    assert!((1..=514).contains(&undecided), "{undecided}");
}

/// Rows of each value, by its JSON.
#[derive(Default)]
struct CountedValues {
    rows: std::collections::BTreeMap<String, u64>,
    /// Parts of the index that the count may still read.
    parts: u32,
}

impl ValueVisitor for CountedValues {
    fn continues(&mut self) -> bool {
        let left = self.parts.checked_sub(1);
        self.parts = left.unwrap_or_default();
        left.is_some()
    }

    fn visit(&mut self, value: KeyRef<'_>, rows: u64) -> base::Result<()> {
        *self.rows.entry(value.to_value().unwrap().to_string()).or_default() += rows;
        Ok(())
    }
}

/// Counts in one part a call. Returns the outcome and the number of pauses.
fn count_in_parts(
    segment: &Segment,
    key: &str,
    allow: Option<&RowSet>,
    values: &mut CountedValues,
) -> (ValueCounts, u32) {
    let mut position = CountPosition::default();
    let mut pauses = 0;
    loop {
        values.parts = 1;
        match segment.count_values(key, allow, &mut position, values).unwrap() {
            ValueCounts::Paused => pauses += 1,
            outcome => return (outcome, pauses),
        }
    }
}

#[test]
fn values_are_counted_in_parts_for_allowed_rows() {
    let payloads = many();
    let test = segment_of_values(&payloads);
    let half = RowSet::from_rows(4000, (0..4000).step_by(2));
    for (key, allow, pauses_min) in [
        ("tenant", None, 0),
        ("tenant", Some(&half), 0),
        ("flag", Some(&half), 1),
        ("tags", None, 0),
        ("tags", Some(&half), 7),
        ("id", None, 1),
        ("id", Some(&half), 2),
    ] {
        let mut values = CountedValues::default();
        let (outcome, pauses) = count_in_parts(&test.segment, key, allow, &mut values);
        assert!(matches!(outcome, ValueCounts::Complete), "{key} {outcome:?}");
        assert!(pauses >= pauses_min, "{key}: {pauses}");
        let counts = values.rows;
        let mut expected = std::collections::BTreeMap::<String, u64>::new();
        for (row, payload) in (0..).zip(&payloads) {
            if allow.is_none_or(|allow| allow.contains(row)) {
                each_value(payload, key, &mut |value| {
                    *expected.entry(value.to_string()).or_default() += 1;
                });
            }
        }
        assert_eq!(counts, expected, "{key}");
    }
    // Reading one payload costs less than the list of all rows.
    let one = RowSet::from_rows(4000, [5]);
    let (outcome, pauses) =
        count_in_parts(&test.segment, "id", Some(&one), &mut CountedValues::default());
    assert!(matches!(outcome, ValueCounts::Undecided) && pauses == 0, "{outcome:?}");
}

#[test]
fn too_many_fields_are_named() {
    let wide: Map<String, Value> =
        (0..FIELDS_MAX + UNINDEXED_MAX + 5).map(|at| (format!("f{at:03}"), json!(at))).collect();
    let payloads = [Value::Object(wide)];
    let test = segment_of_values(&payloads);
    let fields = test.segment.indexed_fields();
    assert_eq!(fields.iter().filter(|field| field.unindexed.is_empty()).count(), FIELDS_MAX);
    assert!(fields.len() > FIELDS_MAX);
    let last = format!("f{:03}", FIELDS_MAX + UNINDEXED_MAX + 4);
    for (key, undecided) in [("f000", 0), ("f100", 1), (&*last, 1), ("absent", 1)] {
        let filter = range(key, 0.0, 1000.0);
        assert_eq!(check(&test.segment, &filter, &payloads), undecided, "{key}");
    }
}

/// Returns the bytes of the directory, and its offset, of rows with an id and one more member,
/// whose memory has no room for the ids without `spare`.
fn small_directory(member: &str, spare: Option<&SpareIndexMemory>) -> (Vec<u8>, u64) {
    let mut builder = PayloadIndexBuilder::new(20_000, spare);
    for row in 0..1000 {
        builder.add(json!({"id": format!("row {row}"), member: row % 2}).to_string().as_bytes());
    }
    let mut bytes = Vec::new();
    builder
        .write(&mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
    let trailer = bytes.len() - directory::TRAILER_BYTES as usize;
    let directory::DirectoryPlace { offset, bytes: length } =
        directory::decode_trailer(&bytes[trailer..]).unwrap();
    (bytes[offset as usize..][..length as usize].to_vec(), offset)
}

#[test]
fn a_field_without_a_name_is_indexed_once() {
    let (encoded, offset) = small_directory("", None);
    let directory = directory::IndexDirectory::decode(&encoded, offset).unwrap();
    let indexed: Vec<&str> = directory.fields.iter().map(|field| &*field.path).collect();
    assert_eq!(indexed, [""]);
    assert_eq!(directory.fields[0].bitmaps.present.count, 1000);
    assert_eq!(directory.unindexed[0].path, "id");
}

#[test]
fn values_in_a_list_within_a_list_are_found() {
    let payloads = [json!([[1]]), json!([[2], 1]), json!([2]), json!([])];
    let payloads = payloads.map(|list| json!({ "a": list }));
    let test = segment_of_values(&payloads);
    for key in ["a", "a[]"] {
        let is_one = Condition::Match { key: key.into(), matching: Match::Value(json!(1)) };
        check(&test.segment, &only(is_one), &payloads);
        let others = Match::Except(vec![json!(1)].into());
        check(
            &test.segment,
            &only(Condition::Match { key: key.into(), matching: others }),
            &payloads,
        );
    }
    let mut values = CountedValues::default();
    let (outcome, _) = count_in_parts(&test.segment, "a[]", None, &mut values);
    assert!(matches!(outcome, ValueCounts::Undecided), "{outcome:?}");
}

#[test]
fn a_null_in_a_list_within_a_list_is_found() {
    let payloads = [json!([[null]]), json!([[1]]), json!([null]), json!([1])];
    let payloads = payloads.map(|list| json!({ "a": list }));
    let test = segment_of_values(&payloads);
    for key in ["a", "a[]"] {
        check(&test.segment, &only(Condition::IsNull { key: key.into() }), &payloads);
    }
}

#[test]
fn a_field_beyond_the_memory_is_left_out() {
    let (encoded, offset) = small_directory("kind", None);
    let directory = directory::IndexDirectory::decode(&encoded, offset).unwrap();
    let indexed: Vec<&str> = directory.fields.iter().map(|field| &*field.path).collect();
    assert_eq!(indexed, ["kind"]);
    assert_eq!(directory.unindexed[0].path, "id");
    assert_eq!(directory.encode(), encoded);
    // Every shorter directory is refused.
    for end in 0..encoded.len() {
        assert!(directory::IndexDirectory::decode(&encoded[..end], offset).is_err(), "{end}");
    }
}

#[test]
fn free_memory_keeps_a_field_with_many_values() {
    for (free, unindexed) in [(8 << 20, 0), (1 << 20, 1)] {
        let budget = MemoryBudget::new(free);
        let spare = SpareIndexMemory::new(&budget, 2);
        let (encoded, offset) = small_directory("kind", spare.as_ref());
        let directory = directory::IndexDirectory::decode(&encoded, offset).unwrap();
        assert_eq!(directory.unindexed.len(), unindexed);
        let used = budget.stats().used;
        assert!(used <= free / 2 && (used > 0) == (unindexed == 0), "{used} of {free}");
        drop(spare);
        assert_eq!(budget.stats().used, 0);
    }
}

#[test]
fn a_segment_with_a_broken_payload_has_no_index() {
    let test = segment_of(vec![b"{\"a\":1}".to_vec(), b"no JSON".to_vec()]);
    assert!(test.segment.indexed_fields().is_empty());
    let answer = test.segment.select(&range("a", 0.0, 2.0)).unwrap();
    assert_eq!(answer.selection.into_parts().undecided.unwrap().count(), 2);
    assert!(answer.unindexed[0].contains("\"a\" has no index"), "{:?}", answer.unindexed);
}

#[test]
fn damage_leaves_rows_undecided_and_is_named() {
    let payloads = many();
    let test = segment_of_values(&payloads);
    let path = test._directory.path().join(NAME);
    let sound = std::fs::read(&path).unwrap();
    let filters = [range("n", 100.0, 900.0), range("f", 0.25, 0.75)];
    let index = test.segment.index_range().unwrap();
    drop(test.segment);
    // A block with a damaged page is not in memory, also after a preload.
    let mut damaged = [0, 0];
    for page in (index.start..index.end).step_by(storage::page::PAGE_BYTES) {
        let mut bytes = sound.clone();
        bytes[page as usize + 5] ^= 16;
        std::fs::write(&path, &bytes).unwrap();
        for is_preloaded in [false, true] {
            let (segment, _) = opened(&*test.medium);
            if is_preloaded {
                preload_all(&segment);
            }
            let undecided: Vec<u32> =
                filters.iter().map(|filter| check(&segment, filter, &payloads)).collect();
            assert!(undecided.iter().all(|rows| [0, 4000].contains(rows)), "{undecided:?}");
            let touched = undecided.contains(&4000);
            assert_eq!(!segment.damaged().is_empty(), touched, "page {page}");
            assert!(!segment.loses_data(), "a merge builds the index anew");
            damaged[usize::from(is_preloaded)] += u32::from(touched);
        }
    }
    assert!(damaged[0] > 2 && damaged[0] == damaged[1], "{damaged:?}");
}

#[test]
fn bytes_of_the_index_are_read_once_while_memory_is_free() {
    let payloads: Vec<Value> =
        (0..40_000).map(|row| json!({"score": row * 7919 % 40_000})).collect();
    let TestSegment { segment, cache, .. } = segment_of_values(&payloads);
    assert_eq!(cache.stats().payload_index.reads, 0, "opening it keeps nothing");
    check(&segment, &range("score", 0.0, 39_000.0), &payloads);
    let first = cache.stats();
    assert!(
        first.payload_index.reads > 0 && first.bytes >= first.payload_index.read_bytes,
        "{first:?}"
    );
    // Two bounds inside of the dictionary, a bitmap and the ends of the range may be new.
    check(&segment, &range("score", 10_000.0, 30_000.0), &payloads);
    let second = cache.stats();
    assert!(second.payload_index.reads <= first.payload_index.reads + 5, "{first:?} {second:?}");
    check(&segment, &range("score", 10_001.0, 30_001.0), &payloads);
    assert_eq!(
        cache.stats().payload_index.read_bytes,
        second.payload_index.read_bytes,
        "all of it was read before"
    );
    drop(segment);
    assert_eq!(cache.stats().bytes, 0, "a closed segment keeps nothing");
}
