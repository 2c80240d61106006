//! Checks of writes. A holder skips an operation of the log that it cannot make. So operations that
//! a collection would refuse are refused here, before they are in the log. `payload_sizes` checks
//! the changes whose outcome depends on stored payloads.

use api_qdrant::json::{UpdateOperation, UpdateVectorsRequest, UpsertPoint, UpsertRequest};
use base::{Error, Result};
use cluster_node::check_known_ids;
use search::points::{PayloadChange, PointId, PointSelection};
use search::registry::CollectionSettings;
use search::{Metric, SQUARE_MAX};
use serde_json::{Map, Value};

/// Maximum nesting of a request's JSON. The log nests it deeper, and JSON readers stop at 128.
const DEPTH_MAX: usize = 120;
/// Maximum bytes of a payload as it is stored, as in `search`.
pub(super) const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Bytes that a stored payload has for a UUID.
const UUID_BYTES: usize = 56;

/// Member of a collection's extra settings that has the settings of images.
pub(super) const IMAGES: &str = api_qdrant::IMAGES;

/// Checks the nesting of JSON text.
///
/// # Errors
/// `InvalidArgument` for more levels than a holder can read.
pub fn depth(json: &[u8]) -> Result<()> {
    let mut depth: usize = 0;
    let mut in_text = false;
    let mut escaped = false;
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => depth += 1,
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!(
                "the request's JSON is nested deeper than {DEPTH_MAX} levels; write it with fewer levels"
            )));
        }
    }
    Ok(())
}

/// Checks an operation for a collection. `old_holder` is a search node whose program knows no ids
/// above 2^63 - 1, if the cluster has one.
///
/// # Errors
/// The error with which the collection would refuse the operation; as [`check_known_ids`].
pub(super) fn operation(
    operation: UpdateOperation,
    settings: &CollectionSettings,
    old_holder: Option<&str>,
) -> Result<()> {
    match operation {
        UpdateOperation::Upsert(request) => upsert(request, settings, old_holder),
        UpdateOperation::Delete(request) | UpdateOperation::ClearPayload(request) => {
            selection(&request.selection()?, old_holder)
        }
        UpdateOperation::SetPayload(mut request) => {
            selection(&request.selection()?, old_holder)?;
            check_known_keys(request.key.as_slice(), has_empty_name, old_holder)?;
            payload_size(&request.payload)?;
            PayloadChange::Set { payload: request.payload, key: request.key }.check()
        }
        UpdateOperation::OverwritePayload(mut request) => {
            request.check_overwrite()?;
            selection(&request.selection()?, old_holder)?;
            payload_size(&request.payload)?;
            PayloadChange::Overwrite(request.payload).check()
        }
        UpdateOperation::DeletePayload(mut request) => {
            selection(&request.selection()?, old_holder)?;
            let is_new = |key: &str| names_one_element(key) || has_empty_name(key);
            check_known_keys(&request.keys, is_new, old_holder)?;
            PayloadChange::DeleteKeys(request.keys).check()
        }
        UpdateOperation::UpdateVectors(request) => update_vectors(request, settings, old_holder),
        UpdateOperation::DeleteVectors(never) => match never {},
    }
}

fn selection(selection: &PointSelection, old_holder: Option<&str>) -> Result<()> {
    match selection {
        PointSelection::Ids(ids) => check_known_ids(ids, old_holder),
        PointSelection::Filter(filter) => filter.check().map_err(|error| error.context("filter")),
    }
}

/// Checks that all holders make the same change at the paths `keys`. `is_new` returns true for a
/// path that an old holder handles in another way, so that the copies of a shard would differ.
///
/// # Errors
/// `Unavailable` for such a path if there is an old holder.
fn check_known_keys(
    keys: &[String],
    is_new: impl Fn(&str) -> bool,
    old_holder: Option<&str>,
) -> Result<()> {
    let Some(node) = old_holder else { return Ok(()) };
    match keys.iter().find(|key| is_new(key.as_str())) {
        Some(key) => Err(Error::unavailable(format!(
            "the path {key:?}: the search node {node} has an earlier version, which handles this path in \
             another way; upgrade the node, and send the request again"
        ))),
        None => Ok(()),
    }
}

/// Returns true if a path ends in one element of an array. An old holder removes the element.
fn names_one_element(key: &str) -> bool {
    key.ends_with(']') && !key.ends_with("[]")
}

/// Returns true if a path has an empty name in quotation marks. An old holder skips its operation.
fn has_empty_name(key: &str) -> bool {
    key.contains("\"\"")
}

/// Checks the size of a payload together with the longest id.
fn payload_size(payload: &Map<String, Value>) -> Result<()> {
    let bytes = serde_json::to_vec(payload)
        .map_err(|error| Error::internal("a payload").caused_by(error))?
        .len();
    if bytes > PAYLOAD_BYTES_MAX - UUID_BYTES {
        return Err(Error::too_large(format!(
            "the payload has {bytes} bytes, {} at most",
            PAYLOAD_BYTES_MAX - UUID_BYTES
        )));
    }
    Ok(())
}

/// Returns the number of bytes of a payload as it is stored.
///
/// # Errors
/// `Internal` if it cannot be written.
pub(super) fn stored_bytes(id: PointId, payload: &Map<String, Value>) -> Result<usize> {
    if payload.is_empty() {
        return Ok(0);
    }
    let own = serde_json::to_vec(payload)
        .map_err(|error| Error::internal("a payload").caused_by(error))?;
    Ok(own.len() + if id.is_in_payload() { UUID_BYTES } else { 0 })
}

/// Checks a request that writes points.
fn upsert(
    mut request: UpsertRequest,
    settings: &CollectionSettings,
    old_holder: Option<&str>,
) -> Result<()> {
    // Holders may make an operation twice, and a condition may hold for one of the two only.
    if !request.take_condition().is_always() {
        return Err(Error::unimplemented(
            "a cluster has neither update_filter nor an update_mode other than \"upsert\"; use one \
             server, or write the points without them",
        ));
    }
    if settings.extra.get(IMAGES).is_some() {
        return Err(Error::precondition(
            "the collection has images, and each of its points needs the keypoints of an image, which this interface \
             cannot send; add images with /v1/images. Payloads can be changed here",
        ));
    }
    for new in request.points(&settings.vector_name)? {
        let id = new.id;
        check_known_ids(&[id], old_holder)?;
        point(new, settings).map_err(|error| error.context(format_args!("point {id}")))?;
    }
    Ok(())
}

fn update_vectors(
    request: UpdateVectorsRequest,
    settings: &CollectionSettings,
    old_holder: Option<&str>,
) -> Result<()> {
    // The filter may hold for one of the two times that a holder makes the operation.
    if request.update_filter.is_some() {
        return Err(Error::unimplemented(
            "a cluster has no update_filter; use one server, or change the vectors without it",
        ));
    }
    if settings.extra.get(IMAGES).is_some() {
        return Err(Error::precondition(
            "the collection has images, and the vector of a point is made from its image; add the image again \
             with /v1/images. Payloads can be changed here",
        ));
    }
    for (id, values) in request.vectors(&settings.vector_name)? {
        check_known_ids(&[id], old_holder)?;
        vector(&values, settings).map_err(|error| error.context(format_args!("point {id}")))?;
    }
    Ok(())
}

/// Checks a point that is to be written.
fn point(point: UpsertPoint, settings: &CollectionSettings) -> Result<()> {
    vector(&point.vector, settings)?;
    let bytes = stored_bytes(point.id, &point.payload)?;
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(Error::too_large(format!(
            "its payload has {bytes} bytes, {PAYLOAD_BYTES_MAX} at most"
        )));
    }
    PayloadChange::Overwrite(point.payload).check()
}

/// Checks that the collection can store a vector.
fn vector(values: &[f32], settings: &CollectionSettings) -> Result<()> {
    if values.len() != settings.dims {
        return Err(Error::invalid(format!(
            "Vector dimension error: expected dim: {}, got {}",
            settings.dims,
            values.len()
        )));
    }
    length(values, settings.metric)
}

/// Checks that a vector can be compared.
fn length(vector: &[f32], metric: Metric) -> Result<()> {
    if vector.iter().any(|value| !value.is_finite()) {
        return Err(Error::invalid("its vector has a value that no 32-bit float can hold"));
    }
    if metric == Metric::Cosine {
        // As `api_qdrant` computes it: such a vector is stored with the length one.
        let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        if norm > f32::EPSILON && norm.is_finite() {
            return Ok(());
        }
    }
    let square: f64 = vector.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let least = if metric == Metric::Cosine { f64::from(f32::MIN_POSITIVE) } else { 0.0 };
    let most = f64::from(SQUARE_MAX);
    if square == 0.0 || (least..=most).contains(&square) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "its vector has the length {:.1e}, but it must be {:.1e} to {:.1e}; scale it",
        square.sqrt(),
        least.sqrt(),
        most.sqrt()
    )))
}

#[cfg(test)]
mod tests {
    use api_qdrant::json;
    use base::ErrorKind;
    use search::points::NUMBERS_MAX;
    use serde_json::{Value, json};

    use super::*;

    fn check(metric: Metric, body: &Value) -> Result<()> {
        let settings = CollectionSettings::new(2, metric);
        operation(json::parse(body.to_string().as_bytes())?, &settings, None)
    }

    fn check_point(metric: Metric, point: Value) -> Result<()> {
        check(metric, &json!({"upsert": {"points": [point]}}))
    }

    #[test]
    fn images_are_not_added_as_vectors() {
        let mut settings = CollectionSettings::new(2, Metric::Dot);
        settings.extra = json!({ IMAGES: {} });
        let points = json!({"upsert": {"points": [{"id": 1, "vector": [1, 2]}]}});
        let refused =
            operation(json::parse(points.to_string().as_bytes()).unwrap(), &settings, None);
        assert!(refused.unwrap_err().message().contains("/v1/images"));
        let vectors = json!({"update_vectors": {"points": [{"id": 1, "vector": [1, 2]}]}});
        let refused =
            operation(json::parse(vectors.to_string().as_bytes()).unwrap(), &settings, None);
        assert!(refused.unwrap_err().message().contains("/v1/images"));
        let delete = json!({"delete": {"points": [1]}});
        operation(json::parse(delete.to_string().as_bytes()).unwrap(), &settings, None).unwrap();
    }

    #[test]
    fn an_operation_is_refused_while_an_old_holder_would_skip_it() {
        let settings = CollectionSettings::new(2, Metric::Dot);
        let check = |body: &Value, old_holder| {
            let parsed = json::parse(body.to_string().as_bytes()).unwrap();
            operation(parsed, &settings, old_holder)
        };
        // The old holder would skip the change of point 1 too.
        let operations = |id: &Value| {
            let point = |id: &Value| json!({"id": id, "vector": [1, 2]});
            let vectors = json!({"points": [point(&json!(1)), point(id)]});
            let ids = json!([1, id]);
            [
                json!({ "upsert": vectors }),
                json!({ "update_vectors": vectors }),
                json!({"delete": {"points": ids}}),
                json!({"clear_payload": {"points": ids}}),
                json!({"set_payload": {"points": ids, "payload": {"a": 1}}}),
                json!({"overwrite_payload": {"points": ids, "payload": {"a": 1}}}),
                json!({"delete_payload": {"points": ids, "keys": ["a"]}}),
            ]
        };
        let uuid = json!("5c56c793-69f3-4fbf-87e6-c4bf54c28c26");
        for known in [json!(NUMBERS_MAX - 1), uuid].iter().flat_map(operations) {
            assert_eq!(check(&known, Some("a")), Ok(()), "{known}");
        }
        for large in operations(&json!(NUMBERS_MAX)) {
            assert_eq!(check(&large, None), Ok(()), "{large}");
            let error = check(&large, Some("a")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{large}");
            assert!(error.message().contains("the search node a has"), "{error}");
        }
    }

    #[test]
    fn paths_that_an_old_holder_handles_otherwise_are_refused() {
        let settings = CollectionSettings::new(2, Metric::Dot);
        let check = |body: &Value, old_holder| {
            let parsed = json::parse(body.to_string().as_bytes()).unwrap();
            operation(parsed, &settings, old_holder)
        };
        let delete = |key: &str| json!({"delete_payload": {"points": [1], "keys": ["a", key]}});
        let set = |key: &str| json!({"set_payload": {"points": [1], "payload": {}, "key": key}});
        for known in [delete("b[]"), delete("b[0].c"), delete("\"b.c\""), set("b[0]")] {
            assert_eq!(check(&known, Some("a")), Ok(()), "{known}");
        }
        for new in [delete("b[0]"), delete("b.\"\""), set("\"\".b")] {
            assert_eq!(check(&new, None), Ok(()), "{new}");
            let error = check(&new, Some("a")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{new}");
            assert!(error.message().contains("the search node a has"), "{error}");
        }
    }

    #[test]
    fn writes_that_depend_on_stored_points_are_refused() {
        let point = json!({"id": 1, "vector": [1, 2]});
        for (refused, body) in [
            (false, json!({"upsert": {"points": [point], "update_mode": "upsert"}})),
            (true, json!({"upsert": {"points": [point], "update_mode": "insert_only"}})),
            (true, json!({"upsert": {"points": [point], "update_filter": {}}})),
            (false, json!({"update_vectors": {"points": [point]}})),
            (false, json!({"update_vectors": {"points": [point], "update_filter": null}})),
            (true, json!({"update_vectors": {"points": [point], "update_filter": {}}})),
        ] {
            let kind = check(Metric::Dot, &body).map_err(|error| error.kind());
            let expected = if refused { Err(ErrorKind::Unimplemented) } else { Ok(()) };
            assert_eq!(kind, expected, "{body}");
        }
    }

    #[test]
    fn vectors_that_no_collection_takes_are_refused() {
        let vector = |metric, vector: [f64; 2]| {
            check_point(metric, json!({"id": 1, "vector": vector})).map_err(|error| error.kind())
        };
        let invalid = Err(ErrorKind::InvalidArgument);
        for metric in [Metric::Cosine, Metric::Dot, Metric::L2] {
            assert_eq!(vector(metric, [1.0, 2.0]), Ok(()));
            assert_eq!(vector(metric, [0.0, 0.0]), Ok(()));
            assert_eq!(vector(metric, [1e39, 0.0]), invalid);
            assert_eq!(vector(metric, [1e20, 0.0]), invalid);
        }
        for metric in [Metric::Dot, Metric::L2] {
            // Its square is above the largest one, which is a float of 32 bits below 1e36.
            assert_eq!(vector(metric, [1e18, 0.0]), invalid);
            assert_eq!(vector(metric, [9.9e17, 0.0]), Ok(()));
        }
        assert_eq!(vector(Metric::Cosine, [1e-30, 0.0]), invalid);
        assert_eq!(vector(Metric::Dot, [1e-30, 0.0]), Ok(()));
        for kind in ["upsert", "update_vectors"] {
            let refused = |vector: Value| {
                let point = json!({ "id": 1, "vector": vector });
                check(Metric::Cosine, &json!({ kind: { "points": [point] } })).unwrap_err()
            };
            let three = refused(json!([1, 2, 3]));
            assert_eq!(three.message(), "point 1: Vector dimension error: expected dim: 2, got 3");
            assert!(refused(json!([1e-30, 0])).message().starts_with("point 1: its vector"));
        }
        let none = check(Metric::Dot, &json!({"update_vectors": {"points": []}})).unwrap_err();
        assert!(json::is_validation(none.message()), "{none}");
    }

    #[test]
    fn changes_that_holders_cannot_make_are_refused() {
        let keys = |keys: Value| {
            check(Metric::Dot, &json!({"delete_payload": {"keys": keys, "points": [1]}}))
        };
        assert!(keys(json!(["a", "b[]", "c[0].d", "e[0]"])).is_ok());
        assert!(keys(json!(["a", "b["])).unwrap_err().message().contains("b["));
        for kind in ["set_payload", "overwrite_payload"] {
            let of_bytes = |bytes: usize| {
                let payload = json!({ "a": "x".repeat(bytes) });
                check(Metric::Dot, &json!({ kind: {"payload": payload, "points": [1]} }))
            };
            assert!(of_bytes(60 << 10).is_ok());
            assert_eq!(of_bytes(64 << 10).unwrap_err().kind(), ErrorKind::TooLarge);
        }
    }

    #[test]
    fn payloads_that_no_collection_takes_are_refused() {
        let payload = |payload: Value| {
            check_point(Metric::Dot, json!({"id": 1, "vector": [1, 2], "payload": payload}))
                .map_err(|error| error.kind())
        };
        assert_eq!(payload(json!({"a": "x".repeat(PAYLOAD_BYTES_MAX - 8)})), Ok(()));
        assert_eq!(
            payload(json!({"a": "x".repeat(PAYLOAD_BYTES_MAX - 7)})),
            Err(ErrorKind::TooLarge)
        );
        assert_eq!(payload(json!({"__millpond_id": 1})), Err(ErrorKind::InvalidArgument));
    }

    #[test]
    fn changes_that_no_collection_takes_are_refused() {
        for (refused, body) in [
            (false, json!({"delete": {"points": [1]}})),
            (true, json!({"delete": {}})),
            (true, json!({"set_payload": {"payload": {"__millpond_id": 1}, "points": [1]}})),
            (false, json!({"set_payload": {"payload": {}, "key": "a.b", "points": [1]}})),
            (true, json!({"set_payload": {"payload": {}, "key": "", "points": [1]}})),
            (true, json!({"overwrite_payload": {"payload": {"__millpond_id": 1}, "points": []}})),
            (true, json!({"overwrite_payload": {"payload": {}, "key": "a", "points": [1]}})),
            (true, json!({"delete_payload": {"keys": ["__millpond_id"], "points": [1]}})),
            (
                true,
                json!({"clear_payload": {"filter": {"must": vec![json!({"has_id": []}); 1025]}}}),
            ),
        ] {
            assert_eq!(check(Metric::Dot, &body).is_err(), refused, "{body}");
        }
    }

    #[test]
    fn deep_json_is_refused() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(depth(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(depth(nested(DEPTH_MAX + 1).as_bytes()).is_err());
        let text = format!("{{\"a\": \"\\\"{}\"}}", "[".repeat(500));
        assert!(depth(text.as_bytes()).is_ok());
    }
}
