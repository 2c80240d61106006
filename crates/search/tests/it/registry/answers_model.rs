//! Answers of a named collection against a map, after each of random changes: pages, counts,
//! facets, orders and exact searches, each with a random filter.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use search::ScanParams;
use search::collection::{CollectionQuery, FacetValue, Merging, OrderValue, PointOrder};
use search::filter::{Condition, CountRange, Filter, Match, MinShould, Range, each_value};
use search::points::{
    FetchedPoint, NewPoint, PayloadChange, PointSelection, UpsertCondition, UpsertMode,
    VectorChange,
};
use search::registry::{NamedCollection, Registry, RegistryOptions};
use serde_json::{Map, Value, json};

use super::{DIMS, all, id, open_with, options, settings};
use crate::points::{limits, mix};

/// Points that may exist: few, or so many that the payload index has bitmaps.
const NUMBERS: [u64; 2] = [40, 500];

/// Points that a change is about.
#[derive(Clone, Debug)]
enum Chosen {
    /// The first one, and how many.
    Numbers(u64, u64),
    Matching(Filter),
}

#[derive(Clone, Debug)]
enum Change {
    Upsert(Upsert),
    Vectors(u64, u64, Option<Filter>),
    Payload(Chosen, PayloadChange),
    Delete(Chosen),
    Flush,
    Merge,
    Reopen,
    /// Copies the collection, and checks the copy.
    Copy,
    /// Makes changes while another thread flushes and merges.
    DuringMerge(Vec<Change>),
}

/// Points that are written under a condition.
#[derive(Clone, Debug)]
struct Upsert {
    first: u64,
    payloads: Vec<Map<String, Value>>,
    /// Number of points with each payload.
    repeat: u64,
    mode: UpsertMode,
    filter: Option<Filter>,
}

/// Questions after a change.
#[derive(Clone, Debug)]
struct Questions {
    filter: Option<Filter>,
    key: String,
    page: usize,
    limit: usize,
    descending: bool,
    from: Option<f64>,
    seed: u64,
}

fn scalar() -> impl Strategy<Value = Value> {
    let texts = ["x", "y", "2024-06-15", "2024-06-15T00:00:00Z", "2025-01-01 10:00"];
    prop_oneof![
        4 => (-2i64..3).prop_map(Value::from),
        2 => (-4i64..5).prop_map(|half| Value::from(half as f64 / 2.0)),
        3 => prop::sample::select(texts.to_vec()).prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => prop::sample::select(vec![9_007_199_254_740_993_u64, u64::MAX]).prop_map(Value::from),
        // Too long for the index.
        1 => prop::sample::select(vec!["p", "q"]).prop_map(|text| json!(text.repeat(600))),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![9 => scalar(), 1 => Just(Value::Null)];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from);
        prop_oneof![list, object(inner).prop_map(Value::Object)]
    })
}

fn object(
    inner: impl Strategy<Value = Value> + 'static,
) -> impl Strategy<Value = Map<String, Value>> {
    let members = prop::collection::btree_map(prop::sample::select(vec!["a", "b"]), inner, 0..3);
    members.prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn key() -> impl Strategy<Value = String> {
    let keys = ["a", "b", "a.b", "a[]", "a[].b", "b[0]", "c"];
    prop::sample::select(keys.to_vec()).prop_map(str::to_owned)
}

fn condition() -> impl Strategy<Value = Condition> {
    let matching = prop_oneof![
        scalar().prop_map(Match::Value),
        prop::collection::vec(scalar(), 0..3).prop_map(|values| Match::Any(values.into())),
        prop::collection::vec(scalar(), 0..3).prop_map(|values| Match::Except(values.into())),
    ];
    let limit = || prop::option::of((-4i64..5).prop_map(|half| half as f64 / 2.0));
    prop_oneof![
        4 => (key(), matching).prop_map(|(key, matching)| Condition::Match { key, matching }),
        2 => (key(), limit(), limit()).prop_map(|(key, gte, lt)| {
            Condition::Range { key, range: Range { gte, lt, ..Range::default() } }
        }),
        1 => (key(), 0_u64..3).prop_map(|(key, count)| {
            let range = CountRange { gte: Some(count), ..CountRange::default() };
            Condition::ValuesCount { key, range }
        }),
        1 => (key(), scalar()).prop_map(|(key, value)| {
            let matching = Match::Value(value);
            let must = vec![Condition::Match { key: "b".into(), matching }];
            Condition::Element { key, filter: Filter { must, ..Filter::default() } }
        }),
        1 => key().prop_map(|key| Condition::IsEmpty { key }),
        1 => key().prop_map(|key| Condition::IsNull { key }),
        1 => prop::collection::vec(first(), 0..9).prop_map(Condition::has_id),
    ]
}

fn conditions(one: BoxedStrategy<Condition>) -> impl Strategy<Value = Filter> {
    let list = |max: usize| prop::collection::vec(one.clone(), 0..max);
    let min_should = prop::option::weighted(0.2, (list(4), 0_usize..3));
    (list(2), list(3), list(2), min_should).prop_map(|(must, should, must_not, min_should)| {
        let min_should =
            min_should.map(|(conditions, min_count)| MinShould { conditions, min_count });
        Filter { must, should, must_not, min_should }
    })
}

fn filter() -> impl Strategy<Value = Filter> {
    conditions(condition().boxed()).prop_recursive(2, 6, 2, |inner| {
        conditions(prop_oneof![3 => condition(), 1 => inner.prop_map(Condition::Nested)].boxed())
    })
}

fn first() -> impl Strategy<Value = u64> {
    prop_oneof![1 => 0..NUMBERS[0], 1 => 0..NUMBERS[1]]
}

fn chosen() -> impl Strategy<Value = Chosen> {
    prop_oneof![
        2 => (first(), 1_u64..6).prop_map(|(first, count)| Chosen::Numbers(first, count)),
        1 => filter().prop_map(Chosen::Matching),
    ]
}

fn write() -> impl Strategy<Value = Change> {
    let payload = || object(value());
    let modes = [UpsertMode::All, UpsertMode::InsertOnly, UpsertMode::UpdateOnly];
    let mode = prop_oneof![3 => Just(UpsertMode::All), 1 => prop::sample::select(modes.to_vec())];
    let condition = || prop::option::weighted(0.2, filter());
    let payloads = prop::collection::vec(payload(), 1..12);
    let repeat = prop_oneof![5 => Just(1_u64), 1 => Just(40)];
    let changed = prop_oneof![
        payload().prop_map(|payload| PayloadChange::Set { payload, key: None }),
        payload().prop_map(|payload| PayloadChange::Set { payload, key: Some("a".into()) }),
        payload().prop_map(PayloadChange::Overwrite),
        key().prop_map(|key| PayloadChange::DeleteKeys(vec![key])),
        Just(PayloadChange::Clear),
    ];
    prop_oneof![
        6 => (first(), payloads, repeat, mode, condition()).prop_map(
            |(first, payloads, repeat, mode, filter)| {
                Change::Upsert(Upsert { first, payloads, repeat, mode, filter })
            }
        ),
        2 => (first(), 1_u64..6, condition())
            .prop_map(|(first, count, filter)| Change::Vectors(first, count, filter)),
        3 => (chosen(), changed).prop_map(|(chosen, change)| Change::Payload(chosen, change)),
        2 => chosen().prop_map(Change::Delete),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        10 => write(),
        3 => Just(Change::Flush),
        2 => Just(Change::Merge),
        1 => Just(Change::Reopen),
        1 => Just(Change::Copy),
        2 => prop::collection::vec(write(), 1..6).prop_map(Change::DuringMerge),
    ]
}

fn questions() -> impl Strategy<Value = Questions> {
    let filter = prop::option::weighted(0.8, filter());
    // No value of a payload equals such a bound.
    let from = prop::option::weighted(0.4, (-3i64..3).prop_map(|whole| whole as f64 + 0.25));
    (filter, key(), 1_usize..9, 1_usize..30, any::<bool>(), from, any::<u64>()).prop_map(
        |(filter, key, page, limit, descending, from, seed)| Questions {
            filter,
            key,
            page,
            limit,
            descending,
            from,
            seed,
        },
    )
}

/// Returns a vector with few different values, so that many scores are equal.
fn embedding(seed: u64) -> Vec<f32> {
    (0..DIMS).map(|at| (mix(seed) >> (at * 8) & 3) as f32).collect()
}

fn opened(directory: &std::path::Path) -> Arc<Registry> {
    let merging = Merging { fan_in: 2, ..Merging::default() };
    open_with(RegistryOptions { merging, ..options(directory) })
}

struct Subject {
    directory: tempfile::TempDir,
    registry: Option<Arc<Registry>>,
    points: BTreeMap<u64, FetchedPoint>,
    /// Number of points that may exist.
    numbers: u64,
    version: u64,
}

/// Returns true if a point matches a filter.
fn matches(named: &NamedCollection, filter: Option<&Filter>, point: &FetchedPoint) -> bool {
    let payload = Value::Object(point.payload.clone());
    filter.is_none_or(|filter| filter.matches(named.internal(&point.id), &payload))
}

impl Subject {
    fn new(numbers: u64) -> Subject {
        let directory = tempfile::tempdir().unwrap();
        let registry = opened(directory.path());
        registry.create("c", settings()).unwrap();
        let points = BTreeMap::new();
        Subject { directory, registry: Some(registry), points, numbers, version: 0 }
    }

    fn named(&self) -> Arc<NamedCollection> {
        self.registry.as_ref().unwrap().get("c").unwrap()
    }

    fn next_embedding(&mut self) -> Vec<f32> {
        self.version += 1;
        embedding(self.version)
    }

    fn make(&mut self, change: &Change, questions: &Questions) {
        let named = self.named();
        match change {
            Change::Upsert(upsert) => self.upsert(&named, upsert),
            Change::Vectors(first, count, filter) => {
                self.change_vectors(&named, self.range(*first, *count), filter.as_ref());
            }
            Change::Payload(chosen, change) => self.change_payload(&named, chosen, change),
            Change::Delete(chosen) => self.delete(&named, chosen),
            Change::Flush => named.collection().flush().unwrap(),
            Change::Merge => drop(named.collection().merge().unwrap()),
            Change::Reopen => {
                drop(named);
                self.registry = None;
                self.registry = Some(opened(self.directory.path()));
            }
            Change::Copy => {
                let registry = self.registry.clone().unwrap();
                let copy = registry.clone_collection("c", "copy").unwrap();
                self.check(&copy, questions);
                drop(copy);
                assert!(registry.remove("copy").unwrap());
            }
            Change::DuringMerge(changes) => std::thread::scope(|scope| {
                scope.spawn(|| {
                    named.collection().flush().unwrap();
                    while named.collection().merge().unwrap() {}
                });
                changes.iter().for_each(|change| self.make(change, questions));
            }),
        }
    }

    /// Returns the numbers of `count` points from `first` on.
    fn range(&self, first: u64, count: u64) -> Vec<u64> {
        (first..first + count).map(|number| number % self.numbers).collect()
    }

    fn upsert(&mut self, named: &NamedCollection, upsert: &Upsert) {
        let Upsert { first, payloads, repeat, mode, filter } = upsert;
        let numbers = self.range(*first, payloads.len() as u64 * repeat);
        let written: Vec<(u64, FetchedPoint)> = numbers
            .into_iter()
            .zip(payloads.iter().cycle())
            .map(|(number, payload)| {
                let (id, embedding) = (id(number), self.next_embedding());
                let payload = payload.clone();
                (number, FetchedPoint { id, embedding, record: Vec::new(), payload })
            })
            .collect();
        let new: Vec<NewPoint<'_>> = written
            .iter()
            .map(|(_, FetchedPoint { id, embedding, record, payload })| NewPoint {
                id: *id,
                embedding,
                record,
                payload,
            })
            .collect();
        named.upsert_if(&new, &UpsertCondition { mode: *mode, filter: filter.clone() }).unwrap();
        for (number, point) in written {
            let is_written = match self.points.get(&number) {
                None => *mode != UpsertMode::UpdateOnly,
                Some(old) => {
                    *mode != UpsertMode::InsertOnly && matches(named, filter.as_ref(), old)
                }
            };
            if is_written {
                self.points.insert(number, point);
            }
        }
    }

    fn change_vectors(
        &mut self,
        named: &NamedCollection,
        numbers: Vec<u64>,
        filter: Option<&Filter>,
    ) {
        let new: Vec<(u64, Vec<f32>)> =
            numbers.into_iter().map(|number| (number, self.next_embedding())).collect();
        let changes: Vec<VectorChange<'_>> = new
            .iter()
            .map(|(number, embedding)| VectorChange { id: id(*number), embedding })
            .collect();
        let missing = named.change_vectors(&changes, filter).unwrap();
        let mut absent = None;
        for (number, embedding) in new {
            match self.points.get_mut(&number) {
                None => absent = absent.or(Some(id(number))),
                Some(point) if matches(named, filter, point) => point.embedding = embedding,
                Some(_) => {}
            }
        }
        assert_eq!(missing, absent);
    }

    /// Returns the numbers of the existing points that are chosen.
    fn numbers(&self, named: &NamedCollection, chosen: &Chosen) -> Vec<u64> {
        let is_chosen = |(number, point): &(&u64, &FetchedPoint)| match chosen {
            Chosen::Numbers(first, count) => self.range(*first, *count).contains(number),
            Chosen::Matching(filter) => matches(named, Some(filter), point),
        };
        self.points.iter().filter(is_chosen).map(|(number, _)| *number).collect()
    }

    fn change_payload(&mut self, named: &NamedCollection, chosen: &Chosen, change: &PayloadChange) {
        let selection = match chosen {
            Chosen::Numbers(first, count) => {
                PointSelection::Ids(self.range(*first, *count).into_iter().map(id).collect())
            }
            Chosen::Matching(filter) => PointSelection::Filter(filter.clone()),
        };
        let numbers = self.numbers(named, chosen);
        let changed = named.change_payload(&selection, change).unwrap();
        assert_eq!(changed, numbers.len() as u64);
        for number in numbers {
            change.apply(&mut self.points.get_mut(&number).unwrap().payload).unwrap();
        }
    }

    fn delete(&mut self, named: &NamedCollection, chosen: &Chosen) {
        let numbers = self.numbers(named, chosen);
        let deleted = match chosen {
            Chosen::Numbers(first, count) => {
                let ids: Vec<_> = self.range(*first, *count).into_iter().map(id).collect();
                named.delete(&ids).unwrap()
            }
            Chosen::Matching(filter) => named.delete_where(filter).unwrap(),
        };
        assert_eq!(deleted, numbers.len() as u64);
        numbers.iter().for_each(|number| drop(self.points.remove(number)));
    }

    /// Checks all answers of `named`, which is the collection or a copy.
    fn check(&self, named: &NamedCollection, questions: &Questions) {
        let filter = questions.filter.as_ref();
        let mut points: Vec<(u64, &FetchedPoint)> = self
            .points
            .values()
            .filter(|point| matches(named, filter, point))
            .map(|point| (named.internal(&point.id), point))
            .collect();
        points.sort_by_key(|(internal, _)| *internal);
        let found = all(named, filter, questions.page);
        assert!(found.iter().eq(points.iter().map(|(_, point)| *point)), "{found:?} {points:?}");
        assert_eq!(named.count(filter).unwrap().count, points.len() as u64);
        assert_eq!(named.count(None).unwrap().count, self.points.len() as u64);
        for number in 0..self.numbers {
            assert_eq!(named.get(&id(number)).unwrap(), self.points.get(&number).cloned());
        }
        check_facet(named, questions, &points);
        check_order(named, questions, &points);
        check_nearest(named, questions, &points);
    }
}

/// Returns the values of a field of a point.
fn values<T>(point: &FetchedPoint, key: &str, of: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    let mut values = Vec::new();
    let payload = Value::Object(point.payload.clone());
    each_value(&payload, key, &mut |value| values.extend(of(value)));
    values
}

fn check_facet(named: &NamedCollection, questions: &Questions, points: &[(u64, &FetchedPoint)]) {
    let of = |value: &Value| match value {
        Value::Bool(value) => Some(FacetValue::Bool(*value)),
        Value::Number(number) => number.as_i64().map(FacetValue::Whole),
        Value::String(text) => Some(FacetValue::Text(text.clone())),
        _ => None,
    };
    let mut counts: BTreeMap<FacetValue, u64> = BTreeMap::new();
    for (_, point) in points {
        let mut values = values(point, &questions.key, of);
        values.sort();
        values.dedup();
        values.into_iter().for_each(|value| *counts.entry(value).or_default() += 1);
    }
    let mut wanted: Vec<(FacetValue, u64)> = counts.into_iter().collect();
    wanted.sort_by_key(|(_, count)| Reverse(*count));
    wanted.truncate(questions.limit);
    let filter = questions.filter.as_ref();
    let facet = named.facet(&questions.key, filter, questions.limit).unwrap();
    assert_eq!((facet.hits, facet.partial), (wanted, false), "{}", questions.key);
}

fn check_order(named: &NamedCollection, questions: &Questions, points: &[(u64, &FetchedPoint)]) {
    let Questions { key, descending, limit, .. } = questions;
    let from = questions.from.and_then(|from| OrderValue::of(&from.into()));
    let mut wanted: Vec<(OrderValue, u64)> = Vec::new();
    for (internal, point) in points {
        let mut values = values(point, key, OrderValue::of);
        values.sort();
        values.dedup();
        let is_within = |value: &OrderValue| {
            from.is_none_or(|from| if *descending { *value <= from } else { *value >= from })
        };
        wanted.extend(values.into_iter().filter(is_within).map(|value| (value, *internal)));
    }
    wanted.sort();
    if *descending {
        wanted.reverse();
    }
    wanted.truncate(*limit);
    let order = PointOrder { key, descending: *descending, from };
    let found = named.ordered(&order, questions.filter.as_ref(), *limit).unwrap();
    let points: Vec<(OrderValue, u64)> =
        found.points.iter().map(|point| (point.value, point.id)).collect();
    assert_eq!((points, found.partial), (wanted, false), "{order:?}");
}

fn check_nearest(named: &NamedCollection, questions: &Questions, points: &[(u64, &FetchedPoint)]) {
    let query = embedding(questions.seed);
    let distance = |embedding: &[f32]| -> f32 {
        embedding.iter().zip(&query).map(|(one, other)| (one - other) * (one - other)).sum()
    };
    // Sums of small whole numbers are exact.
    let mut wanted: Vec<(f32, u64)> =
        points.iter().map(|(internal, point)| (distance(&point.embedding), *internal)).collect();
    wanted.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    wanted.truncate(questions.limit);
    let mut thread = named.collection().thread(limits()).unwrap();
    let nearest = CollectionQuery {
        params: ScanParams::EXACT,
        filter: questions.filter.as_ref(),
        ..CollectionQuery::nearest(&query, questions.limit)
    };
    let found = named.collection().nearest(&mut thread, &nearest).unwrap();
    let hits: Vec<(f32, u64)> = found.hits.iter().map(|hit| (-hit.score, hit.id)).collect();
    assert_eq!((hits, found.partial), (wanted, false), "{query:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 6,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]
    #[test]
    fn answers_after_any_changes_are_those_of_a_map(
        numbers in prop::sample::select(NUMBERS.to_vec()),
        steps in prop::collection::vec((change(), questions()), 1..30),
    ) {
        let mut subject = Subject::new(numbers);
        for (change, questions) in &steps {
            subject.make(change, questions);
            subject.check(&subject.named(), questions);
        }
    }
}
