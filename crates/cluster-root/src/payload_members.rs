//! Parts of the payloads of points, which the root reads to score or to group them.

use std::collections::{BTreeSet, HashMap};

use base::Result;
use search::filter::{Bracket, first_step};
use search::points::PointId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::merge;
use super::shard_read::ResultTexts;
use super::split::{self, RawMembers};

/// Maximum number of points whose payloads are read at the same time: 64 MiB at most.
pub(super) const POINTS_AT_ONCE_MAX: usize = 1024;

/// Payloads of points that exist.
pub(super) type Payloads = HashMap<PointId, Value>;

/// Returns the value of `with_payload` that requests these members of payloads.
///
/// # Errors
/// As [`split::raw`].
pub(super) fn of_names(members: &BTreeSet<String>) -> Result<Box<RawValue>> {
    // No path leads to a name with a quotation mark.
    if members.iter().any(|name| name.contains('"')) {
        return split::raw(&true);
    }
    split::raw(&members.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>())
}

/// Returns the value of `with_payload` that requests the part of payloads with the values of
/// `path`. `with_payload` cannot request one element of a list. For such a path, it requests the
/// member of the payload in which the path begins.
///
/// # Errors
/// As [`split::raw`].
pub(super) fn of_path(path: &str) -> Result<Box<RawValue>> {
    if has_number(path) {
        return of_names(&BTreeSet::from([first_step(path).name.to_owned()]));
    }
    split::raw(&[path])
}

/// Returns true if a path goes into one element of a list.
fn has_number(path: &str) -> bool {
    let mut next = Some(path);
    while let Some(rest) = next {
        let step = first_step(rest);
        let mut brackets = step.brackets;
        while let Some((bracket, more)) = brackets.split_first() {
            if bracket != Bracket::Each {
                return true;
            }
            brackets = more;
        }
        next = step.rest;
    }
    false
}

/// Returns the members of a request for points with a part of their payloads.
///
/// # Errors
/// As [`split::raw`].
pub(super) fn request(with_payload: Box<RawValue>) -> Result<RawMembers> {
    Ok(RawMembers::from([
        ("with_payload".to_owned(), with_payload),
        ("with_vector".to_owned(), split::raw(&false)?),
    ]))
}

/// Reads the payloads in the results of shards.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
pub(super) fn payloads(results: &ResultTexts) -> Result<Payloads> {
    #[derive(Deserialize)]
    struct PayloadText {
        id: PointId,
        payload: Option<Map<String, Value>>,
    }
    let mut payloads = Payloads::new();
    for result in results.values() {
        let points: Vec<PayloadText> = merge::read(result)?;
        let points = points.into_iter();
        payloads.extend(
            points.map(|point| (point.id, Value::Object(point.payload.unwrap_or_default()))),
        );
    }
    Ok(payloads)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn payloads_are_read_by_quoted_names() {
        let choice = |names: &[&str]| {
            let members = names.iter().map(|name| (*name).to_owned()).collect();
            let text = split::raw(&request(of_names(&members).unwrap()).unwrap()).unwrap();
            let read: api_qdrant::json::RetrieveRequest =
                api_qdrant::json::parse(format!("{{\"ids\":[],{}", &text.get()[1..]).as_bytes())
                    .unwrap();
            assert!(read.with_payload.is_some());
            serde_json::from_str::<Value>(text.get()).unwrap()["with_payload"].clone()
        };
        assert_eq!(choice(&["a", "b.c"]), json!(["\"a\"", "\"b.c\""]));
        assert_eq!(choice(&["a", "b\"c"]), json!(true));
    }

    #[test]
    fn an_element_by_its_number_is_read_with_its_member() {
        let choice =
            |path: &str| -> Value { serde_json::from_str(of_path(path).unwrap().get()).unwrap() };
        for path in ["a", "a.b", "a[].b", "\"a[0]\".b"] {
            assert_eq!(choice(path), json!([path]));
        }
        for path in ["a[0]", "a.b[].c[7].d", "\"a\"[][1]"] {
            assert_eq!(choice(path), json!(["\"a\""]), "{path}");
        }
    }
}
