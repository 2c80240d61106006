//! What this processor has, looked at once.

use std::sync::atomic::{AtomicU8, Ordering};

/// Which variants of the kernels may run; each level holds what those before it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// The references, which run anywhere.
    Scalar = 1,
    /// AVX2 with fused multiply-add: 256 bits. Every server processor since 2015.
    Avx2 = 2,
    /// AVX-512 with dot products of bytes (F, BW, DQ, VL and VNNI): Intel since Cascade Lake, AMD since Zen 4. Earlier ones
    /// with AVX-512 lack those products, and slow down where 512 bits are used.
    Avx512 = 3,
}

const LEVELS: [Level; 3] = [Level::Scalar, Level::Avx2, Level::Avx512];

/// The highest level that this processor, and the system on it, can run.
#[inline]
pub fn level() -> Level {
    /// What [`look`] found; 0 before.
    static FOUND: AtomicU8 = AtomicU8::new(0);
    match FOUND.load(Ordering::Relaxed) {
        0 => {
            let found = look();
            FOUND.store(found as u8, Ordering::Relaxed);
            found
        }
        1 => Level::Scalar,
        2 => Level::Avx2,
        _ => Level::Avx512,
    }
}

/// All levels that this machine can run: what tests hold against the scalar one.
pub fn levels() -> impl Iterator<Item = Level> {
    LEVELS.into_iter().filter(|wanted| *wanted <= level())
}

#[cold]
fn look() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx2") && has!("fma") {
            let wide = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            return if wide && has!("avx512vnni") { Level::Avx512 } else { Level::Avx2 };
        }
    }
    Level::Scalar
}

/// Whether the 256-bit variants may run.
#[inline]
pub fn avx2() -> bool {
    level() >= Level::Avx2
}

/// Asks for the cache lines of `values` ahead of their use; a hint that changes no result.
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
