//! Differing bits between the 256-bit binary descriptors of keypoints.

/// Bytes of a descriptor: 256 bits.
pub const DESCRIPTOR_BYTES: usize = 32;

/// Counts the differing bits of one descriptor and each of `others`, 0 to 256. Panics if `out` and
/// `others` differ in length.
pub fn hamming256_many(
    one: &[u8; DESCRIPTOR_BYTES],
    others: &[[u8; DESCRIPTOR_BYTES]],
    out: &mut [u16],
) {
    assert_eq!(others.len(), out.len(), "one distance for each descriptor");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor counts bits.
        return unsafe { counted(one, others, out) };
    }
    scalar(one, others, out);
}

/// Runs the scalar loop, compiled for processors with an instruction that counts bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt")]
fn counted(one: &[u8; DESCRIPTOR_BYTES], others: &[[u8; DESCRIPTOR_BYTES]], out: &mut [u16]) {
    scalar(one, others, out);
}

/// Writes the Hamming distances from `one` to `others` into `out`. The function is inlined into
/// each variant, so the compiler uses the instructions that the variant permits.
#[inline(always)]
fn scalar(one: &[u8; DESCRIPTOR_BYTES], others: &[[u8; DESCRIPTOR_BYTES]], out: &mut [u16]) {
    for (other, out) in others.iter().zip(out) {
        let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
        let differing = words.map(|(left, right)| {
            (u64::from_le_bytes(*left) ^ u64::from_le_bytes(*right)).count_ones()
        });
        *out = differing.sum::<u32>() as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_variant_counts_as_bit_by_bit(one: [u8; 32], others: Vec<[u8; 32]>) {
            let naive = |other: &[u8; 32]| {
                one.iter().zip(other).map(|(a, b)| (a ^ b).count_ones() as u16).sum::<u16>()
            };
            let expected: Vec<u16> = others.iter().map(naive).collect();
            let mut many = vec![0; others.len()];
            hamming256_many(&one, &others, &mut many);
            prop_assert_eq!(&many, &expected);
            scalar(&one, &others, &mut many);
            prop_assert_eq!(&many, &expected);
        }
    }
}
