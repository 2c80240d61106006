//! Examples of a query that are points of another collection.

use std::sync::Arc;

use base::{Error, Result};
use search::registry::NamedCollection;

use super::QueryRun;
use crate::json::QueryRequest;
use crate::scores;

/// Collection with the points that a query names by their ids.
pub(crate) struct ExampleSource {
    /// The other collection; `None` for the queried one.
    other: Option<Arc<NamedCollection>>,
}

impl ExampleSource {
    /// Returns the collection if it is not the queried one.
    pub(crate) fn collection(&self) -> Option<&NamedCollection> {
        self.other.as_deref()
    }
}

impl QueryRun<'_> {
    /// Returns the collection that has the examples of a query.
    ///
    /// # Errors
    /// `PermissionDenied` if the request's key may not use it; `NotFound`; `InvalidArgument` if its
    /// vector has another name or size; `Unavailable` while it is being opened.
    pub(crate) fn example_source(&self, request: &QueryRequest) -> Result<ExampleSource> {
        let Some(lookup) = &request.lookup_from else { return Ok(ExampleSource { other: None }) };
        let found = self.context.other_collection(&lookup.collection).and_then(|other| {
            let settings = other.settings();
            let vector = lookup.vector.as_ref().unwrap_or(&request.using);
            scores::check_using(&settings, vector)?;
            let dims = self.named.settings().dims;
            if settings.dims != dims {
                return Err(Error::invalid(format!(
                    "Vector dimension error: expected dim: {dims}, got {} in the collection \"{}\"",
                    settings.dims,
                    other.name()
                )));
            }
            Ok(other)
        });
        let other = found.map_err(|error| error.context("lookup_from"))?;
        // Points of the queried collection itself are not hits.
        let is_other = other.name() != self.named.name();
        Ok(ExampleSource { other: is_other.then_some(other) })
    }
}
