//! Settings of traces: the flags, and OpenTelemetry's own environment variables.

use std::time::Duration;

use command_line::environment::{self, OtelVariables};
use command_line::exit::{CommandError, CommandResult};
use server::{SamplingRates, TraceConfig, TraceExportConfig};

use super::options::ServerOptions;

/// Part of the requests that is traced, if no other part is set.
const SAMPLE: f64 = 0.01;
/// Path of traces below the address of a collector.
const TRACES_PATH: &str = "/v1/traces";
/// The only form in which traces are sent.
const PROTOCOL: &str = "http/protobuf";
/// OpenTelemetry's name of the only exporter.
const EXPORTER: &str = "otlp";
/// Maximum attributes of this server.
const ATTRIBUTES_MAX: usize = 128;

/// Returns the settings of traces; `None` if no collector is named.
///
/// # Errors
/// A usage error for values that cannot be used, and for `--trace-sample` without a collector.
pub(super) fn trace_config(options: &ServerOptions) -> CommandResult<Option<TraceConfig>> {
    config(options, &environment::otel())
}

/// Returns the export of traces, or `None` if no collector is set.
fn config(options: &ServerOptions, otel: &OtelVariables) -> CommandResult<Option<TraceConfig>> {
    let Some(url) = address(options, otel)? else {
        return match options.trace_sample {
            Some(_) if !is_off(otel) => Err(CommandError::usage("--trace-sample needs --otlp URL")),
            _ => Ok(None),
        };
    };
    let protocol = ExportVariable::new("PROTOCOL", &otel.traces_protocol, &otel.protocol);
    if let Some(value) = protocol.value.filter(|value| *value != PROTOCOL) {
        return Err(CommandError::usage(format!(
            "{} is {value}; Millpond sends traces by {PROTOCOL}",
            protocol.name
        ))
        .hint(format!("set it to {PROTOCOL}, and name the collector's HTTP port, mostly 4318")));
    }
    let timeout = ExportVariable::new("TIMEOUT", &otel.traces_timeout, &otel.timeout);
    let time_max = match timeout.value.map(str::parse::<u64>) {
        None => None,
        Some(Ok(ms @ 1..)) => Some(Duration::from_millis(ms)),
        Some(_) => {
            return Err(CommandError::usage(format!(
                "{} must be a whole number of milliseconds",
                timeout.name
            )));
        }
    };
    let headers = ExportVariable::new("HEADERS", &otel.traces_headers, &otel.headers);
    let default = TraceExportConfig::new(url);
    let export = TraceExportConfig {
        headers: pairs(&headers.name, headers.value)?,
        resource: resource(otel)?,
        timeout: time_max.unwrap_or(default.timeout),
        ..default
    };
    Ok(Some(TraceConfig { export, rates: rates(options, otel)? }))
}

/// A variable of exports: the one for traces, or else the one for all signals.
struct ExportVariable<'a> {
    name: String,
    value: Option<&'a str>,
}

impl<'a> ExportVariable<'a> {
    /// Returns the variable whose name ends with `name` for the values of both.
    fn new(
        name: &str,
        traces: &'a Option<String>,
        signals: &'a Option<String>,
    ) -> ExportVariable<'a> {
        match traces {
            Some(value) => ExportVariable {
                name: format!("OTEL_EXPORTER_OTLP_TRACES_{name}"),
                value: Some(value),
            },
            None => ExportVariable {
                name: format!("OTEL_EXPORTER_OTLP_{name}"),
                value: signals.as_deref(),
            },
        }
    }
}

/// Returns the full address of the collector's traces.
fn address(options: &ServerOptions, otel: &OtelVariables) -> CommandResult<Option<String>> {
    let base = options.otlp.as_deref().map(|url| ("--otlp", url));
    if base.is_none() && is_off(otel) {
        return Ok(None);
    }
    let (name, url, complete) = match (base, &otel.traces_endpoint, &otel.endpoint) {
        (Some((name, url)), ..) => (name, url, url.ends_with(TRACES_PATH)),
        (None, Some(url), _) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url.as_str(), true),
        (None, None, Some(url)) => ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str(), false),
        (None, None, None) => return Ok(None),
    };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        // The message does not show the URL, which may have a password.
        return Err(CommandError::usage(format!(
            "{name}: give http://HOST:PORT or https://..."
        ))
        .hint(
            "traces are sent by OTLP over HTTP, for which collectors mostly listen on port 4318",
        ));
    }
    Ok(Some(if complete {
        url.to_owned()
    } else {
        format!("{}{TRACES_PATH}", url.trim_end_matches('/'))
    }))
}

/// Returns true if OpenTelemetry's variables switch the export of traces off.
fn is_off(otel: &OtelVariables) -> bool {
    let has = |wanted: &str| exporters(otel).any(|name| name.eq_ignore_ascii_case(wanted));
    otel.disabled || (has("none") && !has(EXPORTER))
}

/// Returns the names in OTEL_TRACES_EXPORTER, which can be a list.
fn exporters(otel: &OtelVariables) -> impl Iterator<Item = &str> {
    let names = otel.exporter.as_deref().unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty())
}

/// Returns a warning if OTEL_TRACES_EXPORTER names an exporter that Millpond does not have, and
/// the variables of the environment enable the export. OpenTelemetry requires that such a name has
/// no other effect.
pub(super) fn unknown_exporter(options: &ServerOptions) -> Option<String> {
    unknown(options, &environment::otel())
}

/// Returns a warning if `OTEL_TRACES_EXPORTER` names an exporter that the server does not have.
fn unknown(options: &ServerOptions, otel: &OtelVariables) -> Option<String> {
    let exports = options.otlp.is_none() && address(options, otel).is_ok_and(|url| url.is_some());
    let is_known = |name: &str| [EXPORTER, "none"].iter().any(|it| name.eq_ignore_ascii_case(it));
    let name = exporters(otel).find(|name| exports && !is_known(name))?;
    Some(format!(
        "OTEL_TRACES_EXPORTER: \"{name}\" has no effect, and traces are sent by {EXPORTER}; set it \
         to {EXPORTER}, or to none for no traces"
    ))
}

/// Returns the sampling rates. The flag wins over OpenTelemetry's variables.
fn rates(options: &ServerOptions, otel: &OtelVariables) -> CommandResult<SamplingRates> {
    let part = |name: &str, rate: f64| {
        if (0.0..=1.0).contains(&rate) {
            Ok(rate)
        } else {
            Err(CommandError::usage(format!(
                "{name} is {rate}; it must be 0 to 1, the share of the requests"
            )))
        }
    };
    let rates =
        |rate, parent_based| SamplingRates { rate, parent_based, ..SamplingRates::default() };
    if let Some(rate) = options.trace_sample {
        return Ok(rates(part("--trace-sample", rate)?, true));
    }
    let Some(sampler) = otel.sampler.as_deref() else { return Ok(rates(SAMPLE, true)) };
    let (parent_based, own) = match sampler.strip_prefix("parentbased_") {
        Some(own) => (true, own),
        None => (false, sampler),
    };
    let rate = match (own, otel.sampler_arg.as_deref()) {
        ("always_on", _) => 1.0,
        ("always_off", _) => 0.0,
        // OpenTelemetry's default.
        ("traceidratio", None) => 1.0,
        ("traceidratio", Some(text)) => {
            let name = "OTEL_TRACES_SAMPLER_ARG";
            let rate = text.parse().map_err(|_| {
                CommandError::usage(format!("{name} is {text}, which is not a number"))
            })?;
            part(name, rate)?
        }
        _ => {
            return Err(CommandError::usage(format!("OTEL_TRACES_SAMPLER {sampler} is not known"))
                .hint("use always_on, always_off or traceidratio, alone or after parentbased_"));
        }
    };
    Ok(rates(rate, parent_based))
}

/// Returns the attributes of this server. Names of the environment take precedence.
fn resource(otel: &OtelVariables) -> CommandResult<Vec<(String, String)>> {
    let mut attributes = pairs("OTEL_RESOURCE_ATTRIBUTES", otel.resource.as_deref())?;
    if let Some(name) = &otel.service {
        attributes.retain(|(key, _)| key != "service.name");
        attributes.push(("service.name".to_owned(), name.clone()));
    }
    let host = environment::host_name();
    let version = env!("CARGO_PKG_VERSION");
    for (key, value) in [
        ("service.name", "millpond".to_owned()),
        ("service.version", version.to_owned()),
        ("service.instance.id", format!("{host}-{}", std::process::id())),
        ("host.name", host.clone()),
        ("telemetry.sdk.name", "millpond".to_owned()),
        ("telemetry.sdk.language", "rust".to_owned()),
        ("telemetry.sdk.version", version.to_owned()),
    ] {
        if !attributes.iter().any(|(known, _)| known == key) && !value.is_empty() {
            attributes.push((key.to_owned(), value));
        }
    }
    Ok(attributes)
}

/// Parses `KEY=VALUE,KEY=VALUE` with percent-encoded values (W3C Baggage). The error does not show
/// values, which may be secrets.
fn pairs(name: &str, text: Option<&str>) -> CommandResult<Vec<(String, String)>> {
    let wrong = || CommandError::usage(format!("{name} must have the form KEY=VALUE,KEY=VALUE"));
    let parts = text.unwrap_or_default().split(',').map(str::trim).filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (key, value) = part.split_once('=').ok_or_else(wrong)?;
        let value = decoded(value.trim()).ok_or_else(wrong)?;
        Ok((key.trim().to_owned(), value))
    };
    let pairs = parts.map(pair).collect::<CommandResult<Vec<_>>>()?;
    if pairs.len() <= ATTRIBUTES_MAX {
        Ok(pairs)
    } else {
        Err(CommandError::usage(format!("{name} has more than {ATTRIBUTES_MAX} pairs")))
    }
}

/// Decodes percent-encoded UTF-8; `None` if it is not that.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(otlp: Option<&str>, trace_sample: Option<f64>) -> ServerOptions {
        ServerOptions { otlp: otlp.map(str::to_owned), trace_sample, ..ServerOptions::default() }
    }

    fn url(options: &ServerOptions, otel: &OtelVariables) -> Option<String> {
        config(options, otel).unwrap().map(|config| config.export.url)
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn the_address_is_completed() {
        let none = OtelVariables::default();
        assert!(config(&flags(None, None), &none).unwrap().is_none());
        let wanted = text("http://c:4318/v1/traces");
        for given in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            assert_eq!(url(&flags(Some(given), None), &none), wanted, "{given}");
        }
        let otel = OtelVariables { endpoint: text("http://e:1/otlp"), ..none.clone() };
        assert_eq!(url(&flags(None, None), &otel), text("http://e:1/otlp/v1/traces"));
        assert_eq!(url(&flags(Some("http://c:4318"), None), &otel), wanted, "flags win");
        let exact = OtelVariables { traces_endpoint: text("http://e:2/x"), ..otel.clone() };
        assert_eq!(url(&flags(None, None), &exact), text("http://e:2/x"));
        let exporter = |name: &str| OtelVariables { exporter: text(name), ..otel.clone() };
        assert_eq!(url(&flags(None, None), &exporter("none")), None);
        assert_eq!(url(&flags(Some("http://c:4318"), None), &exporter("none")), wanted);
        assert!(url(&flags(None, None), &exporter("console, otlp")).is_some());
        assert_eq!(url(&flags(None, Some(0.5)), &exporter("None")), None);
        assert!(url(&flags(None, None), &exporter("zipkin")).is_some());
        let disabled = OtelVariables { disabled: true, ..otel };
        assert_eq!(url(&flags(None, None), &disabled), None);
    }

    #[test]
    fn an_unknown_exporter_is_named() {
        let of = |otlp, name: &str| {
            let endpoint = text("http://e:1");
            let otel = OtelVariables { endpoint, exporter: text(name), ..OtelVariables::default() };
            unknown(&flags(otlp, None), &otel)
        };
        let warning = of(None, "otlp, Zipkin").unwrap();
        assert!(warning.starts_with("OTEL_TRACES_EXPORTER: \"Zipkin\" has no effect"), "{warning}");
        for known in ["OTLP", "none", "none, console"] {
            assert_eq!(of(None, known), None, "{known}");
        }
        assert_eq!(of(Some("http://c:4318"), "zipkin"), None);
    }

    #[test]
    fn samplers_have_opentelemetrys_names() {
        let sampled = |trace_sample, sampler: Option<&str>, arg: Option<&str>| {
            let otel = OtelVariables {
                sampler: sampler.map(str::to_owned),
                sampler_arg: arg.map(str::to_owned),
                ..OtelVariables::default()
            };
            let config = config(&flags(Some("http://c:1"), trace_sample), &otel);
            config.map(|config| config.unwrap().rates).map(|rates| (rates.rate, rates.parent_based))
        };
        assert_eq!(sampled(None, None, None).unwrap(), (0.01, true));
        assert_eq!(sampled(Some(0.5), Some("always_on"), None).unwrap(), (0.5, true));
        assert_eq!(sampled(None, Some("always_on"), None).unwrap(), (1.0, false));
        assert_eq!(sampled(None, Some("parentbased_always_off"), None).unwrap(), (0.0, true));
        let ratio = sampled(None, Some("parentbased_traceidratio"), Some("0.25"));
        assert_eq!(ratio.unwrap(), (0.25, true));
        assert_eq!(sampled(None, Some("traceidratio"), None).unwrap(), (1.0, false));
        for (sample, sampler, arg) in [
            (Some(1.5), None, None),
            (None, Some("jaeger_remote"), None),
            (None, Some("traceidratio"), Some("most")),
            (None, Some("traceidratio"), Some("-1")),
        ] {
            assert!(sampled(sample, sampler, arg).is_err(), "{sampler:?} {arg:?}");
        }
    }

    #[test]
    fn attributes_and_headers_are_decoded() {
        let otel = OtelVariables {
            service: text("ads"),
            resource: text("service.name=other, deployment.environment.name=a%20b"),
            headers: text("authorization=Bearer%20x%3D"),
            timeout: text("250"),
            ..OtelVariables::default()
        };
        let export = config(&flags(Some("http://c:1"), None), &otel).unwrap().unwrap().export;
        let value = |wanted: &str| {
            let found: Vec<&str> = export
                .resource
                .iter()
                .filter(|(key, _)| key == wanted)
                .map(|(_, value)| value.as_str())
                .collect();
            found.join("|")
        };
        assert_eq!(value("service.name"), "ads");
        assert_eq!(value("deployment.environment.name"), "a b");
        assert_eq!(value("service.version"), env!("CARGO_PKG_VERSION"));
        assert_eq!(export.headers, [("authorization".to_owned(), "Bearer x=".to_owned())]);
        assert_eq!(export.timeout, Duration::from_millis(250));
    }

    #[test]
    fn variables_of_traces_take_precedence() {
        let otel = OtelVariables {
            headers: text("x-key=all"),
            protocol: text("grpc"),
            timeout: text("250"),
            traces_headers: text("x-key=traces"),
            traces_protocol: text(PROTOCOL),
            traces_timeout: text("750"),
            ..OtelVariables::default()
        };
        let collector = flags(Some("http://c:1"), None);
        let export = config(&collector, &otel).unwrap().unwrap().export;
        assert_eq!(export.headers, [("x-key".to_owned(), "traces".to_owned())]);
        assert_eq!(export.timeout, Duration::from_millis(750));
        let wrong = OtelVariables { traces_timeout: text("soon"), ..otel };
        let error = config(&collector, &wrong).unwrap_err();
        assert!(error.message().starts_with("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT must be"));
    }

    #[test]
    fn values_that_cannot_be_used_are_named() {
        let error = |options: ServerOptions, otel: OtelVariables| {
            config(&options, &otel).unwrap_err().message().to_owned()
        };
        let none = OtelVariables::default();
        assert!(error(flags(None, Some(0.5)), none.clone()).contains("--otlp"));
        let message = error(flags(Some("me:secret@c:4317"), None), none.clone());
        assert!(message.contains("http://HOST:PORT") && !message.contains("secret"), "{message}");
        let collector = || flags(Some("http://c:1"), None);
        let grpc = OtelVariables { protocol: text("grpc"), ..none.clone() };
        assert!(error(collector(), grpc).contains("http/protobuf"));
        let headers = OtelVariables { headers: text("secret"), ..none.clone() };
        let message = error(collector(), headers);
        assert!(message.contains("HEADERS") && !message.contains("secret"), "{message}");
        let timeout = OtelVariables { timeout: text("soon"), ..none };
        assert!(error(collector(), timeout).contains("TIMEOUT"));
        assert_eq!((decoded("%zz"), decoded("%2"), decoded("%ff")), (None, None, None));
    }
}
