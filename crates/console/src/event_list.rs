//! `GET /v2/events`: the events of the server as JSON.

use axum::extract::State;
use base::{Error, Result};
use observe::{EVENTS_MAX, EventFilter};
use serde::Deserialize;
use transport::{QueryResult, Reply, Shared, query_parameters};

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
pub(crate) async fn event_list(State(page): Shared<Page>, query: QueryResult<EventQuery>) -> Reply {
    Reply::of(filter(query).map(|filter| Reply::json(json(&page.journal.read(&filter)))))
}

fn filter(query: QueryResult<EventQuery>) -> Result<EventFilter> {
    let query = query_parameters(query).map_err(|error| {
        Error::invalid(format!("{error}; the parameters are after, model and limit"))
    })?;
    if query.limit.is_some_and(|limit| !(1..=EVENTS_MAX).contains(&limit)) {
        return Err(Error::invalid(format!("limit is not from 1 to {EVENTS_MAX}")));
    }
    let EventQuery { after, model, limit } = query;
    Ok(EventFilter { after: after.unwrap_or(0), model, limit })
}

#[cfg(test)]
mod tests {
    use axum::extract::Query;

    use super::*;

    #[test]
    fn wrong_parameters_are_explained() {
        for (query, wanted) in [
            ("limit=x", "a whole number from 0 is expected; the parameters are"),
            ("follow=1", "the parameters are after, model and limit"),
            ("limit=0", "limit is not from 1"),
        ] {
            let uri = format!("http://host/v2/events?{query}").parse().unwrap();
            let error = filter(Query::try_from_uri(&uri)).err().unwrap();
            assert!(error.message().contains(wanted), "{error}");
        }
    }
}
