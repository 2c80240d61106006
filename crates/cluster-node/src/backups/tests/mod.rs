mod archives;
mod create;
mod stopped;

use axum::Router;
use bytes::Bytes;
use cluster::{EntryBody, EntryNumber, Epoch, LogEntry, WriterId};
use cluster_log::{Batch, CreateOutcome, ShardLog};
use search::registry::Registry;
use serde_json::Value;

use super::*;
use crate::membership::IDENTITY;
use crate::testing::{TestRegistry, open_registry};
use crate::types::{CollectionRecord, ViewUpdater};

/// A cluster's store in a directory, and its backups.
struct TestCluster {
    store: BackupStore,
    view: ViewUpdater,
    backups: Arc<ClusterBackups>,
    registry: Arc<Registry>,
    directory: tempfile::TempDir,
}

impl TestCluster {
    fn new() -> TestCluster {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(IDENTITY), "id").unwrap();
        let store = BackupStore::open(directory.path().to_str().unwrap(), &[]).unwrap();
        let view = ViewUpdater::new();
        view.update(|view| {
            view.collections.insert("docs".to_owned(), record("1"));
        });
        let rate = Rate::unlimited();
        let settings =
            ClusterBackupSettings { store: store.below("backups"), rate, schedule: None };
        let registry = open_registry(&directory.path().join("node"));
        let local = LocalCollections::new(Router::new(), Arc::new(TestRegistry(registry.clone())));
        let backups = ClusterBackups::new(ClusterBackupOptions {
            view: view.source(),
            cluster: store.clone(),
            local,
            settings,
            metrics: BackupMetrics::default(),
        });
        TestCluster { store, view, backups, registry, directory }
    }

    fn log(&self, record: &CollectionRecord, shard: u32) -> ShardLog {
        ShardLog::new(self.store.place(), &ShardKey::new(&record.id, shard))
    }

    /// Adds an entry to the log of a shard. Without a text it is a fence.
    async fn append(&self, record: &CollectionRecord, shard: u32, epoch: u64, text: &'static str) {
        let log = self.log(record, shard);
        let number = log.end().await.unwrap();
        let body = match text {
            "" => EntryBody::Fence,
            text => EntryBody::Writes(batch(text)),
        };
        let entry = LogEntry { epoch: Epoch(epoch), writer: WriterId(1), body };
        assert_eq!(log.create(number, &entry).await, CreateOutcome::Created);
    }

    /// Returns the entries of the log of a shard.
    async fn entries(&self, record: &CollectionRecord, shard: u32) -> Vec<LogEntry<Batch>> {
        let log = self.log(record, shard);
        let mut entries = Vec::new();
        while let Some(entry) = log.read(EntryNumber(entries.len() as u64)).await.unwrap() {
            entries.push(entry);
        }
        entries
    }
}

fn batch(text: &'static str) -> Batch {
    Batch::from(vec![Bytes::from_static(text.as_bytes())])
}

fn record(id: &str) -> CollectionRecord {
    CollectionRecord {
        name: "docs".to_owned(),
        id: id.to_owned(),
        shards: 2,
        copies: 1,
        create: Value::Null,
        images: None,
    }
}
