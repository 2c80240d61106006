//! `/v1/images`: collections of images. Images are added one by one or in bulk, kept as they were
//! sent, and found by other images.
//!
//! An image whose caller waits is decoded on the threads "images-N" (`pool`) and embedded by the
//! scheduler like any request. Bulk work (`ingest`) does both itself at idle priority.
//!
//! # Modules
//! * Routes: `endpoints` and `feature_endpoints` are the handlers, `state`, `services` and `config`
//!   their state, `pool` the threads; `base64_text` is the form of bytes in JSON.
//! * Collections: `collection` describes a collection of images, `settings` its subject and model,
//!   `browse` lists, reads and removes, `rebuild` gives it another model, `progress` reports that.
//! * Features: `features` extracts an image's features, `extraction` at either priority. `embedder`
//!   finds the models that embed, `embedding_plan` decides which images need one.
//! * Features without images: `transfer` extracts, writes and returns them in the form of
//!   `point_features`; `checked_features` and `point_checks` check them.
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
//! * Fingerprints: `template_file` reads templates, `print_files` splits a file with several
//!   prints, `file_upload` adds the prints. `prints` compares fingerprints one to one (`print_pair`
//!   as JSON), and `persons` groups them by the fingers of `query_prints`.
//! * Duplicates: `duplicates` finds images that are stored twice, `duplicates_wire` has requests
//!   and responses, `job_end` is the end of this job or of a rebuild.
//! * Clusters: the nodes use `sharded`; `uploads` are the images that a node is adding,
//!   `old_uploads` lists originals of old uploads.

mod add;
mod addition_limit;
mod archive;
mod base64_text;
mod browse;
mod bulk;
mod bulk_requests;
mod checked_features;
mod claims;
mod collection;
mod config;
mod duplicates;
mod duplicates_wire;
mod embedder;
mod embedding_plan;
mod endpoints;
mod extraction;
mod feature_endpoints;
mod features;
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
mod point_checks;
mod point_features;
mod pool;
mod print_files;
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
mod settings;
mod sharded;
mod state;
mod store;
mod template_file;
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
pub use collection::{originals_space, set_originals_space};
pub use config::ImagesConfig;
pub use duplicates_wire::{
    DuplicatesRequest, background_threads, begun_json, duplicates_running, no_duplicates,
    progress_json,
};
pub use endpoints::{OPENAPI, check_file_body, names_folder, routes};
pub use extraction::ExtractionPriority;
pub use features::{original_in, original_key, own_original};
pub use limits::{
    HITS_MAX, accept_score, candidates_max, check_search_limits, check_threshold,
    default_candidates,
};
pub use old_uploads::{OldUploads, OriginalUpload};
pub use persons::{FINGER_HITS_MAX, FingersRequest, FoundPersons, FoundPrint};
pub use print_files::may_have_several as may_have_several_prints;
pub use print_pair::{PrintJson, PrintPair};
pub use prints::both_named;
pub use query_prints::{QueryPrint, QueryPrints};
pub use settings::{ImageKind, ImageSettings, WantedImages};
pub use sharded::{
    AcceptedNeighbour, CheckedPoints, CoarseAnswer, CoarseCandidates, CoarseSearchRequest,
    EmbeddingsPage, EmbeddingsRequest, ExtractedImage, ExtractedQuery, ExtractedView, GroupImage,
    GroupImagesRequest, ImageInput, LoggedPoint, NeighbourProbe, NeighboursAnswer,
    NeighboursRequest, PrintShare, RankAnswer, RankRequest, RankedImage, RecordsAnswer,
    RecordsRequest, StoredRecord, UploadPrints, VerifyAnswer, VerifyRequest, apply_image_operation,
    check_image_operation, features_operation, image_id, images_operation, is_image_operation,
    moved_image, present_answer, read_features, shard_routes, without_original, written_images,
};
pub use state::ImagesState;
pub use uploads::UploadClaim;
pub use views::{QueryView, view_steps};
