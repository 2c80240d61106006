//! Times of ten minutes of audio at other rates: `cargo bench -p millpond-signal`.

use divan::{Bencher, black_box};
use millpond_signal::resample::{Channel, Mono};

/// Rates of recordings in Hz. The models have 16 kHz.
const RATES: [u32; 5] = [8_000, 22_050, 44_100, 48_000, 96_000];
const SECONDS: usize = 600;

fn main() {
    divan::main();
}

#[divan::bench(args = RATES, sample_count = 5)]
fn to_16_khz(bencher: Bencher, rate: u32) {
    let second: Vec<f32> = (0..rate).map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5).collect();
    bencher.bench_local(|| {
        let mut mono = Mono::new(rate, 1, 16_000, Channel::Mix).expect("the rates can be changed");
        let mut samples = Vec::new();
        for _ in 0..SECONDS {
            samples.clear();
            mono.push(black_box(&second), &mut samples).expect("the resampler works");
        }
        samples.len()
    });
}
