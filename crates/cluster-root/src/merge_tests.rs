//! Merged answers compared with a plain sort of all points.

use proptest::prelude::*;
use search::Metric;
use search::collection::IDS_MAX;

use super::*;

const UUID: &str = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

/// Calls `merge` with the results of shards.
fn merged(
    results: &[Value],
    incomplete: bool,
    merge: impl Fn(ShardResults<'_>) -> Result<Vec<u8>>,
) -> Value {
    let texts: Vec<Box<RawValue>> = results.iter().map(raw).collect();
    let texts: Vec<&RawValue> = texts.iter().map(|text| &**text).collect();
    let answer = merge(ShardResults { results: &texts, incomplete }).unwrap();
    serde_json::from_slice(&answer).unwrap()
}

fn ids(answer: &Value) -> Vec<Value> {
    answer["points"].as_array().unwrap().iter().map(|point| point["id"].clone()).collect()
}

fn hit(id: impl Into<Value>, score: f64) -> Value {
    let id: Value = id.into();
    json!({"id": id, "version": 0, "score": score, "payload": {"n": id}})
}

fn range(offset: usize, limit: usize) -> HitRange {
    HitRange { offset, limit }
}

#[test]
fn an_error_does_not_keep_the_bytes_of_the_answer() {
    let error = text(vec![b'"', 0xff, b'"']).unwrap_err();
    assert!(error.message().starts_with("a merged answer: invalid utf-8"), "{error}");
    assert!(std::error::Error::source(&error).unwrap().is::<std::str::Utf8Error>());
}

#[test]
fn larger_scores_come_first_except_for_distances() {
    let shards = [
        json!({"points": [hit(3, 0.5), hit(1, 0.25)]}),
        json!({"points": [hit(2, 0.5), hit(UUID, 0.5), hit(4, 2.0)], "partial": true}),
    ];
    let all = range(0, 10);
    let higher = merged(&shards, false, |it| hits(it, HitOrder::HigherScore, all));
    assert_eq!(ids(&higher), [json!(4), json!(2), json!(3), json!(UUID), json!(1)]);
    assert_eq!(higher["partial"], true);
    assert_eq!(higher["points"][1], hit(2, 0.5), "points stay as they are");
    let lower = merged(&shards[..1], false, |it| hits(it, HitOrder::LowerScore, range(1, 1)));
    assert_eq!((ids(&lower), &lower["partial"]), (vec![json!(3)], &Value::Null));
    let missing = merged(&shards[..1], true, |it| hits(it, HitOrder::LowerScore, all));
    assert_eq!(missing["partial"], true);
}

/// A shard orders its hits by squared distances, which are equal once they are rounded. It returns
/// as many hits as there are up to the end of the page.
#[test]
fn pages_of_equal_distances_have_each_hit_once() {
    let shards = [vec![9, 1, 7], vec![5, 8], vec![3]];
    let page = |offset: usize| {
        let first = |shard: &Vec<u64>| -> Vec<Value> {
            shard.iter().take(offset + 1).map(|id| hit(*id, 2.0)).collect()
        };
        let results = shards.each_ref().map(|shard| json!({ "points": first(shard) }));
        ids(&merged(&results, false, |it| hits(it, HitOrder::LowerScore, range(offset, 1))))
    };
    let pages: Vec<Value> = (0..6).flat_map(page).collect();
    assert_eq!(pages, [3_u64, 5, 8, 9, 1, 7].map(Value::from));
}

#[test]
fn the_text_of_points_stays() {
    let payload = r#"{"f":1e-7,"big":18446744073709551615}"#;
    let point = format!(r#"{{"id":1,"score":0.10000000149011612,"payload":{payload}}}"#);
    let text = format!("{{\"points\":[{point}]}}");
    let result = RawValue::from_string(text.clone()).unwrap();
    let shards = ShardResults { results: &[&result], incomplete: false };
    let answer = hits(shards, HitOrder::HigherScore, range(0, 1)).unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), text);
}

#[test]
fn values_order_as_in_one_collection() {
    let point = |id: u64, value: Value| json!({"id": id, "score": 1.0, "order_value": value});
    let shards = [
        json!({"points": [point(5, json!(1)), point(2, json!(2)), point(1, json!(3))]}),
        json!({"points": [point(4, json!(1)), point(3, json!(2.5)), point(6, json!(3))]}),
    ];
    let order = |descending| HitOrder::Value { descending };
    let up = merged(&shards, false, |it| hits(it, order(false), range(0, 10)));
    assert_eq!(ids(&up), [4, 5, 2, 3, 1, 6].map(Value::from));
    let down = merged(&shards, false, |it| ordered_scroll(it, true, 3));
    assert_eq!(ids(&down), [6, 1, 3].map(Value::from), "ids descend too");
    assert_eq!(down.get("next_page_offset"), Some(&Value::Null));
}

#[test]
fn numbers_come_before_dates_as_in_one_collection() {
    let point = |id: u64, value: i64| json!({"id": id, "score": 1.0, "order_value": value});
    let first = [point(1, 3), point(2, 900), point(3, 5)];
    let second = [point(4, 10), point(5, 2)];
    // Shards with numbers only, and shards of older nodes, name no positions.
    let third = json!({"points": [point(6, 7)]});
    let dates = |start: usize, end: usize| json!({"start": start, "end": end});
    let up = [
        json!({"points": first, "order_dates": dates(2, 3)}),
        json!({"points": second, "order_dates": dates(1, 2)}),
        third.clone(),
    ];
    let reversed = |points: &[Value]| points.iter().rev().cloned().collect::<Vec<Value>>();
    let down = [
        json!({"points": reversed(&first), "order_dates": dates(0, 1)}),
        json!({"points": reversed(&second), "order_dates": dates(0, 1)}),
        third,
    ];
    let ascending = [1, 6, 4, 2, 5, 3].map(Value::from);
    let page = merged(&up, false, |it| ordered_scroll(it, false, 10));
    assert_eq!(ids(&page), ascending);
    assert_eq!(page.get("order_dates"), None, "clients do not see it");
    let page = merged(&down, false, |it| ordered_scroll(it, true, 10));
    assert_eq!(ids(&page), reversed(&ascending));
    let order = HitOrder::Value { descending: false };
    let found = merged(&up, false, |it| hits(it, order, range(3, 2)));
    assert_eq!(ids(&found), ascending[3..5]);
}

#[test]
fn an_ordered_list_that_would_be_cut_is_refused() {
    let points: Vec<Value> = (0..IDS_MAX).map(|id| json!({"id": id, "order_value": id})).collect();
    let result = raw(&json!({ "points": points }));
    let list = |limit: usize| {
        ordered_scroll(ShardResults { results: &[&result], incomplete: false }, false, limit)
    };
    assert!(list(IDS_MAX).is_ok());
    let error = list(IDS_MAX + 1).unwrap_err();
    assert!(error.message().contains("order_by.start_from"), "{error}");
}

#[test]
fn batches_merge_each_query() {
    let shards = [
        json!([{"points": [hit(1, 1.0)]}, {"points": [hit(1, 1.0)]}]),
        json!([{"points": [hit(2, 2.0)]}, {"points": [hit(2, 2.0)], "partial": true}]),
    ];
    let queries = [(HitOrder::HigherScore, range(0, 1)), (HitOrder::LowerScore, range(0, 5))];
    let answer = merged(&shards, false, |it| batch(it, &queries));
    assert_eq!(ids(&answer[0]), [json!(2)]);
    assert_eq!(ids(&answer[1]), [json!(1), json!(2)]);
    assert_eq!((&answer[0]["partial"], &answer[1]["partial"]), (&Value::Null, &json!(true)));
    let texts: Vec<Box<RawValue>> = shards.iter().map(raw).collect();
    let texts: Vec<&RawValue> = texts.iter().map(|text| &**text).collect();
    let one = batch(ShardResults { results: &texts, incomplete: false }, &queries[..1]);
    assert!(one.unwrap_err().message().contains("2 of 1 queries"));
}

#[test]
fn a_page_ends_where_a_shard_ended_early() {
    let record = |id: u64| json!({ "id": id });
    let shards = [
        json!({"points": [record(1), record(4)], "next_page_offset": 6}),
        json!({"points": [record(2), record(5), record(7), record(8)], "next_page_offset": null}),
    ];
    let page = merged(&shards, false, |it| scroll(it, 10));
    assert_eq!(ids(&page), [1, 2, 4, 5].map(Value::from));
    assert_eq!(page["next_page_offset"], 6);
    let page = merged(&shards, false, |it| scroll(it, 3));
    assert_eq!(
        (ids(&page), &page["next_page_offset"]),
        ([1, 2, 4].map(Value::from).to_vec(), &json!(5))
    );
    let last = merged(&shards[1..], true, |it| scroll(it, 4));
    assert_eq!((&last["next_page_offset"], &last["partial"]), (&Value::Null, &json!(true)));
}

#[test]
fn records_follow_the_requested_ids() {
    let shards = [json!([{"id": 1, "payload": {}}, {"id": UUID}]), json!([{"id": 2}])];
    let wanted: Vec<PointId> =
        ["2", &UUID.to_uppercase(), "9", "1", "2"].iter().map(|id| id.parse().unwrap()).collect();
    let answer = merged(&shards, false, |it| records(it.results, &wanted));
    assert_eq!(answer, json!([{"id": 2}, {"id": UUID}, {"id": 1, "payload": {}}, {"id": 2}]));
}

#[test]
fn counts_and_facets_add_up() {
    let shards = [json!({"count": 3}), json!({"count": 4, "partial": true})];
    assert_eq!(merged(&shards, false, count), json!({"count": 7, "partial": true}));
    assert_eq!(merged(&shards[..1], false, count), json!({"count": 3}));
    assert_eq!(merged(&shards[..1], true, count), json!({"count": 3, "partial": true}));
    let value = |value: Value, count: u64| json!({"value": value, "count": count});
    let shards = [
        json!({"hits": [value(json!("a"), 2), value(json!(1), 2), value(json!(true), 1)]}),
        json!({"hits": [value(json!("b"), 3), value(json!("a"), 1), value(json!(true), 1)]}),
    ];
    let facets = merged(&shards, false, |it| facet(it, 3, 4));
    let expected = [value(json!("a"), 3), value(json!("b"), 3), value(json!(true), 2)];
    assert_eq!(facets, json!({ "hits": expected }));
    // Each shard may have values that it did not return.
    let facets = merged(&shards, false, |it| facet(it, 3, 3));
    assert_eq!(facets, json!({ "hits": expected, "partial": true }));
    let bad = raw(&json!({"hits": [{"value": 1.5, "count": 1}]}));
    assert!(facet(ShardResults { results: &[&bad], incomplete: false }, 1, 4).is_err());
}

/// Points of a collection, each with its shard.
fn points(max: usize) -> impl Strategy<Value = Vec<(PointId, u8, usize)>> {
    let id = prop_oneof![
        (0u64..200).prop_map(PointId::Number),
        any::<[u8; 16]>().prop_map(PointId::Uuid),
    ];
    prop::collection::vec((id, 0u8..6, 0usize..4), 0..max).prop_map(|mut all| {
        all.sort_by_key(|point| point.0);
        all.dedup_by_key(|point| point.0);
        all
    })
}

/// Returns the results of four shards, each of which sorts its points and returns the first
/// `count`.
fn shard_results<K: Ord>(
    points: &[(PointId, u8, usize)],
    count: usize,
    key: impl Fn(&(PointId, u8, usize)) -> K,
    text: impl Fn(&(PointId, u8, usize)) -> Value,
) -> Vec<Vec<Value>> {
    (0..4)
        .map(|shard| {
            let mut own: Vec<_> = points.iter().filter(|point| point.2 == shard).collect();
            own.sort_by_key(|point| key(point));
            own.into_iter().take(count).map(&text).collect()
        })
        .collect()
}

/// Points of a page. Most are on the border between the two ways to read a page.
const POINTS: [&str; 9] = [
    r#"{"id":1,"version":0,"score":0.10000000149011612}"#,
    r#"{"id":2,"score":1e-7,"payload":{"points":[{"id":"}]"}]}}"#,
    r#"{"id":3,"order_value":5}"#,
    r#" {"id":4}"#,
    r#"{"id":5} "#,
    r#"{"\u0069d":6}"#,
    r#"{"id":7,"id":8}"#,
    r#"[9,0.5,null]"#,
    r#"{"score":1}"#,
];
const PAGE_ENDS: [&str; 4] =
    ["]}", "] }", r#"],"partial":true}"#, r#"],"order_dates":{"start":0,"end":1}}"#];

#[test]
fn a_plain_page_is_read_in_one_pass() {
    let page = |points: &[&str]| format!("{{\"points\":[{}]}}", points.join(","));
    assert_eq!(points_in_one_pass(&page(&POINTS[..3])).unwrap().len(), 3);
    assert_eq!(points_in_one_pass(&page(&[])).unwrap().len(), 0);
    for other in ["{\"points\":[{\"id\":1},]}", "{\"points\":[,{\"id\":1}]}", "{}"] {
        assert!(points_in_one_pass(other).is_none(), "{other}");
    }
}

proptest! {
    #[test]
    fn one_pass_reads_the_points_of_two(
        points in prop::collection::vec(prop::sample::select(POINTS.to_vec()), 0..4),
        end in prop::sample::select(PAGE_ENDS.to_vec()),
        change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut page = format!("{{\"points\":[{}{end}", points.join(",")).into_bytes();
        if let Some((at, byte)) = change {
            let at = at.index(page.len());
            page[at] = byte;
        }
        // The result of a shard is JSON: the answer of its node was parsed.
        let page = String::from_utf8(page).ok().and_then(|text| RawValue::from_string(text).ok());
        let Some(page) = page else { return Ok(()) };
        let Some(points) = points_in_one_pass(page.get()) else { return Ok(()) };
        let twice: PointsText<'_> = read(&page).unwrap();
        prop_assert!(!twice.partial);
        let parts = |point: &KeyedPoint<'_>| (point.key, point.text.to_owned());
        let expected: Vec<_> = twice.into_keyed().unwrap().iter().map(parts).collect();
        prop_assert_eq!(points.iter().map(parts).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn merged_hits_are_those_of_one_sort(
        points in points(60),
        metric in prop_oneof![Just(Metric::Cosine), Just(Metric::L2)],
        offset in 0usize..20,
        limit in 1usize..20,
    ) {
        let (order, sign) = match metric {
            Metric::L2 => (HitOrder::LowerScore, 1),
            _ => (HitOrder::HigherScore, -1),
        };
        let key = |point: &(PointId, u8, usize)| {
            (sign * i32::from(point.1), with_position(point.0))
        };
        let text = |point: &(PointId, u8, usize)| {
            json!({"id": point.0, "score": f32::from(point.1) / 4.0})
        };
        let shards: Vec<Value> = shard_results(&points, offset + limit, key, text)
            .into_iter()
            .map(|points| json!({ "points": points }))
            .collect();
        let answer = merged(&shards, false, |it| hits(it, order, range(offset, limit)));
        let mut all = points;
        all.sort_by_key(key);
        let expected: Vec<Value> =
            all.iter().skip(offset).take(limit).map(|point| json!(point.0)).collect();
        prop_assert_eq!(ids(&answer), expected);
    }

    /// Reads all pages. Each shard returns at most `shard_limit` points a page, as if its response
    /// were full.
    #[test]
    fn pages_have_every_point_once(
        points in points(60),
        limit in 1usize..20,
        shard_limit in 1usize..20,
    ) {
        let mut all: Vec<PointId> = points.iter().map(|point| point.0).collect();
        all.sort_by_key(|id| with_position(*id));
        let mut found: Vec<Value> = Vec::new();
        let mut offset: Option<PointId> = None;
        loop {
            let pages: Vec<Value> = (0..4)
                .map(|shard| {
                    let mut own: Vec<PointId> = points
                        .iter()
                        .filter(|point| point.2 == shard)
                        .map(|point| point.0)
                        .filter(|id| {
                            offset.is_none_or(|offset| with_position(*id) >= with_position(offset))
                        })
                        .collect();
                    own.sort_by_key(|id| with_position(*id));
                    let count = own.len().min(limit).min(shard_limit);
                    let page: Vec<Value> =
                        own[..count].iter().map(|id| json!({ "id": id })).collect();
                    json!({"points": page, "next_page_offset": own.get(count)})
                })
                .collect();
            let page = merged(&pages, false, |it| scroll(it, limit));
            let mut ids = ids(&page);
            prop_assert!(ids.len() <= limit);
            found.append(&mut ids);
            match serde_json::from_value(page["next_page_offset"].clone()).unwrap() {
                Some(next) => {
                    let follows = |offset| with_position(next) > with_position(offset);
                    prop_assert!(offset.is_none_or(follows));
                    offset = Some(next);
                }
                None => break,
            }
        }
        let expected: Vec<Value> = all.iter().map(|id| json!(id)).collect();
        prop_assert_eq!(found, expected);
    }
}
