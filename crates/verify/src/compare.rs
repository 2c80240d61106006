//! The answers of two servers to the same requests, compared.

use std::fmt;
use std::time::Duration;

use base::{DType, Data, Error, NamedTensor, Result, Tensor};
use bytes::Bytes;
use loadgen::connection::{Connection, Endpoint, RawResponse, Template, other_protocol};
use loadgen::report::StepProgress;
use serde::Serialize;

use crate::answer::RecordedMethod;
use crate::records::{RecordedCall, RecordedCalls};
use crate::{NAMES, VerifyPlan};

/// Longest wait for one answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);
/// Maximum bytes of both servers' answers that are kept for the measurement.
pub(crate) const ANSWERS_BYTES_MAX: usize = 2 << 30;
/// Maximum number of characters of a string in a message.
const STRING_CHARS_MAX: usize = 64;

/// The comparison of all requests.
#[derive(Default)]
pub(crate) struct Comparison {
    /// Requests that both servers answered.
    pub(crate) compared: usize,
    /// Requests that both servers refused.
    pub(crate) refused_by_both: usize,
    /// The first of these requests, with the errors of both servers.
    pub(crate) first_refusal: Option<RequestDifference>,
    pub(crate) differences: Vec<RequestDifference>,
    /// Largest difference of two floats, relative to the larger of 1 and the
    /// absolute value from `against`.
    pub(crate) largest: f64,
    /// First answer of each server to each request, or `None` if it was refused or is not kept.
    pub(crate) answers: [Vec<Option<Bytes>>; 2],
    /// Maximum bytes of `answers`, or 0 if nothing is measured.
    answers_bytes_max: usize,
    /// Bytes of `answers`.
    answers_bytes: usize,
    /// Requests whose answers are not kept because of the maximum.
    pub(crate) not_kept: usize,
}

/// The first difference of two answers.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct RequestDifference {
    /// Number of the request in the files, from 0.
    pub(crate) request: usize,
    pub(crate) model: String,
    /// The output. Empty if an answer is an error.
    pub(crate) output: String,
    /// Position of the element.
    pub(crate) element: Option<usize>,
    /// Value or error of the verified server.
    pub(crate) server: String,
    /// Value or error of the other one.
    pub(crate) against: String,
}

impl fmt::Display for RequestDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestDifference { request, model, output, element, server, against } = self;
        write!(f, "request {request} (model \"{model}\")")?;
        if !output.is_empty() {
            write!(f, " output \"{output}\"")?;
        }
        if let Some(element) = element {
            write!(f, " element {element}")?;
        }
        write!(f, ": {server}, but {against} from --against")
    }
}

/// Sends each request to both servers and compares the answers.
///
/// # Errors
/// `Unavailable` if a server cannot be reached.
pub(crate) fn compare_all(
    records: &RecordedCalls,
    plan: &VerifyPlan,
    progress: &StepProgress,
) -> Result<Comparison> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::exhausted("cannot start a client").caused_by(e))?;
    runtime.block_on(async {
        let mut servers = [
            ReplayClient::connect(&plan.servers[0].endpoint, NAMES[0]).await?,
            ReplayClient::connect(&plan.servers[1].endpoint, NAMES[1]).await?,
        ];
        // Only the measurement reads the answers again.
        let answers_bytes_max = if plan.duration.is_zero() { 0 } else { ANSWERS_BYTES_MAX };
        let mut comparison = Comparison { answers_bytes_max, ..Comparison::default() };
        for (request, call) in records.calls.iter().enumerate() {
            progress.say(format!("comparing request {request}"));
            let [server, against] = &mut servers;
            let answers = [server.call(call).await?, against.call(call).await?];
            comparison.add(request, call, answers, plan.tolerance);
            progress.step();
        }
        Ok(comparison)
    })
}

/// Client of one server, with one connection.
struct ReplayClient {
    connection: Connection,
    endpoint: Endpoint,
    /// Templates of requests, in the order of [`RecordedMethod::ALL`].
    templates: Vec<Template>,
}

impl ReplayClient {
    async fn connect(endpoint: &Endpoint, name: &str) -> Result<ReplayClient> {
        let connection =
            Connection::open(endpoint).await.map_err(|e| e.context(format_args!("--{name}")))?;
        let template = |method: RecordedMethod| Template::grpc(endpoint, method.path());
        let templates = RecordedMethod::ALL.into_iter().map(template).collect::<Result<_>>()?;
        Ok(ReplayClient { connection, endpoint: endpoint.clone(), templates })
    }

    /// Returns the answer, or the server's error as the inner one.
    async fn call(&mut self, call: &RecordedCall) -> Result<Result<RawResponse>> {
        if !self.connection.is_open() {
            if let Some(error) = other_protocol(&self.endpoint) {
                return Err(error);
            }
            self.connection = Connection::open(&self.endpoint).await?;
        }
        let template = &self.templates[call.method as usize];
        let call = self.connection.call(template, call.frame.clone());
        Ok(tokio::time::timeout(ANSWER_WAIT_MAX, call).await.unwrap_or_else(|_| {
            Err(Error::deadline(format!("no answer within {ANSWER_WAIT_MAX:?}")))
        }))
    }
}

impl Comparison {
    /// Counts and compares the answers of both servers to one request. Keeps them while there is
    /// room.
    fn add(
        &mut self,
        request: usize,
        call: &RecordedCall,
        answers: [Result<RawResponse>; 2],
        tolerance: f64,
    ) {
        let decoded = answers.each_ref().map(|answer| match answer {
            Ok(answer) => call.method.outputs(&answer.body),
            Err(error) => Err(error.clone()),
        });
        let bytes: usize = answers.iter().flatten().map(|answer| answer.body.len()).sum();
        let has_room = self.answers_bytes + bytes <= self.answers_bytes_max;
        if has_room {
            self.answers_bytes += bytes;
        } else if self.answers_bytes_max > 0 {
            self.not_kept += 1;
        }
        for ((kept, answer), decoded) in self.answers.iter_mut().zip(answers).zip(&decoded) {
            // An answer that cannot be decoded cannot be compared under load either.
            let is_kept = has_room && decoded.is_ok();
            kept.push(answer.ok().filter(|_| is_kept).map(|answer| answer.body));
        }
        let model = &call.model;
        let of_call =
            |found: RequestDifference| RequestDifference { request, model: model.clone(), ..found };
        let difference = match decoded {
            [Ok(server), Ok(against)] => {
                self.compared += 1;
                let mut difference = OutputComparison { tolerance, largest: self.largest };
                let found = difference.outputs(&server, &against);
                self.largest = difference.largest;
                found
            }
            [Err(server), Err(against)] => {
                self.refused_by_both += 1;
                let refusal = || of_call(whole(server.to_string(), against.to_string()));
                self.first_refusal.get_or_insert_with(refusal);
                None
            }
            [Err(error), Ok(_)] => Some(whole(error.to_string(), "an answer".to_owned())),
            [Ok(_), Err(error)] => Some(whole("an answer".to_owned(), error.to_string())),
        };
        self.differences.extend(difference.map(of_call));
    }
}

/// Builds a difference of whole answers.
fn whole(server: String, against: String) -> RequestDifference {
    of_output("", None, server, against)
}

fn of_output(
    output: &str,
    element: Option<usize>,
    server: String,
    against: String,
) -> RequestDifference {
    let request = 0;
    let model = String::new();
    RequestDifference { request, model, output: output.into(), element, server, against }
}

/// Returns true if two answers agree.
pub(crate) fn agree(server: &[NamedTensor], against: &[NamedTensor], tolerance: f64) -> bool {
    OutputComparison { tolerance, largest: 0.0 }.outputs(server, against).is_none()
}

/// Comparison of numbers within a tolerance.
struct OutputComparison {
    tolerance: f64,
    /// Largest difference so far.
    largest: f64,
}

impl OutputComparison {
    /// Returns the first difference. Both lists are in the order of their names.
    fn outputs(
        &mut self,
        server: &[NamedTensor],
        against: &[NamedTensor],
    ) -> Option<RequestDifference> {
        let names = |outputs: &[NamedTensor]| {
            outputs.iter().map(|output| output.name.to_string()).collect::<Vec<_>>()
        };
        if names(server) != names(against) {
            let list = |outputs| format!("outputs {}", names(outputs).join(", "));
            return Some(whole(list(server), list(against)));
        }
        server.iter().zip(against).find_map(|(server, against)| {
            self.tensors(&server.name, &server.tensor, &against.tensor)
        })
    }

    /// Returns the first difference of two outputs that exceeds the tolerance. Also updates the
    /// largest difference.
    fn tensors(
        &mut self,
        name: &str,
        server: &Tensor,
        against: &Tensor,
    ) -> Option<RequestDifference> {
        if server.dtype() != against.dtype() || server.shape() != against.shape() {
            let kind = |tensor: &Tensor| format!("{} {:?}", tensor.dtype(), tensor.shape());
            return Some(of_output(name, None, kind(server), kind(against)));
        }
        let count = server.elements();
        if let (Some(server), Some(against)) = (floats(server), floats(against)) {
            // A complex number has two parts.
            let parts = (server.len() / count.max(1)).max(1);
            let pairs = server.into_iter().zip(against).enumerate();
            let mut first = None;
            for (at, (server, against)) in pairs {
                let difference = difference(server, against);
                self.largest = self.largest.max(difference);
                if difference > self.tolerance && first.is_none() {
                    first = Some(of_output(
                        name,
                        Some(at / parts),
                        server.to_string(),
                        against.to_string(),
                    ));
                }
            }
            return first;
        }
        let shown = |element: &Bytes| shown(server.dtype(), element);
        let mut pairs = elements(server).into_iter().zip(elements(against)).enumerate();
        let (element, (server, against)) =
            pairs.find(|(_, (server, against))| server != against)?;
        Some(of_output(name, Some(element), shown(&server), shown(&against)))
    }
}

/// Returns the difference of two floats, relative to the larger of 1 and the absolute value
/// of `against`.
fn difference(server: f64, against: f64) -> f64 {
    if server == against || (server.is_nan() && against.is_nan()) {
        return 0.0;
    }
    let difference = (server - against).abs() / against.abs().max(1.0);
    if difference.is_nan() { f64::INFINITY } else { difference }
}

/// Returns the elements of a tensor of floats, or the parts of complex numbers.
fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    match tensor.dtype() {
        DType::F32 => Some(tensor.to_vec::<f32>().ok()?.into_iter().map(f64::from).collect()),
        DType::F64 => tensor.to_vec::<f64>().ok(),
        DType::F16 => Some(tensor.to_vec::<half::f16>().ok()?.into_iter().map(f64::from).collect()),
        DType::BF16 => {
            Some(tensor.to_vec::<half::bf16>().ok()?.into_iter().map(f64::from).collect())
        }
        DType::Complex64 | DType::Complex128 => floats(&tensor.complex_parts()?),
        _ => None,
    }
}

/// Returns the bytes of each element. Packed elements stay together.
fn elements(tensor: &Tensor) -> Vec<Bytes> {
    match tensor.data() {
        Data::Strings(strings) => strings.to_vec(),
        Data::Bytes(bytes) => {
            let width = tensor.dtype().bits().map_or(1, |bits| bits.div_ceil(8)).max(1);
            bytes.chunks(width).map(Bytes::copy_from_slice).collect()
        }
    }
}

/// Formats an element: text if it is readable, a number, or else its bytes.
fn shown(dtype: DType, element: &Bytes) -> String {
    let bytes = || format!("{:?}", element.slice(..element.len().min(STRING_CHARS_MAX)));
    let number = || element.iter().rev().fold(0u64, |sum, byte| (sum << 8) | u64::from(*byte));
    match dtype {
        DType::String => match std::str::from_utf8(element) {
            Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => {
                format!("\"{}\"", text.chars().take(STRING_CHARS_MAX).collect::<String>())
            }
            _ => bytes(),
        },
        DType::Bool => (number() != 0).to_string(),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => number().to_string(),
        DType::I8 => (number() as i8).to_string(),
        DType::I16 => (number() as i16).to_string(),
        DType::I32 => (number() as i32).to_string(),
        DType::I64 => (number() as i64).to_string(),
        _ => bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, tensor: Tensor) -> NamedTensor {
        NamedTensor::new(name, tensor)
    }

    fn y(values: &[f32]) -> Vec<NamedTensor> {
        vec![named("y", Tensor::from_vec([values.len()].as_slice(), values.to_vec()).unwrap())]
    }

    fn first(server: &[NamedTensor], against: &[NamedTensor]) -> Option<String> {
        let mut comparison = OutputComparison { tolerance: 1e-5, largest: 0.0 };
        comparison.outputs(server, against).map(|difference| difference.to_string())
    }

    #[test]
    fn floats_are_compared_within_the_tolerance() {
        let nan = f32::NAN;
        assert_eq!(
            first(&y(&[1.0, nan, f32::INFINITY]), &y(&[1.000001, nan, f32::INFINITY])),
            None
        );
        assert_eq!(first(&y(&[1e6]), &y(&[1e6 + 1.0])), None, "relative to large values");
        let difference = first(&y(&[1.0, 2.0, 5.0]), &y(&[1.0, 3.0, 4.0])).unwrap();
        assert!(difference.contains("output \"y\" element 1: 2, but 3"), "{difference}");
        assert!(first(&y(&[1.0]), &y(&[nan])).is_some());
        assert!(first(&y(&[f32::INFINITY]), &y(&[1.0])).is_some());
    }

    #[test]
    fn complex_numbers_are_compared_within_the_tolerance() {
        let spectrum = |parts: [f64; 4]| {
            let bytes = parts.map(f64::to_le_bytes).concat().into();
            let tensor = Tensor::from_bytes(DType::Complex128, [2usize].as_slice(), bytes);
            vec![named("y", tensor.unwrap())]
        };
        let server = spectrum([1.0, 2.0, 3.0, 4.0]);
        assert_eq!(first(&server, &spectrum([1.000001, 2.0, 3.0, 4.0])), None);
        let difference = first(&server, &spectrum([1.0, 2.0, 3.0, 5.0])).unwrap();
        assert!(difference.contains("output \"y\" element 1: 4, but 5"), "{difference}");
    }

    #[test]
    fn kept_answers_are_bounded() {
        let call = RecordedCall {
            method: RecordedMethod::Predict,
            model: "m".to_owned(),
            frame: Bytes::new(),
        };
        // A field of 8 bytes that no message of the method has.
        let body = Bytes::from_static(b"\xfa\x01\x05other");
        let answer = || Ok(RawResponse { body: body.clone() });
        let mut comparison = Comparison { answers_bytes_max: 20, ..Comparison::default() };
        for request in 0..3 {
            comparison.add(request, &call, [answer(), answer()], 0.0);
        }
        let kept = comparison.answers.each_ref().map(|answers| answers.iter().flatten().count());
        assert_eq!((kept, comparison.not_kept), ([1, 1], 2));
        assert_eq!(comparison.compared, 3, "all are compared");
        assert_eq!(comparison.answers[0].len(), 3);
        let mut unmeasured = Comparison::default();
        unmeasured.add(0, &call, [answer(), answer()], 0.0);
        assert_eq!((unmeasured.not_kept, unmeasured.compared), (0, 1));
    }

    #[test]
    fn names_types_and_shapes_are_compared() {
        let names = first(&y(&[1.0]), &[]).unwrap();
        assert!(names.contains("outputs y"), "{names}");
        let shapes = first(&y(&[1.0]), &y(&[1.0, 2.0])).unwrap();
        assert!(shapes.contains("float32 [1], but float32 [2]"), "{shapes}");
    }

    #[test]
    fn integers_and_strings_are_exact() {
        let ids =
            |ids: Vec<i64>| vec![named("ids", Tensor::from_vec([2].as_slice(), ids).unwrap())];
        let difference = first(&ids(vec![7, 8]), &ids(vec![7, -9])).unwrap();
        assert!(difference.contains("element 1: 8, but -9"), "{difference}");
        let small = |value: u8| {
            vec![named("class", Tensor::from_vec([1].as_slice(), vec![value]).unwrap())]
        };
        let difference = first(&small(55), &small(200)).unwrap();
        assert!(difference.contains("element 0: 55, but 200"), "{difference}");
        let texts = |text: &str| {
            let strings = vec![Bytes::copy_from_slice(text.as_bytes())];
            vec![named("label", Tensor::from_strings([1].as_slice(), strings).unwrap())]
        };
        let difference = first(&texts("cat"), &texts("dog")).unwrap();
        assert!(difference.contains("\"cat\", but \"dog\""), "{difference}");
    }
}
