//! Points ordered by a field, and hits grouped by one.

use base::ErrorKind;
use serde_json::{Value, json};

use super::Bench;
use crate::call::{CallContext, ShardCall};
use crate::{groups, query, retrieve, update};

/// Points on a line, each with a number, a date, a colour and a shelf.
fn shelves(bench: &Bench) {
    bench.create("shelves", 2, "Euclid");
    let point = |id: i64| {
        let shelf =
            if id == 7 { json!(["a", "b"]) } else { json!(["a", "b", "c"][id as usize % 3]) };
        let n = if id % 4 == 0 { json!(-id) } else { json!(id as f64 / 2.0) };
        let day = format!("2024-06-{:02}", 30 - id);
        json!({"id": id, "vector": [id, 0], "payload": {"shelf": shelf, "n": n, "day": day, "even": id % 2 == 0}})
    };
    let points: Vec<Value> = (1..=12).map(point).collect();
    bench.write(update::upsert, "shelves", &json!({ "points": points })).unwrap();
}

/// Runs `check` on the memtable, then on a segment, then on both.
fn on_every_level(check: impl Fn(&Bench)) {
    let bench = Bench::new();
    shelves(&bench);
    check(&bench);
    let flush = || bench.registry().get("shelves").unwrap().collection().flush().unwrap();
    flush();
    check(&bench);
    let again = json!({"id": 12, "vector": [12, 0],
                       "payload": {"shelf": "a", "n": -12, "day": "2024-06-18", "even": true}});
    bench.write(update::upsert, "shelves", &json!({ "points": [again] })).unwrap();
    check(&bench);
    flush();
    check(&bench);
}

#[test]
fn a_root_gets_the_positions_of_dates() {
    let bench = Bench::new();
    bench.create("mixed", 2, "Euclid");
    // The largest number is above the microseconds of both dates.
    let values = [json!("2024-06-01"), json!(10_u64.pow(16)), json!("2024-05-01"), json!(-1)];
    let point = |(id, when): (u64, &Value)| json!({"id": id, "vector": [id, 0], "payload": {"when": when, "shelf": "a"}});
    let points: Vec<Value> = (1..).zip(&values).map(point).collect();
    bench.write(update::upsert, "mixed", &json!({ "points": points })).unwrap();
    let context = |for_root: bool| CallContext {
        shard_call: for_root.then(ShardCall::default),
        ..super::context("", "")
    };
    let ids = |hits: &Value| -> Vec<u64> {
        hits.as_array().unwrap().iter().map(|hit| hit["id"].as_u64().unwrap()).collect()
    };
    let order = json!({"key": "when", "direction": "desc"});

    let scroll = json!({"order_by": "when"});
    let page = bench.read_in(context(true), retrieve::scroll, "mixed", &scroll).unwrap();
    assert_eq!(ids(&page["points"]), [4, 2, 3, 1]);
    assert_eq!(page["order_dates"], json!({"start": 2, "end": 4}));
    let page = bench.read_in(context(false), retrieve::scroll, "mixed", &scroll).unwrap();
    assert_eq!(page.get("order_dates"), None);

    for with_payload in [false, true] {
        let body = json!({"query": {"order_by": order}, "offset": 1, "with_payload": with_payload});
        let found = bench.read_in(context(true), query::query, "mixed", &body).unwrap();
        assert_eq!(ids(&found["points"]), [3, 2, 4]);
        assert_eq!(found["order_dates"], json!({"start": 0, "end": 1}));
        let found = bench.read_in(context(false), query::query, "mixed", &body).unwrap();
        assert_eq!(found.get("order_dates"), None);
    }

    let body = json!({"query": {"order_by": order}, "group_by": "shelf", "group_size": 3});
    let found = bench.read_in(context(true), groups::query, "mixed", &body).unwrap();
    assert_eq!(ids(&found["groups"][0]["hits"]), [1, 3, 2]);
    assert_eq!(found["groups"][0]["order_dates"], json!({"start": 0, "end": 2}));
}

#[test]
fn points_are_ordered_by_numbers_and_dates() {
    let page = |bench: &Bench, body: Value| bench.read(retrieve::scroll, "shelves", &body).unwrap();
    let list = |page: &Value, member: &str| -> Vec<Value> {
        page["points"].as_array().unwrap().iter().map(|point| point[member].clone()).collect()
    };
    on_every_level(|bench| {
        let first = page(bench, json!({"order_by": "n", "limit": 4, "with_payload": false}));
        assert_eq!(list(&first, "id"), [json!(12), json!(8), json!(4), json!(1)]);
        assert_eq!(list(&first, "order_value"), [json!(-12), json!(-8), json!(-4), json!(0.5)]);
        assert_eq!(first["next_page_offset"], Value::Null);
        let order = json!({"key": "n", "direction": "desc", "start_from": 3});
        let even = json!({"must": [{"key": "even", "match": {"value": true}}]});
        let last = page(bench, json!({"order_by": order, "limit": 3, "filter": even}));
        assert_eq!(list(&last, "id"), [json!(6), json!(2), json!(4)]);
        let order = json!({"key": "day", "start_from": "2024-06-20T00:00:00Z"});
        let days = page(bench, json!({"order_by": order, "limit": 3}));
        assert_eq!(list(&days, "id"), [json!(10), json!(9), json!(8)]);
        assert_eq!(list(&days, "order_value")[0], json!(1_718_841_600_000_000_i64));
        for key in ["shelf", "none"] {
            assert!(list(&page(bench, json!({ "order_by": key })), "id").is_empty(), "{key}");
        }
        let query = json!({"query": {"order_by": {"key": "n", "direction": "desc"}}, "limit": 2, "offset": 1});
        let found = bench.read(query::query, "shelves", &query).unwrap();
        assert_eq!(list(&found, "id"), [json!(10), json!(9)]);
        assert_eq!(list(&found, "order_value"), [json!(5.0), json!(4.5)]);
    });
    let bench = Bench::new();
    shelves(&bench);
    for (body, words) in [
        (json!({"order_by": "n", "offset": 3}), "start_from"),
        (json!({"order_by": ""}), "names no field"),
        (json!({"order_by": {"key": "n", "direction": "up"}}), "asc or desc"),
        (json!({"order_by": {"key": "n", "start_from": "soon"}}), "a number or a date"),
    ] {
        let error = bench.read(retrieve::scroll, "shelves", &body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn an_order_continues_with_an_order_value() {
    on_every_level(|bench| {
        let page = |order: Value| -> Vec<Value> {
            let body = json!({"order_by": order, "limit": 3});
            let page = bench.read(retrieve::scroll, "shelves", &body).unwrap();
            page["points"].as_array().unwrap().clone()
        };
        let ids = |points: &[Value]| -> Vec<Value> {
            points.iter().map(|point| point["id"].clone()).collect()
        };
        for (key, direction, first, second) in [
            ("day", "asc", [12, 11, 10], [10, 9, 8]),
            ("day", "desc", [1, 2, 3], [3, 4, 5]),
            ("n", "asc", [12, 8, 4], [4, 1, 2]),
        ] {
            let points = page(json!({"key": key, "direction": direction}));
            assert_eq!(ids(&points), first.map(Value::from), "{key}");
            let last = &points[2]["order_value"];
            let points = page(json!({"key": key, "direction": direction, "start_from": last}));
            assert_eq!(ids(&points), second.map(Value::from), "{key} from {last}");
        }
        // No number follows, and no date is in the field.
        for (direction, from) in [("asc", 1000), ("desc", -1000)] {
            let order = json!({"key": "n", "direction": direction, "start_from": from});
            assert!(page(order).is_empty(), "{direction}");
        }
    });
}

#[test]
fn a_high_limit_orders_points_once_for_each_value() {
    let bench = Bench::new();
    bench.create("c", 2, "Euclid");
    let points = json!({"points": [
        {"id": 1, "vector": [1, 0], "payload": {"n": [1, 2, 3]}},
        {"id": 2, "vector": [2, 0], "payload": {"n": 4}},
    ]});
    bench.write(update::upsert, "c", &points).unwrap();
    let order = |limit: usize| json!({"query": {"order_by": "n"}, "limit": limit});
    for limit in [10, 100_000] {
        let ids = bench.ids("c", &order(limit));
        assert_eq!(ids, [json!(1), json!(1), json!(1), json!(2)], "{limit}");
    }
    let prefetch = json!({"prefetch": order(100_000), "query": [0, 0]});
    assert_eq!(bench.ids("c", &prefetch), [json!(1), json!(2)]);
}

#[test]
fn a_high_limit_orders_at_most_16384_values() {
    let bench = Bench::new();
    bench.create("c", 2, "Euclid");
    let values: Vec<u32> = (0..8192).collect();
    let point = |id: u64, n: Value| json!({"id": id, "vector": [id, 0], "payload": {"n": n}});
    let points = json!({"points": [point(1, json!(values)), point(2, json!(values))]});
    bench.write(update::upsert, "c", &points).unwrap();
    let order = json!({"query": {"order_by": "n"}, "limit": 16_000, "offset": 1000});
    assert_eq!(bench.ids("c", &order).len(), 16_384 - 1000);
    let last = json!({"points": [point(3, json!(8192))]});
    bench.write(update::upsert, "c", &last).unwrap();
    for body in
        [order, json!({"prefetch": {"query": {"order_by": "n"}, "limit": 17_000}, "query": [0, 0]})]
    {
        let error = bench.read(query::query, "c", &body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
        assert!(error.message().contains("limit: 1"), "{body}: {error}");
    }
}

#[test]
fn a_group_has_a_point_with_several_values_once() {
    let bench = Bench::new();
    bench.create("c", 2, "Euclid");
    let point =
        |id: u64, n: Value| json!({"id": id, "vector": [id, 0], "payload": {"shelf": "a", "n": n}});
    let points = [point(1, json!([1, 2, 3])), point(2, json!([4, 5])), point(3, json!(6))];
    bench.write(update::upsert, "c", &json!({ "points": points })).unwrap();
    // With one group of two points, the first search finds only the first point.
    for limit in [1, 10] {
        let body = json!({"query": {"order_by": "n"}, "group_by": "shelf", "group_size": 2,
                          "limit": limit});
        let found = bench.read(groups::query, "c", &body).unwrap();
        let hits = found["groups"][0]["hits"].as_array().unwrap();
        let ids: Vec<&Value> = hits.iter().map(|hit| &hit["id"]).collect();
        assert_eq!(ids, [&json!(1), &json!(2)], "{limit}");
        assert_eq!(hits[1]["order_value"], 4);
    }
}

#[test]
fn limits_of_prefetches_grow_with_the_size_of_groups() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let of = [(1, [9, 1], "a"), (2, [8, 2], "b"), (3, [7, 9], "c"), (4, [6, 3], "a")];
    let point = of.map(
        |(id, vector, shelf)| json!({"id": id, "vector": vector, "payload": {"shelf": shelf}}),
    );
    bench.write(update::upsert, "c", &json!({ "points": point })).unwrap();
    let body = json!({"query": [0, 1], "prefetch": {"query": [1, 0], "limit": 2},
                      "group_by": "shelf", "group_size": 2, "limit": 2});
    let found = bench.read(groups::query, "c", &body).unwrap();
    let ids = |at: usize| {
        let hits = found["groups"][at]["hits"].as_array().unwrap();
        hits.iter().map(|hit| hit["id"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!((ids(0), ids(1)), (vec![json!(3)], vec![json!(4), json!(1)]));
}

#[test]
fn hits_are_grouped_by_a_field() {
    let groups = |bench: &Bench, body: Value| -> Vec<(Value, Vec<Value>)> {
        let found = bench.read(groups::query, "shelves", &body).unwrap();
        let group = |group: &Value| {
            let hits = group["hits"].as_array().unwrap();
            (group["id"].clone(), hits.iter().map(|hit| hit["id"].clone()).collect())
        };
        found["groups"].as_array().unwrap().iter().map(group).collect()
    };
    let of = |value: &str, ids: &[i64]| (json!(value), ids.iter().map(|id| json!(id)).collect());
    on_every_level(|bench| {
        let body = json!({"query": [0, 0], "group_by": "shelf", "group_size": 3});
        let expected: [(Value, Vec<Value>); 3] =
            [of("b", &[1, 4, 7]), of("c", &[2, 5, 8]), of("a", &[3, 6, 7])];
        assert_eq!(groups(bench, body), expected);
        // The nearest points are all of one shelf, so that the others need searches of their own.
        let near = json!({"must": [{"key": "shelf", "match": {"any": ["b", "c"]}}]});
        let body = json!({"query": [7, 0], "group_by": "shelf", "group_size": 1, "limit": 2, "filter": near});
        assert_eq!(groups(bench, body), [of("a", &[7]), of("b", &[7])]);
        let body = json!({"query": [13, 0], "group_by": "shelf", "group_size": 4, "limit": 1});
        assert_eq!(groups(bench, body), [of("a", &[12, 9, 7, 6])]);
        let body = json!({"query": {"order_by": "n"}, "group_by": "shelf", "group_size": 2});
        assert_eq!(groups(bench, body), [of("a", &[12, 3]), of("c", &[8, 2]), of("b", &[4, 1])]);
        let near = json!({"nearest": [0, 0], "mmr": {"diversity": 0}});
        let body = json!({"query": near, "group_by": "shelf", "group_size": 2});
        assert_eq!(groups(bench, body), [of("b", &[1, 4]), of("c", &[2, 5]), of("a", &[3, 6])]);
        // The limits of the prefetches do not count.
        let prefetch = json!([{"query": [0, 0], "limit": 1}, {"query": [13, 0], "limit": 1}]);
        let body = json!({"query": {"fusion": "rrf"}, "prefetch": prefetch, "group_by": "shelf",
                          "group_size": 1});
        assert_eq!(groups(bench, body), [of("b", &[1]), of("a", &[12]), of("c", &[2])]);
        let body = json!({"query": {"formula": {"neg": "n"}}, "prefetch": prefetch,
                          "group_by": "shelf", "group_size": 1, "limit": 2});
        assert_eq!(groups(bench, body), [of("a", &[12]), of("c", &[8])]);
        for key in ["even", "none"] {
            let body = json!({"query": [0, 0], "group_by": key});
            assert!(groups(bench, body).is_empty(), "{key}");
        }
    });
    let bench = Bench::new();
    shelves(&bench);
    for (body, kind, words) in [
        (json!({"query": [0, 0]}), ErrorKind::InvalidArgument, "group_by"),
        (json!({"query": [0, 0], "group_by": ""}), ErrorKind::InvalidArgument, "group_by"),
        (
            json!({"query": [0, 0], "group_by": "n", "limit": 9999}),
            ErrorKind::InvalidArgument,
            "1024 groups",
        ),
        (
            json!({"query": [0, 0], "group_by": "n", "offset": 1}),
            ErrorKind::InvalidArgument,
            "offset",
        ),
        (
            json!({"query": [0, 0], "group_by": "n", "with_lookup": "other"}),
            ErrorKind::NotFound,
            "with_lookup: there is no collection",
        ),
        (
            json!({"query": [0, 0], "group_by": "n", "with_lookup": {"with_payload": true}}),
            ErrorKind::InvalidArgument,
            "collection",
        ),
        (
            json!({"query": {"fusion": "rrf"}, "group_by": "n"}),
            ErrorKind::InvalidArgument,
            "needs prefetches",
        ),
    ] {
        let error = bench.read(groups::query, "shelves", &body).unwrap_err();
        assert_eq!(error.kind(), kind, "{body}: {error}");
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn points_without_a_group_hide_no_hits() {
    let bench = Bench::new();
    bench.create("c", 2, "Euclid");
    // Of the nearest points, one value makes no group.
    let point = |id: i64| {
        let shelf = if id <= 7 { json!(["a", 0.5]) } else { json!("a") };
        json!({"id": id, "vector": [id, 0], "payload": {"shelf": shelf}})
    };
    let points: Vec<Value> = (1..=12).map(point).collect();
    bench.write(update::upsert, "c", &json!({ "points": points })).unwrap();
    let body = json!({"query": [0, 0], "group_by": "shelf", "group_size": 2, "limit": 1});
    let found = bench.read(groups::query, "c", &body).unwrap();
    let hits = found["groups"][0]["hits"].as_array().unwrap();
    let ids: Vec<&Value> = hits.iter().map(|hit| &hit["id"]).collect();
    assert_eq!(ids, [&json!(8), &json!(9)]);
}

/// As in Qdrant: the hits have no scores that the threshold could be compared with.
#[test]
fn score_thresholds_need_scores() {
    on_every_level(|bench| {
        let points =
            |body: &Value| bench.read(query::query, "shelves", body).unwrap()["points"].clone();
        let order = json!({"query": {"order_by": "n"}, "score_threshold": 1e9});
        let first = json!({"score_threshold": 1e9});
        let prefetched = json!({"prefetch": order, "query": [1, 1]});
        for body in [order, first, prefetched] {
            let error = bench.read(query::query, "shelves", &body).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
            assert!(error.message().contains("score_threshold: "), "{error}");
        }
        let sample = json!({"query": {"sample": "random"}, "limit": 3, "score_threshold": 1e9});
        assert_eq!(points(&sample).as_array().unwrap().len(), 3);
    });
}

#[test]
fn groups_have_points_of_another_collection() {
    let bench = Bench::new();
    bench.create("cities", 2, "Dot");
    let city = |id: u64| json!({"id": id, "vector": [id, 1], "payload": {"name": id.to_string()}});
    let points = json!({ "points": [city(1), city(2)] });
    bench.write(update::upsert, "cities", &points).unwrap();
    bench.create("people", 2, "Dot");
    let person =
        |id: u64, city: Value| json!({"id": id, "vector": [1, id], "payload": {"city": city}});
    let points =
        [person(1, json!(1)), person(2, json!(2)), person(3, json!(3)), person(4, json!("x"))];
    bench.write(update::upsert, "people", &json!({ "points": points })).unwrap();
    let lookups = |with_lookup: Value| -> Vec<Value> {
        let body = json!({"query": [0, 1], "group_by": "city", "with_lookup": with_lookup});
        let found = bench.read(groups::query, "people", &body).unwrap();
        let groups = found["groups"].as_array().unwrap();
        groups.iter().map(|group| group["lookup"].clone()).collect()
    };
    // The values "x" and 3 are not points of the other collection.
    let two = json!({"id": 2, "payload": {"name": "2"}});
    let one = json!({"id": 1, "payload": {"name": "1"}});
    assert_eq!(lookups(json!("cities")), [Value::Null, Value::Null, two, one]);
    let vectors = json!({"collection": "cities", "with_payload": false, "with_vectors": true});
    let two = json!({"id": 2, "vector": [2.0, 1.0]});
    assert_eq!(lookups(vectors)[2], two);
}
