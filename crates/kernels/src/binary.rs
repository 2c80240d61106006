//! Differing bits between binary codes.
//!
//! The 256-bit distance is for the descriptors of keypoints, which are short enough for the
//! processor's own bit count. For longer codes the bits of each half byte are looked up in a
//! register, 32 bytes at a time (W. Mula, N. Kurz, D. Lemire, "Faster Population Counts Using AVX2
//! Instructions", 2018).

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 32;

/// Counts the differing bits of two 256-bit descriptors, 0 to 256.
#[inline]
pub fn hamming256(left: &[u8; DESCRIPTOR_BYTES], right: &[u8; DESCRIPTOR_BYTES]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor counts bits.
        return unsafe { counted::hamming256(left, right) };
    }
    scalar::hamming256(left, right)
}

/// Counts the differing bits of one descriptor and each of `others`. Panics if `out` and `others`
/// differ in length.
pub fn hamming256_many(
    one: &[u8; DESCRIPTOR_BYTES],
    others: &[[u8; DESCRIPTOR_BYTES]],
    out: &mut [u16],
) {
    assert_eq!(others.len(), out.len(), "one distance for each descriptor");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor counts bits.
        return unsafe { counted::hamming256_many(one, others, out) };
    }
    for (other, out) in others.iter().zip(out) {
        *out = scalar::hamming256(one, other) as u16;
    }
}

/// Counts the differing bits of two codes. Panics if the lengths differ.
pub fn hamming(left: &[u8], right: &[u8]) -> u32 {
    assert_eq!(left.len(), right.len(), "codes of different lengths");
    #[cfg(target_arch = "x86_64")]
    if crate::cpu::avx2() {
        // SAFETY: the processor has AVX2, and the lengths are equal.
        return unsafe { avx2::hamming(left, right) };
    }
    scalar::hamming(left, right)
}

/// Counts the differing bits of a query and `out.len()` consecutive rows of the query's length.
/// Panics if the lengths do not fit.
pub fn hamming_many(query: &[u8], rows: &[u8], out: &mut [u32]) {
    assert_eq!(rows.len(), query.len() * out.len(), "rows do not fill the output");
    if query.is_empty() {
        return out.fill(0);
    }
    for (row, out) in rows.chunks_exact(query.len()).zip(out) {
        *out = hamming(query, row);
    }
}

mod scalar {
    use super::DESCRIPTOR_BYTES;

    /// Inlined into the variant for processors that count bits: the compiler then uses that
    /// instruction.
    #[inline(always)]
    pub(super) fn hamming256(left: &[u8; DESCRIPTOR_BYTES], right: &[u8; DESCRIPTOR_BYTES]) -> u32 {
        let words = left.as_chunks::<8>().0.iter().zip(right.as_chunks::<8>().0);
        words
            .map(|(left, right)| {
                (u64::from_le_bytes(*left) ^ u64::from_le_bytes(*right)).count_ones()
            })
            .sum()
    }

    pub(super) fn hamming(left: &[u8], right: &[u8]) -> u32 {
        left.iter().zip(right).map(|(left, right)| (left ^ right).count_ones()).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod counted {
    use super::{DESCRIPTOR_BYTES, scalar};

    #[target_feature(enable = "popcnt")]
    pub(super) fn hamming256(left: &[u8; DESCRIPTOR_BYTES], right: &[u8; DESCRIPTOR_BYTES]) -> u32 {
        scalar::hamming256(left, right)
    }

    #[target_feature(enable = "popcnt")]
    pub(super) fn hamming256_many(
        one: &[u8; DESCRIPTOR_BYTES],
        others: &[[u8; DESCRIPTOR_BYTES]],
        out: &mut [u16],
    ) {
        for (other, out) in others.iter().zip(out) {
            *out = scalar::hamming256(one, other) as u16;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// # Safety
    /// The processor has AVX2, and both slices have the same length.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn hamming(left: &[u8], right: &[u8]) -> u32 {
        let bits = _mm256_setr_epi8(
            0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2,
            3, 3, 4,
        );
        let low = _mm256_set1_epi8(15);
        let mut sums = _mm256_setzero_si256();
        let mut at = 0;
        while at + 32 <= left.len() {
            // SAFETY: 32 bytes from `at` are inside both slices.
            let (one, other) = unsafe {
                (
                    _mm256_loadu_si256(left.as_ptr().add(at).cast()),
                    _mm256_loadu_si256(right.as_ptr().add(at).cast()),
                )
            };
            let differing = _mm256_xor_si256(one, other);
            let lower = _mm256_shuffle_epi8(bits, _mm256_and_si256(differing, low));
            let upper =
                _mm256_shuffle_epi8(bits, _mm256_and_si256(_mm256_srli_epi16(differing, 4), low));
            let counts = _mm256_sad_epu8(_mm256_add_epi8(lower, upper), _mm256_setzero_si256());
            sums = _mm256_add_epi64(sums, counts);
            at += 32;
        }
        let halves = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        let total = _mm_add_epi64(halves, _mm_unpackhi_epi64(halves, halves));
        _mm_cvtsi128_si64(total) as u32 + super::scalar::hamming(&left[at..], &right[at..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn descriptors_differ_as_counted_bit_by_bit(one: [u8; 32], others: Vec<[u8; 32]>) {
            let mut many = vec![0; others.len()];
            hamming256_many(&one, &others, &mut many);
            for (other, many) in others.iter().zip(&many) {
                let naive = scalar::hamming(&one, other);
                prop_assert_eq!(hamming256(&one, other), naive);
                prop_assert_eq!(scalar::hamming256(&one, other), naive);
                prop_assert_eq!(u32::from(*many), naive);
            }
        }

        #[test]
        fn codes_of_any_length_agree(bytes in prop::collection::vec(any::<(u8, u8)>(), 0..300)) {
            let (left, right): (Vec<u8>, Vec<u8>) = bytes.into_iter().unzip();
            prop_assert_eq!(hamming(&left, &right), scalar::hamming(&left, &right));
            let mut one = [0];
            hamming_many(&left, &right, &mut one);
            prop_assert_eq!(one[0], scalar::hamming(&left, &right));
        }
    }
}
