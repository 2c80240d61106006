//! The decisions of a cluster, alone and in simulations with faults.

extern crate millpond_cluster as cluster;

mod copies;
mod damage;
mod fan_out;
mod hedge;
mod log;
mod ownership;
mod placement;
mod recent_writes;
mod simulation;
mod snapshots;
mod stall;
mod store_access;
#[path = "../worlds/mod.rs"]
mod worlds;
