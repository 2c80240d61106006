//! Prepares filters for a collection.

use base::{Error, Result};
use search::filter::{Condition, Filter, Match, MatchValues, TextMatchKind, WordSplit};
use search::points::{PointId, PointSelection};
use search::registry::{CollectionSettings, NamedCollection};
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

/// As [`prepare_filter`], for an open collection.
///
/// # Errors
/// As [`prepare_filter`].
pub(crate) fn prepare(named: &NamedCollection, filter: Filter) -> Result<Filter> {
    prepare_filter(&named.settings(), filter)
}

/// Checks a filter, and prepares its conditions for a collection with these settings. On fields
/// with an index for UUIDs they then match every spelling of a UUID. On fields with an index for
/// texts they split texts as the index says. Conditions on vectors know the collection's vector.
///
/// # Errors
/// `InvalidArgument` for a filter that is too large or names no field; `Unimplemented` for a text
/// on a field whose index splits texts in a way that is not supported.
pub fn prepare_filter(settings: &CollectionSettings, mut filter: Filter) -> Result<Filter> {
    let schema = stored(&settings.extra, "payload_schema");
    let fields = CollectionFields { schema, vector_name: &settings.vector_name };
    fields.prepare(&mut filter, "").map_err(|error| error.context("filter"))?;
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

/// Declared indexes and the vector of a collection.
struct CollectionFields<'a> {
    /// Declared indexes by field.
    schema: Option<&'a Map<String, Value>>,
    vector_name: &'a str,
}

impl CollectionFields<'_> {
    /// Prepares the conditions of a filter. `prefix` comes before their paths in a payload.
    fn prepare(&self, filter: &mut Filter, prefix: &str) -> Result<()> {
        for condition in filter.conditions_mut() {
            match condition {
                Condition::Nested(filter) => self.prepare(filter, prefix)?,
                Condition::Element { key, filter } => {
                    let list = key.strip_suffix("[]").unwrap_or(key.as_str());
                    self.prepare(filter, &format!("{prefix}{list}[]."))?;
                }
                Condition::HasVector { name, is_present } => {
                    *is_present = name.as_str() == self.vector_name;
                }
                Condition::Match { key, matching } => {
                    let path = format!("{prefix}{key}");
                    let Some(field) = self.schema.and_then(|schema| schema.get(&path)) else {
                        continue;
                    };
                    prepare_match(field, matching)
                        .map_err(|error| error.context(format_args!("{key}")))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Prepares a comparison for a declared index.
fn prepare_match(field: &Value, matching: &mut Match) -> Result<()> {
    match matching {
        Match::Value(value) if is_uuid(field) => {
            *matching = Match::Any(spellings(std::slice::from_ref(value)));
        }
        Match::Any(values) | Match::Except(values) if is_uuid(field) => {
            *values = spellings(values);
        }
        Match::Text(text) if field["data_type"] == "text" => {
            let tokenizer = json::tokenizer(&field["params"])?;
            let is_prefix = tokenizer.split == WordSplit::Prefix;
            if is_prefix && text.kind() == TextMatchKind::Phrase {
                return Err(Error::unimplemented(
                    "a phrase on a field whose text index has the tokenizer prefix: not supported \
                     by this server; use match text",
                ));
            }
            *text = text.with_tokenizer(tokenizer);
        }
        _ => {}
    }
    Ok(())
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
