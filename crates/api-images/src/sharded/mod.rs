//! Collections of images that are spread over shards, as the nodes of a cluster use them.
//!
//! Each shard has an ordinary local collection, which a log of operations fills. The crate
//! `image-features` has the operations. [`extracted`] extracts the features of images and of
//! queries on a node that runs models, and [`prints`] splits files into prints. A search has two
//! rounds ([`rounds`]), which [`routes`] serves for one shard each. [`duplicates_routes`] does the
//! same for the steps of a search for duplicates ([`duplicates`]).

mod duplicates;
mod duplicates_routes;
mod extracted;
mod prints;
mod rounds;
mod routes;

pub use duplicates::{
    AcceptedNeighbour, EmbeddingsPage, EmbeddingsRequest, GroupImage, GroupImagesRequest,
    NeighbourProbe, NeighboursAnswer, NeighboursRequest, RecordsAnswer, RecordsRequest,
    StoredRecord, VerifyAnswer, VerifyRequest,
};
pub use extracted::{
    ExtractedImage, ExtractedQuery, ExtractedView, ImageInput, image_id, present_answer,
};
pub use prints::UploadPrints;
pub use rounds::{
    CoarseAnswer, CoarseCandidates, CoarseSearchRequest, PrintShare, RankAnswer, RankRequest,
    RankedImage,
};
pub use routes::shard_routes;
