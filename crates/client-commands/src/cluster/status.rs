//! `millpond cluster status`: tables of nodes, collections and shards, and warnings.

use command_line::exit::{CommandResult, pretty, print};
use loadgen::report::TextTable;
use serde_json::Value;

use super::{ClusterStatusArgs, cell, check_joined, items};

/// Prints the nodes and collections that the root sees, and warnings.
///
/// # Errors
/// Returns an error if the root does not answer, or if it has not joined the cluster.
pub(super) fn run(args: &ClusterStatusArgs) -> CommandResult {
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
/// a collection does not show that. It is green if each node that should have a copy has one.
pub(super) fn few_copies_warning(view: &Value) -> Option<String> {
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
    use serde_json::json;

    use super::*;

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
}
