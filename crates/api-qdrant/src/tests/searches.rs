//! Queries: scores, examples, prefetches, limits and errors.

use std::collections::HashSet;

use base::ErrorKind;
use search::Metric;
use search::collection::SearchThread;
use search::registry::{CollectionSettings, NamedCollection};
use serde_json::{Value, json};

use super::{Bench, UUID, three};
use crate::call::{CallContext, ShardCall};
use crate::json::ScoredPoint;
use crate::{collections, json, matrix, older, query, retrieve, update};

#[test]
fn calls_of_a_node_parse_their_query_once() {
    let call = ShardCall::default();
    let context = || CallContext { shard_call: Some(call.clone()), ..super::context("", "") };
    assert!(context().parse_query(b"{").is_err());
    let parsed = context().parse_query(br#"{"limit":3}"#).unwrap();
    assert_eq!(parsed.limit(), 3);
    // This text would be refused if it was parsed.
    assert_eq!(context().parse_query(b"{").unwrap(), parsed);
    assert!(super::context("", "").parse_query(b"{").is_err());
}

#[test]
fn scores_and_thresholds_follow_the_distance() {
    for (distance, threshold, scores, ids) in [
        ("Cosine", 0.1, vec![1.0, 0.8], vec![json!(2), json!(1)]),
        // The point with the score of the threshold is not a hit.
        ("Dot", 0.0, vec![8.0, 4.0], vec![json!(1), json!(2)]),
        ("Euclid", 2.5, vec![0.0, 5f32.sqrt()], vec![json!(2), json!(UUID)]),
        ("Euclid", 0.0, vec![], vec![]),
    ] {
        let bench = Bench::new();
        three(&bench, distance);
        let query = json!({"query": [0, 2], "score_threshold": threshold});
        let found = bench.read(query::query, "c", &query).unwrap();
        let points = found["points"].as_array().unwrap();
        assert_eq!(
            points.iter().map(|it| it["id"].clone()).collect::<Vec<_>>(),
            ids,
            "{distance}: {found}"
        );
        for (point, expected) in points.iter().zip(scores) {
            assert!(
                (point["score"].as_f64().unwrap() as f32 - expected).abs() < 1e-5,
                "{distance}: {found}"
            );
        }
    }
}

#[test]
fn cosine_vectors_are_normalised() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    let got = bench
        .read(retrieve::fetch, "c", &json!({"ids": [1, 5, UUID], "with_vector": true}))
        .unwrap();
    assert_eq!(got.as_array().unwrap().len(), 2);
    assert_eq!(got[0]["vector"], json!([0.6f32, 0.8f32]));
    assert_eq!((&got[1]["id"], &got[1]["vector"]), (&json!(UUID), &json!([-1.0, 0.0])));
}

#[test]
fn a_point_is_read_once_if_its_id_comes_twice() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let got = bench.read(retrieve::fetch, "c", &json!({"ids": [2, 1, 2]})).unwrap();
    assert_eq!(got.as_array().unwrap().len(), 2);
    assert_eq!((&got[0]["id"], &got[1]["id"]), (&json!(2), &json!(1)));
}

#[test]
fn examples_are_no_hits_and_prefetches_limit_hits() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    assert_eq!(bench.ids("c", &json!({"query": 1})), [json!(2), json!(UUID)]);
    assert_eq!(
        bench.ids("c", &json!({"query": {"recommend": {"positive": [1], "negative": [2]}}})),
        [json!(UUID)]
    );
    // The nearest two of the prefetch, ranked by another vector.
    let query = json!({"prefetch": {"query": [1, 1], "limit": 2}, "query": [-1, 0.1], "limit": 5});
    assert_eq!(bench.ids("c", &query), [json!(2), json!(1)]);
    let query = json!({"prefetch": {"query": [1, 1], "limit": 2}, "query": [-1, 0.1],
                       "filter": {"must_not": [{"has_id": [1]}]}});
    assert_eq!(
        bench.ids("c", &query),
        [json!(UUID), json!(2)],
        "the outer filter holds for the prefetch"
    );
    assert_eq!(
        bench.ids("c", &json!({"filter": {"must": [{"key": "n", "range": {"gte": 1}}]}})),
        [json!(1), json!(2)]
    );
}

#[test]
fn prefetches_have_prefetches() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    let nearest = |values: [i32; 2], limit: usize| json!({"query": values, "limit": limit});
    let first = nearest([1, 1], 2);
    assert_eq!(bench.ids("c", &first), [json!(1), json!(2)]);
    let mut second = nearest([-1, 0], 1);
    second["prefetch"] = first.clone();
    // The third point is nearer, but the first prefetch did not find it.
    let query = json!({"prefetch": second, "query": [1, 0]});
    assert_eq!(bench.ids("c", &query), [json!(2)]);
    let fused =
        json!({"query": {"fusion": "rrf"}, "prefetch": [first, nearest([-1, 0], 1)], "limit": 2});
    assert_eq!(bench.ids("c", &fused), [json!(1), json!(UUID)]);
    let query = json!({"prefetch": fused, "query": [-1, 0]});
    assert_eq!(bench.ids("c", &query), [json!(UUID), json!(1)]);
    let diverse = json!({"query": {"nearest": [1, 1], "mmr": {"diversity": 1.0, "candidates_limit": 3}},
                         "limit": 2});
    assert_eq!(bench.ids("c", &diverse), [json!(1), json!(UUID)]);
    let query =
        json!({"prefetch": diverse, "query": {"order_by": {"key": "n", "direction": "desc"}}});
    assert_eq!(bench.ids("c", &query), [json!(1)], "the other has no number");
}

#[test]
fn errors_name_the_field() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let kind = |query: Value| bench.read(query::query, "c", &query).unwrap_err();
    for (query, expected, words) in [
        (json!({"query": [1]}), ErrorKind::InvalidArgument, "expected dim: 2, got 1"),
        (json!({"query": [1, 2], "using": "v"}), ErrorKind::InvalidArgument, "vector name"),
        (json!({"query": [1, 2], "limit": 0}), ErrorKind::InvalidArgument, "limit"),
        (json!({"query": 77}), ErrorKind::NotFound, "77"),
        (
            json!({"query": {"recommend": {"positive": [[1]]}}}),
            ErrorKind::InvalidArgument,
            "expected dim",
        ),
        (json!({"prefetch": {"query": [1, 2]}}), ErrorKind::InvalidArgument, "query is needed"),
        (
            json!({"prefetch": {"query": [1]}, "query": [1, 2]}),
            ErrorKind::InvalidArgument,
            "prefetch[0]",
        ),
        (json!({"query": {"fusion": "rrf"}}), ErrorKind::InvalidArgument, "needs prefetches"),
        (
            json!({"prefetch": {"query": [1, 2]}, "query": {"rrf": {"weights": [1, 2]}}}),
            ErrorKind::InvalidArgument,
            "one for each",
        ),
        (
            json!({"prefetch": {"query": [1, 2], "prefetch": {"query": [1]}}, "query": [1, 2]}),
            ErrorKind::InvalidArgument,
            "prefetch[0]: prefetch[0]",
        ),
    ] {
        let error = kind(query.clone());
        assert_eq!(error.kind(), expected, "{query}: {error}");
        assert!(error.message().contains(words), "{query}: {error}");
    }
    let batch = json!({"searches": [{"query": [1, 2]}, {"query": [1]}]});
    assert!(bench.read(query::batch, "c", &batch).unwrap_err().message().contains("searches[1]"));
    let again = json!({"vectors": {"size": 2, "distance": "Dot"}});
    assert_eq!(
        bench.write(collections::create, "c", &again).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    let absent = bench.write(update::upsert, "absent", &json!({"points": []})).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
}

#[test]
fn examples_are_bounded_and_read_together() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    let recommend = |count: usize| json!({"query": {"recommend": {"positive": vec![1; count], "negative": [[0, 1], 2]}}});
    assert_eq!(bench.ids("c", &recommend(1022)), [json!(UUID)]);
    let error = bench.read(query::query, "c", &recommend(1023)).unwrap_err();
    assert!(
        error.kind() == ErrorKind::InvalidArgument && error.message().contains("1024"),
        "{error}"
    );
    let mixed = json!({"query": {"recommend": {"positive": [1, 77, 2]}}});
    assert_eq!(bench.read(query::query, "c", &mixed).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn points_are_scored_by_several_vectors() {
    for distance in ["Cosine", "Dot", "Euclid"] {
        let bench = Bench::new();
        three(&bench, distance);
        let ids = |query: Value| bench.ids("c", &json!({ "query": query }));
        let recommend = |strategy: &str, positive: Value, negative: Value| json!({"recommend": {"positive": positive, "negative": negative, "strategy": strategy}});
        // Examples by id are not hits.
        let best = recommend("best_score", json!([1]), json!([]));
        assert_eq!(ids(best), [json!(2), json!(UUID)], "{distance}");
        let sum = recommend("sum_scores", json!([[0, 2]]), json!([[-1, 0]]));
        assert_eq!(ids(sum)[2], json!(UUID), "{distance}");
        let far = recommend("best_score", json!([]), json!([[-1, 0]]));
        assert_eq!(ids(far)[2], json!(UUID), "{distance}");
        let pair = json!({"positive": [-1, 0], "negative": [1, 0]});
        let discover = json!({"discover": {"target": [3, 4], "context": [pair]}});
        assert_eq!(ids(discover.clone())[0], json!(UUID), "{distance}");
        let context = json!({"context": {"positive": [1, 0], "negative": [-1, 0]}});
        assert_eq!(ids(context.clone())[2], json!(UUID), "{distance}");
        // As prefetches, and over prefetches.
        let query = json!({"prefetch": {"query": [0, 2], "limit": 2}, "query": discover});
        assert_eq!(bench.ids("c", &query).len(), 2, "{distance}");
        let fused =
            json!({"query": {"fusion": "dbsf"}, "prefetch": {"query": context, "limit": 3}});
        assert_eq!(bench.ids("c", &fused)[2], json!(UUID), "{distance}");
    }
    let bench = Bench::new();
    three(&bench, "Dot");
    for (query, kind) in [
        (json!({"context": {"positive": [1], "negative": 1}}), ErrorKind::InvalidArgument),
        (json!({"discover": {"target": 77}}), ErrorKind::NotFound),
    ] {
        let error = bench.read(query::query, "c", &json!({ "query": query })).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn vectors_without_finite_scores_are_refused() {
    let bench = Bench::new();
    three(&bench, "Dot");
    // 32 bits cannot hold the first number, and not the products of the second one.
    for (number, words) in [(1e39, "dimension 1"), (3e38, "length")] {
        let vector = json!([0, number]);
        let by = |strategy: &str| json!({"positive": [vector], "strategy": strategy});
        for body in [
            json!({ "query": vector }),
            json!({"query": {"recommend": by("best_score")}}),
            json!({"query": {"recommend": by("sum_scores")}}),
            json!({"query": {"discover": {"target": vector}}}),
            json!({"prefetch": {"query": [0, 1]}, "query": vector}),
        ] {
            let error = bench.read(query::query, "c", &body).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
            assert!(error.message().contains(words), "{body}: {error}");
        }
    }
}

#[test]
fn samples_differ_and_have_each_point_once() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let sample = |limit: usize| json!({"query": {"sample": "random"}, "limit": limit});
    let firsts: HashSet<String> =
        (0..64).map(|_| bench.ids("c", &sample(1))[0].to_string()).collect();
    assert_eq!(firsts.len(), 3, "each point is the first one at times");
    let mut all: Vec<String> = bench.ids("c", &sample(9)).iter().map(ToString::to_string).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 3);
    let few = json!({"query": {"sample": "random"}, "filter": {"must": [{"has_id": [2]}]}});
    assert_eq!(bench.ids("c", &few), [json!(2)]);
    let found = json!({"query": {"sample": "random"}, "prefetch": {"query": [0, 2], "limit": 1}});
    assert_eq!(bench.ids("c", &found), [json!(1)]);
}

#[test]
fn examples_come_from_another_collection() {
    let bench = Bench::new();
    three(&bench, "Dot");
    bench.create("other", 2, "Cosine");
    let points = json!({"points": [{"id": 1, "vector": [-5, 0]}, {"id": 9, "vector": [0, 1]}]});
    bench.write(update::upsert, "other", &points).unwrap();
    bench.create("long", 3, "Dot");
    let from = |query: Value, collection: &str| json!({"query": query, "lookup_from": {"collection": collection}});
    // The point 1 of the queried collection may be a hit.
    let ids = bench.ids("c", &from(json!(1), "other"));
    assert_eq!((&ids[0], ids.len()), (&json!(UUID), 3));
    assert_eq!(bench.ids("c", &from(json!(1), "c")).len(), 2);
    let best = json!({"recommend": {"positive": [9], "strategy": "best_score"}});
    assert_eq!(bench.ids("c", &from(best, "other")), [json!(1), json!(2), json!(UUID)]);
    let prefetch = json!({"prefetch": from(json!(9), "other"), "query": [-1, 0], "limit": 1});
    assert_eq!(bench.ids("c", &prefetch), [json!(UUID)]);
    let named = json!({"query": 9, "lookup_from": {"collection": "other", "vector": "v"}});
    for (query, kind, words) in [
        (from(json!(2), "other"), ErrorKind::NotFound, "No point with id 2"),
        (from(json!(9), "absent"), ErrorKind::NotFound, "lookup_from: there is no collection"),
        (from(json!(1), "long"), ErrorKind::InvalidArgument, "expected dim: 2, got 3"),
        (named, ErrorKind::InvalidArgument, "vector name"),
    ] {
        let error = bench.read(query::query, "c", &query).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn formulas_score_the_hits_of_prefetches() {
    let bench = Bench::new();
    three(&bench, "Dot");
    // Scores of the prefetches: 1 has 8, 2 has 4; UUID has 1.
    let prefetch = json!([{"query": [0, 2], "limit": 2}, {"query": [-1, 0], "limit": 1}]);
    let query = |formula: Value, defaults: Value| json!({"query": {"formula": formula, "defaults": defaults}, "prefetch": prefetch});
    let sum = json!({"sum": ["$score", {"mult": [10, "$score[1]"]}, "n"]});
    let boosted = query(sum.clone(), json!({"n": 0}));
    let found = bench.read(query::query, "c", &boosted).unwrap();
    let hits: Vec<(Value, f64)> = found["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| (point["id"].clone(), point["score"].as_f64().unwrap()))
        .collect();
    assert_eq!(hits, [(json!(UUID), 10.0), (json!(1), 9.0), (json!(2), 6.0)]);
    let mut least = query(sum.clone(), json!({"n": 0}));
    least["score_threshold"] = json!(7);
    assert_eq!(bench.ids("c", &least), [json!(UUID), json!(1)]);
    let condition = query(json!({"key": "n", "range": {"gte": 2}}), Value::Null);
    assert_eq!(bench.ids("c", &condition)[0], json!(2));
    for (query, words) in [
        (query(sum, Value::Null), "no value for n"),
        (json!({"query": {"formula": "$score"}}), "formula needs prefetches"),
        (query(json!({"key": "", "match": {"value": 1}}), Value::Null), "names no field"),
    ] {
        let error = bench.read(query::query, "c", &query).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn a_sample_is_compared_with_itself() {
    let bench = Bench::new();
    three(&bench, "Euclid");
    let found = bench.read(matrix::pairs, "c", &json!({"limit": 1})).unwrap();
    let pairs: Vec<(Value, Value)> = found["pairs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| (pair["a"].clone(), pair["b"].clone()))
        .collect();
    assert_eq!(pairs, [(json!(1), json!(2)), (json!(2), json!(UUID)), (json!(UUID), json!(2))]);
    let found = bench.read(matrix::offsets, "c", &json!({"sample": 3, "limit": 9})).unwrap();
    assert_eq!(found["ids"], json!([1, 2, UUID]));
    assert_eq!(found["offsets_row"], json!([0, 0, 1, 1, 2, 2]));
    assert_eq!(found["offsets_col"], json!([1, 2, 2, 0, 1, 0]));
    assert_eq!(found["scores"].as_array().unwrap().len(), 6);
    let one = json!({"filter": {"must": [{"has_id": [1]}]}});
    let found = bench.read(matrix::offsets, "c", &one).unwrap();
    assert_eq!(found["ids"], json!([]));
    for sample in [1, 1025] {
        let body = json!({ "sample": sample });
        let error = bench.read(matrix::pairs, "c", &body).unwrap_err();
        assert!(json::is_validation(error.message()), "{error}");
    }
    let error = bench.read(matrix::pairs, "c", &json!({"using": "v"})).unwrap_err();
    assert!(error.message().contains("vector name"), "{error}");
}

#[test]
fn a_high_limit_returns_all_points() {
    let bench = Bench::new();
    three(&bench, "Dot");
    assert_eq!(bench.ids("c", &json!({"query": [0, 2], "limit": u64::MAX})).len(), 3);
    assert_eq!(bench.ids("c", &json!({"query": [0, 2], "limit": u64::MAX, "offset": 1})).len(), 2);
}

#[test]
fn the_hits_of_a_batch_are_bounded() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let batch = |query: Value| {
        let searches = vec![json!({"query": query, "limit": 1025}); 1024];
        bench.read(query::batch, "c", &json!({ "searches": searches }))
    };
    let found = batch(json!([0, 2])).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 1024, "there are three points only");
    let error = batch(json!({"order_by": "n"})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("1049600 hits together"), "{error}");
}

/// Answers a batch of searches in one step.
fn search_batch(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> base::Result<Vec<Vec<ScoredPoint>>> {
    older::search_batch(named, thread, context, body, &mut query::BatchProgress::default())
}

#[test]
fn older_routes_answer_with_lists() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let ids = |list: &Value| -> Vec<Value> {
        list.as_array().unwrap().iter().map(|hit| hit["id"].clone()).collect()
    };
    let search = json!({"vector": [0, 2], "limit": 2});
    let found = bench.read(older::search, "c", &search).unwrap();
    assert_eq!(ids(&found), [json!(1), json!(2)]);
    let recommend = json!({"positive": [1], "limit": 1, "with_payload": true});
    let found = bench.read(older::recommend, "c", &recommend).unwrap();
    assert_eq!((ids(&found), &found[0]["payload"]), (vec![json!(2)], &json!({"n": 2})));
    let batch = json!({"searches": [search, {"vector": [-1, 0], "limit": 1}]});
    let found = bench.read(search_batch, "c", &batch).unwrap();
    assert_eq!(ids(&found[0]), [json!(1), json!(2)]);
    assert_eq!(ids(&found[1]), [json!(UUID)]);
    let groups = json!({"vector": [0, 2], "limit": 1, "group_by": "n", "group_size": 1});
    let found = bench.read(older::search_groups, "c", &groups).unwrap();
    assert_eq!(ids(&found["groups"]), [json!(1)]);
    let wrong = json!({"searches": [search, {"vector": [1], "limit": 1}]});
    let error = bench.read(search_batch, "c", &wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().starts_with("searches[1]"), "{error}");
}

#[test]
fn fingerprints_without_embeddings_are_not_compared_by_vectors() {
    let bench = Bench::new();
    let create = |name: &str, model: &str| {
        let extra = json!({"images": {"kind": "fingerprint", "model": model}});
        let settings = CollectionSettings { extra, ..CollectionSettings::new(2, Metric::Cosine) };
        bench.registry().create(name, settings).unwrap();
    };
    create("bare", "none");
    create("embedded", "m");
    let query = json!({"query": [1, 0]});
    for body in [&query, &json!({"prefetch": [query], "query": {"fusion": "rrf"}})] {
        let error = bench.read(query::query, "bare", body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("/v1/images"), "{error}");
        assert!(bench.read(query::query, "embedded", body).is_ok());
    }
    let without = json!({"limit": 3});
    assert_eq!(bench.read(query::query, "bare", &without).unwrap()["points"], json!([]));
}

/// Returns numbers of -100 to 100. The products of vectors of them are exact in 32 bits.
fn whole_numbers(count: usize, state: &mut u64) -> Vec<i64> {
    let mut next = || {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(*state >> 33).unwrap() % 201 - 100
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn exact_queries_miss_no_long_vector() {
    // A segment of so many long vectors has one-bit codes, whose bounds can fail.
    let dims = 384;
    let count = 2100;
    let mut state = 7;
    let rows: Vec<Vec<i64>> = (0..count).map(|_| whole_numbers(dims, &mut state)).collect();
    let bench = Bench::new();
    bench.create("c", dims, "Dot");
    for (at, rows) in rows.chunks(300).enumerate() {
        let ids: Vec<usize> = (at * 300..).take(rows.len()).collect();
        let batch = json!({"batch": {"ids": ids, "vectors": rows}});
        bench.write(update::upsert, "c", &batch).unwrap();
    }
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    for _ in 0..100 {
        let query = whole_numbers(dims, &mut state);
        let product = |row: &Vec<i64>| row.iter().zip(&query).map(|(a, b)| a * b).sum::<i64>();
        let mut nearest: Vec<usize> = (0..count).collect();
        nearest.sort_by_cached_key(|at| std::cmp::Reverse(product(&rows[*at])));
        let asked = json!({"query": query, "limit": 10, "params": {"exact": true}});
        assert_eq!(json!(bench.ids("c", &asked)), json!(nearest[..10]));
    }
}
