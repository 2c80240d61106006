//! REST bodies: predict in row and column form, classify and regress, status, metadata.
//!
//! The row format lists instances, each one value or an object of named values. The column format
//! has each input whole. The signature decides the type of values. `{"b64": "..."}` stands for
//! bytes. `NaN` and `Infinity` may be bare tokens.

mod describe;
mod examples;
mod read;
mod write;

pub use describe::{metadata, status};
pub use examples::{example_bytes_max, parse_examples, result_response, result_text_bytes_max};
pub use read::{RestPredict, parse_predict, parse_response, signature_name};
pub use write::{encode_request, predict_bytes_max, predict_response};

/// The arrangement of tensors in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictFormat {
    /// One entry for each instance: "instances", answered by "predictions".
    Row,
    /// One entry for each tensor: "inputs", answered by "outputs".
    Column,
}

/// The members that hold the tensors.
#[derive(Clone, Copy)]
struct BodyMembers {
    row: &'static str,
    column: &'static str,
    /// True if the column format may have tensors that the signature lacks, besides all others.
    permits_more: bool,
}

/// TensorFlow Serving looks up each input by its name and ignores other members of "inputs".
const REQUEST: BodyMembers = BodyMembers { row: "instances", column: "inputs", permits_more: true };
const RESPONSE: BodyMembers =
    BodyMembers { row: "predictions", column: "outputs", permits_more: false };

impl BodyMembers {
    fn of(self, form: PredictFormat) -> &'static str {
        match form {
            PredictFormat::Row => self.row,
            PredictFormat::Column => self.column,
        }
    }
}
