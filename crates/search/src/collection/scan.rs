//! Passes over payloads, and over the values of an index, in slices and with a deadline.
//!
//! A search thread answers many requests, so a pass for one of them must not hold it. Work that
//! runs in a slice ([`in_slice`]) stops at its end, keeps its progress in the collection or in its
//! [`SliceProgress`], and is called again later.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};

use super::slice_progress::SliceProgress;

/// Maximum time of a slice. A pass checks it after a turn of rows, or at each part of an index.
pub const SLICE_MAX: Duration = Duration::from_millis(40);
/// Maximum time of a pass without a deadline of its own.
const SCAN_TIME_MAX: Duration = Duration::from_secs(600);
/// Maximum rows of a turn. After a turn, a pass checks the time and its thread yields.
const ROWS_A_TURN: u32 = 512;
/// Time after which a turn ends early. A row can take long, because a filter may have many
/// conditions on a long text.
const TURN_TIME_MAX: Duration = SLICE_MAX;

/// Limits of the work on this thread.
#[derive(Clone, Copy, Debug, Default)]
struct WorkLimit {
    deadline: Option<Instant>,
    /// Start of the slice.
    began: Option<Instant>,
    slice_end: Option<Instant>,
    /// True once a pass has stopped at the end of the slice.
    paused: bool,
    /// True if turns end by their rows only, as tests that count them need.
    has_full_turns: bool,
    /// True if all reads use one state of each collection, which the progress keeps.
    has_one_state: bool,
}

thread_local! {
    static LIMIT: Cell<WorkLimit> = const {
        Cell::new(WorkLimit {
            deadline: None,
            began: None,
            slice_end: None,
            paused: false,
            has_full_turns: false,
            has_one_state: false,
        })
    };
    /// Progress of the work on this thread, or `None` if the work does not run in slices.
    static PROGRESS: RefCell<Option<Arc<SliceProgress>>> = const { RefCell::new(None) };
}

/// End of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceOutcome<T> {
    /// The work is done.
    Done(T),
    /// A pass over payloads or an index was paused. The same work, called again, continues it.
    Paused,
}

/// Runs `work` on this thread with a deadline. A filter that has to read payloads fails with
/// `DeadlineExceeded` if it has not read all of them by then.
pub fn until<T>(deadline: Instant, work: impl FnOnce() -> T) -> T {
    limited(WorkLimit { deadline: Some(deadline), ..WorkLimit::default() }, None, work).0
}

/// Runs `work` as [`until`] does, but at most for [`SLICE_MAX`] if it reads payloads, or visits
/// the values of an index. If the result is [`SliceOutcome::Paused`], the caller runs the same work
/// again with the same `progress`, and other work in between. All reads of the work use the state
/// that its first read of a collection finds, so it must not read changes of its own.
pub fn in_slice<T>(
    deadline: Instant,
    progress: &Arc<SliceProgress>,
    work: impl FnOnce() -> T,
) -> SliceOutcome<T> {
    let began = Instant::now();
    let limit = WorkLimit {
        deadline: Some(deadline),
        began: Some(began),
        slice_end: Some(began + SLICE_MAX),
        has_one_state: true,
        ..WorkLimit::default()
    };
    match limited(limit, Some(progress.clone()), work) {
        (_, WorkLimit { paused: true, .. }) => SliceOutcome::Paused,
        (result, _) => SliceOutcome::Done(result),
    }
}

/// Runs `work` in a slice that has ended, so that passes pause after one turn.
#[cfg(test)]
pub(super) fn in_ended_slice<T>(
    progress: &Arc<SliceProgress>,
    work: impl FnOnce() -> T,
) -> SliceOutcome<T> {
    let now = Some(Instant::now());
    let limit =
        WorkLimit { began: now, slice_end: now, has_full_turns: true, ..WorkLimit::default() };
    let limit = WorkLimit { has_one_state: true, ..limit };
    match limited(limit, Some(progress.clone()), work) {
        (_, WorkLimit { paused: true, .. }) => SliceOutcome::Paused,
        (result, _) => SliceOutcome::Done(result),
    }
}

/// Runs `work` with a limit. Also returns the limit as it was at the end.
fn limited<T>(
    limit: WorkLimit,
    progress: Option<Arc<SliceProgress>>,
    work: impl FnOnce() -> T,
) -> (T, WorkLimit) {
    struct Restore {
        limit: WorkLimit,
        progress: Option<Arc<SliceProgress>>,
    }
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.limit);
            drop(PROGRESS.replace(self.progress.take()));
        }
    }
    let _restore = Restore { limit: LIMIT.replace(limit), progress: PROGRESS.replace(progress) };
    let result = work();
    (result, LIMIT.get())
}

/// Returns the progress of the work on this thread, or `None` if the work does not run in slices.
pub(super) fn progress() -> Option<Arc<SliceProgress>> {
    PROGRESS.with_borrow(Clone::clone)
}

/// Returns the progress of this thread's work if its reads use one state of each collection.
pub(super) fn progress_of_one_state() -> Option<Arc<SliceProgress>> {
    if LIMIT.get().has_one_state { progress() } else { None }
}

/// Runs `work`, all reads of which use one state of each collection, as those of [`in_slice`] do.
pub(crate) fn on_one_state<T>(work: impl FnOnce() -> T) -> T {
    let limit = LIMIT.get();
    if limit.has_one_state {
        return work();
    }
    limited(WorkLimit { has_one_state: true, ..limit }, Some(Arc::default()), work).0
}

/// Runs `work`, which evaluates one filter many times, without a pause. Keeps the rows of a filter
/// that is too long for the cache until the end.
pub(crate) fn keep_long_filters<T>(work: impl FnOnce() -> T) -> T {
    let limit = WorkLimit { slice_end: None, has_one_state: false, ..LIMIT.get() };
    limited(limit, Some(Arc::default()), work).0
}

/// Begins a change of points, which then has no deadline.
///
/// # Errors
/// `DeadlineExceeded` after the deadline of this thread's work. The caller then changes nothing.
pub(crate) fn begin_change() -> Result<()> {
    if LIMIT.get().deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Err(Error::deadline(
            "the request timed out before the first point was changed, so no point was changed; allow \
             more time",
        ));
    }
    ignore_deadline();
    Ok(())
}

/// Lets the work on this thread end after its deadline, because a part of its changes is made.
pub fn ignore_deadline() {
    LIMIT.set(WorkLimit { deadline: None, ..LIMIT.get() });
}

/// Drops the progress of the work on this thread, because a later slice does not repeat the calls
/// that it belongs to.
pub fn forget_progress() {
    if let Some(progress) = progress() {
        progress.clear();
    }
}

/// Limits of the work on one thread, for threads that do parts of it.
#[derive(Clone)]
pub(super) struct PartLimit {
    limit: WorkLimit,
    progress: Option<Arc<SliceProgress>>,
}

impl PartLimit {
    /// Returns the limits of the work on this thread. `deadline` counts if it is earlier.
    pub(super) fn of_this_thread(deadline: Option<Instant>) -> PartLimit {
        let own = LIMIT.get();
        let deadline = own.deadline.into_iter().chain(deadline).min();
        let limit = WorkLimit { deadline, paused: false, ..own };
        PartLimit { limit, progress: progress() }
    }

    /// Runs a part on this thread. Returns true if a pass over payloads was paused.
    pub(super) fn run(&self, part: impl FnOnce()) -> bool {
        let (_, WorkLimit { paused, .. }) = limited(self.limit, self.progress.clone(), part);
        paused
    }
}

/// Records that another thread paused a part of this thread's work, which [`in_slice`] notices.
pub(super) fn note_pause() {
    LIMIT.set(WorkLimit { paused: true, ..LIMIT.get() });
}

/// Returns true if a pass of this thread's work was paused in this slice.
pub(super) fn is_paused() -> bool {
    LIMIT.get().paused
}

/// Returns true if `time` is within the slice of this thread's work. After a pause, the work runs
/// again from its start and needs all that it used in this slice.
pub(super) fn is_in_slice(time: Instant) -> bool {
    LIMIT.get().began.is_some_and(|began| time >= began)
}

/// Lets the passes of this work continue beyond the end of its slice, without a pause.
pub(super) fn disable_pauses() {
    LIMIT.set(WorkLimit { slice_end: None, ..LIMIT.get() });
}

/// Next step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanStep {
    /// Reads the row.
    Read,
    /// Stops at the end of its slice.
    Pause,
    /// Stops at its deadline.
    Late,
}

/// Pass over payloads, or over an index before them.
pub(super) struct PayloadScan {
    deadline: Instant,
    slice_end: Option<Instant>,
    /// True if the thread yields after a turn.
    yields: bool,
    /// True once a row or a part was counted.
    has_begun: bool,
    /// Time after which a turn ends early.
    turn_time_max: Duration,
    turn_began: Instant,
    /// Rows that were read in the current turn.
    rows_of_turn: u32,
    step: ScanStep,
}

impl PayloadScan {
    /// Starts a pass that ends at the deadline only.
    pub(super) fn new() -> PayloadScan {
        let WorkLimit { deadline, has_full_turns, .. } = LIMIT.get();
        let now = Instant::now();
        PayloadScan {
            deadline: deadline.unwrap_or(now + SCAN_TIME_MAX),
            slice_end: None,
            yields: true,
            has_begun: false,
            turn_time_max: if has_full_turns { Duration::MAX } else { TURN_TIME_MAX },
            turn_began: now,
            // The first row begins a turn.
            rows_of_turn: ROWS_A_TURN,
            step: ScanStep::Read,
        }
    }

    /// Starts a pass over rows in memory, which ends at the deadline only. Checks the time after
    /// the first turn, so that few cheap rows cost nothing. Never yields, because every query with
    /// a filter runs such a pass.
    pub(super) fn in_memory() -> PayloadScan {
        PayloadScan { yields: false, has_begun: true, rows_of_turn: 0, ..PayloadScan::new() }
    }

    /// Starts a pass that ends with the slice too.
    pub(super) fn in_slices() -> PayloadScan {
        PayloadScan { slice_end: LIMIT.get().slice_end, ..PayloadScan::new() }
    }

    /// Counts a row and decides what to do. A pass that has stopped stays stopped.
    pub(super) fn next_row(&mut self) -> ScanStep {
        if self.step == ScanStep::Read && self.ends_turn() {
            let now = Instant::now();
            // The first turn is always read, so that every slice makes progress.
            let ended = self.has_begun && self.slice_end.is_some_and(|end| now >= end);
            if now >= self.deadline {
                self.step = ScanStep::Late;
            } else if ended {
                self.step = ScanStep::Pause;
            }
            if self.yields {
                std::thread::yield_now();
            }
            self.turn_began = now;
            self.rows_of_turn = 0;
        }
        self.has_begun = true;
        self.rows_of_turn = self.rows_of_turn.saturating_add(1);
        self.step
    }

    /// Returns true if the turn has reached its maximum of rows or time, so that the next row
    /// begins another one. Reads the clock after 1, 2, 4, 8 rows and so on. So a turn of cheap rows
    /// reads it few times, and a turn of expensive rows ends soon.
    fn ends_turn(&self) -> bool {
        self.rows_of_turn >= ROWS_A_TURN
            || (self.rows_of_turn.is_power_of_two()
                && self.turn_began.elapsed() >= self.turn_time_max)
    }

    /// Counts a part of an index, which costs as much as many rows, and decides what to do. The
    /// pass stops only at the end of the slice, and only if `can_pause` returns true. It ignores
    /// the deadline, which limits reads of payloads.
    pub(super) fn next_part(&mut self, can_pause: impl FnOnce() -> bool) -> ScanStep {
        if self.step == ScanStep::Read {
            // The first part is always read, so that every slice makes progress.
            let ended = self.has_begun && self.slice_end.is_some_and(|end| Instant::now() >= end);
            if ended && can_pause() {
                self.step = ScanStep::Pause;
            }
            std::thread::yield_now();
        }
        // The next row checks the time again.
        self.has_begun = true;
        self.rows_of_turn = ROWS_A_TURN;
        self.step
    }

    /// Returns the decision about the last row or part.
    pub(super) fn step(&self) -> ScanStep {
        self.step
    }

    /// Checks that every row and part was read. `what` names the reason for reading.
    ///
    /// # Errors
    /// `DeadlineExceeded` if rows were skipped. `Cancelled` if the pass was paused, which
    /// [`in_slice`] notices.
    pub(super) fn check(&self, what: &str) -> Result<()> {
        match self.step {
            ScanStep::Read => Ok(()),
            ScanStep::Pause => {
                note_pause();
                Err(Error::cancelled("reading continues in another slice"))
            }
            ScanStep::Late => Err(Error::deadline(format!(
                "the request timed out while payloads were read, because {what}; add a condition on an \
                 indexed field, or allow more time"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_payload_scan_ends_at_its_deadline() {
        let late = until(Instant::now(), || {
            let mut scan = PayloadScan::new();
            assert_eq!([scan.next_row(), scan.next_row()], [ScanStep::Late; 2]);
            scan.check("\"x\" has no index").unwrap_err()
        });
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        assert!(late.message().contains("\"x\" has no index"), "{late}");
        let mut scan = PayloadScan::new();
        assert_eq!(scan.next_row(), ScanStep::Read, "the deadline went with the work");
        assert!(scan.check("").is_ok());
        until(Instant::now() + HOUR, || assert_eq!(PayloadScan::new().next_row(), ScanStep::Read));
    }

    #[test]
    fn a_change_that_has_begun_has_no_deadline() {
        let deadline = || LIMIT.get().deadline;
        let late = until(Instant::now(), begin_change).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        until(Instant::now() + HOUR, || {
            let inner = keep_long_filters(|| begin_change().map(|()| deadline()));
            assert_eq!(inner, Ok(None));
            assert!(deadline().is_some(), "another change of the same work has not begun");
            ignore_deadline();
            assert_eq!(deadline(), None);
        });
        assert_eq!(begin_change(), Ok(()), "work without a deadline");
    }

    /// Reads rows until the pass stops, and returns their number.
    fn rows_until_stop(mut scan: PayloadScan, max: u32) -> (u32, Result<()>) {
        let read = (0..max).take_while(|_| scan.next_row() == ScanStep::Read).count() as u32;
        let checked = scan.check("");
        (read, checked)
    }

    #[test]
    fn an_index_pauses_only_if_it_can() {
        let done = in_ended_slice(&Arc::default(), || {
            let mut scan = PayloadScan::in_slices();
            assert_eq!(scan.next_part(|| true), ScanStep::Read, "every slice makes progress");
            assert_eq!(scan.next_part(|| false), ScanStep::Read);
            assert_eq!(scan.next_part(|| true), ScanStep::Pause);
            assert_eq!([scan.next_part(|| true), scan.next_row()], [ScanStep::Pause; 2]);
        });
        assert_eq!(done, SliceOutcome::Done(()), "no check noted the pause");
    }

    #[test]
    fn a_turn_of_expensive_rows_ends_early() {
        let now = Instant::now();
        let limit =
            WorkLimit { deadline: Some(now + HOUR), slice_end: Some(now), ..WorkLimit::default() };
        let (read, _) = limited(limit, None, || {
            let mut scan = PayloadScan::in_slices();
            let rows = (0..ROWS_A_TURN).take_while(|_| scan.next_row() == ScanStep::Read);
            rows.inspect(|_| std::thread::sleep(TURN_TIME_MAX)).count()
        });
        assert_eq!(read, 1);
    }

    #[test]
    fn a_pass_in_memory_checks_the_time_after_a_turn() {
        let limit = WorkLimit {
            deadline: Some(Instant::now()),
            has_full_turns: true,
            ..WorkLimit::default()
        };
        let (result, _) = limited(limit, None, || rows_until_stop(PayloadScan::in_memory(), 2000));
        assert_eq!(result.0, ROWS_A_TURN);
        assert_eq!(result.1.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    }

    #[test]
    fn a_slice_pauses_after_a_turn_and_reports_it() {
        let limit = WorkLimit {
            deadline: Some(Instant::now() + HOUR),
            slice_end: Some(Instant::now()),
            has_full_turns: true,
            ..WorkLimit::default()
        };
        let (result, limit) =
            limited(limit, None, || rows_until_stop(PayloadScan::in_slices(), 2000));
        assert_eq!(result.0, ROWS_A_TURN);
        assert_eq!(result.1.unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(limit.paused);
        // A pass that cannot be paused reads on.
        let (result, limit) = limited(WorkLimit { paused: false, ..limit }, None, || {
            rows_until_stop(PayloadScan::new(), 2000)
        });
        assert_eq!((result.0, result.1.is_ok(), limit.paused), (2000, true, false));
        let progress = Arc::default();
        let ended = in_ended_slice(&progress, || {
            disable_pauses();
            rows_until_stop(PayloadScan::in_slices(), 2000).0
        });
        assert_eq!(ended, SliceOutcome::Done(2000), "the work was allowed to continue");
        let done = in_slice(Instant::now() + HOUR, &progress, || 7);
        assert_eq!(done, SliceOutcome::Done(7));
    }
}
