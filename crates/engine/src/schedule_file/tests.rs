//! Every key, and back.

use std::time::Duration;

use serde::Deserialize;

use super::*;
use crate::PadOptions;

#[derive(Debug, Deserialize)]
struct File {
    schedule: ScheduleFile,
}

const FULL: &str = r#"
    [schedule]
    mode = "async"
    threads = 2
    weight = 3
    max-batch = 32
    max-queue-delay = "2ms"
    preferred-batch-sizes = [8, 16]
    allowed-batch-sizes = [4, 32]
    always-merge = true
    data-dependent-shapes = true
    queue = 256
    timeout = "500ms"
    default-priority = 2
    priorities = [ { queue = 16, timeout = "50ms" }, {} ]
    merge = "pad"
    [schedule.inputs.x]
    axes = [3]
    value = -1.0
    buckets = [64, 128, 320]
    similarity = 0.25
    slack-bytes = 2048
    mask = "m"
    length = "l"
    [[schedule.outputs.y]]
    axis = 1
    input = "x"
    input-axis = 3
    divisor = 8
    rounding = "down"
    offset = -2
"#;

fn full() -> ScheduleOptions {
    let file: File = toml::from_str(FULL).unwrap();
    file.schedule.apply(&ScheduleOptions::default())
}

#[test]
fn every_setting_is_applied() {
    let options = full();
    options.check().unwrap();
    let ms = Duration::from_millis;
    let input = PadOptions {
        axes: vec![3],
        value: -1.0,
        buckets: vec![64, 128, 320],
        similarity: 0.25,
        slack_bytes: 2048,
        mask: Some("m".into()),
        length: Some("l".into()),
    };
    let cut = CutOptions {
        axis: 1,
        input: "x".into(),
        input_axis: 3,
        divisor: 8,
        round_up: false,
        offset: -2,
    };
    let level = PriorityOptions { queue_max: Some(16), timeout: Some(ms(50)) };
    let wanted = ScheduleOptions {
        mode: ScheduleMode::Async,
        threads: Some(2),
        weight: 3,
        max_batch: 32,
        max_queue_delay: ms(2),
        preferred_batch_sizes: vec![8, 16],
        allowed_batch_sizes: vec![4, 32],
        always_merge: true,
        data_dependent_shapes: true,
        queue_max: Some(256),
        timeout: Some(ms(500)),
        priorities: vec![level, PriorityOptions::default()],
        default_priority: 2,
        merge: Merge::Pad,
        inputs: [("x".to_owned(), input)].into(),
        outputs: [("y".to_owned(), vec![cut])].into(),
    };
    assert_eq!(options, wanted);
}

#[test]
fn absent_keys_keep_the_former_values() {
    assert_eq!(ScheduleFile::default().apply(&full()), full());
    let file: ScheduleFile = toml::from_str("max-batch = 4\n[inputs]").unwrap();
    let options = file.apply(&full());
    assert_eq!((options.max_batch, options.threads), (4, Some(2)));
    assert!(options.inputs.is_empty(), "tables are replaced whole");
    let cut: ScheduleFile =
        toml::from_str("[[outputs.y]]\naxis = 1\ninput = \"x\"\ninput-axis = 2").unwrap();
    let cut = &cut.apply(&ScheduleOptions::default()).outputs["y"][0];
    assert_eq!((cut.divisor, cut.round_up, cut.offset), (1, true, 0));
}

#[test]
fn written_settings_are_read_back() {
    let back = |options: &ScheduleOptions| {
        let text = toml::to_string(&ScheduleFile::from_options(options)).unwrap();
        let file: ScheduleFile = toml::from_str(&text).unwrap();
        (text, file.apply(&ScheduleOptions::default()))
    };
    assert_eq!(back(&full()).1, full());
    assert_eq!(back(&ScheduleOptions::default()), (String::new(), ScheduleOptions::default()));
    for (nanos, text) in [(1_500_000, "1500us"), (2_000_000_000, "2s"), (70, "70ns"), (0, "")] {
        let max_queue_delay = Duration::from_nanos(nanos);
        let options = ScheduleOptions { max_queue_delay, ..ScheduleOptions::default() };
        let (written, read) = back(&options);
        assert!(written.contains(text), "{written}");
        assert_eq!(read, options);
    }
}

#[test]
fn mistakes_are_named() {
    let error = |text: &str| toml::from_str::<File>(text).unwrap_err().message().to_owned();
    assert!(error("[schedule]\nmax-bach = 1").contains("unknown field `max-bach`"));
    assert!(error("[schedule.inputs.x]\naxis = [1]").contains("unknown field `axis`"));
    assert!(error("[[schedule.outputs.y]]\naxis = 1").contains("missing field `input`"));
    assert!(error("[schedule]\nmode = \"batch\"").contains("unknown variant `batch`"));
    assert!(error("[schedule]\ntimeout = \"5 parsecs\"").contains("unknown time unit"));
    assert!(error("[schedule]\npriorities = [{ que = 1 }]").contains("unknown field `que`"));
}
