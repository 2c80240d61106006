//! Answers to the older query routes, which `points/query` replaces. Their hits are a plain list.

use api_qdrant::json::{self, OlderQuery};
use base::{Error, Result};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::call::RootContext;
use super::envelope::RootAnswer;
use super::{groups, query};

/// Answer of `points/query`.
#[derive(Deserialize)]
struct PlainListText<'a> {
    #[serde(borrow)]
    points: &'a RawValue,
    /// True if points may be missing.
    #[serde(default)]
    partial: bool,
}

pub(super) async fn search(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    answer_older(OlderQuery::Search, context, body).await
}

pub(super) async fn recommend(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    answer_older(OlderQuery::Recommend, context, body).await
}

pub(super) async fn discover(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    answer_older(OlderQuery::Discover, context, body).await
}

pub(super) async fn search_batch(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    batch(OlderQuery::Search, context, body).await
}

pub(super) async fn recommend_batch(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    batch(OlderQuery::Recommend, context, body).await
}

pub(super) async fn discover_batch(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    batch(OlderQuery::Discover, context, body).await
}

pub(super) async fn search_groups(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    grouped(OlderQuery::Search, context, body).await
}

pub(super) async fn recommend_groups(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    grouped(OlderQuery::Recommend, context, body).await
}

async fn answer_older(older: OlderQuery, context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let bytes = body.len();
    let query = context.compute(bytes, move || older.query(&body)).await?;
    let answer = Box::pin(query::query(context.clone(), query.into())).await?;
    converted(&context, answer, list).await
}

async fn batch(older: OlderQuery, context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let bytes = body.len();
    let queries = context.compute(bytes, move || older.batch(&body)).await?;
    let answer = Box::pin(query::batch(context.clone(), queries.into())).await?;
    converted(&context, answer, lists).await
}

async fn grouped(older: OlderQuery, context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let bytes = body.len();
    let query = context.compute(bytes, move || older.groups(&body)).await?;
    Box::pin(groups::query(context, query.into())).await
}

/// Converts the result of an answer. `convert` gets the text and true if the answer names missing
/// shards.
async fn converted(
    context: &RootContext,
    answer: RootAnswer,
    convert: fn(&[u8], bool) -> Result<Vec<u8>>,
) -> Result<RootAnswer> {
    let RootAnswer { result, coverage, reservation, continues } = answer;
    let names_missing = coverage.is_some();
    let result = context.compute(result.len(), move || convert(&result, names_missing)).await?;
    Ok(RootAnswer { result, coverage, reservation, continues })
}

/// Returns the text of the hits of one query.
///
/// # Errors
/// As [`points`].
fn list(result: &[u8], names_missing: bool) -> Result<Vec<u8>> {
    let hits = points(serde_json::from_slice(result).map_err(unreadable)?, names_missing)?;
    Ok(hits.get().as_bytes().to_vec())
}

/// Returns the text of the lists of hits of several queries.
///
/// # Errors
/// As [`points`].
fn lists(result: &[u8], names_missing: bool) -> Result<Vec<u8>> {
    let answers: Vec<PlainListText<'_>> = serde_json::from_slice(result).map_err(unreadable)?;
    let lists = answers.into_iter().map(|answer| points(answer, names_missing));
    let lists: Vec<&RawValue> = lists.collect::<Result<_>>()?;
    serde_json::to_vec(&lists).map_err(unreadable)
}

/// Returns the hits of an answer.
///
/// # Errors
/// `Unavailable` if points may be missing and the answer names no missing shards.
fn points(answer: PlainListText<'_>, names_missing: bool) -> Result<&RawValue> {
    if answer.partial && !names_missing {
        return Err(json::incomplete_list());
    }
    Ok(answer.points)
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::internal("the answer of a query").caused_by(error)
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn answers_become_lists() {
        assert_eq!(list(br#"{"points":[{"id":1}]}"#, false).unwrap(), br#"[{"id":1}]"#);
        let two = br#"[{"points":[1]},{"points":[],"partial":false}]"#;
        assert_eq!(lists(two, false).unwrap(), b"[[1],[]]");
    }

    #[test]
    fn a_list_without_some_points_needs_the_coverage() {
        let partial = br#"{"points":[1],"partial":true}"#;
        assert_eq!(list(partial, true).unwrap(), b"[1]");
        assert_eq!(list(partial, false).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
