//! `/v1/images`: collections of images. Images are added one by one or in bulk, kept as they were
//! sent, and found by other images.
//!
//! An image whose caller waits is decoded on the threads "images-N" (`pool`) and embedded by the
//! scheduler like any request. Bulk work (`ingest`) does both itself at idle priority. The crate
//! `image-features` has the features, the settings of collections and the operations of a log.
//!
//! # Modules
//! * Routes: `endpoints` and `feature_endpoints` are the handlers, `state`, `services` and `config`
//!   their state, `pool` the threads.
//! * Collections: `browse` lists, reads and removes, `rebuild` gives a collection another model,
//!   `progress` reports that.
//! * Features: `extraction` extracts an image's features at either priority. `transfer` extracts,
//!   writes and returns features without images.
//! * One image: `add` decodes and embeds it, `addition_limit` limits additions, `claims` keeps an
//!   id to one thread, `store` writes the points.
//! * Bulk work: `bulk` and `bulk_requests` read an `archive` or a `folder`, `held_files` counts the
//!   bytes. `ingest` adds images at idle priority, `ingest_target` passes those of archives and
//!   folders to it, `job` is a request with its images.
//! * Originals: `originals` stores the files, `unused_originals` reports those of no collection.
//!   `removal` removes images. `removal_task` removes originals of `removed_collections` in the
//!   background, and `removal_records` are on disk.
//! * Searches: `query` and `views` find images by a `plan` that runs on a search thread;
//!   `query_features` are of the query, `hits` makes the response, `limits` has the limits.
//! * Fingerprints: `file_upload` adds the prints of a file with several. `prints` compares
//!   fingerprints one to one (`print_pair` as JSON), and `persons` groups them by the fingers of
//!   `query_prints`.
//! * Duplicates: `duplicates` finds images that are stored twice, `duplicates_wire` has requests
//!   and responses, `job_end` is the end of this job or of a rebuild.
//! * Clusters: the nodes use `sharded`; `uploads` are the images that a node is adding,
//!   `old_uploads` lists originals of old uploads.

mod add;
mod addition_limit;
mod archive;
mod browse;
mod bulk;
mod bulk_requests;
mod claims;
mod config;
mod duplicates;
mod duplicates_wire;
mod endpoints;
mod extraction;
mod feature_endpoints;
mod file_upload;
mod folder;
mod held_files;
mod hits;
mod ingest;
mod ingest_target;
mod job;
mod job_end;
mod limits;
mod old_uploads;
mod originals;
mod persons;
mod plan;
mod pool;
mod print_pair;
mod prints;
mod progress;
mod query;
mod query_features;
mod query_prints;
mod rebuild;
mod removal;
mod removal_records;
mod removal_task;
mod removed_collections;
mod services;
mod sharded;
mod state;
mod store;
mod transfer;
mod unused_originals;
mod uploads;
mod views;

/// Entry point of the fuzz targets, not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    use std::fs::File;

    use base::Result;

    /// Reads at most `entries_max` images of the zip archive in `file`, which has `length` bytes.
    ///
    /// # Errors
    /// As an upload of this archive. A damaged entry is not an error.
    pub fn archive(file: File, length: u64, entries_max: usize) -> Result<()> {
        crate::archive::read_entries(file, length, entries_max)
    }
}

pub use browse::{ImageRemoval, page_entry};
pub use bulk::{BulkImage, BulkOutcome, BulkReporter, BulkTarget, PrintOutcome};
pub use bulk_requests::{BulkRequest, BulkResources, check_bulk_params};
pub use config::ImagesConfig;
pub use duplicates_wire::{
    DuplicatesRequest, background_threads, begun_json, duplicates_running, no_duplicates,
    progress_json,
};
pub use endpoints::{OPENAPI, check_file_body, names_folder, routes};
pub use extraction::ExtractionPriority;
pub use image_features::apply::{
    apply_image_operation, check_image_operation, is_image_operation, moved_image,
    without_original, written_images,
};
pub use image_features::collection::{originals_space, set_originals_space};
pub use image_features::features::{original_in, original_key, own_original};
pub use image_features::logged::{
    CheckedPoints, LoggedPoint, features_operation, images_operation, read_features,
};
pub use image_features::print_files::may_have_several as may_have_several_prints;
pub use image_features::settings::{ImageKind, ImageSettings, WantedImages};
pub use limits::{
    HITS_MAX, accept_score, candidates_max, check_search_limits, check_threshold,
    default_candidates,
};
pub use old_uploads::{OldUploads, OriginalUpload};
pub use persons::{FINGER_HITS_MAX, FingersRequest, FoundPersons, FoundPrint};
pub use print_pair::{PrintJson, PrintPair};
pub use prints::both_named;
pub use query_prints::{QueryPrint, QueryPrints};
pub use sharded::{
    AcceptedNeighbour, CoarseAnswer, CoarseCandidates, CoarseSearchRequest, EmbeddingsPage,
    EmbeddingsRequest, ExtractedImage, ExtractedQuery, ExtractedView, GroupImage,
    GroupImagesRequest, ImageInput, NeighbourProbe, NeighboursAnswer, NeighboursRequest,
    PrintShare, RankAnswer, RankRequest, RankedImage, RecordsAnswer, RecordsRequest, StoredRecord,
    UploadPrints, VerifyAnswer, VerifyRequest, image_id, present_answer, shard_routes,
};
pub use state::ImagesState;
pub use uploads::UploadClaim;
pub use views::{QueryView, view_steps};
