//! Paths of a payload and the values under them, as conditions visit them.
//!
//! `a.b` is a member of an object, `a[].b` one of each object in a list. The path of a list is also
//! the path of its elements.

use serde_json::{Map, Value};

/// Value found under a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PathValue<'a> {
    /// Scalar.
    Scalar(&'a Value),
    /// Object, or list inside a list.
    Other,
    /// Null, or null in a list. Conditions see no value.
    Null,
}

/// Parent of a value found under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueParent {
    /// Object: the value is a member.
    Object,
    /// List: the value is an element.
    List,
}

/// Receives a path, a value under it, and the parent of the value.
pub(super) type Visit<'a> = dyn FnMut(&str, PathValue<'_>, ValueParent) + 'a;

/// Calls `visit` for every value of a payload with its path.
pub(super) fn each_path(payload: &Value, visit: &mut Visit<'_>) {
    if let Value::Object(object) = payload {
        let mut path = String::new();
        each_member(object, "", &mut path, visit);
    }
}

/// Visits the members of an object. `separator` stands between its path and a name.
fn each_member(
    object: &Map<String, Value>,
    separator: &str,
    path: &mut String,
    visit: &mut Visit<'_>,
) {
    for (name, value) in object {
        // A path is cut at dots and loses its brackets, so it never reaches such a member.
        if name.contains('.') || name.ends_with("[]") {
            continue;
        }
        let length = path.len();
        path.push_str(separator);
        path.push_str(name);
        each_of(value, path, visit);
        path.truncate(length);
    }
}

/// Visits a value that is not in a list, and the values below it.
fn each_of(value: &Value, path: &mut String, visit: &mut Visit<'_>) {
    let parent = ValueParent::Object;
    match value {
        Value::Null => visit(path, PathValue::Null, parent),
        Value::Object(object) => {
            visit(path, PathValue::Other, parent);
            each_member(object, ".", path, visit);
        }
        Value::Array(list) => list.iter().for_each(|element| each_element(element, path, visit)),
        scalar => visit(path, PathValue::Scalar(scalar), parent),
    }
}

/// Visits an element of a list. Lists in lists are not entered.
fn each_element(element: &Value, path: &mut String, visit: &mut Visit<'_>) {
    let parent = ValueParent::List;
    match element {
        Value::Null => visit(path, PathValue::Null, parent),
        Value::Array(_) => visit(path, PathValue::Other, parent),
        Value::Object(object) => {
            visit(path, PathValue::Other, parent);
            let length = path.len();
            path.push_str("[]");
            each_member(object, ".", path, visit);
            path.truncate(length);
        }
        scalar => visit(path, PathValue::Scalar(scalar), parent),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::filter::{each_value, null_at};

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            (0..3).prop_map(Value::from),
            Just(json!("x")),
            Just(json!([])),
        ];
        leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map(
                    prop::sample::select(vec!["a", "b", "", "a.b", "b[]"]),
                    inner,
                    0..3
                )
                .prop_map(|map| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
            ]
        })
    }

    /// Returns all paths of up to three steps.
    fn paths() -> Vec<String> {
        let steps = ["a", "b", "", "a[]", "b[]"];
        let mut paths: Vec<String> = steps.map(str::to_owned).to_vec();
        for _ in 0..2 {
            let longer = paths.iter().flat_map(|path| steps.map(|step| format!("{path}.{step}")));
            let longer: BTreeSet<String> = longer.chain(paths.iter().cloned()).collect();
            paths = longer.into_iter().collect();
        }
        paths.retain(|path| !path.is_empty() && !path.ends_with("[]"));
        paths
    }

    proptest! {
        #[test]
        fn paths_lead_to_the_values_of_conditions(payload in any_json()) {
            let mut found: Vec<(String, String)> = Vec::new();
            let mut nulls = BTreeSet::new();
            each_path(&payload, &mut |path, value, _| match value {
                PathValue::Scalar(scalar) => found.push((path.to_owned(), scalar.to_string())),
                PathValue::Other => found.push((path.to_owned(), "other".to_owned())),
                PathValue::Null => {
                    nulls.insert(path.to_owned());
                }
            });
            for path in paths() {
                let mut expected = Vec::new();
                each_value(&payload, &path, &mut |value| expected.push(match value {
                    Value::Array(_) | Value::Object(_) => "other".to_owned(),
                    scalar => scalar.to_string(),
                }));
                let mut of_path: Vec<String> =
                    found.iter().filter(|(at, _)| *at == path).map(|(_, value)| value.clone()).collect();
                expected.sort();
                of_path.sort();
                prop_assert_eq!(of_path, expected, "{} of {}", path, payload);
                prop_assert_eq!(nulls.contains(&path), null_at(&payload, &path), "{} of {}", path, payload);
            }
        }
    }
}
