//! REST bodies: predict in row and column form, status, metadata.
//!
//! Row form lists instances, each one value or an object of named values; column form gives each input whole. What a
//! value becomes follows from the signature. `{"b64": "..."}` stands for bytes; `NaN` and `Infinity` may stand bare.

mod describe;
mod read;
mod write;

pub use describe::{metadata, status};
pub use read::{RestPredict, parse_predict, parse_response};
pub use write::{encode_request, predict_response};

pub use crate::oip::json::error;

/// How a body arranges its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictFormat {
    /// By instance: "instances", answered by "predictions".
    Row,
    /// By tensor: "inputs", answered by "outputs".
    Column,
}

/// The members that hold the tensors.
#[derive(Clone, Copy)]
struct BodyMembers {
    row: &'static str,
    column: &'static str,
}

const REQUEST: BodyMembers = BodyMembers { row: "instances", column: "inputs" };
const RESPONSE: BodyMembers = BodyMembers { row: "predictions", column: "outputs" };

impl BodyMembers {
    fn of(self, form: PredictFormat) -> &'static str {
        match form {
            PredictFormat::Row => self.row,
            PredictFormat::Column => self.column,
        }
    }
}
