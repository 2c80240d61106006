//! Comparison of two answers to the same request.

use std::fmt;

use base::{DType, Data, NamedTensor, Signature, Tensor};
use engine::Servable;

/// Maximum number of elements of a tensor that are read as numbers for a distribution.
pub(crate) const ELEMENTS_MAX: usize = 4096;

/// First difference of two answers, as a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerDifference(String);

impl fmt::Display for AnswerDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the first difference between the `expected` and the `answered` outputs. Further outputs
/// are ignored. Types and shapes must be equal. Two floats are equal if they differ by at most
/// `tolerance` times the larger of 1 and the expected value. NaN equals NaN. The parts of complex
/// numbers are compared as floats. Elements of other types must be identical.
pub fn compare_answers(
    expected: &[NamedTensor],
    answered: &[NamedTensor],
    tolerance: f64,
) -> Option<AnswerDifference> {
    expected.iter().find_map(|wanted| {
        let name = &wanted.name;
        match answered.iter().find(|output| output.name == *name) {
            None => Some(format!("there is no output \"{name}\"")),
            Some(output) => compare_tensors(&wanted.tensor, &output.tensor, tolerance)
                .map(|difference| format!("output \"{name}\" {difference}")),
        }
        .map(AnswerDifference)
    })
}

/// Returns the first difference of two outputs as the end of a sentence about the output.
fn compare_tensors(expected: &Tensor, answered: &Tensor, tolerance: f64) -> Option<String> {
    let form = |tensor: &Tensor| format!("{} {:?}", tensor.dtype(), tensor.shape());
    if expected.dtype() != answered.dtype() || expected.shape() != answered.shape() {
        return Some(format!("is {} instead of {}", form(answered), form(expected)));
    }
    if expected.data() == answered.data() {
        return None;
    }
    let (Some(wanted), Some(given)) = (floats(expected), floats(answered)) else {
        return Some(format!("has other {} elements", expected.dtype()));
    };
    let differs = |(wanted, given): (&f64, &f64)| {
        let same = wanted == given || (wanted.is_nan() && given.is_nan());
        let finite = wanted.is_finite() && given.is_finite();
        let near = finite && (wanted - given).abs() <= tolerance * wanted.abs().max(1.0);
        !same && !near
    };
    let at = wanted.iter().zip(&given).position(differs)?;
    // A complex number has two parts.
    let element = at / (wanted.len() / expected.elements().max(1)).max(1);
    Some(format!("element {element} is {} instead of {}", given.get(at)?, wanted.get(at)?))
}

/// Returns the elements of a tensor of floats, or the parts of complex numbers.
fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    match tensor.dtype() {
        DType::F32 => widened::<f32>(tensor),
        DType::F64 => tensor.to_vec::<f64>().ok(),
        DType::F16 => widened::<half::f16>(tensor),
        DType::BF16 => widened::<half::bf16>(tensor),
        DType::Complex64 | DType::Complex128 => floats(&tensor.complex_parts()?),
        _ => None,
    }
}

/// Returns the first [`ELEMENTS_MAX`] elements as numbers, or `None` if they are not real numbers.
pub(crate) fn numbers(tensor: &Tensor) -> Option<Vec<f64>> {
    let bits = tensor.dtype().bits().filter(|bits| bits % 8 == 0)?;
    let Data::Bytes(bytes) = tensor.data() else { return None };
    let length = bytes.len().min(ELEMENTS_MAX * bits / 8);
    let shape = [length * 8 / bits];
    let start = Tensor::from_bytes(tensor.dtype(), shape.as_slice(), bytes.slice(..length)).ok()?;
    match start.dtype() {
        DType::U8 => widened::<u8>(&start),
        DType::I8 => widened::<i8>(&start),
        DType::U16 => widened::<u16>(&start),
        DType::I16 => widened::<i16>(&start),
        DType::U32 => widened::<u32>(&start),
        DType::I32 => widened::<i32>(&start),
        // Large integers lose their last digits, which no bucket shows.
        DType::I64 => Some(start.to_vec::<i64>().ok()?.into_iter().map(|x| x as f64).collect()),
        DType::U64 => Some(start.to_vec::<u64>().ok()?.into_iter().map(|x| x as f64).collect()),
        DType::Complex64 | DType::Complex128 => None,
        _ => floats(&start),
    }
}

fn widened<T: base::Element + Into<f64>>(tensor: &Tensor) -> Option<Vec<f64>> {
    Some(tensor.to_vec::<T>().ok()?.into_iter().map(Into::into).collect())
}

/// Returns the reason why `candidate` cannot answer requests to `stable`. A signature, an input or
/// an output may be missing or have another type, or the candidate may need an additional input.
pub fn incompatible(stable: &Servable, candidate: &Servable) -> Option<String> {
    signature_mismatch(stable.signature(), candidate.signature()).or_else(|| {
        stable.signatures().iter().find_map(|named| {
            let other = candidate.signatures().iter().find(|other| other.name == named.name);
            match other {
                None => Some(format!("it has no signature \"{}\"", named.name)),
                Some(other) => signature_mismatch(&named.signature, &other.signature)
                    .map(|message| format!("signature \"{}\": {message}", named.name)),
            }
        })
    })
}

/// Returns the reason why `candidate` cannot take the requests of `stable`, as the end of a
/// sentence about the candidate.
fn signature_mismatch(stable: &Signature, candidate: &Signature) -> Option<String> {
    for spec in &stable.inputs {
        match candidate.input(&spec.name) {
            None => return Some(format!("it has no input \"{}\"", spec.name)),
            Some(other) if other.dtype != spec.dtype => {
                let name = &spec.name;
                let dtype = other.dtype;
                return Some(format!("its input \"{name}\" is {dtype} instead of {}", spec.dtype));
            }
            Some(other) if spec.optional && !other.optional => {
                return Some(format!("its input \"{}\" is not optional any more", spec.name));
            }
            Some(_) => {}
        }
    }
    let added = |spec: &&base::TensorSpec| !spec.optional && stable.input(&spec.name).is_none();
    if let Some(spec) = candidate.inputs.iter().find(added) {
        return Some(format!("it needs another input, \"{}\"", spec.name));
    }
    stable.outputs.iter().find_map(|spec| match candidate.output(&spec.name) {
        None => Some(format!("it has no output \"{}\"", spec.name)),
        Some(other) if other.dtype != spec.dtype => {
            let name = &spec.name;
            let dtype = other.dtype;
            Some(format!("its output \"{name}\" is {dtype} instead of {}", spec.dtype))
        }
        Some(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use base::TensorSpec;

    use super::*;

    fn y(values: &[f32]) -> Vec<NamedTensor> {
        vec![NamedTensor::new(
            "y",
            Tensor::from_vec([values.len()].as_slice(), values.to_vec()).unwrap(),
        )]
    }

    fn difference(expected: &[f32], answered: &[f32]) -> Option<String> {
        compare_answers(&y(expected), &y(answered), 1e-3).map(|difference| difference.to_string())
    }

    #[test]
    fn floats_have_a_tolerance() {
        let nan = f32::NAN;
        assert_eq!(difference(&[1.0, nan, 2000.0], &[1.0009, nan, 2001.0]), None);
        let message = difference(&[0.0, 0.5], &[0.0, 0.75]).unwrap();
        assert_eq!(message, "output \"y\" element 1 is 0.75 instead of 0.5");
        assert!(difference(&[1.0], &[nan]).is_some());
        assert!(difference(&[f32::INFINITY], &[1.0]).is_some());
        assert!(difference(&[1.0], &[1.0, 1.0]).unwrap().contains("instead of"));
    }

    /// Such as the spectrum of a Fourier transform.
    #[test]
    fn complex_numbers_have_a_tolerance() {
        let spectrum = |parts: [f32; 4]| {
            let bytes = parts.map(f32::to_le_bytes).concat().into();
            let tensor = Tensor::from_bytes(DType::Complex64, [2usize].as_slice(), bytes).unwrap();
            vec![NamedTensor::new("y", tensor)]
        };
        let expected = spectrum([1.0, 0.0, -3.0, f32::NAN]);
        let compared = |parts| compare_answers(&expected, &spectrum(parts), 1e-3);
        assert_eq!(compared([1.0009, 0.0, -3.001, f32::NAN]), None);
        let message = compared([1.0, 0.0, -2.5, f32::NAN]).unwrap().to_string();
        assert_eq!(message, "output \"y\" element 1 is -2.5 instead of -3");
        assert_eq!(numbers(&expected[0].tensor), None);
    }

    #[test]
    fn outputs_are_found_by_name() {
        let both = [y(&[1.0]), vec![NamedTensor::new("z", y(&[2.0]).remove(0).tensor)]].concat();
        assert_eq!(compare_answers(&y(&[1.0]), &both, 0.0), None);
        assert!(compare_answers(&both, &y(&[1.0]), 0.0).is_some());
    }

    #[test]
    fn other_types_are_identical() {
        let words = |text: &'static str| {
            let tensor = Tensor::from_strings([1usize].as_slice(), vec![text.into()]).unwrap();
            vec![NamedTensor::new("y", tensor)]
        };
        assert_eq!(compare_answers(&words("a"), &words("a"), 1.0), None);
        assert!(compare_answers(&words("a"), &words("b"), 1.0).is_some());
        assert_eq!(numbers(&words("a")[0].tensor), None);
        let integers = Tensor::from_vec([2usize].as_slice(), vec![-3i64, 4]).unwrap();
        assert_eq!(numbers(&integers), Some(vec![-3.0, 4.0]));
    }

    #[test]
    fn signatures_are_compared() {
        let spec = |name: &str, dtype| TensorSpec {
            name: name.into(),
            dtype,
            shape: None,
            optional: false,
        };
        let (x, y) = (spec("x", DType::F32), spec("y", DType::F32));
        let base = Signature { inputs: vec![x.clone()], outputs: vec![y.clone()] };
        assert_eq!(signature_mismatch(&base, &base), None);
        let more = Signature { inputs: vec![x.clone(), spec("z", DType::F32)], ..base.clone() };
        assert!(signature_mismatch(&base, &more).unwrap().contains("needs another input"));
        assert!(signature_mismatch(&more, &base).unwrap().contains("no input \"z\""));
        let other = Signature { inputs: vec![spec("x", DType::F64)], ..base.clone() };
        assert!(signature_mismatch(&base, &other).unwrap().contains("float64 instead of float32"));
        let silent = Signature { outputs: vec![], ..base.clone() };
        assert!(signature_mismatch(&base, &silent).unwrap().contains("no output"));
        assert_eq!(signature_mismatch(&silent, &base), None);
    }
}
