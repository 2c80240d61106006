//! REST bodies: predict in row and column form, status, metadata.
//!
//! Row form lists instances, each one value or an object of named values; column form gives each input whole. What a
//! value becomes follows from the signature. `{"b64": "..."}` stands for bytes; `NaN` and `Infinity` may stand bare.

mod describe;
mod read;
mod write;

pub use describe::{metadata, status};
pub use read::{Predict, parse_predict, parse_response};
pub use write::{encode_request, predict_response};

pub use crate::oip::json::error;

/// How a body arranges its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By instance: "instances", answered by "predictions".
    Row,
    /// By tensor: "inputs", answered by "outputs".
    Column,
}

/// The members that hold the tensors.
#[derive(Clone, Copy)]
struct Members {
    row: &'static str,
    column: &'static str,
}

const REQUEST: Members = Members { row: "instances", column: "inputs" };
const RESPONSE: Members = Members { row: "predictions", column: "outputs" };

impl Members {
    fn of(self, form: Form) -> &'static str {
        match form {
            Form::Row => self.row,
            Form::Column => self.column,
        }
    }
}
