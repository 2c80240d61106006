//! `millpond models`: lists, loads and unloads the models of a running server, and compares
//! versions.

mod diff;

mod rollout;

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, Subcommand};
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, ExitStatus, pretty, print, print_note};
use loadgen::report::TextTable;
use serde_json::{Value, json};

use crate::client::{ServerArgs, ServerClient};
use diff::DiffArgs;
use loadgen::connection::url_segment;
use rollout::RolloutArgs;

/// Maximum length of a reason in `models ls`, in characters.
const REASON_CHARS_MAX: usize = 80;

/// `millpond models ACTION`.
#[derive(Args, Debug)]
pub struct ModelsArgs {
    #[command(subcommand)]
    action: ModelsAction,
}

#[derive(Debug, Subcommand)]
enum ModelsAction {
    /// List models, versions and states
    Ls(LsArgs),
    /// Load a model and wait until it is ready
    Load(ModelLoadArgs),
    /// Unload a model
    Unload(ModelUnloadArgs),
    /// Show the state of each version, and why a version is not served
    Status(StatusArgs),
    /// Compare two published versions: tensors that differ, and bytes that a server would fetch
    Diff(DiffArgs),
    /// Show a model's rollout, or start, promote or roll back a version
    Rollout(RolloutArgs),
}

#[derive(Args, Debug)]
struct LsArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ModelLoadArgs {
    /// The model
    name: String,
    /// Load this version in addition to those of the version policy
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    key: KeyArgs,
}

#[derive(Args, Debug)]
struct ModelUnloadArgs {
    /// The model
    name: String,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    key: KeyArgs,
}

/// The key of admin calls.
#[derive(Args, Debug)]
struct KeyArgs {
    /// The server's admin key, or its API key [default: MILLPOND_ADMIN_KEY, else MILLPOND_API_KEY]
    #[arg(long, value_name = "KEY")]
    admin_key: Option<String>,
}

impl KeyArgs {
    fn key(&self) -> Option<String> {
        environment::admin_client_key(self.admin_key.as_ref())
    }
}

#[derive(Args, Debug)]
#[command(
    after_help = "Exit status with NAME: 0 if a version of the model serves, 1 if none does."
)]
struct StatusArgs {
    /// The model [default: all]
    name: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `millpond models`.
///
/// # Errors
/// Returns the server's error, or a silent error with code 1 if no version of the model serves.
pub fn run(args: &ModelsArgs) -> CommandResult {
    match &args.action {
        ModelsAction::Ls(args) => list(args),
        ModelsAction::Load(args) => load(args),
        ModelsAction::Unload(args) => unload(args),
        ModelsAction::Status(args) => status(args),
        ModelsAction::Diff(args) => diff::run(args),
        ModelsAction::Rollout(args) => rollout::run(args),
    }
}

fn list(args: &LsArgs) -> CommandResult {
    let client = ServerClient::new(&args.server)?;
    let index = client.repository_index()?;
    if args.json {
        return print(&pretty(&index));
    }
    let rows = rows(&client, &index)?;
    if rows.is_empty() {
        return print("no models\n");
    }
    let mut table = TextTable::left(&["NAME", "VERSION", "STATE", "REASON"]);
    let mut cut = false;
    for ModelVersionRow { name, version, state, reason } in rows {
        let (shown, more) = excerpt(&reason);
        cut |= more;
        table.row([name, version, state.to_owned(), shown]);
    }
    print(&table.to_string())?;
    if cut {
        print_note("hint: millpond models status NAME shows reasons in full");
    }
    Ok(())
}

/// A version as `models ls` shows it.
struct ModelVersionRow {
    name: String,
    version: String,
    state: &'static str,
    reason: String,
}

/// Builds the rows of a repository index. The index reports failed versions as UNAVAILABLE too, so
/// their status is queried.
fn rows(client: &ServerClient, index: &Value) -> CommandResult<Vec<ModelVersionRow>> {
    let mut statuses: BTreeMap<String, Value> = BTreeMap::new();
    let mut rows = Vec::new();
    for entry in index.as_array().into_iter().flatten() {
        let name = text(entry, "name");
        let version = text(entry, "version");
        let mut failed = false;
        if text(entry, "state") == "UNAVAILABLE" && !version.is_empty() {
            if !statuses.contains_key(&name) {
                statuses.insert(
                    name.clone(),
                    client.get(&format!("/v1/models/{}", url_segment(&name)))?,
                );
            }
            let same = |known: &&Value| text(known, "version") == version;
            let status = statuses.get(&name).and_then(|status| versions(status).iter().find(same));
            failed = status.is_some_and(|version| !error_message(version).is_empty());
        }
        let state = state(&text(entry, "state"), failed);
        rows.push(ModelVersionRow { name, version, state, reason: text(entry, "reason") });
    }
    Ok(rows)
}

/// Returns Millpond's name for a state of the repository index.
fn state(index: &str, failed: bool) -> &'static str {
    match index {
        "READY" => "ready",
        "LOADING" => "loading",
        "UNLOADING" => "unloading",
        _ if failed => "failed",
        _ => "unavailable",
    }
}

/// Returns Millpond's name for a state of TensorFlow Serving's API.
fn status_state(version: &Value) -> &'static str {
    match text(version, "state").as_str() {
        "AVAILABLE" => "ready",
        "START" => "waiting",
        "LOADING" => "loading",
        "UNLOADING" => "unloading",
        _ if error_message(version).is_empty() => "unloaded",
        _ => "failed",
    }
}

fn error_message(version: &Value) -> String {
    version.get("status").map(|status| text(status, "error_message")).unwrap_or_default()
}

/// Shortens a long reason. Returns true as the second value if it did.
fn excerpt(reason: &str) -> (String, bool) {
    if reason.chars().count() <= REASON_CHARS_MAX {
        return (reason.to_owned(), false);
    }
    (reason.chars().take(REASON_CHARS_MAX - 3).chain("...".chars()).collect(), true)
}

fn load(args: &ModelLoadArgs) -> CommandResult {
    let body = match args.version {
        Some(version) => json!({ "parameters": { "version": version } }),
        None => json!({}),
    };
    let client = ServerClient::new(&args.server)?.with_key(args.key.key());
    client.post(&format!("/v2/repository/models/{}/load", url_segment(&args.name)), &body)?;
    let versions = ready_versions(&client, &args.name)?;
    print(&format!("loaded {} ({versions})\n", args.name))?;
    let index = client.repository_index()?;
    for note in notes(&index, &args.name) {
        print_note(&format!("note: {note}"));
    }
    Ok(())
}

fn unload(args: &ModelUnloadArgs) -> CommandResult {
    let path = format!("/v2/repository/models/{}/unload", url_segment(&args.name));
    ServerClient::new(&args.server)?.with_key(args.key.key()).post(&path, &json!({}))?;
    print(&format!("unloaded {}\n", args.name))
}

/// Returns "version 3", "versions 3, 4" or "no version is ready".
fn ready_versions(client: &ServerClient, name: &str) -> CommandResult<String> {
    let status = client.get(&format!("/v1/models/{}", url_segment(name)))?;
    let ready: Vec<String> = versions(&status)
        .iter()
        .filter(|version| text(version, "state") == "AVAILABLE")
        .map(|version| text(version, "version"))
        .collect();
    Ok(match ready.as_slice() {
        [] => "no version is ready".to_owned(),
        [one] => format!("version {one}"),
        several => format!("versions {}", several.join(", ")),
    })
}

fn status(args: &StatusArgs) -> CommandResult {
    let client = ServerClient::new(&args.server)?;
    let index = client.repository_index()?;
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => names(&index),
    };
    let mut models = Vec::new();
    for name in names {
        // The status of TensorFlow Serving is 404 for a model that has no versions.
        let status = match without_versions(&index, &name) {
            Some(_) => json!({ "model_version_status": [] }),
            None => client.get(&format!("/v1/models/{}", url_segment(&name)))?,
        };
        models.push((status, name));
    }
    let serves = |(status, _): &(Value, String)| {
        versions(status).iter().any(|version| text(version, "state") == "AVAILABLE")
    };
    // Scripts check one model to learn if it answers.
    let is_missing = args.name.is_some() && !models.iter().all(serves);
    if args.json {
        let object: serde_json::Map<String, Value> =
            models.into_iter().map(|(status, name)| (name, status)).collect();
        print(&pretty(&Value::Object(object)))?;
    } else {
        print(&status_text(&index, &models))?;
    }
    if is_missing { Err(CommandError::silent(ExitStatus::Failed)) } else { Ok(()) }
}

/// Formats the states of the versions of `models`, each with its name, and then their reasons.
fn status_text(index: &Value, models: &[(Value, String)]) -> String {
    let mut table = TextTable::left(&["NAME", "VERSION", "STATE"]);
    let mut reasons = String::new();
    for (status, name) in models {
        for version in versions(status) {
            let number = text(version, "version");
            let reason = reason(index, name, &number, error_message(version));
            if !reason.is_empty() {
                reasons.push_str(&format!("\n{name} {number}: {}\n", reason.replace('\n', " ")));
            }
            table.row([name.clone(), number, status_state(version).to_owned()]);
        }
        if let Some(entry) = without_versions(index, name) {
            table.row([name.clone(), "-".to_owned(), "unavailable".to_owned()]);
            reasons.push_str(&format!("\n{name}: {}\n", text(entry, "reason").replace('\n', " ")));
        }
    }
    format!("{table}{reasons}")
}

/// Returns the remarks of the index about the versions of a model that serve, each once. One remark
/// says that the model's store cannot be listed. Then a newer version is not known.
fn notes(index: &Value, name: &str) -> BTreeSet<String> {
    let serves = |entry: &&Value| text(entry, "name") == name && text(entry, "state") == "READY";
    let notes = index.as_array().into_iter().flatten().filter(serves);
    notes.map(|entry| text(entry, "reason")).filter(|note| !note.is_empty()).collect()
}

/// Returns the index's reason for the state of a version, which includes errors of its model.
/// Returns `otherwise` if there is none.
fn reason(index: &Value, name: &str, version: &str, otherwise: String) -> String {
    let same = |entry: &&Value| text(entry, "name") == name && text(entry, "version") == version;
    let entry = index.as_array().into_iter().flatten().find(same);
    entry
        .map(|entry| text(entry, "reason"))
        .filter(|reason| !reason.is_empty())
        .unwrap_or(otherwise)
}

/// Returns the index's entry of a model that has no versions.
fn without_versions<'a>(index: &'a Value, name: &str) -> Option<&'a Value> {
    let same = |entry: &&Value| text(entry, "name") == name && text(entry, "version").is_empty();
    index.as_array().into_iter().flatten().find(same)
}

/// Returns the distinct names in a repository index.
fn names(index: &Value) -> Vec<String> {
    let mut names: Vec<String> =
        index.as_array().into_iter().flatten().map(|model| text(model, "name")).collect();
    names.sort();
    names.dedup();
    names
}

fn versions(status: &Value) -> &[Value] {
    status
        .get("model_version_status")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Returns the text or number at `key` as text, or an empty text.
fn text(object: &Value, key: &str) -> String {
    match object.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_words_for_people() {
        let version =
            |state: &str, error: &str| json!({"state": state, "status": {"error_message": error}});
        assert_eq!(status_state(&version("AVAILABLE", "")), "ready");
        assert_eq!(status_state(&version("END", "no such operator")), "failed");
        assert_eq!(status_state(&version("END", "")), "unloaded");
        assert_eq!([state("READY", false), state("UNAVAILABLE", true)], ["ready", "failed"]);
    }

    #[test]
    fn notes_are_about_versions_that_serve() {
        fn entry(name: &str, state: &str, reason: &str) -> Value {
            json!({"name": name, "version": "1", "state": state, "reason": reason})
        }
        let index = json!([
            entry("m", "READY", "s3://b/models: 403 Forbidden"),
            entry("m", "READY", "s3://b/models: 403 Forbidden"),
            entry("m", "READY", ""),
            entry("m", "UNAVAILABLE", "no such operator"),
            entry("other", "READY", "its files have changed"),
        ]);
        assert_eq!(notes(&index, "m"), BTreeSet::from(["s3://b/models: 403 Forbidden".to_owned()]));
    }

    #[test]
    fn long_reasons_do_not_fill_a_column() {
        let (shown, cut) = excerpt(&"settings ".repeat(50));
        assert!(
            cut && shown.chars().count() == REASON_CHARS_MAX && shown.ends_with("..."),
            "{shown}"
        );
        assert_eq!(excerpt("short"), ("short".to_owned(), false));
    }
}
