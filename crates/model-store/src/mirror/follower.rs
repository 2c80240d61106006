//! One store: its listings, and the versions that are copied because of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use base::units::format_bytes;
use base::{Error, ErrorKind, Result};
use lifecycle::VersionPolicy;
use metrics::{StoreLabels, StoreMetrics, StoreWorkLabels};
use object_store::ObjectMeta;
use os::Pacer;

use super::pace::next_pause;
use super::usage::CacheUsage;
use super::{HasFailed, InUse, MirrorConfig, StoreSource, UnopenedStores};
use crate::cache::{StoreCache, adopt_former_copies};
use crate::fetch::{RunningFetches, VersionFetch, part};
use crate::listing::{
    RemoteFile, RemoteKind, RemoteModel, RemoteVersion, StoreListing, fingerprint, group,
};
use crate::place::StorePlace;
use crate::plan::CachedContents;

/// Maximum bytes of a file beside a model's versions.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of failed versions of a model in place of which a lower one is copied. If all
/// versions fail for the same reason, such as a pool that is too small, the whole history must not
/// be fetched.
pub(super) const FALLBACKS_MAX: usize = 2;
/// Maximum number of versions of a model that are tried in one check although the store refuses
/// their objects, or does not have them. Wrong credentials must not cause a request for each of a
/// thousand versions.
const REFUSED_MAX: usize = 8;
/// Name of a model's settings.
const SETTINGS_NAME: &str = "millpond.toml";

/// Result of one check of a store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SyncOutcome {
    /// True if work remains, because a copy failed or a version may still change.
    pub(crate) pending: bool,
    /// True if a copy failed.
    pub(crate) failed: bool,
    /// True if the listing changed.
    changed: bool,
}

/// Resources that all followers share.
pub(crate) struct SyncContext {
    pub(crate) config: MirrorConfig,
    pub(crate) pacer: Pacer,
    pub(crate) metrics: StoreMetrics,
    pub(crate) in_use: InUse,
    pub(crate) has_failed: HasFailed,
    /// Stores that could not be opened, whose copies may serve.
    pub(crate) unopened: RefCell<UnopenedStores>,
    pub(crate) usage: CacheUsage,
    pub(crate) fetches: RunningFetches,
}

/// A version whose bytes do not match its manifest.
struct DamagedVersion {
    /// Fingerprint of its listing.
    stamp: String,
    reason: String,
}

/// A version without a manifest, which counts as complete once its listing stays the same.
struct SettlingVersion {
    /// Fingerprint of the listed files.
    stamp: String,
    /// Time of the first listing with this fingerprint.
    since: Instant,
}

/// A store that is followed.
pub(crate) struct Follower {
    pub(crate) source: StoreSource,
    pub(crate) place: StorePlace,
    pub(crate) cache: StoreCache,
    /// Earliest time of the next listing.
    pub(crate) next: Instant,
    pause: Duration,
    /// The last listing whose changes were all copied.
    pub(super) copied: Option<StoreListing>,
    pub(super) listed: Option<StoreListing>,
    /// Versions that were here at the end of the last check that read the copies.
    present: BTreeSet<(String, u64)>,
    /// Versions without a manifest that are not copied yet.
    settling: BTreeMap<(String, u64), SettlingVersion>,
    /// Versions with wrong bytes, which are not fetched again.
    damaged: BTreeMap<(String, u64), DamagedVersion>,
    /// Failed versions whose copies were checked after the failure.
    pub(super) checked: BTreeSet<(String, u64)>,
    /// Number of times that a damaged copy of a version was fetched again.
    pub(super) repairs: BTreeMap<(String, u64), u32>,
    /// Reasons why a model lacks a version, by name of the model.
    problems: BTreeMap<String, String>,
    /// Reasons why versions are not copied although nothing failed, by name of the model.
    pub(super) unfinished: BTreeMap<String, String>,
    /// Versions that the last listing missed.
    missed: BTreeSet<(String, u64)>,
    /// Files beside the versions that the last listing missed, by name of the model.
    missed_files: BTreeMap<String, BTreeSet<String>>,
    /// Error of the last listing.
    last_error: Option<String>,
    /// True once the check that runs, or the last one, has listed the store.
    pub(super) has_listed: Arc<AtomicBool>,
    /// Contents of the cached versions, during a check of the store.
    pub(super) contents: RefCell<CachedContents>,
    _lock: File,
}

impl Follower {
    /// Opens the cache of a store, and locks it for this process.
    pub(crate) fn open(source: StoreSource, place: StorePlace, poll: Duration) -> Result<Follower> {
        adopt_former_copies(&source.models_dir, &source.url, source.model.as_deref());
        let cache = StoreCache::open(&source.models_dir)?;
        if let Some(model) = &source.model {
            let dir = cache.model_dir(model);
            os::private::create_dir_all(&dir).map_err(|error| Error::io(&dir, &error))?;
        }
        let lock = cache.lock()?;
        cache.note_followed();
        Ok(Follower {
            _lock: lock,
            source,
            place,
            cache,
            next: Instant::now(),
            pause: poll,
            copied: None,
            listed: None,
            present: BTreeSet::new(),
            settling: BTreeMap::new(),
            damaged: BTreeMap::new(),
            checked: BTreeSet::new(),
            repairs: BTreeMap::new(),
            problems: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            missed: BTreeSet::new(),
            missed_files: BTreeMap::new(),
            last_error: None,
            has_listed: Arc::default(),
            contents: RefCell::default(),
        })
    }

    /// Returns the store in labels of metrics.
    pub(crate) fn label(&self) -> Arc<str> {
        self.place.shown().into()
    }

    /// Reads the bytes of all copies.
    pub(crate) fn bytes(&self) -> u64 {
        self.cache.versions().iter().map(|version| version.bytes).sum()
    }

    /// Takes over changed settings.
    pub(crate) fn set_source(&mut self, source: StoreSource) {
        if source != self.source {
            self.source = source;
            self.copied = None;
            self.next = Instant::now();
        }
    }

    /// Returns the problems by name of the model. An error of the listing concerns all models with
    /// a copy, and before the first listing also the configured ones.
    pub(crate) fn errors(&self) -> BTreeMap<Arc<str>, String> {
        let problems = self.problems.iter();
        let mut errors: BTreeMap<Arc<str>, String> =
            problems.map(|(model, problem)| (model.as_str().into(), problem.clone())).collect();
        if let Some(error) = &self.last_error {
            // A model without a complete version serves nothing with the store either, so an outage
            // must not make the server count it as failed.
            let copied = self.cache.models().into_iter();
            let copied = copied.filter(|model| self.cache.has_version(model)).map(Arc::<str>::from);
            let configured = self.source.policies.keys().chain(&self.source.model).cloned();
            let unknown = configured.filter(|_| self.listed.is_none());
            copied.chain(unknown).for_each(|model| {
                errors.entry(model).or_insert_with(|| error.clone());
            });
        }
        errors
    }

    /// Returns why versions are not copied although nothing failed, by name of the model.
    pub(crate) fn unfinished(&self) -> BTreeMap<Arc<str>, String> {
        let notes = self.unfinished.iter();
        notes.map(|(model, note)| (model.as_str().into(), note.clone())).collect()
    }

    /// Returns the error of the last listing.
    pub(crate) fn listing_error(&self) -> Option<String> {
        self.last_error.clone()
    }

    /// Remembers an error of a listing, and logs it once while it stays the same.
    fn note(&mut self, error: &Error) {
        let text = error.message().to_owned();
        if self.last_error.as_ref() != Some(&text) {
            tracing::warn!(
                store = self.place.shown(),
                %error,
                "the store cannot be listed; copied models continue to serve"
            );
        }
        self.last_error = Some(text);
    }

    /// Lists the store, copies the changes, and sets the time of the next check.
    pub(crate) async fn poll(&mut self, context: &SyncContext) -> Result<SyncOutcome> {
        self.cache.note_followed();
        self.cache.remove_trash();
        let result = self.list_and_copy(context).await;
        // The index of thousands of versions is large, and the next check needs a new one.
        drop(self.contents.take());
        // Not for each check of another store, because all files are read.
        context.usage.set(&self.source.models_dir, self.bytes());
        let changed = result.as_ref().is_ok_and(|outcome| outcome.changed);
        self.pause = next_pause(self.pause, context.config.poll, changed);
        self.next = Instant::now() + self.pause;
        if let Err(error) = &result {
            self.count_failure(context, "list");
            self.note(error);
        }
        result
    }

    /// Lists the store. An empty listing counts only if the store confirms that an object of a copy
    /// was removed, because it removes all copies.
    async fn list(&self) -> Result<Vec<ObjectMeta>> {
        let objects = self.place.list_existing().await?;
        if objects.is_empty()
            && let Some((model, path)) = self.cache.some_file()
        {
            let is_model = self.source.model.is_some();
            let below = if is_model { path } else { format!("{model}/{path}") };
            self.place.confirm_removed(&self.place.key(&below)).await?;
        }
        Ok(objects)
    }

    /// Does the work of [`Follower::poll`].
    async fn list_and_copy(&mut self, context: &SyncContext) -> Result<SyncOutcome> {
        let objects = self.list().await?;
        self.has_listed.store(true, Ordering::Relaxed);
        let labels = StoreLabels { store: self.label() };
        context.metrics.lists.get_or_create(&labels).inc();
        let now = base::unix_time(SystemTime::now());
        context.metrics.list_time.get_or_create(&labels).set(now.as_secs_f64());
        self.last_error = None;
        let listing = group(&objects, &self.place.prefix, self.source.model.as_deref());
        let changed = self.listed.as_ref() != Some(&listing);
        if changed {
            self.note_empty(&listing, objects.len());
        } else {
            self.check_failed(context).await;
            if self.copied.as_ref() == Some(&listing) {
                if self.has_copies(&listing) {
                    return Ok(SyncOutcome::default());
                }
                self.copied = None;
            }
        }
        self.listed = Some(listing.clone());
        self.present.clear();
        let mut outcome = SyncOutcome { changed, ..SyncOutcome::default() };
        // An object that does not answer must not delay the models that can be copied.
        let mut models: Vec<_> = listing.models.iter().collect();
        models.sort_by_key(|(name, _)| self.problems.contains_key(name.as_str()));
        for (name, model) in models {
            let SyncOutcome { pending, failed, .. } = self.sync_model(context, name, model).await;
            outcome.pending |= pending;
            outcome.failed |= failed;
        }
        outcome.pending |= self.remove_missing(&listing);
        self.problems.retain(|model, _| listing.models.contains_key(model));
        self.unfinished.retain(|model, _| listing.models.contains_key(model));
        self.missed_files.retain(|model, _| listing.models.contains_key(model));
        if !outcome.pending {
            // The rest of versions that are not wanted any more.
            self.cache.clear_staging();
            self.cache.set_synced()?;
            self.copied = Some(listing);
        }
        if changed {
            // A check reads whole copies, and a new version may correct the failed one.
            self.check_failed(context).await;
        }
        Ok(outcome)
    }

    /// Returns true if the copies of the last check still have all files of `listing`. Another
    /// program may have removed files of the cache.
    fn has_copies(&self, listing: &StoreListing) -> bool {
        self.present.iter().all(|(model, version)| {
            let versions = listing.models.get(model).map(|model| &model.versions);
            let remote = versions.and_then(|versions| versions.get(version));
            remote.is_none_or(|remote| self.cache.is_whole(model, *version, &remote.files))
        })
    }

    fn count_failure(&self, context: &SyncContext, kind: &'static str) {
        let labels = StoreWorkLabels { store: self.label(), kind };
        context.metrics.failures.get_or_create(&labels).inc();
    }

    /// Copies the wanted versions of a model.
    async fn sync_model(
        &mut self,
        context: &SyncContext,
        name: &str,
        model: &RemoteModel,
    ) -> SyncOutcome {
        self.problems.remove(name);
        let unfinished = self.unfinished.remove(name);
        let outcome = self.sync_versions(context, name, model).await;
        if let Some(note) = self.unfinished.get(name)
            && unfinished.as_ref() != Some(note)
        {
            tracing::info!(model = name, store = self.place.shown(), "{note}");
        }
        outcome
    }

    /// Does the work of [`Follower::sync_model`].
    async fn sync_versions(
        &mut self,
        context: &SyncContext,
        name: &str,
        model: &RemoteModel,
    ) -> SyncOutcome {
        let failure = SyncOutcome { pending: true, failed: true, changed: false };
        let mut outcome = SyncOutcome::default();
        let files = match self.cache.make_model(name) {
            Ok(()) => self.sync_files(name, model).await,
            Err(error) => Err(error),
        };
        match files {
            Ok(is_missed) => outcome.pending |= is_missed,
            Err(error) => {
                self.failed(context, name, None, &error);
                outcome = failure;
            }
        }
        // Without its settings, a model would serve versions that they do not select.
        if !self.has_settings(name, model) {
            return failure;
        }
        let policy = self.policy(name);
        let mut present = 0;
        let mut failed = 0;
        let mut refused = 0;
        for (&version, remote) in model.versions.iter().rev() {
            let wanted = match &policy {
                VersionPolicy::Latest(count) => present < (*count).max(1),
                VersionPolicy::All => true,
                VersionPolicy::Specific(versions) => versions.contains(&version),
            };
            if !wanted {
                continue;
            }
            match self.ensure(context, name, version, remote).await {
                // An earlier version serves in its place.
                Ok(true)
                    if failed < FALLBACKS_MAX && self.needs_fallback(context, name, version) =>
                {
                    failed += 1;
                }
                Ok(true) => {
                    self.present.insert((name.to_owned(), version));
                    present += 1;
                }
                Ok(false) => outcome.pending |= remote.kind() == RemoteKind::Foreign,
                // The version can never be copied, so an earlier version serves.
                Err(error) if error.kind() == ErrorKind::DataLoss => {
                    self.failed(context, name, Some(version), &error);
                    let reason = error.message().to_owned();
                    let damaged = DamagedVersion { stamp: remote.fingerprint(), reason };
                    self.damaged.insert((name.to_owned(), version), damaged);
                }
                Err(error) => {
                    self.failed(context, name, Some(version), &error);
                    outcome = failure;
                    refused += 1;
                    if refused == REFUSED_MAX || !self.continues_after(&error, name, &policy) {
                        return failure;
                    }
                }
            }
        }
        outcome
    }

    /// Returns true if other versions of a model are copied in the same check after `error` of one.
    /// A store that does not answer would be waited for once for each of them.
    fn continues_after(&self, error: &Error, model: &str, policy: &VersionPolicy) -> bool {
        let is_refused =
            matches!(error.kind(), ErrorKind::FailedPrecondition | ErrorKind::NotFound);
        // A lower version must not replace a copied one, because the newest is only refused now.
        let is_selected = !matches!(policy, VersionPolicy::Latest(_));
        is_refused && (is_selected || !self.cache.has_version(model))
    }

    fn failed(&mut self, context: &SyncContext, model: &str, version: Option<u64>, error: &Error) {
        self.count_failure(context, "fetch");
        self.add_problem(model, version, error.message());
        tracing::error!(model, version, %error, "a model in an object store cannot be copied");
    }

    fn add_problem(&mut self, model: &str, version: Option<u64>, reason: &str) {
        let text = match version {
            Some(version) => format!("version {version} cannot be copied: {reason}"),
            None => format!("its files cannot be copied: {reason}"),
        };
        let problem = self.problems.entry(model.to_owned()).or_default();
        if !problem.is_empty() {
            problem.push_str("; ");
        }
        problem.push_str(&text);
    }

    /// Returns the policy of a model from its settings file, else from the server's settings for
    /// it, else from the settings of the root.
    pub(super) fn policy(&self, name: &str) -> VersionPolicy {
        let settings = std::fs::read_to_string(self.cache.model_dir(name).join(SETTINGS_NAME));
        let own = settings.ok().and_then(|text| lifecycle::version_policy(&text));
        own.or_else(|| self.source.policies.get(name).cloned())
            .unwrap_or_else(|| self.source.policy.clone())
    }

    /// Copies the files beside a model's versions. Removes settings that two listings in a row
    /// lack. Without them, a model would serve other versions. Removes other files, such as
    /// recorded requests, at once. Returns true if settings are missed for the first time.
    ///
    /// # Errors
    /// The error of the first file that cannot be copied. The other files are copied nevertheless.
    async fn sync_files(&mut self, name: &str, model: &RemoteModel) -> Result<bool> {
        let before = self.missed_files.remove(name).unwrap_or_default();
        let listed: BTreeSet<&str> = model.files.iter().map(|file| file.path.as_str()).collect();
        let absent = self.cache.files(name).into_iter();
        // Settings lie in the model's directory itself.
        let absent = absent.filter(|path| !listed.contains(path.as_str()) && !path.contains('/'));
        let missed: BTreeSet<String> = absent.filter(|path| !before.contains(path)).collect();
        let kept: Vec<&str> =
            listed.iter().copied().chain(missed.iter().map(String::as_str)).collect();
        self.cache.retain_files(name, &kept);
        let is_missed = !missed.is_empty();
        if is_missed {
            self.missed_files.insert(name.to_owned(), missed);
        }
        // The versions wait for the settings, so these come first.
        let mut files: Vec<&RemoteFile> = model.files.iter().collect();
        files.sort_by_key(|file| file.path != SETTINGS_NAME);
        let mut result = Ok(is_missed);
        for file in files {
            let copied = self.sync_file(name, file).await;
            if let Err(error) = copied
                && result.is_ok()
            {
                result = Err(error);
            }
        }
        result
    }

    /// Copies a file beside a model's versions if it is not here.
    async fn sync_file(&self, model: &str, file: &RemoteFile) -> Result<()> {
        if file.bytes > FILE_BYTES_MAX {
            tracing::warn!(
                model,
                file = file.path,
                "it is not copied, because it is larger than {}",
                format_bytes(FILE_BYTES_MAX)
            );
            return Ok(());
        }
        let stamp = fingerprint(std::slice::from_ref(file));
        if self.cache.has_file(model, &file.path, &stamp) {
            return Ok(());
        }
        let content = part(&self.place, file, 0..file.bytes).await?;
        self.cache.put_file(model, &file.path, &content, &stamp)
    }

    /// Returns true if the listed settings of a model are here, or if it has none that are copied.
    fn has_settings(&self, name: &str, model: &RemoteModel) -> bool {
        let settings = model.files.iter().find(|file| file.path == SETTINGS_NAME);
        settings.is_none_or(|file| {
            let stamp = fingerprint(std::slice::from_ref(file));
            file.bytes > FILE_BYTES_MAX || self.cache.has_file(name, &file.path, &stamp)
        })
    }

    /// Copies a version if it is complete and not here. Returns true if it is here afterwards.
    async fn ensure(
        &mut self,
        context: &SyncContext,
        model: &str,
        version: u64,
        remote: &RemoteVersion,
    ) -> Result<bool> {
        let stamp = remote.fingerprint();
        if self.cache.has(model, version, &stamp)?
            && self.cache.is_whole(model, version, &remote.files)
        {
            return Ok(true);
        }
        let damaged = self.damaged.get(&(model.to_owned(), version));
        if let Some(damaged) = damaged.filter(|damaged| damaged.stamp == stamp) {
            let reason = damaged.reason.clone();
            self.add_problem(model, Some(version), &reason);
            return Ok(false);
        }
        if remote.kind() == RemoteKind::Foreign && !self.is_settled(context, model, version, stamp)
        {
            self.note_unfinished(model, version, remote.kind(), context.config.settle);
            return Ok(false);
        }
        if remote.kind() != RemoteKind::Unfinished {
            self.make_room(context, model, version, remote.bytes())?;
        }
        let labels = StoreLabels { store: self.label() };
        let fetched = VersionFetch {
            place: &self.place,
            cache: &self.cache,
            contents: &self.contents,
            pacer: &context.pacer,
            running: &context.fetches,
            model,
            version,
            remote,
            count: &|bytes| {
                context.metrics.fetched_bytes.get_or_create(&labels).inc_by(bytes);
            },
        };
        let started = Instant::now();
        let fetched = fetched.run().await.inspect_err(|error| {
            if error.kind() == ErrorKind::StorageFull {
                // Others may need the rest of the disk more than this fetch.
                self.cache.remove_staging(model, version);
            }
        });
        let fetched = fetched.map_err(|error| match error.kind() {
            ErrorKind::StorageFull => self.disk_full(&error.to_string()),
            _ => error,
        });
        let Some(bytes) = fetched? else {
            self.note_unfinished(model, version, remote.kind(), context.config.settle);
            return Ok(false);
        };
        context.metrics.reused_bytes.get_or_create(&labels).inc_by(bytes.reused);
        tracing::info!(
            model,
            version,
            store = self.place.shown(),
            seconds = started.elapsed().as_secs_f64(),
            "copied: {} fetched, {} from cached versions",
            format_bytes(bytes.fetched),
            format_bytes(bytes.reused)
        );
        Ok(true)
    }

    /// Returns true if the listings of a version without a manifest have had the same `stamp` for
    /// the settle time.
    fn is_settled(
        &mut self,
        context: &SyncContext,
        model: &str,
        version: u64,
        stamp: String,
    ) -> bool {
        let now = Instant::now();
        let seen = self.settling.entry((model.to_owned(), version));
        let seen = seen.or_insert_with(|| SettlingVersion { stamp: stamp.clone(), since: now });
        if seen.stamp != stamp {
            *seen = SettlingVersion { stamp, since: now };
        }
        // One listing never settles a version, even if the settle time is 0.
        seen.since < now && now - seen.since >= context.config.settle
    }

    /// Removes copies that two listings in a row lack. Returns true if a copy is missed for the
    /// first time.
    fn remove_missing(&mut self, listing: &StoreListing) -> bool {
        let mut missed = BTreeSet::new();
        for copy in self.cache.versions() {
            let model = listing.models.get(&copy.model);
            if model.is_some_and(|model| model.versions.contains_key(&copy.version)) {
                continue;
            }
            let key = (copy.model, copy.version);
            if !self.missed.contains(&key) {
                missed.insert(key);
                continue;
            }
            match self.cache.remove(&key.0, key.1) {
                Ok(()) => {
                    tracing::info!(
                        model = key.0,
                        version = key.1,
                        "the copy is removed, because the store does not have the version any more"
                    )
                }
                Err(error) => tracing::warn!(%error, "a copy cannot be removed"),
            }
        }
        let is_empty = |model: &String| {
            !listing.models.contains_key(model) && !missed.iter().any(|(name, _)| name == model)
        };
        self.cache.models().iter().filter(|model| is_empty(model)).for_each(|model| {
            self.cache.remove_model(model);
        });
        self.missed = missed;
        !self.missed.is_empty()
    }
}
