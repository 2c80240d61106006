//! The collection of `bench backup`: its points, changes and searches.

use std::path::Path;
use std::sync::{Arc, mpsc};

use base::{Error, Result};
use coarse::Metric;
use search::collection::{CollectionQuery, QueryHits};
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection, Registry, RegistryOptions};
use serde_json::json;

use super::{BackupBenchArgs, OPEN_WAIT_MAX};
use loadgen::random::{RandomSequence, at, signed_unit};

use crate::settle::{QUIET_TIMES, upsert};

pub(super) const COLLECTION: &str = "backup";
/// Number of clusters of the points.
const CLUSTERS: u64 = 400;
/// Distance of a point from its cluster's centre in each dimension.
const SPREAD: f32 = 0.35;
/// Number of points written at once.
const BATCH: u64 = 200;
/// Number of hits of a search.
const HITS: usize = 10;
/// Share of the points that change before the second backup: one in this many.
const CHANGED_EVERY: u64 = 100;

/// Opens the collections in `directory` as the server does.
pub(super) fn open(directory: &Path) -> Result<Arc<Registry>> {
    let registry = Registry::open(RegistryOptions {
        memory_bytes: 2 << 30,
        cache_bytes: 256 << 20,
        quiet: QUIET_TIMES,
        ..RegistryOptions::new(directory)
    })?;
    if registry.wait_open(OPEN_WAIT_MAX) {
        Ok(registry)
    } else {
        Err(Error::deadline("the collection takes too long to open"))
    }
}

/// Returns the embedding of a point. `version` moves it within its cluster.
fn embedding(args: &BackupBenchArgs, id: u64, version: u64) -> Vec<f32> {
    let cluster = at(args.seed, id) % CLUSTERS;
    let centre = at(args.seed + 1, cluster);
    let own = at(args.seed + 2 + version, id);
    let value = |dim: u64| signed_unit(centre, dim) + SPREAD * signed_unit(own, dim);
    (0..args.dims as u64).map(value).collect()
}

/// Writes points of `version`.
pub(super) fn put(
    named: &NamedCollection,
    args: &BackupBenchArgs,
    ids: impl Iterator<Item = u64>,
    version: u64,
) -> Result<()> {
    let ids: Vec<u64> = ids.collect();
    for batch in ids.chunks(BATCH as usize) {
        let embeddings: Vec<Vec<f32>> =
            batch.iter().map(|id| embedding(args, *id, version)).collect();
        let payloads: Vec<serde_json::Map<String, serde_json::Value>> = batch
            .iter()
            .map(|id| {
                json!({"id": id, "version": version}).as_object().cloned().unwrap_or_default()
            })
            .collect();
        let points: Vec<NewPoint<'_>> = batch
            .iter()
            .zip(embeddings.iter().zip(&payloads))
            .map(|(id, (embedding, payload))| NewPoint {
                id: PointId::Number(*id),
                embedding,
                record: &[],
                payload,
            })
            .collect();
        upsert(named, &points)?;
    }
    Ok(())
}

/// Creates the collection and writes `rows` points.
pub(super) fn fill(
    registry: &Registry,
    args: &BackupBenchArgs,
    rows: u64,
) -> Result<Arc<NamedCollection>> {
    let named = registry.create(COLLECTION, CollectionSettings::new(args.dims, Metric::Cosine))?;
    for start in (0..rows).step_by(BATCH as usize * 50) {
        put(&named, args, start..(start + BATCH * 50).min(rows), 0)?;
    }
    Ok(named)
}

/// Changes one point in a hundred, at random places.
pub(super) fn change(named: &NamedCollection, args: &BackupBenchArgs) -> Result<()> {
    let mut random = RandomSequence::new(args.seed + 99);
    let count = args.rows / CHANGED_EVERY;
    let ids: Vec<u64> = (0..count).map(|_| random.bits() % args.rows).collect();
    put(named, args, ids.into_iter(), 1)
}

/// Returns ids and scores of the nearest points of query number `query`.
pub(super) fn nearest(
    registry: &Arc<Registry>,
    named: &Arc<NamedCollection>,
    args: &BackupBenchArgs,
    query: u64,
) -> Result<Vec<(u64, u32)>> {
    let (sender, answer) = mpsc::channel();
    submit(registry, named, args, query, move |hits| {
        // The receiver waits.
        let _ = sender.send(hits);
    })?;
    answer.recv().map_err(|_| Error::internal("a search ended without an answer"))?
}

/// Returns ids and scores of an answer.
///
/// # Errors
/// `Internal` if points may be missing because a file cannot be read.
fn whole_answer(found: QueryHits) -> Result<Vec<(u64, u32)>> {
    if found.partial {
        return Err(Error::internal("an answer of the collection is partial"));
    }
    Ok(found.hits.iter().map(|hit| (hit.id, hit.score.to_bits())).collect())
}

/// Searches on a search thread and passes the hits to `done`.
pub(super) fn submit(
    registry: &Arc<Registry>,
    named: &Arc<NamedCollection>,
    args: &BackupBenchArgs,
    query: u64,
    done: impl FnOnce(Result<Vec<(u64, u32)>>) + Send + 'static,
) -> Result<()> {
    let query = embedding(args, at(args.seed + 7, query) % args.rows, 1000);
    let work = move |named: &NamedCollection, thread: &mut search::collection::SearchThread| {
        let found = named.collection().nearest(thread, &CollectionQuery::nearest(&query, HITS));
        let hits = found.and_then(whole_answer);
        done(hits);
    };
    registry.submit(named, Box::new(work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_answer_is_an_error() {
        let answer = |partial| QueryHits { partial, ..QueryHits::default() };
        assert!(whole_answer(answer(true)).is_err());
        assert_eq!(whole_answer(answer(false)).unwrap(), []);
    }
}
