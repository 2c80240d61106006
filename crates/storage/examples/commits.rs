//! Speed of a log's acknowledgements: threads that append 500 bytes and wait, on files and on
//! simulated persistent memory.
//!
//! `cargo run --release -p millpond-storage --example commits -- DIRECTORY TMPFS-DIRECTORY
//! [COMMITS]`

#![expect(clippy::unwrap_used, reason = "an example")]

extern crate millpond_storage as storage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use storage::log::Log;
use storage::{DaxMedium, Medium, UringMedium};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut directory = || PathBuf::from(arguments.next().unwrap());
    let files: Arc<dyn Medium> = Arc::new(UringMedium::new(directory()).unwrap());
    let memory: Arc<dyn Medium> = Arc::new(DaxMedium::simulated(directory()).unwrap());
    let commits: u64 = arguments.next().map_or(2000, |text| text.parse().unwrap());
    for (name, medium) in [("files", files), ("pmem, simulated", memory)] {
        for threads in [1, 8, 32] {
            let _ = medium.remove("commits");
            let (log, _) = Log::open(&medium, "commits").unwrap();
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        for _ in 0..commits / threads {
                            log.commit(log.append(&[7; 500]).unwrap()).unwrap();
                        }
                    });
                }
            });
            let rate = (log.next() - 1) as f64 / start.elapsed().as_secs_f64();
            println!(
                "{name:16} {threads:3} threads {rate:9.0} commits/s, {} flushes",
                log.flushes()
            );
            drop(log);
            medium.remove("commits").unwrap();
        }
    }
}
