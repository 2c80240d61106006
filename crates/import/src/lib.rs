//! Settings of other model servers as Millpond's: TensorFlow Serving's flags, lists of models,
//! batching and sessions ([`tfs`]), Triton's model repository ([`triton`]), and the equivalents of
//! other servers' flags ([`equivalents`]).
//!
//! A conversion takes text or the path of a file, and returns settings and a note for each part
//! that has no equivalent. Nothing is left out in silence. The crate starts nothing and writes no
//! file.

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
