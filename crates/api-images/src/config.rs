//! Settings.

use std::path::PathBuf;

use model_store::StoreOptions;

/// Name of the default store of originals, a directory beside the collections. No collection has a
/// name that starts with a dot.
pub(crate) const DEFAULT_ORIGINALS: &str = ".originals";

/// Settings of image collections.
#[derive(Clone, Debug, Default)]
pub struct ImagesConfig {
    /// Directory of the collections, where large uploads and, by default, originals are kept.
    pub directory: Option<PathBuf>,
    /// Directory or URL of the originals; `None` is a directory beside the collections.
    pub originals: Option<String>,
    /// Options of the store of originals if `originals` is a URL.
    pub originals_options: StoreOptions,
    /// Model that embeds images; `None` is the only served model whose input can be an image.
    pub embedding_model: Option<String>,
}

impl ImagesConfig {
    /// Returns the name of the store of originals in records of removals.
    pub(crate) fn originals_name(&self) -> String {
        let name = self.originals.as_deref().unwrap_or(DEFAULT_ORIGINALS);
        name.trim_end_matches('/').to_owned()
    }
}
