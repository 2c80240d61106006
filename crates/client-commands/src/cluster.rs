//! `millpond cluster`: shows a cluster as one of its roots sees it, plans changes, drains nodes.

mod status;

use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, ExitStatus, pretty, print, print_note};
use loadgen::report::TextTable;
use serde_json::{Value, json};

use crate::client::{ServerArgs, ServerClient};
use crate::poll::{PollFailure, poll};

/// `millpond cluster ACTION`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  millpond cluster status
  millpond cluster status --url http://10.0.0.7:8501 --json
  millpond cluster status --url https://node-1.example:8501 --ca ca.pem
  millpond cluster rebalance --dry-run --without node-3
  millpond cluster drain node-3

docs/cluster.md explains roles, shards and failures.")]
pub struct ClusterCommand {
    #[command(subcommand)]
    action: ClusterAction,
}

#[derive(Debug, Subcommand)]
enum ClusterAction {
    /// Show nodes, and the holders and owners of the shards of all collections
    Status(ClusterStatusArgs),
    /// Show the shards that would move if nodes joined or left. Shards move by themselves
    Rebalance(RebalanceArgs),
    /// Move the shards of a node to other nodes, and wait until the node can be stopped
    Drain(DrainArgs),
}

/// Address and key of a root.
#[derive(Args, Debug)]
struct RootArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// A key, if the server has keys: with the role read, or admin to drain a node
    /// [default: MILLPOND_API_KEY; to drain a node, MILLPOND_ADMIN_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

impl RootArgs {
    fn client(&self) -> CommandResult<ServerClient> {
        let key = environment::client_key(self.api_key.as_ref());
        Ok(ServerClient::new(&self.server)?.with_key(key))
    }

    /// Returns a client for admin calls.
    fn admin_client(&self) -> CommandResult<ServerClient> {
        let key = environment::admin_client_key(self.api_key.as_ref());
        Ok(ServerClient::new(&self.server)?.with_key(key))
    }
}

/// A node with its weight, as NAME or NAME=WEIGHT.
#[derive(Clone, Debug)]
struct WeightedNode {
    name: String,
    weight: u32,
}

impl FromStr for WeightedNode {
    type Err = String;

    fn from_str(text: &str) -> Result<WeightedNode, String> {
        let Some((name, weight)) = text.split_once('=') else {
            return Ok(WeightedNode { name: text.to_owned(), weight: 1 });
        };
        let weight = weight.parse().map_err(|_| format!("{weight:?} is not a weight"))?;
        Ok(WeightedNode { name: name.to_owned(), weight })
    }
}

#[derive(Args, Debug)]
struct RebalanceArgs {
    /// Change nothing. Required, since shards move by themselves
    #[arg(long, required = true)]
    dry_run: bool,
    /// Plan without this node; may be given several times
    #[arg(long, value_name = "NODE")]
    without: Vec<String>,
    /// Plan with this node, new or with another weight; may be given several times
    #[arg(long = "with", value_name = "NODE[=WEIGHT]")]
    with: Vec<WeightedNode>,
    #[command(flatten)]
    root: RootArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct DrainArgs {
    /// The node
    node: String,
    /// Do not wait until other nodes have its shards
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    root: RootArgs,
}

#[derive(Args, Debug)]
struct ClusterStatusArgs {
    #[command(flatten)]
    root: RootArgs,
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
pub fn run(args: &ClusterCommand) -> CommandResult {
    match &args.action {
        ClusterAction::Status(args) => status::run(args),
        ClusterAction::Rebalance(args) => rebalance(args),
        ClusterAction::Drain(args) => drain(args),
    }
}

fn rebalance(args: &RebalanceArgs) -> CommandResult {
    let with = args.with.iter().map(|node| json!({ "name": node.name, "weight": node.weight }));
    let body = json!({ "without": args.without, "with": with.collect::<Vec<_>>() });
    let plan = args.root.client()?.post("/cluster/v1/plan", &body)?;
    let plan = &plan["result"];
    if args.json {
        return print(&pretty(plan));
    }
    let mut table = TextTable::left(&["NODE", "SHARDS NOW", "SHARDS THEN", "RESTORES"]);
    for node in items(&plan["nodes"]) {
        table.row(["name", "serves", "holds", "restores"].map(|field| cell(&node[field])));
    }
    print(&table.to_string())?;
    print(&format!(
        "\n{} of {} copies of shards would be restored from the store\n",
        cell(&plan["moved"]),
        cell(&plan["copies_of_shards"])
    ))?;
    for warning in missing_copies(plan).into_iter().chain(lost_roles(plan)) {
        print(&warning)?;
    }
    Ok(())
}

/// Returns a warning for each role that no node of a plan would have.
fn lost_roles(plan: &Value) -> impl Iterator<Item = String> {
    items(&plan["lost_roles"]).map(|role| {
        format!("warning: no node would have the role {}; start one first\n", cell(role))
    })
}

/// Returns a warning if the nodes of a plan are too few for the copies of all shards.
fn missing_copies(plan: &Value) -> Option<String> {
    let wanted = plan["copies_of_shards"].as_u64()?;
    let held: u64 = items(&plan["nodes"]).filter_map(|node| node["holds"].as_u64()).sum();
    // Each shard has as many holders as there are nodes, up to its number of copies.
    match (held, wanted.saturating_sub(held)) {
        (_, 0) => None,
        (0, _) => Some(
            "warning: no node would hold a shard, and all collections would be unavailable; start a \
             node with the role search first\n"
                .to_owned(),
        ),
        (_, missing) => Some(format!(
            "warning: {missing} copies of shards would be missing, because there would be fewer \
             search nodes than copies\n"
        )),
    }
}

/// Time between two checks of a node that drains.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for a node to drain.
const DRAIN_MAX: Duration = Duration::from_secs(24 * 3600);

/// Asks a node to give its shards to others, and waits until other nodes hold them. With
/// `--no-wait`, returns at once.
fn drain(args: &DrainArgs) -> CommandResult {
    let client = args.root.admin_client()?;
    let view = client.get("/cluster/v1/view")?;
    let node = items(&view["result"]["nodes"]).find(|node| node["name"] == args.node.as_str());
    let Some(node) = node else {
        return Err(CommandError::new(
            ExitStatus::Usage,
            format!("there is no node {:?} in the cluster", args.node),
        )
        .hint("millpond cluster status lists the nodes"));
    };
    // The node reads the request from etcd, so only the root's admin port must be reachable.
    client.post("/cluster/v1/drain", &json!({ "node": node["name"] }))?;
    if args.no_wait {
        return print(&format!("{} drains\n", args.node));
    }
    let end = Instant::now() + DRAIN_MAX;
    let mut shown = None;
    let continues = format!(
        "{} continues to drain unless it is restarted: run the same command again to wait for it, \
         or `millpond cluster status --shards` to see its shards",
        args.node
    );
    loop {
        let view = poll(&client, "/cluster/v1/view", &continues, joined_view)?;
        if !items(&view["result"]["nodes"]).any(|other| other["name"] == args.node.as_str()) {
            return Err(CommandError::new(
                ExitStatus::Failed,
                format!("{} left the cluster before other nodes had its shards", args.node),
            )
            .hint("millpond cluster status --shards shows what other nodes restore"));
        }
        let left = shards_left(&view["result"], &args.node);
        if left == 0 {
            return print(&drained(&view["result"], &args.node));
        }
        let line = waiting_line(&view["result"], &args.node, left);
        if shown.as_ref() != Some(&line) {
            print_note(&line);
            shown = Some(line);
        }
        if Instant::now() >= end {
            return Err(CommandError::new(
                ExitStatus::Failed,
                format!("{left} shards of {} stayed for a day", args.node),
            )
            .hint("millpond cluster status --shards shows where they should go"));
        }
        std::thread::sleep(DRAIN_CHECK_INTERVAL);
    }
}

/// Returns a view that has nodes. A root that was restarted sees no node until it has joined the
/// cluster again.
fn joined_view(view: Value) -> Result<Value, PollFailure> {
    match check_joined(&view["result"]) {
        Ok(()) => Ok(view),
        Err(error) => Err(PollFailure::Temporary(error)),
    }
}

/// Returns the message for a node whose shards other nodes have. It has warnings if these are too
/// few nodes for all copies, and if the node alone has a role. A drain waits for the other roles.
fn drained(view: &Value, node: &str) -> String {
    let mut message = format!("other nodes have the shards of {node}: it can be stopped\n");
    message.push_str(&status::few_copies_warning(view).unwrap_or_default());
    for role in ["root", "extract"] {
        let with_role = |other: &&Value| items(&other["roles"]).any(|own| own == role);
        let mut names = items(&view["nodes"]).filter(with_role).map(|other| &other["name"]);
        if names.next().is_some_and(|first| first == node) && names.next().is_none() {
            message.push_str(&format!(
                "\nwarning: no other node has the role {role}; start one before you stop {node}\n"
            ));
        }
    }
    message
}

/// Returns the line that shows the reason why a drain waits, and the roles of the node that no
/// other node has.
fn waiting_line(view: &Value, node: &str, left: usize) -> String {
    let has_role = |other: &Value, role: &str| items(&other["roles"]).any(|own| own == role);
    let takes_work = |other: &Value| {
        other["name"] != node && other["weight"].as_u64().is_some_and(|weight| weight > 0)
    };
    let mut line = format!("{left} shards of {node} are not on other nodes yet");
    for role in ["search", "ingest"] {
        let is_own =
            items(&view["nodes"]).any(|other| other["name"] == node && has_role(other, role));
        let is_taken =
            items(&view["nodes"]).any(|other| takes_work(other) && has_role(other, role));
        if is_own && !is_taken {
            line.push_str("; no other node takes the work of the role ");
            line.push_str(role);
            line.push_str(": start one");
        }
    }
    line
}

/// Returns the shards of a node that it still should hold, that it owns, or that not every wanted
/// holder serves.
fn shards_left(view: &Value, node: &str) -> usize {
    let shards = items(&view["collections"]).flat_map(|collection| items(&collection["shards"]));
    let needs = |shard: &&Value| {
        let names = |field: &str| items(&shard[field]).map(cell).collect::<Vec<_>>();
        let wanted = names("wanted");
        let serving = names("serving");
        shard["owner"] == node
            || wanted.iter().any(|name| name == node)
            || (serving.iter().any(|name| name == node)
                && (serving.len() == 1 || !wanted.iter().all(|name| serving.contains(name))))
    };
    shards.filter(needs).count()
}

/// Checks that the view has a node. A root that has joined the cluster sees at least itself.
fn check_joined(view: &Value) -> CommandResult {
    if items(&view["nodes"]).next().is_some() {
        return Ok(());
    }
    Err(CommandError::failed("the node at --url has not joined the cluster, and sees no node")
        .hint("GET /readyz of that node has the reason"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drained_node_is_needed_until_others_serve_its_shards() {
        let view = |wanted: &[&str], serving: &[&str], owner: &str| {
            let shard = json!({ "shard": 0, "wanted": wanted, "serving": serving, "owner": owner });
            json!({ "collections": [{ "shards": [shard] }] })
        };
        assert_eq!(shards_left(&view(&["a", "b"], &["a", "b", "c"], "a"), "c"), 0);
        assert_eq!(shards_left(&view(&["a", "b"], &["a", "c"], "a"), "c"), 1, "b restores it");
        assert_eq!(shards_left(&view(&["a", "b"], &["a", "b"], "c"), "c"), 1, "c writes its log");
        assert_eq!(shards_left(&view(&["a", "c"], &["a", "c"], "a"), "c"), 1, "it still drains");
        assert_eq!(shards_left(&view(&[], &["c"], "a"), "c"), 1, "it has the only copy");
    }

    #[test]
    fn view_without_nodes_is_an_error() {
        assert!(check_joined(&json!({ "nodes": [{ "name": "a" }] })).is_ok());
        let none = json!({ "nodes": [], "collections": [] });
        let waits = joined_view(json!({ "result": none }));
        assert!(matches!(waits, Err(PollFailure::Temporary(_))), "a drain reads it again");
        let error = check_joined(&none).err().unwrap();
        assert!(error.message().contains("has not joined the cluster"), "{}", error.message());
    }

    #[test]
    fn drain_names_the_roles_without_another_node() {
        let node = |name: &str, roles: &[&str], weight: u32| -> Value {
            json!({ "name": name, "roles": roles, "weight": weight })
        };
        let line = |others: &[Value]| {
            let mut nodes = vec![node("a", &["search", "ingest"], 0)];
            nodes.extend_from_slice(others);
            waiting_line(&json!({ "nodes": nodes }), "a", 3)
        };
        let waits = "3 shards of a are not on other nodes yet";
        assert_eq!(line(&[node("b", &["search", "ingest"], 1)]), waits);
        let ingest = "; no other node takes the work of the role ingest: start one";
        assert_eq!(line(&[node("b", &["root", "search"], 1)]), format!("{waits}{ingest}"));
        let search = "; no other node takes the work of the role search: start one";
        let drained = node("b", &["search", "ingest"], 0);
        assert_eq!(line(&[drained]), format!("{waits}{search}{ingest}"));
    }

    #[test]
    fn drain_warns_of_copies_that_no_node_takes() {
        let view = |wanted: &[&str]| {
            let shards = json!([{ "wanted": wanted, "serving": ["a", "b"], "owner": "b" }]);
            json!({ "nodes": [{ "name": "b" }], "collections": [{ "copies": 2, "shards": shards }] })
        };
        let whole = "other nodes have the shards of a: it can be stopped\n";
        assert_eq!(drained(&view(&["b", "c"]), "a"), whole);
        let few = drained(&view(&["b"]), "a");
        assert!(few.starts_with(whole), "{few}");
        assert!(few.contains("warning: 1 shards have fewer copies"), "{few}");
    }

    #[test]
    fn drain_warns_of_roles_that_no_other_node_has() {
        let message = |other: &[&str]| {
            let nodes = json!([
                { "name": "a", "roles": ["root", "search"] },
                { "name": "b", "roles": other },
            ]);
            drained(&json!({ "nodes": nodes, "collections": [] }), "a")
        };
        let warning = "warning: no other node has the role root; start one before you stop a\n";
        assert!(message(&["search"]).ends_with(warning), "{}", message(&["search"]));
        assert!(!message(&["root"]).contains("warning"), "{}", message(&["root"]));
    }

    #[test]
    fn plan_with_too_few_nodes_has_a_warning() {
        let plan = |holds: &[u64]| {
            let nodes: Vec<Value> = holds.iter().map(|holds| json!({ "holds": holds })).collect();
            json!({ "nodes": nodes, "copies_of_shards": 16, "moved": 0 })
        };
        assert_eq!(missing_copies(&plan(&[8, 8, 0])), None);
        let fewer = missing_copies(&plan(&[8, 0])).unwrap();
        assert!(fewer.starts_with("warning: 8 copies of shards would be missing"), "{fewer}");
        let none = missing_copies(&plan(&[0, 0])).unwrap();
        assert!(none.starts_with("warning: no node would hold a shard"), "{none}");
        assert_eq!(missing_copies(&json!({ "nodes": [], "copies_of_shards": 0 })), None);
        let lost = json!({ "lost_roles": ["ingest"] });
        let warnings: Vec<String> = lost_roles(&lost).collect();
        assert_eq!(warnings, ["warning: no node would have the role ingest; start one first\n"]);
        assert_eq!(lost_roles(&plan(&[8, 8])).count(), 0);
    }

    #[test]
    fn weights_are_optional() {
        let node: WeightedNode = "a".parse().unwrap();
        assert_eq!((node.name.as_str(), node.weight), ("a", 1));
        let node: WeightedNode = "a=0".parse().unwrap();
        assert_eq!((node.name.as_str(), node.weight), ("a", 0));
        assert!("a=x".parse::<WeightedNode>().is_err());
    }
}
