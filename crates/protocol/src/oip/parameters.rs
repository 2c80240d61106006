//! Parameters of requests, inputs and outputs. A request with an unknown parameter is refused,
//! because ignoring it would change the meaning of the request in silence.

use std::time::Duration;

use base::{Error, Result};

use super::{
    CLASSIFICATION, PRIORITY, REQUEST_KEY, SIGNATURE_NAME, TIMEOUT, no_classification, no_priority,
    no_shared_memory,
};
use crate::json::Scalar;
use crate::wire;

/// Maximum characters of a client's parameter in a message.
const NAME_SHOWN_MAX: usize = 64;
/// Parameter for the length of a tensor's raw form.
pub(super) const BINARY_SIZE: &str = "binary_data_size";

/// Options of a request, from its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InferOptions {
    pub(super) timeout: Option<Duration>,
    pub(super) priority: usize,
    pub(super) binary_output: bool,
    pub(super) signature: String,
    pub(super) request_key: String,
}

impl InferOptions {
    /// Reads a parameter of the request.
    ///
    /// # Errors
    /// `Unimplemented` for sequences. `InvalidArgument` for a malformed value and for an unknown
    /// parameter.
    pub(super) fn read(&mut self, name: &str, value: &Scalar<'_>) -> Result<()> {
        match (name, value) {
            ("binary_data_output", value) => self.binary_output = choice(name, value)?,
            (TIMEOUT, Scalar::Whole(0)) => self.timeout = None,
            (TIMEOUT, Scalar::Whole(micros @ 1..)) => {
                self.timeout = Some(Duration::from_micros(micros.unsigned_abs()));
            }
            (TIMEOUT, _) => {
                return Err(Error::invalid("\"timeout\" must be a whole number of microseconds"));
            }
            (PRIORITY, Scalar::Whole(level @ 0..)) => {
                self.priority = usize::try_from(*level).unwrap_or(usize::MAX);
            }
            (PRIORITY, _) => return Err(no_priority()),
            (SIGNATURE_NAME, Scalar::Text(signature)) => {
                wire::check_name(signature)?;
                self.signature = signature.clone().into_owned();
            }
            (REQUEST_KEY, Scalar::Text(key)) => {
                wire::check_name(key)?;
                self.request_key = key.clone().into_owned();
            }
            (REQUEST_KEY, Scalar::Whole(key)) => self.request_key = key.to_string(),
            // Each request has one response, which a stream marks as the last, so no empty response
            // follows.
            ("triton_enable_empty_final_response", Scalar::Bool(_)) => {}
            ("sequence_id" | "sequence_start" | "sequence_end", value) => {
                return sequence(name, value);
            }
            _ if is_plain_content(name, value)
                || is_text_content(name, value)
                || is_columns_content(name, value) => {}
            _ => return Err(unknown(name, "the request")),
        }
        Ok(())
    }
}

/// Reads a parameter of an input. Returns the length of its raw form, if the parameter is that.
///
/// # Errors
/// `Unimplemented` for shared memory. `InvalidArgument` for a malformed length and for an unknown
/// parameter.
pub(super) fn input(input: &str, name: &str, value: &Scalar<'_>) -> Result<Option<usize>> {
    match (name, value) {
        (BINARY_SIZE, Scalar::Whole(size)) => usize::try_from(*size)
            .map(Some)
            .map_err(|_| Error::invalid(format!("{BINARY_SIZE} is {size}, which is not a length"))),
        (BINARY_SIZE, _) => Err(Error::invalid(format!("{BINARY_SIZE} must be a whole number"))),
        _ if is_shared_memory(name) => Err(no_shared_memory(input)),
        _ if is_plain_content(name, value) => Ok(None),
        _ => Err(unknown(name, &format!("input \"{input}\""))),
    }
}

/// Reads a parameter of an output. Returns the choice of raw elements, if the parameter is that.
///
/// # Errors
/// `Unimplemented` for shared memory and classification. `InvalidArgument` for an unknown
/// parameter.
pub(super) fn output(output: &str, name: &str, value: &Scalar<'_>) -> Result<Option<bool>> {
    match (name, value) {
        ("binary_data", value) => choice(name, value).map(Some),
        (CLASSIFICATION, Scalar::Whole(0)) => Ok(None),
        (CLASSIFICATION, _) => Err(no_classification(output)),
        _ if is_shared_memory(name) => Err(no_shared_memory(output)),
        _ if is_plain_content(name, value) => Ok(None),
        _ => Err(unknown(name, &format!("output \"{output}\""))),
    }
}

/// Reads a choice of raw elements. Null and other values that are not a choice count as false.
///
/// # Errors
/// `InvalidArgument` for a number and a text, such as "true".
fn choice(name: &str, value: &Scalar<'_>) -> Result<bool> {
    match value {
        Scalar::Bool(choice) => Ok(*choice),
        Scalar::Other => Ok(false),
        Scalar::Whole(_) | Scalar::Text(_) => {
            Err(Error::invalid(format!("\"{name}\" must be true or false, without quotes")))
        }
    }
}

fn is_shared_memory(name: &str) -> bool {
    matches!(name, "shared_memory_region" | "shared_memory_byte_size" | "shared_memory_offset")
}

/// Returns true for MLServer's `content_type` with the value for plain tensors.
fn is_plain_content(name: &str, value: &Scalar<'_>) -> bool {
    name == "content_type" && matches!(value, Scalar::Text(text) if text == "np")
}

/// Returns true for MLServer's `content_type` of a request whose inputs are the columns of a data
/// frame. Each column has the name, type and shape of an input, so it has no effect.
fn is_columns_content(name: &str, value: &Scalar<'_>) -> bool {
    name == "content_type" && matches!(value, Scalar::Text(text) if text == "pd")
}

/// Returns true for MLServer's `content_type` of text. Strings may hold any bytes, so it has no
/// effect.
pub(super) fn is_text_content(name: &str, value: &Scalar<'_>) -> bool {
    name == "content_type" && matches!(value, Scalar::Text(text) if text == "str")
}

/// Returns true for MLServer's `content_type` of strings that are base64 in JSON.
pub(super) fn is_base64_content(name: &str, value: &Scalar<'_>) -> bool {
    name == "content_type" && matches!(value, Scalar::Text(text) if text == "base64")
}

/// Refuses a request of a sequence. Clients send 0, "" and false for other requests.
fn sequence(name: &str, value: &Scalar<'_>) -> Result<()> {
    let none = match value {
        Scalar::Whole(0) | Scalar::Bool(false) => true,
        Scalar::Text(text) => text.is_empty(),
        _ => false,
    };
    if none {
        return Ok(());
    }
    Err(Error::unimplemented(format!(
        "sequences are not offered; leave \"{name}\" out and send a model's state as inputs and outputs"
    )))
}

fn unknown(name: &str, of: &str) -> Error {
    // The name comes from the client, so a message shows its start only.
    let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
    Error::invalid(format!(
        "{of} has the parameter \"{shown}\", which is not known here; leave it out"
    ))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    fn text(text: &str) -> Scalar<'_> {
        Scalar::Text(text.into())
    }

    fn request(name: &str, value: Scalar<'_>) -> Result<InferOptions> {
        let mut options = InferOptions::default();
        options.read(name, &value).map(|()| options)
    }

    fn refusal<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn sequences_are_refused() {
        for (name, value) in [
            ("sequence_id", Scalar::Whole(7)),
            ("sequence_id", text("a")),
            ("sequence_start", Scalar::Bool(true)),
            ("sequence_end", Scalar::Bool(true)),
            ("sequence_id", Scalar::Other),
        ] {
            let error = request(name, value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unimplemented);
            assert!(error.message().starts_with("sequences are not offered"), "{error}");
        }
        for (name, value) in [
            ("sequence_id", Scalar::Whole(0)),
            ("sequence_id", text("")),
            ("sequence_start", Scalar::Bool(false)),
            ("sequence_end", Scalar::Bool(false)),
        ] {
            assert_eq!(request(name, value), Ok(InferOptions::default()), "{name}");
        }
    }

    #[test]
    fn every_parameter_is_known_or_refused() {
        assert_eq!(
            request("timeout", Scalar::Whole(5)).unwrap().timeout,
            Some(Duration::from_micros(5))
        );
        assert_eq!(request("priority", Scalar::Whole(2)).unwrap().priority, 2);
        assert!(request("binary_data_output", Scalar::Bool(true)).unwrap().binary_output);
        for (name, value) in [
            ("timeout", Scalar::Whole(0)),
            ("triton_enable_empty_final_response", Scalar::Bool(true)),
            ("content_type", text("np")),
            ("content_type", text("str")),
            ("content_type", text("pd")),
        ] {
            assert_eq!(request(name, value), Ok(InferOptions::default()), "{name}");
        }
        for (name, value) in [
            ("timeout", text("1s")),
            ("timeout", Scalar::Whole(-1)),
            ("priority", Scalar::Whole(-1)),
            ("binary_data_output", text("true")),
            ("binary_data_output", Scalar::Whole(1)),
            ("content_type", text("base64")),
            ("temperature", Scalar::Other),
        ] {
            assert_eq!(refusal(request(name, value)), ErrorKind::InvalidArgument, "{name}");
        }
        let long = request(&"x".repeat(10_000), Scalar::Other).unwrap_err();
        assert!(long.message().len() < 200);
    }

    #[test]
    fn parameters_of_tensors() {
        assert_eq!(input("x", BINARY_SIZE, &Scalar::Whole(4)), Ok(Some(4)));
        assert_eq!(
            refusal(input("x", BINARY_SIZE, &Scalar::Whole(-4))),
            ErrorKind::InvalidArgument
        );
        assert_eq!(refusal(input("x", "layout", &text("NHWC"))), ErrorKind::InvalidArgument);
        assert_eq!(output("y", "binary_data", &Scalar::Bool(true)), Ok(Some(true)));
        assert_eq!(output("y", "binary_data", &Scalar::Other), Ok(Some(false)));
        assert_eq!(refusal(output("y", "binary_data", &text("1"))), ErrorKind::InvalidArgument);
        assert_eq!(output("y", CLASSIFICATION, &Scalar::Whole(0)), Ok(None));
        assert_eq!(
            refusal(output("y", CLASSIFICATION, &Scalar::Whole(3))),
            ErrorKind::Unimplemented
        );
        assert_eq!(refusal(output("y", "rounding", &Scalar::Whole(3))), ErrorKind::InvalidArgument);
        for name in ["shared_memory_region", "shared_memory_offset"] {
            assert_eq!(refusal(input("x", name, &text("r"))), ErrorKind::Unimplemented);
            assert_eq!(refusal(output("y", name, &text("r"))), ErrorKind::Unimplemented);
        }
    }
}
