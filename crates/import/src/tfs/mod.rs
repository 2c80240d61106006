//! TensorFlow Serving's flags and configuration files.

mod batching;
mod flags;
mod model_list;
mod platform;
mod sessions;
mod settings;
mod version_batching;

pub use flags::{Flags, help};
pub use model_list::{ModelListRules, StoreCopies, log_dir};
pub use sessions::SessionSettings;
pub use settings::settings;
pub use version_batching::{BatchingRemarks, VersionBatching};
