use base::{DType, Dim, TensorSpec};

use super::*;

const VAD: &str = r#"
title = "Voice activity"
kind = "events"
rate = 16000
channel = "mix"
input = "input"
window = 512
hop = 512
context = 64
axes = "nt"
batch = 32
sequence = false
constants = { sr = 16000 }
[features]
kind = "raw"
[state]
state = { output = "stateN", shape = [2, 1, 128] }
[pieces]
length = "60s"
lead-in = "5s"
[output]
name = "output"
trim = [0, 0]
activation = "none"
classes = ["speech"]
[events]
on = 0.5
off = 0.35
min = "250ms"
gap = "100ms"
pad = "30ms"
smooth = 1
"#;

fn spec(name: &str, dtype: DType, dims: &[i64]) -> TensorSpec {
    let dim = |&d: &i64| if d < 0 { Dim::Dynamic(None) } else { Dim::Fixed(d as usize) };
    let shape = Some(dims.iter().map(dim).collect());
    TensorSpec { name: name.into(), dtype, shape, optional: false }
}

fn vad() -> Signature {
    Signature {
        inputs: vec![
            spec("input", DType::F32, &[-1, 576]),
            spec("state", DType::F32, &[2, -1, 128]),
            spec("sr", DType::I64, &[]),
        ],
        outputs: vec![
            spec("output", DType::F32, &[-1, 1]),
            spec("stateN", DType::F32, &[-1, -1, -1]),
        ],
    }
}

#[test]
fn a_full_section_is_read() {
    let vad_recogniser = Recogniser::parse("vad", VAD).unwrap();
    assert_eq!(
        (vad_recogniser.title.as_str(), vad_recogniser.kind),
        ("Voice activity", RecogniserKind::Events)
    );
    assert_eq!(vad_recogniser.pieces, PieceSettings { length: 1875, lead_in: 157, lanes: 1 });
    let EventSettings { min, gap, pad, .. } = vad_recogniser.events;
    assert_eq!((min, gap, pad), (4000.0, 1600.0, 480.0));
    let fit = ModelBinding::new(&vad_recogniser, &vad()).unwrap();
    assert_eq!((&*fit.input, &*fit.output, fit.items), ("input", "output", None));
    assert_eq!(fit.constants[0].tensor.to_vec::<i64>().unwrap(), [16000]);
    assert_eq!(fit.constants[0].tensor.shape(), [0usize; 0]);
    assert_eq!(fit.carried[0].initial.shape(), [2, 1, 128]);
}

#[test]
fn absent_keys_have_their_defaults() {
    let least = Recogniser::parse("x", "kind = \"events\"\nrate = 8000\nwindow = 256\n").unwrap();
    assert_eq!(
        (least.title.as_str(), least.spec.hop, least.spec.context, least.batch),
        ("x", 256, 0, 32)
    );
    assert_eq!(least.axes, [InputAxis::Windows, InputAxis::Rows]);
    assert_eq!((least.events.on, least.events.off), (0.5, 0.35));
    let mel = "kind = \"scenes\"\nrate = 16000\nwindow = 96\n[features]\nkind = \"log-mel\"\nfft = 512\nwindow = \
               400\nhop = 160\nmels = 64\n";
    let mel = Recogniser::parse("x", mel).unwrap();
    assert_eq!(mel.axes, [InputAxis::Windows, InputAxis::Rows, InputAxis::Features]);
    assert_eq!((mel.width, mel.row_samples), (64, 160));
    assert!((mel.done_seconds(0, 96) - 0.96).abs() < 1e-9);
    assert!((mel.middle_seconds(2) - 1.92).abs() < 1e-9);
}

#[test]
fn each_fault_is_named() {
    let wrong = |from: &str, to: &str| {
        assert!(VAD.contains(from), "{from}");
        Recogniser::parse("vad", &VAD.replacen(from, to, 1)).unwrap_err().message().to_owned()
    };
    let cases = [
        ("rate = 16000", "rate = 10", "rate"),
        ("rate = 16000", "rat = 16000", "rat"),
        ("kind = \"events\"", "kind = \"event\"", "event"),
        ("channel = \"mix\"", "channel = \"left\"", "channel"),
        ("channel = \"mix\"", "channel = -1", "channel"),
        ("hop = 512", "hop = 513", "hop"),
        ("hop = 512", "hop = 0", "hop"),
        ("window = 512", "window = 99999999999", "window"),
        ("axes = \"nt\"", "axes = \"ntt\"", "axes"),
        ("axes = \"nt\"", "axes = \"tn\"", "axes"),
        ("axes = \"nt\"", "axes = \"n\"", "axes"),
        ("axes = \"nt\"", "axes = \"nx\"", "axes"),
        ("batch = 32", "batch = 0", "batch"),
        ("axes = \"nt\"", "axes = \"t\"", "batch has no effect without n"),
        ("constants = { sr = 16000 }", "constants = { sr = \"x\" }", "constants.sr"),
        ("constants = { sr = 16000 }", "constants = { sr = { valu = 1 } }", "constants.sr"),
        ("shape = [2, 1, 128]", "shape = [4294967296, 4294967296]", "elements"),
        ("length = \"60s\"", "length = \"60x\"", "pieces.length"),
        ("length = \"60s\"", "length = \"2h\"", "pieces.length"),
        ("lead-in = \"5s\"", "lead-in = \"61s\"", "lead-in"),
        ("classes = [\"speech\"]", "classes = [1]", "classes"),
        ("classes = [\"speech\"]", "classes = { file = \"labels.txt\" }", "classes"),
        ("off = 0.35", "off = 0.7", "events.off"),
        ("min = \"250ms\"", "min = \"soon\"", "events.min"),
        ("smooth = 1", "smooth = 0", "smooth"),
        ("kind = \"events\"", "kind = \"scenes\"", "[recogniser.events] has no effect"),
        ("activation = \"none\"", "activation = \"relu\"", "relu"),
    ];
    for (from, to, named) in cases {
        let message = wrong(from, to);
        assert!(
            message.starts_with("recogniser \"vad\": ") && message.contains(named),
            "{to}: {message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_constant_of_the_models_shape_is_limited() {
    let recogniser = Recogniser::parse("vad", VAD).unwrap();
    for dims in [&[1_i64 << 23][..], &[1 << 40, 1 << 40]] {
        let mut signature = vad();
        signature.inputs[2] = spec("sr", DType::I64, dims);
        let error = recogniser.check(&signature).unwrap_err();
        assert!(error.message().contains("more than 4194304 elements"), "{error}");
    }
}

#[test]
fn a_model_that_does_not_fit_is_described() {
    let check = |from: &str, to: &str| {
        let recogniser = Recogniser::parse("vad", &VAD.replacen(from, to, 1)).unwrap();
        recogniser.check(&vad()).map_err(|error| error.message().to_owned())
    };
    assert_eq!(check("x", "x"), Ok(()));
    let cases = [
        ("input = \"input\"", "input = \"audio\"", "no input \"audio\""),
        ("name = \"output\"", "name = \"scores\"", "no output \"scores\""),
        ("context = 64", "context = 0", "not laid out"),
        ("axes = \"nt\"", "axes = \"nt1\"", "not laid out"),
        ("constants = { sr = 16000 }", "constants = { rate = 16000 }", "no input \"rate\""),
        ("constants = { sr = 16000 }", "", "also takes \"sr\""),
        ("constants = { sr = 16000 }", "constants = { sr = 16000, state = 0 }", "given twice"),
        ("shape = [2, 1, 128]", "shape = [2, 128]", "has 3 axes"),
        (
            "smooth = 1",
            "smooth = 1\nonset = { output = \"onset\", on = 0.5 }",
            "no output \"onset\"",
        ),
    ];
    for (from, to, named) in cases {
        let message = check(from, to).unwrap_err();
        assert!(message.contains(named), "{to}: {message}");
        assert!(
            message.contains("takes input float32[-1, 576], state")
                || message.contains("the model takes input float32[-1, 576]"),
            "{message}"
        );
    }
}
