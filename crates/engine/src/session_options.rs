//! How a model is opened.

use std::str::FromStr;

use base::{Error, Result};

use crate::SignatureFile;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// On the processor.
    #[default]
    Cpu,
    /// On the CUDA device of this number.
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

impl FromStr for Device {
    type Err = Error;

    /// "cpu", "cuda" (device 0) or "cuda:N".
    fn from_str(text: &str) -> Result<Device> {
        let number = match text {
            "cpu" => return Ok(Device::Cpu),
            "cuda" => Some(0),
            _ => text.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
        };
        number
            .map(Device::Cuda)
            .ok_or_else(|| Error::invalid(format!("device \"{text}\": it must be \"cpu\" or \"cuda:N\"")))
    }
}

/// Threads inside one run of the engine, and what else a model's own settings say about opening it. One thread and one
/// operator at a time unless a model asks for more: Millpond's own workers are the parallelism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Threads inside one operator.
    pub intra_op_threads: usize,
    /// Operators of one run at the same time.
    pub inter_op_threads: usize,
    /// Where it runs.
    pub device: Device,
    /// The operator vouches for the model: formats that carry native code are opened only then.
    pub trusted: bool,
    /// What the graph does not say about its inputs and outputs.
    pub signature: SignatureFile,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            intra_op_threads: 1,
            inter_op_threads: 1,
            device: Device::Cpu,
            trusted: false,
            signature: SignatureFile::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices() {
        let device = |text: &str| text.parse::<Device>();
        assert_eq!(device("cpu").unwrap(), Device::Cpu);
        assert_eq!(device("cuda").unwrap(), Device::Cuda(0));
        assert_eq!(device("cuda:3").unwrap(), Device::Cuda(3));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x"] {
            assert!(device(wrong).unwrap_err().message().contains("cuda:N"));
        }
    }
}
