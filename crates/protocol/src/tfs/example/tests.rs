use base::DType;

use super::FeatureValue::{Real, Whole};
use super::*;

fn spec(name: &str, dtype: DType, dims: &[i64]) -> TensorSpec {
    let dim = |size: &i64| usize::try_from(*size).map_or(Dim::Dynamic(None), Dim::Fixed);
    TensorSpec {
        name: name.into(),
        dtype,
        shape: Some(dims.iter().map(dim).collect()),
        optional: false,
    }
}

/// Writes an example whose features hold numbers with a fraction, whole numbers, or text.
fn example(features: &[(&str, &[FeatureValue])]) -> Bytes {
    let mut example = ExampleWriter::default();
    for (name, values) in features {
        let mut feature = FeatureWriter::default();
        for value in *values {
            match value {
                FeatureValue::Whole(whole) => feature.int64(*whole).unwrap(),
                FeatureValue::Real(real) => feature.float(*real as f32).unwrap(),
                FeatureValue::Bytes(bytes) => feature.bytes(bytes).unwrap(),
            }
        }
        example.feature(name, feature);
    }
    example.finish()
}

fn text(text: &'static str) -> FeatureValue {
    FeatureValue::Bytes(Bytes::from_static(text.as_bytes()))
}

fn read(examples: &Examples, specs: &[TensorSpec]) -> Result<Vec<NamedTensor>> {
    examples.features(specs, &BTreeMap::new(), &mut |_| Ok(()))
}

#[test]
fn features_become_inputs_by_name() {
    let first = example(&[("age", &[Real(1.5)]), ("id", &[Whole(-7)]), ("word", &[text("a")])]);
    let second = example(&[("word", &[text("")]), ("id", &[Whole(9)]), ("age", &[Real(2.0)])]);
    let examples = Examples::new(vec![first, second], Bytes::new()).unwrap();
    let specs = [
        spec("age", DType::F32, &[-1, 1]),
        spec("id", DType::I64, &[-1]),
        spec("word", DType::String, &[-1, 1]),
    ];
    let tensors = read(&examples, &specs).unwrap();
    let shapes: Vec<_> = tensors.iter().map(|named| named.tensor.shape().to_vec()).collect();
    assert_eq!(shapes, [vec![2, 1], vec![2], vec![2, 1]]);
    assert_eq!(tensors[0].tensor.to_vec::<f32>().unwrap(), [1.5, 2.0]);
    assert_eq!(tensors[1].tensor.to_vec::<i64>().unwrap(), [-7, 9]);
    assert_eq!(tensors[2].tensor.strings().unwrap(), ["a", ""]);
}

#[test]
fn lists_take_the_free_axis() {
    let values = [Real(1.0), Real(2.0), Real(3.0), Real(4.0)];
    let examples = Examples::new(vec![example(&[("x", &values)])], Bytes::new()).unwrap();
    let shape = |dims: &[i64]| {
        let tensors = read(&examples, &[spec("x", DType::F64, dims)])?;
        Ok::<_, Error>(tensors[0].tensor.shape().to_vec())
    };
    assert_eq!(shape(&[-1, 4]).unwrap(), [1, 4]);
    assert_eq!(shape(&[-1, -1]).unwrap(), [1, 4]);
    assert_eq!(shape(&[-1, 2, -1]).unwrap(), [1, 2, 2]);
    for wrong in [&[-1][..], &[-1, 3], &[-1, 3, -1], &[]] {
        let error = shape(wrong).unwrap_err();
        assert!(error.message().contains("\"x\" has 4 values"), "{wrong:?} {error}");
    }
}

#[test]
fn an_example_overrides_the_context() {
    let context = example(&[("x", &[Whole(1)]), ("y", &[Whole(5)])]);
    let own = example(&[("x", &[Whole(2)])]);
    let examples = Examples::new(vec![own.clone(), Bytes::new()], context.clone()).unwrap();
    let specs = [spec("x", DType::I32, &[-1]), spec("y", DType::F32, &[-1])];
    let tensors = read(&examples, &specs).unwrap();
    assert_eq!(tensors[0].tensor.to_vec::<i32>().unwrap(), [2, 1]);
    assert_eq!(tensors[1].tensor.to_vec::<f32>().unwrap(), [5.0, 5.0]);
    let mut reserved = 0;
    let serialized = examples
        .serialized(&mut |bytes| {
            reserved += bytes;
            Ok(())
        })
        .unwrap();
    let both = [&context[..], &own[..]].concat();
    assert_eq!(serialized.strings().unwrap(), [both, context.to_vec()]);
    assert!(reserved >= (2 * context.len() + own.len()) as u64);
    let refuse = &mut |_| Err(Error::exhausted("full"));
    assert!(examples.serialized(refuse).is_err());
}

#[test]
fn a_missing_feature_is_named_or_filled() {
    let examples =
        Examples::new(vec![example(&[("x", &[Real(1.0)])]), example(&[("x", &[])])], Bytes::new())
            .unwrap();
    let specs = [spec("x", DType::F32, &[-1]), spec("n", DType::I64, &[-1, 2])];
    let error = read(&examples, &specs).unwrap_err();
    assert_eq!(error.message(), "example 1, feature \"x\": it is missing and has no default");
    let defaults = [("x".to_owned(), Whole(9)), ("n".to_owned(), Whole(3))].into();
    let tensors = examples.features(&specs, &defaults, &mut |_| Ok(())).unwrap();
    assert_eq!(tensors[0].tensor.to_vec::<f32>().unwrap(), [1.0, 9.0]);
    assert_eq!(tensors[1].tensor.to_vec::<i64>().unwrap(), [3, 3, 3, 3]);
    let mut optional = specs;
    optional[1].optional = true;
    let only = Examples::new(vec![example(&[("x", &[Real(1.0)])])], Bytes::new()).unwrap();
    assert_eq!(read(&only, &optional).unwrap().len(), 1);
}

#[test]
fn values_must_fit_the_input() {
    let refused = |value: FeatureValue, dtype| {
        let examples = Examples::new(vec![example(&[("x", &[value])])], Bytes::new()).unwrap();
        read(&examples, &[spec("x", dtype, &[-1])]).unwrap_err().message().to_owned()
    };
    assert_eq!(
        refused(Whole(300), DType::U8),
        "example 0, feature \"x\": int64 values: 300 is not a valid uint8 value"
    );
    assert!(refused(Real(1.0), DType::I64).contains("float values: the model's input takes int64"));
    assert!(refused(text("a"), DType::F32).contains("bytes values"));
    assert!(refused(Whole(2), DType::Bool).contains("2 is not a valid bool value"));
    assert!(refused(Whole(70_000), DType::F16).contains("70000 is not a valid float16 value"));
    assert!(refused(Real(f32::MAX.into()), DType::BF16).contains("is not a valid bfloat16 value"));
    assert!(refused(Whole(1), DType::String).contains("takes string"));
    assert!(refused(Whole(1), DType::Complex64).contains("use Predict"));
    let uneven = vec![example(&[("x", &[Whole(1)])]), example(&[("x", &[Whole(1), Whole(2)])])];
    let uneven = Examples::new(uneven, Bytes::new()).unwrap();
    let error = read(&uneven, &[spec("x", DType::I64, &[-1, -1])]).unwrap_err();
    assert_eq!(error.message(), "example 1, feature \"x\": it has 2 values, other examples 1");
}

/// The feature is a single just above the middle of two half floats, or of two bfloat16.
#[test]
fn values_round_to_the_nearest_16_bit_float() {
    let above = |middle: f32| [Real((middle + f32::EPSILON).into())];
    let features = example(&[("half", &above(1.000_488_3)), ("brain", &above(1.0 + 1.0 / 256.0))]);
    let examples = Examples::new(vec![features], Bytes::new()).unwrap();
    let specs = [spec("half", DType::F16, &[-1]), spec("brain", DType::BF16, &[-1])];
    let tensors = read(&examples, &specs).unwrap();
    let half = half::f16::from_bits(0x3c01);
    assert_eq!(tensors[0].tensor.to_vec::<half::f16>().unwrap(), [half]);
    let brain = half::bf16::from_bits(0x3f81);
    assert_eq!(tensors[1].tensor.to_vec::<half::bf16>().unwrap(), [brain]);
}

#[test]
fn an_infinite_value_stays_infinite() {
    let values = example(&[("x", &[Real(f64::NEG_INFINITY), Real(65_504.0)])]);
    let examples = Examples::new(vec![values], Bytes::new()).unwrap();
    let tensors = read(&examples, &[spec("x", DType::F16, &[-1, 2])]).unwrap();
    let values = tensors[0].tensor.to_vec::<half::f16>().unwrap();
    assert_eq!(values, [half::f16::NEG_INFINITY, half::f16::MAX]);
    // A default has more digits and a wider range than the values of examples.
    let defaults = [("y".to_owned(), Real(1e39))].into();
    let specs = [spec("y", DType::F32, &[-1])];
    let error = examples.features(&specs, &defaults, &mut |_| Ok(())).unwrap_err();
    assert!(error.message().ends_with("is not a valid float32 value"), "{error}");
}

#[test]
fn damaged_examples_are_refused() {
    let whole = example(&[("x", &[Whole(1), Whole(300)])]);
    for length in 1..whole.len() {
        let cut = Examples::new(vec![whole.slice(..length)], Bytes::new()).unwrap();
        let error = read(&cut, &[spec("x", DType::I64, &[-1, 2])]).unwrap_err();
        assert!(error.message().starts_with("example 0"), "{length}: {error}");
    }
    assert!(Examples::new(Vec::new(), whole).is_err());
    assert!(Examples::from_message(None).is_err());
}
