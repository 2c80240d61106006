//! Flushes and merges of the nodes.

use serde_json::{Value, json};

use http::Method;

use crate::root_support::*;

#[tokio::test]
async fn flushes_and_merges_of_nodes_are_shown() {
    let root = TestRoot::with_collection(2, "Dot");
    let node = FakeNode::start("a", |_, _| Value::Null).await;
    let work = json!({ "flushes": 2, "merges": 1, "merges_waiting": 3 });
    let answer = work.clone();
    node.answer_passed(move |request| {
        assert_eq!(request.target, "/cluster/v1/node/work");
        let mut answer = answer.clone();
        answer["later"] = json!(true);
        reply(200, &answer)
    });
    let earlier = FakeNode::start("b", |_, _| Value::Null).await;
    let refusing = refusing_socket();
    let ended = refusing.local_addr().unwrap().to_string();
    root.serve("a", &node.address, &[0, 1]);
    root.serve("b", &earlier.address, &[0]);
    root.serve("c", &ended, &[1]);
    root.serve("d", &ended, &[]);
    root.view.update(|view| view.nodes.get_mut("d").unwrap().roles.search = false);
    let shown = root.send(Method::GET, "/cluster/v1/work", &Value::Null).await;
    let nodes = &shown.result()["nodes"];
    assert_eq!(nodes["a"], work);
    let error = |name: &str| nodes[name]["error"].as_str().unwrap().to_owned();
    assert!(error("b").contains("upgrade the node"), "{nodes}");
    assert!(error("c").contains(&ended), "{nodes}");
    assert_eq!(nodes.get("d"), None, "it holds no shards");
}
