//! Results of Classify and Regress, made from the outputs of a model with the checks and the words
//! of TensorFlow Serving.

use std::sync::Arc;

use base::{DType, Error, Result, Tensor};
use bytes::Bytes;

use super::datatype;
use crate::tensorflow::serving::{
    Class, ClassificationResult, Classifications, InferenceResult, ModelSpec, Regression,
    RegressionResult, inference_result,
};

/// The outputs of a classification.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassOutputs<'a> {
    /// Labels, strings of shape [examples, classes].
    pub classes: Option<&'a Tensor>,
    /// Scores, floats of shape [examples, classes].
    pub scores: Option<&'a Tensor>,
    /// Labels that are the same for all examples, if the model has no output for them.
    pub labels: Option<&'a [Arc<str>]>,
    /// True if an output of shape `[examples]` is one class.
    pub flat: bool,
}

/// The result of one request or task.
#[derive(Clone, Debug, PartialEq)]
pub enum ExampleResult {
    /// Labels and scores of each example.
    Classes(ClassificationResult),
    /// A number for each example.
    Values(RegressionResult),
}

impl ExampleResult {
    /// Checks that all labels are text, because clients cannot read a message with another one.
    ///
    /// # Errors
    /// `InvalidArgument` for a label that is not UTF-8.
    pub fn check_labels(&self) -> Result<()> {
        let ExampleResult::Classes(result) = self else { return Ok(()) };
        let mut classes = result.classifications.iter().flat_map(|list| &list.classes);
        if classes.all(|class| std::str::from_utf8(&class.label).is_ok()) {
            return Ok(());
        }
        Err(Error::invalid(
            "the model returned a label that is not UTF-8 text; use Predict, or Classify over REST",
        ))
    }

    /// Returns the result in a response of several tasks.
    pub fn into_task(self, spec: ModelSpec) -> InferenceResult {
        let result = match self {
            ExampleResult::Classes(result) => {
                inference_result::Result::ClassificationResult(result)
            }
            ExampleResult::Values(result) => inference_result::Result::RegressionResult(result),
        };
        InferenceResult { model_spec: Some(spec), result: Some(result) }
    }
}

/// Returns an upper bound of the memory that the results of `outputs` take besides the outputs.
pub fn result_bytes_max<'a>(outputs: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    let elements = outputs.into_iter().map(|output| {
        let lists = output.shape().first().copied().unwrap_or(1).max(output.elements());
        lists as u64
    });
    elements.sum::<u64>() * (size_of::<Class>() + size_of::<Classifications>()) as u64
}

/// Returns the labels and scores of `examples` examples.
///
/// # Errors
/// `InvalidArgument` for outputs of another type or shape than [`ClassOutputs`] says. The message
/// is TensorFlow Serving's. `FailedPrecondition` if the number of `labels` differs from the number
/// of classes.
pub fn classification(examples: usize, outputs: ClassOutputs<'_>) -> Result<ClassificationResult> {
    let ClassOutputs { classes, scores, labels, flat } = outputs;
    let mut columns = None;
    if let Some(classes) = classes {
        columns = Some(class_count("classes", classes, DType::String, examples, flat)?);
    }
    if let Some(scores) = scores {
        let count = class_count("scores", scores, DType::F32, examples, flat)?;
        let wanted = *columns.get_or_insert(count);
        if wanted != count {
            return Err(Error::invalid(format!(
                "Tensors class and score should match in dim_size(1). Got {wanted} vs. {count}"
            )));
        }
    }
    let columns = columns.unwrap_or(0);
    if let Some(labels) = labels
        && labels.len() != columns
    {
        return Err(Error::precondition(format!(
            "the model's settings have {} labels, but its scores have {columns} columns; correct [classify] in \
             millpond.toml",
            labels.len()
        )));
    }
    let fixed: Option<Vec<Bytes>> = labels.map(|labels| {
        labels.iter().map(|label| Bytes::copy_from_slice(label.as_bytes())).collect()
    });
    let scores = scores.map(Tensor::to_vec::<f32>).transpose()?;
    let strings = classes.and_then(Tensor::strings);
    let class = |row: usize, column: usize| {
        let at = row * columns + column;
        let label = match (strings, &fixed) {
            (Some(strings), _) => strings.get(at),
            (None, Some(fixed)) => fixed.get(column),
            (None, None) => None,
        };
        let score = scores.as_ref().and_then(|scores| scores.get(at));
        Class {
            label: label.cloned().unwrap_or_default(),
            score: score.copied().unwrap_or_default(),
        }
    };
    let row = |row: usize| Classifications {
        classes: (0..columns).map(|column| class(row, column)).collect(),
    };
    Ok(ClassificationResult { classifications: (0..examples).map(row).collect() })
}

/// Checks the output `what` ("classes" or "scores") of a classification of `examples` examples, and
/// returns the number of classes. If `flat` is true, an output without a second axis has one class.
fn class_count(
    what: &str,
    output: &Tensor,
    dtype: DType,
    examples: usize,
    flat: bool,
) -> Result<usize> {
    let (rows, columns) = match *output.shape() {
        [rows, columns] => (rows, columns),
        [rows] if flat => (rows, 1),
        _ => {
            return Err(Error::invalid(format!(
                "Expected Tensor shape: [batch_size num_classes] but got {}",
                shown(output)
            )));
        }
    };
    if output.dtype() != dtype {
        return Err(Error::invalid(format!(
            "Expected {what} Tensor of {}. Got: {}",
            datatype(dtype).as_str_name(),
            datatype(output.dtype()).as_str_name()
        )));
    }
    if rows != examples {
        return Err(Error::invalid(format!(
            "Expected {what} output batch size of {examples}. Got: {rows}"
        )));
    }
    Ok(columns)
}

/// Returns the numbers of `examples` examples.
///
/// # Errors
/// `InvalidArgument` if `output` is not of floats and of shape `[examples]` or `[examples, 1]`. The
/// message is TensorFlow Serving's.
pub fn regression(examples: usize, output: &Tensor) -> Result<RegressionResult> {
    let rows = match output.shape() {
        [rows] | [rows, 1] => *rows,
        _ => {
            return Err(Error::invalid(format!(
                "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {}",
                shown(output)
            )));
        }
    };
    if rows != examples {
        return Err(Error::invalid(format!(
            "Input batch size did not match output batch size: {examples} vs. {rows}"
        )));
    }
    if output.dtype() != DType::F32 {
        return Err(Error::invalid(format!(
            "Expected output Tensor of DT_FLOAT.  Got: {}",
            datatype(output.dtype()).as_str_name()
        )));
    }
    let values = output.to_vec::<f32>()?;
    Ok(RegressionResult {
        regressions: values.into_iter().map(|value| Regression { value }).collect(),
    })
}

/// Returns the shape in TensorFlow's form, such as [2,3].
fn shown(tensor: &Tensor) -> String {
    let dims: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    format!("[{}]", dims.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(shape: &[usize]) -> Tensor {
        Tensor::from_vec(shape, vec![0.5f32; shape.iter().product()]).unwrap()
    }

    fn strings(shape: &[usize]) -> Tensor {
        Tensor::from_strings(shape, vec![Bytes::from_static(b"a"); shape.iter().product()]).unwrap()
    }

    #[test]
    fn unfit_outputs_are_refused_in_tensorflows_words() {
        let classify = |classes: Option<&Tensor>, scores: Option<&Tensor>| {
            let outputs = ClassOutputs { classes, scores, ..ClassOutputs::default() };
            classification(2, outputs).unwrap_err().message().to_owned()
        };
        let (good, flat, three) = (floats(&[2, 3]), floats(&[2]), floats(&[3, 3]));
        let shape = "Expected Tensor shape: [batch_size num_classes] but got [2]";
        assert_eq!(classify(None, Some(&flat)), shape);
        let dtype = "Expected classes Tensor of DT_STRING. Got: DT_FLOAT";
        assert_eq!(classify(Some(&good), None), dtype);
        let batch = "Expected scores output batch size of 2. Got: 3";
        assert_eq!(classify(None, Some(&three)), batch);
        let columns = "Tensors class and score should match in dim_size(1). Got 2 vs. 3";
        assert_eq!(classify(Some(&strings(&[2, 2])), Some(&good)), columns);
        let regress = |output: &Tensor| regression(2, output).unwrap_err().message().to_owned();
        assert!(regress(&good).ends_with("[batch_size] or [batch_size, 1] but got [2,3]"));
        let batch = "Input batch size did not match output batch size: 2 vs. 3";
        assert_eq!(regress(&floats(&[3, 1])), batch);
        let dtype = "Expected output Tensor of DT_FLOAT.  Got: DT_STRING";
        assert_eq!(regress(&strings(&[2])), dtype);
    }

    #[test]
    fn labels_of_messages_are_text() {
        let check = |label: &'static [u8]| {
            let labels = vec![Bytes::from_static(b"a"), Bytes::from_static(label)];
            let classes = Tensor::from_strings([1usize, 2].as_slice(), labels).unwrap();
            let outputs = ClassOutputs { classes: Some(&classes), ..ClassOutputs::default() };
            ExampleResult::Classes(classification(1, outputs).unwrap()).check_labels()
        };
        assert_eq!(check("\u{e9}t\u{e9}".as_bytes()), Ok(()));
        let error = check(b"\xe9t\xe9").unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::InvalidArgument);
    }

    #[test]
    fn one_axis_is_one_class_if_settings_name_the_output() {
        let (scores, classes) = (floats(&[2]), strings(&[2]));
        let outputs = ClassOutputs {
            classes: Some(&classes),
            scores: Some(&scores),
            flat: true,
            ..ClassOutputs::default()
        };
        let result = classification(2, outputs).unwrap();
        let class = Class { label: Bytes::from_static(b"a"), score: 0.5 };
        assert_eq!(result.classifications, vec![Classifications { classes: vec![class] }; 2]);
        let labels: [Arc<str>; 2] = ["a".into(), "b".into()];
        let outputs = ClassOutputs { classes: None, labels: Some(&labels), ..outputs };
        assert!(classification(2, outputs).unwrap_err().message().contains("2 labels"));
    }
}
