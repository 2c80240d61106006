//! Warnings about settings without effect. They are not errors, because the same file may be for
//! other servers too, and a model's own file can merge requests.

use command_line::values::TimeSpan;
use engine::{ScheduleFile, ScheduleMode};
use server::ListenerConfig;

use super::ServeSettings;
use crate::serve::options::{GpuUse, ParameterPlacementName, ScheduleFlags};
use crate::serve::traces;

/// Returns the names of the stated settings for all models that concern merged requests only.
pub(super) fn batch_settings(flags: &ScheduleFlags, file: &ScheduleFile) -> Vec<&'static str> {
    let settings = [
        ("--max-batch", flags.max_batch.is_some()),
        ("--max-queue-delay", flags.max_queue_delay.is_some()),
        ("[schedule] max-batch", file.max_batch.is_some()),
        ("[schedule] max-queue-delay", file.max_queue_delay.is_some()),
        ("[schedule] preferred-batch-sizes", file.preferred_batch_sizes.is_some()),
        ("[schedule] allowed-batch-sizes", file.allowed_batch_sizes.is_some()),
        ("[schedule] always-merge", file.always_merge.is_some()),
    ];
    stated(&settings)
}

/// Returns the names of the settings that are stated.
fn stated(settings: &[(&'static str, bool)]) -> Vec<&'static str> {
    settings.iter().filter(|(_, is_stated)| *is_stated).map(|(name, _)| *name).collect()
}

impl ServeSettings {
    /// Returns a warning if settings of batches are stated, and no model of these settings merges
    /// requests.
    pub(super) fn unused_batch_settings(&self) -> Option<String> {
        let mut modes = self
            .models
            .values()
            .map(|model| model.options.schedule.apply(&self.schedule).mode)
            .chain([self.schedule.mode]);
        if self.batch_settings.is_empty() || modes.any(|mode| mode == ScheduleMode::Async) {
            return None;
        }
        Some(format!(
            "{}: no effect on models with mode = \"sync\", the default, which merge no requests; \
             --runtime-threads N or mode = \"async\" in [schedule] merges them",
            self.batch_settings.join(", ")
        ))
    }

    /// Returns warnings about timeouts of models above the longest deadline of any request.
    pub(super) fn long_timeouts(&self) -> Vec<String> {
        let default = ListenerConfig::default().request_timeout;
        let most = self.server.request_timeout.map_or(default, |TimeSpan(time)| time);
        let models = self.models.iter().filter(|(_, model)| {
            let own = &model.options.schedule;
            own.timeout.is_some() || own.priorities.is_some()
        });
        let of_models = models.map(|(name, model)| {
            let schedule = model.options.schedule.apply(&self.schedule);
            (format!("[models.{name}.schedule]"), schedule)
        });
        let all = std::iter::once(("[schedule]".to_owned(), self.schedule.clone()));
        all.chain(of_models)
            .filter_map(|(section, schedule)| {
                let levels = schedule.priorities.iter().map(|level| level.timeout);
                let longest = levels.chain([schedule.timeout]).flatten().max()?;
                (longest > most).then(|| {
                    format!(
                        "{section}: a timeout of {longest:?} has the effect of {most:?}, the \
                         maximum; raise --request-timeout"
                    )
                })
            })
            .collect()
    }

    /// Returns a warning if settings of the slot pool are stated, and parameters are in the heap.
    pub(crate) fn unused_pool_settings(&self) -> Option<String> {
        let memory = &self.memory;
        let settings =
            [("--pool", memory.pool.is_some()), ("--swap-reserve", memory.swap_reserve.is_some())];
        let stated = stated(&settings);
        if stated.is_empty() || memory.parameter_home != Some(ParameterPlacementName::Heap) {
            return None;
        }
        Some(format!(
            "{}: no effect with --parameter-home heap, which uses no pool",
            stated.join(", ")
        ))
    }

    /// Returns a warning if OpenTelemetry's variables name an exporter that Millpond does not have.
    pub(crate) fn unknown_exporter(&self) -> Option<String> {
        traces::unknown_exporter(&self.server)
    }

    /// Returns a warning if settings of collections are stated, and the server has no collections,
    /// or holds no shards of its cluster.
    pub(crate) fn unused_search_settings(&self) -> Option<String> {
        let search = &self.search;
        let in_cluster = self.cluster.cluster_store.is_some();
        let settings = [
            ("--search-memory", search.search_memory.is_some()),
            ("--search-cache", search.search_cache.is_some()),
            ("--search-disk-reserve", search.search_disk_reserve.is_some()),
            ("--search-threads", search.search_threads.is_some()),
            ("--search-medium", search.search_medium.is_some()),
            ("--search-codes", search.search_codes.is_some()),
            ("--search-build-threads", search.search_build_threads.is_some()),
            ("--search-merge-segments", search.search_merge_segments.is_some()),
            ("--search-segment-rows", search.search_segment_rows.is_some()),
            ("--gpu", search.gpu == Some(GpuUse::Auto)),
            // All nodes of a cluster use these two.
            ("--search-background-rate", !in_cluster && search.search_background_rate.is_some()),
            ("--backup-rate", !in_cluster && search.backup_rate.is_some()),
        ];
        let stated = stated(&settings);
        let reason = if self.has_no_collections() {
            "this server has no collections; name their directory with --collections-dir DIR"
        } else if in_cluster && !self.cluster.has_role("search") {
            "this node does not have the role search; remove them, or add it to --cluster-roles"
        } else {
            return None;
        };
        (!stated.is_empty()).then(|| format!("{}: no effect: {reason}", stated.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use command_line::values::ByteSize;
    use engine::PriorityOptions;

    use super::*;
    use crate::serve::options::{MemoryOptions, SearchOptions};

    #[test]
    fn settings_of_batches_need_a_model_that_merges() {
        let flags = ScheduleFlags { max_batch: Some(64), ..ScheduleFlags::default() };
        let file = ScheduleFile { always_merge: Some(true), ..ScheduleFile::default() };
        let mut settings = ServeSettings {
            batch_settings: batch_settings(&flags, &file),
            ..ServeSettings::default()
        };
        let warning = settings.unused_batch_settings().unwrap();
        assert!(warning.starts_with("--max-batch, [schedule] always-merge: "), "{warning}");
        settings.schedule.mode = ScheduleMode::Async;
        assert_eq!(settings.unused_batch_settings(), None);
        assert_eq!(ServeSettings::default().unused_batch_settings(), None);
    }

    #[test]
    fn a_timeout_above_the_maximum_is_named() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let mut settings = ServeSettings::default();
        settings.schedule.timeout = Some(minutes(1));
        assert_eq!(settings.long_timeouts(), [""; 0]);
        let level = PriorityOptions { timeout: Some(minutes(2)), ..PriorityOptions::default() };
        settings.schedule.priorities.push(level);
        let warnings = settings.long_timeouts();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("[schedule]: a timeout of 120s has the effect of 60s"));
        settings.server.request_timeout = Some(TimeSpan(minutes(2)));
        assert_eq!(settings.long_timeouts(), [""; 0]);
    }

    #[test]
    fn settings_of_the_pool_need_a_pool() {
        let memory = MemoryOptions {
            parameter_home: Some(ParameterPlacementName::Heap),
            pool: Some(ByteSize(1 << 30)),
            ..MemoryOptions::default()
        };
        let mut settings = ServeSettings { memory, ..ServeSettings::default() };
        let warning = settings.unused_pool_settings().unwrap();
        assert!(warning.starts_with("--pool: no effect with --parameter-home heap"), "{warning}");
        settings.memory.parameter_home = None;
        assert_eq!(settings.unused_pool_settings(), None);
    }

    #[test]
    fn settings_of_collections_need_collections() {
        let search = SearchOptions {
            collections_dir: Some("none".into()),
            search_memory: Some(ByteSize(1 << 30)),
            gpu: Some(GpuUse::Auto),
            ..SearchOptions::default()
        };
        let mut settings = ServeSettings { search, ..ServeSettings::default() };
        let warning = settings.unused_search_settings().unwrap();
        assert!(warning.starts_with("--search-memory, --gpu: no effect"), "{warning}");
        settings.cluster.cluster_store = Some("/cluster".to_owned());
        settings.cluster.cluster_roles = Some("root, ingest".to_owned());
        let warning = settings.unused_search_settings().unwrap();
        assert!(warning.contains("this node does not have the role search"), "{warning}");
        settings.cluster.cluster_roles = None;
        settings.search.collections_dir = Some("/collections".into());
        assert_eq!(settings.unused_search_settings(), None);
    }
}
