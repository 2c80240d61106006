//! `millpond models rollout`: shows and changes the rollout of a model.

use clap::Args;
use command_line::exit::{CommandResult, pretty, print};
use command_line::values::finite;
use loadgen::connection::url_segment;
use loadgen::report::TextTable;
use serde_json::{Map, Value, json};

use super::{KeyArgs, text};
use crate::client::{ServerArgs, ServerClient};

/// Show a model's rollout, or start, promote or roll back a version.
///
/// Without an action, prints state and figures. A rollout gives a new version a share of the
/// requests that name no version (--traffic), or copies of a share (--shadow), and withdraws it if
/// it reaches a limit of [rollout.rollback] in the model's millpond.toml.
#[derive(Args, Debug)]
pub(super) struct RolloutArgs {
    /// The model
    name: String,
    /// Give the candidate this share of the requests, 0 to 1. Starts a rollout if none is running
    #[arg(long, value_name = "SHARE", value_parser = finite, conflicts_with_all = ["promote", "rollback"])]
    traffic: Option<f64>,
    /// Give the candidate copies of this share of the requests, 0 to 1. Their answers are compared
    /// and not returned
    #[arg(long, value_name = "SHARE", value_parser = finite, conflicts_with_all = ["traffic", "promote", "rollback"])]
    shadow: Option<f64>,
    /// Let the candidate answer all requests
    #[arg(long, conflicts_with = "rollback")]
    promote: bool,
    /// Withdraw the candidate. If no rollout is running, withdraw the version that answers all
    /// requests, and serve the one before it
    #[arg(long)]
    rollback: bool,
    /// The candidate [default: that of the running rollout]
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    key: KeyArgs,
}

impl RolloutArgs {
    /// Returns the body of the admin call; `None` only shows the rollout.
    fn body(&self) -> Option<Value> {
        let starts = self.traffic.is_some() || self.shadow.is_some() || self.version.is_some();
        let action = match (self.promote, self.rollback) {
            (true, _) => "promote",
            (_, true) => "rollback",
            _ if starts => "start",
            _ => return None,
        };
        let mut body = Map::from_iter([("action".to_owned(), json!(action))]);
        body.extend(self.version.map(|version| ("version".to_owned(), json!(version))));
        body.extend(self.traffic.map(|share| ("traffic".to_owned(), json!(share))));
        body.extend(self.shadow.map(|share| ("shadow".to_owned(), json!(share))));
        Some(Value::Object(body))
    }
}

pub(super) fn run(args: &RolloutArgs) -> CommandResult {
    let client = ServerClient::new(&args.server)?.with_key(args.key.key());
    let path = format!("/v2/models/{}/rollout", url_segment(&args.name));
    let rollout = match args.body() {
        Some(body) => client.post(&path, &body)?,
        None => client.get(&path)?,
    };
    print(&if args.json { pretty(&rollout) } else { format_rollout(&rollout) })
}

/// Returns a rollout as text: its state, and a table of the figures of both versions.
fn format_rollout(rollout: &Value) -> String {
    let of = |key: &str, version: &str| match rollout.get(key).and_then(|both| both.get(version)) {
        Some(Value::Number(number)) => match number.as_u64() {
            Some(whole) => whole.to_string(),
            None => format!("{:.2}", number.as_f64().unwrap_or_default()),
        },
        _ => "-".to_owned(),
    };
    let share = |key: &str| rollout.get(key).and_then(Value::as_f64).unwrap_or_default();
    let mut lines = format!("{}: {}", text(rollout, "model"), text(rollout, "state"));
    for key in ["traffic", "shadow"] {
        if share(key) > 0.0 {
            // Rounded, since 0.07 * 100.0 is 7.000000000000001.
            let percent = (share(key) * 1e6).round() / 1e4;
            lines.push_str(&format!(", {key} {percent} %"));
        }
    }
    if let Some(drift) = rollout.get("drift").and_then(Value::as_f64) {
        lines.push_str(&format!(", drift {drift:.4}"));
    }
    if let Some(overflow) = rollout.get("overflow").and_then(Value::as_u64).filter(|&n| n > 0) {
        lines.push_str(&format!(", {overflow} requests overflowed to stable"));
    }
    let compared = compared(rollout);
    let mut table = TextTable::left(&["ROLE", "VERSION", "REQUESTS", "ERRORS", "P99 (MS)"]);
    for role in ["stable", "candidate"] {
        let version = text(compared, role);
        if !version.is_empty() {
            let figures = ["requests", "errors", "p99_ms"].map(|key| of(key, role));
            let [requests, errors, p99] = figures;
            table.row([role.to_owned(), version, requests, errors, p99]);
        }
    }
    let mut report = format!("{lines}\n{table}");
    for ended in rollout.get("history").and_then(Value::as_array).into_iter().flatten() {
        let line = ["candidate", "state", "reason"].map(|key| text(ended, key));
        report.push_str(&format!("\nversion {} {}: {}\n", line[0], line[1], line[2]));
    }
    report
}

/// Returns the object that names the versions of the figures. A promoted version is the stable one
/// now, so an ended rollout has them in the first entry of its history. The entry of a version that
/// was withdrawn without a rollout has that version twice, and no figures.
fn compared(rollout: &Value) -> &Value {
    let last = rollout.get("history").and_then(|history| history.get(0));
    let has_two_versions = |ended: &&Value| {
        let stable = ended.get("stable").and_then(Value::as_u64);
        stable.is_some() && stable != ended.get("candidate").and_then(Value::as_u64)
    };
    let ended = last.filter(|_| text(rollout, "state") != "running");
    ended.filter(has_two_versions).unwrap_or(rollout)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RolloutArgs,
    }

    fn body(text: &str) -> Option<Value> {
        let words = std::iter::once("rollout").chain(text.split_whitespace());
        Line::try_parse_from(words).unwrap().args.body()
    }

    #[test]
    fn flags_make_an_action() {
        assert_eq!(body("m"), None);
        assert_eq!(body("m --promote"), Some(json!({"action": "promote"})));
        assert_eq!(
            body("m --rollback --version 2"),
            Some(json!({"action": "rollback", "version": 2}))
        );
        let start = json!({"action": "start", "version": 2, "traffic": 0.1});
        assert_eq!(body("m --version 2 --traffic 0.1"), Some(start));
        assert!(Line::try_parse_from(["rollout", "m", "--promote", "--traffic", "1"]).is_err());
        // As null, it would start a rollout with the share of the settings.
        assert!(Line::try_parse_from(["rollout", "m", "--traffic", "nan"]).is_err());
    }

    #[test]
    fn a_rollout_is_shown() {
        let rollout = json!({
            "model": "m", "state": "running", "stable": 1, "candidate": 2, "traffic": 0.07, "shadow": 0.0,
            "requests": {"stable": 100, "candidate": 5}, "errors": {"stable": 0, "candidate": 1},
            "p99_ms": {"stable": 1.5, "candidate": null}, "drift": null, "reason": null,
            "history": [{"candidate": 3, "state": "rolled_back", "reason": "errors: many"}],
        });
        let text = format_rollout(&rollout);
        assert!(text.starts_with("m: running, traffic 7 %\n"), "{text}");
        assert!(text.contains("stable     1        100       0       1.50"), "{text}");
        assert!(text.ends_with("version 3 rolled_back: errors: many\n"), "{text}");
    }

    #[test]
    fn figures_of_an_ended_rollout_have_its_versions() {
        let rollout = json!({
            "model": "m", "state": "promoted", "stable": 2, "candidate": 2,
            "requests": {"stable": 100, "candidate": 50}, "errors": {"stable": 0, "candidate": 0},
            "p99_ms": {"stable": 1.5, "candidate": 1.25},
            "history": [
                {"stable": 1, "candidate": 2, "state": "promoted", "reason": "hand: an administrator promoted it"},
                {"stable": 1, "candidate": 3, "state": "rolled_back", "reason": "errors: many"},
            ],
        });
        let text = format_rollout(&rollout);
        assert!(text.contains("stable     1        100       0       1.50"), "{text}");
        assert!(text.contains("candidate  2        50        0       1.25"), "{text}");
    }

    #[test]
    fn a_version_withdrawn_without_a_rollout_is_not_compared_with_itself() {
        let mut rollout = json!({
            "model": "m", "state": "rolled_back", "stable": 1, "candidate": 2,
            "requests": {"stable": 0, "candidate": 0}, "errors": {"stable": 0, "candidate": 0},
            "p99_ms": {"stable": null, "candidate": null},
            "history": [{"stable": 2, "candidate": 2, "state": "rolled_back", "reason": "hand: an administrator withdrew it"}],
        });
        let text = format_rollout(&rollout);
        assert!(text.contains("stable     1 "), "{text}");
        assert!(text.contains("candidate  2 "), "{text}");
        rollout["history"][0]["stable"] = Value::Null;
        assert!(
            format_rollout(&rollout).contains("stable     1 "),
            "the stable version was not known"
        );
    }
}
