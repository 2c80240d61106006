//! Registries with points that a number determines, and the contents of collections.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use backup::{
    BackupContext, BackupExtent, BackupProgress, BackupReport, BackupStore, RestoreReport,
    RestoreTarget, block_on,
};
use base::Result;
use os::{Pacer, Rate};
use search::Metric;
use search::collection::{CollectionQuery, PointParts};
use search::points::{NewPoint, PointId};
use search::registry::{
    CollectionSettings, MediumChoice, NamedCollection, Registry, RegistryOptions,
};
use serde_json::{Map, json};

pub(crate) const DIMS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Embedding and payload of each point, by the text of its id.
pub(crate) type Contents = BTreeMap<String, (Vec<f32>, String)>;

pub(crate) fn open(directory: &Path) -> Arc<Registry> {
    open_with_reserve(directory, 0)
}

/// Opens a registry that keeps `disk_reserve` bytes of the disk free.
pub(crate) fn open_with_reserve(directory: &Path, disk_reserve: u64) -> Arc<Registry> {
    let options = RegistryOptions {
        disk_reserve: Some(disk_reserve),
        cache_bytes: 1 << 20,
        medium: MediumChoice::Auto,
        ..RegistryOptions::for_tests(directory)
    };
    let registry = Registry::open(options).unwrap();
    assert!(registry.wait_open(TIMEOUT));
    registry
}

pub(crate) fn create(registry: &Registry, name: &str) -> Arc<NamedCollection> {
    let extra = json!({"kind": "test"});
    let settings = CollectionSettings { extra, ..CollectionSettings::new(DIMS, Metric::L2) };
    registry.create(name, settings).unwrap()
}

/// Writes the points `ids` in order, each with content that `version` determines.
pub(crate) fn put(named: &NamedCollection, ids: std::ops::Range<u64>, version: u64) {
    for id in ids {
        let embedding: Vec<f32> =
            (0..DIMS as u64).map(|at| ((id * 31 + version * 7 + at * 13) % 251) as f32).collect();
        let payload = json!({"version": version, "id": id});
        let payload: &Map<_, _> = payload.as_object().unwrap();
        let record = vec![version as u8; 100];
        let id = PointId::Number(id);
        let point = NewPoint { id, embedding: &embedding, record: &record, payload };
        named.upsert(&[point]).unwrap();
    }
}

pub(crate) fn contents(named: &NamedCollection) -> Contents {
    let mut all = Contents::new();
    let mut from = None;
    loop {
        let page = named.scroll(from.as_ref(), 500, None, PointParts::ALL).unwrap();
        assert!(!page.partial);
        for point in page.points {
            let payload = serde_json::to_string(&point.payload).unwrap();
            all.insert(format!("{:?}", point.id), (point.embedding, payload));
        }
        match page.next {
            Some(next) => from = Some(next),
            None => return all,
        }
    }
}

/// Ids and scores of the nearest points of a fixed query.
pub(crate) fn nearest(registry: &Registry, named: &Arc<NamedCollection>) -> Vec<(u64, u32)> {
    let (sender, answer) = mpsc::channel();
    let work = move |named: &NamedCollection, thread: &mut _| {
        let query = [100.0, 20.0, 3.0, 90.0];
        let found =
            named.collection().nearest(thread, &CollectionQuery::nearest(&query, 20)).unwrap();
        let mut hits: Vec<(u64, u32)> =
            found.hits.iter().map(|hit| (hit.id, hit.score.to_bits())).collect();
        hits.sort_unstable();
        sender.send(hits).unwrap();
    };
    registry.submit(named, Box::new(work)).unwrap();
    answer.recv().unwrap()
}

/// A store, without a limit of the rate.
pub(crate) struct TestStore {
    pub(crate) store: BackupStore,
    pacer: Pacer,
    pub(crate) progress: BackupProgress,
}

impl TestStore {
    pub(crate) fn open(directory: &Path) -> TestStore {
        TestStore::with_rate(directory, Rate::unlimited())
    }

    pub(crate) fn with_rate(directory: &Path, rate: Rate) -> TestStore {
        let store = BackupStore::open(directory.to_str().unwrap(), &[]).unwrap();
        TestStore { store, pacer: Pacer::new(rate), progress: BackupProgress::default() }
    }

    pub(crate) fn context(&self) -> BackupContext<'_> {
        BackupContext { store: &self.store, pacer: &self.pacer, progress: &self.progress }
    }

    pub(crate) fn back_up(&self, named: &NamedCollection) -> BackupReport {
        block_on(backup::create(&self.context(), named, BackupExtent::Missing)).unwrap()
    }

    pub(crate) fn restore(
        &self,
        registry: &Registry,
        from: &str,
        to: &str,
    ) -> Result<RestoreReport> {
        let target = RestoreTarget { name: to.to_owned(), replaces: false };
        block_on(backup::restore(&self.context(), registry, from, None, &target))
    }
}
