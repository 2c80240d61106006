//! The writer of a log, one decision at a time.

use cluster::{
    EntryBody, EntryNumber, Epoch, LogEntry, LogReplay, LogWriter, RequestId, Ticket, WriterAction,
    WriterEvent, WriterId, WriterState,
};

type Writer = LogWriter<&'static str>;
type Actions = Vec<WriterAction<&'static str>>;

fn handle(writer: &mut Writer, event: WriterEvent<&'static str>) -> Actions {
    let mut actions = Vec::new();
    writer.handle(event, &mut actions);
    actions
}

fn granted(epoch: u64) -> WriterEvent<&'static str> {
    WriterEvent::Granted { epoch: Epoch(epoch), from: EntryNumber(0), covered: Epoch(0) }
}

fn entry(epoch: u64, writer: u128, body: EntryBody<&'static str>) -> LogEntry<&'static str> {
    LogEntry { epoch: Epoch(epoch), writer: WriterId(writer), body }
}

/// Returns the request of the only action.
fn request(actions: &Actions) -> RequestId {
    match actions.as_slice() {
        [WriterAction::Read(request, _)]
        | [WriterAction::Create(request, _, _)]
        | [WriterAction::ReadFloor(request)] => *request,
        other => panic!("not one request: {other:?}"),
    }
}

/// The answer to a read of the floor. All entries below are of the first owner.
fn floor_read(actions: &Actions, entry: u64) -> WriterEvent<&'static str> {
    WriterEvent::Floor { request: request(actions), entry: EntryNumber(entry), epoch: Epoch(1) }
}

/// A writer that owns an empty log: its fence is entry 0.
fn owner(epoch: u64) -> Writer {
    let mut writer = Writer::new(WriterId(1));
    let read = handle(&mut writer, granted(epoch));
    let fence = handle(&mut writer, WriterEvent::Found(request(&read), None));
    let floor = handle(&mut writer, WriterEvent::Created(request(&fence)));
    assert!(handle(&mut writer, floor_read(&floor, 0)).is_empty());
    assert_eq!(writer.state(), WriterState::Owning);
    writer
}

#[test]
fn a_batch_is_acknowledged_after_the_floor_was_read() {
    let mut writer = owner(1);
    let create = handle(&mut writer, WriterEvent::Submitted(Ticket(7), "a"));
    let wanted = entry(1, 1, EntryBody::Writes("a"));
    assert_eq!(create, [WriterAction::Create(request(&create), EntryNumber(1), wanted)]);
    let floor = handle(&mut writer, WriterEvent::Created(request(&create)));
    let done = handle(&mut writer, floor_read(&floor, 1));
    assert_eq!(
        done,
        [WriterAction::Apply(EntryNumber(1), "a"), WriterAction::Acknowledge(Ticket(7))]
    );
}

#[test]
fn a_raised_floor_ends_the_ownership() {
    let mut writer = owner(1);
    let create = handle(&mut writer, WriterEvent::Submitted(Ticket(7), "a"));
    let floor = handle(&mut writer, WriterEvent::Created(request(&create)));
    let done = handle(&mut writer, floor_read(&floor, 2));
    assert_eq!(done, [WriterAction::Fail(Ticket(7)), WriterAction::Lost]);
}

/// The fence of a newer owner is removed, and late entries of older owners lie at the numbers.
#[test]
fn a_floor_of_a_newer_epoch_ends_the_ownership() {
    let mut writer = owner(1);
    let create = handle(&mut writer, WriterEvent::Submitted(Ticket(7), "a"));
    let floor = handle(&mut writer, WriterEvent::Created(request(&create)));
    let request = request(&floor);
    let newer = WriterEvent::Floor { request, entry: EntryNumber(1), epoch: Epoch(2) };
    assert_eq!(handle(&mut writer, newer), [WriterAction::Fail(Ticket(7)), WriterAction::Lost]);
}

/// Entries were removed while a slow owner read them: the absent one is not the end of the log.
#[test]
fn a_fence_below_the_floor_owns_nothing() {
    let mut writer = Writer::new(WriterId(1));
    let read = handle(&mut writer, granted(2));
    let fence = handle(&mut writer, WriterEvent::Found(request(&read), None));
    let floor = handle(&mut writer, WriterEvent::Created(request(&fence)));
    let lost = handle(&mut writer, floor_read(&floor, 1));
    assert_eq!(lost, [WriterAction::Lost]);
}

/// All entries of a newer owner are removed, so the log itself names no newer owner.
#[test]
fn an_epoch_below_that_of_removed_entries_owns_nothing() {
    let mut writer = Writer::new(WriterId(1));
    let granted = |epoch, covered| WriterEvent::Granted {
        epoch: Epoch(epoch),
        from: EntryNumber(9),
        covered: Epoch(covered),
    };
    assert!(handle(&mut writer, granted(2, 3)).is_empty());
    assert_eq!(writer.state(), WriterState::Idle);
    let read = handle(&mut writer, granted(4, 3));
    assert_eq!(read, [WriterAction::Read(request(&read), EntryNumber(9))]);
}

#[test]
fn an_unknown_outcome_is_read() {
    let mut writer = owner(1);
    let create = handle(&mut writer, WriterEvent::Submitted(Ticket(7), "a"));
    let read = handle(&mut writer, WriterEvent::NotCreated(request(&create)));
    assert_eq!(read, [WriterAction::Read(request(&read), EntryNumber(1))]);
    let own = entry(1, 1, EntryBody::Writes("a"));
    let floor = handle(&mut writer, WriterEvent::Found(request(&read), Some(own)));
    assert_eq!(floor, [WriterAction::ReadFloor(request(&floor))]);
    assert!(
        handle(&mut writer, WriterEvent::Created(request(&create))).is_empty(),
        "a late answer"
    );
}

#[test]
fn entries_of_an_older_owner_are_passed_by() {
    let mut writer = owner(5);
    let create = handle(&mut writer, WriterEvent::Submitted(Ticket(7), "a"));
    let read = handle(&mut writer, WriterEvent::NotCreated(request(&create)));
    let old = entry(4, 2, EntryBody::Writes("old"));
    let floor = handle(&mut writer, WriterEvent::Found(request(&read), Some(old)));
    assert_eq!(floor, [WriterAction::ReadFloor(request(&floor))]);
    let again = handle(&mut writer, floor_read(&floor, 0));
    let wanted = entry(5, 1, EntryBody::Writes("a"));
    assert_eq!(again, [WriterAction::Create(request(&again), EntryNumber(2), wanted)]);
}

/// The batch counted at its first number, which is removed. A late entry of an older owner lies
/// there.
#[test]
fn a_batch_with_a_removed_number_gets_no_other_number() {
    let mut writer = owner(5);
    let create = handle(&mut writer, WriterEvent::Submitted(Ticket(7), "a"));
    let read = handle(&mut writer, WriterEvent::NotCreated(request(&create)));
    let old = entry(4, 2, EntryBody::Writes("old"));
    let floor = handle(&mut writer, WriterEvent::Found(request(&read), Some(old)));
    let done = handle(&mut writer, floor_read(&floor, 2));
    assert_eq!(done, [WriterAction::Fail(Ticket(7)), WriterAction::Lost]);
}

#[test]
fn a_newer_owner_ends_the_ownership() {
    let mut writer = owner(5);
    let create = handle(&mut writer, WriterEvent::Submitted(Ticket(7), "a"));
    let read = handle(&mut writer, WriterEvent::NotCreated(request(&create)));
    let fence = entry(6, 2, EntryBody::Fence);
    let done = handle(&mut writer, WriterEvent::Found(request(&read), Some(fence)));
    assert_eq!(done, [WriterAction::Fail(Ticket(7)), WriterAction::Lost]);
    assert_eq!(writer.state(), WriterState::Idle);
    assert!(handle(&mut writer, granted(5)).is_empty(), "an epoch is granted once");
}

#[test]
fn old_entries_after_a_later_fence_do_not_count() {
    let mut replay = LogReplay::new(EntryNumber(3), Epoch(0));
    let entries = [
        (entry(1, 1, EntryBody::Writes("a")), true),
        (entry(2, 2, EntryBody::Fence), true),
        (entry(1, 1, EntryBody::Writes("b")), false),
        (entry(2, 2, EntryBody::Writes("c")), true),
    ];
    for (entry, counts) in &entries {
        assert_eq!(replay.take(entry), *counts, "{entry:?}");
    }
    assert_eq!((replay.next(), replay.epoch()), (EntryNumber(7), Epoch(2)));
}
