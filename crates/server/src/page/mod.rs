//! The live page: what it remembers, what it is told, and the files it is made of.
//!
//! A ticker on the doors' runtime looks at the server once a second and keeps two minutes
//! ([`history`]); open pages are told by server-sent events ([`events`]). Nothing here is on the
//! path of a request: the ticker reads what the components count anyway.

mod events;
mod files;
mod history;
mod threads;
mod tick;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::VersionId;
use bytes::Bytes;
use lifecycle::SwapReport;
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;

use crate::app::App;
pub(crate) use events::events;
pub(crate) use files::{page, routes, wants_page};
use history::{HISTORY_SECONDS_MAX, History, Look, MODELS_SHOWN_MAX};
use threads::{ThreadWatch, Threads};

/// Open pages; the next one is refused.
pub(crate) const EVENTS_VIEWERS_MAX: usize = 32;
/// Time between two looks.
const TICK: Duration = Duration::from_secs(1);

/// What open pages are told next.
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

/// The page's memory and its viewers.
pub(crate) struct Page {
    start: Instant,
    history: Mutex<History>,
    threads: Mutex<ThreadWatch>,
    news: watch::Sender<News>,
    room: Arc<Semaphore>,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            start: Instant::now(),
            history: Mutex::default(),
            threads: Mutex::default(),
            news: watch::Sender::new(News::Quiet),
            room: Arc::new(Semaphore::new(EVENTS_VIEWERS_MAX)),
        }
    }
}

impl Page {
    /// A version was loaded and takes requests.
    pub(crate) fn loaded(&self, id: &VersionId) {
        let at = self.seconds(Instant::now());
        self.history().loaded(&id.model, id.version, at);
    }

    /// A swap is complete: the mark that [`Page::loaded`] made is told what it replaced.
    pub(crate) fn swapped(&self, report: &SwapReport) {
        self.history().swapped(&report.model, report.from, report.to);
    }

    /// Seconds since the server started.
    fn seconds(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.start).as_secs_f64();
        (seconds * 1e3).round() / 1e3
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self, now: Instant) -> Vec<Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).look(now)
    }

    /// Remembers the seconds that have ended.
    fn look(&self, app: &App) {
        let statuses = app.lifecycle.status();
        let snapshot = app.scheduler.snapshot();
        let look = |name| Look {
            model: name,
            latencies: app.inference.stats().known_window(name),
            counters: snapshot.models.iter().find(|counters| counters.model == *name),
        };
        let looks: Vec<Look<'_>> =
            statuses.iter().take(MODELS_SHOWN_MAX).map(|status| look(&status.name)).collect();
        self.history().look(self.start, Instant::now(), &looks);
    }
}

/// Looks once a second until the server stops, then ends the open event streams.
pub(crate) async fn watch(app: Arc<App>, mut stop: watch::Receiver<bool>) {
    let page = &app.page;
    let mut ticks = tokio::time::interval(TICK);
    // Late looks read several seconds at once; there is no use in catching up with more looks.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        page.look(&app);
        if page.news.receiver_count() > 0 {
            page.news.send_replace(News::Tick(events::frame("tick", &tick::tick(&app, page))));
        }
    }
    page.news.send_replace(News::End);
}
