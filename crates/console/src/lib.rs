//! The pages for people: overview of models, try-out, images, vectors, audio, the API, and the
//! login of browsers. All files are built into the binary.
//!
//! A task reads the counters of the server once a second ([`watch`]) and keeps their history. It
//! adds events to the journal, and sends new data to open pages. Pages read; each change that a
//! page makes is a call of the public API. No request to a model calls this crate, and the number
//! of open pages is bounded.
//!
//! # Modules
//! * Pages: `files` has them all, `shell` is their frame, `settings` the shown configuration.
//! * Login: `login`, `login_form`.
//! * Live data: `events` sends it, `tick` and `detail` encode it, `event_list` is the journal as
//!   JSON.
//! * Figures: `watch`, `history`, `window`, `machine`, `threads`, `trouble`.

mod detail;
mod event_list;
mod events;
mod files;
mod history;
mod login;
mod login_form;
mod machine;
mod settings;
mod shell;
mod threads;
mod tick;
mod trouble;
mod watch;
mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use observe::{EventJournal, ObservedParts, RegistryReader};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch as channel};
use tokio::time::MissedTickBehavior;
use transport::RequestResources;
use transport::access::AccessPolicy;

pub use files::{page, routes, wants_page};
use history::TrafficHistory;
pub use login::{login_routes, unauthenticated};
use machine::MachineWatch;
pub use machine::ShownDirectory;
pub use settings::{OfferedCalls, Setting, SettingsSection, ShownConfig};
use watch::ServerWatch;

/// The version that pages show. All crates of the workspace have one.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Maximum open pages. A further one is refused.
const EVENTS_VIEWERS_MAX: usize = 32;
/// Time between two scans.
const TICK: Duration = Duration::from_secs(1);

/// Next event of open pages.
#[derive(Clone, Default)]
enum PageUpdate {
    /// No event since the start.
    #[default]
    Quiet,
    /// An event, ready to be sent.
    Tick(Bytes),
    /// The server stops.
    End,
}

/// Sources of the data that the pages show.
pub struct PageSources {
    /// Models, workers, memory and counters.
    pub parts: ObservedParts,
    /// The events, to which the pages' task adds.
    pub journal: Arc<EventJournal>,
    /// Memory of requests in flight.
    pub requests: Arc<RequestResources>,
    /// Keys and sessions, which can end while a page is open.
    pub access: Arc<AccessPolicy>,
    /// The collections, if they are open.
    pub registry: RegistryReader,
    /// Returns true if the server is ready for requests.
    pub ready: Box<dyn Fn() -> bool + Send + Sync>,
    /// Returns the settings in force.
    pub settings: Box<dyn Fn() -> Vec<SettingsSection> + Send + Sync>,
    /// The rest of the configuration.
    pub shown: ShownConfig,
}

/// State of the page's routes.
pub struct Page {
    parts: ObservedParts,
    access: Arc<AccessPolicy>,
    ready: Box<dyn Fn() -> bool + Send + Sync>,
    history: TrafficHistory,
    journal: Arc<EventJournal>,
    machine: MachineWatch,
    settings: Box<dyn Fn() -> Vec<SettingsSection> + Send + Sync>,
    shown: ShownConfig,
    server_watch: Mutex<ServerWatch>,
    updates: channel::Sender<PageUpdate>,
    viewers: Arc<Semaphore>,
    details: Arc<Semaphore>,
}

impl Page {
    /// Creates the state, with an empty history.
    pub fn new(sources: PageSources) -> Page {
        let PageSources { parts, journal, requests, access, registry, ready, settings, shown } =
            sources;
        let watched = ServerWatch::new(parts.metrics.clone(), registry.clone(), journal.clone());
        let directories = shown.directories.clone();
        Page {
            machine: MachineWatch::new(parts.clone(), requests, registry, directories, shown.gpu),
            parts,
            access,
            ready,
            history: TrafficHistory::new(journal.start()),
            journal,
            settings,
            shown,
            server_watch: Mutex::new(watched),
            updates: channel::Sender::new(PageUpdate::Quiet),
            viewers: Arc::new(Semaphore::new(EVENTS_VIEWERS_MAX)),
            details: Arc::new(Semaphore::new(detail::DETAILS_MAX)),
        }
    }

    /// Adds the last second to the history, finds new events, and frees the percentiles of models
    /// without requests. Scrapes free them too, but a server may have no scraper.
    fn scan(&self) {
        let readings = self.parts.stats.traffic();
        let snapshot = self.parts.scheduler.snapshot();
        let now = Instant::now();
        self.parts.stats.free_idle_windows(now);
        self.history.scan(now, readings, &snapshot.models);
        let end = self.history.seconds(now).round() as u64;
        let mut watched = self.server_watch.lock();
        watched.scan(&self.parts.lifecycle.status(), &snapshot.models, &self.history, end);
    }

    /// Reads the state of all versions, and notifies open pages.
    fn tick(&self) {
        self.scan();
        if self.updates.receiver_count() > 0 {
            self.updates.send_replace(PageUpdate::Tick(events::frame("tick", &tick::tick(self))));
        }
    }
}

/// Returns the routes of the data that the overview shows.
pub fn live_routes() -> Router<Arc<Page>> {
    Router::new()
        .route("/events", get(events::events))
        .route("/page/model", get(detail::detail))
        .route("/v2/events", get(event_list::event_list))
}

/// Scans once a second until the server stops, then ends the open event streams.
pub async fn watch(page: Arc<Page>, mut stop: channel::Receiver<bool>) {
    let mut ticks = tokio::time::interval(TICK);
    // After a late scan, the next is a second later: a point is about a second.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        let ticking = page.clone();
        // Hundreds of models take milliseconds, so this does not run on a thread that serves
        // connections.
        if let Err(error) = tokio::task::spawn_blocking(move || ticking.tick()).await {
            tracing::error!(%error, "the page's figures could not be read");
        }
    }
    page.updates.send_replace(PageUpdate::End);
}
