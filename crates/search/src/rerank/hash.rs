//! Hash of cache keys.

/// Returns a well-mixed 64-bit value (the finaliser of MurmurHash3, by Appleby). It does not resist
/// a client that causes collisions, because the server numbers files and rows.
pub(super) fn mix(file: u64, number: u64) -> u64 {
    let mut hash = file.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}
