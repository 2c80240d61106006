//! TensorFlow's status codes and messages as errors.

use base::{Error, ErrorKind};

/// Longest message that is kept, in bytes. TensorFlow appends a trace of operators.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Explanation of TensorFlow's message about an operator that its library does not have.
const UNKNOWN_OPERATOR: &str =
    "custom operators are not loaded; export the model with TensorFlow's own operators";

const CANCELLED: i32 = 1;
const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
const NOT_FOUND: i32 = 5;
const ALREADY_EXISTS: i32 = 6;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;
const UNAVAILABLE: i32 = 14;
const DATA_LOSS: i32 = 15;

/// Builds the error of a failed run, with TensorFlow's code.
pub(crate) fn of_run(code: i32, message: &str) -> Error {
    let kind = match code {
        CANCELLED => ErrorKind::Cancelled,
        INVALID_ARGUMENT | OUT_OF_RANGE => ErrorKind::InvalidArgument,
        DEADLINE_EXCEEDED => ErrorKind::DeadlineExceeded,
        NOT_FOUND => ErrorKind::NotFound,
        ALREADY_EXISTS => ErrorKind::AlreadyExists,
        PERMISSION_DENIED => ErrorKind::PermissionDenied,
        RESOURCE_EXHAUSTED => ErrorKind::ResourceExhausted,
        FAILED_PRECONDITION => ErrorKind::FailedPrecondition,
        UNIMPLEMENTED => ErrorKind::Unimplemented,
        UNAVAILABLE => ErrorKind::Unavailable,
        DATA_LOSS => ErrorKind::DataLoss,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, one_line(message))
}

/// Builds the error of a failed load. It is an error of the model, except if there was too little
/// memory.
pub(crate) fn of_load(code: i32, message: &str) -> Error {
    let message = one_line(message);
    // A file of the checkpoint is missing, ends early, or contradicts its index. An unknown
    // operator is "not found" too.
    let unknown_operator = message.contains("not registered");
    let damaged = code == NOT_FOUND && !unknown_operator;
    let kind = match code {
        DATA_LOSS | OUT_OF_RANGE => ErrorKind::DataLoss,
        _ if damaged => ErrorKind::DataLoss,
        RESOURCE_EXHAUSTED => ErrorKind::ResourceExhausted,
        _ => ErrorKind::InvalidArgument,
    };
    if unknown_operator {
        return Error::new(kind, format!("{UNKNOWN_OPERATOR}: {message}"));
    }
    Error::new(kind, message)
}

/// Joins the lines and cuts a long message.
fn one_line(message: &str) -> String {
    let mut line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > MESSAGE_BYTES_MAX {
        line.truncate(line.floor_char_boundary(MESSAGE_BYTES_MAX));
        line.push_str(" ...");
    }
    if line.is_empty() {
        line.push_str("TensorFlow gave no reason");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_of_bounded_length() {
        let error = of_run(INVALID_ARGUMENT, "index out of\n range\n\t [[{{node x}}]]");
        assert_eq!(error.message(), "index out of range [[{{node x}}]]");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(of_run(13, &"ü".repeat(2000)).message().len() <= MESSAGE_BYTES_MAX + 4);
        assert_eq!(of_run(13, "").kind(), ErrorKind::Internal);
    }

    #[test]
    fn an_unknown_operator_is_no_damage() {
        let unknown = of_load(NOT_FOUND, "Op type not registered 'X' in binary");
        assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            unknown.message(),
            format!("{UNKNOWN_OPERATOR}: Op type not registered 'X' in binary")
        );
        let missing =
            of_load(NOT_FOUND, "variables.data-00000-of-00001; No such file or directory");
        assert_eq!(missing.kind(), ErrorKind::DataLoss);
    }
}
