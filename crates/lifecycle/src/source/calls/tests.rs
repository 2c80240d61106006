use super::*;

#[test]
fn a_call_that_does_not_end_delays_no_other_directory() {
    let mut calls: DirectoryCalls<u32> = DirectoryCalls::default();
    let (silent, other) = (Path::new("/silent"), Path::new("/other"));
    let open = calls.close(silent);
    assert_eq!(calls.call(silent, |_| 1), None);
    assert_eq!(calls.call(silent, |_| 2), None, "it is not called while it is silent");
    assert_eq!(calls.call(other, |_| 3), Some(3));
    assert!(calls.begin_scan().is_empty() && calls.is_skipped(silent));
    drop(open);
    let ended = loop {
        let ended = calls.begin_scan();
        if !ended.is_empty() {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(ended, [1]);
    // A slow mount must not be called with the shortest wait for ever.
    assert_eq!(calls.wait_for(silent), WAIT_MAX);
    assert!(!calls.any_silent());
}

/// A scan must end, and each silent directory has a thread.
#[test]
fn too_many_silent_directories_end_the_calls() {
    let mut calls: DirectoryCalls<usize> = DirectoryCalls::default();
    let mut open = Vec::new();
    for number in 0..SILENT_MAX {
        let dir = PathBuf::from(format!("/silent/{number}"));
        assert!(!calls.is_skipped(&dir));
        open.push(calls.close(&dir));
        assert_eq!(calls.call(&dir, move |_| number), None);
    }
    let other = Path::new("/other");
    assert!(calls.is_skipped(other));
    let _open_at_the_end = calls.close(other);
    assert_eq!(calls.call(other, |_| 0), None);
    // One directory answers.
    drop(open.pop());
    while calls.begin_scan().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    calls.closed.clear();
    assert_eq!(calls.call(other, |_| 7), Some(7));
}

#[test]
fn waits_of_a_scan_are_limited_together() {
    let mut calls: DirectoryCalls<u32> = DirectoryCalls::default();
    let dir = Path::new("/m");
    assert_eq!(calls.wait_for(dir), FIRST_WAIT_MAX);
    calls.note_answer(dir);
    assert_eq!(calls.wait_for(dir), WAIT_MAX);
    calls.waited = WAIT_MAX;
    assert_eq!(calls.wait_for(dir), WAIT_MIN);
    calls.begin_scan();
    assert_eq!(calls.wait_for(dir), WAIT_MAX);
    calls.retain(|_| false);
    assert_eq!(calls.wait_for(dir), FIRST_WAIT_MAX);
}
