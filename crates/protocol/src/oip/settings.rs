//! Triton's extensions for settings of traces and of the log, as far as they have a meaning here.

use std::collections::BTreeMap;

use base::{Error, Result};

/// One of this many requests is traced if a client turns traces on without a number. It is Triton's
/// default.
const TRACE_RATE: f64 = 1000.0;

const LEVEL: &str = "trace_level";
const RATE: &str = "trace_rate";

/// Settings by name. A setting without values is cleared.
pub type TraceSettingValues = BTreeMap<String, Vec<String>>;

/// Change of the part of the requests that is traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TraceChange {
    /// No setting changes.
    Keep,
    /// The default applies again.
    Clear,
    /// The part, 0 to 1.
    Set(f64),
}

/// Returns the settings of a server that traces the part `rate` of the requests.
pub fn trace_settings(rate: f64) -> TraceSettingValues {
    let on = rate > 0.0;
    let every = if on { (1.0 / rate).round() } else { TRACE_RATE };
    let settings = [
        (LEVEL, if on { "TIMESTAMPS" } else { "OFF" }.to_owned()),
        (RATE, format!("{every}")),
        ("trace_count", "-1".to_owned()),
        ("log_frequency", "0".to_owned()),
        ("trace_mode", "opentelemetry".to_owned()),
    ];
    settings.into_iter().map(|(name, value)| (name.to_owned(), vec![value])).collect()
}

/// Returns the change that a client requests with `settings`. `current` is the part of the requests
/// that is traced now, 0 to 1.
///
/// # Errors
/// `InvalidArgument` for a malformed value, an unknown setting, or a rate while traces are off.
/// `Unimplemented` for a value that Triton has and this server does not have.
pub fn changed_trace(current: f64, settings: &TraceSettingValues) -> Result<TraceChange> {
    for (name, values) in settings {
        let kept: &[&str] = match name.as_str() {
            LEVEL | RATE => continue,
            "trace_count" => &["-1"],
            "log_frequency" => &["0"],
            "trace_mode" => &["opentelemetry"],
            "trace_file" => &[""],
            _ => return Err(Error::invalid(format!("there is no trace setting \"{name}\""))),
        };
        if let Some(value) = values.iter().find(|value| !kept.contains(&value.as_str())) {
            return Err(Error::unimplemented(format!(
                "{name} is always {}, not \"{value}\": traces go to an OpenTelemetry collector",
                kept[0]
            )));
        }
    }
    let on = settings.get(LEVEL).map(|values| level(values)).transpose()?;
    let rate = settings.get(RATE).map(|values| every(values)).transpose()?;
    Ok(match (on, rate) {
        (None, None) => TraceChange::Keep,
        (Some(None), None | Some(None)) | (None, Some(None)) => TraceChange::Clear,
        (Some(Some(false)), _) => TraceChange::Set(0.0),
        (None, Some(Some(_))) if current <= 0.0 => {
            return Err(Error::invalid(
                "traces are off; give \"trace_level\": [\"TIMESTAMPS\"] together with trace_rate",
            ));
        }
        (_, Some(Some(every))) => TraceChange::Set(1.0 / every),
        // A model whose level is stated does not follow later changes of the server's.
        (Some(Some(true)), _) if current > 0.0 => TraceChange::Set(current),
        (Some(Some(true)), _) => TraceChange::Set(1.0 / TRACE_RATE),
    })
}

/// Parses a level. Returns true for traces, false for no traces, and `None` if the setting is
/// cleared.
fn level(values: &[String]) -> Result<Option<bool>> {
    let mut on = None;
    for value in values {
        match value.as_str() {
            "OFF" => on = Some(false),
            "TIMESTAMPS" => on = Some(true),
            "TENSORS" => {
                return Err(Error::unimplemented(
                    "trace_level TENSORS is not offered; use TIMESTAMPS, and --request-log for tensors",
                ));
            }
            _ => {
                return Err(Error::invalid(format!(
                    "trace_level \"{value}\" is not known; use OFF or TIMESTAMPS"
                )));
            }
        }
    }
    Ok(on)
}

/// Parses a rate: one of so many requests is traced. Returns `None` if the setting is cleared.
fn every(values: &[String]) -> Result<Option<f64>> {
    let Some(value) = values.first() else { return Ok(None) };
    match value.parse::<u32>() {
        Ok(every @ 1..) if values.len() == 1 => Ok(Some(f64::from(every))),
        _ => Err(Error::invalid("trace_rate must be one whole number, 1 or more")),
    }
}

/// Value of a setting of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogSettingValue {
    /// True or false.
    Flag(bool),
    /// A whole number, such as a level of detail.
    Number(u32),
    /// A word, such as a format or a file name.
    Text(String),
}

/// Levels of the log, from none to the most.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
const ERROR: usize = 1;
const WARN: usize = 2;
const INFO: usize = 3;

/// Returns the settings of a log with the given filter. Levels of single modules are not shown.
pub fn log_settings(filter: &str) -> BTreeMap<String, LogSettingValue> {
    let level = filter_level(filter);
    let flag = |least| LogSettingValue::Flag(level >= least);
    let verbose = level.saturating_sub(INFO) as u32;
    let settings = [
        ("log_file", LogSettingValue::Text(String::new())),
        ("log_info", flag(INFO)),
        ("log_warning", flag(WARN)),
        ("log_error", flag(ERROR)),
        ("log_verbose_level", LogSettingValue::Number(verbose)),
        ("log_format", LogSettingValue::Text("default".to_owned())),
    ];
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the position of the filter's level for all modules.
fn filter_level(filter: &str) -> usize {
    let words = filter.split(',').map(str::trim);
    let level = |word: &str| LEVELS.iter().position(|level| word.eq_ignore_ascii_case(level));
    words.filter_map(level).next_back().unwrap_or(ERROR)
}

/// Returns the filter for a log with `filter` after a client's change of `settings`. A change of
/// the level replaces the whole filter, with its levels of single modules.
///
/// # Errors
/// `InvalidArgument` for an unknown setting or a value of the wrong type. `Unimplemented` for
/// combinations that have no level here, log files and other formats.
pub fn changed_log(filter: &str, settings: &BTreeMap<String, LogSettingValue>) -> Result<String> {
    let current = filter_level(filter);
    let mut info = current >= INFO;
    let mut warning = current >= WARN;
    let mut error = current >= ERROR;
    let mut verbose = current.saturating_sub(INFO);
    for (name, value) in settings {
        match (name.as_str(), value) {
            ("log_info", LogSettingValue::Flag(on)) => info = *on,
            ("log_warning", LogSettingValue::Flag(on)) => warning = *on,
            ("log_error", LogSettingValue::Flag(on)) => error = *on,
            ("log_verbose_level", LogSettingValue::Number(number)) => verbose = *number as usize,
            ("log_file", LogSettingValue::Text(file)) if file.is_empty() => {}
            ("log_format", LogSettingValue::Text(format)) if format == "default" => {}
            ("log_file" | "log_format", LogSettingValue::Text(_)) => {
                return Err(Error::unimplemented(format!(
                    "{name} cannot change: the log goes to standard error, in the format of --log-format"
                )));
            }
            (
                "log_info" | "log_warning" | "log_error" | "log_verbose_level" | "log_file"
                | "log_format",
                _,
            ) => {
                return Err(Error::invalid(format!("the value of {name} has the wrong type")));
            }
            _ => return Err(Error::invalid(format!("there is no log setting \"{name}\""))),
        }
    }
    if (info && !warning) || (warning && !error) {
        return Err(Error::unimplemented(
            "a level includes all more important ones: log_info needs log_warning, which needs log_error",
        ));
    }
    let level = [error, warning, info].into_iter().filter(|on| *on).count();
    let verbose = if level == INFO { verbose } else { 0 };
    let changed = (level + verbose).min(LEVELS.len() - 1);
    let changed = if changed == current { filter } else { LEVELS[changed] };
    Ok(changed.to_owned())
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    fn values(settings: &[(&str, &[&str])]) -> TraceSettingValues {
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        settings.iter().map(|(name, own)| ((*name).to_owned(), values(own))).collect()
    }

    #[test]
    fn traces_follow_tritons_settings() {
        let change = |current, settings: &[(&str, &[&str])]| {
            changed_trace(current, &values(settings)).unwrap()
        };
        let on = ("trace_level", &["TIMESTAMPS"][..]);
        assert_eq!(change(0.0, &[on, ("trace_rate", &["4"])]), TraceChange::Set(0.25));
        assert_eq!(change(0.0, &[on]), TraceChange::Set(0.001));
        assert_eq!(change(0.5, &[on]), TraceChange::Set(0.5));
        assert_eq!(change(0.5, &[("trace_rate", &["2"])]), TraceChange::Set(0.5));
        assert_eq!(change(0.5, &[("trace_level", &["OFF"])]), TraceChange::Set(0.0));
        assert_eq!(change(0.5, &[("trace_level", &[]), ("trace_rate", &[])]), TraceChange::Clear);
        assert_eq!(change(0.5, &[("trace_count", &["-1"])]), TraceChange::Keep);
        let shown = trace_settings(0.25);
        assert_eq!(
            (&shown["trace_level"][0][..], &shown["trace_rate"][0][..]),
            ("TIMESTAMPS", "4")
        );
        assert_eq!(trace_settings(0.0)["trace_level"], ["OFF"]);
        assert_eq!(changed_trace(0.25, &shown), Ok(TraceChange::Set(0.25)));
    }

    #[test]
    fn other_trace_settings_are_refused() {
        let kind = |settings: &[(&str, &[&str])]| {
            changed_trace(0.0, &values(settings)).unwrap_err().kind()
        };
        for (name, value) in [("trace_rate", "0"), ("trace_rate", "x"), ("trace_level", "MOST")] {
            assert_eq!(kind(&[(name, &[value])]), ErrorKind::InvalidArgument, "{name} {value}");
        }
        assert_eq!(kind(&[("speed", &["1"])]), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[("trace_rate", &["5"])]), ErrorKind::InvalidArgument, "off");
        for (name, value) in
            [("trace_level", "TENSORS"), ("trace_file", "/tmp/x"), ("trace_mode", "triton")]
        {
            assert_eq!(kind(&[(name, &[value])]), ErrorKind::Unimplemented, "{name} {value}");
        }
    }

    #[test]
    fn levels_are_triton_flags() {
        let flag = |name: &str, on| (name.to_owned(), LogSettingValue::Flag(on));
        let verbose = |number| ("log_verbose_level".to_owned(), LogSettingValue::Number(number));
        for level in LEVELS {
            let shown = log_settings(level);
            assert_eq!(changed_log("info", &shown).unwrap(), level);
            assert_eq!(changed_log(level, &BTreeMap::new()).unwrap(), level);
        }
        let modules = "info,millpond_lifecycle=trace";
        assert_eq!(log_settings(modules), log_settings("info"));
        assert_eq!(changed_log(modules, &log_settings("info")).unwrap(), modules);
        assert_eq!(changed_log(modules, &[verbose(1)].into()).unwrap(), "debug");
        assert_eq!(changed_log("info", &[verbose(1)].into()).unwrap(), "debug");
        assert_eq!(changed_log("trace", &[flag("log_info", false)].into()).unwrap(), "warn");
        let refused = |settings: BTreeMap<String, LogSettingValue>| {
            changed_log("info", &settings).unwrap_err().kind()
        };
        assert_eq!(refused([flag("log_error", false)].into()), ErrorKind::Unimplemented);
        let file = LogSettingValue::Text("/tmp/log".to_owned());
        assert_eq!(refused([("log_file".to_owned(), file)].into()), ErrorKind::Unimplemented);
        assert_eq!(refused([flag("log_verbose_level", true)].into()), ErrorKind::InvalidArgument);
        assert_eq!(refused([flag("loud", true)].into()), ErrorKind::InvalidArgument);
    }
}
