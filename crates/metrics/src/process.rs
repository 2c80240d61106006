//! Figures of the process under the names that Prometheus's client libraries use, without a prefix.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Registry, Unit};

use crate::{LevelGauge, SecondsGauge};

/// Figures of the process.
pub struct ProcessMetrics {
    pub(crate) registry: Registry,
    cpu_seconds: Counter<f64, AtomicU64>,
    /// Resident memory in bytes.
    pub resident_bytes: LevelGauge,
    /// Virtual memory in bytes.
    pub virtual_bytes: LevelGauge,
    /// Open file descriptors.
    pub open_descriptors: LevelGauge,
    /// Limit of open file descriptors.
    pub descriptors_max: LevelGauge,
    /// Threads that exist now.
    pub threads: LevelGauge,
    /// Start of the process in seconds since the epoch.
    pub start_time: SecondsGauge,
}

impl ProcessMetrics {
    /// Sets the processor time that the process has used, in seconds.
    pub fn set_cpu_seconds(&self, seconds: f64) {
        self.cpu_seconds.inner().store(seconds.to_bits(), Ordering::Relaxed);
    }
}

impl Default for ProcessMetrics {
    fn default() -> Self {
        let mut metrics = ProcessMetrics {
            registry: Registry::default(),
            cpu_seconds: Counter::default(),
            resident_bytes: LevelGauge::default(),
            virtual_bytes: LevelGauge::default(),
            open_descriptors: LevelGauge::default(),
            descriptors_max: LevelGauge::default(),
            threads: LevelGauge::default(),
            start_time: SecondsGauge::default(),
        };
        metrics.register();
        metrics
    }
}

impl ProcessMetrics {
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register_with_unit(
            "process_cpu",
            "Processor time of the process",
            Unit::Seconds,
            self.cpu_seconds.clone(),
        );
        r.register_with_unit(
            "process_resident_memory",
            "Resident memory of the process",
            Unit::Bytes,
            self.resident_bytes.clone(),
        );
        r.register_with_unit(
            "process_virtual_memory",
            "Virtual memory of the process",
            Unit::Bytes,
            self.virtual_bytes.clone(),
        );
        r.register("process_open_fds", "Open file descriptors", self.open_descriptors.clone());
        r.register(
            "process_max_fds",
            "Limit of open file descriptors",
            self.descriptors_max.clone(),
        );
        r.register("process_threads", "Threads of the process", self.threads.clone());
        r.register_with_unit(
            "process_start_time",
            "Start of the process since the epoch",
            Unit::Seconds,
            self.start_time.clone(),
        );
    }
}
