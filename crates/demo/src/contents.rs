//! The two contents that alternate in the versions of the swapped model.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};

use base::units::format_bytes;
use base::{Error, Result, VersionNumber};
use engine_torch::TorchEngine;

use crate::ctr::{Ctr, CtrContent};
use crate::module;
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::report::StepProgress;

/// Contents that alternate in a model's versions.
pub type ContentPair = [CtrContent; 2];

/// Contents that share no values.
pub const DISTINCT: ContentPair = [CtrContent::of(1), CtrContent::of(2)];

/// Returns the index of the content of `version`: they alternate.
pub(crate) fn index_of(version: VersionNumber) -> usize {
    (version.saturating_sub(1) % 2) as usize
}

/// Both contents on disk.
#[derive(Clone, Debug)]
pub struct SwapContents {
    dirs: Vec<PathBuf>,
}

/// Format of a content's files.
#[derive(Clone, Copy, Debug)]
pub struct ContentForm<'a> {
    /// End of the cache key.
    pub suffix: &'a str,
    /// Free disk space that making a content needs, as a multiple of its parameters.
    pub disk_copies: u64,
}

impl<'a> ContentForm<'a> {
    fn new(suffix: &'a str) -> ContentForm<'a> {
        ContentForm { suffix, disk_copies: 1 }
    }
}

/// Function that writes a content into an empty directory, and reports the number of bytes written.
pub type ContentWriter<'a> = dyn Fn(CtrContent, &Path, &dyn Fn(u64)) -> Result<()> + 'a;

impl SwapContents {
    /// Returns both contents in the mappable layout. The cache keeps them.
    pub fn layouts(env: &BenchEnv, ctr: &Ctr, pair: ContentPair) -> Result<SwapContents> {
        SwapContents::make(env, ctr, pair, ContentForm::new(""), &|content, dir, progress| {
            ctr.write_layout(content, dir, progress)
        })
    }

    /// Returns both contents as ordinary files with everything embedded.
    pub fn embedded(env: &BenchEnv, ctr: &Ctr, pair: ContentPair) -> Result<SwapContents> {
        SwapContents::make(
            env,
            ctr,
            pair,
            ContentForm::new("-embedded"),
            &|content, dir, progress| {
                ctr.write_embedded(content, &dir.join("model.onnx"), progress)
            },
        )
    }

    /// Returns both contents as TorchScript modules, which every arm serves.
    pub fn modules(env: &BenchEnv, ctr: &Ctr, pair: ContentPair) -> Result<SwapContents> {
        let engine = TorchEngine::new(env.libtorch.clone());
        SwapContents::make(env, ctr, pair, ContentForm::new("-torch"), &|content, dir, progress| {
            module::write(&engine, ctr, content, dir, progress)
        })
    }

    /// Returns both contents as `write` makes them. The cache keeps them.
    pub fn make(
        env: &BenchEnv,
        ctr: &Ctr,
        pair: ContentPair,
        form: ContentForm<'_>,
        write: &ContentWriter<'_>,
    ) -> Result<SwapContents> {
        let progress = StepProgress::new(ctr.bytes() >> 20);
        let one = |content: CtrContent| {
            let key = format!("{}-{}{}", ctr.key(), content.key(), form.suffix);
            cache::ensure(&env.cache_dir, &key, ctr.bytes() * form.disk_copies, |dir| {
                progress.say(format!("MiB of {key} ({}), made once", format_bytes(ctr.bytes())));
                let done = Cell::new(0u64);
                write(content, dir, &|bytes| {
                    done.set(done.get() + bytes);
                    progress.at(done.get() >> 20, ctr.bytes() >> 20);
                })
            })
        };
        Ok(SwapContents { dirs: pair.into_iter().map(one).collect::<Result<_>>()? })
    }

    /// Returns the directory with the files of `version`.
    pub fn of(&self, version: VersionNumber) -> &Path {
        &self.dirs[index_of(version)]
    }

    /// Reads all files once, so that they are in the page cache. The heap arm reads through it, and
    /// must not be charged for a cold one.
    pub fn read_ahead(&self) -> Result<()> {
        self.dirs.iter().try_for_each(|dir| {
            each_file(dir, &|path, mut file| {
                std::io::copy(&mut file, &mut std::io::sink()).map_err(|e| Error::io(path, &e))?;
                Ok(())
            })
        })
    }

    /// Removes the files of `version` from the page cache, as if they had just arrived.
    pub fn drop_cached(&self, version: VersionNumber) -> Result<()> {
        each_file(self.of(version), &|path, file| {
            // Only pages that are on the disk can be dropped.
            let dropped = rustix::fs::fdatasync(&file)
                .and_then(|()| rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed));
            dropped.map_err(|e| Error::io(path, &e.into()))
        })
    }
}

/// Calls `with` for every file below `dir`.
fn each_file(dir: &Path, with: &dyn Fn(&Path, File) -> Result<()>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
        let path = entry.map_err(|e| Error::io(dir, &e))?.path();
        if path.is_dir() {
            each_file(&path, with)?;
        } else {
            with(&path, File::open(&path).map_err(|e| Error::io(&path, &e))?)?;
        }
    }
    Ok(())
}
