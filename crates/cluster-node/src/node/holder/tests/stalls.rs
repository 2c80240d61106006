//! Tests of copies that a full disk or an unknown operation stalls, and of reads of the log's end
//! beside steady writes.

use object_store::ObjectStoreExt;

use super::*;

/// Writes after which a read of the log's end must have ended: a hundred times as many as arrive
/// during the requests of that read.
const STEADY_WRITES: u64 = 2_000;

/// Operation that only a newer version knows.
const UNKNOWN: &str = r#"{"merge_points":{"points":[1]}}"#;

/// Returns an operation that adds a point.
fn upsert() -> Bytes {
    let point = json!({ "id": 1, "vector": vec![0.5; DIMS], "payload": {} });
    Bytes::from(json!({ "upsert": { "points": [point] } }).to_string())
}

/// Waits until a copy is marked as stalled.
async fn stalled(state: &HolderState) {
    while state.stall.reason().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_full_disk_stalls_the_log_and_not_the_reads() {
    let mut full = EmptyShard::start_without_room().await;
    let state = full.follower.state.clone();
    let named = full.progress.named.clone();
    state.follow(&named, EntryNumber(1));
    full.follower.reached_end(0, &named);
    let generation = state.generation();
    let applied = full.apply_all(vec![upsert()]);
    tokio::pin!(applied);
    tokio::select! {
        biased;
        ended = &mut applied => panic!("{ended:?}"),
        marked = tokio::time::timeout(OPEN_MAX, stalled(&state)) => marked.unwrap(),
    }
    assert!(state.stall.reason().unwrap().contains("--search-disk-reserve"));
    assert!(state.is_caught_up(), "the copy stays in service");
    state.check_generation(&shard(), generation).unwrap();
    // Reads that need the entry are refused at once, so that another holder answers them.
    let deadline = Instant::now() + OPEN_MAX;
    let refused =
        [state.wait_applied(EntryNumber(1), deadline).await, state.wait_end(deadline).await];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("lacks changes"), "{error}");
    }
    state.wait_applied(EntryNumber(0), deadline).await.unwrap();
}

/// After an upgrade, the node begins with the same entry: its position is not recorded.
#[tokio::test]
async fn an_unknown_operation_stops_the_log_and_not_the_reads() {
    let mut empty = EmptyShard::start().await;
    let state = empty.follower.state.clone();
    let named = empty.progress.named.clone();
    let services = empty.follower.services.clone();
    state.follow(&named, EntryNumber(1));
    empty.follower.reached_end(0, &named);
    let unknown = Bytes::from_static(UNKNOWN.as_bytes());
    let skipped = Bytes::from_static(SKIPPED.as_bytes());
    let applied = empty.apply_all(vec![skipped, unknown, upsert()]);
    tokio::pin!(applied);
    tokio::select! {
        biased;
        ended = &mut applied => panic!("{ended:?}"),
        marked = tokio::time::timeout(OPEN_MAX, stalled(&state)) => marked.unwrap(),
    }
    let report = state.stall.report().unwrap();
    assert_eq!(report.cause, StallCause::UnknownOperation);
    assert!(report.reason.contains("\"merge_points\""), "{}", report.reason);
    assert!(report.reason.contains("upgrade this node"), "{}", report.reason);
    assert_eq!(named.collection().count(), 0, "the operation behind it waits");
    assert_eq!(services.metrics.entries.get(), 0);
    assert!(state.is_caught_up(), "the copy stays in service");
    let deadline = Instant::now() + OPEN_MAX;
    let error = state.wait_applied(EntryNumber(1), deadline).await.unwrap_err();
    assert!(error.message().contains("lacks changes"), "{error}");
    state.wait_applied(EntryNumber(0), deadline).await.unwrap();
    assert!(!named.removed());
}

/// No version makes them. The last one is a deletion of all points in earlier versions.
#[tokio::test]
async fn refused_operations_of_known_names_stop_no_shard() {
    let refused = [
        r#"{"upsert":{"points":[{"id":1}]}}"#,
        r#"{"upsert":{"points":[{"id":1,"vector":{"indices":[1],"values":[0.5]}}]}}"#,
        r#"{"delete":{"filter":{"must":[{"custom":1}]}}}"#,
        r#"{"clear_payload":{"points":[1],"shard_key":"a"}}"#,
        r#"{"delete":{"filter":{"must":[{"has_id":null}]}}}"#,
    ];
    let mut empty = EmptyShard::start().await;
    let metrics = empty.follower.services.metrics.clone();
    let operations = refused.map(|text| Bytes::from_static(text.as_bytes()));
    let entry = [vec![upsert()], operations.to_vec()].concat();
    tokio::time::timeout(OPEN_MAX, empty.apply_all(entry)).await.unwrap().unwrap();
    let count = |kind| metrics.operations.get_or_create(&KindLabels { kind }).get();
    assert_eq!((count("applied"), count("skipped")), (1, refused.len() as u64));
    assert_eq!(empty.follower.state.stall.reason(), None);
    assert!(empty.follower.is_skip_logged);
    assert_eq!(empty.progress.named.collection().count(), 1, "no point is deleted");
}

/// The restore of a snapshot for a download applies operations in the same way.
#[tokio::test]
async fn an_unknown_operation_is_not_tried_again_at_once() {
    let empty = EmptyShard::start().await;
    let unknown = Bytes::from_static(UNKNOWN.as_bytes());
    let batch = cluster_log::Batch::from(vec![unknown]);
    let named = &empty.progress.named;
    let error = apply(named, &batch, ApplyPriority::Ordinary).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unimplemented);
}

#[tokio::test]
async fn damage_is_marked_while_the_disk_is_full() {
    let mut node = DamagedNode::start_with(open_registry_without_room).await;
    let state = node.follower.state.clone();
    let position = FollowPosition { next: APPLIED, epoch: Epoch(1) };
    let progress = progress(node.damaged.clone(), position);
    let batch = cluster_log::Batch::from(vec![upsert()]);
    let applied = node.follower.apply(&progress, &batch);
    tokio::pin!(applied);
    let marked = async {
        stalled(&state).await;
        while state.damage.reason().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        biased;
        ended = &mut applied => panic!("{ended:?}"),
        marked = tokio::time::timeout(OPEN_MAX, marked) => marked.unwrap(),
    }
}

#[tokio::test]
async fn an_entry_continues_after_its_finished_operations() {
    let full = EmptyShard::start_without_room().await;
    let skipped = Bytes::from_static(SKIPPED.as_bytes());
    let batch = cluster_log::Batch::from(vec![skipped, upsert()]);
    let mut applied = AppliedBatch::default();
    let EmptyShard { progress, .. } = &full;
    for _ in 0..2 {
        let priority = ApplyPriority::Ordinary;
        let tried = apply_rest(&progress.named, &batch, priority, None, &mut applied).await;
        assert_eq!(tried.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!((applied.made, applied.skipped), (0, 1));
    }
}

#[tokio::test]
async fn a_stalled_copy_leaves_service_and_returns() {
    let empty = EmptyShard::start().await;
    let state = empty.follower.state.clone();
    let named = empty.progress.named.clone();
    state.follow(&named, EntryNumber(1));
    empty.follower.reached_end(0, &named);
    let marked = Instant::now();
    assert!(state.stall.begin(StallCause::FullDisk, "the disk is full", marked));
    state.stall.stop(marked);
    let own = HolderReading { node: "a", serves: true, is_damaged: true };
    let whole = HolderReading { node: "b", serves: true, is_damaged: false };
    let decide = |holders: &[HolderReading<'_>], now: Instant| {
        state.decide_stalled(&CertainHolders { own: "a", holders, requested_at: now }, now)
    };
    let withdrawn = marked + STALL_DECISION_DELAY;
    assert_eq!(decide(&[own, whole], withdrawn), Some(StalledServiceChange::Withdraw));
    assert!(!state.is_caught_up());
    let served = withdrawn + STALL_DECISION_DELAY;
    assert_eq!(decide(&[own], served), Some(StalledServiceChange::Serve));
    assert!(state.is_caught_up());
    state.reopen();
    assert_eq!(decide(&[own], served + STALL_DECISION_DELAY), None, "no copy is open");
    assert!(!state.is_caught_up());
    state.follow(&named, EntryNumber(1));
    assert_eq!(decide(&[own], served + STALL_DECISION_DELAY), None, "it applies its log");
    // There is space, and the log is applied to its end.
    empty.follower.reached_end(0, &named);
    assert_eq!(state.stall.reason(), None);
    assert!(state.is_caught_up());
}

/// The writer passes all entries on. Without a read of the log, the copy would stay marked.
#[tokio::test]
async fn a_stalled_copy_reaches_the_end_under_steady_writes() {
    let mut empty = EmptyShard::start().await;
    let state = empty.follower.state.clone();
    let log = empty.follower.log.clone();
    let write = async |number: EntryNumber| {
        append(&log, number).await;
        state.offered.add(number, std::iter::once((number, fence())));
    };
    state.stall.begin(StallCause::FullDisk, "the disk is full", Instant::now());
    state.caught_up.store(true, Ordering::Release);
    write(EntryNumber::default()).await;
    let writes = async {
        let mut number = EntryNumber::default();
        while state.stall.is_marked() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            number = number.plus(1);
            write(number).await;
        }
    };
    tokio::select! {
        ended = empty.follower.follow() => panic!("{ended:?}"),
        ended = tokio::time::timeout(OPEN_MAX, writes) => ended.unwrap(),
    }
    assert_eq!(state.stall.reason(), None);
}

/// Without the mark, the status would be green, and strong reads would time out without a reason.
#[tokio::test]
async fn a_damaged_entry_of_the_log_marks_the_copy() {
    let mut empty = EmptyShard::start().await;
    let state = empty.follower.state.clone();
    let place = empty.follower.services.store.place().clone();
    let key = place.key("data/1/wal/0000/0000000000000000");
    place.objects().put(&key, "no entry".into()).await.unwrap();
    tokio::select! {
        ended = empty.follower.follow() => panic!("{ended:?}"),
        () = stalled(&state) => {}
    }
    let report = state.stall.report().unwrap();
    assert_eq!(report.cause, StallCause::UnreadableLog);
    assert!(report.reason.contains("the entry is damaged"), "{}", report.reason);
    let error = state.wait_end(Instant::now() + OPEN_MAX).await.unwrap_err();
    assert!(error.message().contains("the entry is damaged"), "{error}");
    // The object is restored.
    place.objects().delete(&key).await.unwrap();
    append(&empty.follower.log, EntryNumber::default()).await;
    let resumed = async {
        while state.stall.is_marked() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        ended = empty.follower.follow() => panic!("{ended:?}"),
        ended = tokio::time::timeout(OPEN_MAX, resumed) => ended.unwrap(),
    }
    assert!(state.is_caught_up());
}

/// Without the mark, the copy would stay in service beside one of a node that is upgraded already.
#[tokio::test]
async fn an_entry_of_a_newer_format_marks_the_copy() {
    let mut empty = EmptyShard::start().await;
    let state = empty.follower.state.clone();
    let place = empty.follower.services.store.place().clone();
    let key = place.key("data/1/wal/0000/0000000000000000");
    let format = [2, 0];
    let checksum = 0x45f3_e5eb_u32.to_le_bytes();
    let newer = [&b"MILLPLOG"[..], &format, &[0; 30], &checksum].concat();
    place.objects().put(&key, newer.into()).await.unwrap();
    tokio::select! {
        ended = empty.follower.follow() => panic!("{ended:?}"),
        ended = tokio::time::timeout(OPEN_MAX, stalled(&state)) => ended.unwrap(),
    }
    let report = state.stall.report().unwrap();
    assert_eq!(report.cause, StallCause::UnknownOperation);
    assert!(report.reason.contains("the entry has format 2"), "{}", report.reason);
    // A node that restarted returns to service with all entries before it if no other node serves.
    assert!(!state.is_caught_up());
    let own = HolderReading { node: "a", serves: false, is_damaged: true };
    let now = Instant::now() + STALL_DECISION_DELAY;
    let view = CertainHolders { own: "a", holders: &[own], requested_at: now };
    assert_eq!(state.decide_stalled(&view, now), Some(StalledServiceChange::Serve));
}

/// Without its return, the shard would have no holder, although a copy has all earlier entries.
#[tokio::test]
async fn a_copy_before_a_damaged_entry_returns_to_service() {
    let mut empty = EmptyShard::start().await;
    let state = empty.follower.state.clone();
    let place = empty.follower.services.store.place().clone();
    let damaged = async {
        while !state.is_caught_up() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let key = place.key("data/1/wal/0000/0000000000000000");
        place.objects().put(&key, "no entry".into()).await.unwrap();
        stalled(&state).await;
    };
    tokio::select! {
        ended = empty.follower.follow() => panic!("{ended:?}"),
        ended = tokio::time::timeout(OPEN_MAX, damaged) => ended.unwrap(),
    }
    let own = HolderReading { node: "a", serves: true, is_damaged: true };
    let whole = HolderReading { node: "b", serves: true, is_damaged: false };
    let decide = |holders: &[HolderReading<'_>], now: Instant| {
        state.decide_stalled(&CertainHolders { own: "a", holders, requested_at: now }, now)
    };
    let withdrawn = Instant::now() + STALL_DECISION_DELAY;
    assert_eq!(decide(&[own, whole], withdrawn), Some(StalledServiceChange::Withdraw));
    // The other holder has left.
    let served = withdrawn + STALL_DECISION_DELAY;
    assert_eq!(decide(&[own], served), Some(StalledServiceChange::Serve));
    assert!(state.is_caught_up());
}

/// Without the check of the end, the status would be green, although the copy lacks entries.
#[tokio::test]
async fn a_marked_copy_before_a_lost_entry_keeps_its_mark() {
    let mut empty = EmptyShard::start().await;
    let state = empty.follower.state.clone();
    for number in 1..8 {
        append(&empty.follower.log, EntryNumber(number)).await;
    }
    // The copy has returned to service.
    state.stall.begin(StallCause::FullDisk, "the disk is full", Instant::now());
    state.caught_up.store(true, Ordering::Release);
    let checked = async {
        while state.stall.report().is_some_and(|report| report.cause == StallCause::FullDisk) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        ended = empty.follower.follow() => panic!("{ended:?}"),
        ended = tokio::time::timeout(OPEN_MAX, checked) => ended.unwrap(),
    }
    let report = state.stall.report().unwrap();
    assert_eq!(report.cause, StallCause::UnreadableLog);
    assert!(report.reason.contains("is missing"), "{}", report.reason);
    assert!(state.is_caught_up(), "it stays in service");
}

/// The disk may be full for hours between the probe and the end that it found.
#[tokio::test]
async fn a_copy_that_stalls_forgets_the_probed_end() {
    let mut empty = EmptyShard::start().await;
    let follower = &mut empty.follower;
    let error = Error::storage_full("the disk is full");
    // The second time, the copy has its mark already.
    for end_read in [1, 2] {
        follower.end_probe.begin(&follower.log, EntryNumber(0), end_read);
        assert!(follower.end_probe.is_active());
        follower.mark_stalled(StallCause::FullDisk, &error);
        assert!(!follower.end_probe.is_active());
    }
}

/// A copy, and writes that never pause.
struct SteadyWrites {
    /// True if the copy has reached the end of the log before.
    is_caught_up: bool,
    /// True if the writer passes its entries on.
    passes_on: bool,
}

impl SteadyWrites {
    /// Makes a read of the end of a log that is empty before. A request to the store takes longer
    /// than the pause before the next entry, so no read of the next entry finds the end.
    async fn read_end(&self) {
        let slow = Duration::from_millis(5);
        let config = ThrottleConfig {
            wait_get_per_call: slow,
            wait_list_per_call: slow,
            ..ThrottleConfig::default()
        };
        let store = Arc::new(ThrottledStore::new(InMemory::new(), config));
        let log = ShardLog::new(&StorePlace::new(store, "", "the store"), &shard());
        let mut empty = EmptyShard::start().await;
        empty.follower.log = log.clone();
        let state = empty.follower.state.clone();
        let metrics = empty.follower.services.metrics.clone();
        state.caught_up.store(self.is_caught_up, Ordering::Release);
        let writes = async {
            let mut applied = state.applied.subscribe();
            for number in (0..STEADY_WRITES).map(EntryNumber) {
                append(&log, number).await;
                if self.passes_on {
                    state.offered.add(number, std::iter::once((number, fence())));
                }
                applied.wait_for(|next| *next > number).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            biased;
            ended = state.wait_end(Instant::now() + OPEN_MAX) => ended.unwrap(),
            ended = empty.follower.follow() => panic!("{ended:?}"),
            () = writes => panic!("the read has not ended"),
        }
        assert!(state.is_caught_up());
        // No entry that was passed on waited for the store, but for the first: its writer is not
        // known before. A read of the store may be ready as early as an entry that is passed on
        // while this thread is paused. Most entries do not arrive in such a pause.
        let applied = state.applied().0;
        let passed = metrics.passed_entries.get();
        if self.passes_on {
            let passed_max = applied.saturating_sub(1);
            assert!(passed <= passed_max && 2 * passed + 2 >= applied, "{passed} of {applied}");
        } else {
            assert_eq!(passed, 0);
        }
    }
}

/// A client with a key of the role write sends entries that no writer has made, without end.
#[tokio::test]
async fn forged_entries_do_not_starve_the_log() {
    let config =
        ThrottleConfig { wait_get_per_call: Duration::from_millis(5), ..ThrottleConfig::default() };
    let store = Arc::new(ThrottledStore::new(InMemory::new(), config));
    let log = ShardLog::new(&StorePlace::new(store, "", "the store"), &shard());
    for number in 0..2 {
        append(&log, EntryNumber(number)).await;
    }
    let mut empty = EmptyShard::start().await;
    empty.follower.log = log;
    let state = empty.follower.state.clone();
    let forged = async {
        while state.applied().0 < 2 {
            let next = state.applied();
            let entry = LogEntry { epoch: Epoch(u64::MAX), ..fence() };
            state.offered.add(next, std::iter::once((next, entry)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut applied = state.applied.subscribe();
    tokio::select! {
        ended = empty.follower.follow() => panic!("{ended:?}"),
        () = forged => {}
        ended = tokio::time::timeout(OPEN_MAX, applied.wait_for(|next| next.0 == 2)) => {
            drop(ended.unwrap().unwrap());
        }
    }
    assert_eq!(empty.follower.services.metrics.passed_entries.get(), 0);
}

#[tokio::test]
async fn steady_writes_do_not_starve_a_strong_read() {
    SteadyWrites { is_caught_up: true, passes_on: true }.read_end().await;
}

#[tokio::test]
async fn steady_writes_do_not_keep_a_copy_out_of_service() {
    SteadyWrites { is_caught_up: false, passes_on: true }.read_end().await;
}

#[tokio::test]
async fn steady_large_writes_do_not_keep_a_copy_out_of_service() {
    SteadyWrites { is_caught_up: false, passes_on: false }.read_end().await;
}
