//! Answers of an HTTP/2 connection that its client has not read yet.
//!
//! h2 keeps the bytes of an answer until the client opens the windows of its stream and of its
//! connection. If a client never does, nothing is written that could stall, and the memory of its
//! answers would be held for ever. So the connection is closed.
//!
//! A response has one mark, which the connection adds. The answers of a stream become known one by
//! one, so the stream adds their marks through [`StreamAnswers`].

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use metrics::{KindLabels, Metrics};
use tokio::time::Sleep;

use crate::byte_budget::HeldAnswer;
use crate::response_body::ANSWER_WINDOW_BYTES_MIN;

/// Windows after which an unread answer ends its connection, however much the client reads of other
/// answers.
const WINDOWS_MAX: u32 = 10;

/// The unread answers of one connection, and the bytes that were sent on it.
pub(crate) struct UnreadAnswers {
    window: Duration,
    metrics: Arc<Metrics>,
    /// Unread answers. Some of them may have been read since the last check.
    answers: Mutex<Vec<HeldAnswer>>,
    /// Bytes that were sent on the connection.
    sent: AtomicU64,
    /// Wakes the task that checks the answers. Without an unread answer, that task has no timer.
    idle_check: Mutex<Option<Waker>>,
}

/// Counter that adds the answers of a stream to the unread answers of its connection. Each request
/// of an HTTP/2 connection has it as an extension.
#[derive(Clone)]
pub struct StreamAnswers(pub(crate) Arc<UnreadAnswers>);

impl StreamAnswers {
    /// Adds an answer that waits for the client from now on.
    pub fn add(&self, held: HeldAnswer) {
        // It may have waited for the answers before it, which the client does not cause.
        held.restart();
        self.0.add(held);
        // h2 does not poll the connection for an answer that the client does not let it send.
        let check = self.0.idle_check.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(check) = check {
            check.wake();
        }
    }
}

impl UnreadAnswers {
    pub(crate) fn new(window: Duration, metrics: &Arc<Metrics>) -> Arc<UnreadAnswers> {
        Arc::new(UnreadAnswers {
            window,
            metrics: metrics.clone(),
            answers: Mutex::default(),
            sent: AtomicU64::new(0),
            idle_check: Mutex::default(),
        })
    }

    pub(crate) fn add(&self, held: HeldAnswer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the list grows, so that its length follows the number of streams.
        if answers.len() == answers.capacity() {
            answers.retain(HeldAnswer::is_held);
        }
        answers.push(held);
    }

    pub(crate) fn count_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the longest time as [`UnreadAnswers::oldest`] does. Without an unread answer, the
    /// next answer of a stream wakes the task of `cx`.
    fn oldest_or_wake(&self, cx: &Context<'_>) -> Option<Duration> {
        // Before the list is read, so that no answer is missed.
        let mut idle = self.idle_check.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &mut *idle {
            waker.clone_from(cx.waker());
        } else {
            *idle = Some(cx.waker().clone());
        }
        drop(idle);
        self.oldest()
    }

    /// Counts the slow reader, unless the check of each answer has counted it.
    fn count_slow(&self) {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.iter().any(HeldAnswer::count_slow) {
            self.metrics.refused.get_or_create(&KindLabels { kind: "slow_reader" }).inc();
        }
    }

    /// Returns the longest time for which a piece of an answer is unread, if there is one.
    fn oldest(&self) -> Option<Duration> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(HeldAnswer::is_held);
        let oldest = answers.iter().filter_map(HeldAnswer::last_progress).min();
        oldest.map(|last| last.elapsed())
    }
}

/// The check of one connection. It has a timer only while there are unread answers.
pub(crate) struct UnreadCheck {
    answers: Arc<UnreadAnswers>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes sent before the timer was set.
    sent_before: u64,
}

impl UnreadCheck {
    pub(crate) fn new(answers: Arc<UnreadAnswers>) -> UnreadCheck {
        UnreadCheck { answers, timer: None, sent_before: 0 }
    }

    /// Returns true if the client leaves answers unread. It has then read less than
    /// [`ANSWER_WINDOW_BYTES_MIN`] bytes in a window, or an answer is unread for [`WINDOWS_MAX`]
    /// windows. Wakes the task for the next check.
    pub(crate) fn poll_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        let UnreadAnswers { window, sent, .. } = &*self.answers;
        if self.timer.is_none() {
            if self.answers.oldest_or_wake(cx).is_none() {
                return false;
            }
            self.sent_before = sent.load(Ordering::Relaxed);
            self.timer = Some(Box::pin(tokio::time::sleep(*window)));
        }
        while let Some(timer) = &mut self.timer
            && let Poll::Ready(()) = timer.as_mut().poll(cx)
        {
            let Some(age) = self.answers.oldest_or_wake(cx) else {
                self.timer = None;
                return false;
            };
            let now = sent.load(Ordering::Relaxed);
            let is_slow = age >= *window && now - self.sent_before < ANSWER_WINDOW_BYTES_MIN;
            if is_slow || age >= *window * WINDOWS_MAX {
                self.answers.count_slow();
                return true;
            }
            self.sent_before = now;
            timer.as_mut().reset(tokio::time::Instant::now() + *window);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::byte_budget::AnswerProgress;

    const WINDOW: Duration = Duration::from_millis(30);

    /// Returns true if the check finds a stall within `windows`.
    async fn is_stalled(answers: &Arc<UnreadAnswers>, windows: u32, each: impl Fn()) -> bool {
        let mut check = UnreadCheck::new(answers.clone());
        let stalled = poll_fn(|cx| {
            each();
            if check.poll_stalled(cx) { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::time::timeout(WINDOW * windows, stalled).await.is_ok()
    }

    fn answers() -> Arc<UnreadAnswers> {
        UnreadAnswers::new(WINDOW, &Arc::default())
    }

    #[tokio::test]
    async fn unread_answers_end_the_connection() {
        let answers = answers();
        assert!(!is_stalled(&answers, 3, || ()).await, "there is no answer");
        let held = AnswerProgress::begin();
        answers.add(HeldAnswer::of(&held));
        assert!(is_stalled(&answers, 5, || ()).await);
        drop(held);
        assert!(!is_stalled(&answers, 3, || ()).await, "it was read");
    }

    #[tokio::test]
    async fn progress_of_other_answers_counts_for_some_windows() {
        let answers = answers();
        let held = AnswerProgress::begin();
        answers.add(HeldAnswer::of(&held));
        let progress = || answers.count_sent(ANSWER_WINDOW_BYTES_MIN as usize);
        // This thread may be paused until the answer is unread for too many windows.
        let ended_early = is_stalled(&answers, 4, progress).await;
        assert!(!ended_early || answers.oldest().unwrap() >= WINDOW * WINDOWS_MAX);
        assert!(is_stalled(&answers, 3 * WINDOWS_MAX, progress).await);
    }

    /// The check waits without a timer, and nothing but the answer wakes its task.
    #[tokio::test]
    async fn an_answer_of_a_stream_wakes_the_check() {
        let answers = answers();
        let mut check = UnreadCheck::new(answers.clone());
        let checking = tokio::spawn(async move {
            poll_fn(|cx| if check.poll_stalled(cx) { Poll::Ready(()) } else { Poll::Pending })
                .await;
        });
        while answers.idle_check.lock().unwrap().is_none() {
            tokio::task::yield_now().await;
        }
        let held = AnswerProgress::begin();
        StreamAnswers(answers.clone()).add(HeldAnswer::of(&held));
        tokio::time::timeout(Duration::from_secs(60), checking).await.unwrap().unwrap();
        let slow = KindLabels { kind: "slow_reader" };
        assert_eq!(answers.metrics.refused.get_or_create(&slow).get(), 1);
    }

    /// Each piece of a large answer is read in time, and the whole answer is not.
    #[test]
    fn the_age_of_an_answer_begins_with_its_last_piece() {
        let answers = answers();
        let progress = AnswerProgress::begin();
        let first = HeldAnswer::of(&progress).last_progress().unwrap();
        answers.add(HeldAnswer::of(&progress));
        while HeldAnswer::of(&progress).last_progress().unwrap() == first {
            progress.record();
        }
        let age = answers.oldest().unwrap();
        assert!(age < first.elapsed());
        answers.count_slow();
        answers.count_slow();
        let slow = KindLabels { kind: "slow_reader" };
        assert_eq!(answers.metrics.refused.get_or_create(&slow).get(), 1);
        drop(progress);
        assert!(answers.oldest().is_none());
    }

    #[test]
    fn the_wait_for_earlier_answers_is_not_the_clients() {
        let progress = AnswerProgress::begin();
        let held = HeldAnswer::of(&progress);
        let encoded = held.last_progress().unwrap();
        while encoded.elapsed().is_zero() {}
        StreamAnswers(answers()).add(held.clone());
        assert!(held.last_progress().unwrap() > encoded);
    }

    #[test]
    fn the_list_keeps_unread_answers_only() {
        let answers = answers();
        let held: Vec<_> = (0..10).map(|_| AnswerProgress::begin()).collect();
        for _ in 0..1000 {
            answers.add(HeldAnswer::of(&AnswerProgress::begin()));
        }
        held.iter().for_each(|held| answers.add(HeldAnswer::of(held)));
        assert!(answers.answers.lock().unwrap().len() < 100);
        assert!(answers.oldest().is_some());
        assert_eq!(answers.answers.lock().unwrap().len(), 10);
    }
}
