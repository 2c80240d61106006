//! Settings.

use std::path::PathBuf;

/// Settings of image collections.
#[derive(Clone, Debug, Default)]
pub struct ImagesConfig {
    /// Directory of the collections, where large uploads and, by default, originals are kept.
    pub directory: Option<PathBuf>,
    /// Directory or URL of the originals; `None` is a directory beside the collections.
    pub originals: Option<String>,
    /// Options of that URL: names and values of the provider's own variables, in lower case.
    pub originals_options: Vec<(String, String)>,
    /// Model that embeds images; `None` is the only served model whose input can be an image.
    pub embedding_model: Option<String>,
}
