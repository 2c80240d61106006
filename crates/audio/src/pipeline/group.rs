//! Pieces that run together in one batch, one lane each.

use std::sync::Arc;

use base::{Error, NamedTensor, Result, Shape, Tensor};
use bytes::Bytes;

use super::piece::RunChunk;
use super::source::WindowInfo;
use crate::recogniser::ModelBinding;
use crate::{AudioModel, PendingRun};

/// Pieces that share their runs.
pub(super) struct RunGroup {
    pub(super) number: u64,
    /// Stream of the group, or the model itself; `None` before the first run and after a failed
    /// one.
    pub(super) model: Option<Arc<dyn AudioModel>>,
    /// State that is passed from run to run here.
    pub(super) carried: Vec<NamedTensor>,
    /// Run in flight.
    pub(super) pending: Option<PendingRun>,
    /// Windows of the run in flight.
    pub(super) members: Vec<GroupMember>,
    /// Number of windows of the run in flight in each lane.
    pub(super) count: usize,
}

/// One piece's windows of a run.
pub(super) struct GroupMember {
    /// Number of the piece.
    pub(super) piece: u64,
    /// First window of the piece in the run.
    pub(super) first: u64,
    pub(super) facts: Vec<WindowInfo>,
}

impl RunGroup {
    pub(super) fn new(number: u64) -> RunGroup {
        let carried = Vec::new();
        let members = Vec::new();
        RunGroup { number, model: None, carried, pending: None, members, count: 0 }
    }

    /// Passes the state to the next run.
    pub(super) fn carry(&mut self, fit: &ModelBinding, outputs: &[NamedTensor]) -> Result<()> {
        for (carry, now) in fit.carried.iter().zip(&mut self.carried) {
            let next = outputs.iter().find(|output| output.name == carry.output);
            now.tensor =
                next.ok_or_else(|| Error::internal("a carried output is missing"))?.tensor.clone();
        }
        Ok(())
    }
}

/// Returns the values of a run: `count` times one window of each of `lanes` lanes, `each` values
/// per window. Piece `p` has lane `p % lanes`. A lane without a window has zeros.
pub(super) fn side_by_side(
    chunks: &[(u64, RunChunk)],
    lanes: usize,
    count: usize,
    each: usize,
) -> Vec<f32> {
    let mut values = vec![0.0; count * lanes * each];
    for (piece, chunk) in chunks {
        let lane = (piece % lanes as u64) as usize;
        for window in 0..chunk.facts.len().min(count) {
            let at = (window * lanes + lane) * each;
            chunk.values.copy(window * each, &mut values[at..at + each]);
        }
    }
    values
}

/// Returns one lane of the outputs of a run that `fit` reads. Other outputs need no lanes.
///
/// # Errors
/// `InvalidArgument` if an output does not keep the lanes apart.
pub(super) fn lane_of(
    fit: &ModelBinding,
    outputs: &[NamedTensor],
    lane: usize,
    lanes: usize,
) -> Result<Vec<NamedTensor>> {
    if lanes == 1 {
        return Ok(outputs.to_vec());
    }
    let is_read = |output: &&NamedTensor| {
        output.name == fit.output || fit.onset.as_ref() == Some(&output.name)
    };
    outputs.iter().filter(is_read).map(|output| rows_of_lane(output, lane, lanes)).collect()
}

/// Returns the rows of one lane of an output. Row `r` belongs to the lane `r % lanes`.
///
/// # Errors
/// `InvalidArgument` for strings, and if the number of rows is 0 or not a multiple of `lanes`.
fn rows_of_lane(output: &NamedTensor, lane: usize, lanes: usize) -> Result<NamedTensor> {
    let shape = output.tensor.shape();
    let rows = shape.first().copied().filter(|rows| *rows > 0 && rows.is_multiple_of(lanes));
    let (Some(rows), Some(bytes)) = (rows, output.tensor.bytes()) else {
        let name = &output.name;
        return Err(Error::invalid(format!(
            "output \"{name}\" of shape {shape:?} does not have {lanes} lanes: use lanes = 1"
        )));
    };
    let each = bytes.len() / rows;
    let own: Vec<u8> = (lane..rows)
        .step_by(lanes)
        .flat_map(|row| &bytes[row * each..(row + 1) * each])
        .copied()
        .collect();
    let own_shape: Shape =
        std::iter::once(rows / lanes).chain(shape[1..].iter().copied()).collect();
    let tensor = Tensor::from_bytes(output.tensor.dtype(), own_shape, Bytes::from(own))?;
    Ok(NamedTensor { name: output.name.clone(), tensor })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::pipeline::values::WindowValues;

    #[test]
    fn lanes_are_joined_and_separated() {
        let chunk = |rows: &[f32]| {
            let mut values = WindowValues::with_room(rows.len(), false);
            values.extend(rows);
            let facts = vec![WindowInfo { real: 2, level: 0.0 }; rows.len() / 2];
            RunChunk { since: Instant::now(), first: 0, facts, values }
        };
        let chunks = [(4, chunk(&[1.0, 1.5, 2.0, 2.5])), (6, chunk(&[5.0, 5.5]))];
        let values = side_by_side(&chunks, 4, 2, 2);
        let expected =
            [1.0, 1.5, 0.0, 0.0, 5.0, 5.5, 0.0, 0.0, 2.0, 2.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(values, expected);
        // An output that the recogniser does not read may have any shape.
        let outputs = [
            NamedTensor::new("total", Tensor::from_vec([].as_slice(), vec![9.0_f32]).unwrap()),
            NamedTensor::new("y", Tensor::from_vec([8, 2].as_slice(), values).unwrap()),
        ];
        let mut fit = ModelBinding {
            input: "x".into(),
            items: None,
            constants: Vec::new(),
            carried: Vec::new(),
            output: "y".into(),
            onset: None,
        };
        let lane = |lane| {
            let own = lane_of(&fit, &outputs, lane, 4).unwrap();
            assert_eq!(own.len(), 1);
            own[0].tensor.to_vec::<f32>().unwrap()
        };
        assert_eq!(lane(0), [1.0, 1.5, 2.0, 2.5]);
        assert_eq!(lane(2), [5.0, 5.5, 0.0, 0.0]);
        assert!(lane_of(&fit, &outputs, 0, 3).is_err());
        fit.onset = Some("total".into());
        assert!(lane_of(&fit, &outputs, 0, 4).is_err());
    }
}
