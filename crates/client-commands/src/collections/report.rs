//! Reports of jobs as text.

use base::units::format_bytes;
use serde_json::Value;

use crate::client::text;

/// Returns the bytes at `key` with a unit.
pub(super) fn bytes_at(object: &Value, key: &str) -> String {
    format_bytes(object.get(key).and_then(Value::as_u64).unwrap_or(0))
}

fn seconds(report: &Value) -> String {
    format!("{:.1} s", report.get("seconds").and_then(Value::as_f64).unwrap_or(0.0))
}

pub(super) fn backup(collection: &str, report: &Value) -> String {
    format!(
        "backup {} of {collection}: {} points, {}; stored {} in {}\n",
        text(report, "backup"),
        text(report, "points"),
        bytes_at(report, "bytes"),
        bytes_at(report, "uploaded_bytes"),
        seconds(report)
    )
}

pub(super) fn restore(report: &Value) -> String {
    format!(
        "restored {} from backup {}: {} points, {} in {}\n",
        text(report, "collection"),
        text(report, "backup"),
        text(report, "points"),
        bytes_at(report, "bytes"),
        seconds(report)
    )
}

pub(super) fn clone(from: &str, report: &Value) -> String {
    let [to, points] = ["collection", "points"].map(|key| text(report, key));
    format!("copied {from} to {to}: {points} points in {}\n", seconds(report))
}

/// Returns the report of a verification of backups as text.
pub(super) fn verify(report: &Value) -> String {
    let mut lines = format!(
        "compared {} objects of {} backups: {}; {} problems\n",
        text(report, "objects"),
        text(report, "backups"),
        bytes_at(report, "bytes"),
        text(report, "problem_count")
    );
    lines.push_str(&problems(report, "problems"));
    let unreadable = problems(report, "unreadable");
    if !unreadable.is_empty() {
        lines.push_str("These backups cannot be read and were not compared:\n");
        lines.push_str(&unreadable);
    }
    lines
}

/// Returns a line for each problem of backups at `key`.
pub(super) fn problems(report: &Value, key: &str) -> String {
    let mut lines = String::new();
    for problem in report.get(key).and_then(Value::as_array).into_iter().flatten() {
        let backups = problem.get("backups").and_then(Value::as_array).into_iter().flatten();
        let ids: Vec<&str> = backups.filter_map(Value::as_str).collect();
        lines.push_str(&format!("  {}: {}\n", ids.join(", "), text(problem, "problem")));
    }
    lines
}

/// Returns the report of a removal of old backups as text.
pub(super) fn prune(report: &Value) -> String {
    let removed = report.get("removed").and_then(Value::as_array).map_or(0, Vec::len);
    let mut line = format!(
        "removed {removed} backups and {} objects ({}); {} backups stay",
        text(report, "objects"),
        bytes_at(report, "bytes"),
        text(report, "kept")
    );
    if let Some(why) = report.get("objects_kept").and_then(Value::as_str) {
        line.push_str(&format!("; objects stay: {why}"));
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn problems_are_lines() {
        let problems = json!([{"backups": ["A", "B"], "problem": "object x: it is missing"}]);
        let report = json!({"objects": 2, "backups": 2, "bytes": 1024, "problem_count": 1, "problems": problems});
        let text = verify(&report);
        assert!(text.ends_with("1 problems\n  A, B: object x: it is missing\n"), "{text}");
        let newer = json!([{"backups": ["C"], "problem": "the backup has version 2"}]);
        let text = verify(&json!({"problem_count": 0, "problems": [], "unreadable": newer}));
        assert!(text.ends_with("were not compared:\n  C: the backup has version 2\n"), "{text}");
    }
}
