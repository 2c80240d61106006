//! `GET /v2/events`: the events of the server as JSON.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use base::{Error, Result};
use observe::{EVENTS_MAX, EventFilter};
use serde::Deserialize;
use transport::{Reply, Shared};

use crate::Page;
use crate::tick::json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    after: Option<u64>,
    model: Option<String>,
    limit: Option<usize>,
}

/// Answers with events, oldest first.
pub(crate) async fn event_list(
    State(page): Shared<Page>,
    query: Result<Query<EventQuery>, QueryRejection>,
) -> Reply {
    Reply::of(filter(query).map(|filter| Reply::json(json(&page.journal.read(&filter)))))
}

fn filter(query: Result<Query<EventQuery>, QueryRejection>) -> Result<EventFilter> {
    let Query(query) = query.map_err(|error| {
        Error::invalid(format!("{}; the parameters are after, model and limit", error.body_text()))
    })?;
    if query.limit.is_some_and(|limit| !(1..=EVENTS_MAX).contains(&limit)) {
        return Err(Error::invalid(format!("limit is not from 1 to {EVENTS_MAX}")));
    }
    let EventQuery { after, model, limit } = query;
    Ok(EventFilter { after: after.unwrap_or(0), model, limit })
}
