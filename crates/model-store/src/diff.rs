//! Comparison of two published versions by the hashes of their tensors.

use std::collections::{BTreeMap, HashSet};

use engine::layout::{LayoutManifest, TensorEntry};

use crate::place::StoredManifest;
use crate::plan::{FetchEstimate, estimate};

/// A tensor that only one of two versions has, or whose bytes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorChange<'a> {
    /// The tensor in the first version, or `None` if it was added.
    pub before: Option<&'a TensorEntry>,
    /// The tensor in the second version, or `None` if it was removed.
    pub after: Option<&'a TensorEntry>,
    /// True if the first version has the new bytes under another name, so they are not fetched.
    pub is_known: bool,
}

/// Differences between two published versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestDiff<'a> {
    /// Added and changed tensors in the second version's order, then removed ones.
    pub changes: Vec<TensorChange<'a>>,
    /// Number of tensors of the same name and hash.
    pub equal_count: usize,
    /// Bytes of these tensors.
    pub equal_bytes: u64,
    /// True if the graphs have the same hash.
    pub is_graph_equal: bool,
    /// Cost of the second version for a server that has the first.
    pub fetch: FetchEstimate,
}

impl<'a> ManifestDiff<'a> {
    /// Compares the version `before` with `after`.
    pub fn new(before: &'a LayoutManifest, after: &'a StoredManifest) -> ManifestDiff<'a> {
        let manifest = after;
        let after = &after.layout;
        let by_name: BTreeMap<&str, &TensorEntry> =
            before.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let known: HashSet<&str> = before.tensors.iter().map(|it| it.blake3.as_str()).collect();
        let mut changes = Vec::new();
        let mut equal_count = 0;
        let mut equal_bytes = 0;
        for tensor in &after.tensors {
            let earlier = by_name.get(tensor.name.as_str()).copied();
            if earlier.is_some_and(|earlier| earlier.blake3 == tensor.blake3) {
                equal_count += 1;
                equal_bytes += tensor.bytes;
                continue;
            }
            let is_known = known.contains(tensor.blake3.as_str());
            changes.push(TensorChange { before: earlier, after: Some(tensor), is_known });
        }
        let names: HashSet<&str> = after.tensors.iter().map(|it| it.name.as_str()).collect();
        let removed = before.tensors.iter().filter(|tensor| !names.contains(tensor.name.as_str()));
        changes.extend(removed.map(|tensor| TensorChange {
            before: Some(tensor),
            after: None,
            is_known: true,
        }));
        let hash = &after.graph.blake3;
        ManifestDiff {
            changes,
            equal_count,
            equal_bytes,
            is_graph_equal: hash.is_some() && *hash == before.graph.blake3,
            fetch: estimate(before, after, manifest.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::layout::{FORMAT, FileEntry};

    use super::*;

    /// Makes a manifest with a tensor of 4 KiB for each name and content.
    fn manifest(graph: &str, tensors: &[(&str, &str)]) -> LayoutManifest {
        let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex().to_string();
        let entry = |(at, (name, content)): (usize, &(&str, &str))| TensorEntry {
            name: (*name).to_owned(),
            dtype: "U8".to_owned(),
            dims: vec![4096],
            offset: 4096 * at as u64,
            bytes: 4096,
            blake3: hash(content),
        };
        LayoutManifest {
            format: FORMAT,
            engine: "e".to_owned(),
            created_by: String::new(),
            graph: FileEntry { name: "g".to_owned(), bytes: 10, blake3: Some(hash(graph)) },
            weights: None,
            tensors: tensors.iter().enumerate().map(entry).collect(),
        }
    }

    fn stored(layout: LayoutManifest) -> StoredManifest {
        StoredManifest { layout, bytes: 100 }
    }

    #[test]
    fn tensors_are_compared_by_name_and_hash() {
        let before = manifest("g", &[("same", "1"), ("new", "2"), ("old", "3")]);
        let after = stored(manifest("g", &[("same", "1"), ("new", "4"), ("moved", "3")]));
        let diff = ManifestDiff::new(&before, &after);
        let names = |change: &TensorChange<'_>| {
            let name = |tensor: Option<&TensorEntry>| tensor.map(|tensor| tensor.name.clone());
            (name(change.before), name(change.after), change.is_known)
        };
        let name = |text: &str| Some(text.to_owned());
        assert_eq!(
            diff.changes.iter().map(names).collect::<Vec<_>>(),
            [
                (name("new"), name("new"), false),
                (None, name("moved"), true),
                (name("old"), None, true)
            ]
        );
        assert_eq!((diff.equal_count, diff.equal_bytes), (1, 4096));
        assert!(diff.is_graph_equal);
        let wanted = FetchEstimate { bytes: 4096 + 100, requests: 2, reused_bytes: 8192 + 10 };
        assert_eq!(diff.fetch, wanted);
    }

    #[test]
    fn a_version_does_not_differ_from_itself() {
        let same = stored(manifest("g", &[("a", "1"), ("b", "1")]));
        let diff = ManifestDiff::new(&same.layout, &same);
        assert!(diff.changes.is_empty() && diff.is_graph_equal);
        assert_eq!((diff.equal_count, diff.fetch.bytes), (2, 100));
        let other = stored(manifest("h", &[]));
        let diff = ManifestDiff::new(&same.layout, &other);
        assert_eq!((diff.changes.len(), diff.is_graph_equal, diff.fetch.bytes), (2, false, 110));
    }
}
