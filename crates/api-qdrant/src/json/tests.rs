use base::ErrorKind;
use proptest::prelude::*;
use search::points::PointId;
use serde_json::{Map, Value, json};

use super::*;

mod collections;
mod filters;
mod points;
mod queries;

fn read<T: for<'a> Deserialize<'a>>(value: &Value) -> Result<T> {
    parse(value.to_string().as_bytes())
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Returns the kind and the message of the error that `value` is refused with.
fn refused<T: for<'a> Deserialize<'a> + std::fmt::Debug>(value: &Value) -> (ErrorKind, String) {
    let error = read::<T>(value).unwrap_err();
    (error.kind(), error.message().to_owned())
}

const UUID: &str = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";

fn uuid() -> PointId {
    UUID.parse().unwrap()
}

#[test]
fn a_wrong_id_is_refused_with_its_path() {
    let spellings =
        json!([format!("{{{UUID}}}"), format!("urn:uuid:{UUID}"), UUID.replace('-', "")]);
    assert_eq!(read::<Vec<PointId>>(&spellings).unwrap(), [uuid(); 3]);
    assert_eq!(read::<Vec<PointId>>(&json!([7, UUID])).unwrap(), [PointId::Number(7), uuid()]);
    for wrong in
        [json!([-1]), json!([1.5]), json!(["seven"]), json!(["7"]), json!([null]), json!([1.9e19])]
    {
        let (kind, message) = refused::<Vec<PointId>>(&wrong);
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(message.contains("[0]") && message.contains("UUID"), "{message}");
    }
}

#[test]
fn the_envelope_is_json() {
    let took = std::time::Duration::from_millis(2);
    let answer: Value = serde_json::from_slice(&envelope(br#"{"count":1}"#, took)).unwrap();
    assert_eq!(answer, json!({"result": {"count": 1}, "status": "ok", "time": 0.002}));
    let answer: Value = serde_json::from_slice(&error("no \"such\" thing", took)).unwrap();
    assert_eq!(answer["status"]["error"], "no \"such\" thing");
    let answer: Value = serde_json::from_slice(&version("millpond", "1")).unwrap();
    assert!(answer["version"].as_str().unwrap().starts_with("1."));
    let vector = Some(Vector::labelled("v", vec![0.1]));
    let record = PointRecord { id: PointId::Number(1), payload: None, vector, order_value: None };
    assert_eq!(serde_json::to_string(&record).unwrap(), r#"{"id":1,"vector":{"v":[0.1]}}"#);
}

#[test]
fn values_outside_their_limits_are_validation_errors() {
    let outside = [
        refused::<QueryRequest>(&json!({"query": 1, "params": {"hnsw_ef": 0}})),
        refused::<QueryRequest>(&json!({"query": 1, "limit": 0})),
        refused::<QueryRequest>(&json!({"query": {"recommend": {"negative": [1]}}})),
        refused::<ScrollRequest>(&json!({"limit": 0})),
        refused::<FacetRequest>(&json!({"key": "a", "limit": 0})),
        refused::<CountRequest>(&json!({"filter": {"must": [{"key": "a"}]}})),
    ];
    for (kind, message) in outside {
        assert_eq!(kind, ErrorKind::InvalidArgument, "{message}");
        assert!(
            message.starts_with("Validation error in JSON body: [") && is_validation(&message),
            "{message}"
        );
    }
    let index = |params: Value| {
        let index: CreateIndex = read(&json!({"field_name": "n", "field_schema": params})).unwrap();
        index.schema().map(|_| ())
    };
    assert!(is_validation(
        index(json!({"type": "integer", "lookup": false, "range": false})).unwrap_err().message()
    ));
    assert!(index(json!({"type": "integer", "lookup": false, "range": true})).is_ok());
    assert!(!is_validation(&refused::<ScrollRequest>(&json!({"limit": -1})).1));
}

#[test]
fn an_ordered_list_that_would_be_cut_is_refused() {
    use search::collection::IDS_MAX;
    assert!(check_ordered_limit(IDS_MAX, IDS_MAX).is_ok());
    assert!(check_ordered_limit(IDS_MAX + 1, IDS_MAX - 1).is_ok());
    let error = check_ordered_limit(IDS_MAX + 1, IDS_MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn unknown_fields_are_refused() {
    for (kind, message) in [
        refused::<QueryRequest>(&json!({"query": 1, "fitler": {}})),
        refused::<QueryRequest>(&json!({"query": 1, "params": {"ef": 9}})),
        refused::<QueryRequest>(&json!({"prefetch": {"query": 1, "limits": 9}, "query": 1})),
        refused::<QueryRequest>(
            &json!({"query": {"recommend": {"positive": [1], "negatives": [2]}}}),
        ),
        refused::<ScrollRequest>(&json!({"offsets": 1})),
        refused::<CountRequest>(&json!({"filters": {}})),
        refused::<FacetRequest>(&json!({"key": "a", "filters": {}})),
        refused::<RetrieveRequest>(&json!({"ids": [], "vectors": true})),
        refused::<UpsertRequest>(&json!({"points": [{"id": 1, "vector": [1], "payloads": {}}]})),
        refused::<PointsSelector>(&json!({"points": [1], "filters": {}})),
        refused::<SetPayload>(&json!({"payload": {}, "points": [1], "keys": "a"})),
        refused::<CreateIndex>(&json!({"field_name": "a", "schema": "keyword"})),
    ] {
        assert_eq!(kind, ErrorKind::InvalidArgument, "{message}");
        assert!(message.contains("unknown field"), "{message}");
    }
    // Fields are known if they have no effect here and change no answer.
    let known = json!({"query": 1, "params": {"indexed_only": true, "acorn": {"enable": true}}});
    assert!(read::<QueryRequest>(&known).is_ok());
    assert!(read::<CountRequest>(&json!({"exact": false})).is_ok());
    for request in [json!({"with_vectors": true}), json!({"with_vector": true})] {
        assert_eq!(
            read::<ScrollRequest>(&request).unwrap().with_vector,
            Some(WithVector::All(true))
        );
        assert_eq!(
            read::<QueryRequest>(&request).unwrap().with_vector,
            Some(WithVector::All(true))
        );
    }
}

/// JSON of the shapes that requests have, right and wrong.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\\[\\].]{0,8}".prop_map(Value::from),
        Just(json!(UUID)),
    ];
    let names = prop::sample::select(vec![
        "must",
        "should",
        "must_not",
        "key",
        "match",
        "value",
        "any",
        "except",
        "range",
        "gt",
        "has_id",
        "is_empty",
        "points",
        "batch",
        "ids",
        "vectors",
        "vector",
        "payload",
        "payloads",
        "id",
        "query",
        "nearest",
        "recommend",
        "positive",
        "prefetch",
        "filter",
        "limit",
        "with_payload",
        "include",
        "operations",
        "upsert",
        "delete",
        "text",
        "size",
        "distance",
        "params",
        "quantization",
        "actions",
        "create_alias",
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..5).prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

fn all_of(body: &[u8]) {
    let _ = parse::<UpsertRequest>(body).map(|upsert| upsert.points("v"));
    let _ = parse::<CreateCollection>(body).map(|create| create.settings());
    let _ = parse::<CreateIndex>(body).map(|index| index.schema().map(|_| ()));
    let _ = parse::<WithPayload>(body)
        .map(|with_payload| with_payload.project(object(json!({"a": {"b": [1, {"c": 2}]}}))));
    let _ = (
        parse::<QueryRequest>(body),
        parse::<QueryBatchRequest>(body),
        parse::<ScrollRequest>(body),
    );
    let _ =
        (parse::<CountRequest>(body), parse::<RetrieveRequest>(body), parse::<UpdateBatch>(body));
    let _ =
        (parse::<SetPayload>(body), parse::<DeletePayload>(body), parse::<PointsSelector>(body));
    let _ = (parse::<UpdateCollection>(body), parse::<ChangeAliases>(body), parse_filter(body));
    let _ = selects_by_filter(body);
}

#[test]
fn changes_by_filter_are_recognised() {
    let is_by_filter = |body: Value| selects_by_filter(body.to_string().as_bytes());
    let filter = json!({"must": [{"key": "a", "match": {"value": 1}}]});
    assert!(is_by_filter(json!({ "filter": filter })));
    assert!(is_by_filter(json!({"payload": {"a": 1}, "filter": filter})));
    assert!(is_by_filter(json!({"operations": [
        {"upsert": {"points": []}}, {"clear_payload": {"filter": filter}},
    ]})));
    for other in [
        json!({"points": [1], "filter": null}),
        json!({"points": [1], "payload": {"filter": {"must": []}}}),
        json!({"operations": [{"upsert": {"points": [], "update_filter": filter}}]}),
        json!({"operations": 7}),
        json!("filter"),
    ] {
        assert!(!is_by_filter(other.clone()), "{other}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        all_of(&bytes);
    }

    #[test]
    fn any_json_is_survived(value in values()) {
        all_of(value.to_string().as_bytes());
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in [r#"{"must":["#, r#"{"filter":{"must":["#, "["] {
        let deep = open.repeat(100_000);
        assert!(parse_filter(deep.as_bytes()).is_err());
        all_of(deep.as_bytes());
    }
}
