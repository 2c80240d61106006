//! Batching rules of one version: its schedule options resolved against its signature.

mod cuts;
mod padding;

use std::sync::Arc;

use base::{DType, Dim, Error, Result, Signature, TensorSpec};

use crate::{ScheduleMode, ScheduleOptions};

use cuts::cuts;
use padding::{add_length, add_mask, add_padding, unpadded};

/// Padding of each input and cutting of each output, in the signature's order.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPlan {
    /// True if requests can be joined along axis 0. Axis 0 must be dynamic in every output and in
    /// every input that is not shared. No other axis of them may have the symbol of an input's
    /// axis 0. Elements of these inputs must be whole bytes: an item of packed elements may begin
    /// within a byte.
    pub batchable: bool,
    /// One entry for each input of the signature.
    pub inputs: Vec<InputPlan>,
    /// One entry for each output of the signature that has a rule.
    pub cuts: Vec<OutputPlan>,
}

/// Padding of one input.
#[derive(Clone, Debug, PartialEq)]
pub struct InputPlan {
    /// Name in the signature.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: DType,
    /// Axes that may grow. Each names the padded input and axis that decides its size: itself for a
    /// padded input, the masked input for a mask.
    pub axes: Vec<GrowingAxis>,
    /// Value of padded elements.
    pub value: f64,
    /// Padding rule; `None` unless the settings pad this input directly.
    pub rule: Option<PadRule>,
    /// Contents, if the server makes this input.
    pub fill: Option<InputFill>,
    /// True if the input has no batch axis (a scalar, or a fixed shape), so that all requests of a
    /// run need equal values. Set only in a batchable plan.
    pub shared: bool,
}

/// One axis that may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowingAxis {
    /// Axis of this input.
    pub axis: usize,
    /// Index in [`BatchPlan::inputs`] of the input that decides its size.
    pub source: usize,
    /// Axis of that input.
    pub source_axis: usize,
}

/// Condition for two shapes to share a batch, and sizes to which a shape is always rounded up.
#[derive(Clone, Debug, PartialEq)]
pub struct PadRule {
    /// True if requests with different shapes may be merged. Otherwise their shapes must be equal
    /// after rounding.
    pub merge: bool,
    /// Sizes to round up to, ascending.
    pub buckets: Vec<usize>,
    /// Smallest share of the padded shape that a request must fill, exclusive.
    pub similarity: f64,
    /// Bytes of padding per request that are allowed at any share, exclusive.
    pub slack_bytes: usize,
}

/// Contents of an input that the server makes.
#[derive(Clone, Debug, PartialEq)]
pub enum InputFill {
    /// Ones in the real shape of input `source`: its padded axes only, or all its axes with size 1
    /// where they are not padded.
    Mask {
        /// Index of the masked input.
        source: usize,
        /// True if the mask has the source's rank. If false, it has one axis for the batch and one
        /// for each padded axis.
        full_rank: bool,
    },
    /// Real sizes of the padded axes of input `source`.
    Length {
        /// Index of the measured input.
        source: usize,
        /// True if the length has a second axis with one column for each padded axis.
        matrix: bool,
    },
}

/// Cutting of one output that follows padded inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputPlan {
    /// Name in the signature.
    pub name: Arc<str>,
    /// Axes to cut.
    pub axes: Vec<AxisCut>,
}

/// Size of an output's axis as a function of an input's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisCut {
    /// Axis of the output.
    pub axis: usize,
    /// Index of the input that it follows.
    pub source: usize,
    /// Axis of that input.
    pub source_axis: usize,
    /// Divisor of the size.
    pub divisor: usize,
    /// True if the division rounds up.
    pub round_up: bool,
    /// Number added after the division.
    pub offset: i64,
}

impl AxisCut {
    /// Returns the output's real size for an input's real size.
    pub fn size(&self, input: usize) -> usize {
        let divided =
            if self.round_up { input.div_ceil(self.divisor) } else { input / self.divisor };
        usize::try_from((divided as i64).saturating_add(self.offset)).unwrap_or(0)
    }
}

fn free(spec: &TensorSpec, axis: usize) -> bool {
    spec.shape.as_ref().is_none_or(|dims| matches!(dims.get(axis), Some(Dim::Dynamic(_))))
}

impl BatchPlan {
    /// Resolves `options` against `signature`.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option that does not fit the model. The reasons are:
    /// * an unknown input or output
    /// * an axis that is missing or fixed
    /// * a padded input of unknown rank
    /// * a mask of the wrong rank or type
    /// * an output without a cutting rule whose size follows the input, or whose rank is unknown
    pub fn new(signature: &Signature, options: &ScheduleOptions) -> Result<BatchPlan> {
        options.check()?;
        let mut inputs: Vec<InputPlan> = signature.inputs.iter().map(unpadded).collect();
        for (name, pad) in &options.inputs {
            let source = index(signature, name)?;
            add_padding(
                &mut inputs[source],
                source,
                &signature.inputs[source],
                pad,
                options.merge,
            )?;
            if let Some(mask) = &pad.mask {
                add_mask(&mut inputs, signature, mask, source, pad)?;
            }
            if let Some(length) = &pad.length {
                add_length(&mut inputs, signature, length, source, pad)?;
            }
        }
        let cuts = cuts(signature, options)?;
        let batchable = options.mode == ScheduleMode::Async && share(&mut inputs, signature);
        Ok(BatchPlan { batchable, inputs, cuts })
    }

    /// Returns the reason why the shapes or types of `signature`, that of this plan, do not allow
    /// to join requests. `None` if they allow it.
    pub fn obstacle(&self, signature: &Signature) -> Option<String> {
        obstacle(&self.inputs, signature)
    }

    /// Returns true if requests of one run need equal values of the input `name`.
    pub fn is_shared(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input.shared && *input.name == *name)
    }

    /// Returns true if the requests of a run share any input.
    pub fn shares(&self) -> bool {
        self.inputs.iter().any(|input| input.shared)
    }

    /// Returns true if any input may be padded.
    pub fn pads(&self) -> bool {
        self.inputs.iter().any(|input| input.rule.is_some())
    }

    /// Returns true if an output of a joined run can have other sizes than each request alone.
    /// `signature` is that of this plan. It then has an output with a dynamic axis behind axis 0
    /// whose size follows no rule. A shared input may be that size.
    pub fn has_open_outputs(&self, signature: &Signature) -> bool {
        let has_open_axis = |spec: &TensorSpec| {
            let rank = spec.shape.as_ref().map_or(0, Vec::len);
            (1..rank).any(|axis| self.is_open(spec, axis))
        };
        self.batchable
            && (self.pads() || !self.shares())
            && signature.outputs.iter().any(has_open_axis)
    }

    /// Returns true if this axis of the output `spec` is dynamic, is not axis 0, and follows no
    /// rule.
    pub fn is_open(&self, spec: &TensorSpec, axis: usize) -> bool {
        let mut cuts = self.cuts.iter().filter(|cut| *cut.name == *spec.name);
        let has_rule = cuts.any(|cut| cut.axes.iter().any(|cut| cut.axis == axis));
        axis > 0 && free(spec, axis) && !has_rule
    }

    /// Returns true if the server makes any input.
    pub fn fills(&self) -> bool {
        self.inputs.iter().any(|input| input.fill.is_some())
    }
}

/// Marks the inputs that the requests of a run share, if all other inputs and all outputs can be
/// joined along axis 0. Returns false if they cannot.
fn share(inputs: &mut [InputPlan], signature: &Signature) -> bool {
    if obstacle(inputs, signature).is_some() {
        return false;
    }
    for (spec, input) in signature.inputs.iter().zip(inputs) {
        input.shared = !is_batched(spec);
    }
    true
}

/// Returns the reason why requests cannot be joined along axis 0, or `None` if they can.
fn obstacle(inputs: &[InputPlan], signature: &Signature) -> Option<String> {
    let symbol = |spec: &TensorSpec, axis: usize| match spec.shape.as_ref()?.get(axis)? {
        Dim::Dynamic(Some(name)) => Some(name.clone()),
        _ => None,
    };
    let items: Vec<_> = signature.inputs.iter().filter_map(|spec| symbol(spec, 0)).collect();
    // If another axis also counts the items of the run, it counts those of other requests too.
    let crosses = |spec: &TensorSpec| {
        let rank = spec.shape.as_ref().map_or(0, Vec::len);
        (1..rank).any(|axis| symbol(spec, axis).is_some_and(|name| items.contains(&name)))
    };
    let of_axes = |spec: &TensorSpec| match &spec.shape {
        None => Some("has an unknown number of axes"),
        Some(_) if !is_batched(spec) => Some("has no dynamic axis 0"),
        Some(_) => crosses(spec).then_some("has the items on another axis too"),
    };
    let of_input = |spec: &TensorSpec, input: &InputPlan| {
        let fixed = |dims: &Vec<Dim>| dims.iter().all(|dim| matches!(dim, Dim::Fixed(_)));
        let plain = input.rule.is_none() && input.fill.is_none() && input.axes.is_empty();
        if plain && spec.shape.as_ref().is_some_and(fixed) {
            return None;
        }
        let is_whole = spec.dtype.bits().is_none_or(|bits| bits.is_multiple_of(8));
        of_axes(spec).or_else(|| (!is_whole).then_some("has packed elements"))
    };
    if !signature.inputs.iter().any(is_batched) {
        return Some("no input has a dynamic axis 0".to_owned());
    }
    for spec in &signature.outputs {
        if let Some(why) = of_axes(spec) {
            return Some(format!("output \"{}\" {why}", spec.name));
        }
    }
    let mut inputs = signature.inputs.iter().zip(inputs);
    inputs.find_map(|(spec, input)| {
        of_input(spec, input).map(|why| format!("input \"{}\" {why}", spec.name))
    })
}

/// Returns true if axis 0 of the tensor is known to be dynamic.
fn is_batched(spec: &TensorSpec) -> bool {
    spec.shape.is_some() && free(spec, 0)
}

/// Returns the position of an input.
///
/// # Errors
/// `InvalidArgument` if the model has no such input.
fn index(signature: &Signature, name: &str) -> Result<usize> {
    signature.inputs.iter().position(|spec| spec.name == name).ok_or_else(|| {
        let known: Vec<&str> = signature.inputs.iter().map(|spec| spec.name.as_str()).collect();
        Error::invalid(format!(
            "inputs.{name}: the model has no such input; it has {}",
            known.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CutOptions, PadOptions};

    fn spec(name: &str, dims: &[i64]) -> TensorSpec {
        let dim = |&size: &i64| usize::try_from(size).map_or(Dim::Dynamic(None), Dim::Fixed);
        let shape = Some(dims.iter().map(dim).collect());
        TensorSpec { name: name.into(), dtype: DType::F32, shape, optional: false }
    }

    #[test]
    fn an_output_that_crosses_requests_is_not_joined() {
        let named = |name: &str| Dim::Dynamic(Some(name.into()));
        let with = |name: &str, dims: [Dim; 2]| TensorSpec {
            shape: Some(dims.to_vec()),
            ..spec(name, &[])
        };
        let signature = |crossed: &str| Signature {
            inputs: vec![
                with("q", [named("q"), Dim::Fixed(4)]),
                with("d", [named("d"), Dim::Fixed(4)]),
            ],
            outputs: vec![with("y", [named("q"), named(crossed)])],
        };
        let options = ScheduleOptions { mode: ScheduleMode::Async, ..ScheduleOptions::default() };
        let joined = |crossed| BatchPlan::new(&signature(crossed), &options).unwrap().batchable;
        assert_eq!((joined("d"), joined("other")), (false, true));
    }

    /// The matrix of a graph has a row and a column for each of its nodes.
    #[test]
    fn an_input_that_crosses_items_is_neither_joined_nor_cut() {
        let named = |name: &str| Dim::Dynamic(Some(name.into()));
        let with = |name: &str, dims: [Dim; 2]| TensorSpec {
            shape: Some(dims.to_vec()),
            ..spec(name, &[])
        };
        let signature = |columns: &str| Signature {
            inputs: vec![
                with("x", [named("n"), Dim::Fixed(4)]),
                with("edges", [named("n"), named(columns)]),
            ],
            outputs: vec![with("y", [named("n"), Dim::Fixed(2)])],
        };
        let options = ScheduleOptions { mode: ScheduleMode::Async, ..ScheduleOptions::default() };
        let joined = |columns| BatchPlan::new(&signature(columns), &options).unwrap().batchable;
        assert_eq!((joined("n"), joined("m")), (false, true));
    }

    fn ocr() -> (Signature, ScheduleOptions) {
        let signature = Signature {
            inputs: vec![spec("x", &[-1, 3, 48, -1]), spec("m", &[-1, -1]), spec("l", &[-1])],
            outputs: vec![spec("y", &[-1, -1, 97])],
        };
        let mut options =
            ScheduleOptions { mode: ScheduleMode::Async, ..ScheduleOptions::default() };
        let (mask, length) = (Some("m".into()), Some("l".into()));
        options.inputs.insert(
            "x".into(),
            PadOptions { axes: vec![3], mask, length, ..PadOptions::default() },
        );
        let cut = CutOptions {
            axis: 1,
            input: "x".into(),
            input_axis: 3,
            divisor: 8,
            round_up: false,
            offset: 0,
        };
        options.outputs.insert("y".into(), vec![cut]);
        (signature, options)
    }

    #[test]
    fn masks_and_cuts_follow_their_input() {
        let (signature, options) = ocr();
        let plan = BatchPlan::new(&signature, &options).unwrap();
        assert!(plan.batchable && plan.pads() && plan.fills());
        assert_eq!(plan.inputs[1].axes, [GrowingAxis { axis: 1, source: 0, source_axis: 3 }]);
        assert_eq!(plan.inputs[1].fill, Some(InputFill::Mask { source: 0, full_rank: false }));
        assert_eq!(plan.inputs[2].fill, Some(InputFill::Length { source: 0, matrix: false }));
        assert_eq!(plan.cuts[0].axes[0].size(325), 40);
    }

    #[test]
    fn only_a_free_first_axis_everywhere_is_a_batch() {
        let (mut signature, options) = ocr();
        signature.outputs[0].shape = Some(vec![Dim::Fixed(1), Dim::Dynamic(None), Dim::Fixed(97)]);
        assert!(!BatchPlan::new(&signature, &options).unwrap().batchable);
        let (signature, mut options) = ocr();
        options.mode = ScheduleMode::Sync;
        assert!(!BatchPlan::new(&signature, &options).unwrap().batchable);
    }

    #[test]
    fn a_reason_names_the_tensor_that_is_not_joined() {
        let reason = |input: TensorSpec, output: TensorSpec| {
            let signature = Signature { inputs: vec![input], outputs: vec![output] };
            let options =
                ScheduleOptions { mode: ScheduleMode::Async, ..ScheduleOptions::default() };
            let plan = BatchPlan::new(&signature, &options).unwrap();
            assert_eq!(plan.batchable, plan.obstacle(&signature).is_none());
            plan.obstacle(&signature).unwrap_or_default()
        };
        let (x, y) = (spec("x", &[-1, 4]), spec("y", &[-1]));
        assert_eq!(reason(x.clone(), y.clone()), "");
        assert_eq!(reason(spec("x", &[8, 4]), y.clone()), "no input has a dynamic axis 0");
        assert_eq!(reason(x.clone(), spec("y", &[4])), "output \"y\" has no dynamic axis 0");
        let unknown = TensorSpec { shape: None, ..y.clone() };
        assert_eq!(reason(x.clone(), unknown), "output \"y\" has an unknown number of axes");
        let packed = TensorSpec { dtype: DType::I4, ..x };
        assert_eq!(reason(packed, y), "input \"x\" has packed elements");
    }

    #[test]
    fn an_input_of_packed_elements_is_not_joined() {
        let joined = |dtype| {
            let signature = Signature {
                inputs: vec![TensorSpec { dtype, ..spec("x", &[-1, 4]) }],
                outputs: vec![spec("y", &[-1, 4])],
            };
            let options =
                ScheduleOptions { mode: ScheduleMode::Async, ..ScheduleOptions::default() };
            BatchPlan::new(&signature, &options).unwrap().batchable
        };
        assert_eq!([DType::I4, DType::U4, DType::I8].map(joined), [false, false, true]);
    }

    #[test]
    fn inputs_without_a_batch_axis_are_shared() {
        let signature = |side: &[i64], out: &[i64]| Signature {
            inputs: vec![spec("rate", side), spec("x", &[-1, 4])],
            outputs: vec![spec("y", out)],
        };
        let plan = |signature: &Signature| {
            let options =
                ScheduleOptions { mode: ScheduleMode::Async, ..ScheduleOptions::default() };
            BatchPlan::new(signature, &options).unwrap()
        };
        for side in [&[][..], &[16], &[2, 8]] {
            let plan = plan(&signature(side, &[-1]));
            assert!(plan.batchable && plan.is_shared("rate") && !plan.is_shared("x"), "{side:?}");
        }
        for (side, out) in [(&[2, -1][..], &[-1][..]), (&[], &[4]), (&[], &[])] {
            let plan = plan(&signature(side, out));
            assert!(!plan.batchable && !plan.shares(), "{side:?} {out:?}");
        }
        let alone = Signature { inputs: vec![spec("rate", &[])], outputs: vec![spec("y", &[-1])] };
        assert!(!plan(&alone).batchable);
    }

    /// An output of unknown rank may grow with the padding, and none of its axes can be named.
    #[test]
    fn padding_needs_ranks() {
        for mode in [ScheduleMode::Sync, ScheduleMode::Async] {
            let (mut signature, mut options) = ocr();
            options.mode = mode;
            signature.outputs[0].shape = None;
            assert!(BatchPlan::new(&signature, &options).is_ok(), "a rule says what follows");
            options.outputs.clear();
            let refusal = BatchPlan::new(&signature, &options).unwrap_err();
            assert!(refusal.message().contains("outputs.y must say"), "{refusal}");
            let (mut signature, options) = ocr();
            signature.inputs[0].shape = None;
            let refusal = BatchPlan::new(&signature, &options).unwrap_err();
            assert!(refusal.message().contains("how many axes"), "{refusal}");
        }
    }

    #[test]
    fn rules_that_do_not_fit_the_model_are_refused() {
        let error = |change: fn(&mut ScheduleOptions)| {
            let (signature, mut options) = ocr();
            change(&mut options);
            BatchPlan::new(&signature, &options).unwrap_err().message().to_owned()
        };
        let input = |options: &mut ScheduleOptions| options.inputs.remove("x").unwrap_or_default();
        assert!(error(|o| o.outputs.clear()).contains("which input's axis it follows"));
        assert!(
            error(|o| drop(
                o.inputs.insert("z".into(), PadOptions { axes: vec![1], ..PadOptions::default() })
            ))
            .contains("no such input")
        );
        let with = |axes: &[usize]| PadOptions { axes: axes.to_vec(), ..PadOptions::default() };
        let (signature, mut options) = ocr();
        assert_eq!(input(&mut options).axes, [3]);
        options.outputs.clear();
        options.inputs.insert("x".into(), with(&[2]));
        assert!(BatchPlan::new(&signature, &options).unwrap_err().message().contains("fixes"));
        options.inputs.insert("x".into(), with(&[4]));
        assert!(
            BatchPlan::new(&signature, &options).unwrap_err().message().contains("does not have")
        );
    }

    #[test]
    fn a_length_has_a_column_for_each_padded_axis() {
        let plan = |dtype, dims: &[i64]| {
            let (mut signature, options) = ocr();
            signature.inputs[2] = TensorSpec { dtype, ..spec("l", dims) };
            BatchPlan::new(&signature, &options).map_err(|error| error.message().to_owned())
        };
        assert!(plan(DType::I64, &[-1, 1]).is_ok() && plan(DType::I64, &[-1, -1]).is_ok());
        assert!(plan(DType::I64, &[-1, 512]).unwrap_err().ends_with("or [items, 1]"));
        assert!(plan(DType::Bool, &[-1]).unwrap_err().contains("cannot hold a length"));
    }

    #[test]
    fn the_padding_value_fits_the_type() {
        let (mut signature, mut options) = ocr();
        let mut fits = |dtype, value| {
            signature.inputs[0].dtype = dtype;
            options.inputs.get_mut("x").unwrap().value = value;
            BatchPlan::new(&signature, &options).is_ok()
        };
        assert!(fits(DType::I8, -128.0) && fits(DType::U8, 255.0) && fits(DType::F16, -0.5));
        assert!(!fits(DType::U8, -1.0) && !fits(DType::I64, 0.5) && !fits(DType::Bool, 2.0));
        assert!(!fits(DType::I32, f64::NAN) && fits(DType::F32, f64::NAN));
        assert!(fits(DType::F16, -65504.0) && fits(DType::F16, f64::NEG_INFINITY));
        assert!(!fits(DType::F16, -1e9) && fits(DType::BF16, -1e9) && !fits(DType::F32, 1e39));
        // The largest numbers, as Python rounds them.
        assert!(fits(DType::F32, -3.4028235e38) && fits(DType::BF16, 3.3895314e38));
        assert!(fits(DType::F64, f64::MIN) && !fits(DType::F16, 65520.0));
        assert!(!fits(DType::I4, 0.0), "elements of half a byte");
    }
}
