//! Options for opening a model.

use std::str::FromStr;

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::SignatureFile;

/// Device that a model runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// The CUDA device of this number.
    Cuda(u32),
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.to_string()
    }
}

impl TryFrom<String> for Device {
    type Error = Error;

    fn try_from(text: String) -> Result<Device> {
        text.parse()
    }
}

impl FromStr for Device {
    type Err = Error;

    /// Parses "cpu", "cuda" (device 0) or "cuda:N".
    fn from_str(text: &str) -> Result<Device> {
        let number = match text {
            "cpu" => return Ok(Device::Cpu),
            "cuda" => Some(0),
            _ => text.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
        };
        number.map(Device::Cuda).ok_or_else(|| {
            Error::invalid(format!(
                "device \"{text}\": it must be \"cpu\", or \"cuda:N\" for GPU number N"
            ))
        })
    }
}

/// Threads of one run, and other settings of a model for opening it. The default is one thread and
/// one operator at a time, because Millpond's own workers provide the parallelism.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SessionOptions {
    /// Number of threads of one operator.
    pub intra_op_threads: usize,
    /// Number of operators of one run that may run at the same time.
    pub inter_op_threads: usize,
    /// Device that it runs on.
    pub device: Device,
    /// True if the operator trusts the model. Formats with native code are opened only then.
    pub trusted: bool,
    /// True if the model runs in a worker process, which ends alone if the engine aborts.
    pub isolate: bool,
    /// Bytes of memory that runs in the worker process may take at a time; `None` is unlimited. Has
    /// no effect without `isolate`.
    pub run_memory: Option<u64>,
    /// Tags of the graph to open, if a model file has several graphs (SavedModel). Empty for the
    /// graph with the tag "serve".
    pub graph_tags: Vec<String>,
    /// Facts about inputs and outputs that the graph does not state.
    pub signature: SignatureFile,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            intra_op_threads: 1,
            inter_op_threads: 1,
            device: Device::Cpu,
            trusted: false,
            isolate: false,
            run_memory: None,
            graph_tags: Vec::new(),
            signature: SignatureFile::default(),
        }
    }
}

impl SessionOptions {
    /// Checks that no graph tags are set, for an engine whose model files have one graph.
    ///
    /// # Errors
    /// `InvalidArgument` if tags are set.
    pub fn check_no_graph_tags(&self) -> Result<()> {
        if self.graph_tags.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid(
                "saved-model-tags selects a graph of a SavedModel, and this model is not one: remove it",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed_or_refused() {
        let device = |text: &str| text.parse::<Device>();
        assert_eq!(device("cpu").unwrap(), Device::Cpu);
        assert_eq!(device("cuda").unwrap(), Device::Cuda(0));
        assert_eq!(device("cuda:3").unwrap(), Device::Cuda(3));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x"] {
            assert!(device(wrong).unwrap_err().message().contains("cuda:N"));
        }
    }
}
