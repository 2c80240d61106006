//! A real model that keeps its state inside: Silero's voice activity detector, as its package ships
//! it.

use std::f64::consts::PI;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{DType, NamedTensor, Tensor};
use engine::{Arena, Engine, Session, SignatureFile};

use crate::support::{floats, load, store, text, torch};

/// Samples of a window.
const WINDOW: usize = 512;

/// Output of the package's own Python for [`voice`], window after window (LibTorch 2.15.0, one
/// thread).
const PROBABILITIES: [f32; 40] = [
    0.0113927, 0.1305073, 0.0614676, 0.0106634, 0.0048112, 0.0040918, 0.0028744, 0.0030558,
    0.0040502, 0.0030925, 0.0022124, 0.0021843, 0.0028997, 0.0022681, 0.001946, 0.0026329,
    0.0179433, 0.0080219, 0.0030343, 0.0011571, 0.0028402, 0.0058218, 0.004446, 0.0016581,
    0.0018792, 0.0012243, 0.0014747, 0.0017816, 0.0022961, 0.0020344, 0.0020877, 0.0063992,
    0.0123911, 0.0037802, 0.0028018, 0.0017206, 0.0015877, 0.0016217, 0.0019926, 0.0028455,
];

fn model() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models/silero_vad.jit");
    assert!(
        path.exists(),
        "this test needs {}: run `make test-rust`, which fetches it",
        path.display()
    );
    path
}

/// A vowel-like tone at 16 kHz that comes and goes twice a second.
fn voice(sample: usize) -> f32 {
    let time = sample as f64 / 16000.0;
    let harmonic = |k: usize| {
        let (k, f) = (k as f64, k as f64 * 120.0);
        let formant = |at: f64, width: f64| (-((f - at) / width).powi(2)).exp();
        let level =
            formant(600.0, 300.0) + 0.6 * formant(1200.0, 250.0) + 0.3 * formant(2500.0, 400.0);
        level * (2.0 * PI * f * time + 0.5 * (2.0 * PI * 5.0 * time).sin() * k).sin()
    };
    let sum: f64 = (1..25).map(harmonic).sum();
    (0.08 * sum * (0.5 - 0.5 * (2.0 * PI * 2.0 * time).cos())) as f32
}

fn window(session: &dyn Session, samples: &[f32]) -> f32 {
    let rate = NamedTensor::new("sr", Tensor::from_vec([].as_slice(), vec![16000i64]).unwrap());
    let output = session.run(&[floats("x", &[1, WINDOW], samples), rate], &[]).unwrap();
    output[0].tensor.to_vec::<f32>().unwrap()[0]
}

#[test]
fn silero_agrees_with_its_package() {
    let store = store(64 << 20);
    let bytes = torch().arena_bytes(&model()).unwrap();
    let arena = Arena { store: store.clone(), bytes, stop: Arc::default() };
    let signature = SignatureFile {
        inputs: vec![text("x", "float32", Some(&[1, WINDOW as i64]))],
        outputs: vec![],
    };
    let session = load(&model(), signature, Some(arena)).unwrap();
    assert!(session.stateful());
    assert!(session.parameter_bytes() > 1 << 20, "{}", session.parameter_bytes());
    let inputs: Vec<_> =
        session.signature().inputs.iter().map(|s| (s.name.as_str(), s.dtype)).collect();
    assert_eq!(inputs, [("x", DType::F32), ("sr", DType::I64)]);

    let samples: Vec<f32> = (0..WINDOW * PROBABILITIES.len()).map(voice).collect();
    let (first, second) = (session.fork().unwrap(), session.fork().unwrap());
    let mut alone_differs = 0;
    for (samples, expected) in samples.chunks_exact(WINDOW).zip(PROBABILITIES) {
        for fork in [&first, &second] {
            let got = window(&**fork, samples);
            assert!(
                (got - expected).abs() < 0.01 * expected,
                "{got}, the package gives {expected}"
            );
        }
        let alone = window(&*session, samples);
        assert_eq!(alone, window(&*session, samples), "a run does not depend on the one before");
        alone_differs += usize::from((alone - expected).abs() > 0.1 * expected);
    }
    assert!(alone_differs > 20, "the state matters: {alone_differs} windows");
    drop((first, second, session));
    assert_eq!(store.pool().stats().used, 0);
}
