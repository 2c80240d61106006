//! The crate from outside: every medium through one suite, every parser on damaged bytes, every
//! crash point.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

extern crate millpond_storage as storage;

mod conformance;
mod crash;
mod dax;
mod format;
mod guard;
mod log;
mod manifest;
mod watermark;

use std::path::PathBuf;
use std::sync::Arc;

use memory::{PoolConfig, SlotPool};
use os::Rate;
use storage::{DaxMedium, DramMedium, FaultMedium, FaultPlan, Medium, MmapMedium, UringMedium};
use tempfile::TempDir;

const PAGE: usize = storage::page::PAGE_BYTES;

fn pool(slots: u64) -> Arc<SlotPool> {
    let config =
        PoolConfig { bytes_max: slots << 21, huge_pages: false, fault_rate: Rate::unlimited() };
    SlotPool::new(config).unwrap()
}

/// Returns memory without a directory.
fn volatile() -> Arc<dyn Medium> {
    Arc::new(DramMedium::new(pool(64), None).unwrap())
}

/// Returns every medium of this machine, each in a directory of its own.
fn media(directory: &TempDir) -> Vec<(&'static str, Arc<dyn Medium>)> {
    let under = |name: &str| directory.path().join(name);
    let mut media: Vec<(&'static str, Arc<dyn Medium>)> = vec![
        ("volatile", volatile()),
        ("dram", Arc::new(DramMedium::new(pool(64), Some(under("dram"))).unwrap())),
        ("pmem, simulated", Arc::new(DaxMedium::simulated(under("pmem")).unwrap())),
        ("mmap", Arc::new(MmapMedium::new(under("mmap")).unwrap())),
        ("fault", Arc::new(FaultMedium::new(volatile(), FaultPlan::default()).unwrap())),
    ];
    match uring(under("nvme")) {
        Some(medium) => media.push(("nvme", Arc::new(medium))),
        None => eprintln!("SKIPPED: io_uring is not allowed here"),
    }
    media
}

/// Returns the io_uring medium, if the system allows it.
fn uring(directory: PathBuf) -> Option<UringMedium> {
    match UringMedium::new(directory) {
        Ok(medium) => Some(medium),
        Err(error) => {
            assert_eq!(error.kind(), base::ErrorKind::Unimplemented);
            None
        }
    }
}

/// Bytes that differ from place to place.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

fn write(medium: &dyn Medium, name: &str, bytes: &[u8]) {
    let mut writer = medium.create(name).unwrap();
    writer.append(bytes).unwrap();
    writer.persist().unwrap();
    drop(writer);
    medium.persist_names().unwrap();
}
