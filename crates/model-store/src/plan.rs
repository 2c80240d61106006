//! Plan of a fetch: which bytes of a weights file are copied from cached versions, and which parts
//! are requested.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::layout::{Artifact, LayoutManifest, TensorEntry};

/// Bytes of one request.
pub(crate) const PART_BYTES: u64 = 8 << 20;
/// Longest gap between two tensors that is fetched with them, since another request costs more.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// Cost of a fetch, known from the manifests alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchEstimate {
    /// Bytes from the store: missing tensors, the gaps between them, graph and manifest.
    pub bytes: u64,
    /// Requests for these bytes.
    pub requests: u64,
    /// Bytes of tensors and graph that are copied from the cached version.
    pub reused_bytes: u64,
}

/// Returns the cost of fetching a version with the manifest `wanted`, of `manifest_bytes`, for a
/// server that has a version with the manifest `cached`.
pub(crate) fn estimate(
    cached: &LayoutManifest,
    wanted: &LayoutManifest,
    manifest_bytes: u64,
) -> FetchEstimate {
    let known: HashSet<&str> = cached.tensors.iter().map(|it| it.blake3.as_str()).collect();
    let (reused, missing): (Vec<_>, Vec<_>) =
        wanted.tensors.iter().partition(|tensor| known.contains(tensor.blake3.as_str()));
    let mut ranges = ranges_of(&missing);
    let mut reused_bytes: u64 = reused.iter().map(|tensor| tensor.bytes).sum();
    let graph = &wanted.graph;
    if graph.blake3.is_some() && graph.blake3 == cached.graph.blake3 {
        reused_bytes += graph.bytes;
    } else {
        ranges.push(0..graph.bytes);
    }
    FetchEstimate {
        bytes: ranges.iter().map(|range| range.end - range.start).sum::<u64>() + manifest_bytes,
        requests: parts(&ranges).len() as u64 + 1,
        reused_bytes,
    }
}

/// Place of a tensor's bytes in a cached version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedTensor {
    pub(crate) file: Arc<Path>,
    pub(crate) offset: u64,
}

/// Tensors and graphs of cached versions by hash. A version may have been removed or replaced since
/// its manifest was read, so bytes are hashed after they are copied.
#[derive(Debug, Default)]
pub(crate) struct CachedContents {
    tensors: HashMap<[u8; 32], CachedTensor>,
    graphs: HashMap<String, Arc<Path>>,
    /// True once the manifests of the cached versions were read.
    is_read: bool,
}

impl CachedContents {
    /// Reads the manifests of the version directories that `dirs` returns. Reads them at the first
    /// call only, because a store may have thousands of versions.
    pub(crate) fn read_once(&mut self, dirs: impl FnOnce() -> Vec<PathBuf>) {
        if !self.is_read {
            self.is_read = true;
            dirs().iter().for_each(|dir| self.add(dir));
        }
    }

    /// Adds a version directory. Skips one without a manifest.
    pub(crate) fn add(&mut self, dir: &Path) {
        let Ok(artifact) = Artifact::open(dir) else { return };
        if let Some(hash) = &artifact.manifest.graph.blake3 {
            self.graphs.insert(hash.clone(), artifact.graph().into());
        }
        let Some(file) = artifact.weights().map(Arc::<Path>::from) else { return };
        for tensor in &artifact.manifest.tensors {
            let Ok(hash) = tensor.hash() else { continue };
            let place = CachedTensor { file: file.clone(), offset: tensor.offset };
            self.tensors.insert(*hash.as_bytes(), place);
        }
    }

    /// Returns the place of a tensor with the same content.
    pub(crate) fn tensor(&self, wanted: &TensorEntry) -> Option<CachedTensor> {
        self.tensors.get(wanted.hash().ok()?.as_bytes()).cloned()
    }

    /// Returns a graph's file with this content hash.
    pub(crate) fn graph(&self, hash: &str) -> Option<Arc<Path>> {
        self.graphs.get(hash).cloned()
    }
}

/// Returns the ranges that cover `tensors`, which are in file order. Joins neighbours.
pub(crate) fn ranges_of(tensors: &[&TensorEntry]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for tensor in tensors.iter().filter(|tensor| tensor.bytes > 0) {
        let next = tensor.offset..tensor.offset + tensor.bytes;
        match ranges.last_mut() {
            Some(last) if next.start - last.end <= GAP_BYTES_MAX => last.end = next.end,
            _ => ranges.push(next),
        }
    }
    ranges
}

/// Returns the parts of `wanted` that `done` does not cover.
pub(crate) fn uncovered(wanted: &[Range<u64>], done: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut done = done.to_vec();
    done.sort_by_key(|range| range.start);
    let mut left = Vec::new();
    for range in wanted {
        let mut start = range.start;
        for cut in done.iter().filter(|cut| cut.end > range.start && cut.start < range.end) {
            if cut.start > start {
                left.push(start..cut.start);
            }
            start = start.max(cut.end);
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

/// Cuts `ranges` into requests of at most [`PART_BYTES`].
pub(crate) fn parts(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let cut = |range: &Range<u64>| {
        let end = range.end;
        let starts = (range.start..end).step_by(PART_BYTES as usize);
        starts.map(move |start| start..end.min(start + PART_BYTES)).collect::<Vec<_>>()
    };
    ranges.iter().flat_map(cut).collect()
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]
mod tests {
    use super::*;

    fn tensor(offset: u64, bytes: u64) -> TensorEntry {
        TensorEntry {
            name: "t".to_owned(),
            dtype: "U8".to_owned(),
            dims: vec![bytes as usize],
            offset,
            bytes,
            blake3: String::new(),
        }
    }

    #[test]
    fn manifests_of_cached_versions_are_read_once() {
        let root = tempfile::tempdir().unwrap();
        let write = |version: u8| {
            let dir = root.path().join(version.to_string());
            let hash = blake3::hash(&[version]).to_hex();
            let manifest = format!(
                r#"{{"format":1,"engine":"fake","created_by":"test",
                "graph":{{"name":"graph","bytes":2,"blake3":"{hash}"}},"weights":null,"tensors":[]}}"#
            );
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("graph"), "ab").unwrap();
            std::fs::write(dir.join("millpond.json"), manifest).unwrap();
            (dir, hash.to_string())
        };
        let (first, first_hash) = write(1);
        let (second, second_hash) = write(2);
        let mut contents = CachedContents::default();
        let mut listings = 0;
        for _ in 0..3 {
            contents.read_once(|| {
                listings += 1;
                vec![first.clone(), root.path().join("absent")]
            });
        }
        assert_eq!(listings, 1);
        assert_eq!(contents.graph(&first_hash).as_deref(), Some(&*first.join("graph")));
        assert!(contents.graph(&second_hash).is_none());
        contents.add(&second);
        assert_eq!(contents.graph(&second_hash).as_deref(), Some(&*second.join("graph")));
    }

    #[test]
    fn neighbours_share_a_request() {
        let tensors = [tensor(0, 10), tensor(4096, 10), tensor(1 << 20, 5), tensor(1 << 21, 0)];
        let all: Vec<&TensorEntry> = tensors.iter().collect();
        assert_eq!(ranges_of(&all), [0..4106, 1 << 20..(1 << 20) + 5]);
        assert!(ranges_of(&[]).is_empty());
    }

    #[test]
    fn fetched_parts_are_left_out() {
        assert_eq!(uncovered(&[0..10, 20..30], &[]), [0..10, 20..30]);
        assert_eq!(uncovered(&[0..10, 20..30], &[22..25, 0..4]), [4..10, 20..22, 25..30]);
        assert_eq!(uncovered(&[0..10], &[0..5, 5..10]), []);
        assert_eq!(uncovered(&[5..10], &[0..7, 9..20]), [7..9]);
    }

    #[test]
    fn parts_cover_the_ranges() {
        assert_eq!(
            parts(&[3..PART_BYTES + 5]),
            [3..PART_BYTES + 3, PART_BYTES + 3..PART_BYTES + 5]
        );
        assert_eq!(parts(&[0..PART_BYTES]), [0..PART_BYTES]);
    }
}
