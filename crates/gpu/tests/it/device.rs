//! On a real device, if there is one.

use std::sync::Arc;

use gpu::{Coding, Gpu, GpuOptions, RowPlacement};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::case::{Case, cases};
use crate::{search, skipped};

/// Cases that are drawn anew by each run.
const CASES: usize = 100;

fn open(test: &str) -> Option<Arc<Gpu>> {
    let options =
        GpuOptions { compiler: search(), pinned_bytes_max: 1 << 30, ..GpuOptions::default() };
    match Gpu::open(&options) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            // The error names the missing part.
            assert!(
                ["libcuda", "shows no GPU", "libnvrtc"]
                    .iter()
                    .any(|part| error.message().contains(part)),
                "{error}"
            );
            skipped(test, error);
            None
        }
    }
}

#[test]
fn the_device_ranks_as_sorting_does() {
    let Some(gpu) = open("the_device_ranks_as_sorting_does") else { return };
    println!("on {}", gpu.name());
    let mut runner = TestRunner::default();
    let mut all: Vec<Case> =
        (0..CASES).map(|_| cases().new_tree(&mut runner).unwrap().current()).collect();
    all.push(Case::new(3, (Coding::Bytes, 512, 60_000, 9, 100), 120, true, 0));
    for case in &all {
        for placement in [RowPlacement::Device, RowPlacement::Pinned] {
            let rows = gpu.upload(&case.rows(), placement).unwrap();
            assert_eq!(rows.is_pinned(), placement == RowPlacement::Pinned);
            let found = rows.search(&case.queries(), case.k, case.allowed.as_deref()).unwrap();
            assert!(
                found == case.naive(),
                "{:?} {placement:?}",
                (case.coding(), case.dims, rows.rows(), case.k)
            );
            let next = case.clone().behind_its_answer();
            let allowed = next.allowed.as_deref();
            let found = rows.search_after(&next.queries(), next.k, allowed, &next.after).unwrap();
            assert!(found == next.naive(), "{:?} {placement:?}, continued", rows.rows());
        }
    }
    assert_eq!((gpu.device_bytes(), gpu.pinned_bytes()), (0, 0));
}

/// The last holder of a segment drops it, on a thread that may never have used the device.
#[test]
fn another_thread_may_drop_rows() {
    let Some(gpu) = open("another_thread_may_drop_rows") else {
        return;
    };
    let case = Case::new(7, (Coding::Bytes, 32, 300, 2, 10), 120, true, 0);
    for placement in [RowPlacement::Device, RowPlacement::Pinned] {
        let rows = gpu.upload(&case.rows(), placement).unwrap();
        std::thread::spawn(move || drop(rows)).join().unwrap();
        assert_eq!((gpu.device_bytes(), gpu.pinned_bytes()), (0, 0));
        let rows = gpu.upload(&case.rows(), placement).unwrap();
        assert_eq!(rows.search(&case.queries(), case.k, None).unwrap(), case.naive());
    }
}

#[test]
fn oversized_rows_are_refused_without_harm() {
    let Some(gpu) = open("oversized_rows_are_refused_without_harm") else { return };
    let case = Case::new(5, (Coding::Bytes, 32, 300, 2, 10), 120, false, 0);
    let rows = gpu.upload(&case.rows(), RowPlacement::Auto).unwrap();
    assert!(rows.search(&case.queries(), gpu::K_MAX + 1, None).is_err());
    assert!(rows.search(&case.queries(), 3, Some(&[0; 4])).is_err());
    let small = GpuOptions { compiler: search(), device_bytes_max: 100, ..GpuOptions::default() };
    let narrow = Gpu::open(&small).unwrap();
    assert_eq!(
        narrow.upload(&case.rows(), RowPlacement::Auto).err().unwrap().kind(),
        base::ErrorKind::ResourceExhausted
    );
    assert_eq!(rows.search(&case.queries(), 10, None).unwrap(), case.naive());
}
