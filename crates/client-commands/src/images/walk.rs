//! Finds image files, and derives their names and ids.

use std::collections::VecDeque;
use std::fs::{self, DirEntry, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use command_line::exit::{CommandError, CommandResult};

/// File extensions of the formats that the server reads.
const ENDINGS: [&str; 12] =
    ["jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp", "wsq", "an2", "eft", "nist", "nst"];
/// File extensions of image formats that the server does not read: those of phones, of the raw data
/// of cameras, and of programs.
const UNSUPPORTED_ENDINGS: [&str; 16] = [
    "heic", "heif", "hif", "avif", "jxl", "jp2", "gif", "psd", "dng", "cr2", "cr3", "nef", "arw",
    "orf", "rw2", "raf",
];
/// Bytes at the start of a file that show a template of a fingerprint.
const HEAD_BYTES: u64 = 16;
/// Maximum number of files per call, which bounds memory.
const FILES_MAX: usize = 20_000_000;

/// An image file to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WalkedFile {
    pub(super) path: PathBuf,
    /// Name in the collection: the path below the given folder, with `/`.
    pub(super) name: String,
}

/// A file or a folder that was not added.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileFailure {
    pub(super) name: String,
    pub(super) reason: String,
}

/// Files found in some places.
#[derive(Debug, Default)]
pub(super) struct WalkResult {
    /// Image files, sorted by path.
    pub(super) found: Vec<WalkedFile>,
    /// Number of files that are not templates and do not have an image's extension.
    pub(super) ignored: u64,
    /// Number of the ignored files whose extension is that of an unsupported image format.
    pub(super) unsupported: u64,
    /// Folders and files that could not be read, by their paths.
    pub(super) unread: Vec<FileFailure>,
}

/// Finds the images in `places`. A file is taken as it is, a folder with everything below it.
/// Hidden names are skipped, and so are links to folders, which may form cycles.
///
/// # Errors
/// Returns an error if a place does not exist or there are more than `FILES_MAX` images.
pub(super) fn walk(places: &[PathBuf]) -> CommandResult<WalkResult> {
    let mut walked = WalkResult::default();
    for place in places {
        let about = fs::metadata(place).map_err(|error| {
            CommandError::failed(format!("cannot read {}: {error}", place.display()))
        })?;
        if about.is_dir() {
            walk_folder(place, &mut walked)?;
        } else {
            let name =
                place.file_name().unwrap_or(place.as_os_str()).to_string_lossy().into_owned();
            walked.found.push(WalkedFile { path: place.clone(), name });
        }
    }
    walked.found.sort_by(|a, b| a.path.cmp(&b.path));
    walked.found.dedup();
    Ok(walked)
}

fn walk_folder(root: &Path, walked: &mut WalkResult) -> CommandResult {
    let mut walk = FolderWalk { root, folders: VecDeque::from([root.to_owned()]), walked };
    while let Some(folder) = walk.folders.pop_front() {
        match fs::read_dir(&folder) {
            Ok(entries) => walk.add(&folder, entries)?,
            Err(error) => walk.add_unread(&folder, &error),
        }
    }
    Ok(())
}

/// A walk through a folder and those below it.
struct FolderWalk<'a> {
    root: &'a Path,
    /// Folders that are not read yet.
    folders: VecDeque<PathBuf>,
    walked: &'a mut WalkResult,
}

impl FolderWalk<'_> {
    /// Adds the entries of a folder. An error in the middle of a folder, such as that of a lost
    /// network, counts as an unread folder.
    ///
    /// # Errors
    /// Returns an error if there are more than [`FILES_MAX`] images.
    fn add(
        &mut self,
        folder: &Path,
        entries: impl Iterator<Item = std::io::Result<DirEntry>>,
    ) -> CommandResult {
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.add_unread(folder, &error);
                    continue;
                }
            };
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.folders.push_back(path),
                Ok(kind) if kind.is_file() || path.is_file() => self.add_file(path)?,
                Ok(_) => {}
                Err(error) => self.add_unread(&path, &error),
            }
        }
        Ok(())
    }

    fn add_unread(&mut self, path: &Path, error: &std::io::Error) {
        let name = path.display().to_string();
        self.walked.unread.push(FileFailure { name, reason: error.to_string() });
    }

    /// Adds a file if its name is that of an image or a template. Counts other files.
    ///
    /// # Errors
    /// Returns a usage error for more than [`FILES_MAX`] images.
    fn add_file(&mut self, path: PathBuf) -> CommandResult {
        let walked = &mut *self.walked;
        if !is_image(&path) && !is_template(&path) {
            walked.ignored += 1;
            walked.unsupported += u64::from(has_ending(&path, &UNSUPPORTED_ENDINGS));
        } else if walked.found.len() == FILES_MAX {
            return Err(CommandError::usage(format!(
                "more than {FILES_MAX} images: name fewer folders"
            )));
        } else {
            walked.found.push(WalkedFile { name: name_below(self.root, &path), path });
        }
        Ok(())
    }
}

fn is_image(path: &Path) -> bool {
    has_ending(path, &ENDINGS)
}

/// Returns true if the file has one of the extensions, in any case.
fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| endings.iter().any(|known| known.eq_ignore_ascii_case(ending)))
}

/// Returns true for a template of a fingerprint, which can have any extension. ISO/IEC 19794-2 and
/// ANSI 378 begin with "FMR". `SourceAFIS` begins with a map of CBOR whose first key is "version".
/// Returns false for a file that cannot be read.
fn is_template(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    let is_sourceafis =
        |first: u8, rest: &[u8]| first >> 5 == 5 && rest.starts_with(b"\x67version");
    match head.split_first() {
        Some((first, rest)) if read.is_ok() => {
            head.starts_with(b"FMR\0") || is_sourceafis(*first, rest)
        }
        _ => false,
    }
}

fn name_below(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = below.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

/// Computes the id that the server gives to a file: the first half of its BLAKE3 hash as a UUID of
/// version 8.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(super) fn id_of(path: &Path) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    let hash = hasher.finalize();
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    // Version and variant bits of RFC 9562, section 5.8.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut id = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            id.push('-');
        }
        id.push_str(&format!("{byte:02x}"));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_found_below_folders_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        };
        ["b/a.JPG", "a.png", "notes.txt", ".thumbs/x.jpg", ".hidden.png", "b/c/d.webp", "e"]
            .into_iter()
            .for_each(put);
        std::os::unix::fs::symlink(dir.path(), dir.path().join("b/round")).unwrap();
        let walked = walk(&[dir.path().to_owned()]).unwrap();
        let names: Vec<&str> = walked.found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["a.png", "b/a.JPG", "b/c/d.webp"]);
        assert_eq!((walked.ignored, walked.unread.len()), (2, 0));
        // A file given by name is taken with any extension, and only once.
        let file = dir.path().join("e");
        assert_eq!(
            walk(&[file.clone(), file.clone()]).unwrap().found,
            [WalkedFile { path: file, name: "e".into() }]
        );
        assert!(walk(&[dir.path().join("gone")]).is_err());
    }

    #[test]
    fn an_error_in_the_middle_of_a_folder_is_reported() {
        let mut walked = WalkResult::default();
        let folder = Path::new("/photos");
        let mut walk = FolderWalk { root: folder, folders: VecDeque::new(), walked: &mut walked };
        let lost = std::io::Error::other("the network is lost");
        walk.add(folder, std::iter::once(Err(lost))).unwrap();
        let failure = FileFailure { name: "/photos".into(), reason: "the network is lost".into() };
        assert_eq!(walked.unread, [failure]);
    }

    #[test]
    fn images_of_unsupported_formats_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["IMG_1.HEIC", "b.avif", "c.png", "notes.txt"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let walked = walk(&[dir.path().to_owned()]).unwrap();
        assert_eq!((walked.found.len(), walked.ignored, walked.unsupported), (1, 3, 2));
    }

    #[test]
    fn templates_are_found_by_their_contents() {
        let dir = tempfile::tempdir().unwrap();
        for (name, contents) in [
            ("left.iso", &b"FMR\0 20\0"[..]),
            ("right", b"\xbf\x67version\x6b3.18.1-java"),
            ("disk.iso", b"CD001"),
            ("map.cbor", b"\xa1\x61x\x01"),
            ("empty", b""),
        ] {
            fs::write(dir.path().join(name), contents).unwrap();
        }
        let walked = walk(&[dir.path().to_owned()]).unwrap();
        let names: Vec<&str> = walked.found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!((names, walked.ignored), (vec!["left.iso", "right"], 3));
    }

    #[test]
    fn ids_are_uuids_of_the_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        fs::write(&path, "").unwrap();
        // BLAKE3 of nothing is af1349b9f5f9a1a6a0404dea36dcc949...
        assert_eq!(id_of(&path).unwrap(), "af1349b9-f5f9-81a6-a040-4dea36dcc949");
    }
}
