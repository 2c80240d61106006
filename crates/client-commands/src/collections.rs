//! `millpond collections`: backs up, restores and copies collections of a running server.

mod job;
mod report;

use clap::{Args, Subcommand};
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, ExitStatus, pretty, print};
use command_line::values::finite;
use loadgen::connection::url_segment;
use loadgen::report::TextTable;
use serde_json::{Map, Value, json};

use crate::client::{RequestContent, ServerArgs, ServerClient, text};
use report::bytes_at;

/// `millpond collections ACTION`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  millpond serve models --backup-dir s3://bucket/backups   (in another terminal)
  millpond collections backup docs
  millpond collections backups docs
  millpond collections restore docs --to docs-old
  millpond collections prune docs --keep 7

A backup stores only files that the store lacks, so the second one takes little time and space. The collection is served \
meanwhile. docs/backup.md explains the store and its credentials.")]
pub struct CollectionsCommand {
    #[command(subcommand)]
    action: CollectionsAction,
}

#[derive(Debug, Subcommand)]
enum CollectionsAction {
    /// Back up a collection in its present state
    Backup(BackupArgs),
    /// List the backups of a collection, or the collections that have backups
    #[command(visible_alias = "ls")]
    Backups(BackupsArgs),
    /// Make a collection from a backup
    Restore(RestoreArgs),
    /// Copy a collection within the server; segments are shared and take no more space
    Clone(CloneArgs),
    /// Read the backups of a collection and compare them with their checksums
    Verify(VerifyBackupArgs),
    /// Remove old backups, and files that no backup needs
    Prune(PruneArgs),
}

#[derive(Args, Debug)]
struct BackupArgs {
    /// The collection, or an alias
    collection: String,
    /// Store all files again, even if the store has them. Replaces damaged files
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    server: CollectionsServerArgs,
}

#[derive(Args, Debug)]
struct BackupsArgs {
    /// The collection [default: list the collections that have backups]
    collection: Option<String>,
    #[command(flatten)]
    server: CollectionsServerArgs,
}

#[derive(Args, Debug)]
struct RestoreArgs {
    /// The collection that was backed up
    collection: String,
    /// The backup [default: the newest]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// Name of the restored collection [default: the same name]
    #[arg(long, value_name = "NAME")]
    to: Option<String>,
    /// Replace the collection of that name if there is one
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    server: CollectionsServerArgs,
}

#[derive(Args, Debug)]
struct CloneArgs {
    /// The collection, or an alias
    collection: String,
    /// Name of the copy
    to: String,
    #[command(flatten)]
    server: CollectionsServerArgs,
}

#[derive(Args, Debug)]
struct VerifyBackupArgs {
    /// The collection that was backed up
    collection: String,
    /// The backup [default: all]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    #[command(flatten)]
    server: CollectionsServerArgs,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("rules").required(true).multiple(true))]
struct PruneArgs {
    /// The collection that was backed up
    collection: String,
    /// Keep this number of newest backups
    #[arg(long, value_name = "N", group = "rules")]
    keep: Option<usize>,
    /// Keep backups of this number of days
    #[arg(long, value_name = "DAYS", group = "rules", value_parser = finite)]
    keep_days: Option<f64>,
    /// Remove this backup instead
    #[arg(long, value_name = "ID", group = "rules", conflicts_with_all = ["keep", "keep_days"])]
    backup: Option<String>,
    #[command(flatten)]
    server: CollectionsServerArgs,
}

/// Address and key of a server, and the form of the answer.
#[derive(Args, Clone, Debug)]
struct CollectionsServerArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The server's admin key, if it has keys [default: MILLPOND_ADMIN_KEY, else MILLPOND_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CollectionsServerArgs {
    fn client(&self) -> CommandResult<ServerClient> {
        let key = environment::admin_client_key(self.api_key.as_ref());
        Ok(ServerClient::new(&self.server)?.with_key(key))
    }
}

/// Runs `millpond collections`.
///
/// # Errors
/// Returns the server's error, or one with code 4 if a backup is damaged.
pub fn run(args: &CollectionsCommand) -> CommandResult {
    match &args.action {
        CollectionsAction::Backup(args) => backup(args),
        CollectionsAction::Backups(args) => backups(args),
        CollectionsAction::Restore(args) => restore(args),
        CollectionsAction::Clone(args) => clone(args),
        CollectionsAction::Verify(args) => verify(args),
        CollectionsAction::Prune(args) => prune(args),
    }
}

/// Returns `/v1/collections/COLLECTION/REST`.
fn path(collection: &str, rest: &str) -> String {
    format!("/v1/collections/{}/{rest}", url_segment(collection))
}

/// Returns a JSON object of the values that are set.
fn body(fields: [(&str, Option<Value>); 3]) -> Value {
    let set = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(Map::from_iter(set))
}

/// Prints a report as JSON or as the line `line`.
fn show(report: &Value, as_json: bool, line: String) -> CommandResult {
    print(&if as_json { pretty(report) } else { line })
}

fn backup(args: &BackupArgs) -> CommandResult {
    let client = args.server.client()?;
    let request = json!({ "full": args.full });
    let report = job::post(&client, &path(&args.collection, "backups"), &request)?;
    show(&report, args.server.json, report::backup(&args.collection, &report))
}

fn restore(args: &RestoreArgs) -> CommandResult {
    let client = args.server.client()?;
    let request = body([
        ("backup", args.backup.as_ref().map(|id| json!(id))),
        ("to", args.to.as_ref().map(|name| json!(name))),
        ("replace", Some(json!(args.replace))),
    ]);
    let report = job::post(&client, &path(&args.collection, "restore"), &request)?;
    show(&report, args.server.json, report::restore(&report))
}

fn clone(args: &CloneArgs) -> CommandResult {
    let client = args.server.client()?;
    let request = json!({ "to": args.to });
    let report = job::post(&client, &path(&args.collection, "clone"), &request)?;
    show(&report, args.server.json, report::clone(&args.collection, &report))
}

fn verify(args: &VerifyBackupArgs) -> CommandResult {
    let client = args.server.client()?;
    let request =
        body([("backup", args.backup.as_ref().map(|id| json!(id))), ("", None), ("", None)]);
    let report = job::post(&client, &path(&args.collection, "backups/verify"), &request)?;
    show(&report, args.server.json, report::verify(&report))?;
    let unreadable = report.get("unreadable").and_then(Value::as_array);
    match report.get("problem_count").and_then(Value::as_u64) {
        Some(0) if unreadable.is_none_or(Vec::is_empty) => Ok(()),
        Some(0) => Err(CommandError::new(ExitStatus::Wrong, "backups were not compared")
            .hint("compare these backups with the program that made them")),
        _ => Err(CommandError::new(ExitStatus::Wrong, "backups are damaged").hint(format!(
            "`millpond collections backup {0} --full` stores all files again; `millpond collections \
             prune {0} --backup ID` removes a backup whose list is damaged",
            args.collection
        ))),
    }
}

fn prune(args: &PruneArgs) -> CommandResult {
    let client = args.server.client()?;
    let report = match &args.backup {
        Some(id) => {
            let path = path(&args.collection, &format!("backups/{}", url_segment(id)));
            job::wait(&client, &client.call("DELETE", &path, RequestContent::None)?.json()?)?
        }
        None => {
            let keep = args.keep.map(|keep| json!(keep));
            let days = args.keep_days.map(|days| json!(days));
            let request = body([("keep", keep), ("keep_days", days), ("", None)]);
            job::post(&client, &path(&args.collection, "backups/prune"), &request)?
        }
    };
    show(&report, args.server.json, report::prune(&report))
}

/// Prints the backups of a collection, or the collections that have backups.
fn backups(args: &BackupsArgs) -> CommandResult {
    let client = args.server.client()?;
    let path = match &args.collection {
        Some(collection) => path(collection, "backups"),
        None => "/v1/backups".to_owned(),
    };
    // `call` has a long time limit. The server reads a store with thousands of backups for minutes.
    let answer = client.call("GET", &path, RequestContent::None)?.json()?;
    if args.server.json {
        print(&pretty(&answer))
    } else if args.collection.is_some() {
        print(&format!("{}{}", backup_table(&answer), unreadable_backups(&answer)))
    } else {
        print(&collection_table(&answer).to_string())
    }
}

/// Returns the backups of one collection as a table.
fn backup_table(answer: &Value) -> TextTable {
    let mut table = TextTable::left(&["BACKUP", "CREATED", "POINTS", "SIZE"]);
    for entry in entries(answer, "backups") {
        let [id, created, points] = ["backup", "created", "points"].map(|key| text(entry, key));
        table.row([id, created, points, bytes_at(entry, "bytes")]);
    }
    table
}

/// Returns a list of the backups that cannot be read, or an empty text.
fn unreadable_backups(answer: &Value) -> String {
    let problems = report::problems(answer, "unreadable");
    if problems.is_empty() {
        return problems;
    }
    format!("These backups cannot be read:\n{problems}")
}

/// Returns the collections that have backups as a table.
fn collection_table(answer: &Value) -> TextTable {
    let mut table = TextTable::left(&["COLLECTION", "BACKUPS", "NEWEST", "STORED"]);
    for entry in entries(answer, "collections") {
        let [name, count, newest] = ["collection", "backups", "newest"].map(|key| text(entry, key));
        table.row([name, count, newest, bytes_at(entry, "stored_bytes")]);
    }
    table
}

/// Returns the elements of the list `key` of a response.
fn entries<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    answer.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        command: CollectionsCommand,
    }

    #[test]
    fn prune_needs_one_rule() {
        let parse = |text: &str| {
            Line::try_parse_from(std::iter::once("collections").chain(text.split_whitespace()))
                .is_ok()
        };
        assert!(parse("prune c --keep 3 --keep-days 1.5") && parse("prune c --backup ID"));
        // As null, backups of any age would be removed except for the newest three.
        assert!(!parse("prune c --keep 3 --keep-days inf"));
        assert!(!parse("prune c") && !parse("prune c --backup ID --keep 3"));
    }

    #[test]
    fn bodies_have_the_values_that_are_set() {
        let made =
            body([("backup", None), ("to", Some(json!("x"))), ("replace", Some(json!(false)))]);
        assert_eq!(made, json!({"to": "x", "replace": false}));
        assert_eq!(path("a b", "clone"), "/v1/collections/a%20b/clone");
    }
}
