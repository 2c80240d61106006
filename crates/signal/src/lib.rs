//! Signal processing of audio: change of rate and short-time spectra.
//!
//! Both use fast Fourier transforms (the crates `realfft` and `rubato`), whose generic code takes
//! long to compile. Nothing generic leaves this crate, so that code is compiled once.
//!
//! # Modules
//! * Rate: `resample` converts any channels at any rate to one channel at the model's rate.
//! * Spectra: `spectrum` computes them of a signal that arrives in pieces.

pub mod resample;
pub mod spectrum;
