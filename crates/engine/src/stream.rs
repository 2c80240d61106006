//! A version that carries a state from item to item, for one stream of requests such as a
//! recording.
//!
//! Some models keep their state inside (see [`Session::stateful`]); others take it as an input and
//! return it as an output. Here both look the same. A run's inputs hold consecutive items along
//! axis 0. The items run one after the other, and the state passes to the next item and the next
//! run. A run takes many items, because queueing a run for a worker costs about as much as one item
//! of a small model.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{CarriedInput, DType, Error, NamedTensor, Result, Shape, Signature, Tensor};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{Servable, Session};

pub(crate) struct StreamSession {
    runner: Runner,
    /// Number of rows of axis 0 that make an item.
    lanes: usize,
    /// Current values of the carried inputs. The lock also serialises runs.
    state: Mutex<Vec<(CarriedInput, Tensor)>>,
}

enum Runner {
    /// A fork with its own state. It is dropped before the version whose parameters it uses.
    Own { session: Box<dyn Session>, _origin: Arc<Servable> },
    /// The version itself.
    Shared(Arc<Servable>),
}

impl Runner {
    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        match self {
            Runner::Own { session, .. } => session.run(inputs, outputs),
            Runner::Shared(servable) => servable.run(inputs, outputs),
        }
    }
}

impl StreamSession {
    /// Opens a stream of `servable`, at its beginning, whose items are `lanes` rows of axis 0.
    ///
    /// # Errors
    /// `InvalidArgument` for a carried tensor that the model does not have; the errors of
    /// [`Session::fork`].
    pub(crate) fn new(
        servable: &Arc<Servable>,
        carried: Vec<CarriedInput>,
        lanes: usize,
    ) -> Result<StreamSession> {
        let signature = servable.signature();
        for carry in &carried {
            if signature.input(&carry.input).is_none() || signature.output(&carry.output).is_none()
            {
                let input = &carry.input;
                let output = &carry.output;
                return Err(Error::invalid(format!(
                    "the model cannot carry \"{output}\" to \"{input}\": it does not have both"
                )));
            }
        }
        let runner = if servable.stateful() {
            Runner::Own { session: servable.fork_session()?, _origin: servable.clone() }
        } else {
            Runner::Shared(servable.clone())
        };
        let state = carried.into_iter().map(|carry| (carry.clone(), carry.initial)).collect();
        Ok(StreamSession { runner, lanes: lanes.max(1), state: Mutex::new(state) })
    }

    /// Runs one item and stores its state.
    fn item(
        &self,
        state: &mut [(CarriedInput, Tensor)],
        mut inputs: Vec<NamedTensor>,
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        inputs.extend(
            state.iter().map(|(carry, now)| NamedTensor::new(carry.input.clone(), now.clone())),
        );
        if state.is_empty() {
            return self.runner.run(&inputs, outputs);
        }
        let mut answer = self.runner.run(&inputs, &[])?;
        for (carry, now) in state.iter_mut() {
            let next = answer.iter().find(|output| output.name == carry.output);
            *now =
                next.ok_or_else(|| Error::internal("a carried output is missing"))?.tensor.clone();
        }
        if !outputs.is_empty() {
            answer = outputs
                .iter()
                .map(|name| answer.iter().find(|output| output.name == *name).cloned())
                .collect::<Option<_>>()
                .ok_or_else(|| Error::invalid("the model has no such output"))?;
        }
        Ok(answer)
    }
}

impl Session for StreamSession {
    fn signature(&self) -> &Signature {
        match &self.runner {
            Runner::Own { session, .. } => session.signature(),
            Runner::Shared(servable) => servable.signature(),
        }
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        match &self.runner {
            Runner::Own { session, .. } => session.metadata(),
            Runner::Shared(servable) => servable.metadata(),
        }
    }

    fn runs_elsewhere(&self) -> bool {
        match &self.runner {
            Runner::Own { session, .. } => session.runs_elsewhere(),
            Runner::Shared(servable) => servable.runs_elsewhere(),
        }
    }

    fn stateful(&self) -> bool {
        true
    }

    /// Axis 0 of the first input holds the items, `lanes` rows each. An input with as many rows is
    /// split, and each item keeps an axis 0 of `lanes`. The other inputs go to every item. Outputs
    /// are joined along axis 0.
    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        let count = inputs.first().and_then(|input| input.tensor.shape().first().copied());
        let rows = count
            .ok_or_else(|| Error::invalid("a stream's first input counts its items on axis 0"))?;
        let lanes = self.lanes;
        if !rows.is_multiple_of(lanes) {
            return Err(Error::invalid(format!("{rows} rows are not items of {lanes} rows each")));
        }
        let count = rows / lanes;
        let mut state = self.state.lock();
        let mut answers: Vec<Vec<NamedTensor>> = Vec::with_capacity(count);
        for index in 0..count {
            let item = inputs
                .iter()
                .map(|input| item_of(input, index, rows, lanes))
                .collect::<Result<_>>()?;
            answers.push(self.item(&mut state, item, outputs)?);
        }
        join(&answers)
    }
}

/// Returns item `index`: `lanes` of the `rows` of an input, or the whole input if its axis 0 does
/// not have `rows`.
fn item_of(input: &NamedTensor, index: usize, rows: usize, lanes: usize) -> Result<NamedTensor> {
    let tensor = &input.tensor;
    let (Some(&first), Some(bytes)) = (tensor.shape().first(), tensor.bytes()) else {
        return Ok(input.clone());
    };
    if first != rows {
        return Ok(input.clone());
    }
    let each = bytes.len() / rows * lanes;
    let shape: Shape = std::iter::once(lanes).chain(tensor.shape()[1..].iter().copied()).collect();
    let tensor =
        Tensor::from_bytes(tensor.dtype(), shape, bytes.slice(index * each..(index + 1) * each))?;
    Ok(NamedTensor { name: input.name.clone(), tensor })
}

/// Joins the items' outputs along axis 0. An output without axes gets one axis.
fn join(answers: &[Vec<NamedTensor>]) -> Result<Vec<NamedTensor>> {
    let Some(first) = answers.first() else { return Ok(Vec::new()) };
    let differ = || Error::internal("a stream's items have outputs of different types or shapes");
    let joined = |(index, output): (usize, &NamedTensor)| {
        let dtype = output.tensor.dtype();
        let shape = output.tensor.shape();
        let part = |answer: &Vec<NamedTensor>| -> Option<Tensor> {
            let tensor = &answer.get(index)?.tensor;
            (tensor.dtype() == dtype && tensor.shape() == shape).then(|| tensor.clone())
        };
        let parts: Vec<Tensor> =
            answers.iter().map(part).collect::<Option<_>>().ok_or_else(differ)?;
        let items = shape.first().copied().unwrap_or(1) * answers.len();
        let shape: Shape = std::iter::once(items).chain(shape.iter().skip(1).copied()).collect();
        let tensor = if dtype == DType::String {
            let strings = parts.iter().filter_map(Tensor::strings).flatten().cloned();
            Tensor::from_strings(shape, strings.collect::<Vec<Bytes>>())?
        } else {
            let bytes: Vec<&[u8]> =
                parts.iter().filter_map(Tensor::bytes).map(|bytes| &bytes[..]).collect();
            Tensor::from_bytes(dtype, shape, Bytes::from(bytes.concat()))?
        };
        Ok(NamedTensor { name: output.name.clone(), tensor })
    };
    first.iter().enumerate().map(joined).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_all_types_are_joined() {
        let item = |number: f32, text: &'static str| {
            let strings = vec![Bytes::from_static(text.as_bytes())];
            vec![
                NamedTensor::new("score", Tensor::from_vec([].as_slice(), vec![number]).unwrap()),
                NamedTensor::new("label", Tensor::from_strings([1].as_slice(), strings).unwrap()),
            ]
        };
        let joined = join(&[item(1.0, "a"), item(2.0, "bc")]).unwrap();
        assert_eq!(joined[0].tensor.to_vec::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(joined[1].tensor.shape(), [2]);
        assert_eq!(joined[1].tensor.strings().unwrap(), ["a", "bc"]);
        let mut other = item(2.0, "b");
        other.swap(0, 1);
        assert!(join(&[item(1.0, "a"), other]).is_err());
        let mut integer = item(2.0, "b");
        integer[0].tensor = Tensor::from_vec([].as_slice(), vec![2_i32]).unwrap();
        assert!(join(&[item(1.0, "a"), integer]).is_err(), "equal shapes, but different types");
    }
}
