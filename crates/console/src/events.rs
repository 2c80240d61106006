//! `GET /events`: the page's server-sent events. First `history`, then `tick` once a second.
//!
//! While an event waits for a slow viewer, newer events replace each other. A viewer that reads
//! nothing for [`VIEWER_STALL_MAX`] is disconnected, so that another can connect. So is a viewer
//! whose key or session has ended.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base::{Error, Result};
use bytes::Bytes;
use http::HeaderMap;
use metrics::KindLabels;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use transport::access::{KeyRole, Operation};
use transport::{Reply, Shared, set_stream_headers};

use crate::{EVENTS_VIEWERS_MAX, Page, PageUpdate, tick};

/// Maximum events that wait for one viewer.
const EVENTS_WAITING_MAX: usize = 1;
/// Longest time in which a viewer may read nothing.
const VIEWER_STALL_MAX: Duration = Duration::from_secs(30);
/// Time before a browser reconnects, in milliseconds.
const RECONNECT_MS: u64 = 1000;
/// Retry advice to a refused viewer.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Answers with the stream of events.
pub(crate) async fn events(State(page): Shared<Page>, headers: HeaderMap) -> Response {
    match stream(&page, &headers).await {
        Ok(response) => response,
        Err(error) => Reply::error(&error).into_response(),
    }
}

/// Starts the stream of events of a page.
///
/// # Errors
/// `Unavailable` if too many pages are open or the server stops; the error of a request from
/// another site.
async fn stream(page: &Arc<Page>, headers: &HeaderMap) -> Result<Response> {
    transport::access::check_same_site(headers)?;
    let permit = page.viewers.clone().try_acquire_owned().map_err(|_| full(page))?;
    // Subscribed before the history is read, so that no second is missing between them.
    let updates = page.updates.subscribe();
    if matches!(*updates.borrow(), PageUpdate::End) {
        return Err(Error::unavailable("the server is shutting down"));
    }
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
    let reading = page.clone();
    // Hundreds of models take milliseconds, so this does not run on a thread that serves
    // connections.
    let first = tokio::task::spawn_blocking(move || first_event(&reading)).await;
    let first = first
        .map_err(|error| Error::internal("the history could not be read").with_source(error))?;
    let access = page.access.clone();
    let headers = headers.clone();
    let permitted = move || access.permits(&headers, &Operation::new(KeyRole::Read));
    tokio::spawn(feed(first, updates, sender, VIEWER_STALL_MAX, permitted, permit));
    let body = ReceiverStream::new(receiver).map(Ok::<Bytes, Infallible>);
    let mut response = Response::new(Body::from_stream(body));
    set_stream_headers(response.headers_mut(), "text/event-stream");
    Ok(response)
}

/// Counts a refused viewer, and returns its error.
fn full(page: &Page) -> Error {
    page.parts.metrics.refused.get_or_create(&KindLabels { kind: "pages_max" }).inc();
    let text = format!("{EVENTS_VIEWERS_MAX} pages are open already; close one or try again later");
    Error::unavailable(text).with_retry_after(RETRY_AFTER)
}

fn first_event(page: &Page) -> Bytes {
    let mut text = format!("retry: {RECONNECT_MS}\n").into_bytes();
    text.extend_from_slice(&frame("history", &tick::past(page)));
    text.into()
}

/// Returns one event. JSON has no line breaks, so its data is one line.
pub(crate) fn frame(event: &str, json: &str) -> Bytes {
    format!("event: {event}\ndata: {json}\n\n").into()
}

/// Sends events to one viewer until it disconnects, reads nothing for `stall`, `permitted` returns
/// false, or the server stops. Then the permit is free again.
async fn feed(
    first: Bytes,
    mut updates: watch::Receiver<PageUpdate>,
    to: mpsc::Sender<Bytes>,
    stall: Duration,
    permitted: impl Fn() -> bool,
    _permit: OwnedSemaphorePermit,
) {
    let mut next = Some(first);
    loop {
        if let Some(event) = next.take() {
            let mut ended = updates.clone();
            let sent = tokio::select! {
                sent = tokio::time::timeout(stall, to.send(event)) => matches!(sent, Ok(Ok(()))),
                _ = ended.wait_for(|update| matches!(update, PageUpdate::End)) => false,
            };
            if !sent {
                return;
            }
        }
        tokio::select! {
            changed = updates.changed() => if changed.is_err() { return },
            () = to.closed() => return,
        }
        // A log out or a new file of keys ends the rights of an open page too.
        if !permitted() {
            return;
        }
        next = match &*updates.borrow_and_update() {
            PageUpdate::Tick(event) => Some(event.clone()),
            PageUpdate::Quiet => None,
            PageUpdate::End => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use tokio::sync::Semaphore;

    const LONG: Duration = Duration::from_secs(30);

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(LONG, future).await.unwrap() })
    }

    /// Runs the other task of the runtime until it waits.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    struct Viewer {
        updates: watch::Sender<PageUpdate>,
        events: mpsc::Receiver<Bytes>,
        room: Arc<Semaphore>,
        permitted: Arc<AtomicBool>,
        task: tokio::task::JoinHandle<()>,
    }

    fn viewer(stall: Duration) -> Viewer {
        let (updates, room) = (watch::Sender::new(PageUpdate::Quiet), Arc::new(Semaphore::new(1)));
        let (sender, events) = mpsc::channel(EVENTS_WAITING_MAX);
        let permit = room.clone().try_acquire_owned().unwrap();
        let permitted = Arc::new(AtomicBool::new(true));
        let asked = permitted.clone();
        let task = tokio::spawn(feed(
            Bytes::from_static(b"first"),
            updates.subscribe(),
            sender,
            stall,
            move || asked.load(Ordering::Relaxed),
            permit,
        ));
        Viewer { updates, events, room, permitted, task }
    }

    impl Viewer {
        async fn tell(&self, text: &'static str) {
            self.updates.send_replace(PageUpdate::Tick(Bytes::from_static(text.as_bytes())));
            settle().await;
        }
    }

    #[test]
    fn the_history_comes_first_and_the_stop_ends_it() {
        run(async {
            let mut viewer = viewer(LONG);
            assert_eq!(viewer.events.recv().await.unwrap(), "first");
            viewer.tell("one").await;
            assert_eq!(viewer.events.recv().await.unwrap(), "one");
            viewer.updates.send_replace(PageUpdate::End);
            assert_eq!(viewer.events.recv().await, None);
            viewer.task.await.unwrap();
            assert_eq!(viewer.room.available_permits(), 1);
        });
    }

    #[test]
    fn a_viewer_without_rights_is_disconnected() {
        run(async {
            let mut viewer = viewer(LONG);
            assert_eq!(viewer.events.recv().await.unwrap(), "first");
            viewer.permitted.store(false, Ordering::Relaxed);
            viewer.tell("one").await;
            assert_eq!(viewer.events.recv().await, None);
            viewer.task.await.unwrap();
            assert_eq!(viewer.room.available_permits(), 1);
        });
    }

    #[test]
    fn a_slow_viewer_skips() {
        run(async {
            let mut viewer = viewer(LONG);
            settle().await;
            for text in ["one", "two", "three", "four"] {
                viewer.tell(text).await;
            }
            let mut seen = Vec::new();
            for _ in 0..3 {
                seen.push(viewer.events.recv().await.unwrap());
            }
            assert_eq!(seen, ["first", "one", "four"], "the waiting event was replaced");
            settle().await;
            assert!(viewer.events.try_recv().is_err());
        });
    }

    #[test]
    fn a_stalled_viewer_loses_its_permit() {
        run(async {
            let viewer = viewer(Duration::from_millis(20));
            settle().await;
            viewer.tell("one").await;
            viewer.task.await.unwrap();
            assert_eq!(viewer.room.available_permits(), 1);
        });
    }

    #[test]
    fn a_stalled_viewer_does_not_outlive_the_server() {
        run(async {
            let viewer = viewer(LONG * 10);
            settle().await;
            viewer.tell("one").await;
            viewer.updates.send_replace(PageUpdate::End);
            viewer.task.await.unwrap();
        });
    }

    #[test]
    fn a_viewer_that_disconnects_frees_its_permit() {
        run(async {
            let viewer = viewer(LONG);
            drop(viewer.events);
            viewer.task.await.unwrap();
            assert_eq!(viewer.room.available_permits(), 1);
        });
    }

    #[test]
    fn an_event_is_two_lines_and_a_blank() {
        assert_eq!(frame("tick", "{}"), "event: tick\ndata: {}\n\n");
    }
}
