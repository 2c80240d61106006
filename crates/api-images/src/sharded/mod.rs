//! Collections of images that are spread over shards, as the nodes of a cluster use them.
//!
//! Each shard has an ordinary local collection, which a log of operations fills. [`logged`] turns a
//! request into operations, and [`apply`] makes them. [`extracted`] extracts the features of images
//! and of queries on a node that runs models, and [`prints`] splits files into prints. A search
//! has two rounds ([`rounds`]), which [`routes`] serves for one shard each. [`duplicates_routes`]
//! does the same for the steps of a search for duplicates ([`duplicates`]).

mod apply;
mod duplicates;
mod duplicates_routes;
mod extracted;
mod logged;
mod prints;
mod rounds;
mod routes;

pub use apply::{
    apply_image_operation, check_image_operation, is_image_operation, moved_image,
    without_original, written_images,
};
pub use duplicates::{
    AcceptedNeighbour, EmbeddingsPage, EmbeddingsRequest, GroupImage, GroupImagesRequest,
    NeighbourProbe, NeighboursAnswer, NeighboursRequest, RecordsAnswer, RecordsRequest,
    StoredRecord, VerifyAnswer, VerifyRequest,
};
pub use extracted::{
    ExtractedImage, ExtractedQuery, ExtractedView, ImageInput, image_id, present_answer,
};
pub use logged::{CheckedPoints, LoggedPoint, features_operation, images_operation, read_features};
pub use prints::UploadPrints;
pub use rounds::{
    CoarseAnswer, CoarseCandidates, CoarseSearchRequest, PrintShare, RankAnswer, RankRequest,
    RankedImage,
};
pub use routes::shard_routes;
