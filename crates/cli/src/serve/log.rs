//! The log: standard error, text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::options::LogFormat;
use crate::environment;
use crate::exit::{CommandError, CommandResult};

/// Starts the log of this process.
///
/// # Errors
/// Returns a usage error if `filter` is invalid.
pub(crate) fn start(format: LogFormat, filter: &str) -> CommandResult {
    let wrong = |what: String| {
        CommandError::usage(format!("--log {filter}: {what}")).hint(
            "use error, warn, info, debug, trace, off, or a filter such as info,millpond_lifecycle=debug",
        )
    };
    if let Some(word) = filter.split(',').map(str::trim).find(|word| names_no_level(word)) {
        return Err(wrong(format!("\"{word}\" is not a level")));
    }
    let filter = EnvFilter::try_new(filter).map_err(|error| wrong(error.to_string()))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && environment::NO_COLOR.text().is_none();
            builder.with_ansi(colours).with_target(false).try_init()
        }
    };
    started.map_err(|error| CommandError::failed(format!("the log cannot be started: {error}")))
}

/// Returns true for a word of a filter that is no level. The library takes such a word for a
/// module's name, so a typo such as `verbose` would switch off all events.
fn names_no_level(word: &str) -> bool {
    !word.is_empty() && !word.contains(['=', '[', ']']) && word.parse::<LevelFilter>().is_err()
}

#[cfg(test)]
mod tests {
    use super::names_no_level;

    #[test]
    fn a_word_is_a_level() {
        for filter in [
            "info",
            "WARN",
            "off",
            "3",
            "info,millpond_lifecycle=debug",
            "[request{id}]=trace",
            "a::b=info",
            "",
        ] {
            assert!(!filter.split(',').any(names_no_level), "{filter}");
        }
        for filter in ["verbose", "millpond_lifecycle", "infos", "9"] {
            assert!(names_no_level(filter), "{filter}");
        }
    }
}
