//! Answers to the routes that `points/query` replaces. Their hits are a plain list.

use base::Result;
use search::collection::SearchThread;
use search::registry::NamedCollection;

use crate::call::CallContext;
use crate::groups::{self, GroupsResponse};
use crate::json::{self, OlderQuery, ScoredPoint};
use crate::query::{self, BatchProgress, QueryResponse};

/// Returns the hits of a response.
///
/// # Errors
/// `Unavailable` if hits may be missing, because a list cannot show that it is partial.
fn hits(response: QueryResponse) -> Result<Vec<ScoredPoint>> {
    if response.partial {
        return Err(json::incomplete_list());
    }
    Ok(response.points)
}

fn answer(
    older: OlderQuery,
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<Vec<ScoredPoint>> {
    hits(query::query(named, thread, context, &older.query(body)?)?)
}

fn batch(
    older: OlderQuery,
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
    progress: &mut BatchProgress,
) -> Result<Vec<Vec<ScoredPoint>>> {
    let body = older.batch(body)?;
    let responses = query::batch_in_steps(named, thread, context, &body, progress)?;
    let at_search = |(at, response): (usize, QueryResponse)| {
        hits(response).map_err(|error| error.context(format_args!("searches[{at}]")))
    };
    responses.into_iter().enumerate().map(at_search).collect()
}

pub(crate) fn search(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<Vec<ScoredPoint>> {
    answer(OlderQuery::Search, named, thread, context, body)
}

pub(crate) fn recommend(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<Vec<ScoredPoint>> {
    answer(OlderQuery::Recommend, named, thread, context, body)
}

pub(crate) fn discover(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<Vec<ScoredPoint>> {
    answer(OlderQuery::Discover, named, thread, context, body)
}

pub(crate) fn search_batch(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
    progress: &mut BatchProgress,
) -> Result<Vec<Vec<ScoredPoint>>> {
    batch(OlderQuery::Search, named, thread, context, body, progress)
}

pub(crate) fn recommend_batch(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
    progress: &mut BatchProgress,
) -> Result<Vec<Vec<ScoredPoint>>> {
    batch(OlderQuery::Recommend, named, thread, context, body, progress)
}

pub(crate) fn discover_batch(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
    progress: &mut BatchProgress,
) -> Result<Vec<Vec<ScoredPoint>>> {
    batch(OlderQuery::Discover, named, thread, context, body, progress)
}

pub(crate) fn search_groups(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<GroupsResponse> {
    groups::query(named, thread, context, &OlderQuery::Search.groups(body)?)
}

pub(crate) fn recommend_groups(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<GroupsResponse> {
    groups::query(named, thread, context, &OlderQuery::Recommend.groups(body)?)
}
