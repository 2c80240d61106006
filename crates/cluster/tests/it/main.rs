//! The decisions of a cluster, alone and in a simulation with faults.

extern crate millpond_cluster as cluster;

mod hedge;
mod log;
mod placement;
mod simulation;
mod world;
