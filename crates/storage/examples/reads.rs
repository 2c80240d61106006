//! Random reads of 4 KiB: UringMedium at several depths beside a loop of pread with O_DIRECT,
//! rounds interleaved.
//!
//! `cargo run --release -p millpond-storage --example reads -- DIRECTORY [MEBIBYTES [READS [ROUNDS
//! [DEPTH BATCH]]]]`

#![expect(clippy::unwrap_used, reason = "an example")]

extern crate millpond_storage as storage;

use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use storage::{Medium, Read, ReaderOptions, Sealed, UringMedium};

const PAGE: usize = 4096;

struct Pages(u64, u64);

impl Pages {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % self.1
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap());
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().unwrap());
    let (pages, reads, rounds) = (number(1024) * 256, number(40_000), number(5));
    let medium = UringMedium::new(directory.clone()).unwrap();
    prepare(&medium, pages);
    let file = medium.open("reads").unwrap();
    // Maximum reads in flight, and the number of reads that are awaited and replaced at once.
    let (depth, batch) = (number(0) as usize, number(1) as usize);
    let arms = match depth {
        0 => vec![
            (1, 1),
            (32, 1),
            (32, 8),
            (32, 24),
            (64, 16),
            (64, 48),
            (128, 32),
            (128, 64),
            (128, 96),
        ],
        depth => vec![(depth, batch)],
    };
    let mut results: Vec<(String, Vec<(f64, f64)>)> = std::iter::once("pread".to_owned())
        .chain(arms.iter().map(|(depth, batch)| format!("uring {depth}/{batch}")))
        .map(|n| (n, vec![]))
        .collect();
    for round in 0..rounds {
        let mut source = Pages(88_172_645_463_325_252 + round, pages);
        results[0]
            .1
            .push(timed(reads.min(10_000), || pread(&directory, reads.min(10_000), &mut source)));
        for (arm, &(depth, batch)) in arms.iter().enumerate() {
            let reads = if depth == 1 { reads.min(10_000) } else { reads };
            results[arm + 1]
                .1
                .push(timed(reads, || uring(&medium, &file, (depth, batch), reads, &mut source)));
        }
    }
    for (name, mut runs) in results {
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rate = runs[runs.len() / 2].0;
        runs.sort_by(|a, b| a.1.total_cmp(&b.1));
        let cpu = runs[runs.len() / 2].1;
        println!(
            "{name:14} {rate:9.0} reads/s  {cpu:6.2} us of thread CPU a read  (least {:.2})",
            runs[0].1
        );
    }
}

fn prepare(medium: &UringMedium, pages: u64) {
    if medium.list().unwrap().contains(&("reads".to_owned(), pages * PAGE as u64)) {
        return;
    }
    let _ = medium.remove("reads");
    let mut writer = medium.create("reads").unwrap();
    let mut block = vec![0_u8; 256 * PAGE];
    for start in (0..pages).step_by(256) {
        for (index, page) in block.chunks_mut(PAGE).enumerate() {
            page.fill((start + index as u64) as u8 | 1);
            page[..8].copy_from_slice(&(start + index as u64).to_le_bytes());
        }
        writer.append(&block).unwrap();
    }
    writer.persist().unwrap();
    medium.persist_names().unwrap();
}

fn timed(reads: u64, work: impl FnOnce()) -> (f64, f64) {
    let (wall, cpu) = (Instant::now(), os::thread::cpu_time());
    work();
    let cpu: Duration = os::thread::cpu_time() - cpu;
    (reads as f64 / wall.elapsed().as_secs_f64(), cpu.as_secs_f64() * 1e6 / reads as f64)
}

fn pread(directory: &std::path::Path, reads: u64, source: &mut Pages) {
    let path = directory.join("reads");
    let file = std::fs::OpenOptions::new().read(true).custom_flags(0o40000).open(path).unwrap();
    let mut memory = vec![0_u8; 2 * PAGE];
    let skip = memory.as_ptr().align_offset(PAGE);
    for _ in 0..reads {
        let page = source.next();
        let buffer = &mut memory[skip..skip + PAGE];
        file.read_exact_at(buffer, page * PAGE as u64).unwrap();
        assert_eq!(buffer[..8], page.to_le_bytes());
    }
}

fn uring(
    medium: &UringMedium,
    file: &Arc<dyn Sealed>,
    (depth, batch): (usize, usize),
    reads: u64,
    source: &mut Pages,
) {
    let mut reader = medium.reader(ReaderOptions { depth, read_bytes_max: PAGE }).unwrap();
    let (mut submitted, mut done) = (0, 0);
    while done < reads {
        while submitted < reads && reader.room() > 0 {
            let page = source.next();
            reader
                .submit(Read { file, offset: page * PAGE as u64, bytes: PAGE, tag: page })
                .unwrap();
            submitted += 1;
        }
        done += reader
            .complete(batch, &mut |page, bytes| assert_eq!(bytes.unwrap()[..8], page.to_le_bytes()))
            .unwrap() as u64;
    }
}
