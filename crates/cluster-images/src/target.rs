//! A collection of images of the cluster.

use std::sync::Arc;

use api_images::{ImageKind, ImageSettings, WantedImages};
use base::{Error, ErrorKind, Result};
use cluster_node::CollectionRecord;
use cluster_root::RootContext;

/// A collection of images.
#[derive(Clone, Debug)]
pub(super) struct ImageTarget {
    pub(super) record: Arc<CollectionRecord>,
    pub(super) settings: ImageSettings,
    /// Number of values of an embedding.
    pub(super) dims: usize,
}

impl ImageTarget {
    /// Returns the collection of a request.
    ///
    /// # Errors
    /// `NotFound` if there is none of this name; `FailedPrecondition` for one without images.
    pub(super) fn open(context: &RootContext) -> Result<ImageTarget> {
        let record = context.state.record(&context.collection)?;
        let Some(settings) = record.images.clone() else {
            return Err(Error::precondition(format!(
                "collection \"{}\" has no images: it was made by other means; use another name for images",
                record.name
            )));
        };
        let dims = record.image_dims().ok_or_else(|| {
            Error::internal(format!("the record of collection \"{}\" has no size", record.name))
        })?;
        Ok(ImageTarget { record, settings, dims })
    }

    /// Returns the collection of a request, or `None` if there is none of this name.
    ///
    /// # Errors
    /// As [`ImageTarget::open`], and `FailedPrecondition` for another kind or model than wanted.
    pub(super) fn existing(
        context: &RootContext,
        wanted: &WantedImages,
    ) -> Result<Option<ImageTarget>> {
        let target = match ImageTarget::open(context) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        wanted.check(&target.record.name, &target.settings)?;
        Ok(Some(target))
    }

    /// Returns settings and dimensions.
    pub(super) fn properties(&self) -> (&ImageSettings, usize) {
        (&self.settings, self.dims)
    }

    /// Checks that features fit, which were made for a collection of these properties.
    ///
    /// # Errors
    /// `FailedPrecondition` for another kind, model or length of embeddings.
    pub(super) fn check_features(&self, settings: &ImageSettings, dims: usize) -> Result<()> {
        let kind = Some(settings.kind);
        let model = Some(settings.model.clone());
        WantedImages { kind, model }.check(&self.record.name, &self.settings)?;
        if dims == self.dims {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "model \"{}\" gives {dims} values and the collection has {}: serve the earlier version, or use another \
             collection",
            self.settings.model, self.dims
        )))
    }

    /// Checks that the collection holds fingerprints.
    ///
    /// # Errors
    /// `FailedPrecondition` for photographs.
    pub(super) fn check_prints(&self) -> Result<()> {
        if self.settings.kind == ImageKind::Fingerprint {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "collection \"{}\" holds photographs; this needs a collection of fingerprints",
            self.record.name
        )))
    }
}
