//! The decisions of a cluster, alone and in simulations with faults.

extern crate millpond_cluster as cluster;

mod hedge;
mod log;
mod placement;
mod simulation;
#[path = "../worlds/mod.rs"]
mod worlds;
