//! The two contents that alternate in the versions of the swapped model.

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

/// Seeds of the contents. Two contents share no values.
pub const SEEDS: [u64; 2] = [1, 2];

/// Returns the index of the content of `version`: they alternate.
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
    /// Returns both contents in the mappable layout. The cache keeps them.
    pub fn layouts(env: &BenchEnv, bytes: u64) -> Result<SwapContents> {
        let ctr = Ctr::of_bytes(bytes);
        SwapContents::make(env, &ctr, "", &|seed, dir, progress| {
            ctr.write_layout(seed, dir, progress)
        })
    }

    /// Returns both contents as ordinary files with everything embedded.
    pub fn embedded(env: &BenchEnv, bytes: u64) -> Result<SwapContents> {
        let ctr = Ctr::of_bytes(bytes);
        let write = |seed, dir: &Path, progress: &dyn Fn(u64)| {
            ctr.write_embedded(seed, &dir.join("model.onnx"), progress)
        };
        SwapContents::make(env, &ctr, "-embedded", &write)
    }

    /// Returns both contents as TorchScript modules, which every arm serves.
    pub fn modules(env: &BenchEnv, bytes: u64) -> Result<SwapContents> {
        let ctr = Ctr::of_bytes(bytes);
        let engine = TorchEngine::new(env.libtorch.clone());
        let write = |seed, dir: &Path, progress: &dyn Fn(u64)| {
            module::write(&engine, &ctr, seed, dir, progress)
        };
        SwapContents::make(env, &ctr, "-torch", &write)
    }

    /// Returns the model.
    pub fn ctr(&self) -> &Ctr {
        &self.ctr
    }

    /// Returns the directory with the files of `version`.
    pub fn of(&self, version: VersionNumber) -> &Path {
        &self.dirs[index_of(version)]
    }

    /// Reads all files once, so that they are in the page cache. The heap arm reads through it, and
    /// must not be charged for a cold one.
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

/// Writes the content of a seed into an empty directory, and reports the number of bytes written.
type Write<'a> = dyn Fn(u64, &Path, &dyn Fn(u64)) -> Result<()> + 'a;
