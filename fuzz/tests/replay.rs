//! Replays the seeds, and simple mutations of them, through every entry point.

use std::path::Path;

use millpond_fuzz::TARGETS;

/// Mutations of each seed: they take about 20 s.
const MUTATIONS: u64 = 1000;

/// Generates the same numbers on every machine (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
}

/// Returns `seed` with a few bytes changed, or cut off.
fn mutated(seed: &[u8], state: &mut u64) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + next(state) % 4 {
        let Some(last) = bytes.len().checked_sub(1) else { break };
        let at = next(state) as usize % (last + 1);
        match next(state) % 4 {
            0 => bytes[at] ^= 1 << (next(state) % 8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][next(state) as usize % 5],
            2 => bytes.truncate(at),
            _ => bytes.insert(at, bytes[at]),
        }
    }
    bytes
}

#[test]
fn every_seed_and_mutations_of_it_are_read_or_refused() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let mut state = 1;
    for (name, entry) in TARGETS {
        let mut files: Vec<_> = std::fs::read_dir(seeds.join(name))
            .unwrap_or_else(|error| panic!("seeds/{name}: {error}"))
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "seeds/{name} is empty: run `cargo run --example make_seeds`");
        entry(&[]);
        for file in files {
            let seed = std::fs::read(&file).unwrap();
            // Printed before the run, so that a panic below follows its input's name.
            println!("{}", file.display());
            entry(&seed);
            for _ in 0..MUTATIONS {
                entry(&mutated(&seed, &mut state));
            }
        }
    }
}

#[test]
fn every_target_has_a_file_and_every_file_is_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    let mut names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(files, names);
}
