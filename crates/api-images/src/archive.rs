//! Zip archives of images. Entries are read into memory in turn, each within limits. The directory
//! of an archive stays in the file. The name of an entry becomes the name of its image, and never a
//! path of a file.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use base::{Error, Result};
use bytes::Bytes;
use image_features::features::{IMAGE_BYTES_MAX, end_of_name};
use image_features::template_file::FileFormat;
use transport::upload::UploadReader;
use zip::read::ZipFileEntry;
use zip::unstable::read::{ZipIterable, ZipIterableFiles};
use zip::{CompressionMethod, ZipReadOptions};

use super::bulk::{BulkImage, ImageFiles, ImageSource, SourceEntry};

/// Maximum bytes of an archive.
pub(crate) const ARCHIVE_BYTES_MAX: u64 = 8 << 30;
/// Maximum entries of an archive.
const ENTRIES_MAX: usize = 1_000_000;
/// Maximum bytes of the directory of an archive, which is read twice.
const DIRECTORY_BYTES_MAX: u64 = 256 << 20;
/// Largest ratio of the contents to the archive. Images hardly shrink in an archive, so a larger
/// ratio means a zip bomb.
const RATIO_MAX: u64 = 50;
/// Bytes that the contents may have at any ratio.
const CONTENTS_BYTES_FREE: u64 = 1 << 30;
/// Bytes at the start of an entry that show its format.
const HEAD_BYTES: usize = 16;
/// Bytes copied at once to the temporary file.
const COPY_BYTES: usize = 64 << 10;
/// Bytes of an upload between two checks of the free space.
const CHECKED_BYTES: u64 = 1 << 20;

/// An archive in a temporary file that has no name.
pub(crate) struct Archive {
    entries: ZipIterable<File>,
    /// Bytes that the contents may have.
    contents_bytes_max: u64,
}

/// Images of an archive, in the order of its directory.
struct ArchiveImages<'a> {
    entries: &'a mut ZipIterableFiles<File>,
    /// Bytes that the remaining contents may have.
    left: u64,
    /// True if the contents are too large, so that the rest is not read.
    stopped: bool,
}

impl Archive {
    /// Copies an upload to an unnamed file in `directory`, or the system's, and opens it as an
    /// archive. `check_room` fails if the disk has no room for so many more bytes.
    ///
    /// # Errors
    /// The error that ended the upload; `InvalidArgument` if it is not an archive; `TooLarge` for
    /// too many entries; `StorageFull` if the disk is full; the error of `check_room`.
    pub(crate) fn receive(
        mut upload: UploadReader,
        directory: Option<&std::path::Path>,
        check_room: impl Fn(u64) -> Result<()>,
    ) -> Result<Archive> {
        let made = match directory {
            Some(directory) => tempfile::tempfile_in(directory),
            None => tempfile::tempfile(),
        };
        let disk = |error: io::Error| not_stored(&error);
        let mut file = made.map_err(disk)?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut length = 0;
        let mut checked = 0;
        loop {
            let count = upload.read(&mut buffer).map_err(|error| upload_ended_early(&error))?;
            if count == 0 {
                break;
            }
            length += count as u64;
            if length > checked {
                check_room(CHECKED_BYTES).map_err(|error| error.context("the archive"))?;
                checked = length + CHECKED_BYTES;
            }
            file.write_all(buffer.get(..count).unwrap_or_default()).map_err(disk)?;
        }
        file.seek(SeekFrom::Start(0)).map_err(disk)?;
        Archive::open(file, length)
    }

    /// Opens a file of `length` bytes, whose position is its start.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not an archive; `TooLarge` for too many entries.
    fn open(file: File, length: u64) -> Result<Archive> {
        check_directory(BufReader::new(&file), ENTRIES_MAX, DIRECTORY_BYTES_MAX)?;
        // `zip::ZipArchive` would hold all of the directory, in several times its bytes.
        let opened = ZipIterable::try_new(file, zip::read::Config::default());
        let entries = opened.map_err(|error| no_archive(&error))?;
        let contents_bytes_max = length.saturating_mul(RATIO_MAX).max(CONTENTS_BYTES_FREE);
        Ok(Archive { entries, contents_bytes_max })
    }
}

impl ImageFiles for Archive {
    fn images(&mut self) -> Result<impl ImageSource> {
        let entries = self.entries.files().map_err(|error| no_archive(&error))?;
        Ok(ArchiveImages { entries, left: self.contents_bytes_max, stopped: false })
    }
}

impl ArchiveImages<'_> {
    /// Reads the entry `listed`. An entry that cannot be read becomes a failed image, so that the
    /// others are still added.
    fn read(&mut self, listed: ZipFileEntry<'_>) -> SourceEntry {
        let name = listed.name().map_or_else(|_| "image".to_owned(), |name| last_part(&name));
        let opened = listed.with_reader(self.entries.reader_mut(), ZipReadOptions::new());
        let mut entry = match opened {
            Ok(entry) => entry,
            Err(error) => return SourceEntry::Failed(name, unreadable(&error)),
        };
        if entry.is_dir() {
            return SourceEntry::Nothing;
        }
        if entry.is_symlink() {
            return SourceEntry::Failed(
                name,
                Error::invalid("this entry is a link, which is not followed"),
            );
        }
        if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
            return SourceEntry::Failed(
                name,
                Error::invalid(
                    "the compression of this entry is not supported; make the archive with Deflate, or send the file",
                ),
            );
        }
        let mut bytes = Vec::new();
        let most = (IMAGE_BYTES_MAX as u64).min(self.left);
        let broken = |error: &io::Error| Error::invalid(format!("this entry is damaged: {error}"));
        if let Err(error) = entry.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut bytes) {
            return SourceEntry::Failed(name, broken(&error));
        }
        if bytes.starts_with(b"PK\x03\x04") {
            return SourceEntry::Failed(
                name,
                Error::invalid("an archive inside an archive is not opened; send it by itself"),
            );
        }
        if !FileFormat::has_magic(&bytes) && !looks_like_an_image(&name) {
            return SourceEntry::Ignored;
        }
        let rest = (most + 1).saturating_sub(bytes.len() as u64);
        if let Err(error) = entry.by_ref().take(rest).read_to_end(&mut bytes) {
            // A wrong checksum is found once all bytes are unpacked.
            self.left = self.left.saturating_sub(bytes.len() as u64);
            return SourceEntry::Failed(name, broken(&error));
        }
        if bytes.len() as u64 > self.left {
            self.stopped = true;
            let text =
                "the archive's contents are far larger than the archive; the rest is not read";
            return SourceEntry::Failed(name, Error::too_large(text));
        }
        self.left -= bytes.len() as u64;
        if bytes.len() > IMAGE_BYTES_MAX {
            return SourceEntry::Failed(
                name,
                Error::too_large(format!("an image has at most {IMAGE_BYTES_MAX} bytes")),
            );
        }
        SourceEntry::Image(BulkImage { name, bytes: Bytes::from(bytes) })
    }
}

impl ImageSource for ArchiveImages<'_> {
    fn next(&mut self) -> Option<SourceEntry> {
        if self.stopped {
            return None;
        }
        Some(match self.entries.next()? {
            Ok(listed) => self.read(listed),
            // The directory was checked, so its file cannot be read any more.
            Err(error) => SourceEntry::Failed("image".to_owned(), unreadable(&error)),
        })
    }
}

/// Opens an archive and reads at most `entries_max` of its entries, for the fuzz target.
///
/// # Errors
/// As [`Archive::open`].
pub(crate) fn read_entries(file: File, length: u64, entries_max: usize) -> Result<()> {
    let mut archive = Archive::open(file, length)?;
    let mut images = archive.images()?;
    for _ in 0..entries_max {
        match images.next() {
            None => break,
            Some(SourceEntry::Image(image)) => assert!(image.bytes.len() <= IMAGE_BYTES_MAX),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Checks all of the directory of an archive and its size, entry by entry.
fn check_directory<R: Read + Seek>(reader: R, entries_max: usize, bytes_max: u64) -> Result<()> {
    let opened = ZipIterable::try_new(reader, zip::read::Config::default());
    let mut listed = opened.map_err(|error| no_archive(&error))?;
    if listed.len() > entries_max {
        return Err(Error::too_large(format!(
            "an archive has at most {entries_max} entries; send several"
        )));
    }
    let mut first = None;
    for entry in listed.files().map_err(|error| no_archive(&error))? {
        let entry = entry.map_err(|error| no_archive(&error))?;
        let at = entry.central_header_start();
        if at - *first.get_or_insert(at) > bytes_max {
            return Err(Error::too_large(format!(
                "the directory of an archive has at most {bytes_max} bytes; send several archives"
            )));
        }
    }
    Ok(())
}

fn no_archive(error: &zip::result::ZipError) -> Error {
    Error::invalid(format!("this is not a zip archive, or the archive is incomplete: {error}"))
}

fn not_stored(error: &io::Error) -> Error {
    let text = format!("the archive cannot be kept in a file: {error}");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Error::storage_full(text)
        }
        _ => Error::exhausted(text),
    }
}

fn unreadable(error: &zip::result::ZipError) -> Error {
    let text = error.to_string();
    if text.contains("assword") {
        return Error::invalid("this entry is encrypted; extract it, and send the file");
    }
    Error::invalid(format!("this entry cannot be read: {text}"))
}

fn upload_ended_early(error: &io::Error) -> Error {
    Error::cancelled(format!("the upload ended early, and none of its images was added: {error}"))
}

/// Returns the last part of an entry's name, without directories and control characters.
fn last_part(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or("image");
    end_of_name(last.chars().filter(|c| !c.is_control()).take(255).collect())
}

/// Returns true if the extension is that of an image or a template. A damaged file with such a name
/// is reported instead of ignored.
pub(crate) fn looks_like_an_image(name: &str) -> bool {
    // Resource forks of a Mac's archives have the image's name after "._".
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let known = [
        "jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp", "wsq", "an2", "eft", "nist", "nst",
        "fmr",
    ];
    !name.starts_with("._")
        && extension.is_some_and(|extension| known.contains(&extension.as_str()))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use zip::write::SimpleFileOptions;

    use super::*;

    #[test]
    fn the_directory_is_checked_before_entries_are_read() {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        for number in 0..4 {
            writer.start_file(format!("{number}.png"), SimpleFileOptions::default()).unwrap();
        }
        let bytes = writer.finish().unwrap().into_inner();
        let check = |entries_max, bytes_max| {
            check_directory(io::Cursor::new(&bytes), entries_max, bytes_max)
                .map_err(|error| error.kind())
        };
        assert_eq!(check(4, 1 << 20), Ok(()));
        assert_eq!(check(3, 1 << 20), Err(ErrorKind::TooLarge));
        assert_eq!(check(4, 60), Err(ErrorKind::TooLarge));
        let none = check_directory(io::Cursor::new(b"no archive"), 1, 1).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn entries_of_the_same_name_are_all_read() {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        for name in ["a/1.png", "b/1.png"] {
            writer.start_file(name, stored).unwrap();
            writer.write_all(name.as_bytes()).unwrap();
        }
        let mut bytes = writer.finish().unwrap().into_inner();
        // An index by name has one entry for both.
        while let Some(at) = bytes.windows(7).position(|window| window == b"b/1.png") {
            bytes[at] = b'a';
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mut archive = Archive::open(file, bytes.len() as u64).unwrap();
        let mut images = archive.images().unwrap();
        let mut names = Vec::new();
        while let Some(found) = images.next() {
            match found {
                SourceEntry::Image(image) => names.push(image.name),
                SourceEntry::Failed(name, _) => names.push(name),
                _ => {}
            }
        }
        assert_eq!(names, ["1.png", "1.png"]);
    }

    #[test]
    fn damaged_entries_count_against_the_limit() {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file("a.png", stored).unwrap();
        writer.write_all(&[7; 1000]).unwrap();
        let mut bytes = writer.finish().unwrap().into_inner();
        let at = bytes.windows(8).position(|window| window == [7; 8]).unwrap();
        bytes[at + 500] ^= 1;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mut archive = ZipIterable::try_new(file, zip::read::Config::default()).unwrap();
        let entries = archive.files().unwrap();
        let mut images = ArchiveImages { entries, left: 5000, stopped: false };
        assert!(matches!(images.next(), Some(SourceEntry::Failed(..))));
        assert_eq!(images.left, 4000);
    }

    #[test]
    fn an_entry_that_cannot_be_unpacked_is_named_with_the_reason() {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file("album/a.png", stored).unwrap();
        writer.write_all(&[7; 100]).unwrap();
        let whole = writer.finish().unwrap().into_inner();
        let listed = whole.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        // Offset and value of a field in the entry's header, and offset in the directory.
        for (at, value, at_listed, reason) in
            [(8, 12, 10, "compression of this entry"), (6, 1, 8, "is encrypted")]
        {
            let mut bytes = whole.clone();
            bytes[at] = value;
            bytes[listed + at_listed] = value;
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            let mut archive = Archive::open(file, bytes.len() as u64).unwrap();
            let Some(SourceEntry::Failed(name, error)) = archive.images().unwrap().next() else {
                panic!("{reason}");
            };
            assert_eq!(name, "a.png");
            assert!(error.message().contains(reason), "{error}");
        }
    }

    #[test]
    fn a_full_disk_is_named_as_such() {
        let full = not_stored(&io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn names_have_no_directories() {
        for (name, wanted) in [
            ("a.jpg", "a.jpg"),
            ("../../etc/passwd.png", "passwd.png"),
            ("/abs/b.png", "b.png"),
            ("c:\\windows\\d.bmp", "d.bmp"),
            ("..", ".."),
            ("", "image"),
            ("x\ny\0.png", "xy.png"),
        ] {
            assert_eq!(last_part(name), wanted, "{name:?}");
        }
        assert_eq!(last_part(&"\u{6771}".repeat(255)).len(), 510);
        assert!(
            looks_like_an_image("A.JPG")
                && looks_like_an_image("right-index.fmr")
                && !looks_like_an_image("notes.txt")
                && !looks_like_an_image("._A.jpg")
        );
    }
}
