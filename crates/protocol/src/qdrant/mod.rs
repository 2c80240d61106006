//! Qdrant's REST interface: the requests as plain values, and the answers' envelope.
//!
//! A request is read in one pass. What is wrong is named by its path in the body; what Qdrant knows and
//! Millpond does not is refused as [`base::ErrorKind::Unimplemented`], never left out in silence. A field
//! that neither knows is refused. Hints for a collection (shards, replicas, graph parameters, where to keep what) are
//! accepted and listed by [`CreateCollection::hints`]; parameters of a query that have no effect here are read as
//! such.
//!
//! Follows the REST description of Qdrant 1.19, which version 1.20 of its Python client sends.

mod answer;
mod collection;
mod filter;
mod id;
mod payload;
mod points;
mod query;
mod select;
mod vector;

use base::{Error, Result};
use serde::Deserialize;

pub use answer::{PointRecord, ScoredPoint, envelope, error, version};
pub use collection::{
    AliasAction, ChangeAliases, CreateCollection, CreateIndex, Distance, UpdateCollection, VectorShape,
};
pub use filter::{Condition, Filter, Match, Range};
pub use id::PointId;
pub use payload::{DeletePayload, SetPayload};
pub use points::{PointsSelection, PointsSelector, UpdateBatch, UpdateOperation, UpsertPoint, UpsertRequest};
pub use query::{
    CountRequest, FacetRequest, Prefetch, QuantizationParams, QueryBatchRequest, QueryRequest,
    RetrieveRequest, ScrollRequest, SearchParams, VectorInput, VectorQuery,
};
pub use select::{WithPayload, WithVector};
pub use vector::{BatchVectors, Vector};

/// The version of Qdrant whose interface this is; clients compare it with their own.
pub const VERSION: &str = "1.19.0";

/// What the message of an error contains where Qdrant knows something that Millpond does not.
const UNSUPPORTED: &str = "not supported by this server";

/// What Qdrant's message for a value outside its limits begins with; such a request is answered with 422.
const VALIDATION: &str = "Validation error in ";

/// Says whether `message` is about a value outside the limits that Qdrant's interface sets, which it answers with 422
/// and not with 400.
pub fn is_validation(message: &str) -> bool {
    message.contains(VALIDATION)
}

/// Returns the error for a value of the body outside its limits: `place` is the field, `what` says what is wrong.
pub fn out_of_limits(place: &str, what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{VALIDATION}JSON body: [{place}: {what}]"))
}

/// Returns the error for a collection's name of `bytes` bytes, which is longer than Qdrant allows.
pub fn name_too_long(bytes: usize) -> Error {
    Error::invalid(format!(
        "{VALIDATION}path parameters: [name: {bytes} bytes; a collection's name has 1 to {NAME_BYTES_MAX}]"
    ))
}

/// Bytes that a collection's name has at most in Qdrant's interface.
pub const NAME_BYTES_MAX: usize = 255;

/// What marks a message as one about a value outside its limits until [`parse`] knows the field's path.
const LIMITS: &str = "outside its limits";

/// Returns the message for `what`, which [`parse`] turns into an error that [`is_validation`].
fn limits(what: impl std::fmt::Display) -> String {
    format!("{what} ({LIMITS})")
}

/// Reads a whole number from 1.
fn positive<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let value = Option::<usize>::deserialize(deserializer)?;
    if value == Some(0) {
        return Err(serde::de::Error::custom(limits("value 0 invalid, must be 1 or larger")));
    }
    Ok(value)
}

/// The message for `what`, which [`parse`] turns into an error of its own kind.
fn unsupported(what: impl std::fmt::Display) -> String {
    format!("{what}: {UNSUPPORTED}")
}

/// Reads a request's body.
///
/// # Errors
/// `InvalidArgument` with the path of the offending field, `Unimplemented` for what is known but not
/// supported.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        let place = if path == "." { String::new() } else { format!("{path}: ") };
        if message.contains(UNSUPPORTED) {
            // Where in the text it stands does not matter to somebody who cannot have it.
            let message = message.split(" at line ").next().unwrap_or(&message);
            Error::unimplemented(format!("{place}{message}"))
        } else if message.contains(LIMITS) {
            let message = message.split(" at line ").next().unwrap_or(&message);
            out_of_limits(if path == "." { "body" } else { &path }, message)
        } else {
            Error::invalid(format!("the request's JSON: {place}{message}"))
        }
    })?;
    reader.end().map_err(|error| Error::invalid(format!("the request's JSON: {error}")))?;
    Ok(value)
}

/// A field that is read and has no effect: what it asks for holds in any case, or only tunes machinery that Millpond
/// does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IgnoredField;

impl<'de> Deserialize<'de> for IgnoredField {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<IgnoredField, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| IgnoredField)
    }
}

/// A field that must be absent or null, because what it asks for cannot be done.
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

/// One value, or a list of them.
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
