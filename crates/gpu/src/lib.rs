//! The coarse filter on a GPU, if there is one. It compares every row and keeps the best rows.
//!
//! The crate is always compiled and needs nothing of CUDA for that. At run time it opens the driver
//! and compiles the kernels for the device with NVRTC. If something is missing, an error names it
//! and the caller compares on the processor.
//!
//! Costs are computed in the same steps as on the processor, each rounded. So bytes give the same
//! bits. Equal costs come in the order of rows. Only sums of bfloat16 products are added in another
//! order.
//!
//! # Modules
//! * Opening: `device`, `nvrtc`.
//! * Searches: `rows` is the entry, `queue` joins the searches of several threads, `plan` divides
//!   a batch, `budget` limits memory.
#![allow(unsafe_code)]

mod budget;
mod device;
mod nvrtc;
mod plan;
mod queue;
mod rows;

pub use device::{Gpu, GpuOptions};
pub use nvrtc::{CompileTarget, CompiledCode, CompilerNeeds, CompilerSearch, Nvrtc};
pub use plan::{
    Coding, DIMS_MAX, K_MAX, LaunchPlan, PIECE_BYTES, QUERIES_MAX, ROWS_MAX, key, parts,
};
pub use rows::{Codes, DeviceRows, Queries, RowPlacement, Rows, WidenedQueries};

/// Source of the kernels, in CUDA C.
pub const SOURCE: &str = include_str!("kernels.cu");
