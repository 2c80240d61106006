//! Prepares filters for a collection.

use base::Result;
use search::filter::{Condition, Filter, Match, MatchValues};
use search::points::{PointId, PointSelection};
use search::registry::NamedCollection;
use serde_json::{Map, Value};

use crate::describe::stored;
use crate::json;

/// Reads a filter in Qdrant's JSON, and prepares it for a collection.
///
/// # Errors
/// `InvalidArgument` for malformed JSON and for a filter that is too large; `Unimplemented` for
/// conditions that are not supported.
pub fn parse_filter(named: &NamedCollection, filter: &str) -> Result<Filter> {
    prepare(named, json::parse_filter(filter.as_bytes())?)
}

/// Checks a filter, and lets conditions on fields with an index for UUIDs match every spelling of a
/// UUID.
///
/// # Errors
/// `InvalidArgument` for a filter that is too large or names no field.
pub(crate) fn prepare(named: &NamedCollection, mut filter: Filter) -> Result<Filter> {
    let settings = named.settings();
    if let Some(schema) =
        stored(&settings.extra, "payload_schema").filter(|it| it.values().any(is_uuid))
    {
        add_spellings(&mut filter, schema);
    }
    filter.check().map_err(|error| error.context("filter"))?;
    Ok(filter)
}

/// As [`prepare`], for a selection of points.
///
/// # Errors
/// As [`prepare`].
pub(crate) fn prepare_selection(
    named: &NamedCollection,
    selection: PointSelection,
) -> Result<PointSelection> {
    match selection {
        PointSelection::Filter(filter) => prepare(named, filter).map(PointSelection::Filter),
        ids @ PointSelection::Ids(_) => Ok(ids),
    }
}

/// Returns true if the index on a field is for UUIDs.
fn is_uuid(field: &Value) -> bool {
    field["data_type"] == "uuid"
}

fn add_spellings(filter: &mut Filter, schema: &Map<String, Value>) {
    for condition in filter.conditions_mut() {
        match condition {
            Condition::Nested(filter) => add_spellings(filter, schema),
            Condition::Match { key, matching } if schema.get(key).is_some_and(is_uuid) => {
                match matching {
                    Match::Value(value) => {
                        *matching = Match::Any(spellings(std::slice::from_ref(value)))
                    }
                    Match::Any(values) | Match::Except(values) => *values = spellings(values),
                }
            }
            _ => {}
        }
    }
}

/// Returns values together with the other usual spellings of UUIDs among them.
fn spellings(values: &[Value]) -> MatchValues {
    let mut all = values.to_vec();
    for value in values.iter().filter_map(Value::as_str) {
        let Ok(id) = PointId::uuid(value) else { continue };
        let hyphenated = id.to_string();
        let simple = hyphenated.replace('-', "");
        let others = [
            hyphenated.to_uppercase(),
            simple.to_uppercase(),
            format!("urn:uuid:{hyphenated}"),
            format!("{{{hyphenated}}}"),
            simple,
            hyphenated,
        ];
        all.extend(others.map(Value::from));
    }
    all.into()
}
