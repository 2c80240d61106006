//! Warnings about nodes of the cluster that speak another protocol than this one, as during an
//! upgrade.

use std::collections::BTreeMap;

use tracing::warn;

use crate::types::{LARGE_IDS_PROTOCOL, NodeInfo};

/// Protocols of other nodes that were logged, by the name of the node. It has at most the nodes of
/// the view.
#[derive(Debug, Default)]
pub(super) struct ProtocolWarnings(BTreeMap<String, u32>);

impl ProtocolWarnings {
    /// Logs the nodes that speak another protocol than `own`, each once.
    pub(super) fn log(&mut self, own: u32, nodes: &BTreeMap<String, NodeInfo>) {
        for node in self.take_new(own, nodes) {
            if node.protocol > own {
                warn!(
                    node = node.name,
                    build = node.build,
                    protocol = node.protocol,
                    own,
                    "a node speaks a newer protocol than this node, so this node may fail to read its answers: upgrade this node"
                );
            } else {
                warn!(
                    node = node.name,
                    build = node.build,
                    protocol = node.protocol,
                    own,
                    effects = effects(node),
                    "a node speaks an older protocol than this node: upgrade that node"
                );
            }
        }
    }

    /// Returns the nodes that speak another protocol than `own`. A node that the last call found
    /// with the same protocol is left out.
    fn take_new<'a>(
        &mut self,
        own: u32,
        nodes: &'a BTreeMap<String, NodeInfo>,
    ) -> Vec<&'a NodeInfo> {
        let mut known = std::mem::take(&mut self.0);
        let mut new = Vec::new();
        for node in nodes.values().filter(|node| node.protocol != own) {
            if known.remove(&node.name) != Some(node.protocol) {
                new.push(node);
            }
            self.0.insert(node.name.clone(), node.protocol);
        }
        new
    }
}

/// Returns the effects of an older node, by its roles.
fn effects(node: &NodeInfo) -> String {
    let mut effects = Vec::new();
    if node.protocol == 0 {
        let of_roles = [
            (node.roles.root, "grouped queries fail at it if a group is a number above 2^63 - 1"),
            (
                node.roles.search,
                "its copies lose the name and the original of an image if a client replaces or clears the payload",
            ),
            (node.roles.ingest, "two uploads of one image may both be answered with \"added\""),
            (node.roles.extract, "it refuses images of fingerprints without a model"),
        ];
        effects.extend(of_roles.into_iter().filter(|it| it.0).map(|it| it.1));
    }
    if node.protocol < LARGE_IDS_PROTOCOL && node.roles.search {
        effects.push(
            "roots refuse writes and deletions of points whose ids are above 2^63 - 1, and its copies of payloads \
             differ if a client sets a payload with a key into elements",
        );
    }
    effects.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{PROTOCOL, Roles};

    fn node(name: &str, protocol: u32) -> NodeInfo {
        NodeInfo { name: name.to_owned(), roles: Roles::ALL, protocol, ..NodeInfo::default() }
    }

    fn names(nodes: &[&NodeInfo]) -> Vec<String> {
        nodes.iter().map(|node| node.name.clone()).collect()
    }

    #[test]
    fn a_node_of_another_protocol_is_logged_once() {
        let mut nodes: BTreeMap<String, NodeInfo> = ["old", "own", "newer"]
            .into_iter()
            .zip([0, 1, 2])
            .map(|(name, protocol)| (name.to_owned(), node(name, protocol)))
            .collect();
        let mut warnings = ProtocolWarnings::default();
        assert_eq!(names(&warnings.take_new(1, &nodes)), ["newer", "old"]);
        assert!(warnings.take_new(1, &nodes).is_empty());
        nodes.insert("newer".to_owned(), node("newer", 3));
        assert_eq!(names(&warnings.take_new(1, &nodes)), ["newer"], "it was upgraded again");
        nodes.insert("old".to_owned(), node("old", 1));
        assert!(warnings.take_new(1, &nodes).is_empty());
        nodes.insert("old".to_owned(), node("old", 0));
        assert_eq!(names(&warnings.take_new(1, &nodes)), ["old"], "it was downgraded");
    }

    #[test]
    fn the_effects_follow_the_roles() {
        let of = |roles: Roles| effects(&NodeInfo { roles, ..NodeInfo::default() });
        assert!(of(Roles { root: true, ..Roles::default() }).starts_with("grouped queries fail"));
        assert!(of(Roles { search: true, ..Roles::default() }).contains("original of an image"));
        assert_eq!(of(Roles::ALL).matches("; ").count(), 4);
        assert!(effects(&node("a", 1)).starts_with("roots refuse writes"));
        assert_eq!(effects(&node("a", PROTOCOL)), "");
    }

    #[test]
    fn a_description_without_a_protocol_is_of_the_first_one() {
        let text = r#"{"name":"a","address":"a:1","roles":["root"],"weight":1,"build":"1"}"#;
        let info: NodeInfo = serde_json::from_str(text).unwrap();
        assert_eq!(info.protocol, 0);
        let own = NodeInfo { protocol: PROTOCOL, ..info };
        let written = serde_json::to_string(&own).unwrap();
        assert_eq!(serde_json::from_str::<NodeInfo>(&written).unwrap(), own);
    }
}
