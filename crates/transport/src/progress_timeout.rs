//! How long a peer may take: for the next piece of something, and for all of it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::{Error, ErrorKind};
use tokio::time::{Instant, Sleep};

/// The limits of one wait, and how much of them is used up. A peer that is never waited for costs no timer.
pub(crate) struct ProgressTimeout {
    piece: Duration,
    total: Option<Duration>,
    /// When all of it must be over; known from the first wait on.
    end: Option<Instant>,
    /// Something has come since the timer was set.
    moved: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl ProgressTimeout {
    /// At most `piece` between two pieces.
    pub(crate) fn between_pieces(piece: Duration) -> ProgressTimeout {
        ProgressTimeout { piece, total: None, end: None, moved: false, timer: None }
    }

    /// At most `piece` between two pieces, and `total` from the first wait to the last piece.
    pub(crate) fn new(piece: Duration, total: Duration) -> ProgressTimeout {
        ProgressTimeout { total: Some(total), ..ProgressTimeout::between_pieces(piece) }
    }

    /// A piece has come.
    pub(crate) fn record_progress(&mut self) {
        self.moved = true;
    }

    /// Nothing is there. Ready once that has lasted too long; the task is woken by then.
    pub(crate) fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.moved || self.timer.is_none() {
            self.moved = false;
            let now = Instant::now();
            let end = *self.end.get_or_insert_with(|| now + self.total.unwrap_or(FOREVER));
            let next = end.min(now + self.piece);
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(next),
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(next))),
            }
        }
        self.timer.as_mut().map_or(Poll::Ready(()), |timer| timer.as_mut().poll(cx))
    }

    /// What a peer that should have sent something is told.
    pub(crate) fn error(&self) -> Error {
        let text = match self.total {
            Some(total) if self.end.is_some_and(|end| end <= Instant::now()) => {
                format!("the body did not arrive within {} s", total.as_secs_f32())
            }
            _ => format!("the client sent nothing for {} s", self.piece.as_secs_f32()),
        };
        Error::new(ErrorKind::ClientTimeout, text)
    }
}

/// What became of a write to a peer that may take nothing for a while.
pub(crate) fn written<T>(
    polled: Poll<io::Result<T>>,
    progress: &mut ProgressTimeout,
    cx: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    if polled.is_ready() {
        progress.record_progress();
        return polled;
    }
    progress
        .poll_elapsed(cx)
        .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
}

/// As good as without an end; timers take no more than that.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(600);

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn silence_ends_after_the_piece_time() {
        let mut progress = ProgressTimeout::new(SHORT, LONG);
        run(std::future::poll_fn(|cx| progress.poll_elapsed(cx)));
        let error = progress.error();
        assert_eq!(error.kind(), ErrorKind::ClientTimeout);
        assert!(error.message().contains("sent nothing"), "{error}");
    }

    /// A peer that always sends something in time is over nevertheless.
    #[test]
    fn dribbling_ends_after_the_total_time() {
        let mut progress = ProgressTimeout::new(LONG, SHORT);
        run(async {
            loop {
                progress.record_progress();
                let piece =
                    tokio::time::timeout(SHORT / 4, std::future::poll_fn(|cx| progress.poll_elapsed(cx)));
                if piece.await.is_ok() {
                    return;
                }
            }
        });
        let error = progress.error();
        assert!(error.message().contains("did not arrive"), "{error}");
    }

    #[test]
    fn what_is_never_waited_for_has_no_timer() {
        let mut progress = ProgressTimeout::new(SHORT, LONG);
        progress.record_progress();
        assert!(progress.timer.is_none() && progress.end.is_none());
    }
}
