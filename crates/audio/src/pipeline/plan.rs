//! Cutting of a recording for a model.

use base::{Error, NamedTensor, Result};

use crate::recogniser::{ModelBinding, Recogniser};

/// Lengths of pieces and runs, in windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CutPlan {
    /// Distance of the beginnings of two pieces, in windows.
    pub(super) length: u64,
    pub(super) lead_in: u64,
    /// Maximum windows of one run.
    pub(super) run: usize,
    /// Fixed number of windows of a run, padded with zeros.
    pub(super) fill: Option<usize>,
    /// True if each group is a stream of the model.
    pub(super) stream: bool,
    /// Number of pieces of a group.
    pub(super) lanes: usize,
    /// True if a run may have fewer windows without changing the result.
    pub(super) short: bool,
}

impl CutPlan {
    /// Plans for a model that may be stateful, and for at most `pieces_max` available pieces.
    ///
    /// # Errors
    /// `InvalidArgument` if the model cannot be run as the recogniser says.
    pub(super) fn new(
        recogniser: &Recogniser,
        fit: &ModelBinding,
        stateful: bool,
        pieces_max: u64,
    ) -> Result<CutPlan> {
        let Recogniser { batch, sequence, pieces, .. } = recogniser;
        let whole = (pieces.length + pieces.lead_in) as usize;
        let refuse =
            |what: &str| Error::invalid(format!("recogniser \"{}\": {what}", recogniser.name));
        if *sequence && stateful {
            return Err(refuse("a model that keeps a state inside cannot be run as a sequence"));
        }
        let stream = stateful || (!sequence && !fit.carried.is_empty());
        if stream || *sequence {
            recogniser.may_wait(whole)?;
        }
        if stream {
            let large = |constant: &&NamedTensor| {
                constant.tensor.shape().first().is_some_and(|size| *size > 1)
            };
            if let Some(constant) = fit.constants.iter().find(large) {
                let what =
                    format!("\"{}\" cannot have an axis 0 above one beside a state", constant.name);
                return Err(refuse(&what));
            }
            if fit.items.is_some_and(|items| items > 1) {
                return Err(refuse("a model with a state must take one window at a time"));
            }
            let lanes = if fit.items.is_none() && fit.carried.is_empty() {
                (pieces.lanes as u64).min(pieces_max).max(1) as usize
            } else {
                1
            };
            recogniser.may_wait(whole * lanes)?;
            let short = lanes == 1;
            return Ok(CutPlan {
                length: pieces.length,
                lead_in: pieces.lead_in,
                run: *batch,
                fill: None,
                stream: true,
                lanes,
                short,
            });
        }
        if *sequence {
            let run = fit.items.unwrap_or(if fit.carried.is_empty() { whole } else { *batch });
            if fit.carried.is_empty() && run < whole {
                return Err(refuse(&format!(
                    "pieces of {whole} windows do not fit the {run} of the model"
                )));
            }
            // Zeros after a run's windows would become part of the next run's state.
            let short = !fit.carried.is_empty() && fit.items.is_none();
            return Ok(CutPlan {
                length: pieces.length,
                lead_in: pieces.lead_in,
                run,
                fill: fit.items,
                stream: false,
                lanes: 1,
                short,
            });
        }
        let run = fit.items.unwrap_or(*batch);
        let length = run as u64;
        let fill = fit.items;
        Ok(CutPlan { length, lead_in: 0, run, fill, stream: false, lanes: 1, short: true })
    }
}
