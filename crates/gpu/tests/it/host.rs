//! The kernels' own source, compiled as C++ and executed block by block, against comparing
//! everything and sorting.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpu::{Coding, LaunchPlan, WidenedQueries};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::case::{Case, Own, cases};
use crate::skipped;

/// Cases of one run of the program; drawn anew by each test run.
const CASES: usize = 12;

/// Builds the program. Returns `None` if there is no compiler.
fn build(directory: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host/harness.cpp");
    let program = directory.join("harness");
    let flags = [
        "-std=c++17",
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-Wno-unknown-pragmas",
    ];
    let built =
        Command::new("g++").args(flags).arg("-o").arg(&program).arg(source).output().ok()?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// Encodes the case for the program and returns the number of keys that it prints.
fn encode(case: &Case, out: &mut Vec<u8>) -> usize {
    let rows = case.rows().check().unwrap();
    let WidenedQueries { count, bytes: queries } =
        case.queries().widened(case.coding(), case.dims).unwrap();
    let plan = LaunchPlan::new(rows, count, case.k, case.processors).unwrap();
    let coding = u32::from(case.coding() == Coding::Bfloats);
    let shape = [rows, case.coding().row_pieces(case.dims), count, case.k, plan.tiles_per_part];
    let head = [plan.group, plan.groups, plan.parts].map(|number| number as u32);
    let given = [case.allowed.is_some(), !case.after.is_empty()].map(u32::from);
    let numbers = [coding].into_iter().chain(head).chain(given);
    let numbers =
        numbers.chain(shape.map(|number| number as u32)).chain([u32::from(case.squares.is_some())]);
    numbers.for_each(|number| out.extend(number.to_le_bytes()));
    let mut codes = Vec::new();
    case.rows().write_widened(0..rows, &mut codes);
    let floats =
        |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let (scales, query_scales) = match &case.codes {
        Own::Bytes { scales, query_scales, .. } => (floats(scales), floats(query_scales)),
        Own::Bfloats { .. } => (Vec::new(), Vec::new()),
    };
    let squares = floats(case.squares.as_deref().unwrap_or_default());
    let allowed: Vec<u8> =
        case.allowed.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let keys = case.after.iter().map(|(cost, row)| gpu::key(*cost, *row));
    let after: Vec<u8> = keys.flat_map(|key| key.to_le_bytes()).collect();
    let arrays = [
        (codes, 16),
        (scales, 4),
        (squares, 4),
        (queries, 16),
        (query_scales, 4),
        (allowed, 8),
        (after, 8),
    ];
    for (bytes, width) in arrays {
        out.extend((bytes.len() as u64 / width).to_le_bytes());
        out.extend(bytes);
    }
    count * case.k
}

#[test]
fn kernels_as_cpp_rank_as_sorting_does() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = build(directory.path()) else {
        return skipped("kernels_as_cpp_rank_as_sorting_does", "there is no g++");
    };
    let mut runner = TestRunner::default();
    let mut all: Vec<Case> =
        (0..CASES).map(|_| cases().new_tree(&mut runner).unwrap().current()).collect();
    let first = all.iter().take(CASES / 4).cloned();
    let continued: Vec<Case> = first.map(Case::behind_its_answer).collect();
    all.extend(continued);
    // Lists that are cut often, in one part and in the merging.
    all.push(Case::new(7, (Coding::Bytes, 48, 6000, 3, 100), 3, true, 0));
    all.push(Case {
        processors: 40,
        ..Case::new(8, (Coding::Bytes, 16, 6000, 1, 200), 120, false, 2)
    });
    // All rows in one part: one block scans all tiles.
    all.push(Case::filling());
    all.push(Case::new(9, (Coding::Bytes, 16, 900, 5, 70), 3, false, 0).behind_its_answer());
    let mut input = (all.len() as u32).to_le_bytes().to_vec();
    let counts: Vec<usize> = all.iter().map(|case| encode(case, &mut input)).collect();
    let mut running = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = running.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let done = running.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    writer.join().unwrap().unwrap();
    let keys: Vec<u64> =
        done.stdout.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    assert_eq!(keys.len(), counts.iter().sum::<usize>());
    let mut rest = &keys[..];
    for (case, count) in all.iter().zip(counts) {
        let (own, later) = rest.split_at(count);
        rest = later;
        let found: Vec<Vec<(f32, u32)>> = own
            .chunks_exact(case.k)
            .map(|keys| keys.iter().map_while(|key| gpu::parts(*key)).collect())
            .collect();
        let shape =
            (case.coding(), case.dims, case.rows().check().unwrap(), case.k, case.processors);
        assert!(found == case.naive(), "{shape:?}");
    }
}
