//! `millpond cluster`: shows a cluster as one of its roots sees it, plans changes, drains nodes.

use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use loadgen::report::TextTable;
use serde_json::{Value, json};

use crate::client::{ServerArgs, ServerClient};
use crate::environment;
use crate::exit::{CommandError, CommandResult, ExitStatus, print, print_note};
use crate::models::pretty;
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
pub(crate) struct ClusterCommand {
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
pub(crate) fn run(args: &ClusterCommand) -> CommandResult {
    match &args.action {
        ClusterAction::Status(args) => status(args),
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
    message.push_str(&few_copies_warning(view).unwrap_or_default());
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

fn status(args: &ClusterStatusArgs) -> CommandResult {
    let client = args.root.client()?;
    let mut view = client.get("/cluster/v1/view")?;
    // A root of an earlier version does not know them, and then they are shown as "-".
    if let (Ok(work), Some(view)) = (client.get("/cluster/v1/work"), view.get_mut("result")) {
        add_work(view, &work["result"]["nodes"]);
    }
    let view = &view["result"];
    if args.json {
        print(&pretty(view))?;
        return check_joined(view);
    }
    print(&nodes(view).to_string())?;
    print("\n")?;
    print(&collections(view).to_string())?;
    if args.shards {
        print("\n")?;
        print(&shards(view).to_string())?;
    }
    check_joined(view)?;
    let warnings = [
        stale_warning(view),
        store_warning(view),
        unowned_warning(view),
        few_copies_warning(view),
        protocol_warning(view),
        work_warning(view),
    ];
    for warning in warnings.into_iter().flatten() {
        print(&warning)?;
    }
    Ok(())
}

/// Adds the flushes and merges of nodes, by name, to the nodes of a view.
fn add_work(view: &mut Value, work: &Value) {
    let nodes = view.get_mut("nodes").and_then(Value::as_array_mut);
    for node in nodes.into_iter().flatten().filter_map(Value::as_object_mut) {
        let own = node.get("name").and_then(Value::as_str).and_then(|name| work.get(name));
        if let Some(own) = own.cloned() {
            node.insert("work".to_owned(), own);
        }
    }
}

/// Returns the number of running merges of a node as a cell, with the number of waiting ones.
fn merges_cell(work: &Value) -> String {
    match work["merges_waiting"].as_u64() {
        Some(waiting @ 1..) => format!("{}, {waiting} wait", cell(&work["merges"])),
        _ => cell(&work["merges"]),
    }
}

/// Returns a warning if the flushes and merges of search nodes are not known.
fn work_warning(view: &Value) -> Option<String> {
    let unknown = items(&view["nodes"]).filter_map(|node| {
        let error = node["work"]["error"].as_str()?;
        Some(format!(
            "\nwarning: the flushes and merges of {} are not known: {error}\n",
            cell(&node["name"])
        ))
    });
    let warnings: String = unknown.collect();
    (!warnings.is_empty()).then_some(warnings)
}

/// Returns a warning if the node at `--url` cannot read nodes and owners from etcd.
fn stale_warning(view: &Value) -> Option<String> {
    let reason = view["stale"].as_str()?;
    Some(format!(
        "\nwarning: this node cannot read nodes and owners now, so they are shown as it read them last: {reason}\n"
    ))
}

/// Returns a warning if nodes cannot read the store.
fn store_warning(view: &Value) -> Option<String> {
    let named = |access: &str| {
        let nodes = items(&view["nodes"]).filter(|node| node["store"] == access);
        nodes.map(|node| cell(&node["name"])).collect::<Vec<_>>().join(", ")
    };
    let failing = named("failing");
    let lost = named("lost");
    let mut warning = String::new();
    if !failing.is_empty() {
        warning.push_str(&format!(
            "\nwarning: the store fails for {failing}: copies of shards on these nodes may be old, and writes to shards that \
             they own wait; read the log of each node\n"
        ));
    }
    if !lost.is_empty() {
        warning.push_str(&format!(
            "\nwarning: the store fails for {lost}: copies of shards on these nodes may be old, and other nodes own their \
             shards; check their network and their credentials\n"
        ));
    }
    (!warning.is_empty()).then_some(warning)
}

/// Returns a warning if nodes speak an older protocol than others, as during an upgrade. Two builds
/// may have the same version.
fn protocol_warning(view: &Value) -> Option<String> {
    let protocol = |node: &Value| node["protocol"].as_u64();
    let newest = items(&view["nodes"]).filter_map(protocol).max()?;
    let is_older = |node: &&Value| protocol(node).is_some_and(|own| own < newest);
    let older = items(&view["nodes"]).filter(is_older).map(|node| cell(&node["name"]));
    let older: Vec<String> = older.collect();
    (!older.is_empty()).then(|| {
        format!(
            "\nwarning: the programs of {} are older than those of other nodes; upgrade these nodes, \
             in the order of their roles (docs/cluster.md)\n",
            older.join(", ")
        )
    })
}

/// Returns a warning if there are too few search nodes for the copies of the shards. The status of
/// a collection does not show that: it is green if each node that should have a copy has one.
fn few_copies_warning(view: &Value) -> Option<String> {
    let few = |collection: &Value| {
        let copies = collection["copies"].as_u64().and_then(|copies| usize::try_from(copies).ok());
        let is_few = |shard: &&Value| items(&shard["wanted"]).count() < copies.unwrap_or(0);
        items(&collection["shards"]).filter(is_few).count()
    };
    let shards: usize = items(&view["collections"]).map(few).sum();
    (shards > 0).then(|| {
        format!(
            "\nwarning: {shards} shards have fewer copies than their replication_factor; start another node with the \
             role search\n"
        )
    })
}

/// Returns a warning if shards take no writes, because no node that is alive writes their logs. The
/// status of a collection is about reads alone.
fn unowned_warning(view: &Value) -> Option<String> {
    let alive: Vec<&Value> = items(&view["nodes"]).collect();
    let shards = items(&view["collections"]).flat_map(|collection| items(&collection["shards"]));
    let is_unowned = |shard: &&Value| !alive.iter().any(|node| node["name"] == shard["owner"]);
    let unowned = shards.filter(is_unowned).count();
    if unowned == 0 {
        return None;
    }
    let can_own =
        |node: &&Value| items(&node["roles"]).any(|role| role == "ingest") && node["weight"] != 0;
    let remedy = if alive.iter().any(can_own) {
        "if this lasts longer than 30 s, read the logs of the nodes with the role ingest"
    } else {
        "start a node with the role ingest"
    };
    Some(format!("\nwarning: {unowned} shards have no owner, and writes to them wait; {remedy}\n"))
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

fn nodes(view: &Value) -> TextTable {
    let mut table = TextTable::left(&[
        "NODE", "ADDRESS", "ROLES", "WEIGHT", "SHARDS", "FLUSHES", "MERGES", "BUILD",
    ]);
    for node in items(&view["nodes"]) {
        let [name, address, roles, weight, serving, build] =
            ["name", "address", "roles", "weight", "serving", "build"]
                .map(|field| cell(&node[field]));
        let flushes = cell(&node["work"]["flushes"]);
        let merges = merges_cell(&node["work"]);
        table.row([name, address, roles, weight, serving, flushes, merges, build]);
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
    let mut table =
        TextTable::left(&["COLLECTION", "SHARD", "OWNER", "SERVED BY", "MOVES TO", "DAMAGED ON"]);
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
                cell(&shard["damaged"]),
            ]);
        }
    }
    table
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
    fn status_warns_of_shards_without_an_owner() {
        let view = |roles: &[&str], weight: u32, owner: Value| {
            let shards = json!([{ "shard": 0, "owner": "a" }, { "shard": 1, "owner": owner }]);
            json!({
                "nodes": [
                    { "name": "a", "roles": ["root"], "weight": 1 },
                    { "name": "b", "roles": roles, "weight": weight },
                ],
                "collections": [{ "shards": shards }],
            })
        };
        assert_eq!(unowned_warning(&view(&["ingest"], 1, json!("b"))), None);
        let later = unowned_warning(&view(&["ingest"], 1, Value::Null)).unwrap();
        assert!(later.contains("1 shards have no owner"), "{later}");
        assert!(later.contains("read the logs of the nodes"), "{later}");
        for view in [view(&["search"], 1, json!("dead")), view(&["ingest"], 0, Value::Null)] {
            let missing = unowned_warning(&view).unwrap();
            assert!(missing.ends_with("start a node with the role ingest\n"), "{missing}");
        }
        assert_eq!(unowned_warning(&json!({ "nodes": [], "collections": [] })), None);
    }

    #[test]
    fn status_warns_of_an_old_view() {
        assert_eq!(stale_warning(&json!({ "nodes": [] })), None);
        let warning = stale_warning(&json!({ "stale": "etcd does not answer" })).unwrap();
        assert!(warning.ends_with("etcd does not answer\n"), "{warning}");
    }

    #[test]
    fn status_warns_of_nodes_without_the_store() {
        let view = json!({ "nodes": [{ "name": "a" }] });
        assert_eq!(store_warning(&view), None);
        let view = json!({ "nodes": [
            { "name": "a", "store": "failing" }, { "name": "b", "store": "lost" },
            { "name": "c", "store": "lost" }, { "name": "d" },
        ] });
        let warning = store_warning(&view).unwrap();
        assert!(warning.contains("the store fails for a: copies"), "{warning}");
        assert!(warning.contains("writes to shards that they own wait"), "{warning}");
        assert!(warning.contains("the store fails for b, c: copies"), "{warning}");
        assert!(warning.contains("other nodes own their shards"), "{warning}");
    }

    #[test]
    fn status_warns_of_nodes_that_are_not_upgraded() {
        let view = |protocols: [Value; 3]| {
            let named = ["a", "b", "c"].into_iter().zip(protocols);
            let nodes = named.map(|(name, protocol)| json!({ "name": name, "protocol": protocol }));
            json!({ "nodes": nodes.collect::<Vec<_>>() })
        };
        for same in [[json!(1), json!(1), json!(1)], [Value::Null, Value::Null, Value::Null]] {
            assert_eq!(protocol_warning(&view(same)), None);
        }
        let warning = protocol_warning(&view([json!(0), json!(1), json!(0)])).unwrap();
        assert!(warning.contains("the programs of a, c are older"), "{warning}");
    }

    #[test]
    fn status_shows_flushes_and_merges() {
        let mut view = json!({ "nodes": [{ "name": "a" }, { "name": "b" }, { "name": "root" }] });
        add_work(&mut view, &Value::Null);
        assert_eq!(view["nodes"][0], json!({ "name": "a" }), "the root has an earlier version");
        let work = json!({ "flushes": 2, "merges": 1, "merges_waiting": 3 });
        add_work(&mut view, &json!({ "a": work, "b": { "error": "it is away" } }));
        assert_eq!(view["nodes"][0]["work"], work);
        assert_eq!(merges_cell(&work), "1, 3 wait");
        assert_eq!(merges_cell(&json!({ "merges": 1, "merges_waiting": 0 })), "1");
        let table = nodes(&view).to_string();
        let rows: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows[1].ends_with(&["2", "1,", "3", "wait", "-"]), "{table}");
        assert!(rows[3].ends_with(&["-", "-", "-"]), "{table}");
        let warning = work_warning(&view).unwrap();
        assert!(warning.contains("flushes and merges of b are not known: it is away"), "{warning}");
        view["nodes"][1]["work"] = work;
        assert_eq!(work_warning(&view), None);
    }

    #[test]
    fn status_warns_of_too_few_search_nodes() {
        let view = |wanted: &[&str]| {
            let shards = json!([{ "wanted": ["a", "b"] }, { "wanted": wanted }]);
            json!({ "nodes": [{ "name": "a" }], "collections": [{ "copies": 2, "shards": shards }] })
        };
        assert_eq!(few_copies_warning(&view(&["a", "b"])), None);
        for wanted in [&["a"][..], &[]] {
            let warning = few_copies_warning(&view(wanted)).unwrap();
            assert!(warning.contains("1 shards have fewer copies"), "{warning}");
        }
        assert_eq!(few_copies_warning(&json!({ "nodes": [], "collections": [] })), None);
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
