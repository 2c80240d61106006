//! Queries and their prefetches.

use crate::examples::ExampleRule;
use crate::fusion::Fusion;

use super::*;

#[test]
fn queries_by_several_vectors_are_read() {
    let target = |value: Value| {
        read::<QueryRequest>(&json!({ "query": value })).map(|request| request.query.unwrap())
    };
    let rule = |query| match target(query).unwrap() {
        VectorQuery::Examples(examples) => {
            let counts = (examples.positive.len(), examples.negative.len());
            (examples.rule, examples.target.is_some(), counts)
        }
        other => panic!("{other:?}"),
    };
    let best = json!({"recommend": {"negative": [1], "strategy": "best_score"}});
    assert_eq!(rule(best), (ExampleRule::BestScore, false, (0, 1)));
    let sum = json!({"recommend": {"positive": [1, 2], "strategy": "sum_scores"}});
    assert_eq!(rule(sum), (ExampleRule::SumScores, false, (2, 0)));
    let pair = json!({"positive": 1, "negative": [0.5]});
    let discover = json!({"discover": {"target": 7, "context": [pair, pair]}});
    assert_eq!(rule(discover), (ExampleRule::Discover, true, (2, 2)));
    let alone = json!({"discover": {"target": 7, "context": null}});
    assert_eq!(rule(alone), (ExampleRule::Discover, true, (0, 0)));
    assert_eq!(rule(json!({ "context": pair })), (ExampleRule::Context, false, (1, 1)));
    assert_eq!(target(json!({"sample": "random"})).unwrap(), VectorQuery::Sample);
}

#[test]
fn queries_are_read_in_every_form() {
    let target = |value: Value| {
        read::<QueryRequest>(&json!({ "query": value })).map(|request| request.query.unwrap())
    };
    let vector = || VectorInput::Vector(vec![1.0, 0.5]);
    assert_eq!(target(json!([1, 0.5])).unwrap(), VectorQuery::Nearest(vector()));
    assert_eq!(
        target(json!({"nearest": [1, 0.5], "mmr": null})).unwrap(),
        VectorQuery::Nearest(vector())
    );
    let nulls = json!({"nearest": [1, 0.5], "recommend": null, "discover": null, "context": null,
                       "order_by": null, "fusion": null, "rrf": null, "sample": null, "mmr": null,
                       "formula": null, "defaults": null, "relevance_feedback": null});
    assert_eq!(target(nulls).unwrap(), VectorQuery::Nearest(vector()));
    assert_eq!(
        target(json!(7)).unwrap(),
        VectorQuery::Nearest(VectorInput::Id(PointId::Number(7)))
    );
    let uuid = VectorQuery::Nearest(VectorInput::Id(uuid()));
    assert_eq!(target(json!(UUID)).unwrap(), uuid);
    assert_eq!(target(json!({ "nearest": UUID })).unwrap(), uuid);
    let recommend =
        target(json!({"recommend": {"positive": [7, [1, 0.5]], "negative": null}})).unwrap();
    let positive = vec![VectorInput::Id(PointId::Number(7)), vector()];
    assert_eq!(recommend, VectorQuery::Recommend { positive, negative: Vec::new() });
    let diverse = target(json!({"nearest": [1, 0.5], "mmr": {"diversity": 0.25}})).unwrap();
    assert_eq!(diverse, VectorQuery::Mmr { target: vector(), diversity: 0.25, candidates: None });
    assert!(target(json!({"nearest": [1, 0.5], "mmr": {"diversity": 2}})).is_err());
    let ranks = |constant, weights| VectorQuery::Fuse(Fusion::ReciprocalRank { constant, weights });
    assert_eq!(target(json!({"fusion": "rrf"})).unwrap(), ranks(None, None));
    let weighted = target(json!({"rrf": {"k": 60, "weights": [1, 0.5]}})).unwrap();
    assert_eq!(weighted, ranks(Some(60), Some(vec![1.0, 0.5])));
    let scores = target(json!({"fusion": "dbsf"})).unwrap();
    assert_eq!(scores, VectorQuery::Fuse(Fusion::DistributionBased));
    for wrong in [
        json!({"fusion": "max"}),
        json!({"rrf": {"k": 0}}),
        json!({"rrf": {"weights": [-1]}}),
        json!({"rrf": {"other": 1}}),
    ] {
        assert!(target(wrong).is_err());
    }
    for unsupported in [
        json!({"relevance_feedback": {}}),
        json!({"formula": {"custom": {}}}),
        json!({"nearest": {"image": "x", "model": "m"}}),
        json!({"nearest": {"text": "x", "model": "m"}}),
        json!({"indices": [1], "values": [1]}),
        json!([[1.0], [2.0]]),
        json!({"discover": {"target": {"text": "x", "model": "m"}}}),
        json!({"context": {"positive": [[1.0]], "negative": 1}}),
    ] {
        assert_eq!(
            target(unsupported.clone()).unwrap_err().kind(),
            ErrorKind::Unimplemented,
            "{unsupported}"
        );
    }
    for wrong in [
        json!({}),
        json!("x"),
        json!(-1),
        json!({"nearest": true}),
        json!({"recommend": {}}),
        json!({"recommend": {"strategy": "best_score"}}),
        json!({"recommend": {"positive": [1], "strategy": "best"}}),
        json!({"discover": {}}),
        json!({"discover": {"target": 1, "context": [{"positive": 1}]}}),
        json!({"context": []}),
        json!({"context": null}),
        json!({"nearest": null}),
        json!({"formula": null, "defaults": {}}),
        json!({"sample": "first"}),
        json!({"nearest": 1, "recommend": {"positive": [2]}}),
        json!({"fusion": "dbsf", "rrf": {}}),
        json!({"nearest": 1, "defaults": {}}),
        json!({"nearest": 1, "formula": 2}),
        json!({"formula": true}),
        json!({"formula": "$score[x]"}),
        json!({"formula": {"sqrt": "n", "exp": 1}}),
        json!({"formula": {"max": []}}),
        json!({"formula": {"div": {"left": 1}}}),
        json!({"formula": {"lin_decay": {"x": 1, "scale": 0}}}),
        json!({"formula": {"exp_decay": {"x": 1, "midpoint": 1}}}),
        json!({"formula": {"datetime": "soon"}}),
        json!({"formula": {"geo_distance": {"origin": {"lon": 200, "lat": 0}, "to": "a"}}}),
        json!({"formula": 1, "defaults": {"$score": "x"}}),
        json!({"formula": {"sum": vec![1; 1024]}}),
    ] {
        assert_eq!(
            target(wrong.clone()).unwrap_err().kind(),
            ErrorKind::InvalidArgument,
            "{wrong}"
        );
    }
}

#[test]
fn queries_have_each_member_once() {
    for query in [
        r#"{"nearest": 1, "nearest": 2}"#,
        r#"{"nearest": 1, "mmr": {"diversity": 0}, "mmr": null}"#,
        r#"{"formula": 1, "formula": 2}"#,
        r#"{"formula": {"div": {"left": 1, "left": 2, "right": 3}}}"#,
        r#"{"context": [{"positive": 1, "positive": 2, "negative": 3}]}"#,
        r#"{"discover": {"target": 1, "context": {"positive": 1, "negative": 2, "negative": 3}}}"#,
        r#"{"order_by": {"key": "a", "key": "b"}}"#,
    ] {
        let error = parse::<QueryRequest>(format!("{{\"query\": {query}}}").as_bytes());
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{query}");
        assert!(error.message().contains("duplicate field"), "{query}: {error}");
    }
}

#[test]
fn queries_have_defaults() {
    let request: QueryRequest = read(&json!({})).unwrap();
    assert_eq!((request.limit(), request.offset(), request.query.is_none()), (10, 0, true));
    let nulls = json!({"prefetch": null, "using": null, "params": null, "limit": null, "filter": null, "lookup_from": null});
    assert_eq!(read::<QueryRequest>(&nulls).unwrap(), request);
    let one = json!({"prefetch": {"query": [1.0], "limit": 100, "using": "v",
                                   "params": {"quantization": {"rescore": false, "oversampling": 2}, "hnsw_ef": 9}}});
    let request: QueryRequest = read(&one).unwrap();
    assert_eq!((request.prefetch[0].limit(), request.prefetch[0].using.as_str()), (100, "v"));
    let params = &request.prefetch[0].params;
    let quantization = params.quantization.as_ref().unwrap();
    assert_eq!(
        (quantization.rescore, quantization.oversampling, params.hnsw_ef),
        (Some(false), Some(2.0), Some(9))
    );
    let nested =
        json!({"prefetch": [{"prefetch": {"query": 1, "limit": 7}, "query": 2}], "query": 3});
    let request: QueryRequest = read(&nested).unwrap();
    assert_eq!(request.prefetch[0].prefetch[0].limit(), 7);
    assert!(request.check_prefetches().is_ok());
}

#[test]
fn prefetches_have_a_maximum_and_a_query_that_ranks_them() {
    let problem = |body: Value| {
        read::<QueryRequest>(&body).unwrap().check_prefetches().unwrap_err().message().to_owned()
    };
    let inner = json!({"query": 1, "prefetch": vec![json!({"query": 2}); 7]});
    assert!(problem(json!({"prefetch": vec![inner; 9], "query": 3})).contains("more than 64"));
    let unranked = json!({"prefetch": [{"query": 1}, {"prefetch": {"query": 2}}], "query": 3});
    let message = problem(unranked);
    assert!(message.contains("prefetch[1]") && message.contains("query is needed"), "{message}");
    let message = problem(json!({"prefetch": {"query": {"fusion": "rrf"}}, "query": 3}));
    assert!(message.contains("prefetch[0]") && message.contains("needs prefetches"), "{message}");
    let named = json!({"prefetch": {"query": 1}, "query": {"fusion": "rrf"}, "using": "v"});
    assert!(problem(named).starts_with("using: a fusion"), "as in Qdrant");
}
