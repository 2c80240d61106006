//! The fake engine conforms, and its publisher writes an artifact.

use base::DType;
use engine::Device;
use engine::conformance::{self, Fixture, TABLE_COLUMNS, TABLE_ROWS};
use engine::fake::FakeEngine;
use engine::fake::publish::HALF_PLUS_TWO;

#[test]
fn fake_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let graph = |name: &str, text: &str| {
        std::fs::write(dir.path().join(format!("{name}.fake")), text).unwrap()
    };
    let lines = |lines: &[String]| format!("millpond-fake 1\n{}\n", lines.join("\n"));
    let echo = |dtype: DType, axes: &str| {
        lines(&[
            format!("input x {dtype} {axes}"),
            format!("output y {dtype} {axes}"),
            "y = echo x".into(),
        ])
    };
    for dtype in DType::ALL {
        graph(&format!("echo-{dtype}"), &echo(dtype, "n"));
    }
    graph("echo-scalar", &echo(DType::F32, ""));
    graph("half_plus_two", HALF_PLUS_TWO);
    graph(
        "two_outputs",
        "millpond-fake 1\ninput x float32 n\noutput half float32 n\noutput plus float32 n\n\
         half = affine x 0.5 0\nplus = affine x 1 2\n",
    );
    graph(
        "pick",
        &lines(&[
            "input index int64 n".into(),
            format!("output rows float32 n {TABLE_COLUMNS}"),
            format!("parameter table float32 {TABLE_ROWS} {TABLE_COLUMNS}"),
            "rows = pick table index".into(),
        ]),
    );
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let fixture = Fixture {
        graphs: dir.path().to_owned(),
        extension: "fake".into(),
        scratch,
        signatures: Default::default(),
        device: Device::Cpu,
    };
    let engine = FakeEngine::new();
    conformance::check(&engine, &fixture);
    assert_eq!(engine.counters().live(), 0);
}
