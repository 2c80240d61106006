//! Files of a job, in the directory `duplicates` of the collection.
//!
//! `state` is a small checksummed text that is replaced as a whole ([`crate::registry`]). It has
//! the options, the position and the length of `pairs`. Pairs are appended and synced before the
//! state that counts them. So bytes beyond its length belong to a step that is repeated. A pair has
//! 28 bytes. Numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8, 8..16 | the two ids |
//! | 16..20 | similarity, a float |
//! | 20..24 | score, a float that is negative if the keypoints were not compared |
//! | 24..28 | CRC-32C of bytes 0..24 |

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PAIRS_MAX;
use crate::registry::{NamedCollection, files};

/// Name of the directory inside the directory of the collection.
const DIRECTORY: &str = "duplicates";
const STATE: &str = "state";
const STATE_KIND: &str = "search for duplicates";
const PAIRS: &str = "pairs";
const PAIR_BYTES: usize = 28;

/// Pair of similar points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DuplicatePair {
    /// Lower internal id.
    pub a: u64,
    /// Higher internal id.
    pub b: u64,
    /// Similarity of the embeddings.
    pub similarity: f32,
    /// Score of the matcher, or `None` if the keypoints were not compared.
    pub score: Option<f32>,
}

impl DuplicatePair {
    fn encode(&self) -> [u8; PAIR_BYTES] {
        let mut out = [0; PAIR_BYTES];
        out[..8].copy_from_slice(&self.a.to_le_bytes());
        out[8..16].copy_from_slice(&self.b.to_le_bytes());
        out[16..20].copy_from_slice(&self.similarity.to_le_bytes());
        out[20..24].copy_from_slice(&self.score.unwrap_or(-1.0).to_le_bytes());
        let check = crc32c::crc32c(&out[..24]);
        out[24..].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Returns the pair in `bytes`, or `None` if the checksum is wrong.
    fn decode(bytes: &[u8; PAIR_BYTES]) -> Option<DuplicatePair> {
        let (content, check) = bytes.split_first_chunk::<24>()?;
        if crc32c::crc32c(content).to_le_bytes() != *check {
            return None;
        }
        let long = |at: usize| {
            content.get(at..)?.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
        };
        let float = |at: usize| {
            content.get(at..)?.first_chunk::<4>().map(|bytes| f32::from_le_bytes(*bytes))
        };
        let score = float(20)?;
        Some(DuplicatePair {
            a: long(0)?,
            b: long(8)?,
            similarity: float(16)?,
            score: (score >= 0.0).then_some(score),
        })
    }
}

/// Files of a collection's job.
#[derive(Clone, Debug)]
pub struct DuplicateStore {
    directory: PathBuf,
}

impl DuplicateStore {
    /// Returns the files of a collection, and opens nothing.
    #[must_use]
    pub fn of(named: &NamedCollection) -> DuplicateStore {
        DuplicateStore { directory: named.directory().join(DIRECTORY) }
    }

    /// Removes all files.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn remove(&self) -> Result<()> {
        match std::fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(&self.directory, &error))
            }
            _ => Ok(()),
        }
    }

    /// Reads the state. Returns `None` if there is none.
    ///
    /// # Errors
    /// `DataLoss` for a damaged file. Otherwise the error of the file system.
    pub(super) fn state<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        files::read(STATE_KIND, &self.directory.join(STATE))
    }

    /// Replaces the state. Durable when this returns.
    pub(super) fn put_state(&self, state: &impl Serialize) -> Result<()> {
        files::replace(STATE_KIND, &self.directory.join(STATE), state)
    }

    /// Opens the pairs to append after the first `pairs`, and creates the directory.
    pub(super) fn append(&self, pairs: u64) -> Result<PairsFile> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| Error::io(&path, &error)
        };
        os::private::create_dir_all(&self.directory).map_err(fail(&self.directory))?;
        let path = self.directory.join(PAIRS);
        let open = os::private::options().write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(fail(&path))?;
        let bytes = pairs * PAIR_BYTES as u64;
        let length = file.metadata().map_err(fail(&path))?.len();
        if length < bytes {
            return Err(Error::data_loss(format!(
                "{}: {length} bytes instead of {bytes}; start the search for duplicates again",
                path.display()
            )));
        }
        file.set_len(bytes).and_then(|()| file.seek(SeekFrom::End(0))).map_err(fail(&path))?;
        Ok(PairsFile { file, path, unsynced: false })
    }

    /// Reads the first `pairs` pairs.
    ///
    /// # Errors
    /// `DataLoss` for damaged bytes. Otherwise the error of the file system.
    pub fn pairs(&self, pairs: u64) -> Result<Vec<DuplicatePair>> {
        if pairs == 0 {
            return Ok(Vec::new());
        }
        if pairs > PAIRS_MAX as u64 {
            return Err(Error::data_loss(format!("{pairs} pairs are more than {PAIRS_MAX}")));
        }
        let path = self.directory.join(PAIRS);
        let fail = |error: std::io::Error| Error::io(&path, &error);
        let mut reader = BufReader::new(File::open(&path).map_err(fail)?);
        let mut out = Vec::with_capacity(pairs as usize);
        let mut bytes = [0; PAIR_BYTES];
        for number in 0..pairs {
            reader.read_exact(&mut bytes).map_err(fail)?;
            let pair = DuplicatePair::decode(&bytes).ok_or_else(|| {
                Error::data_loss(format!(
                    "{}: pair {number} does not match its checksum; start the search for duplicates again",
                    path.display()
                ))
            })?;
            out.push(pair);
        }
        Ok(out)
    }
}

/// The pairs, open to append.
pub(super) struct PairsFile {
    file: File,
    path: PathBuf,
    unsynced: bool,
}

impl PairsFile {
    pub(super) fn append(&mut self, pairs: &[DuplicatePair]) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = pairs.iter().flat_map(DuplicatePair::encode).collect();
        self.unsynced = true;
        self.file.write_all(&bytes).map_err(|error| Error::io(&self.path, &error))
    }

    /// Makes the pairs durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        if self.unsynced {
            self.file.sync_all().map_err(|error| Error::io(&self.path, &error))?;
            self.unsynced = false;
        }
        Ok(())
    }
}

#[cfg(test)]
impl DuplicateStore {
    /// Opens the pairs so that none can be appended.
    pub(super) fn unwritable(&self) -> PairsFile {
        let path = self.directory.join(PAIRS);
        PairsFile { file: File::open(&path).unwrap(), path, unsynced: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_survives_encoding_and_shows_damage() {
        for score in [None, Some(0.0), Some(480.5)] {
            let pair = DuplicatePair { a: 3, b: u64::MAX, similarity: 0.93, score };
            let bytes = pair.encode();
            assert_eq!(DuplicatePair::decode(&bytes), Some(pair));
            for at in 0..PAIR_BYTES {
                let mut damaged = bytes;
                damaged[at] ^= 4;
                assert_eq!(DuplicatePair::decode(&damaged), None, "byte {at}");
            }
        }
    }
}
