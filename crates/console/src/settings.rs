//! The configuration that the overview shows. It has no secret.

use serde::Serialize;

use crate::machine::ShownDirectory;

/// A section of the configuration with the values in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingsSection {
    /// Name of the section, as the page shows it.
    pub name: &'static str,
    /// Settings of the section, in order.
    pub settings: Vec<Setting>,
}

/// A key of the settings file and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Key in the settings file.
    pub key: &'static str,
    /// The value in force.
    pub value: String,
}

/// Calls that the page uses if the server has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OfferedCalls {
    /// Rollouts can be shown and changed.
    pub rollout: bool,
    /// Slow requests are explained.
    pub slow: bool,
}

/// Part of the configuration that the page shows.
#[derive(Clone, Debug)]
pub struct ShownConfig {
    /// Name of the server.
    pub name: &'static str,
    /// Name and version of the engine; empty if it is opened on demand.
    pub engine: String,
    /// Directories whose disks are shown.
    pub directories: Vec<ShownDirectory>,
    /// First directory of models, for the command that publishes one.
    pub root: Option<String>,
    /// True if a GPU is configured.
    pub gpu: bool,
    /// Returns the optional calls of the API.
    pub calls: fn() -> OfferedCalls,
}
