//! Methods whose requests can be sent again, and their answers as tensors.

use base::{Error, NamedTensor, Result, Tensor};
use bytes::Bytes;
use protocol::Message;
use protocol::tensorflow::serving::inference_result::Result as TaskResult;
use protocol::tensorflow::serving::{
    ClassificationResponse, ClassificationResult, MultiInferenceResponse, PredictResponse,
    RegressionResponse, RegressionResult,
};

/// A method of `PredictionService`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedMethod {
    Predict,
    Classify,
    Regress,
    MultiInference,
}

impl RecordedMethod {
    pub(crate) const ALL: [RecordedMethod; 4] = [
        RecordedMethod::Predict,
        RecordedMethod::Classify,
        RecordedMethod::Regress,
        RecordedMethod::MultiInference,
    ];

    /// Returns the path of a gRPC request.
    pub(crate) fn path(self) -> &'static str {
        match self {
            RecordedMethod::Predict => "/tensorflow.serving.PredictionService/Predict",
            RecordedMethod::Classify => "/tensorflow.serving.PredictionService/Classify",
            RecordedMethod::Regress => "/tensorflow.serving.PredictionService/Regress",
            RecordedMethod::MultiInference => {
                "/tensorflow.serving.PredictionService/MultiInference"
            }
        }
    }

    /// Decodes an answer into tensors in a fixed order. Classes are one list of labels and one of
    /// scores, with the number of classes of each example. Values of a regression are one list.
    ///
    /// # Errors
    /// `DataLoss` if `answer` is not a message of this method.
    pub(crate) fn outputs(self, answer: &Bytes) -> Result<Vec<NamedTensor>> {
        match self {
            RecordedMethod::Predict => {
                protocol::tfs::grpc::decode_response(decoded::<PredictResponse>(answer)?)
            }
            RecordedMethod::Classify => {
                classes("", decoded::<ClassificationResponse>(answer)?.result)
            }
            RecordedMethod::Regress => values("", decoded::<RegressionResponse>(answer)?.result),
            RecordedMethod::MultiInference => tasks(decoded::<MultiInferenceResponse>(answer)?),
        }
    }
}

fn decoded<M: Message + Default>(answer: &Bytes) -> Result<M> {
    M::decode(answer.clone())
        .map_err(|error| Error::data_loss("the answer cannot be decoded").caused_by(error))
}

/// Converts the results of all tasks to tensors, with the number of the task in their names.
fn tasks(response: MultiInferenceResponse) -> Result<Vec<NamedTensor>> {
    let mut outputs = Vec::new();
    for (task, result) in response.results.into_iter().enumerate() {
        let prefix = format!("task {task} ");
        outputs.extend(match result.result {
            Some(TaskResult::ClassificationResult(result)) => classes(&prefix, Some(result))?,
            Some(TaskResult::RegressionResult(result)) => values(&prefix, Some(result))?,
            None => Vec::new(),
        });
    }
    Ok(outputs)
}

/// Converts a classification to tensors: the number of classes of each example, all labels and all
/// scores.
fn classes(prefix: &str, result: Option<ClassificationResult>) -> Result<Vec<NamedTensor>> {
    let examples = result.unwrap_or_default().classifications;
    let counts: Vec<i64> = examples.iter().map(|example| example.classes.len() as i64).collect();
    let classes: Vec<_> = examples.into_iter().flat_map(|example| example.classes).collect();
    let scores: Vec<f32> = classes.iter().map(|class| class.score).collect();
    let labels: Vec<Bytes> = classes.into_iter().map(|class| class.label).collect();
    let named = |name: &str, tensor| NamedTensor::new(format!("{prefix}{name}").as_str(), tensor);
    Ok(vec![
        named("class counts", Tensor::from_vec([counts.len()].as_slice(), counts)?),
        named("labels", Tensor::from_strings([labels.len()].as_slice(), labels)?),
        named("scores", Tensor::from_vec([scores.len()].as_slice(), scores)?),
    ])
}

fn values(prefix: &str, result: Option<RegressionResult>) -> Result<Vec<NamedTensor>> {
    let examples = result.unwrap_or_default().regressions;
    let values: Vec<f32> = examples.into_iter().map(|example| example.value).collect();
    let tensor = Tensor::from_vec([values.len()].as_slice(), values)?;
    Ok(vec![NamedTensor::new(format!("{prefix}values").as_str(), tensor)])
}

#[cfg(test)]
mod tests {
    use protocol::tensorflow::serving::{Class, Classifications, InferenceResult, Regression};

    use super::*;

    #[test]
    fn classes_and_values_become_tensors() {
        let class = |label: &str, score| Class { label: Bytes::from(label.to_owned()), score };
        let examples = vec![
            Classifications { classes: vec![class("cat", 0.75), class("dog", 0.25)] },
            Classifications { classes: vec![] },
        ];
        let classified = ClassificationResult { classifications: examples };
        let regressed = RegressionResult { regressions: vec![Regression { value: 2.5 }] };
        let result = |result| InferenceResult { result: Some(result), ..Default::default() };
        let response = MultiInferenceResponse {
            results: vec![
                result(TaskResult::ClassificationResult(classified)),
                result(TaskResult::RegressionResult(regressed)),
            ],
        };
        let bytes = Bytes::from(response.encode_to_vec());
        let outputs = RecordedMethod::MultiInference.outputs(&bytes).unwrap();
        let names: Vec<String> = outputs.iter().map(|output| output.name.to_string()).collect();
        assert_eq!(
            names,
            ["task 0 class counts", "task 0 labels", "task 0 scores", "task 1 values"]
        );
        assert_eq!(outputs[0].tensor.to_vec::<i64>().unwrap(), [2, 0]);
        assert_eq!(outputs[2].tensor.to_vec::<f32>().unwrap(), [0.75, 0.25]);
        assert_eq!(outputs[3].tensor.to_vec::<f32>().unwrap(), [2.5]);
        assert!(RecordedMethod::Regress.outputs(&Bytes::from_static(b"\xff")).is_err());
    }
}
