//! The coarse filter on a GPU, if there is one: every row compared, the best kept on the way.
//!
//! The crate is always compiled and needs nothing of CUDA for it. The driver is opened at run time,
//! and the kernels are compiled at run time for the device that is there, by NVRTC. Whatever is
//! missing is an error that says so; the caller compares on the processor then.
//!
//! Costs are computed in the same steps, each rounded, as on the processor: bytes give the same
//! bits, and equal costs come in the order of rows. Only sums of bfloat16 products are added in
//! another order.
#![allow(unsafe_code)]

mod device;
mod nvrtc;
mod plan;
mod rows;

pub use device::{Gpu, GpuOptions};
pub use nvrtc::{CompileTarget, CompiledCode, CompilerSearch, Nvrtc};
pub use plan::{
    Coding, DIMS_MAX, K_MAX, PIECE_BYTES, QUERIES_MAX, ROWS_MAX, SearchPlan, TILE_ROWS, parts,
};
pub use rows::{Codes, DeviceRows, Queries, RowPlacement, Rows};

/// The kernels, in CUDA C.
pub const SOURCE: &str = include_str!("kernels.cu");
