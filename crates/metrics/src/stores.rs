//! Metrics of models in object stores.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::{KindLabels, LevelGauge, SecondsGauge};

/// Label of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StoreLabels {
    /// URL without query and password.
    pub store: Arc<str>,
}

/// A store and a kind of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StoreWorkLabels {
    /// URL without query and password.
    pub store: Arc<str>,
    /// "list" or "fetch".
    pub kind: &'static str,
}

/// Metrics of models in object stores. Clones share their values.
#[derive(Clone, Default)]
pub struct StoreMetrics {
    /// Bytes received.
    pub fetched_bytes: Family<StoreLabels, Counter>,
    /// Bytes of new versions that were copied from cached ones.
    pub reused_bytes: Family<StoreLabels, Counter>,
    /// Listings that succeeded.
    pub lists: Family<StoreLabels, Counter>,
    /// Time of the last successful listing, since the epoch.
    pub list_time: Family<StoreLabels, SecondsGauge>,
    /// Failed listings and fetches.
    pub failures: Family<StoreWorkLabels, Counter>,
    /// Local copies: "used", "max".
    pub cache_bytes: Family<KindLabels, LevelGauge>,
}

/// Kinds of work that can fail.
const WORK: [&str; 2] = ["list", "fetch"];

impl StoreMetrics {
    /// Adds the values for `store` to `other`.
    pub fn add_to(&self, other: &StoreMetrics, store: &Arc<str>) {
        let labels = StoreLabels { store: store.clone() };
        for (from, to) in [
            (&self.fetched_bytes, &other.fetched_bytes),
            (&self.reused_bytes, &other.reused_bytes),
            (&self.lists, &other.lists),
        ] {
            let count = from.get_or_create(&labels).get();
            to.get_or_create(&labels).inc_by(count);
        }
        for kind in WORK {
            let labels = StoreWorkLabels { store: store.clone(), kind };
            let count = self.failures.get_or_create(&labels).get();
            other.failures.get_or_create(&labels).inc_by(count);
        }
        let time = self.list_time.get_or_create(&labels).get();
        other.list_time.get_or_create(&labels).set(time);
    }

    /// Removes the series of a store that is not followed any more.
    pub fn forget_store(&self, store: &Arc<str>) {
        let labels = StoreLabels { store: store.clone() };
        self.fetched_bytes.remove(&labels);
        self.reused_bytes.remove(&labels);
        self.lists.remove(&labels);
        self.list_time.remove(&labels);
        for kind in WORK {
            self.failures.remove(&StoreWorkLabels { store: store.clone(), kind });
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register_with_unit(
            "store_fetched",
            "Bytes received from object stores of models",
            Unit::Bytes,
            self.fetched_bytes.clone(),
        );
        r.register_with_unit(
            "store_reused",
            "Bytes of new versions in object stores that were copied from cached versions instead",
            Unit::Bytes,
            self.reused_bytes.clone(),
        );
        r.register("store_lists", "Listings of object stores of models", self.lists.clone());
        r.register_with_unit(
            "store_list_time",
            "Time of the last successful listing, since the epoch",
            Unit::Seconds,
            self.list_time.clone(),
        );
        r.register(
            "store_failures",
            "Failed listings and fetches of object stores of models",
            self.failures.clone(),
        );
        r.register_with_unit(
            "store_cache",
            "Local copies of models in object stores, and their limit",
            Unit::Bytes,
            self.cache_bytes.clone(),
        );
    }
}
