//! The two contents that versions of the swapped model have in turn.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use base::units::format_bytes;
use base::{Error, Result, VersionNumber};
use engine_torch::TorchEngine;

use crate::ctr::Ctr;
use crate::module;
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::report::StepProgress;

/// Their seeds: nothing of one can be taken over from the other.
pub const SEEDS: [u64; 2] = [1, 2];

/// Which of the contents version `version` has: they alternate.
pub fn index_of(version: VersionNumber) -> usize {
    (version.saturating_sub(1) % SEEDS.len() as u64) as usize
}

/// Both contents on disk.
#[derive(Clone, Debug)]
pub struct SwapContents {
    ctr: Ctr,
    dirs: Vec<PathBuf>,
}

impl SwapContents {
    /// In the mappable layout; made where the cache does not have them.
    pub fn layouts(env: &BenchEnv, bytes: u64) -> Result<SwapContents> {
        let ctr = Ctr::of_bytes(bytes);
        SwapContents::make(env, &ctr, "", &|seed, dir, progress| {
            ctr.write_layout(seed, dir, progress)
        })
    }

    /// As ordinary files with everything embedded.
    pub fn embedded(env: &BenchEnv, bytes: u64) -> Result<SwapContents> {
        let ctr = Ctr::of_bytes(bytes);
        let write = |seed, dir: &Path, progress: &dyn Fn(u64)| {
            ctr.write_embedded(seed, &dir.join("model.onnx"), progress)
        };
        SwapContents::make(env, &ctr, "-embedded", &write)
    }

    /// As TorchScript modules, which are what every arm serves.
    pub fn modules(env: &BenchEnv, bytes: u64) -> Result<SwapContents> {
        let ctr = Ctr::of_bytes(bytes);
        let engine = TorchEngine::new(env.libtorch.clone());
        let write = |seed, dir: &Path, progress: &dyn Fn(u64)| {
            module::write(&engine, &ctr, seed, dir, progress)
        };
        SwapContents::make(env, &ctr, "-torch", &write)
    }

    /// The model they are versions of.
    pub fn ctr(&self) -> &Ctr {
        &self.ctr
    }

    /// The directory whose files version `version` has.
    pub fn of(&self, version: VersionNumber) -> &Path {
        &self.dirs[index_of(version)]
    }

    /// Reads all files once, so that they lie in the page cache: the heap arm reads through it, and
    /// shall not be charged for a cold one.
    pub fn read_ahead(&self) -> Result<()> {
        for dir in &self.dirs {
            for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
                let path = entry.map_err(|e| Error::io(dir, &e))?.path();
                let mut file = std::fs::File::open(&path).map_err(|e| Error::io(&path, &e))?;
                std::io::copy(&mut file, &mut std::io::sink()).map_err(|e| Error::io(&path, &e))?;
            }
        }
        Ok(())
    }

    fn make(env: &BenchEnv, ctr: &Ctr, form: &str, write: &Write<'_>) -> Result<SwapContents> {
        let progress = StepProgress::new(ctr.bytes() >> 20);
        let one = |seed: u64| {
            let key = format!("{}-s{seed}{form}", ctr.key());
            cache::ensure(&env.cache_dir, &key, ctr.bytes(), |dir| {
                progress.say(format!("MiB of {key} ({}), made once", format_bytes(ctr.bytes())));
                let done = Cell::new(0u64);
                write(seed, dir, &|bytes| {
                    done.set(done.get() + bytes);
                    progress.at(done.get() >> 20, ctr.bytes() >> 20);
                })
            })
        };
        Ok(SwapContents {
            ctr: ctr.clone(),
            dirs: SEEDS.into_iter().map(one).collect::<Result<_>>()?,
        })
    }
}

/// Writes the content of a seed into an empty directory, telling how many bytes it has put.
type Write<'a> = dyn Fn(u64, &Path, &dyn Fn(u64)) -> Result<()> + 'a;
