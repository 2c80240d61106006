//! Names, descriptions and units under which the registry exports each metric.

use prometheus_client::registry::Unit;

use crate::Metrics;

impl Metrics {
    pub(super) fn register(&mut self) {
        let r = &mut self.registry;
        r.register("requests", "Answered requests", self.requests.clone());
        r.register_with_unit(
            "request",
            "Latency of requests with a result, by phase",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        r.register(
            "slow_requests",
            "Requests above the 99th percentile of their model, by the largest cause",
            self.slow_requests.clone(),
        );
        r.register(
            "refused",
            "Requests refused before they were queued, by the limit that was reached",
            self.refused.clone(),
        );
        r.register_with_unit(
            "window_latency",
            "Quantiles of the total latency over the last 10 seconds; no series without a result",
            Unit::Seconds,
            self.window_seconds.clone(),
        );
        r.register(
            "window_requests_per_second",
            "Rate of requests with a result over the last 10 seconds",
            self.window_rate.clone(),
        );
        r.register_with_unit(
            "parameter",
            "Parameter bytes by version and memory: the slot pool (dram) or the heap",
            Unit::Bytes,
            self.parameter_bytes.clone(),
        );
        r.register_with_unit("pool", "Slot pool of parameters: its limit (max), memory taken from the system (backed) and in use (used)", Unit::Bytes, self.pool_bytes.clone());
        r.register_with_unit(
            "process",
            "Memory of the process, of its heap, and of all worker processes (workers)",
            Unit::Bytes,
            self.process_bytes.clone(),
        );
        r.register("model_state", "1 for the state each version is in", self.model_state.clone());
        r.register(
            "failed_version",
            "1 for a version that failed; 0 once a newer version of its model serves",
            self.failed_version.clone(),
        );
        self.register_cpu_limit();
        self.register_connections();
        self.register_scans();
        self.register_loads();
        self.register_workers();
        self.register_queues();
    }

    fn register_cpu_limit(&mut self) {
        let r = &mut self.registry;
        r.register(
            "cpu_limit_cores",
            "Cores that the quota of the control group allows; 0 without a limit",
            self.cpu_limit_cores.clone(),
        );
        r.register_with_unit(
            "cpu_throttled",
            "Time for which the CPU quota stopped the threads of the control group, summed over cores",
            Unit::Seconds,
            self.cpu_throttled_seconds.clone(),
        );
    }

    fn register_connections(&mut self) {
        let r = &mut self.registry;
        r.register("connections", "Open connections by listener", self.connections.clone());
        r.register(
            "connections_ended",
            "Connections ended for too many HTTP/2 control frames, by the kind of frame; h2_limit is another limit of HTTP/2",
            self.connections_ended.clone(),
        );
        r.register(
            "tls_handshakes",
            "TLS handshakes by outcome: ok, failed, timeout, plaintext (the client speaks no TLS) and tls_at_plain_port",
            self.tls_handshakes.clone(),
        );
        r.register(
            "access_reloads",
            "Reads of changed certificate and key files, by outcome (ok, failed)",
            self.access_reloads.clone(),
        );
        r.register(
            "file_descriptors",
            "Open file descriptors, and their limit",
            self.descriptors.clone(),
        );
        r.register("threads", "Threads by kind", self.threads.clone());
    }

    fn register_scans(&mut self) {
        let r = &mut self.registry;
        r.register_with_unit(
            "scan_time",
            "Time of the last complete scan of a directory of models, since the epoch",
            Unit::Seconds,
            self.scan_time.clone(),
        );
    }

    fn register_workers(&mut self) {
        let r = &mut self.registry;
        r.register(
            "request_log",
            "Sampled requests for the request log: written, dropped because the queue was full or the record is larger than a file may be, or failed",
            self.request_log.clone(),
        );
        r.register(
            "trace_spans",
            "Spans of traces: exported, dropped because a queue was full, or failed because the collector did not answer or refused them",
            self.trace_spans.clone(),
        );
        r.register(
            "worker_restarts",
            "Worker processes of isolated models that were started again after they had ended",
            self.worker_restarts.clone(),
        );
        r.register_with_unit(
            "worker_restart_last",
            "Time from the last end of a worker process until the next one could answer requests",
            Unit::Seconds,
            self.worker_restart_last_seconds.clone(),
        );
        r.register(
            "worker_spares",
            "Spare worker processes: started, with an open library (started), used in place of a process that ended (used), or ended unused or not started (failed)",
            self.worker_spares.clone(),
        );
    }

    fn register_loads(&mut self) {
        let r = &mut self.registry;
        r.register("swaps", "Versions published in place of another", self.swaps.clone());
        r.register("load_failures", "Loads that failed, each try", self.load_failures.clone());
        r.register(
            "config_reloads",
            "Changes of the configuration of models while serving, by outcome (ok, failed)",
            self.config_reloads.clone(),
        );
        r.register_with_unit(
            "config_reload_time",
            "Time of the last change of the configuration by outcome, since the epoch",
            Unit::Seconds,
            self.config_reload_time.clone(),
        );
        r.register(
            "settings_taken_over",
            "Changes of settings that ready versions applied without a load",
            self.settings_taken_over.clone(),
        );
        r.register_with_unit(
            "swap_last",
            "Duration of the last swap's steps",
            Unit::Seconds,
            self.swap_last_seconds.clone(),
        );
        r.register_with_unit(
            "swap",
            "Total duration of swap steps",
            Unit::Seconds,
            self.swap_seconds.clone(),
        );
        r.register(
            "loader_minor_faults",
            "Page faults of loads that succeeded",
            self.loader_minor_faults.clone(),
        );
        r.register_with_unit(
            "loader_cpu",
            "Processor time of loads that succeeded",
            Unit::Seconds,
            self.loader_cpu_seconds.clone(),
        );
        r.register(
            "loads_hurried",
            "Loads that succeeded after they continued at ordinary priority, because they starved at idle priority",
            self.loads_escalated.clone(),
        );
        r.register(
            "loads_abandoned",
            "Loads whose threads were abandoned, because they did not end after they were stopped",
            self.loads_abandoned.clone(),
        );
        r.register_with_unit(
            "loader_read",
            "Parameter bytes read from storage by loads that succeeded",
            Unit::Bytes,
            self.loader_read_bytes.clone(),
        );
        r.register_with_unit(
            "loader_shared",
            "Parameter bytes shared with a live version by loads that succeeded",
            Unit::Bytes,
            self.loader_shared_bytes.clone(),
        );
    }

    fn register_queues(&mut self) {
        let r = &mut self.registry;
        r.register(
            "queue",
            "Requests of all models that wait for a worker (kind=length), and the default limit of one model (kind=max)",
            self.queue.clone(),
        );
        r.register_with_unit(
            "request_memory",
            "Memory of requests in flight: used now (kind=used), allowed (kind=max), and the most so far (kind=peak)",
            Unit::Bytes,
            self.request_memory_bytes.clone(),
        );
        r.register(
            "stream_pauses",
            "Pauses in the reading of gRPC streams of requests, by the limit that the requests in flight reached",
            self.stream_pauses.clone(),
        );
        r.register(
            "decoded",
            "Large requests and answers that decoder threads handled, by step (unpack, decode, encode)",
            self.decoded.clone(),
        );
        r.register(
            "decode_queue",
            "Large requests and answers that wait for a decoder thread",
            self.decode_queue.clone(),
        );
        self.scheduling.register(r);
        self.rollouts.register(r);
        self.updates.register(r);
        self.images.register(r);
        self.keys.register(r);
        self.recordings.register(r);
        self.stores.register(r);
        self.backups.register(r);
        self.cluster.register(r);
    }
}
