//! Room for a version in the cache: within its limit, and on its disk.

use base::units::format_bytes;
use base::{Error, Result};
use lifecycle::VersionPolicy;

use super::follower::{FALLBACKS_MAX, Follower, SyncContext};

impl Follower {
    /// Makes room until `bytes` of a version fit. If the disk is full, first removes parts of
    /// versions that are not wanted. Then removes copies of stores that no server follows, and then
    /// the least recently wanted versions.
    pub(super) fn make_room(
        &self,
        context: &SyncContext,
        model: &str,
        version: u64,
        bytes: u64,
    ) -> Result<()> {
        let mut versions = self.cache.versions();
        versions.sort_by_key(|version| version.last_wanted);
        let mut used: u64 = versions.iter().map(|version| version.bytes).sum();
        // A part of an interrupted fetch is on the disk already.
        let on_disk = self.cache.staged_bytes(model, version);
        let missing = bytes.saturating_sub(on_disk);
        if self.cache.free_bytes().is_some_and(|free| free <= missing) {
            // The parts of wanted versions stay. Otherwise two large versions whose fetches break
            // off would remove each other's parts for ever.
            self.cache.retain_staging(|other, staged| {
                (other == model && staged == version)
                    || (self.is_listed(other, staged) && self.is_wanted(context, other, staged))
            });
        }
        let others = context.usage.of_others(&self.source.models_dir);
        let bytes_max = context.config.bytes_max.saturating_sub(others);
        let fits = |used: u64| {
            used + bytes <= bytes_max && self.cache.free_bytes().is_none_or(|it| it > missing)
        };
        self.evict_unused(context, used, &fits);
        for old in versions {
            if fits(used) {
                break;
            }
            if !(context.in_use)(&self.source.models_dir, &old.model, old.version)
                && !self.is_wanted(context, &old.model, old.version)
            {
                self.cache.remove(&old.model, old.version)?;
                // Another version may have the same tensors.
                drop(self.contents.take());
                tracing::info!(
                    model = old.model,
                    version = old.version,
                    "removed a copy to make room"
                );
                used -= old.bytes;
            }
        }
        if used + bytes > bytes_max {
            return Err(Error::storage_full(format!(
                "a version of {} does not fit the cache of models in object stores: {} of {} are in \
                 use; raise --store-cache",
                format_bytes(bytes),
                format_bytes(used),
                format_bytes(bytes_max)
            )));
        }
        if let Some(free) = self.cache.free_bytes().filter(|free| *free <= missing) {
            return Err(self.disk_full(&format!(
                "{} are missing and {} are free",
                format_bytes(missing),
                format_bytes(free)
            )));
        }
        context.usage.set(&self.source.models_dir, used + bytes);
        Ok(())
    }

    /// Returns the error for a full disk.
    pub(super) fn disk_full(&self, what: &str) -> Error {
        Error::storage_full(format!(
            "the disk of the cache {} is full: {what}; free space, or name another directory with \
             --cache-dir; --store-cache limits the copies",
            self.cache.root().display()
        ))
    }

    fn is_listed(&self, model: &str, version: u64) -> bool {
        let models = self.listed.as_ref().map(|listing| &listing.models);
        let listed = models.and_then(|models| models.get(model));
        listed.is_some_and(|model| model.versions.contains_key(&version))
    }

    /// Returns true if the last listing has the version and the policy chooses it, also in place of
    /// a version that has failed. Returns true too if there is no listing yet.
    fn is_wanted(&self, context: &SyncContext, model: &str, version: u64) -> bool {
        let Some(listing) = &self.listed else { return true };
        let newer = listing.models.get(model).into_iter();
        let newer: Vec<u64> =
            newer.flat_map(|listed| listed.versions.range(version + 1..).map(|it| *it.0)).collect();
        match self.policy(model) {
            VersionPolicy::Latest(count) => {
                // The copies of two models would otherwise remove each other for ever.
                let failed = newer.iter().filter(|it| self.needs_fallback(context, model, **it));
                newer.len() - failed.count().min(FALLBACKS_MAX) < count.max(1)
            }
            VersionPolicy::All => true,
            VersionPolicy::Specific(versions) => versions.contains(&version),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use base::ErrorKind;
    use metrics::StoreMetrics;
    use object_store::memory::InMemory;
    use os::{Pacer, Rate};

    use super::*;
    use crate::fetch::RunningFetches;
    use crate::listing::{RemoteModel, RemoteVersion, StoreListing};
    use crate::mirror::usage::CacheUsage;
    use crate::mirror::{MirrorConfig, StoreSource};
    use crate::options::StoreOptions;
    use crate::place::StorePlace;

    fn context(bytes_max: u64) -> SyncContext {
        let config = MirrorConfig {
            stores_dir: PathBuf::new(),
            keep_unused: Duration::MAX,
            options: StoreOptions::default(),
            poll: Duration::from_secs(1),
            settle: Duration::ZERO,
            bytes_max,
            rate: 0,
        };
        SyncContext {
            config,
            pacer: Pacer::new(Rate::unlimited()),
            metrics: StoreMetrics::default(),
            in_use: Box::new(|_, _, _| false),
            has_failed: Box::new(|_, _| false),
            unopened: RefCell::default(),
            usage: CacheUsage::default(),
            fetches: RunningFetches::default(),
        }
    }

    #[test]
    fn a_full_disk_loses_parts_of_unwanted_versions() {
        let dir = tempfile::tempdir().unwrap();
        let url: Arc<str> = "s3://b/models".into();
        let source = StoreSource::new(&url, &dir.path().join("c/models"), None);
        let place = StorePlace::new(Arc::new(InMemory::new()), "models", &url);
        let mut follower = Follower::open(source, place, Duration::from_secs(1)).unwrap();
        let listed = |versions: &[u64]| {
            let versions = versions.iter().map(|&version| (version, RemoteVersion::default()));
            RemoteModel { versions: versions.collect(), ..RemoteModel::default() }
        };
        let models = [("m".to_owned(), listed(&[1, 2])), ("other".to_owned(), listed(&[7]))];
        follower.listed = Some(StoreListing { models: models.into(), is_model: false });
        let staged = |model, version| follower.cache.staging(model, version);
        // The store has no version 8 of the other model any more.
        for dir in [staged("m", 1), staged("m", 2), staged("other", 7), staged("other", 8)] {
            os::private::create_dir_all(&dir).unwrap();
        }
        let context = context(u64::MAX);
        // No disk has so much room.
        let error = follower.make_room(&context, "m", 2, 1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(!staged("m", 1).exists() && staged("m", 2).exists());
        assert!(staged("other", 7).exists() && !staged("other", 8).exists());
        // An earlier version is wanted in place of one that has failed.
        assert!(!follower.is_wanted(&context, "m", 1));
        let context = SyncContext { has_failed: Box::new(|_, version| version == 2), ..context };
        assert!(follower.is_wanted(&context, "m", 1));
        assert!(!follower.is_wanted(&context, "m", 0));
    }

    #[test]
    fn stores_do_not_use_the_same_room() {
        let dir = tempfile::tempdir().unwrap();
        let context = context(100);
        let open = |name: &str| {
            let url: Arc<str> = format!("s3://b/{name}").into();
            let source = StoreSource::new(&url, &dir.path().join(name).join("models"), None);
            let place = StorePlace::new(Arc::new(InMemory::new()), name, &url);
            Follower::open(source, place, Duration::from_secs(1)).unwrap()
        };
        let [one, other] = ["one", "other"].map(open);
        one.make_room(&context, "m", 1, 60).unwrap();
        // The version of the first store is fetched at this moment.
        let error = other.make_room(&context, "m", 1, 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        other.make_room(&context, "m", 1, 40).unwrap();
        assert_eq!(context.usage.total(), 100);
    }
}
