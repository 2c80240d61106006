//! Models in object stores: the stores of a configuration, and the thread that copies them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base::Result;
use lifecycle::{Catalog, ConfigSet, LifecycleState};
use model_store::{
    ListingRequests, MirrorConfig, MirrorHooks, MirrorThread, StoreMirror, StoreSource,
};

use crate::compose::Server;
use crate::config::Config;
use crate::first_copies::FirstCopies;

/// Time for which the listing of a version without a manifest must stay the same.
const SETTLE: Duration = Duration::from_secs(5);
/// Time for which the copies of a store stay after no server follows it any more. A configuration
/// that is restored within this time finds them.
const KEEP_UNUSED: Duration = Duration::from_secs(7 * 86_400);

/// The stores of a server that has not started yet. Their thread runs even without stores, since a
/// changed configuration can add some.
pub(crate) struct ModelStores {
    mirror: StoreMirror,
}

/// Connections of a server with the thread of its stores.
#[derive(Clone)]
pub(crate) struct StoreLinks {
    pub(crate) copies: FirstCopies,
    pub(crate) listings: ListingRequests,
}

impl ModelStores {
    /// Opens the stores of the configuration. Does not connect.
    ///
    /// # Errors
    /// Returns the errors of [`StoreMirror::open`].
    pub(crate) fn open(config: &Config) -> Result<ModelStores> {
        let models = &config.models;
        let set = ConfigSet { models: models.models.clone(), roots: models.roots.clone() };
        let mirror = MirrorConfig {
            stores_dir: models.cache_dir.with_file_name("stores"),
            keep_unused: KEEP_UNUSED,
            options: models.stores.options.clone(),
            poll: models.poll,
            settle: SETTLE,
            bytes_max: models.stores.cache_bytes_max,
            rate: config.memory.load_rate,
        };
        Ok(ModelStores { mirror: StoreMirror::open(mirror, &sources(&set))? })
    }

    /// Returns the connections with the thread that [`ModelStores::follow`] starts.
    pub(crate) fn links(&self) -> StoreLinks {
        StoreLinks {
            copies: FirstCopies::new(self.mirror.first_copy()),
            listings: self.mirror.listing_requests(),
        }
    }

    /// Copies the stores that were never copied, then follows the stores of the server's current
    /// configuration.
    ///
    /// # Errors
    /// `ResourceExhausted` if the thread cannot be started.
    pub(crate) fn follow(self, server: &Server) -> Result<MirrorThread> {
        let configurator = server.models.configurator.clone();
        let lifecycle = server.core.lifecycle.clone();
        let in_use = move |models_dir: &Path, model: &str, version: u64| {
            is_in_use(lifecycle.catalog(), models_dir, model, version)
        };
        let lifecycle = server.core.lifecycle.clone();
        let has_failed =
            move |model: &str, version: u64| has_failed(lifecycle.catalog(), model, version);
        let lifecycle = server.core.lifecycle.clone();
        let hooks = MirrorHooks {
            sources: Box::new(move || sources(&configurator.current())),
            in_use: Box::new(in_use),
            has_failed: Box::new(has_failed),
            report: Box::new(move |report| lifecycle.report_sources(report)),
        };
        self.mirror.follow(hooks, server.core.metrics.stores.clone())
    }
}

/// Returns true if a version of a model is being loaded or serves from `models_dir`, or waits for
/// its last request.
fn is_in_use(catalog: &Catalog, models_dir: &Path, model: &str, version: u64) -> bool {
    use LifecycleState::{Discovered, Failed, Ready, Released};
    let status = catalog.status(model);
    let status = status.as_ref().and_then(|status| status.version(version));
    match status.map(|status| status.state) {
        None | Some(Discovered | Released | Failed) => false,
        // A version of the same name and number may serve from the copies of another store.
        Some(Ready) => {
            let Ok(servable) = catalog.get(model, Some(version)) else { return true };
            servable.dir.as_ref().is_none_or(|dir| dir.starts_with(models_dir))
        }
        Some(_) => true,
    }
}

/// Returns true if a version has failed, so that an earlier one should serve.
fn has_failed(catalog: &Catalog, model: &str, version: u64) -> bool {
    let status = catalog.status(model);
    let status = status.as_ref().and_then(|status| status.version(version));
    status.is_some_and(|status| status.state == LifecycleState::Failed)
}

/// Returns the stores of `set`.
fn sources(set: &ConfigSet) -> Vec<StoreSource> {
    let mut sources = Vec::new();
    for root in &set.roots {
        let Some(url) = &root.store else { continue };
        let inside = set.models.iter().filter(|model| model.base_path.parent() == Some(&root.dir));
        let policies: BTreeMap<_, _> =
            inside.map(|model| (model.name.clone(), model.policy.clone())).collect();
        let policy = root.policy.clone();
        sources.push(StoreSource { policy, policies, ..StoreSource::new(url, &root.dir, None) });
    }
    for model in &set.models {
        let Some(url) = &model.store else { continue };
        let name = model.base_path.file_name().map(|name| name.to_string_lossy().as_ref().into());
        let policy = model.policy.clone();
        sources.push(StoreSource { policy, ..StoreSource::new(url, &model.base_path, name) });
    }
    sources
}

#[cfg(test)]
mod tests {
    use lifecycle::{ModelConfig, ModelRoot, VersionPolicy};

    use super::*;

    #[test]
    fn stores_come_from_the_configuration() {
        let root =
            ModelRoot { store: Some("s3://b/models".into()), ..ModelRoot::new("/c/r/models") };
        let mut inside = ModelConfig::new("ctr", "/c/r/models/ctr");
        inside.policy = VersionPolicy::All;
        let mut single = ModelConfig::new("x", "/c/x/models/x");
        single.store = Some("s3://b/x".into());
        let local = ModelConfig::new("y", "/local/y");
        let set = ConfigSet {
            models: vec![inside, single, local],
            roots: vec![root, ModelRoot::new("/local")],
        };
        let found = sources(&set);
        assert_eq!(found.len(), 2);
        assert_eq!(&*found[0].url, "s3://b/models");
        assert_eq!(found[0].models_dir, Path::new("/c/r/models"));
        assert_eq!(found[0].policies["ctr"], VersionPolicy::All);
        assert_eq!(found[1].models_dir, Path::new("/c/x/models"));
        assert_eq!(found[1].model.as_deref(), Some("x"));
    }
}
