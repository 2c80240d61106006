//! CRC-64/NVME under the names of the crate `crc-fast` 1.10, which this crate replaces
//! (`[patch.crates-io]` in the workspace's Cargo.toml).
//!
//! `object_store` computes this checksum of an upload to S3 if `AWS_CHECKSUM_ALGORITHM` is
//! `crc64nvme`, and needs nothing else of `crc-fast`. The original has the tables of about 80
//! algorithms, 664 kB that no archive compresses, in each program that links it.

/// An algorithm that [`Digest`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcAlgorithm {
    /// CRC-64/NVME: polynomial 0xad93d23594c93659, reflected, starts with ones, inverted at the
    /// end. Source: NVM Express NVM Command Set Specification 1.0c, section 5.2.1.3.4.
    Crc64Nvme,
}

/// The polynomial with its bits reversed, as a reflected checksum shifts to the right.
const POLYNOMIAL_REVERSED: u64 = 0xad93_d235_94c9_3659_u64.reverse_bits();

/// The checksum of each byte alone.
static TABLE: [u64; 256] = table();

const fn table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL_REVERSED } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// A checksum of bytes that come in parts.
#[derive(Clone, Copy, Debug)]
pub struct Digest {
    state: u64,
}

impl Digest {
    /// Starts a checksum of no bytes.
    #[must_use]
    pub const fn new(algorithm: CrcAlgorithm) -> Self {
        match algorithm {
            CrcAlgorithm::Crc64Nvme => Self { state: u64::MAX },
        }
    }

    /// Adds `bytes` behind the bytes so far.
    pub fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let index = usize::from(self.state as u8 ^ byte);
            self.state = (self.state >> 8) ^ TABLE[index];
        }
    }

    /// Returns the checksum of all bytes so far.
    #[must_use]
    pub const fn finalize(&self) -> u64 {
        !self.state
    }
}

#[cfg(test)]
mod tests {
    use super::{CrcAlgorithm, Digest};

    fn checksum(parts: &[&[u8]]) -> u64 {
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        for part in parts {
            digest.update(part);
        }
        digest.finalize()
    }

    #[test]
    fn checksums_are_those_of_the_specification() {
        assert_eq!(checksum(&[b"123456789"]), 0xae8b_1486_0a79_9888);
        // Figure 122 of the specification: 4 KiB of zeros.
        assert_eq!(checksum(&[&[0; 4096]]), 0x6482_d367_eb22_b64e);
        // The next lines of the figure: 4 KiB of ones, and the bytes 0, 1, 2, ..., 255 repeated.
        assert_eq!(checksum(&[&[0xff; 4096]]), 0xc0dd_ba73_02ec_a3ac);
        let rising: Vec<u8> = (0..4096).map(|index| index as u8).collect();
        assert_eq!(checksum(&[&rising]), 0x3e72_9f5f_6750_449c);
    }

    #[test]
    fn parts_make_the_checksum_of_the_whole() {
        assert_eq!(checksum(&[b"1234", b"", b"56789"]), checksum(&[b"123456789"]));
        assert_eq!(checksum(&[]), 0);
    }
}
