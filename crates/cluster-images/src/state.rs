//! State that the routes of images share.

use std::sync::Arc;

use api_images::BulkResources;
use cluster_root::RootState;
use model_store::StorePlace;

use super::extraction_slots::ExtractionSlots;
use super::running_duplicates::RunningDuplicates;

/// State of the routes of images.
pub struct ImageRootState {
    /// State of the routes of points.
    pub(super) root: Arc<RootState>,
    /// Directory of the cluster in the store, where searches for duplicates are kept.
    pub(super) store: Option<StorePlace>,
    /// Searches for duplicates that run on this node.
    pub(super) duplicates: Arc<RunningDuplicates>,
    /// Limits of archives and folders; `None` if they are refused.
    pub(super) bulk: Option<Arc<BulkResources>>,
    /// Images of archives and folders in extraction.
    pub(super) extraction_slots: Arc<ExtractionSlots>,
}

impl ImageRootState {
    /// Creates the state of a root. Archives and folders have the limits of the root's images. They
    /// are refused if it has none.
    pub fn new(root: Arc<RootState>) -> ImageRootState {
        let bulk = root.images().map(|images| images.bulk().clone());
        ImageRootState {
            root,
            store: None,
            duplicates: Arc::default(),
            bulk,
            extraction_slots: Arc::default(),
        }
    }

    /// Sets the limits of archives and folders of a root without images. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_bulk(self, bulk: Arc<BulkResources>) -> ImageRootState {
        ImageRootState { bulk: Some(bulk), ..self }
    }

    /// Sets the directory of the cluster in the store, where a root keeps searches for duplicates.
    #[must_use]
    pub fn with_store(self, place: StorePlace) -> ImageRootState {
        ImageRootState { store: Some(place), ..self }
    }
}
