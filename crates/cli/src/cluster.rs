//! `millpond cluster`: shows a cluster as one of its roots sees it.

use clap::{Args, Subcommand};
use loadgen::report::TextTable;
use serde_json::Value;

use crate::client::{HttpClient, ServerArgs};
use crate::environment;
use crate::exit::{CommandResult, print};
use crate::models::pretty;

/// `millpond cluster ACTION`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  millpond cluster status
  millpond cluster status --url http://10.0.0.7:8501 --json

docs/cluster.md explains roles, shards and failures.")]
pub(crate) struct ClusterCommand {
    #[command(subcommand)]
    action: ClusterAction,
}

#[derive(Debug, Subcommand)]
enum ClusterAction {
    /// Show nodes, and the holders and owners of the shards of all collections
    Status(ClusterStatusArgs),
}

#[derive(Args, Debug)]
struct ClusterStatusArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// A key with the role read, if the server has keys [default: MILLPOND_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Show each shard
    #[arg(long)]
    shards: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `millpond cluster`.
///
/// # Errors
/// Returns the server's error.
pub(crate) fn run(args: &ClusterCommand) -> CommandResult {
    match &args.action {
        ClusterAction::Status(args) => status(args),
    }
}

fn status(args: &ClusterStatusArgs) -> CommandResult {
    let key = args.api_key.clone().or_else(|| environment::API_KEY.text());
    let client = HttpClient::new(&args.server)?.with_key(key);
    let view = client.get("/cluster/v1/view")?;
    let view = &view["result"];
    if args.json {
        return print(&pretty(view));
    }
    print(&nodes(view).to_string())?;
    print("\n")?;
    print(&collections(view).to_string())?;
    if args.shards {
        print("\n")?;
        print(&shards(view).to_string())?;
    }
    Ok(())
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns a text, a number or a list of texts as one cell.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(texts) if texts.is_empty() => "-".to_owned(),
        Value::Array(texts) => texts.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn nodes(view: &Value) -> TextTable {
    let mut table = TextTable::left(&["NODE", "ADDRESS", "ROLES", "WEIGHT", "SHARDS", "BUILD"]);
    for node in items(&view["nodes"]) {
        let fields = ["name", "address", "roles", "weight", "serving", "build"];
        table.row(fields.map(|field| cell(&node[field])));
    }
    table
}

fn collections(view: &Value) -> TextTable {
    let mut table = TextTable::left(&["COLLECTION", "STATUS", "SHARDS SERVED", "COPIES", "ID"]);
    for collection in items(&view["collections"]) {
        let coverage = &collection["coverage"];
        table.row([
            cell(&collection["name"]),
            cell(&collection["status"]),
            format!("{} of {}", cell(&coverage["shards"]), cell(&coverage["of"])),
            cell(&collection["copies"]),
            cell(&collection["id"]),
        ]);
    }
    table
}

fn shards(view: &Value) -> TextTable {
    let mut table = TextTable::left(&["COLLECTION", "SHARD", "OWNER", "SERVED BY", "MOVES TO"]);
    for collection in items(&view["collections"]) {
        for shard in items(&collection["shards"]) {
            let serving: Vec<&Value> = items(&shard["serving"]).collect();
            let moves = items(&shard["wanted"]).filter(|name| !serving.contains(name));
            let moves: Vec<String> = moves.map(cell).collect();
            table.row([
                cell(&collection["name"]),
                cell(&shard["shard"]),
                cell(&shard["owner"]),
                cell(&shard["serving"]),
                if moves.is_empty() { "-".to_owned() } else { moves.join(",") },
            ]);
        }
    }
    table
}
