//! The settings in force, by the keys of the settings file, for the page. No secret is among them.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use console::{OfferedCalls, Setting, SettingsSection, ShownConfig, ShownDirectory};
use lifecycle::{ConfigSet, ModelRoot};
use model_store::without_secrets;

use crate::config::Config;
use crate::http::openapi;

/// Returns the parts of `config` and of the composed server that the page shows.
pub(crate) fn shown_config(config: &Config, engine: String) -> ShownConfig {
    let roots = config.models.roots.iter().map(|root| root.dir.as_path());
    let local = config.models.roots.iter().find(|root| root.store.is_none());
    let root = local.map(|root| absolute(&root.dir).display().to_string());
    let shown = |name, path: &Path| ShownDirectory { name, path: absolute(path) };
    let mut directories: Vec<ShownDirectory> = roots.map(|path| shown("models", path)).collect();
    directories.extend(config.models.models.iter().map(|model| shown("models", &model.base_path)));
    directories.extend(config.search.directory.as_deref().map(|path| shown("collections", path)));
    directories.push(shown("converted models and copies", &config.models.cache_dir));
    directories.dedup_by(|a, b| a.path == b.path);
    directories.truncate(DIRECTORIES_MAX);
    ShownConfig {
        name: crate::NAME,
        engine,
        directories,
        root,
        gpu: config.search.gpu.is_some(),
        calls: || *CALLS,
    }
}

static CALLS: LazyLock<OfferedCalls> = LazyLock::new(|| {
    let document = openapi::document();
    let offered = |path: &str| document["paths"].get(path).is_some();
    OfferedCalls { rollout: offered("/v2/models/{model}/rollout"), slow: offered("/v2/slow") }
});

/// Key of the directories of models.
const ROOTS: &str = "roots";
/// Key of the number of models by name.
const MODELS: &str = "models by name";
/// Maximum directories whose disks are shown.
const DIRECTORIES_MAX: usize = 8;

fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns `sections` with the models of `set`, which replace those of the start.
pub(crate) fn with_models(sections: &[SettingsSection], set: &ConfigSet) -> Vec<SettingsSection> {
    let mut sections = sections.to_vec();
    for setting in sections.iter_mut().flat_map(|section| &mut section.settings) {
        match setting.key {
            ROOTS => setting.value = shown_roots(&set.roots),
            MODELS => setting.value = set.models.len().to_string(),
            _ => {}
        }
    }
    sections
}

/// Returns the settings at the start.
pub(crate) fn sections(config: &Config) -> Vec<SettingsSection> {
    vec![
        SettingsSection { name: "server", settings: server(config) },
        SettingsSection { name: "inference", settings: inference(config) },
        SettingsSection { name: "memory", settings: memory(config) },
        SettingsSection { name: "lifecycle", settings: lifecycle(config) },
        SettingsSection { name: "search", settings: search(config) },
    ]
}

fn server(config: &Config) -> Vec<Setting> {
    let listeners = &config.listeners;
    vec![
        of("host", listeners.host),
        of("http-port", or(listeners.http_port, "none")),
        of("grpc-port", or(listeners.grpc_port, "none")),
        of("grpc-socket", path(listeners.grpc_socket.as_deref())),
        of("TLS", if listeners.tls.is_some() { "on" } else { "off" }),
        of("keys", path(listeners.keys.as_deref())),
        of("allow-remote-admin", listeners.allow_remote_admin),
        of("admin-key", if listeners.admin_key.is_some() { "set" } else { "not set" }),
        of("connection-threads", listeners.threads),
        of("max-body", bytes(listeners.body_bytes_max as u64)),
        of("max-connections", listeners.connections_max),
        of("max-requests", listeners.requests_max),
        of("request-memory", bytes(listeners.request_memory())),
        of("request-timeout", time(listeners.request_timeout)),
        of("client-timeout", time(listeners.client_timeout)),
        of("shutdown-grace", time(listeners.shutdown_grace)),
    ]
}

fn inference(config: &Config) -> Vec<Setting> {
    let data = &config.data;
    vec![
        of("threads", data.workers),
        of("queue", data.queue_max),
        of("pin", data.pin),
        of("oversubscribe", data.oversubscribe),
        of("request-log", if data.request_log.is_some() { "on" } else { "off" }),
    ]
}

fn memory(config: &Config) -> Vec<Setting> {
    let memory = &config.memory;
    vec![
        of("pool", memory.pool_bytes_max.map_or("80 % of memory".to_owned(), bytes)),
        of("swap-reserve", memory.swap_reserve.map_or("largest version".to_owned(), bytes)),
        of("load-rate", rate(memory.load_rate)),
        of("fault-rate", rate(memory.fault_rate)),
        of("huge pages", memory.huge_pages),
        of("direct I/O", memory.direct),
    ]
}

fn lifecycle(config: &Config) -> Vec<Setting> {
    let models = &config.models;
    let concurrency = models.updates.turns.as_ref().map(|turns| turns.concurrency);
    vec![
        of(ROOTS, shown_roots(&models.roots)),
        of(MODELS, models.models.len()),
        of("poll", time(models.poll)),
        of("load-threads", models.load_threads),
        of("unload-threads", models.unload_threads),
        of("load-retries", models.load_retries),
        of("load-retry-interval", time(models.load_retry_interval)),
        of("load-timeout", time(models.load_timeout)),
        of("cache-dir", models.cache_dir.display()),
        of("store-cache", bytes(models.stores.cache_bytes_max)),
        of("update-window", time(models.updates.window)),
        of("update-concurrency", or(concurrency, "none")),
    ]
}

fn shown_roots(roots: &[ModelRoot]) -> String {
    let roots: Vec<String> = roots.iter().map(shown_root).collect();
    if roots.is_empty() { "none".to_owned() } else { roots.join(", ") }
}

/// Returns the directory of a root, or the URL of its store without password and query.
fn shown_root(root: &ModelRoot) -> String {
    match &root.store {
        Some(url) => without_secrets(url),
        None => root.dir.display().to_string(),
    }
}

fn search(config: &Config) -> Vec<Setting> {
    let search = &config.search;
    vec![
        of("collections-dir", path(search.directory.as_deref())),
        of("search-memory", bytes(search.memory_bytes)),
        of("search-cache", bytes(search.cache_bytes)),
        of("search-threads", or(Some(search.threads).filter(|count| *count > 0), "one per core")),
        of("search-medium", search.medium.name()),
        of("search-memory-node", or(search.memory_node, "any")),
        of("search-codes", search.codes.name()),
        of("search-build-threads", search.build_threads),
        of("search-background-rate", rate(search.background_rate)),
        of("search-merge-segments", search.merge_segments),
        of("search-segment-rows", search.segment_rows),
        of(
            "embedding-model",
            or(search.embedding_model.clone(), "the only model that takes images"),
        ),
        of("api-key", if search.api_key.is_some() { "set" } else { "not set" }),
        of("gpu", if search.gpu.is_some() { "on" } else { "none" }),
    ]
}

fn of(key: &'static str, value: impl std::fmt::Display) -> Setting {
    Setting { key, value: value.to_string() }
}

/// Returns a value as text, or `absent` if there is none.
fn or(value: Option<impl std::fmt::Display>, absent: &str) -> String {
    value.map_or_else(|| absent.to_owned(), |value| value.to_string())
}

fn path(path: Option<&Path>) -> String {
    or(path.map(Path::display), "none")
}

fn rate(rate: u64) -> String {
    if rate == 0 { "unlimited".to_owned() } else { format!("{}/s", bytes(rate)) }
}

fn time(time: Duration) -> String {
    format!("{time:?}")
}

/// Returns bytes in the largest unit that needs at most two decimals.
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.2}");
    format!("{} {}", text.trim_end_matches('0').trim_end_matches('.'), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use lifecycle::ModelConfig;

    use super::*;

    #[test]
    fn models_of_a_reload_are_shown() {
        let settings = vec![of(ROOTS, "/old"), of(MODELS, 0), of("poll", "1 s")];
        let sections = [SettingsSection { name: "lifecycle", settings }];
        let set = ConfigSet {
            models: vec![ModelConfig::new("m", "/m")],
            roots: vec![ModelRoot::new("/a"), ModelRoot::new("/b")],
        };
        let shown = with_models(&sections, &set);
        let wanted = vec![of(ROOTS, "/a, /b"), of(MODELS, 1), of("poll", "1 s")];
        assert_eq!(shown, [SettingsSection { name: "lifecycle", settings: wanted }]);
    }

    #[test]
    fn roots_are_shown_without_secrets() {
        let url = "https://me:s3cret@models.example/a?token=t0ken";
        let stored = ModelRoot { store: Some(url.into()), ..ModelRoot::new("/cache/a") };
        assert_eq!(shown_root(&stored), "https://me@models.example/a");
        assert_eq!(shown_root(&ModelRoot::new("/models")), "/models");
    }

    #[test]
    fn sizes_are_short() {
        let shown = [0, 1000, 64 << 20, 1_610_612_736, 800_000_000].map(bytes);
        assert_eq!(shown, ["0 B", "1000 B", "64 MiB", "1.5 GiB", "762.94 MiB"]);
    }
}
