//! Objects in a directory of this machine, written past the page cache. Gigabytes in the cache
//! would stall the cores of a virtual machine. The system would write them to the disk in bursts
//! that delay searches.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::{Error, Result};
use os::{DirectWriter, sync_directory};

/// Object that is being written under a temporary name. It appears complete, or not at all.
pub(crate) struct LocalObject {
    staged: PathBuf,
    path: PathBuf,
    writer: DirectWriter,
}

impl LocalObject {
    /// Creates an object of `bytes` bytes at `path`.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn create(path: PathBuf, bytes: u64) -> Result<LocalObject> {
        let directory = parent(&path)?;
        os::private::create_dir_all(directory).map_err(|error| Error::io(directory, &error))?;
        let staged = staged(&path);
        let writer = DirectWriter::open(&staged, bytes)?;
        Ok(LocalObject { staged, path, writer })
    }

    /// Writes `content` at `offset`.
    ///
    /// # Errors
    /// The error of the disk.
    pub(crate) fn write(&mut self, content: &[u8], offset: u64) -> Result<()> {
        self.writer.write_all_at(content, offset)
    }

    /// Makes the object durable and gives it its name. Replaces an object of that name.
    ///
    /// # Errors
    /// The error of the disk.
    pub(crate) fn finish(self) -> Result<()> {
        self.writer.sync()?;
        std::fs::rename(&self.staged, &self.path)
            .map_err(|error| Error::io(&self.staged, &error))?;
        sync_directory(parent(&self.path)?)
    }
}

impl Drop for LocalObject {
    fn drop(&mut self) {
        // After a rename, the file does not exist. Otherwise its name is in no list of objects.
        let _ = std::fs::remove_file(&self.staged);
    }
}

fn parent(path: &Path) -> Result<&Path> {
    path.parent().ok_or_else(|| Error::internal("an object has no directory"))
}

/// Returns a name that `LocalFileSystem` lists as no object: `#` and digits at its end. The digits
/// differ between processes and machines that write to the same directory.
fn staged(path: &Path) -> PathBuf {
    let now = base::unix_time(SystemTime::now()).as_nanos();
    let mut staged = path.as_os_str().to_owned();
    staged.push(format!("#{now}{}", std::process::id()));
    staged.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_appear_whole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("deep/er/object");
        let names = || {
            let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let content: Vec<u8> = (0..10_000_u32).map(|at| at as u8).collect();
        let mut object = LocalObject::create(path.clone(), content.len() as u64).unwrap();
        object.write(&content[..9_000], 0).unwrap();
        let staged: Vec<String> = names();
        assert!(!path.exists());
        assert!(staged[0].split_once('#').unwrap().1.bytes().all(|byte| byte.is_ascii_digit()));
        object.write(&content[9_000..], 9_000).unwrap();
        object.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names()), (content, vec!["object".to_owned()]));
        drop(LocalObject::create(path.clone(), 5).unwrap());
        let left: Vec<String> = names();
        assert_eq!(left, ["object"], "one that was given up");
    }
}
