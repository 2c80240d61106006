//! The features of this processor, detected once.

use std::sync::atomic::{AtomicU8, Ordering};

/// The variants of the kernels that may run. Each level includes the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SimdLevel {
    /// The references, which run on every processor.
    Scalar = 1,
    /// AVX2 with fused multiply-add: 256 bits. Every server processor since 2015.
    Avx2 = 2,
    /// AVX-512 with dot products of bytes (F, BW, DQ, VL and VNNI): Intel since Cascade Lake, AMD
    /// since Zen 4. Only the integer kernels use 512 bits. They take 1.29 and 1.11 times as long
    /// with AVX2 (docs/measurements/kernels.md).
    Avx512 = 3,
}

/// The level in use, or 0 before the first call of [`level`].
static IN_USE: AtomicU8 = AtomicU8::new(0);

/// Returns the highest level that this processor and its operating system can run.
#[inline]
pub fn level() -> SimdLevel {
    match IN_USE.load(Ordering::Relaxed) {
        0 => {
            let detected = detect();
            IN_USE.store(detected as u8, Ordering::Relaxed);
            detected
        }
        1 => SimdLevel::Scalar,
        2 => SimdLevel::Avx2,
        _ => SimdLevel::Avx512,
    }
}

/// Returns all levels that this machine can run. Tests compare each with the scalar one.
#[cfg(test)]
pub(crate) fn levels() -> impl Iterator<Item = SimdLevel> {
    let all = [SimdLevel::Scalar, SimdLevel::Avx2, SimdLevel::Avx512];
    all.into_iter().filter(|level| *level <= detect())
}

/// Uses `level`, or the highest that this machine can run if that is lower, for all later calls in
/// this process. For benchmarks, which compare levels.
pub fn limit(level: SimdLevel) {
    IN_USE.store(level.min(detect()) as u8, Ordering::Relaxed);
}

#[cold]
fn detect() -> SimdLevel {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx2") && has!("fma") {
            let wide = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            return if wide && has!("avx512vnni") { SimdLevel::Avx512 } else { SimdLevel::Avx2 };
        }
    }
    SimdLevel::Scalar
}

/// Returns true if the 256-bit variants may run.
#[inline]
pub fn avx2() -> bool {
    level() >= SimdLevel::Avx2
}

/// Prefetches the cache lines of `values`. Changes no result.
#[inline]
pub fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        /// Bytes of a cache line.
        const LINE: usize = 64;
        let start = values.as_ptr().cast::<i8>();
        for offset in (0..size_of_val(values)).step_by(LINE) {
            // SAFETY: the address lies inside `values`, and a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}
