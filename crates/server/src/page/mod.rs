//! The pages, and what the overview of models shows.
//!
//! A task reads the counters of the server once a second ([`history`]), keeps the events of the
//! server ([`journal`]), and sends open pages what is new ([`events`]). No request calls this
//! module.

mod detail;
mod event_list;
mod events;
mod files;
pub(crate) mod history;
mod login;
mod machine;
mod settings;
mod shell;
mod threads;
mod tick;
mod trouble;
mod watch;
mod window;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use observe::EventJournal;
use tokio::sync::{Semaphore, watch as channel};
use tokio::time::MissedTickBehavior;
use transport::RequestResources;

use crate::collections::Collections;
use crate::core::Core;
use crate::readiness::Readiness;
pub(crate) use files::{page, routes, wants_page};
use history::TrafficHistory;
pub(crate) use login::login_page;
use machine::MachineWatch;
pub(crate) use settings::ShownConfig;
use watch::ServerWatch;

/// Most open pages. A further one is refused.
const EVENTS_VIEWERS_MAX: usize = 32;
/// Time between two scans.
const TICK: Duration = Duration::from_secs(1);

/// Next event of open pages.
#[derive(Clone, Default)]
enum News {
    /// Nothing yet.
    #[default]
    Quiet,
    /// An event, ready to be sent.
    Tick(Bytes),
    /// The server stops.
    End,
}

/// State of the page's routes.
pub(crate) struct Page {
    core: Core,
    readiness: Arc<Readiness>,
    history: TrafficHistory,
    pub(crate) journal: Arc<EventJournal>,
    machine: MachineWatch,
    shown: ShownConfig,
    server_watch: Mutex<ServerWatch>,
    news: channel::Sender<News>,
    viewers: Arc<Semaphore>,
    details: Arc<Semaphore>,
}

impl Page {
    pub(crate) fn new(
        core: Core,
        readiness: Arc<Readiness>,
        requests: Arc<RequestResources>,
        collections: Arc<Collections>,
        shown: ShownConfig,
    ) -> Page {
        let journal = core.journal.clone();
        let watched = ServerWatch::new(core.metrics.clone(), collections.clone(), journal.clone());
        let directories = shown.directories.clone();
        Page {
            machine: MachineWatch::new(core.clone(), requests, collections, directories, shown.gpu),
            core,
            readiness,
            history: TrafficHistory::new(journal.start()),
            journal,
            shown,
            server_watch: Mutex::new(watched),
            news: channel::Sender::new(News::Quiet),
            viewers: Arc::new(Semaphore::new(EVENTS_VIEWERS_MAX)),
            details: Arc::new(Semaphore::new(detail::DETAILS_MAX)),
        }
    }

    /// Adds the second that has ended to the history, and finds new events.
    fn scan(&self) {
        let readings = self.core.stats.traffic();
        let snapshot = self.core.scheduler.snapshot();
        let now = Instant::now();
        self.history.scan(now, readings, &snapshot.models);
        let end = self.history.seconds(now).round() as u64;
        let mut watched = self.server_watch.lock().unwrap_or_else(PoisonError::into_inner);
        watched.scan(&self.core.lifecycle.status(), &self.history, end);
    }

    /// Scans, and tells open pages.
    fn tick(&self) {
        self.scan();
        if self.news.receiver_count() > 0 {
            self.news.send_replace(News::Tick(events::frame("tick", &tick::tick(self))));
        }
    }
}

/// Returns the routes of what the overview shows.
pub(crate) fn live_routes() -> Router<Arc<Page>> {
    Router::new()
        .route("/events", get(events::events))
        .route("/page/model", get(detail::detail))
        .route("/v2/events", get(event_list::event_list))
}

/// Scans once a second until the server stops, then ends the open event streams.
pub(crate) async fn watch(page: Arc<Page>, mut stop: channel::Receiver<bool>) {
    let mut ticks = tokio::time::interval(TICK);
    // After a late scan, the next is a second later: a point is about a second.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        let ticking = page.clone();
        // Hundreds of models take milliseconds, so not on a thread that serves connections.
        if let Err(error) = tokio::task::spawn_blocking(move || ticking.tick()).await {
            tracing::error!(%error, "the page's figures could not be read");
        }
    }
    page.news.send_replace(News::End);
}
