//! The log: standard error, text or JSON. Its filter can change while serving.

use std::io::IsTerminal;
use std::sync::Arc;

use base::Error;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult};
use parking_lot::Mutex;
use server::LogFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{EnvFilter, reload};

use super::log_fields::EscapedFields;
use super::log_limit::LimitedEvents;
use super::log_output::LogOutput;
use super::options::LogFormat;

/// Forms of a filter.
const FORMS: &str =
    "use error, warn, info, debug, trace, off, or a filter such as info,millpond_lifecycle=debug";

/// Added to a filter of the level `info`. The client of object stores logs each of its ten retries
/// of a request at that level. These are ten lines a minute while a store is away, in addition to
/// the line of the failure.
const QUIET_STORES: &str = "object_store=warn";

/// Form and level of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogSetup {
    pub(crate) format: LogFormat,
    /// A level, or a filter.
    pub(crate) filter: String,
    /// Flag or variable that `filter` comes from.
    pub(crate) source: &'static str,
}

/// Starts the log of this process. Returns its filter.
///
/// # Errors
/// Returns a usage error if the filter is invalid.
pub(crate) fn start(setup: &LogSetup) -> CommandResult<Arc<dyn LogFilter>> {
    let LogSetup { format, filter, source } = setup;
    let format = *format;
    let parsed = parse(filter)
        .map_err(|what| CommandError::usage(format!("{source} {filter}: {what}")).hint(FORMS))?;
    let builder =
        tracing_subscriber::fmt().with_env_filter(parsed).with_writer(LogOutput::new(format));
    let (started, replace): (_, Replace) = match format {
        LogFormat::Json => {
            let builder = builder
                .json()
                .flatten_event(true)
                .map_event_format(|events| LimitedEvents::new(format, events))
                .with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && environment::NO_COLOR.text().is_none();
            let builder = builder
                .with_ansi(colours)
                .with_target(false)
                .fmt_fields(EscapedFields)
                .map_event_format(|events| LimitedEvents::new(format, events))
                .with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
    };
    started.map_err(|error| CommandError::failed(format!("the log cannot be started: {error}")))?;
    Ok(Arc::new(ProcessLogFilter { replace, text: Mutex::new(filter.to_owned()) }))
}

type Replace = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

/// The filter of this process's log.
struct ProcessLogFilter {
    replace: Replace,
    text: Mutex<String>,
}

impl std::fmt::Debug for ProcessLogFilter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("ProcessLogFilter").field(&self.get()).finish()
    }
}

impl LogFilter for ProcessLogFilter {
    fn get(&self) -> String {
        self.text.lock().clone()
    }

    fn set(&self, filter: &str) -> base::Result<()> {
        let parsed = parse(filter)
            .map_err(|what| Error::invalid(format!("filter \"{filter}\": {what}; {FORMS}")))?;
        let mut text = self.text.lock();
        (self.replace)(parsed)
            .map_err(|error| Error::internal("the log's filter stays").caused_by(error))?;
        filter.clone_into(&mut text);
        Ok(())
    }
}

/// Parses a filter. The error describes the mistake.
fn parse(filter: &str) -> Result<EnvFilter, String> {
    // The library reads an empty filter as `error`: a user who expects the default loses warnings.
    if filter.split(',').all(|word| word.trim().is_empty()) {
        return Err("it names no level".to_owned());
    }
    match filter.split(',').map(str::trim).find(|word| names_no_level(word)) {
        Some(word) => Err(format!("\"{word}\" is not a level")),
        None => EnvFilter::try_new(with_quiet_stores(filter)).map_err(|error| error.to_string()),
    }
}

/// Returns the filter with [`QUIET_STORES`] if its level is `info` and it does not name the client
/// of object stores.
fn with_quiet_stores(filter: &str) -> String {
    let words = filter.split(',').map(str::trim).filter(|word| !word.is_empty());
    let level = words.rev().find_map(|word| word.parse::<LevelFilter>().ok());
    if level == Some(LevelFilter::INFO) && !filter.contains("object_store") {
        format!("{filter},{QUIET_STORES}")
    } else {
        filter.to_owned()
    }
}

/// Returns true for a word of a filter that is not a level. The library takes such a word for a
/// module's name, so a typo such as `verbose` would switch off all events.
fn names_no_level(word: &str) -> bool {
    !word.is_empty() && !word.contains(['=', '[', ']']) && word.parse::<LevelFilter>().is_err()
}

#[cfg(test)]
mod tests {
    use super::{names_no_level, parse, with_quiet_stores};

    #[test]
    fn retries_of_stores_are_not_information() {
        for filter in ["info", "INFO", "3", "millpond_lifecycle=debug, info"] {
            assert_eq!(with_quiet_stores(filter), format!("{filter},object_store=warn"));
        }
        for filter in ["error", "warn", "debug", "off", "info,object_store=info", "a=info"] {
            assert_eq!(with_quiet_stores(filter), filter);
        }
        let parsed = parse("info").unwrap().to_string();
        assert!(parsed.contains("object_store=warn"), "{parsed}");
    }

    #[test]
    fn an_empty_filter_is_refused() {
        for filter in ["", " ", ",", " , "] {
            assert_eq!(parse(filter).err().as_deref(), Some("it names no level"), "{filter:?}");
        }
        for filter in ["off", "info,"] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
    }

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
