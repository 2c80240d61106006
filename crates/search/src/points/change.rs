//! Changes of payloads, as Qdrant's clients request them.

use base::{Error, Result};
use serde_json::{Map, Value};

use super::{PointId, RESERVED_KEY};
use crate::filter::Filter;

/// Maximum steps of a path into a payload.
const PATH_STEPS_MAX: usize = 32;

/// Points that a change is about.
#[derive(Clone, Debug, PartialEq)]
pub enum PointSelection {
    /// These ids. Ids without a point are ignored.
    Ids(Vec<PointId>),
    /// All points that match.
    Filter(Filter),
}

/// One change of a payload.
#[derive(Clone, Debug, PartialEq)]
pub enum PayloadChange {
    /// Merges members into an object. Members of the same name are replaced, null removes a member,
    /// and others stay.
    Set {
        /// The members.
        payload: Map<String, Value>,
        /// Path of the object in the payload, which is created if it is missing. `None` for the
        /// payload itself.
        key: Option<String>,
    },
    /// Replaces the payload.
    Overwrite(Map<String, Value>),
    /// Removes the values at these paths, except single elements of lists.
    DeleteKeys(Vec<String>),
    /// Empties the payload.
    Clear,
    /// Makes another change, after which the member `key` is as before. A replacing payload that
    /// has this member still replaces it.
    Keep {
        /// Name of the member.
        key: &'static str,
        /// The other change.
        change: Box<PayloadChange>,
    },
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Name(String),
    Index(usize),
    Each,
}

impl PayloadChange {
    /// Applies the change, which was checked, to a payload.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed path.
    pub fn apply(&self, payload: &mut Map<String, Value>) -> Result<()> {
        apply(self, payload)
    }

    /// Checks the names and paths of the change.
    ///
    /// # Errors
    /// `InvalidArgument` for the reserved key and for malformed paths.
    pub fn check(&self) -> Result<()> {
        let reserved = |name: &str| {
            if name == RESERVED_KEY {
                Err(Error::invalid(format!(
                    "the payload's key \"{RESERVED_KEY}\" is Millpond's own; use another one"
                )))
            } else {
                Ok(())
            }
        };
        let first = |path: &str| match steps(path)?.first() {
            Some(Step::Name(name)) => reserved(name),
            _ => Err(Error::invalid(format!("the path \"{path}\" does not begin with a name"))),
        };
        match self {
            PayloadChange::Set { key: Some(key), .. } => first(key),
            PayloadChange::Set { payload, key: None } | PayloadChange::Overwrite(payload) => {
                payload.keys().try_for_each(|name| reserved(name))
            }
            PayloadChange::DeleteKeys(keys) => keys.iter().try_for_each(|key| first(key)),
            PayloadChange::Clear => Ok(()),
            PayloadChange::Keep { change, .. } => change.check(),
        }
    }
}

/// Applies a checked change to a payload without the reserved key.
pub(crate) fn apply(change: &PayloadChange, payload: &mut Map<String, Value>) -> Result<()> {
    match change {
        PayloadChange::Overwrite(new) => payload.clone_from(new),
        PayloadChange::Clear => payload.clear(),
        PayloadChange::Set { payload: new, key: None } => merge(payload, new),
        PayloadChange::Set { payload: new, key: Some(key) } => {
            let mut all = Value::Object(std::mem::take(payload));
            set(&mut all, &steps(key)?, new);
            *payload = into_object(all);
        }
        PayloadChange::DeleteKeys(keys) => {
            let mut all = Value::Object(std::mem::take(payload));
            for key in keys {
                remove(&mut all, &steps(key)?);
            }
            *payload = into_object(all);
        }
        PayloadChange::Keep { key, change } => {
            let kept = payload.get(*key).cloned();
            apply(change, payload)?;
            let is_replaced =
                matches!(&**change, PayloadChange::Overwrite(new) if new.contains_key(*key));
            if let Some(kept) = kept
                && !is_replaced
            {
                payload.insert((*key).to_owned(), kept);
            }
        }
    }
    Ok(())
}

fn into_object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// Merges `new` into the objects at `path`. As in Qdrant, a value that is not an object is replaced
/// by one, and by an empty list if the path goes into its elements.
fn set(value: &mut Value, path: &[Step], new: &Map<String, Value>) {
    match path.split_first() {
        None => within(value, |object| merge(object, new)),
        Some((Step::Name(name), rest)) => {
            within(value, |object| {
                set(object.entry(name.clone()).or_insert(Value::Null), rest, new)
            });
        }
        Some((Step::Index(at), rest)) => within_list(value, |elements| {
            if let Some(element) = elements.get_mut(*at) {
                set(element, rest, new);
            }
        }),
        Some((Step::Each, rest)) => within_list(value, |elements| {
            elements.iter_mut().for_each(|element| set(element, rest, new));
        }),
    }
}

/// Merges members into an object. As in Qdrant, null removes a member.
fn merge(object: &mut Map<String, Value>, new: &Map<String, Value>) {
    for (name, value) in new {
        if value.is_null() {
            object.remove(name);
        } else {
            object.insert(name.clone(), value.clone());
        }
    }
}

/// Changes the members of `value`, which becomes an object if it is none.
fn within(value: &mut Value, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut members = into_object(value.take());
    change(&mut members);
    *value = Value::Object(members);
}

/// Changes the elements of `value`, which becomes an empty list if it is none.
fn within_list(value: &mut Value, change: impl FnOnce(&mut [Value])) {
    let mut elements = match value.take() {
        Value::Array(elements) => elements,
        _ => Vec::new(),
    };
    change(&mut elements);
    *value = Value::Array(elements);
}

/// Removes the values at `path`. As in Qdrant, a single element of a list stays, because a repeated
/// request would remove the next one too.
fn remove(value: &mut Value, path: &[Step]) {
    let Some((step, rest)) = path.split_first() else { return };
    match (step, rest.is_empty(), value) {
        (Step::Name(name), true, Value::Object(members)) => {
            members.remove(name);
        }
        (Step::Name(name), false, Value::Object(members)) => {
            if let Some(member) = members.get_mut(name) {
                remove(member, rest);
            }
        }
        (Step::Index(at), false, Value::Array(elements)) => {
            if let Some(element) = elements.get_mut(*at) {
                remove(element, rest);
            }
        }
        (Step::Each, true, Value::Array(elements)) => elements.clear(),
        (Step::Each, false, Value::Array(elements)) => {
            elements.iter_mut().for_each(|element| remove(element, rest));
        }
        _ => {}
    }
}

/// Parses a path: names joined by dots, `[3]` for an element, `[]` for each element. A name in
/// quotation marks may have dots, and may be empty.
fn steps(path: &str) -> Result<Vec<Step>> {
    let malformed = || {
        Error::invalid(format!("the path \"{path}\" cannot be read; write names joined by dots"))
    };
    let mut steps = Vec::new();
    let mut rest = path;
    loop {
        let (name, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or_else(malformed)?,
            None => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
        };
        if name.is_empty() && !rest.starts_with('"') {
            return Err(malformed());
        }
        steps.push(Step::Name(name.to_owned()));
        rest = after;
        while let Some(bracket) = rest.strip_prefix('[') {
            let (index, after) = bracket.split_once(']').ok_or_else(malformed)?;
            steps.push(match index {
                "" => Step::Each,
                digits => {
                    let index = digits.parse::<usize>();
                    Step::Index(index.map_err(|error| malformed().with_source(error))?)
                }
            });
            rest = after;
        }
        if steps.len() > PATH_STEPS_MAX {
            return Err(Error::invalid(format!("a path has more than {PATH_STEPS_MAX} steps")));
        }
        match rest.strip_prefix('.') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(steps),
            None => return Err(malformed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn changed(change: PayloadChange, before: Value) -> Value {
        let mut payload = into_object(before);
        change.check().unwrap();
        apply(&change, &mut payload).unwrap();
        Value::Object(payload)
    }

    fn members(value: Value) -> Map<String, Value> {
        into_object(value)
    }

    #[test]
    fn payloads_are_set_replaced_and_cleared() {
        let set = |value, key: Option<&str>| PayloadChange::Set {
            payload: members(value),
            key: key.map(str::to_owned),
        };
        let before = json!({"a": 1, "b": {"c": [{"d": 1}, {"d": 2}]}});
        assert_eq!(
            changed(set(json!({"a": 2, "e": 3}), None), before.clone()),
            json!({"a": 2, "b": {"c": [{"d": 1}, {"d": 2}]}, "e": 3})
        );
        assert_eq!(
            changed(set(json!({"a": null, "e": null, "f": 3}), None), before.clone()),
            json!({"b": {"c": [{"d": 1}, {"d": 2}]}, "f": 3}),
            "null removes a member"
        );
        assert_eq!(
            changed(set(json!({"d": null, "q": [null]}), Some("b.c[1]")), before.clone())["b"]["c"],
            json!([{"d": 1}, {"q": [null]}])
        );
        assert_eq!(
            changed(set(json!({"x": 1}), Some("b.n")), before.clone())["b"]["n"],
            json!({"x": 1})
        );
        assert_eq!(
            changed(set(json!({"x": 1}), Some("b.c[].q")), before.clone())["b"]["c"][1],
            json!({"d": 2, "q": {"x": 1}})
        );
        assert_eq!(
            changed(set(json!({"x": 1}), Some("b.c[1]")), before.clone())["b"]["c"][1],
            json!({"d": 2, "x": 1})
        );
        assert_eq!(changed(set(json!({"x": 1}), Some("a")), before.clone())["a"], json!({"x": 1}));
        for (key, name) in [("n[].q", "n"), ("n[0].q", "n"), ("a[]", "a"), ("b[1].q", "b")] {
            let new = changed(set(json!({"x": 1}), Some(key)), before.clone());
            assert_eq!(new[name], json!([]), "{key}: a path into a value that is no list");
        }
        assert_eq!(changed(set(json!({"x": 1}), Some("b.c[9].q")), before.clone()), before);
        assert_eq!(
            changed(PayloadChange::Overwrite(members(json!({"z": 0}))), before.clone()),
            json!({"z": 0})
        );
        assert_eq!(changed(PayloadChange::Clear, before.clone()), json!({}));
        let delete = |keys: &[&str]| {
            PayloadChange::DeleteKeys(keys.iter().map(|key| (*key).to_owned()).collect())
        };
        assert_eq!(
            changed(delete(&["a", "b.c[0].d", "nothing.there"]), before.clone()),
            json!({"b": {"c": [{}, {"d": 2}]}})
        );
        assert_eq!(changed(delete(&["b.c[0]", "b.c[9]"]), before.clone()), before);
        assert_eq!(changed(delete(&["b.c[].d"]), before), json!({"a": 1, "b": {"c": [{}, {}]}}));
        assert_eq!(
            changed(delete(&["\"a.b\""]), json!({"a.b": 1, "a": {"b": 2}})),
            json!({"a": {"b": 2}})
        );
        assert_eq!(
            changed(delete(&["\"\"", "a.\"\""]), json!({"": 1, "a": {"": 2, "b": 3}})),
            json!({"a": {"b": 3}})
        );
    }

    #[test]
    fn a_member_is_kept_unless_it_is_replaced() {
        let keep = |change| PayloadChange::Keep { key: "image", change: Box::new(change) };
        let before = json!({"a": 1, "image": {"name": "x", "bytes": 7}});
        let kept = json!({"image": {"name": "x", "bytes": 7}});
        assert_eq!(changed(keep(PayloadChange::Clear), before.clone()), kept);
        let keys = ["a", "image.name", "\"image\""].map(str::to_owned).to_vec();
        assert_eq!(changed(keep(PayloadChange::DeleteKeys(keys)), before.clone()), kept);
        let overwrite = |new| keep(PayloadChange::Overwrite(members(new)));
        assert_eq!(
            changed(overwrite(json!({"z": 0})), before.clone()),
            json!({"z": 0, "image": {"name": "x", "bytes": 7}})
        );
        let new = json!({"image": {"name": "y"}});
        assert_eq!(changed(overwrite(new.clone()), before), new);
        assert_eq!(changed(keep(PayloadChange::Clear), json!({"a": 1})), json!({}));
    }

    #[test]
    fn the_reserved_key_and_odd_paths_are_refused() {
        let reserved = || members(json!({RESERVED_KEY: 1}));
        assert!(PayloadChange::Overwrite(reserved()).check().is_err());
        assert!(PayloadChange::Set { payload: reserved(), key: None }.check().is_err());
        for path in [RESERVED_KEY, "", ".", "a.", "a[", "a[x]", "[]", "\"a", "a]b["] {
            assert!(PayloadChange::DeleteKeys(vec![path.to_owned()]).check().is_err(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_causes_no_panic(path in "[a.\\[\\]\"0é]{0,12}") {
            let change = PayloadChange::DeleteKeys(vec![path.clone()]);
            if change.check().is_ok() {
                changed(change, json!({"a": [{"0": 1}], "é": {"a": 2}}));
                changed(PayloadChange::Set { payload: members(json!({"q": 1})), key: Some(path) }, json!({"a": [1]}));
            }
        }
    }
}
