//! The live page: its history, its events and its files.
//!
//! A task on the connection threads reads the counters of the server once a second and keeps two
//! minutes of them ([`history`]). Open pages get server-sent events ([`events`]). No request calls
//! this module.

mod events;
mod files;
pub(crate) mod history;
mod threads;
mod tick;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;

use crate::core::Core;
use crate::readiness::Readiness;
pub(crate) use events::events;
pub(crate) use files::{page, routes, wants_page};
use history::{HISTORY_SECONDS_MAX, MODELS_SHOWN_MAX, ModelScan};
use threads::{ThreadWatch, Threads};

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
    threads: Mutex<ThreadWatch>,
    news: watch::Sender<News>,
    viewers: Arc<Semaphore>,
}

impl Page {
    pub(crate) fn new(core: Core, readiness: Arc<Readiness>) -> Page {
        Page {
            core,
            readiness,
            threads: Mutex::default(),
            news: watch::Sender::new(News::Quiet),
            viewers: Arc::new(Semaphore::new(EVENTS_VIEWERS_MAX)),
        }
    }

    fn threads(&self, now: Instant) -> Vec<Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).scan(now)
    }

    /// Adds the seconds that have ended to the history.
    fn scan(&self) {
        let statuses = self.core.lifecycle.status();
        let snapshot = self.core.scheduler.snapshot();
        let scan = |name| ModelScan {
            model: name,
            latencies: self.core.stats.known_window(name),
            counters: snapshot.models.iter().find(|counters| counters.model == *name),
        };
        let scans: Vec<ModelScan<'_>> =
            statuses.iter().take(MODELS_SHOWN_MAX).map(|status| scan(&status.name)).collect();
        self.core.history.scan(&scans);
    }
}

/// Scans once a second until the server stops, then ends the open event streams.
pub(crate) async fn watch(page: Arc<Page>, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(TICK);
    // A late scan reads several seconds at once, so missed scans are not repeated.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        page.scan();
        if page.news.receiver_count() > 0 {
            page.news.send_replace(News::Tick(events::frame("tick", &tick::tick(&page))));
        }
    }
    page.news.send_replace(News::End);
}
