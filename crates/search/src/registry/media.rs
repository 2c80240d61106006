//! Media of collections: the access to their files, and the place of files in memory.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use memory::{PoolConfig, SlotPool};
use os::Rate;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use storage::{DaxMedium, DramMedium, Medium, MediumKind, MmapMedium, UringMedium};

use crate::budget::{BudgetReservation, MemoryBudget};

/// Divisor of the memory limit for files in DRAM.
const FILES_SHARE: u64 = 2;

/// Access to the files of collections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediumChoice {
    /// In place if the file system has DAX on persistent memory. Otherwise through io_uring, or by
    /// ordinary reads if the system refuses it.
    #[default]
    Auto,
    /// Through io_uring, bypassing the page cache.
    Nvme,
    /// Copied to memory when opened. Half of the memory limit is for files, and half for the rest.
    Dram,
    /// Mapped through the page cache, which is outside of the limit.
    Mmap,
    /// In place on persistent memory, whose file system is mounted with DAX.
    Dax,
    /// As `Dax`, but simulated with ordinary files. For tests.
    #[serde(skip)]
    Pmem,
}

impl MediumChoice {
    /// Returns its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            MediumChoice::Auto => "auto",
            MediumChoice::Nvme => "nvme",
            MediumChoice::Dram => "dram",
            MediumChoice::Mmap => "mmap",
            MediumChoice::Dax => "dax",
            MediumChoice::Pmem => "pmem",
        }
    }
}

impl FromStr for MediumChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<MediumChoice> {
        use MediumChoice::{Auto, Dax, Dram, Mmap, Nvme};
        [Auto, Nvme, Dram, Mmap, Dax].into_iter().find(|choice| choice.name() == name).ok_or_else(
            || Error::invalid(format!("\"{name}\" is not one of auto, nvme, dram, mmap and dax")),
        )
    }
}

/// Tests if collections in `directory`, which exists, can be used in place on persistent memory.
///
/// # Errors
/// `Unimplemented` with a remedy if not, otherwise the file system's error.
pub fn probe_dax(directory: &Path) -> Result<()> {
    storage::dax::probe(directory)
}

/// Layout of a collection's files. It is fixed when the collection is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileLayout {
    /// The bytes of the file alone.
    Plain,
    /// A page with the length before them, as [`DaxMedium`] writes it.
    Dax,
}

/// Factory of the collections' media.
pub(super) struct Media {
    choice: MediumChoice,
    /// NUMA node of files in DRAM.
    node: Option<u32>,
    budget: Arc<MemoryBudget>,
    files: Mutex<Option<FileMemory>>,
}

/// Memory of files in DRAM.
struct FileMemory {
    pool: Arc<SlotPool>,
    _held: BudgetReservation,
}

impl Media {
    /// Creates the media of the collections in `directory`. `choice` is for collections that have
    /// no choice of their own. Memory for files in DRAM is reserved from `budget` by this call, or
    /// when the first collection needs it.
    ///
    /// # Errors
    /// `InvalidArgument` if the system has no such NUMA node, `Unimplemented` with a remedy if DAX
    /// is chosen and the file system has none.
    pub(super) fn new(
        choice: MediumChoice,
        node: Option<u32>,
        directory: &Path,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Media> {
        if choice == MediumChoice::Dax {
            probe_dax(directory)?;
        }
        let media = Media { choice, node, budget: budget.clone(), files: Mutex::default() };
        if choice == MediumChoice::Dram {
            media.file_memory()?;
        }
        Ok(media)
    }

    /// Returns the choice of a collection: its own choice, or the choice of the registry.
    fn choice(&self, own: Option<MediumChoice>) -> MediumChoice {
        own.unwrap_or(self.choice)
    }

    /// Returns the layout of a new collection in `directory`.
    ///
    /// # Errors
    /// `Unimplemented` with a remedy if DAX is chosen and the file system has none.
    pub(super) fn layout(&self, own: Option<MediumChoice>, directory: &Path) -> Result<FileLayout> {
        match self.choice(own) {
            MediumChoice::Pmem => Ok(FileLayout::Dax),
            MediumChoice::Dax => probe_dax(directory).map(|()| FileLayout::Dax),
            MediumChoice::Auto if probe_dax(directory).is_ok() => Ok(FileLayout::Dax),
            _ => Ok(FileLayout::Plain),
        }
    }

    /// Opens the medium of a collection with files of this layout in `directory`.
    ///
    /// # Errors
    /// `FailedPrecondition` if the choice cannot read this layout, `ResourceExhausted` if there is
    /// no memory for files in DRAM. Otherwise the error of the medium.
    pub(super) fn open(
        &self,
        own: Option<MediumChoice>,
        layout: FileLayout,
        directory: &Path,
    ) -> Result<Arc<dyn Medium>> {
        let choice = self.choice(own);
        let in_place =
            matches!(choice, MediumChoice::Auto | MediumChoice::Dax | MediumChoice::Pmem);
        let directory = directory.to_owned();
        match (choice, layout) {
            (MediumChoice::Pmem, FileLayout::Dax) => Ok(Arc::new(DaxMedium::simulated(directory)?)),
            (_, FileLayout::Dax) if in_place => Ok(Arc::new(DaxMedium::new(directory)?)),
            (_, FileLayout::Dax) => Err(Error::precondition(format!(
                "its files were made for persistent memory, which {} cannot read; start the server with \
                 --search-medium auto, or copy the points into a new collection",
                choice.name()
            ))),
            (MediumChoice::Dax | MediumChoice::Pmem, FileLayout::Plain) => {
                Err(Error::precondition(
                    "its files were not made for persistent memory, so dax cannot read them; start the server \
                     with --search-medium auto, or copy the points into a new collection",
                ))
            }
            (MediumChoice::Dram, _) => {
                Ok(Arc::new(DramMedium::new(self.file_memory()?, Some(directory))?))
            }
            (MediumChoice::Mmap, _) => Ok(Arc::new(MmapMedium::new(directory)?)),
            (MediumChoice::Nvme, _) => Ok(Arc::new(UringMedium::new(directory)?)),
            (MediumChoice::Auto, _) => match UringMedium::new(directory.clone()) {
                Ok(medium) => Ok(Arc::new(medium)),
                Err(error) if error.kind() == ErrorKind::Unimplemented => {
                    tracing::warn!(%error, "files are read one at a time");
                    Ok(Arc::new(UringMedium::plain(directory)?))
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Returns the memory of files in DRAM, which is reserved at the first call.
    fn file_memory(&self) -> Result<Arc<SlotPool>> {
        let mut files = self.files.lock();
        if let Some(files) = &*files {
            return Ok(files.pool.clone());
        }
        let bytes_max = self.budget.stats().limit / FILES_SHARE;
        let held = self.budget.reserve(bytes_max, "the memory for files in DRAM")?;
        let config = PoolConfig { bytes_max, huge_pages: true, fault_rate: Rate::unlimited() };
        let pool = match self.node {
            Some(node) => SlotPool::on_node(config, node)?,
            None => SlotPool::new(config)?,
        };
        *files = Some(FileMemory { pool: pool.clone(), _held: held });
        Ok(pool)
    }
}

/// Returns the name of a medium in settings and metrics.
pub fn medium_name(kind: MediumKind) -> &'static str {
    match kind {
        MediumKind::Dram => "dram",
        MediumKind::Dax => "dax",
        MediumKind::Nvme => "nvme",
        MediumKind::Mmap => "mmap",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(choice: MediumChoice) -> Media {
        let budget = MemoryBudget::new(64 << 20);
        Media { choice, node: None, budget, files: Mutex::default() }
    }

    #[test]
    fn names_are_parsed() {
        for choice in [MediumChoice::Auto, MediumChoice::Nvme, MediumChoice::Dax] {
            assert_eq!(choice.name().parse::<MediumChoice>().unwrap(), choice);
        }
        assert!("pmem".parse::<MediumChoice>().is_err(), "for tests only");
        assert!("".parse::<MediumChoice>().is_err());
    }

    #[test]
    fn a_layout_is_read_by_media_that_can() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let kind =
            |choice, own, layout| media(choice).open(own, layout, path).map(|medium| medium.kind());
        let (auto, dax) = (MediumChoice::Auto, MediumChoice::Dax);
        assert_eq!(kind(auto, None, FileLayout::Plain).unwrap(), MediumKind::Nvme);
        assert_eq!(kind(auto, Some(MediumChoice::Mmap), FileLayout::Plain), Ok(MediumKind::Mmap));
        assert_eq!(kind(MediumChoice::Pmem, None, FileLayout::Dax).unwrap(), MediumKind::Dax);
        let refused = [
            (dax, FileLayout::Plain),
            (MediumChoice::Nvme, FileLayout::Dax),
            (MediumChoice::Dram, FileLayout::Dax),
            (MediumChoice::Mmap, FileLayout::Dax),
        ];
        for (choice, layout) in refused {
            let error = kind(choice, None, layout).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{choice:?}");
            assert!(error.message().contains("--search-medium auto"), "{error}");
        }
        // No machine of the tests has persistent memory under its temporary directory.
        assert_eq!(media(auto).layout(None, path).unwrap(), FileLayout::Plain);
        let error = media(dax).layout(None, path).unwrap_err();
        let reason = if cfg!(target_arch = "x86_64") {
            "mount a file system with -o dax"
        } else {
            "on x86-64 only"
        };
        assert!(error.message().contains(reason), "{error}");
    }

    #[test]
    fn dram_takes_half_of_the_memory_once() {
        let directory = tempfile::tempdir().unwrap();
        let budget = MemoryBudget::new(64 << 20);
        let media = Media::new(MediumChoice::Auto, None, directory.path(), &budget).unwrap();
        assert_eq!(budget.stats().used, 0);
        for _ in 0..2 {
            let own = Some(MediumChoice::Dram);
            let medium = media.open(own, FileLayout::Plain, directory.path()).unwrap();
            assert_eq!(medium.kind(), MediumKind::Dram);
            assert_eq!(budget.stats().used, 32 << 20);
        }
        let full = MemoryBudget::new(64 << 20);
        let _held = full.reserve(40 << 20, "a test").unwrap();
        let error = Media::new(MediumChoice::Dram, None, directory.path(), &full).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        let error = Media::new(MediumChoice::Dax, None, directory.path(), &budget).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unimplemented, "no machine of the tests has DAX");
    }
}
