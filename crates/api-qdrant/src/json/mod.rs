//! JSON of Qdrant's REST interface: requests as plain values, and the envelope of responses.
//!
//! A request is read in one pass. Errors name the path of the field in the body. A field of
//! Qdrant's that this server does not support is refused as [`base::ErrorKind::Unimplemented`], and
//! an unknown field as `InvalidArgument`. No field is ignored without notice. Hints for a
//! collection (shards, replicas, graph parameters, storage) are accepted and listed by
//! [`CreateCollection::hints`]. Parameters of a query that have no effect here are accepted.
//!
//! Follows the REST description of Qdrant 1.19, which version 1.20 of its Python client sends.

mod collection;
mod examples;
mod filter;
mod formula;
mod geo;
mod index_params;
mod lookup;
mod matrix;
mod older;
mod payload;
mod points;
mod query;
mod response;
mod retrieve;
mod select;
mod text_index;
mod unique;
mod vector;
mod vector_query;

use base::{Error, Result};
use search::filter::Filter;
use serde::Deserialize;

pub(crate) use collection::distance_name;
pub use collection::{
    AliasAction, ChangeAliases, CreateCollection, CreateIndex, INDEXES_MAX, UpdateCollection,
    listed_aliases, merge_metadata,
};
pub use index_params::index_hints;
pub use lookup::{GroupLookup, LookupFrom};
pub use matrix::MatrixRequest;
pub use older::{OlderQuery, incomplete_list};
pub use payload::{DeletePayload, SetPayload};
pub use points::{
    PointsSelector, UpdateBatch, UpdateOperation, UpdateVectorsRequest, UpsertPoint, UpsertRequest,
};
pub(crate) use points::{no_deleted_vectors, selects_by_filter};
pub use query::{
    QuantizationParams, QueryBatchRequest, QueryGroupsRequest, QueryRequest, SearchParams,
};
pub use response::title;
pub(crate) use response::{PointRecord, ScoredPoint, envelope, error, version};
pub use retrieve::{
    CountRequest, FacetRequest, RetrieveRequest, ScrollRequest, check_ordered_limit,
};
pub use select::{WithPayload, WithVector};
pub use text_index::check_default_tokenizer;
pub(crate) use text_index::tokenizer;
pub use vector::{BatchVectors, Vector};
pub use vector_query::{OrderBy, VectorInput, VectorQuery};

/// Version of Qdrant that the interface follows. Clients compare it with their own.
pub const INTERFACE_VERSION: &str = "1.19.0";

/// Maximum points in a response if the request has no limit.
const DEFAULT_LIMIT: usize = 10;

/// Part of the message for a feature of Qdrant's that this server does not support.
const UNSUPPORTED: &str = "not supported by this server";

/// Start of the message for a value outside the interface's limits. Its status is 422.
const VALIDATION: &str = "Validation error in ";

/// Returns true if `message` is about a value outside the interface's limits, for which Qdrant's
/// status is 422 and not 400.
pub fn is_validation(message: &str) -> bool {
    message.contains(VALIDATION)
}

/// Returns the error for a value of the body outside its limits. `field` is the field's path.
pub fn out_of_limits(field: &str, problem: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{VALIDATION}JSON body: [{field}: {problem}]"))
}

/// Returns the error for a collection's name of `bytes` bytes, more than [`NAME_BYTES_MAX`].
pub fn name_too_long(bytes: usize) -> Error {
    Error::invalid(format!(
        "{VALIDATION}path parameters: [name: {bytes} bytes; a collection's name has 1 to {NAME_BYTES_MAX}]"
    ))
}

/// Returns the error for a query parameter outside its limits.
pub(crate) fn parameter_out_of_limits(name: &str, problem: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{VALIDATION}query parameters: [{name}: {problem}]"))
}

/// Maximum bytes of a collection's name in Qdrant's interface.
pub const NAME_BYTES_MAX: usize = 255;

/// Mark in a message about a value outside its limits, until [`parse`] knows the field's path.
const LIMITS: &str = "outside its limits";

/// Returns a message that [`parse`] turns into an error that [`is_validation`].
fn limits(problem: impl std::fmt::Display) -> String {
    format!("{problem} ({LIMITS})")
}

/// Reads a whole number from 1.
fn positive<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let value = Option::<usize>::deserialize(deserializer)?;
    if value == Some(0) {
        return Err(serde::de::Error::custom(limits("value 0 invalid, must be 1 or larger")));
    }
    Ok(value)
}

/// Returns a message that [`parse`] turns into an `Unimplemented` error.
fn unsupported(feature: impl std::fmt::Display) -> String {
    format!("{feature}: {UNSUPPORTED}")
}

/// Reads a filter on its own, as query strings have it.
///
/// # Errors
/// As [`parse`].
pub fn parse_filter(json: &[u8]) -> Result<Filter> {
    #[derive(Deserialize)]
    struct FilterBody(#[serde(deserialize_with = "filter::required")] Filter);
    parse::<FilterBody>(json).map(|body| body.0)
}

/// Reads a request's body.
///
/// # Errors
/// `InvalidArgument` with the path of the offending field; `Unimplemented` for a feature of
/// Qdrant's that is not supported.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        let prefix = if path == "." { String::new() } else { format!("{path}: ") };
        if message.contains(UNSUPPORTED) {
            Error::unimplemented(format!("{prefix}{}", without_line(&message)))
        } else if message.contains(LIMITS) {
            out_of_limits(if path == "." { "body" } else { &path }, without_line(&message))
        } else {
            Error::invalid(format!("the request's JSON: {prefix}{message}"))
        }
    })?;
    reader.end().map_err(|error| Error::invalid("the request's JSON").caused_by(error))?;
    Ok(value)
}

/// Removes line and column from the end of a message, because the field's path is enough.
fn without_line(message: &str) -> &str {
    message.split(" at line ").next().unwrap_or(message)
}

/// A field without effect. The server always behaves as it requests, or lacks the feature that it
/// tunes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IgnoredField;

impl<'de> Deserialize<'de> for IgnoredField {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<IgnoredField, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| IgnoredField)
    }
}

/// A field that must be absent or null, because the feature is not supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AbsentField;

impl<'de> Deserialize<'de> for AbsentField {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<AbsentField, D::Error> {
        match Option::<serde::de::IgnoredAny>::deserialize(deserializer)? {
            None => Ok(AbsentField),
            Some(_) => Err(serde::de::Error::custom(unsupported("this field"))),
        }
    }
}

/// One value or a list of values.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    Many(Vec<T>),
    One(T),
}

impl<T> OneOrMany<T> {
    fn many(self) -> Vec<T> {
        match self {
            OneOrMany::Many(many) => many,
            OneOrMany::One(one) => vec![one],
        }
    }
}

#[cfg(test)]
mod tests;
