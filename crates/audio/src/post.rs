//! Turns model outputs into labels: events with hysteresis, scenes, speakers.
//!
//! Windows arrive in time order, some perhaps missing; labels leave as soon as they are final.
//! `Labeller::settled` returns the time up to which labels are final, so that the caller can sort
//! them. Memory is bounded: a small state for each class, the frames of a moving mean, and one
//! embedding.

mod embeddings;
mod events;
mod grid;
mod hysteresis;
mod scenes;
mod smooth;
mod tracks;

pub(crate) use embeddings::{UnitMean, mean_of_units};
pub(crate) use grid::Grid;

use base::{Error, Result};

use crate::Label;
use crate::recogniser::{Recogniser, RecogniserKind};
use crate::speakers::Speakers;
use embeddings::SpeakerLabeller;
use events::EventLabeller;
use scenes::SceneLabeller;

/// Outputs of the model for one window: `frames x classes` values, trimmed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowScores<'a> {
    /// Number of the window.
    pub(crate) window: u64,
    /// Rows that belong to the recording; the rest is padding.
    pub(crate) real: usize,
    /// Level of its samples in dB of full scale.
    pub(crate) level: f32,
    /// Number of frames of a window.
    pub(crate) frames: usize,
    /// Number of values of a frame.
    pub(crate) classes: usize,
    /// Probabilities, or the embedding.
    pub(crate) values: &'a [f32],
    /// Probabilities of an onset, in the same layout.
    pub(crate) onsets: Option<&'a [f32]>,
}

/// Converter of the scores of windows into labels.
pub(crate) struct Labeller {
    recogniser: Recogniser,
    embeddings: bool,
    speakers: Option<Speakers>,
    started: Option<StartedPost>,
    /// The first window that may come.
    next: u64,
}

/// State since the first window, which shows the number of frames and classes.
struct StartedPost {
    frames: usize,
    classes: usize,
    meaning: Meaning,
}

enum Meaning {
    Events(EventLabeller),
    Scenes(SceneLabeller),
    Embeddings(SpeakerLabeller),
}

impl Labeller {
    /// Makes a labeller of `recogniser`'s kind. `embeddings` and `speakers` apply to recognisers of
    /// voices.
    pub(crate) fn new(
        recogniser: &Recogniser,
        embeddings: bool,
        speakers: Option<Speakers>,
    ) -> Labeller {
        Labeller { recogniser: recogniser.clone(), embeddings, speakers, started: None, next: 0 }
    }

    /// Adds the next window. Windows missing since the last one count as silence.
    ///
    /// # Errors
    /// `InvalidArgument` if the outputs are not as the recogniser says; `Internal` for a window out
    /// of order.
    pub(crate) fn add_window(
        &mut self,
        frames: WindowScores<'_>,
        out: &mut Vec<Label>,
    ) -> Result<()> {
        if frames.window < self.next {
            return Err(Error::internal("windows must come in order"));
        }
        self.next = frames.window + 1;
        let started = match &mut self.started {
            Some(started) => started,
            none => {
                let meaning =
                    start(&self.recogniser, &frames, self.embeddings, self.speakers.take())?;
                none.insert(StartedPost { frames: frames.frames, classes: frames.classes, meaning })
            }
        };
        if (frames.frames, frames.classes) != (started.frames, started.classes) {
            return Err(Error::invalid(format!(
                "the model gave {} frames of {} values for one window and {} of {} for another",
                started.frames, started.classes, frames.frames, frames.classes
            )));
        }
        match &mut started.meaning {
            Meaning::Events(events) => events.add_window(frames, out),
            Meaning::Scenes(scenes) => scenes.add_window(frames, out),
            Meaning::Embeddings(voices) => voices.add_window(frames, out),
        }
        Ok(())
    }

    /// Returns the time in seconds before which no further label starts.
    pub(crate) fn settled(&self) -> f64 {
        match self.started.as_ref().map(|started| &started.meaning) {
            None => 0.0,
            Some(Meaning::Events(events)) => events.settled(),
            Some(Meaning::Scenes(scenes)) => scenes.settled(),
            Some(Meaning::Embeddings(voices)) => voices.settled(),
        }
    }

    /// Ends all open labels. The recording has `samples` at the recogniser's rate, and `windows`
    /// windows.
    pub(crate) fn finish(&mut self, samples: u64, windows: u64, out: &mut Vec<Label>) {
        match self.started.as_mut().map(|started| &mut started.meaning) {
            None => {}
            Some(Meaning::Events(events)) => events.finish(samples, windows, out),
            Some(Meaning::Scenes(scenes)) => scenes.finish(samples, windows, out),
            Some(Meaning::Embeddings(voices)) => voices.finish(samples, windows, out),
        }
    }
}

/// Creates the labeller of the recogniser's kind. `frames` is the first window, which shows the
/// number of frames and of classes.
fn start(
    recogniser: &Recogniser,
    frames: &WindowScores<'_>,
    embeddings: bool,
    speakers: Option<Speakers>,
) -> Result<Meaning> {
    let named = |error: Error| error.context(format!("recogniser \"{}\"", recogniser.name));
    if recogniser.kind == RecogniserKind::Embeddings {
        return Ok(Meaning::Embeddings(SpeakerLabeller::new(recogniser, embeddings, speakers)));
    }
    let grid = Grid::new(recogniser, frames.frames).map_err(named)?;
    let names = recogniser.output.classes.names(frames.classes).map_err(named)?;
    Ok(match recogniser.kind {
        RecogniserKind::Events => {
            Meaning::Events(EventLabeller::new(&recogniser.events, grid, names))
        }
        _ => Meaning::Scenes(SceneLabeller::new(recogniser.scenes, grid, names)),
    })
}

#[cfg(test)]
mod tests;
