//! Time limits on a peer, for the next piece of a transfer and for all of it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::{Error, ErrorKind};
use tokio::time::{Instant, Sleep};

/// The limits of one transfer and the time used so far. No timer is set until the first wait.
pub struct ProgressTimeout {
    piece: Duration,
    total: Option<Duration>,
    /// End of the total time. Set at the first wait.
    end: Option<Instant>,
    /// True if a piece has arrived since the timer was set.
    progressed: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl ProgressTimeout {
    /// Allows at most `piece` between two pieces.
    pub(crate) fn between_pieces(piece: Duration) -> ProgressTimeout {
        ProgressTimeout { piece, total: None, end: None, progressed: false, timer: None }
    }

    /// Allows at most `piece` between two pieces, and `total` from the first wait to the last
    /// piece.
    pub fn new(piece: Duration, total: Duration) -> ProgressTimeout {
        ProgressTimeout { total: Some(total), ..ProgressTimeout::between_pieces(piece) }
    }

    /// Records that a piece has arrived or was taken.
    pub(crate) fn record_progress(&mut self) {
        self.progressed = true;
    }

    /// Returns `Ready` once the peer has made no progress for too long. Wakes the task then.
    pub(crate) fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.progressed || self.timer.is_none() {
            self.progressed = false;
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

    /// Returns the error for a peer that sent nothing in time.
    pub fn error(&self) -> Error {
        let text = match self.total {
            Some(total) if self.end.is_some_and(|end| end <= Instant::now()) => {
                format!("the body did not arrive within {} s", total.as_secs_f32())
            }
            _ => format!("the client sent nothing for {} s", self.piece.as_secs_f32()),
        };
        Error::new(ErrorKind::ClientTimeout, text)
    }
}

/// Returns the result of a write, or `TimedOut` if the peer has taken nothing for too long.
pub(crate) fn check_write<T>(
    polled: Poll<io::Result<T>>,
    timeout: &mut ProgressTimeout,
    cx: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    if polled.is_ready() {
        timeout.record_progress();
        return polled;
    }
    timeout
        .poll_elapsed(cx)
        .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
}

/// Means no limit. It is about the longest duration that timers accept.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn silence_ends_after_the_piece_time() {
        let mut timeout = ProgressTimeout::new(SHORT, LONG);
        run(std::future::poll_fn(|cx| timeout.poll_elapsed(cx)));
        let error = timeout.error();
        assert_eq!(error.kind(), ErrorKind::ClientTimeout);
        assert!(error.message().contains("sent nothing"), "{error}");
    }

    /// Every piece is in time. The whole is not.
    #[test]
    fn dribbling_ends_after_the_total_time() {
        let mut timeout = ProgressTimeout::new(LONG, SHORT);
        run(async {
            loop {
                timeout.record_progress();
                let piece = tokio::time::timeout(
                    SHORT / 4,
                    std::future::poll_fn(|cx| timeout.poll_elapsed(cx)),
                );
                if piece.await.is_ok() {
                    return;
                }
            }
        });
        let error = timeout.error();
        assert!(error.message().contains("did not arrive"), "{error}");
    }

    #[test]
    fn no_wait_sets_no_timer() {
        let mut timeout = ProgressTimeout::new(SHORT, LONG);
        timeout.record_progress();
        assert!(timeout.timer.is_none() && timeout.end.is_none());
    }
}
