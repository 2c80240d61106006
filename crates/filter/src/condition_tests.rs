use super::*;
use crate::{GeoPoint, TextMatchKind, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

fn matching(key: &str, matching: Match) -> Condition {
    Condition::Match { key: key.into(), matching }
}

fn only(condition: Condition) -> Filter {
    Filter { must: vec![condition], ..Filter::default() }
}

#[track_caller]
fn check(condition: Condition, payload: Value, expected: bool) {
    assert_eq!(
        only(condition.clone()).matches(7, &payload),
        expected,
        "{condition:?} on {payload}"
    );
}

#[test]
fn values_match_by_meaning() {
    let one = |value: Value| matching("a", Match::Value(value));
    check(one(json!("red")), json!({"a": "red"}), true);
    check(one(json!("red")), json!({"a": "Red"}), false);
    check(one(json!("red")), json!({"a": ["blue", "red"]}), true);
    check(one(json!(1)), json!({"a": 1.0}), true);
    check(one(json!(1)), json!({"a": "1"}), false);
    check(one(json!(true)), json!({"a": true}), true);
    check(one(json!(9007199254740993u64)), json!({"a": 9007199254740992u64}), false);
    check(one(json!("red")), json!({}), false);
    check(one(json!("red")), Value::Null, false);
}

/// Without `float_roundtrip` of serde_json, the last digit of some numbers changes.
#[test]
fn numbers_are_parsed_exactly() {
    for number in (1..2000).map(|n| json!(f64::from(n).sqrt())) {
        assert_eq!(serde_json::from_str::<Value>(&number.to_string()).unwrap(), number);
    }
}

#[test]
fn except_needs_a_value_that_differs() {
    let except = matching("a", Match::Except(vec![json!("red"), json!(1)].into()));
    check(except.clone(), json!({"a": "blue"}), true);
    check(except.clone(), json!({"a": "red"}), false);
    check(except.clone(), json!({"a": ["red", "blue"]}), true);
    check(except.clone(), json!({"a": ["red", 1]}), false);
    check(except.clone(), json!({"a": []}), false);
    check(except, json!({}), false);
}

#[test]
fn ranges_compare_numbers_only() {
    let range = |range: Range| Condition::Range { key: "a".into(), range };
    let closed = range(Range { gte: Some(1.0), lte: Some(2.0), ..Range::default() });
    let open = range(Range { gt: Some(1.0), lt: Some(2.0), ..Range::default() });
    for (value, in_closed, in_open) in
        [(1.0, true, false), (1.5, true, true), (2.0, true, false), (3.0, false, false)]
    {
        check(closed.clone(), json!({ "a": value }), in_closed);
        check(open.clone(), json!({ "a": value }), in_open);
        check(open.clone(), json!({ "a": [9, value] }), in_open);
    }
    check(closed, json!({"a": "1.5"}), false);
}

#[test]
fn ranges_compare_large_whole_numbers_exactly() {
    let base = 1_i64 << 60;
    let range = |gt: &Value, lte: &Value| {
        let limit = |value: &Value| value.as_number().and_then(RangeLimit::of);
        let range = WholeRange { gt: limit(gt), gte: None, lt: None, lte: limit(lte) };
        Condition::WholeRange { key: "a".into(), range }
    };
    for (value, expected) in [
        (json!(base), false),
        (json!(base + 1), true),
        (json!([7, base + 2]), true),
        (json!(base + 3), false),
        (json!(base as f64), false),
        (json!("x"), false),
    ] {
        check(range(&json!(base), &json!(base + 2)), json!({ "a": value }), expected);
    }
    let to_largest = range(&json!(-1.5), &json!(u64::MAX - 1));
    check(to_largest.clone(), json!({"a": u64::MAX - 1}), true);
    check(to_largest.clone(), json!({"a": u64::MAX}), false);
    check(to_largest.clone(), json!({"a": -1}), true);
    check(to_largest, json!({"a": -2}), false);
}

#[test]
fn paths_go_into_objects_and_lists() {
    let payload = json!({"a": {"b": [{"c": 1}, {"c": 2}], "d": null, "e": []}});
    let is = |key: &str, value: i32| matching(key, Match::Value(json!(value)));
    check(is("a.b[].c", 2), payload.clone(), true);
    check(is("a.b[].c", 3), payload.clone(), false);
    check(is("a.b.c", 2), payload.clone(), false);
    for (key, empty) in
        [("a", false), ("a.b", false), ("a.d", true), ("a.e", true), ("a.x", true), ("x.y", true)]
    {
        check(Condition::IsEmpty { key: key.into() }, payload.clone(), empty);
    }
    for (key, payload, empty) in [
        ("a", json!({"a": [null]}), false),
        ("a", json!({"a": [[]]}), false),
        ("a[]", json!({"a": [null, null]}), true),
        ("a[]", json!({"a": [[], null]}), true),
        ("a[].b", json!({"a": [{"b": null}, {}]}), true),
        ("a[].b", json!({"a": [{"b": null}, {"b": [null]}]}), false),
    ] {
        check(Condition::IsEmpty { key: key.into() }, payload, empty);
    }
}

#[test]
fn paths_have_quoted_names_and_element_numbers() {
    let payload = json!({"a.b": {"c": 1}, "a": [{"b": [5, 6]}, {"b": 7}], "m": [[1, 2], [3]]});
    let is = |key: &str, value: i32| matching(key, Match::Value(json!(value)));
    for (key, value, expected) in [
        ("\"a.b\".c", 1, true),
        ("a.b.c", 1, false),
        ("a[0].b", 6, true),
        ("a[1].b", 6, false),
        ("a[1].b", 7, true),
        ("a[2].b", 7, false),
        ("a[0].b[0]", 5, true),
        ("a[0].b[1]", 5, false),
        ("m[0]", 2, true),
        ("m[1]", 2, false),
        ("m[][0]", 3, true),
        ("m[][1]", 2, true),
        ("m[][1]", 3, false),
        ("m[]", 2, true),
        ("m", 2, false),
        ("m[][]", 2, true),
    ] {
        check(is(key, value), payload.clone(), expected);
    }
    let other = |key: &str| matching(key, Match::Except(vec![json!(1)].into()));
    check(other("m[]"), json!({"m": [[], [1], 1, null]}), false);
    check(other("m[]"), json!({"m": [[], [1], 2]}), true);
    check(Condition::IsEmpty { key: "a[0].b".into() }, payload.clone(), false);
    check(Condition::IsEmpty { key: "a[9].b".into() }, payload, true);
}

#[test]
fn one_object_of_a_list_meets_a_whole_filter() {
    let payload = json!({"list": [{"x": 1, "y": 1}, {"x": 2, "y": [2]}, 3], "one": {"x": 1}});
    let element = |key: &str, x: i32, y: i32| {
        let is = |key: &str, value: i32| matching(key, Match::Value(json!(value)));
        let filter = Filter { must: vec![is("x", x), is("y", y)], ..Filter::default() };
        Condition::Element { key: key.into(), filter }
    };
    for key in ["list", "list[]"] {
        check(element(key, 1, 1), payload.clone(), true);
        check(element(key, 2, 2), payload.clone(), true);
        check(element(key, 1, 2), payload.clone(), false);
    }
    let any = |key: &str| Condition::Element { key: key.into(), filter: Filter::default() };
    check(any("list"), payload.clone(), true);
    check(any("one"), payload.clone(), false);
    check(any("none"), payload.clone(), false);
    let filter = only(Condition::has_id(vec![7]));
    check(Condition::Element { key: "list".into(), filter }, payload, false);
}

#[test]
fn texts_areas_and_vectors_are_compared() {
    let text = |kind, query: &str| {
        matching("a", Match::Text(TextMatch::new(kind, query, Tokenizer::default())))
    };
    let payload = json!({"a": ["The quick fox", 7], "p": [{"lat": 50.0, "lon": 10.0}, null]});
    check(text(TextMatchKind::All, "fox THE"), payload.clone(), true);
    check(text(TextMatchKind::All, "fox dog"), payload.clone(), false);
    check(text(TextMatchKind::Any, "fox dog"), payload.clone(), true);
    check(text(TextMatchKind::Phrase, "quick fox"), payload.clone(), true);
    check(text(TextMatchKind::Phrase, "the fox"), payload.clone(), false);
    check(matching("a", Match::Prefix("The q".into())), payload.clone(), true);
    check(matching("a", Match::Prefix("the".into())), payload.clone(), false);
    check(matching("a", Match::Substring("ck f".into())), payload.clone(), true);
    check(matching("p", Match::Substring(String::new())), payload.clone(), false);
    let near = |radius| {
        let area = GeoArea::Radius { center: GeoPoint { lat: 50.0, lon: 10.1 }, radius };
        Condition::Geo { key: "p".into(), area }
    };
    check(near(8_000.0), payload.clone(), true);
    check(near(7_000.0), payload.clone(), false);
    let vector = |is_present| Condition::HasVector { name: String::new(), is_present };
    check(vector(true), payload.clone(), true);
    check(vector(false), payload, false);
}

#[test]
fn dates_counts_and_nulls_are_compared() {
    let date = |gte: &str, lt: &str| Condition::DateRange {
        key: "a".into(),
        range: DateRange { gte: parse_date(gte), lt: parse_date(lt), ..DateRange::default() },
    };
    let june = date("2024-06-01", "2024-07-01");
    check(june.clone(), json!({"a": "2024-06-30T23:59:59Z"}), true);
    check(june.clone(), json!({"a": ["2023-01-01", "2024-06-01"]}), true);
    check(june.clone(), json!({"a": "2024-07-01T01:00:00+02:00"}), true);
    check(june.clone(), json!({"a": "2024-07-01"}), false);
    check(june.clone(), json!({"a": "june"}), false);
    check(june, json!({"a": 1_718_000_000}), false);
    let count = |gte, lte| Condition::ValuesCount {
        key: "a".into(),
        range: CountRange { gte, lte, ..CountRange::default() },
    };
    for (payload, number) in [
        (json!({"a": [1, null, 3]}), 3),
        (json!({"a": []}), 0),
        (json!({"a": null}), 0),
        (json!({"a": "x"}), 1),
        (json!({"a": {"b": 1}}), 1),
        (json!({}), 0),
    ] {
        check(count(Some(number), Some(number)), payload.clone(), true);
        check(count(Some(number + 1), None), payload, false);
    }
    let null = Condition::IsNull { key: "a".into() };
    for (payload, expected) in [
        (json!({"a": null}), true),
        (json!({"a": [1, null]}), true),
        (json!({"a": []}), false),
        (json!({"a": 1}), false),
        (json!({}), false),
    ] {
        check(null.clone(), payload, expected);
    }
}

#[test]
fn min_should_counts_conditions() {
    let is = |value: i32| matching("a", Match::Value(json!(value)));
    let at_least = |min_count: usize| Filter {
        min_should: Some(MinShould { conditions: vec![is(1), is(2), is(3)], min_count }),
        ..Filter::default()
    };
    let matches = |min_count, payload: Value| at_least(min_count).matches(1, &payload);
    assert!(matches(2, json!({"a": [1, 3]})) && !matches(2, json!({"a": [1, 4]})));
    assert!(matches(0, json!({})) && !matches(4, json!({"a": [1, 2, 3]})));
}

#[test]
fn ids_need_no_payload() {
    let filter = only(Condition::Nested(only(Condition::has_id(vec![9, 7]))));
    assert!(filter.matches(7, &Value::Null) && filter.matches(9, &Value::Null));
    assert!(!filter.matches(8, &Value::Null));
}

#[test]
fn limits_are_refused() {
    let mut deep = Filter::default();
    for _ in 0..DEPTH_MAX {
        deep = only(Condition::Nested(deep));
    }
    assert!(deep.check().is_err());
    let wide =
        Filter { should: vec![Condition::has_id(vec![]); CONDITIONS_MAX + 1], ..Filter::default() };
    assert!(wide.check().is_err());
    let slices = |count: usize| {
        let slice = Condition::Slice(IdSlice::new(2, 0).unwrap());
        Filter { should: vec![slice; count], ..Filter::default() }
    };
    let most = CONDITIONS_MAX / SLICE_CONDITIONS;
    assert!(slices(most).check().is_ok() && slices(most + 1).check().is_err());
    assert!(only(Condition::has_id(vec![0; VALUES_MAX + 1])).check().is_err());
    assert!(only(Condition::IsEmpty { key: String::new() }).check().is_err());
    assert!(only(Condition::has_id(vec![1])).check().is_ok());
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0i64..4).prop_map(Value::from),
        "[ab]".prop_map(Value::from),
        Just(Value::Null),
        Just(json!(2.5))
    ]
}

fn payload() -> impl Strategy<Value = Value> {
    let field = prop_oneof![scalar(), prop::collection::vec(scalar(), 0..3).prop_map(Value::from)];
    prop::collection::btree_map("[xy]", field, 0..3)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()))
}

fn condition() -> impl Strategy<Value = Condition> {
    let values = || prop::collection::vec(scalar(), 0..3);
    let how = prop_oneof![
        scalar().prop_map(Match::Value),
        values().prop_map(|values| Match::Any(values.into())),
        values().prop_map(|values| Match::Except(values.into()))
    ];
    let leaf = prop_oneof![
        ("[xy]", how).prop_map(|(key, matching)| Condition::Match { key, matching }),
        ("[xy]", 0u8..4, 0u8..4).prop_map(|(key, low, high)| {
            let range = Range { gte: Some(low.into()), lt: Some(high.into()), ..Range::default() };
            Condition::Range { key, range }
        }),
        "[xy]".prop_map(|key| Condition::IsEmpty { key }),
        prop::collection::vec(0u64..20, 0..8).prop_map(Condition::has_id),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..3);
        (list(), list(), list()).prop_map(|(must, should, must_not)| {
            Condition::Nested(Filter { must, should, must_not, min_should: None })
        })
    })
}

/// Implements the definition in another form: the field's values as a list first, then counts.
fn naive(condition: &Condition, id: u64, payload: &Value) -> bool {
    let values = |key: &str| -> Vec<Value> {
        match payload.get(key) {
            Some(Value::Array(elements)) => {
                elements.iter().filter(|value| !value.is_null()).cloned().collect()
            }
            None | Some(Value::Null) => vec![],
            Some(value) => vec![value.clone()],
        }
    };
    match condition {
        Condition::Match { key, matching } => match matching {
            Match::Value(wanted) => values(key).contains(wanted),
            Match::Any(wanted) => {
                values(key).iter().filter(|value| wanted.contains(value)).count() > 0
            }
            Match::Except(unwanted) => {
                values(key).iter().filter(|value| !unwanted.contains(value)).count() > 0
            }
            // Tested against examples.
            Match::Text(_) | Match::Prefix(_) | Match::Substring(_) => {
                unreachable!("{condition:?}")
            }
        },
        Condition::Range { key, range } => {
            let low = range.gte.unwrap();
            let high = range.lt.unwrap();
            values(key).iter().filter_map(Value::as_f64).any(|value| low <= value && value < high)
        }
        Condition::HasId(ids) => ids.contains(&id),
        Condition::IsEmpty { key } => match payload.get(key) {
            None | Some(Value::Null) => true,
            Some(value) => value.as_array().is_some_and(Vec::is_empty),
        },
        Condition::Nested(filter) => {
            let met = |list: &[Condition]| {
                list.iter().filter(|condition| naive(condition, id, payload)).count()
            };
            met(&filter.must) == filter.must.len()
                && (filter.should.is_empty() || met(&filter.should) > 0)
                && met(&filter.must_not) == 0
        }
        // Tested against examples, and against an index.
        Condition::WholeRange { .. }
        | Condition::DateRange { .. }
        | Condition::ValuesCount { .. }
        | Condition::IsNull { .. }
        | Condition::Geo { .. }
        | Condition::HasVector { .. }
        | Condition::Slice(_)
        | Condition::Element { .. } => {
            unreachable!("{condition:?}")
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_the_definition(
        condition in condition(),
        payloads in prop::collection::vec(payload(), 0..20),
    ) {
        let filter = only(condition.clone());
        for (id, payload) in (0..).zip(&payloads) {
            prop_assert_eq!(filter.matches(id, payload), naive(&condition, id, payload));
        }
    }
}

#[test]
fn excluded_ids_are_split_off_the_filter() {
    let red = only(matching("a", Match::Value(json!("red"))));
    let has = |ids: &[u64]| Condition::has_id(ids.to_vec());
    let blue = matching("a", Match::Value(json!("blue")));
    let filters = [
        (red.clone(), red.clone(), 0),
        (only(Condition::Nested(only(Condition::Nested(red.clone())))), red.clone(), 0),
        (Filter { must_not: vec![has(&[2, 1]), has(&[7])], ..red.clone() }, red.clone(), 3),
        (
            Filter { must_not: vec![has(&[7])], ..only(Condition::Nested(red.clone())) },
            red.clone(),
            1,
        ),
        (Filter { must_not: vec![has(&[7])], ..Filter::default() }, Filter::default(), 1),
        (only(has(&[7])), only(has(&[7])), 0),
        (
            Filter {
                must_not: vec![blue.clone(), has(&[7])],
                should: vec![has(&[7])],
                ..red.clone()
            },
            Filter { must_not: vec![blue], should: vec![has(&[7])], ..red.clone() },
            1,
        ),
    ];
    for (filter, wanted, count) in filters {
        let (rest, excluded) = filter.without_ids();
        assert_eq!((&*rest, excluded.len()), (&wanted, count), "{filter:?}");
        for (id, payload) in
            [(7, json!({"a": "red"})), (8, json!({"a": ["red", "blue"]})), (9, json!({}))]
        {
            let expected = rest.matches(id, &payload) && !excluded.contains(&id);
            assert_eq!(filter.matches(id, &payload), expected, "{filter:?} on {id} {payload}");
        }
    }
}
