//! Windows through the model, several runs at once, and answers in order.
//!
//! All models run the same way: the recording's windows are cut into pieces, a piece's windows go in runs, one after the
//! other, and pieces run side by side. What differs is how long pieces are:
//!
//! * windows that do not know each other: a piece is one run of a batch;
//! * a model with a state: a piece is a minute or so, with a lead-in from which a fresh state finds its way, and a
//!   stream of the model of its own;
//! * a sequence: the same, and the whole piece is one run, or several when the state is handed on here.
//!
//! A window of a lead-in goes to two pieces, and counts in the earlier one. Only the earliest piece's answers leave at
//! once; those of the others, which are small, wait. A window waits in memory until its run starts, and pieces are
//! opened only as far ahead as runs may be under way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Error, NamedTensor, Result};
use crossbeam_channel::{Select, TryRecvError};

use super::Options;
use super::batch::{self, Answer};
use super::source::Facts;
use crate::recogniser::{Fit, Recogniser};
use crate::segment::Window;
use crate::{Model, Pending};

/// Runs under way at most, whatever a caller asks for.
const IN_FLIGHT_MAX: usize = 256;
/// Runs that may fail one after the other before the last error ends the work.
const FAILURES_MAX: u32 = 8;
/// How often a wait looks whether to stop.
const STOP_EVERY: Duration = Duration::from_millis(100);

/// What became of one run: the windows that count of it.
pub(super) struct Outcome {
    /// The first of them.
    pub(super) first: u64,
    pub(super) facts: Vec<Facts>,
    pub(super) answer: Result<Answer>,
}

/// Takes what became of runs, in the order of their windows.
type Deliver<'a> = &'a mut dyn FnMut(Outcome) -> Result<()>;

/// How a recording is cut, in windows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    /// From one piece to the next.
    length: u64,
    lead_in: u64,
    /// Of one run at most.
    run: usize,
    /// Runs always have so many, the last ones filled up with zeros.
    fill: Option<usize>,
    /// Each piece is a stream of the model.
    stream: bool,
}

/// Runs under way and windows that wait for theirs.
pub(super) struct Runs {
    recogniser: Recogniser,
    fit: Fit,
    model: Arc<dyn Model>,
    plan: Plan,
    in_flight: usize,
    stop: Arc<AtomicBool>,
    /// The earliest first.
    open: VecDeque<Piece>,
    /// The number of the next to be opened.
    next: u64,
    /// Windows so far.
    pushed: u64,
    /// Runs that failed since one last succeeded.
    failures: u32,
    succeeded: bool,
    error: Option<Error>,
}

/// Windows that run one after the other.
struct Piece {
    /// Its first window, the first that counts, and the one after its last.
    first: u64,
    keep: u64,
    end: u64,
    /// The next that it waits for.
    next: u64,
    chunks: VecDeque<Chunk>,
    /// Its stream, or the model itself; `None` before the first run and after one that failed.
    model: Option<Arc<dyn Model>>,
    /// The state that is handed on from run to run here.
    carried: Vec<NamedTensor>,
    running: Option<Running>,
    done: VecDeque<Outcome>,
}

/// The windows of one run.
struct Chunk {
    first: u64,
    facts: Vec<Facts>,
    values: Vec<f32>,
}

struct Running {
    pending: Pending,
    first: u64,
    facts: Vec<Facts>,
}

impl Plan {
    fn new(recogniser: &Recogniser, fit: &Fit, stateful: bool) -> Result<Plan> {
        let Recogniser { batch, sequence, pieces, .. } = recogniser;
        let whole = (pieces.length + pieces.lead_in) as usize;
        let (length, lead_in) = (pieces.length, pieces.lead_in);
        let refuse = |what: &str| Error::invalid(format!("recogniser \"{}\": {what}", recogniser.name));
        if *sequence && stateful {
            return Err(refuse("a model that keeps a state inside cannot be run as a sequence"));
        }
        let stream = stateful || (!sequence && !fit.carried.is_empty());
        if stream || *sequence {
            recogniser.may_wait(whole)?;
        }
        if stream {
            let large =
                |constant: &&NamedTensor| constant.tensor.shape().first().is_some_and(|size| *size > 1);
            if let Some(constant) = fit.constants.iter().find(large) {
                let what = format!("\"{}\" cannot have an axis 0 above one beside a state", constant.name);
                return Err(refuse(&what));
            }
            if fit.items.is_some_and(|items| items > 1) {
                return Err(refuse("a model with a state must take one window at a time"));
            }
            return Ok(Plan { length, lead_in, run: *batch, fill: None, stream: true });
        }
        if *sequence {
            let run = fit.items.unwrap_or(if fit.carried.is_empty() { whole } else { *batch });
            if fit.carried.is_empty() && run < whole {
                return Err(refuse(&format!("pieces of {whole} windows do not fit the {run} of the model")));
            }
            return Ok(Plan { length, lead_in, run, fill: fit.items, stream: false });
        }
        let run = fit.items.unwrap_or(*batch);
        Ok(Plan { length: run as u64, lead_in: 0, run, fill: fit.items, stream: false })
    }
}

impl Runs {
    /// For one recording.
    ///
    /// # Errors
    /// `InvalidArgument` when the model cannot be run as the recogniser says.
    pub(super) fn new(
        recogniser: &Recogniser,
        fit: Fit,
        model: &Arc<dyn Model>,
        options: &Options,
    ) -> Result<Runs> {
        Ok(Runs {
            plan: Plan::new(recogniser, &fit, model.stateful())?,
            recogniser: recogniser.clone(),
            fit,
            model: model.clone(),
            in_flight: options.in_flight.clamp(1, IN_FLIGHT_MAX),
            stop: options.stop.clone(),
            open: VecDeque::new(),
            next: 0,
            pushed: 0,
            failures: 0,
            succeeded: false,
            error: None,
        })
    }

    /// Takes the next window, waiting while enough are under way.
    ///
    /// # Errors
    /// `Cancelled`; the last run's error when too many failed; those of `deliver`.
    pub(super) fn push(&mut self, window: Window<'_>, facts: Facts, deliver: Deliver<'_>) -> Result<()> {
        let Plan { length, lead_in, run, .. } = self.plan;
        while window.index + lead_in >= self.next * length {
            // One more than can run, so that its windows are there when a run ends.
            while self.open.len() > self.in_flight {
                self.wait(deliver)?;
            }
            let keep = self.next * length;
            self.open.push_back(Piece::new(keep.saturating_sub(lead_in), keep, keep + length));
            self.next += 1;
        }
        for piece in &mut self.open {
            if (piece.first..piece.end).contains(&window.index) {
                piece.add(&window, facts, run);
            }
        }
        self.pushed = window.index + 1;
        self.pump(deliver)
    }

    /// Runs what is left; no more windows come.
    ///
    /// # Errors
    /// As for [`Runs::push`]; the last run's error when none succeeded.
    pub(super) fn finish(&mut self, deliver: Deliver<'_>) -> Result<()> {
        let pushed = self.pushed;
        // Pieces of which no more than the lead-in came have nothing to say.
        self.open.retain(|piece| piece.keep < pushed);
        self.open.iter_mut().for_each(|piece| piece.end = piece.end.min(pushed));
        self.pump(deliver)?;
        while !self.open.is_empty() {
            self.wait(deliver)?;
        }
        match self.error.take() {
            Some(error) if !self.succeeded => Err(error.context("every run of the model failed")),
            _ => Ok(()),
        }
    }

    /// Fails once a stop is wanted.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(super) fn check_stop(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::cancelled("stopped before the end of the recording")),
            false => Ok(()),
        }
    }

    /// Waits until a run has ended, or a moment.
    fn wait(&mut self, deliver: Deliver<'_>) -> Result<()> {
        self.check_stop()?;
        let mut select = Select::new();
        let running = self.open.iter().filter_map(|piece| piece.running.as_ref());
        if running.map(|running| select.recv(&running.pending)).count() == 0 {
            return Err(Error::internal("pieces wait and no run is under way"));
        }
        // A timeout is no error: the caller comes back.
        select.ready_timeout(STOP_EVERY).ok();
        drop(select);
        self.pump(deliver)
    }

    /// Takes the answers that are there, starts what can start, delivers what is next.
    fn pump(&mut self, deliver: Deliver<'_>) -> Result<()> {
        for index in 0..self.open.len() {
            self.collect(index)?;
        }
        let mut under_way = self.open.iter().filter(|piece| piece.running.is_some()).count();
        for index in 0..self.open.len() {
            while under_way < self.in_flight && self.start(index)? {
                under_way += usize::from(self.open[index].running.is_some());
            }
        }
        while let Some(piece) = self.open.front_mut() {
            while let Some(outcome) = piece.done.pop_front() {
                deliver(outcome)?;
            }
            if !piece.is_done() {
                break;
            }
            self.open.pop_front();
        }
        Ok(())
    }

    /// Takes the answer of piece `index`'s run, if it is there.
    fn collect(&mut self, index: usize) -> Result<()> {
        let Some(piece) = self.open.get_mut(index) else { return Ok(()) };
        let Some(running) = &piece.running else { return Ok(()) };
        let outputs = match running.pending.try_recv() {
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => Err(Error::internal("a run ended without an answer")),
            Ok(outputs) => outputs,
        };
        match piece.running.take() {
            Some(Running { first, facts, .. }) => self.ended(index, first, facts, outputs),
            None => Ok(()),
        }
    }

    /// Starts the next run of piece `index`, if it may; whether it tried.
    fn start(&mut self, index: usize) -> Result<bool> {
        let Runs { recogniser, fit, plan, model, open, .. } = self;
        let Some(piece) = open.get_mut(index) else { return Ok(false) };
        let Some(chunk) = piece.ready(plan.run) else { return Ok(false) };
        let Chunk { first, facts, mut values } = chunk;
        let count = plan.fill.unwrap_or(facts.len());
        values.resize(count * recogniser.window_values(), 0.0);
        let stream = match &piece.model {
            Some(stream) => stream.clone(),
            None => {
                let stream = if plan.stream { model.stream(fit.carried.clone())? } else { model.clone() };
                if !plan.stream {
                    let initial = fit.carried.iter();
                    let initial = initial.map(|c| NamedTensor::new(c.input.clone(), c.initial.clone()));
                    piece.carried = initial.collect();
                }
                piece.model.insert(stream).clone()
            }
        };
        let windows = batch::tensor(recogniser, values, count)?;
        let mut inputs = vec![NamedTensor::new(fit.input.clone(), windows)];
        inputs.extend(fit.constants.iter().chain(&piece.carried).cloned());
        match stream.start(inputs) {
            Ok(pending) => piece.running = Some(Running { pending, first, facts }),
            Err(error) => self.ended(index, first, facts, Err(error))?,
        }
        Ok(true)
    }

    /// Makes an outcome of a run's windows that count.
    fn ended(
        &mut self,
        index: usize,
        first: u64,
        mut facts: Vec<Facts>,
        outputs: Result<Vec<NamedTensor>>,
    ) -> Result<()> {
        let Some(piece) = self.open.get_mut(index) else { return Ok(()) };
        let skip = (piece.keep.saturating_sub(first) as usize).min(facts.len());
        let answer = match outputs {
            Ok(outputs) => {
                let count = self.plan.fill.unwrap_or(facts.len());
                let answer = batch::answer(&self.recogniser, &self.fit, &outputs, count, skip..facts.len())?;
                piece.carry(&self.fit, &outputs)?;
                (self.failures, self.succeeded) = (0, true);
                Ok(answer)
            }
            Err(error) => {
                self.failures += 1;
                if self.failures >= FAILURES_MAX {
                    return Err(error.context(format!("{FAILURES_MAX} runs failed one after the other")));
                }
                // Where the state has got to is not known.
                piece.model = None;
                self.error = Some(error.clone());
                Err(error)
            }
        };
        facts.drain(..skip);
        if !facts.is_empty() {
            piece.done.push_back(Outcome { first: first + skip as u64, facts, answer });
        }
        Ok(())
    }
}

impl Piece {
    fn new(first: u64, keep: u64, end: u64) -> Piece {
        Piece {
            first,
            keep,
            end,
            next: first,
            chunks: VecDeque::new(),
            model: None,
            carried: Vec::new(),
            running: None,
            done: VecDeque::new(),
        }
    }

    /// Takes its next window.
    fn add(&mut self, window: &Window<'_>, facts: Facts, run: usize) {
        if self.chunks.back().is_none_or(|chunk| chunk.facts.len() == run) {
            let left = run.min((self.end - window.index) as usize);
            let (facts, values) = (Vec::with_capacity(left), Vec::with_capacity(left * window.rows.len()));
            self.chunks.push_back(Chunk { first: window.index, facts, values });
        }
        self.next = window.index + 1;
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.facts.push(facts);
            chunk.values.extend_from_slice(window.rows);
        }
    }

    /// The next run's windows, if they are all there and none is under way.
    fn ready(&mut self, run: usize) -> Option<Chunk> {
        let chunk = self.chunks.front()?;
        let all = chunk.facts.len() == run || chunk.first + chunk.facts.len() as u64 >= self.end;
        if self.running.is_none() && all { self.chunks.pop_front() } else { None }
    }

    /// Hands the state on to the next run.
    fn carry(&mut self, fit: &Fit, outputs: &[NamedTensor]) -> Result<()> {
        for (carry, now) in fit.carried.iter().zip(&mut self.carried) {
            let next = outputs.iter().find(|output| output.name == carry.output);
            now.tensor = next.ok_or_else(|| Error::internal("a carried output is missing"))?.tensor.clone();
        }
        Ok(())
    }

    /// Whether all of its windows have come and gone.
    fn is_done(&self) -> bool {
        self.next >= self.end && self.chunks.is_empty() && self.running.is_none() && self.done.is_empty()
    }
}
