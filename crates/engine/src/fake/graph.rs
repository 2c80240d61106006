//! Graphs of the fake: one statement a line, words separated by blanks.
//!
//! ```text
//! millpond-fake 1                    the first line
//! input x float32 n 3                name, type, axes: a number or a symbol, or * for any rank
//! output y float32 n 3
//! parameter half float32 1           must be bound, with this type and shape
//! y = echo x                         the same elements
//! y = affine x half 2                x times half plus 2; number or parameter's first element
//! y = pick table x                   rows of a parameter by int64 index
//! y = column x                       the same elements with a last axis of size 1
//! y = lengths x                      bytes of each string as float32, in the same form
//! signature NAME METHOD              inputs and outputs that follow belong to this signature
//! metadata author the test           key and value
//! load-delay 20                      milliseconds
//! run-delay 1                        milliseconds
//! fail-load why                      each load fails with InvalidArgument
//! fail-run why                       each run fails with Internal
//! abort-load why                     each load writes a line and aborts the process
//! abort-run 13                       a run whose first input begins with this float aborts it
//! lose-run 13                        such a run fails, and so do all later runs of the process
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::{DType, Dim, Error, NamedTensor, Result, Shape, Signature, Tensor, TensorSpec};
use bytes::Bytes;

use crate::{BoundTensor, DEFAULT_SIGNATURE, NamedSignature};

/// First line of a graph.
const MAGIC: &str = "millpond-fake 1";
/// Maximum delay, in milliseconds.
const DELAY_MS_MAX: u64 = 60_000;

/// A number, or a parameter's first element.
#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Number(f32),
    Parameter(String),
}

#[derive(Clone, Debug, PartialEq)]
enum FakeOperation {
    Echo { input: String },
    Affine { input: String, scale: Operand, offset: Operand },
    Pick { table: String, index: String },
    Column { input: String },
    Lengths { input: String },
}

/// A parsed graph.
#[derive(Debug, Default)]
pub(crate) struct FakeGraph {
    pub(crate) signature: Signature,
    pub(crate) signatures: Vec<NamedSignature>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) load_delay: Duration,
    pub(crate) run_delay: Duration,
    pub(crate) fail_load: Option<String>,
    pub(crate) fail_run: Option<String>,
    pub(crate) abort_load: Option<String>,
    abort_run: Option<f32>,
    lose_run: Option<f32>,
    parameters: Vec<TensorSpec>,
    operations: BTreeMap<String, FakeOperation>,
}

impl FakeGraph {
    /// Parses the text of a graph.
    ///
    /// # Errors
    /// `DataLoss` if the text is not a graph, `InvalidArgument` if the graph contradicts itself.
    pub(crate) fn parse(text: &str) -> Result<FakeGraph> {
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return Err(Error::data_loss(format!(
                "not a fake graph: its first line is not \"{MAGIC}\""
            )));
        }
        let mut graph = FakeGraph::default();
        for line in lines.map(str::trim).filter(|line| !line.is_empty()) {
            graph.line(line).ok_or_else(|| {
                Error::invalid(format!("\"{line}\" means nothing in a fake graph"))
            })?;
        }
        if let Some(default) = graph.signatures.get(graph.default_signature()) {
            graph.signature = default.signature.clone();
        }
        let signatures = graph.signatures.iter().map(|named| &named.signature);
        let outputs = signatures.chain([&graph.signature]).flat_map(|signature| &signature.outputs);
        for output in outputs {
            if !graph.operations.contains_key(&output.name) {
                return Err(Error::invalid(format!("nothing computes \"{}\"", output.name)));
            }
        }
        Ok(graph)
    }

    /// Reads one line of a graph. Returns `None` for a line of another form.
    fn line(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        let rest = rest.trim();
        match word {
            "input" => self.current().inputs.push(spec(rest)?),
            "output" => self.current().outputs.push(spec(rest)?),
            "signature" => {
                let (name, method) = rest.split_once(' ')?;
                let named = NamedSignature {
                    name: name.into(),
                    method: method.to_owned(),
                    ..NamedSignature::default()
                };
                self.signatures.push(named);
            }
            "parameter" => self.parameters.push(spec(rest)?),
            "load-delay" => self.load_delay = delay(rest)?,
            "run-delay" => self.run_delay = delay(rest)?,
            "fail-load" => self.fail_load = Some(rest.to_owned()),
            "fail-run" => self.fail_run = Some(rest.to_owned()),
            "abort-load" => self.abort_load = Some(rest.to_owned()),
            "abort-run" => self.abort_run = Some(rest.parse().ok()?),
            "lose-run" => self.lose_run = Some(rest.parse().ok()?),
            "metadata" => {
                let (key, value) = rest.split_once(' ')?;
                self.metadata.insert(key.to_owned(), value.to_owned());
            }
            output => {
                self.operations.insert(output.to_owned(), operation(rest.strip_prefix("= ")?)?);
            }
        }
        Some(())
    }

    /// Returns the signature to which lines of inputs and outputs are added.
    fn current(&mut self) -> &mut Signature {
        self.signatures.last_mut().map_or(&mut self.signature, |named| &mut named.signature)
    }

    /// Returns the position of the signature that runs if none is named.
    pub(crate) fn default_signature(&self) -> usize {
        let default = self.signatures.iter().position(|named| &*named.name == DEFAULT_SIGNATURE);
        default.unwrap_or(0)
    }

    /// Checks the bound tensors against the parameters that the graph declares.
    ///
    /// # Errors
    /// `InvalidArgument` if a parameter is missing or is not as the graph declares it.
    pub(crate) fn check_parameters(&self, bound: &[BoundTensor]) -> Result<()> {
        for spec in &self.parameters {
            let name = &spec.name;
            let found = bound
                .iter()
                .find(|tensor| tensor.name == *name)
                .ok_or_else(|| Error::invalid(format!("parameter \"{name}\" is not bound")))?;
            found.check()?;
            let dims: Vec<Dim> = found.dims.iter().map(|&size| Dim::Fixed(size)).collect();
            if found.dtype != spec.dtype || Some(&dims) != spec.shape.as_ref() {
                return Err(Error::invalid(format!(
                    "parameter \"{name}\" has another type or shape than the graph"
                )));
            }
        }
        Ok(())
    }

    /// Returns true if a run with these inputs makes the device fail.
    pub(crate) fn loses_device(&self, inputs: &[NamedTensor]) -> bool {
        self.lose_run.is_some() && first_value(inputs) == self.lose_run
    }

    /// Computes the outputs `wanted`, or all of `signature`.
    pub(crate) fn run(
        &self,
        signature: &Signature,
        parameters: &[BoundTensor],
        inputs: &[NamedTensor],
        wanted: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        let run = FakeRun { parameters, inputs };
        if self.abort_run.is_some() && first_value(inputs) == self.abort_run {
            abort("Check failed: a value of this graph");
        }
        let compute = |name: &str| -> Result<NamedTensor> {
            let operation = self.operations.get(name).filter(|_| signature.output(name).is_some());
            let operation = operation
                .ok_or_else(|| Error::invalid(format!("the model has no output \"{name}\"")))?;
            Ok(NamedTensor::new(name, run.compute(operation)?))
        };
        match wanted {
            [] => signature.outputs.iter().map(|spec| compute(&spec.name)).collect(),
            names => names.iter().map(|name| compute(name)).collect(),
        }
    }
}

/// Returns the first element of the first input, if it is a float.
fn first_value(inputs: &[NamedTensor]) -> Option<f32> {
    inputs.first()?.tensor.to_vec::<f32>().ok()?.first().copied()
}

/// Aborts the process as a native library does.
pub(crate) fn abort(why: &str) -> ! {
    use std::io::Write;
    // Written directly, as tests capture the macros' output.
    let _ = writeln!(std::io::stderr(), "{why}");
    std::process::abort()
}

/// Parses an input: its name, its type and its axes. `*` stands for any shape.
fn spec(text: &str) -> Option<TensorSpec> {
    let mut words = text.split_whitespace();
    let name = words.next()?.to_owned();
    let dtype = DType::from_name(words.next()?)?;
    let dim =
        |word: &str| word.parse().map_or_else(|_| Dim::Dynamic(Some(word.to_owned())), Dim::Fixed);
    let axes: Vec<&str> = words.collect();
    let shape = if axes == ["*"] { None } else { Some(axes.into_iter().map(dim).collect()) };
    Some(TensorSpec { name, dtype, shape, optional: false })
}

fn delay(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|ms| *ms <= DELAY_MS_MAX).map(Duration::from_millis)
}

/// Parses an operation: a name and its operands. `None` for another text.
fn operation(text: &str) -> Option<FakeOperation> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let operand = |word: &str| {
        word.parse().map_or_else(|_| Operand::Parameter(word.to_owned()), Operand::Number)
    };
    match words[..] {
        ["echo", input] => Some(FakeOperation::Echo { input: input.to_owned() }),
        ["column", input] => Some(FakeOperation::Column { input: input.to_owned() }),
        ["lengths", input] => Some(FakeOperation::Lengths { input: input.to_owned() }),
        ["affine", input, scale, offset] => Some(FakeOperation::Affine {
            input: input.to_owned(),
            scale: operand(scale),
            offset: operand(offset),
        }),
        ["pick", table, index] => {
            Some(FakeOperation::Pick { table: table.to_owned(), index: index.to_owned() })
        }
        _ => None,
    }
}

/// Returns the shape of `input` with a last axis of size 1.
fn column(input: &Tensor) -> Shape {
    input.shape().iter().copied().chain([1]).collect()
}

struct FakeRun<'a> {
    parameters: &'a [BoundTensor],
    inputs: &'a [NamedTensor],
}

impl FakeRun<'_> {
    /// Runs one operation of the graph.
    fn compute(&self, operation: &FakeOperation) -> Result<Tensor> {
        match operation {
            FakeOperation::Echo { input } => Ok(self.input(input)?.clone()),
            FakeOperation::Affine { input, scale, offset } => {
                let scale = self.operand(scale)?;
                let offset = self.operand(offset)?;
                let input = self.input(input)?;
                let elements =
                    input.to_vec::<f32>()?.into_iter().map(|x| x * scale + offset).collect();
                Tensor::from_vec(Shape::from_slice(input.shape()), elements)
            }
            FakeOperation::Column { input } => {
                let input = self.input(input)?;
                match (input.strings(), input.bytes()) {
                    (Some(strings), _) => Tensor::from_strings(column(input), strings.to_vec()),
                    (None, bytes) => Tensor::from_bytes(
                        input.dtype(),
                        column(input),
                        bytes.cloned().unwrap_or_default(),
                    ),
                }
            }
            FakeOperation::Lengths { input } => {
                let input = self.input(input)?;
                let strings = input.strings().unwrap_or_default();
                let lengths: Vec<f32> = strings.iter().map(|text| text.len() as f32).collect();
                Tensor::from_vec(column(input), lengths)
            }
            FakeOperation::Pick { table, index } => {
                self.pick(self.parameter(table)?, self.input(index)?)
            }
        }
    }

    /// Returns the rows of `table` at the positions in `index`.
    fn pick(&self, table: &BoundTensor, index: &Tensor) -> Result<Tensor> {
        let (rows, row_shape) =
            table.dims.split_first().ok_or_else(|| Error::invalid("a table has rows"))?;
        let row_bytes = table.bytes.checked_div(*rows).unwrap_or(0);
        let mut picked = Vec::with_capacity(row_bytes * index.elements());
        for at in index.to_vec::<i64>()? {
            let row = usize::try_from(at).ok().filter(|row| row < rows).ok_or_else(|| {
                Error::invalid(format!(
                    "index {at} is outside the {rows} rows of \"{}\"",
                    table.name
                ))
            })?;
            picked.extend_from_slice(&table.as_slice()[row * row_bytes..][..row_bytes]);
        }
        let shape: Shape = index.shape().iter().chain(row_shape).copied().collect();
        Tensor::from_bytes(table.dtype, shape, Bytes::from(picked))
    }

    /// Returns the value of an operand. That of a parameter is its first element.
    fn operand(&self, operand: &Operand) -> Result<f32> {
        match operand {
            Operand::Number(number) => Ok(*number),
            Operand::Parameter(name) => {
                let first = self.parameter(name)?.as_slice().first_chunk::<4>();
                first
                    .map(|bytes| f32::from_le_bytes(*bytes))
                    .ok_or_else(|| Error::invalid("an empty parameter"))
            }
        }
    }

    fn input(&self, name: &str) -> Result<&Tensor> {
        let found = self.inputs.iter().find(|input| *input.name == *name);
        found
            .map(|input| &input.tensor)
            .ok_or_else(|| Error::invalid(format!("input \"{name}\" is missing")))
    }

    fn parameter(&self, name: &str) -> Result<&BoundTensor> {
        let found = self.parameters.iter().find(|parameter| parameter.name == *name);
        found.ok_or_else(|| Error::invalid(format!("parameter \"{name}\" is not bound")))
    }
}
