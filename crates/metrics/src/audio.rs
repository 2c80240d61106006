//! Metrics of audio recognition.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::{LevelGauge, ModelLabels, STATUSES};

/// A recogniser and the outcome of its audio.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AudioLabels {
    /// Name of the recogniser, which is its model's. Empty if a request named none that exists.
    pub recogniser: Arc<str>,
    /// "ok", "partial" (something in it was damaged) or the error kind in snake case.
    pub outcome: &'static str,
}

/// Metrics of audio recognition.
#[derive(Default)]
pub struct AudioMetrics {
    /// Finished recordings.
    pub ended: Family<AudioLabels, Counter>,
    /// Seconds of processed sound.
    pub seconds: Family<ModelLabels, Counter<f64, AtomicU64>>,
    /// Recordings in progress.
    pub active: LevelGauge,
}

impl AudioMetrics {
    /// Removes the series of a removed model.
    pub(crate) fn forget_model(&self, model: &Arc<str>) {
        self.seconds.remove(&ModelLabels { model: model.clone() });
        for outcome in STATUSES.into_iter().chain(["partial"]) {
            self.ended.remove(&AudioLabels { recogniser: model.clone(), outcome });
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register(
            "recordings",
            "Finished recordings by outcome: ok, partial, or an error",
            self.ended.clone(),
        );
        r.register_with_unit(
            "recording",
            "Processed audio by the model of the recogniser",
            Unit::Seconds,
            self.seconds.clone(),
        );
        r.register("recordings_active", "Recordings in progress", self.active.clone());
    }
}
