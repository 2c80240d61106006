//! Runs windows through the model, several runs at once, and delivers the outputs in order.
//!
//! All models run the same way. The recording's windows are cut into pieces. A piece's windows run
//! in batches one after the other, and pieces run side by side. Only the length of a piece differs:
//!
//! * Independent windows: a piece is one batch.
//! * A model with a state: a piece is a minute or so, with a lead-in in which a fresh state
//!   settles, and a stream of the model of its own.
//! * A sequence: the same, and the whole piece is one run, or several if the state is passed on
//!   here.
//!
//! A window of a lead-in belongs to two pieces and counts in the earlier one. Only the earliest
//! piece's outputs leave at once. The outputs of the others are small and wait. A window waits in
//! memory until its run starts, and pieces are opened only as far ahead as runs may be in flight.
//! If windows arrive so slowly that a run is not full after a second, it starts with fewer windows
//! if the model allows it.
//!
//! A model with its state inside may take several pieces in the lanes of one batch. A run of a
//! small model costs about the same for eight windows as for one. Pieces that share a batch are a
//! [`RunGroup`]; otherwise a group is one piece. Lanes need all their pieces at once, so they are
//! used for files and not for streamed uploads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{Error, NamedTensor, Result};
use crossbeam_channel::{Receiver, Select, TryRecvError};

use super::batch;
use super::group::{GroupMember, RunGroup, lane_of, side_by_side};
use super::piece::{AudioPiece, RunChunk, RunOutcome};
use super::plan::CutPlan;
use super::source::WindowInfo;
use super::{PipelineOptions, STOP_EVERY, check_stop};
use crate::AudioModel;
use crate::recogniser::{ModelBinding, Recogniser};
use crate::segment::FeatureWindow;

/// Maximum runs in flight, at any option.
const IN_FLIGHT_MAX: usize = 256;
/// Consecutive failed runs after which the last error ends the work.
const FAILURES_MAX: u32 = 8;

/// Function that receives the outcomes of runs, in the order of their windows.
type Deliver<'a> = &'a mut dyn FnMut(RunOutcome) -> Result<()>;

/// Runs in flight, and windows that wait for theirs.
pub(super) struct ModelRuns {
    recogniser: Recogniser,
    fit: ModelBinding,
    model: Arc<dyn AudioModel>,
    plan: CutPlan,
    in_flight: usize,
    stop: Arc<AtomicBool>,
    /// Open pieces without gaps, the earliest first.
    open: VecDeque<AudioPiece>,
    /// Groups with open pieces, the earliest first.
    groups: VecDeque<RunGroup>,
    finished: bool,
    /// Number of the next piece.
    next: u64,
    /// Number of windows so far.
    pushed: u64,
    /// Failed runs since the last successful one.
    failures: u32,
    succeeded: bool,
    error: Option<Error>,
}

impl ModelRuns {
    /// Prepares one recording, of which `seconds` are available. Pieces may wait for each other
    /// only within them.
    ///
    /// # Errors
    /// `InvalidArgument` if the model cannot be run as the recogniser says.
    pub(super) fn new(
        recogniser: &Recogniser,
        fit: ModelBinding,
        model: &Arc<dyn AudioModel>,
        options: &PipelineOptions,
        seconds: Option<f64>,
    ) -> Result<ModelRuns> {
        let windows = seconds.map_or(0.0, |seconds| seconds / recogniser.hop_seconds());
        let pieces_max = (windows / recogniser.pieces.length as f64).ceil() as u64;
        Ok(ModelRuns {
            plan: CutPlan::new(recogniser, &fit, model.stateful(), pieces_max)?,
            recogniser: recogniser.clone(),
            fit,
            model: model.clone(),
            in_flight: options.in_flight.clamp(1, IN_FLIGHT_MAX),
            stop: options.stop.clone(),
            open: VecDeque::new(),
            groups: VecDeque::new(),
            finished: false,
            next: 0,
            pushed: 0,
            failures: 0,
            succeeded: false,
            error: None,
        })
    }

    /// Adds the next window. Blocks while enough runs are in flight.
    ///
    /// # Errors
    /// `Cancelled`; the last run's error if too many failed; the errors of `deliver`.
    pub(super) fn push(
        &mut self,
        window: FeatureWindow<'_>,
        facts: WindowInfo,
        deliver: Deliver<'_>,
    ) -> Result<()> {
        let CutPlan { length, lead_in, run, lanes, .. } = self.plan;
        while self.waiting() >= self.waiting_max() && self.is_running() {
            self.wait(deliver)?;
        }
        while window.index + lead_in >= self.next * length {
            while self.open.len() >= self.open_max() {
                self.wait(deliver)?;
            }
            self.open_piece();
        }
        for piece in &mut self.open {
            if (piece.first..piece.end).contains(&window.index) {
                piece.add(&window, facts, run, lanes > 1);
            }
        }
        self.pushed = window.index + 1;
        self.pump(deliver)
    }

    /// Returns true if a run is in flight.
    fn is_running(&self) -> bool {
        self.groups.iter().any(|group| group.pending.is_some())
    }

    /// Returns the number of waiting windows.
    fn waiting(&self) -> u64 {
        self.open.iter().map(|piece| piece.waiting).sum()
    }

    /// Returns the maximum number of waiting windows while a run is in flight. It is the number of
    /// windows in the pieces that can run side by side, and in the overlap of the next piece with
    /// the last. So the windows of the next run are read while the current one runs, and not
    /// before.
    ///
    /// The last piece of a group of lanes needs only one run's windows for its group to start. It
    /// ends like the other pieces, and gets its windows while theirs are used.
    fn waiting_max(&self) -> u64 {
        let CutPlan { length, lead_in, lanes, run, .. } = self.plan;
        let pieces = (lanes * self.runs_max()) as u64;
        match lanes {
            1 => (length + lead_in) * pieces + lead_in,
            _ => {
                let run = run as u64;
                // The earlier piece is not complete by then: the two overlap.
                (length + lead_in) * (pieces - 1) + run - lead_in.saturating_sub(run)
            }
        }
    }

    /// Returns the maximum of open pieces: one group more than can run, so that its windows are
    /// ready when a run ends.
    fn open_max(&self) -> usize {
        match self.plan.lanes {
            1 => self.in_flight + 1,
            // Lanes wait for whole pieces, so fewer of them.
            lanes => (self.runs_max() + 1) * lanes,
        }
    }

    /// Returns the maximum of runs in flight. Groups of lanes are few and long. If more of them
    /// were started than threads can run, they would all end late, and the last would run alone.
    fn runs_max(&self) -> usize {
        if self.plan.lanes == 1 { self.in_flight } else { self.in_flight.div_ceil(2) }
    }

    /// Opens the next piece of the recording, and its group if it is the first of it.
    fn open_piece(&mut self) {
        let CutPlan { length, lead_in, lanes, .. } = self.plan;
        let keep = self.next * length;
        self.open.push_back(AudioPiece::new(
            self.next,
            keep.saturating_sub(lead_in),
            keep,
            keep + length,
        ));
        let group = self.next / lanes as u64;
        if self.groups.back().is_none_or(|last| last.number != group) {
            self.groups.push_back(RunGroup::new(group));
        }
        self.next += 1;
    }

    /// Runs the remaining windows. Call it after the last window.
    ///
    /// # Errors
    /// As for [`ModelRuns::push`]; the last run's error if none succeeded.
    pub(super) fn finish(&mut self, deliver: Deliver<'_>) -> Result<()> {
        let pushed = self.pushed;
        // A piece with its lead-in only has no output.
        self.open.retain(|piece| piece.keep < pushed);
        self.open.iter_mut().for_each(|piece| piece.end = piece.end.min(pushed));
        self.finished = true;
        self.pump(deliver)?;
        while !self.open.is_empty() {
            self.wait(deliver)?;
        }
        match self.error.take() {
            Some(error) if !self.succeeded => Err(error.context("every run of the model failed")),
            _ => Ok(()),
        }
    }

    /// Returns the next message of `from`; `None` after the last. Delivers outputs meanwhile.
    ///
    /// # Errors
    /// `Cancelled`; the last run's error if too many failed; the errors of `deliver`.
    pub(super) fn wait_for<T>(
        &mut self,
        from: &Receiver<T>,
        deliver: Deliver<'_>,
    ) -> Result<Option<T>> {
        loop {
            match from.try_recv() {
                Ok(next) => return Ok(Some(next)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => {}
            }
            self.wait_also(Some(from), deliver)?;
        }
    }

    /// Waits until a run has ended, or briefly.
    fn wait(&mut self, deliver: Deliver<'_>) -> Result<()> {
        if !self.is_running() {
            return Err(Error::internal("pieces wait and no run is under way"));
        }
        self.wait_also(None::<&Receiver<()>>, deliver)
    }

    /// Waits until a run has ended or `also` has a message, or briefly.
    fn wait_also<T>(&mut self, also: Option<&Receiver<T>>, deliver: Deliver<'_>) -> Result<()> {
        check_stop(&self.stop)?;
        let mut select = Select::new();
        self.groups.iter().filter_map(|group| group.pending.as_ref()).for_each(|pending| {
            select.recv(pending);
        });
        if let Some(also) = also {
            select.recv(also);
        }
        // A timeout is not an error: the caller calls again.
        select.ready_timeout(STOP_EVERY).ok();
        drop(select);
        self.pump(deliver)
    }

    /// Collects outputs, starts the runs that can start, and delivers the next outcomes.
    fn pump(&mut self, deliver: Deliver<'_>) -> Result<()> {
        for index in 0..self.groups.len() {
            self.collect(index)?;
        }
        let mut under_way = self.groups.iter().filter(|group| group.pending.is_some()).count();
        for index in 0..self.groups.len() {
            while under_way < self.runs_max() && self.start(index)? {
                under_way += usize::from(self.groups[index].pending.is_some());
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
        let open = &self.open;
        let lanes = self.plan.lanes as u64;
        let first = open.front().map_or(self.next, |piece| piece.number) / lanes;
        self.groups
            .retain(|group| group.number >= first && (group.pending.is_some() || !open.is_empty()));
        Ok(())
    }

    /// Collects the outputs of a group's run, if it has ended.
    fn collect(&mut self, index: usize) -> Result<()> {
        let Some(group) = self.groups.get_mut(index) else { return Ok(()) };
        let Some(pending) = &group.pending else { return Ok(()) };
        let outputs = match pending.try_recv() {
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => {
                Err(Error::internal("a run ended without an answer"))
            }
            Ok(outputs) => outputs,
        };
        group.pending = None;
        let members = std::mem::take(&mut group.members);
        self.make_outcomes(index, members, outputs)
    }

    /// Starts a group's next run, if possible. Returns false if it did not try.
    fn start(&mut self, index: usize) -> Result<bool> {
        let Some(chunks) = self.take_chunks(index) else { return Ok(false) };
        let ModelRuns { recogniser, fit, plan, model, groups, .. } = self;
        let Some(group) = groups.get_mut(index) else { return Ok(false) };
        let longest = chunks.iter().map(|(_, chunk)| chunk.facts.len()).max().unwrap_or(0);
        let count = plan.fill.unwrap_or(longest);
        let values = side_by_side(&chunks, plan.lanes, count, recogniser.window_values());
        let stream = match &group.model {
            Some(stream) => stream.clone(),
            None => {
                let stream = if plan.stream {
                    model.stream(fit.carried.clone(), plan.lanes)?
                } else {
                    model.clone()
                };
                if !plan.stream {
                    let initial = fit.carried.iter();
                    let initial =
                        initial.map(|c| NamedTensor::new(c.input.clone(), c.initial.clone()));
                    group.carried = initial.collect();
                }
                group.model.insert(stream).clone()
            }
        };
        let windows = batch::tensor(recogniser, values, count * plan.lanes)?;
        let mut inputs = vec![NamedTensor::new(fit.input.clone(), windows)];
        inputs.extend(fit.constants.iter().chain(&group.carried).cloned());
        let member = |(piece, chunk): (u64, RunChunk)| GroupMember {
            piece,
            first: chunk.first,
            facts: chunk.facts,
        };
        let members: Vec<GroupMember> = chunks.into_iter().map(member).collect();
        match stream.start(inputs) {
            Ok(pending) => {
                group.pending = Some(pending);
                group.members = members;
                group.count = count;
            }
            Err(error) => {
                group.count = count;
                self.make_outcomes(index, members, Err(error))?;
            }
        }
        Ok(true)
    }

    /// Takes the next windows of all pieces of a group, if they are complete and no run is in
    /// flight.
    fn take_chunks(&mut self, index: usize) -> Option<Vec<(u64, RunChunk)>> {
        let CutPlan { run, short, .. } = self.plan;
        let lanes = self.plan.lanes as u64;
        let group = self.groups.get(index)?;
        let pieces = group.number * lanes..(group.number + 1) * lanes;
        // While pieces are missing, the others would run ahead of them.
        if group.pending.is_some() || !(self.finished || self.next >= pieces.end) {
            return None;
        }
        let members = || self.open.iter().filter(|piece| pieces.contains(&piece.number));
        if members().all(AudioPiece::exhausted)
            || !members().all(|piece| piece.exhausted() || piece.ready(run, short))
        {
            return None;
        }
        let members = self.open.iter_mut().filter(|piece| pieces.contains(&piece.number));
        let take = |piece: &mut AudioPiece| piece.take().map(|chunk| (piece.number, chunk));
        Some(members.filter_map(take).collect())
    }

    /// Makes outcomes of a run's windows that count.
    fn make_outcomes(
        &mut self,
        index: usize,
        members: Vec<GroupMember>,
        outputs: Result<Vec<NamedTensor>>,
    ) -> Result<()> {
        let Some(group) = self.groups.get_mut(index) else { return Ok(()) };
        match &outputs {
            Ok(outputs) => {
                group.carry(&self.fit, outputs)?;
                self.failures = 0;
                self.succeeded = true;
            }
            Err(error) => {
                self.failures += 1;
                if self.failures >= FAILURES_MAX {
                    return Err(error
                        .clone()
                        .context(format!("{FAILURES_MAX} runs failed one after the other")));
                }
                // The state after a failed run is unknown.
                group.model = None;
                self.error = Some(error.clone());
            }
        }
        let count = group.count;
        for member in members {
            let lane = (member.piece % self.plan.lanes as u64) as usize;
            let outputs = match &outputs {
                Ok(outputs) => Ok(lane_of(&self.fit, outputs, lane, self.plan.lanes)?),
                Err(error) => Err(error.clone()),
            };
            self.member_ended(member, count, outputs)?;
        }
        Ok(())
    }

    /// Adds the outcome of a run of `count` windows to the piece of `member`. Leaves out windows
    /// that the piece has only as its lead-in.
    fn member_ended(
        &mut self,
        member: GroupMember,
        count: usize,
        outputs: Result<Vec<NamedTensor>>,
    ) -> Result<()> {
        let Some(piece) = self.open.iter_mut().find(|piece| piece.number == member.piece) else {
            return Ok(());
        };
        piece.running = false;
        let GroupMember { first, mut facts, .. } = member;
        let skip = (piece.keep.saturating_sub(first) as usize).min(facts.len());
        let answer = match outputs {
            Ok(outputs) => {
                Ok(batch::answer(&self.recogniser, &self.fit, &outputs, count, skip..facts.len())?)
            }
            Err(error) => Err(error),
        };
        facts.drain(..skip);
        if !facts.is_empty() {
            piece.done.push_back(RunOutcome { first: first + skip as u64, facts, answer });
        }
        Ok(())
    }
}
