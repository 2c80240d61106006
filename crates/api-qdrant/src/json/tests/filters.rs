//! Filters, and the paths and texts in them.

use search::filter::{
    Condition, GEO_POINTS_MAX, GeoArea, GeoPoint, Match, MinShould, Range, RangeLimit,
    TEXT_QUERY_BYTES_MAX, TEXT_QUERY_WORDS_MAX, TextMatch, TextMatchKind, Tokenizer, ValueLimits,
    WholeRange, WordSplit,
};

use super::*;

#[test]
fn filters_are_read_in_every_form() {
    let filter = json!({
        "must": [{"key": "city", "match": {"value": "Berlin"}}, {"key": "n", "range": {"gte": 1, "lt": null}}],
        "should": {"has_id": [1, UUID]},
        "must_not": [{"is_empty": {"key": "a.b"}}, {"must": [{"key": "x", "match": {"any": [1, "b", true]}}]},
                     {"key": "y", "match": {"except": []}}, {"key": "z", "is_empty": false}],
        "min_should": null,
    });
    let filter = parse_filter(filter.to_string().as_bytes()).unwrap();
    let city = Condition::Match { key: "city".into(), matching: Match::Value(json!("Berlin")) };
    let range = Range { gte: Some(1.0), ..Range::default() };
    assert_eq!(filter.must, [city, Condition::Range { key: "n".into(), range }]);
    assert_eq!(filter.should, [Condition::HasId(vec![1, uuid().internal()])]);
    assert_eq!(filter.must_not[0], Condition::IsEmpty { key: "a.b".into() });
    let Condition::Nested(inner) = &filter.must_not[1] else { unreachable!("{filter:?}") };
    let any = Match::Any(vec![json!(1), json!("b"), json!(true)].into());
    assert_eq!(inner.must, [Condition::Match { key: "x".into(), matching: any }]);
    assert_eq!(filter.must_not.len(), 4);
}

#[test]
fn limits_above_2_to_the_53_are_read_exactly() {
    let last = (1_u64 << 53) + 1;
    let filter = json!({"must": {"key": "n", "range": {"gt": last, "lt": 1e300}}});
    let filter = parse_filter(filter.to_string().as_bytes()).unwrap();
    let gt = Some(RangeLimit::Whole(last.into()));
    let range = WholeRange { gt, gte: None, lt: Some(RangeLimit::Float(1e300)), lte: None };
    assert_eq!(filter.must, [Condition::WholeRange { key: "n".into(), range }]);
}

#[test]
fn dates_counts_nulls_and_min_should_are_read() {
    let filter = json!({
        "must": [{"key": "d", "range": {"gt": "1970-01-01T00:00:01Z", "lte": "1970-01-02"}},
                 {"key": "c", "values_count": {"gte": 2}},
                 {"is_null": {"key": "a"}}],
        "must_not": [{"key": "b", "is_null": false}],
        "min_should": {"conditions": [{"has_id": [1]}, {"has_id": [2]}], "min_count": 2},
    });
    let filter = parse_filter(filter.to_string().as_bytes()).unwrap();
    let days = ValueLimits { gt: Some(1_000_000), lte: Some(86_400_000_000), ..Default::default() };
    let counts = ValueLimits { gte: Some(2), ..Default::default() };
    assert_eq!(
        filter.must,
        [
            Condition::DateRange { key: "d".into(), range: days },
            Condition::ValuesCount { key: "c".into(), range: counts },
            Condition::IsNull { key: "a".into() },
        ]
    );
    let Condition::Nested(inner) = &filter.must_not[0] else { unreachable!("{filter:?}") };
    assert_eq!(inner.must_not, [Condition::IsNull { key: "b".into() }]);
    let conditions = vec![Condition::HasId(vec![1]), Condition::HasId(vec![2])];
    assert_eq!(filter.min_should, Some(MinShould { conditions, min_count: 2 }));
}

#[test]
fn refused_conditions_are_named() {
    let refusal =
        |condition: Value| refused::<CountRequest>(&json!({"filter": {"must": [condition]}}));
    for condition in [
        json!({"custom": {"name": "x"}}),
        json!({"nested": {"key": "a", "filter": {"must": {"custom": {"name": "x"}}}}}),
    ] {
        let (kind, message) = refusal(condition.clone());
        assert_eq!(kind, ErrorKind::Unimplemented, "{condition}: {message}");
        assert!(message.contains("filter: must: [0]"), "{message}");
    }
    let slice = json!({"must_not": [{"slice": {"total": 2, "index": 0}}]});
    let (kind, message) = refused::<QueryRequest>(&json!({"query": {"formula": slice}}));
    assert!(kind == ErrorKind::Unimplemented && message.contains("slice"), "{message}");
    for condition in [
        json!({"key": "a"}),
        json!({"key": "a", "match": {"value": null}}),
        json!({"key": "a", "match": {"value": 1}, "range": {"gt": 1}}),
        json!({"key": "a", "match": {"any": [[]]}}),
        json!({"key": "a", "range": {"above": 1}}),
        json!({"key": "a", "range": {"gt": "yesterday"}}),
        json!({"key": "a", "range": {"gt": "2024-01-01T00:00:00Z", "lt": 1}}),
        json!({"key": "a", "values_count": {"gt": -1}}),
        json!({"key": "a", "is_null": 1}),
        json!({"min_should": {"conditions": []}}),
        json!({"min_should": {"conditions": [{"has_id": [1]}], "min_count": 0}}),
        json!({"key": "a[", "match": {"value": 1}}),
        json!({"is_empty": {"key": "a..b"}}),
        json!({"is_empty": "a"}),
        json!({"has_id": [-1]}),
        json!({"has_vector": 1}),
        json!({"slice": {"total": 2}}),
        json!({"slice": {"total": 2, "index": 2}}),
        json!({"slice": {"total": 0, "index": 0}}),
        json!({"nested": {"key": "a"}}),
        json!({"nested": {"key": "a", "filter": {}, "other": 1}}),
        json!({"key": "a", "match": {"text": 1}}),
        json!({"key": "a", "match": {"text": "a", "phrase": "a"}}),
        json!({"key": "a", "geo_radius": {"center": {"lat": 1}, "radius": 1}}),
        json!({"key": "a", "geo_bounding_box": {"top_left": {"lat": 1, "lon": 1}}}),
        json!({"key": "a", "geo_polygon": {"interiors": []}}),
        json!(7),
        json!({"unheard": {"of": 1}}),
    ] {
        let (kind, message) = refusal(condition.clone());
        assert_eq!(kind, ErrorKind::InvalidArgument, "{condition}: {message}");
    }
}

#[test]
fn a_member_that_comes_twice_is_refused() {
    for filter in [
        r#"{"must": [{"has_id": [1]}], "must": [{"has_id": [2]}]}"#,
        r#"{"must": [{"key": "a", "match": {"value": 1}, "match": {"value": 2}}]}"#,
        r#"{"must_not": {"key": "a", "range": {"gt": 1, "gt": 2}}}"#,
    ] {
        let chosen = format!(r#"{{"filter": {filter}}}"#);
        let grouped = format!(r#"{{"group_by": "a", "filter": {filter}}}"#);
        let prefetch = format!(r#"{{"prefetch": [{chosen}], "query": {{"fusion": "rrf"}}}}"#);
        let errors = [
            parse::<PointsSelector>(chosen.as_bytes()).unwrap_err(),
            parse::<QueryGroupsRequest>(grouped.as_bytes()).unwrap_err(),
            parse::<QueryRequest>(prefetch.as_bytes()).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("duplicate field"), "{filter}: {error}");
        }
    }
}

/// Clients in Go write an empty list of ids as null.
#[test]
fn a_condition_that_is_null_does_not_match_every_point() {
    for name in ["has_id", "is_empty", "is_null", "nested", "has_vector", "unheard"] {
        for filter in [
            json!({ name: null }),
            json!({"must": [{ name: null }]}),
            json!({"must": [{ name: null, "should": [{"has_id": [1]}] }]}),
        ] {
            let (kind, message) = refused::<PointsSelector>(&json!({ "filter": filter }));
            assert_eq!(kind, ErrorKind::InvalidArgument, "{filter}: {message}");
            assert!(message.contains(name), "{filter}: {message}");
        }
    }
    // Members of other conditions may be null, as in Qdrant.
    let flat = json!({"must": [{"key": null, "match": null, "has_id": [1], "is_null": null}]});
    let filter = parse_filter(flat.to_string().as_bytes()).unwrap();
    assert_eq!(filter.must, [Condition::HasId(vec![1])]);
    for refused_filter in [
        json!({"must": [{ "key": null }]}),
        json!({"must": [{"key": null, "must": [{"has_id": [1]}]}]}),
        json!({"must": [{"key": null, "match": {"value": 1}}]}),
    ] {
        let (kind, message) = refused::<PointsSelector>(&json!({ "filter": refused_filter }));
        assert_eq!(kind, ErrorKind::InvalidArgument, "{refused_filter}: {message}");
    }
    let empty = json!({"must": [{}, {"must": null, "min_should": null}], "should": null});
    let filter = parse_filter(empty.to_string().as_bytes()).unwrap();
    let all = || Condition::Nested(Filter::default());
    assert_eq!((filter.must, filter.should.len()), (vec![all(), all()], 0));
}

#[test]
fn texts_areas_and_elements_are_read() {
    let text = |kind, text| Match::Text(TextMatch::new(kind, text, Tokenizer::default()));
    let (point, other) = (json!({"lat": 1, "lon": 2}), json!({"lat": -1, "lon": 3.5}));
    let corners = json!([point, {"lat": 1, "lon": 3}, other, point]);
    let filter = json!({"must": [
        {"key": "a", "match": {"text": "Two words"}},
        {"key": "a", "match": {"text_any": "Two words"}},
        {"key": "a", "match": {"phrase": "Two words"}},
        {"key": "a", "match": {"prefix": "Two"}},
        {"key": "a", "match": {"substring": ""}},
        {"key": "a", "geo_bounding_box": {"top_left": point, "bottom_right": other}},
        {"key": "a", "geo_radius": {"center": point, "radius": 3}},
        {"key": "a", "geo_polygon": {"exterior": {"points": corners}, "interiors": null}},
        {"has_vector": ""},
        {"nested": {"key": "a[]", "filter": {"must": {"has_id": [1]}}}},
    ]});
    let filter = parse_filter(filter.to_string().as_bytes()).unwrap();
    let matching = |matching| Condition::Match { key: "a".into(), matching };
    let geo = |area| Condition::Geo { key: "a".into(), area };
    let (point, other) = (GeoPoint { lat: 1.0, lon: 2.0 }, GeoPoint { lat: -1.0, lon: 3.5 });
    let exterior = vec![point, GeoPoint { lat: 1.0, lon: 3.0 }, other, point];
    let inner = Filter { must: vec![Condition::HasId(vec![1])], ..Filter::default() };
    assert_eq!(
        filter.must,
        [
            matching(text(TextMatchKind::All, "Two words")),
            matching(text(TextMatchKind::Any, "Two words")),
            matching(text(TextMatchKind::Phrase, "Two words")),
            matching(Match::Prefix("Two".into())),
            matching(Match::Substring(String::new())),
            geo(GeoArea::Box { top_left: point, bottom_right: other }),
            geo(GeoArea::Radius { center: point, radius: 3.0 }),
            geo(GeoArea::Polygon { exterior, interiors: Vec::new() }),
            Condition::HasVector { name: String::new(), is_present: false },
            Condition::Element { key: "a[]".into(), filter: inner },
        ]
    );
}

#[test]
fn texts_and_areas_outside_their_limits_are_refused() {
    let ring = |points: Value| json!({"geo_polygon": {"exterior": {"points": points}}});
    let corner = |lat: i32, lon: i32| json!({"lat": lat, "lon": lon});
    let many = vec![corner(1, 1); GEO_POINTS_MAX + 1];
    for mut condition in [
        json!({"match": {"text": "a".repeat(TEXT_QUERY_BYTES_MAX + 1)}}),
        json!({"match": {"prefix": "a".repeat(TEXT_QUERY_BYTES_MAX + 1)}}),
        json!({"match": {"phrase": "a ".repeat(TEXT_QUERY_WORDS_MAX + 1)}}),
        json!({"geo_radius": {"center": corner(91, 0), "radius": 1}}),
        json!({"geo_radius": {"center": corner(0, 181), "radius": 1}}),
        json!({"geo_radius": {"center": corner(0, 0), "radius": -1}}),
        ring(json!([corner(0, 0), corner(0, 1), corner(0, 0)])),
        ring(json!([corner(0, 0), corner(0, 1), corner(1, 0), corner(1, 1)])),
        ring(json!(many)),
    ] {
        condition["key"] = json!("a");
        let (kind, message) = refused::<CountRequest>(&json!({"filter": {"must": [condition]}}));
        assert_eq!(kind, ErrorKind::InvalidArgument, "{message}");
        assert!(is_validation(&message), "{message}");
    }
}

#[test]
fn text_indexes_say_how_texts_are_split() {
    let given =
        json!({"tokenizer": "prefix", "lowercase": false, "min_token_len": 2, "on_disk": true});
    let prefixes = Tokenizer {
        split: WordSplit::Prefix,
        lowercase: false,
        min_chars: 2,
        ..Tokenizer::default()
    };
    assert_eq!(tokenizer(&given).unwrap(), prefixes);
    assert_eq!(tokenizer(&Value::Null).unwrap(), Tokenizer::default());
    let no_stemmer = json!({"stemmer": {"type": "none"}});
    assert_eq!(tokenizer(&no_stemmer).unwrap(), Tokenizer::default());
    for no_words in [json!({}), json!({"languages": [], "custom": null})] {
        let params = json!({ "stopwords": no_words });
        assert_eq!(tokenizer(&params).unwrap(), Tokenizer::default());
    }
    for params in [
        json!({"tokenizer": "multilingual"}),
        json!({"stemmer": {"type": "snowball", "language": "english"}}),
        json!({"stopwords": "english"}),
        json!({"ascii_folding": true}),
    ] {
        assert_eq!(tokenizer(&params).unwrap_err().kind(), ErrorKind::Unimplemented, "{params}");
    }
    let in_cluster = |schema: Value| {
        let index = json!({"field_name": "a", "field_schema": schema});
        read::<CreateIndex>(&index).unwrap().check_default_tokenizer()
    };
    assert!(in_cluster(json!("text")).is_ok() && in_cluster(json!({"type": "text"})).is_ok());
    let refused = in_cluster(json!({"type": "text", "tokenizer": "prefix"})).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unimplemented);
}

#[test]
fn paths_that_cannot_be_read_are_refused() {
    for path in ["\"a.b", "\"a\"b", "[0]", "a.[1].b", "a[99999999999999999999999]"] {
        let is_one = json!({"key": path, "match": {"value": 1}});
        for (kind, message) in [
            refused::<CountRequest>(&json!({"filter": {"must_not": [is_one]}})),
            refused::<CountRequest>(&json!({"filter": {"must": {"is_empty": {"key": path}}}})),
            refused::<FacetRequest>(&json!({"key": path})),
            refused::<ScrollRequest>(&json!({"order_by": path})),
            refused::<ScrollRequest>(&json!({"order_by": {"key": path}})),
            refused::<QueryGroupsRequest>(&json!({"query": 1, "group_by": path})),
            refused::<WithPayload>(&json!([path])),
        ] {
            assert_eq!(kind, ErrorKind::InvalidArgument, "{path}: {message}");
            assert!(message.contains("path"), "{path}: {message}");
        }
    }
    for path in ["a", "a.b", "a[].b", "a[]", "size [cm]", "a\"b", "\"a.b\".c", "a[0]", "a[0][].b"] {
        assert!(read::<FacetRequest>(&json!({ "key": path })).is_ok(), "{path}");
    }
}
