//! `GET /page/model`: history and scheduling of one model, for its part of the page.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use base::{Error, Result};
use engine::ScheduleMode;
use schedule::{ClassSnapshot, ModelSnapshot};
use serde::{Deserialize, Serialize};
use transport::{Reply, Shared};

use crate::Page;
use crate::history::{HistoryRange, ModelHistory, SPAN_SECONDS_MAX};
use crate::tick::json;
use crate::window::SchedulerWindow;

/// Maximum histories that are computed at the same time. A further request waits.
pub(crate) const DETAILS_MAX: usize = 2;

#[derive(Deserialize)]
pub(crate) struct DetailQuery {
    name: String,
    /// Length of the history, in seconds.
    seconds: u64,
}

#[derive(Serialize)]
struct ModelDetail {
    /// Seconds since the server started.
    at: f64,
    history: ModelHistory,
    /// Absent before the model's first request.
    schedule: Option<Schedule>,
}

#[derive(Serialize)]
struct Schedule {
    mode: &'static str,
    queued: usize,
    queued_by_priority: Vec<usize>,
    running: usize,
    window: SchedulerWindow,
    classes: Vec<Class>,
}

/// Learned costs of requests of one shape.
#[derive(Serialize)]
struct Class {
    shape: String,
    runs: u64,
    best: usize,
    /// Batch size and microseconds per item.
    item_us: Vec<(usize, f64)>,
}

/// Answers with the history of one model.
pub(crate) async fn detail(
    State(page): Shared<Page>,
    query: Result<Query<DetailQuery>, QueryRejection>,
) -> Reply {
    let query = query.map_err(|error| Error::invalid(error.body_text()));
    let text = match query {
        Ok(Query(query)) => read(page, query).await,
        Err(error) => Err(error),
    };
    Reply::of(text.map(Reply::json))
}

async fn read(page: Arc<Page>, query: DetailQuery) -> Result<String> {
    let known = page.parts.lifecycle.catalog().status(&query.name).is_some();
    if !known {
        return Err(page.parts.lifecycle.catalog().unknown(&query.name));
    }
    if !(1..=SPAN_SECONDS_MAX).contains(&query.seconds) {
        let seconds = query.seconds;
        return Err(Error::invalid(format!(
            "seconds is {seconds}; the history has 1 to {SPAN_SECONDS_MAX} seconds"
        )));
    }
    let closed = |_| Error::unavailable("the server is shutting down");
    let permit = page.details.clone().acquire_owned().await.map_err(closed)?;
    // A day takes milliseconds, so it is not computed on a thread that serves connections.
    let computed = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        json(&compute(&page, &query))
    });
    computed.await.map_err(|error| {
        Error::internal("the history of a model could not be computed").with_source(error)
    })
}

/// Returns the history and the scheduling of a model for its page.
fn compute(page: &Page, query: &DetailQuery) -> ModelDetail {
    let at = page.history.seconds(Instant::now());
    let range = HistoryRange { now: at.round() as u64, span: query.seconds };
    let histories = page.history.lock();
    let records = histories.records(&query.name, range);
    let schedule = histories.window(&query.name).map(|(window, last)| schedule(window, last));
    drop(histories);
    ModelDetail { at, history: records.history(), schedule }
}

fn schedule(window: SchedulerWindow, counters: &ModelSnapshot) -> Schedule {
    let class = |class: &ClassSnapshot| Class {
        shape: class.shape.clone(),
        runs: class.runs,
        best: class.best,
        item_us: class.item_us.clone(),
    };
    Schedule {
        mode: match counters.mode {
            ScheduleMode::Sync => "sync",
            ScheduleMode::Async => "async",
        },
        queued: counters.queued,
        queued_by_priority: counters.queued_by_priority.clone(),
        running: counters.running,
        window,
        classes: counters.classes.iter().map(class).collect(),
    }
}
