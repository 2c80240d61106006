//! Settings of other model servers as Millpond's: those of TensorFlow Serving and of Triton, and
//! the equivalents of other servers' flags.
//!
//! A conversion takes text or the path of a file, and returns settings and a note for each part
//! that has no equivalent. Nothing is left out in silence. The crate starts nothing and writes no
//! file.
//!
//! # Modules
//! * Other servers: [`tfs`] reads TensorFlow Serving's flags, lists of models, batching and
//!   sessions, [`triton`] reads Triton's model repository, and [`equivalents`] lists equivalents of
//!   other servers' flags.
//! * What they share: `text` reads configuration files, `error` is the error of a conversion.

pub mod equivalents;
mod error;
pub mod text;
pub mod tfs;
pub mod triton;

pub use error::ImportError;

/// A settings file for `millpond serve --config FILE`, and the parts that it cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedSettings {
    /// Text of the file.
    pub text: String,
    /// Parts without an equivalent, a line for each.
    pub notes: Vec<String>,
}

/// First lines of an imported settings file.
const HEAD: &str = "# For `millpond serve --config FILE`; docs/millpond.toml has all settings.\n\n";

/// Writes a table as text.
///
/// # Errors
/// Returns an error that the input did not cause.
fn to_text(table: &toml::Table) -> Result<String, ImportError> {
    toml::to_string(table).map_err(|error| ImportError::internal(format!("settings: {error}")))
}
