//! The log: standard error, text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use super::options::LogFormat;
use crate::environment;
use crate::exit::{Failure, Outcome};

/// Starts it for the whole process.
///
/// # Errors
/// A usage failure when `filter` is no filter.
pub(super) fn start(format: LogFormat, filter: &str) -> Outcome {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::usage(format!("--log {filter}: {error}"))
            .hint("use error, warn, info, debug, trace, or a filter such as info,millpond_lifecycle=debug")
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && environment::NO_COLOR.text().is_none();
            builder.with_ansi(colours).with_target(false).try_init()
        }
    };
    started.map_err(|error| Failure::failed(format!("the log cannot be started: {error}")))
}
