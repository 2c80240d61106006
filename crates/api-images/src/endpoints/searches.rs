//! The handlers that compare an image with stored ones: search, identify and verify.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{Path, State};
use base::{Error, Result};
use http::HeaderMap;
use search::points::PointId;
use transport::{QueryResult, Reply, RequestLimits, Shared, query_flag, query_parameters};

use super::{answer, converted, media, parsed, read_file};
use crate::persons::{self, FingersRequest};
use crate::print_pair::PrintPair;
use crate::prints::{self, PrintSource, both_named};
use crate::query::{self, ImageQuery, QueryImage};
use crate::state::ImagesState;

/// Default number of hits of a search.
const HITS_DEFAULT: usize = 10;

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchParameters {
    k: Option<usize>,
    threshold: Option<f32>,
    candidates: Option<usize>,
    explain: Option<String>,
    views: Option<String>,
    filter: Option<String>,
}

#[derive(Default)]
struct SearchFlags {
    explain: bool,
    views: Option<bool>,
}

impl SearchParameters {
    /// Returns the values of the flags.
    ///
    /// # Errors
    /// Returns the errors of [`query_flag`].
    fn flags(&self) -> Result<SearchFlags> {
        let views = self.views.as_deref().map(|views| query_flag("views", Some(views)));
        Ok(SearchFlags {
            explain: query_flag("explain", self.explain.as_deref())?,
            views: views.transpose()?,
        })
    }

    /// Converts the parameters to a query whose time begins now.
    fn into_query(self, flags: &SearchFlags, limits: &RequestLimits) -> ImageQuery {
        ImageQuery {
            deadline: Instant::now() + limits.request_timeout,
            k: self.k.unwrap_or(HITS_DEFAULT),
            threshold: self.threshold,
            candidates: self.candidates,
            explain: flags.explain,
            views: flags.views,
            filter: self.filter,
        }
    }
}

pub(super) async fn find(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<SearchParameters>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let found = async {
        let parameters = query_parameters(query)?;
        state.services.requests.check_room()?;
        let flags = parameters.flags()?;
        let image = if media(&headers) == "application/json" {
            #[derive(serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            struct PointName {
                id: PointId,
            }
            QueryImage::Point(parsed::<PointName>(&state.services, &headers, body).await?.id)
        } else {
            QueryImage::File(read_file(&state.services, &headers, body).await?)
        };
        let _admitted = state.services.requests.admit()?;
        let query = parameters.into_query(&flags, &state.services.requests.limits);
        query::search(&state.services, &collection, query, image).await
    };
    answer(found.await)
}

/// Finds persons by one finger (the body is a file) or several (JSON).
pub(super) async fn identify(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<SearchParameters>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let found = async {
        let parameters = query_parameters(query)?;
        state.services.requests.check_room()?;
        if parameters.explain.is_some() || parameters.views.is_some() {
            return Err(Error::invalid(
                "explain= and views= are for /search: persons have no keypoints and no views",
            ));
        }
        let files = if media(&headers) == "application/json" {
            let budget = state.services.requests.memory.clone();
            let files = move |request: FingersRequest| request.files(&budget);
            converted(&state.services, &headers, body, files).await?
        } else {
            vec![read_file(&state.services, &headers, body).await?]
        };
        let _admitted = state.services.requests.admit()?;
        let limits = &state.services.requests.limits;
        let query = parameters.into_query(&SearchFlags::default(), limits);
        persons::identify(&state.services, &collection, query, files).await
    };
    answer(found.await)
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VerifyParameters {
    id: Option<String>,
    threshold: Option<f32>,
}

/// Compares two fingerprints: the body with the image `id`, or both of the JSON.
pub(super) async fn verify(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<VerifyParameters>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let verified = async {
        let parameters = query_parameters(query)?;
        state.services.requests.check_room()?;
        let prints = if media(&headers) == "application/json" {
            if parameters.id.is_some() {
                return Err(both_named());
            }
            let budget = state.services.requests.memory.clone();
            let prints = move |pair: PrintPair| {
                Ok([pair.first.source(&budget)?, pair.second.source(&budget)?])
            };
            converted(&state.services, &headers, body, prints).await?
        } else {
            let id = parameters.id.ok_or_else(|| {
                Error::invalid("id= is missing: name the image to compare the body with")
            })?;
            let file = read_file(&state.services, &headers, body).await?;
            [PrintSource::File(file), PrintSource::Point(id.parse()?)]
        };
        let _admitted = state.services.requests.admit()?;
        prints::verify(&state.services, &collection, parameters.threshold, prints).await
    };
    answer(verified.await)
}
