//! The collections of this server. They are opened at the start if their directory exists or is
//! required, and otherwise at the first use. So a server of models alone creates no directory and
//! no threads for them.

use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use observe::RegistryReader;
use os::Rate;
use parking_lot::Mutex;
use search::collection::Merging;
use search::registry::{Registry, RegistryOptions};

use crate::config::SearchConfig;

/// Maximum bytes of a payload in a shard of a cluster. The roots refuse changes that make a payload
/// larger than 64 KiB. A holder may make changes of the log again, over their own result. A payload
/// then has members of both states, and up to twice as many bytes. A change that one holder skips
/// would leave its copy with an older value. A payload that clients enlarge at the same moment may
/// reach half of this maximum.
const SHARD_PAYLOAD_BYTES_MAX: usize = 256 << 10;

/// The registry, opened on demand.
pub(crate) struct Collections {
    config: SearchConfig,
    /// True if the collections are shards of a cluster.
    are_shards: bool,
    registry: Mutex<Option<Arc<Registry>>>,
}

impl Collections {
    /// Creates the collections of a server. `are_shards` is true for a node of a cluster.
    pub(crate) fn new(config: SearchConfig, are_shards: bool) -> Collections {
        Collections { config, are_shards, registry: Mutex::default() }
    }

    /// Opens the registry if its directory exists or is required.
    ///
    /// # Errors
    /// `InvalidArgument` for settings of memory that cannot work. Also the errors of the registry
    /// if the directory is required or another process uses it. Others are logged.
    pub(crate) fn start(&self) -> Result<()> {
        let Some(directory) = &self.config.directory else { return Ok(()) };
        // Otherwise the first client that creates a collection would get the error.
        self.options(directory).check_memory()?;
        if !self.config.required && !directory.exists() {
            return Ok(());
        }
        match self.registry() {
            Err(error) if self.config.required => Err(error),
            // Otherwise the server would start and answer all searches with errors.
            Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
                let message = error.message();
                Err(Error::precondition(format!(
                    "{message}; --collections-dir none serves without collections"
                )))
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "collections are not served; correct the cause, or give another --collections-dir"
                );
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Returns the registry, and opens it if it is not open yet.
    ///
    /// # Errors
    /// `FailedPrecondition` if there is no directory for collections or another process uses it.
    /// Also errors of the file system.
    pub(crate) fn registry(&self) -> Result<Arc<Registry>> {
        let mut registry = self.registry.lock();
        if let Some(registry) = registry.as_ref() {
            return Ok(registry.clone());
        }
        let directory = self.config.directory.as_deref().ok_or_else(|| {
            Error::precondition(
                "this server has no collections; start it with --collections-dir DIR",
            )
        })?;
        let opened = Registry::open(self.options(directory))
            .map_err(|error| error.context("the collections cannot be opened"))?;
        Ok(registry.insert(opened).clone())
    }

    /// Returns the registry if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<Registry>> {
        self.registry.lock().clone()
    }

    /// Returns a handle that reads the registry if it is open.
    pub(crate) fn reader(self: &Arc<Self>) -> RegistryReader {
        let collections = self.clone();
        Arc::new(move || collections.opened())
    }

    /// Closes the registry once the last request has released it.
    pub(crate) fn close(&self) {
        drop(self.registry.lock().take());
    }

    /// Returns the options of the registry in `directory`.
    fn options(&self, directory: &Path) -> RegistryOptions {
        let config = &self.config;
        let options = RegistryOptions {
            memory_bytes: config.memory_bytes,
            cache_bytes: config.cache_bytes,
            threads: config.threads,
            medium: config.medium,
            memory_node: config.memory_node,
            codes: config.codes,
            build_threads: config.build_threads,
            background_rate: Rate::per_second(config.background_rate),
            merging: Merging {
                fan_in: config.merge_segments,
                rows_max: config.segment_rows,
                ..Merging::default()
            },
            collections_max: config.collections_max,
            disk_reserve: config.disk_reserve,
            ..RegistryOptions::new(directory)
        };
        if self.are_shards {
            RegistryOptions { payload_bytes_max: SHARD_PAYLOAD_BYTES_MAX, ..options }
        } else {
            options
        }
    }
}

/// Returns the error for a client whose request needs the collections. The file system or the
/// settings refuse the server and not the client, so the kind does not blame the request or the
/// client's rights.
fn for_client(error: Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::InvalidArgument => {
            ErrorKind::FailedPrecondition
        }
        ErrorKind::Internal => ErrorKind::Internal,
        // The message has its remedy.
        _ => return error,
    };
    let cause = std::error::Error::source(&error);
    // A message about settings, such as --search-memory, has its own remedy.
    let remedy = if cause.is_some_and(|cause| cause.is::<std::io::Error>()) {
        "; correct the cause, or start the server with another --collections-dir"
    } else {
        ""
    };
    let message = format!("{}{remedy}", error.message());
    Error::new(kind, message).with_source(error)
}

impl api_qdrant::RegistrySource for Collections {
    fn registry(&self) -> Result<Arc<Registry>> {
        self.registry().map_err(for_client)
    }

    fn opened(&self) -> Option<Arc<Registry>> {
        self.opened()
    }
}

impl backup::RegistryAccess for Collections {
    fn open_registry(&self) -> Result<Arc<Registry>> {
        self.registry().map_err(for_client)
    }

    fn open_already(&self) -> Option<Arc<Registry>> {
        self.opened()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_room_for_changes_that_are_made_again() {
        let directory = Path::new("unused");
        let max = |are_shards: bool| {
            let collections = Collections::new(SearchConfig::default(), are_shards);
            collections.options(directory).payload_bytes_max
        };
        assert_eq!([max(false), max(true)], [64 << 10, SHARD_PAYLOAD_BYTES_MAX]);
    }

    #[test]
    fn too_little_memory_is_refused_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("collections");
        let config = |memory_bytes, cache_bytes| SearchConfig {
            directory: Some(missing.clone()),
            memory_bytes,
            cache_bytes,
            ..SearchConfig::default()
        };
        for (memory_bytes, cache_bytes) in [(16 << 20, 0), (64 << 20, 64 << 20)] {
            let error =
                Collections::new(config(memory_bytes, cache_bytes), false).start().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().contains("--search-cache"), "{error}");
        }
        Collections::new(config(64 << 20, 32 << 20), false).start().unwrap();
        assert!(!missing.exists());
    }

    #[test]
    fn an_unusable_directory_is_not_the_fault_of_the_client() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let config =
            SearchConfig { directory: Some(file.join("collections")), ..SearchConfig::default() };
        let collections = Collections::new(config, false);
        // The directory does not exist yet, so the server starts.
        collections.start().unwrap();
        let error = api_qdrant::RegistrySource::registry(&collections).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
        assert!(error.message().contains("another --collections-dir"), "{error}");

        let refused =
            for_client(Error::new(ErrorKind::PermissionDenied, "/data: Permission denied"));
        assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
        let settings = for_client(Error::invalid("give at least 32 MiB to --search-memory"));
        assert_eq!(settings, Error::precondition("give at least 32 MiB to --search-memory"));
        let taken = Error::precondition("another process serves the collections");
        assert_eq!(for_client(taken.clone()), taken);
    }
}
