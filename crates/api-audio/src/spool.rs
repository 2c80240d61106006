//! Keeps a recording that must be read out of order in a temporary file.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use audio::decode::AudioInput;
use base::{Error, ErrorKind, Result};
use transport::upload::UploadReader;

use super::config::AudioConfig;

/// Bytes at the start of a container that show if it must be read out of order.
const HEAD_BYTES: usize = 12;
/// Bytes copied at once to a temporary file.
const SPOOL_PIECE: usize = 64 << 10;

/// Returns the input of the pipeline: the upload itself while it still arrives. If the container
/// keeps its table of contents at the end, or `spool` asks for it, returns a temporary file that
/// holds the whole upload.
///
/// # Errors
/// `TooLarge` if such a file would have more than [`AudioConfig::spool_bytes_max`] bytes;
/// `StorageFull` if the disk is full; `ResourceExhausted` if too many files are open; `Internal` if
/// the file fails for another reason; the error that ended the upload.
pub(crate) fn input(
    mut upload: UploadReader,
    spool: bool,
    config: &AudioConfig,
) -> Result<AudioInput> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    let read = upload.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head);
    read.map_err(|error| upload.error(&error))?;
    if !spool && !is_mp4(&head) {
        return Ok(AudioInput::Stream(Box::new(Read::chain(io::Cursor::new(head), upload))));
    }
    self::spool(&mut upload, &head, config).map(AudioInput::File)
}

/// Returns true for the first bytes of an mp4 file, whose table of contents may come last.
fn is_mp4(head: &[u8]) -> bool {
    head.get(4..8) == Some(b"ftyp")
}

/// Writes `head` and the rest of the upload to a temporary file. The file is positioned at its
/// beginning.
///
/// # Errors
/// As [`input`].
fn spool(upload: &mut UploadReader, head: &[u8], config: &AudioConfig) -> Result<std::fs::File> {
    let made = match &config.spool_dir {
        Some(dir) => tempfile::tempfile_in(dir),
        None => tempfile::tempfile(),
    };
    let mut file = made.map_err(not_stored)?;
    file.write_all(head).map_err(not_stored)?;
    let mut length = head.len() as u64;
    let mut buffer = vec![0; SPOOL_PIECE];
    loop {
        let count = upload.read(&mut buffer).map_err(|error| upload.error(&error))?;
        if count == 0 {
            break;
        }
        length += count as u64;
        if length > config.spool_bytes_max {
            return Err(too_large(head, config.spool_bytes_max));
        }
        file.write_all(&buffer[..count]).map_err(not_stored)?;
    }
    file.seek(SeekFrom::Start(0)).map_err(not_stored)?;
    Ok(file)
}

/// Returns the error of a recording that begins with `head` and has more than `bytes_max` bytes.
fn too_large(head: &[u8], bytes_max: u64) -> Error {
    let (reason, remedy) = if is_mp4(head) {
        ("in this container", "send it as WAV, FLAC, MP3 or Ogg")
    } else {
        ("with the parameter spool", "send it without this parameter")
    };
    Error::too_large(format!(
        "a recording {reason} is kept in a file first, and it has more than {bytes_max} bytes; \
         {remedy}"
    ))
}

fn not_stored(error: io::Error) -> Error {
    let text = format!("the recording cannot be kept in a file: {error}");
    let built = match Error::io(Path::new(""), &error).kind() {
        ErrorKind::StorageFull => Error::storage_full(format!(
            "{text}; free space, or choose another directory with --spool-dir"
        )),
        ErrorKind::ResourceExhausted => Error::exhausted(text),
        // No other request and no later try of a client can mend the directory.
        _ => Error::internal(text),
    };
    built.with_source(error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use transport::upload::{UploadLimits, UploadPieces, upload_channel};

    use super::*;

    const LIMITS: UploadLimits =
        UploadLimits { noun: "recording", bytes_max: 1000, piece_timeout: Duration::from_secs(5) };

    fn input(bytes: &[u8], spool: bool, spool_bytes_max: u64) -> Result<AudioInput> {
        let (sender, upload, _) = upload_channel(None);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(sender.feed(UploadPieces::raw(bytes.to_vec().into()), LIMITS));
        super::input(upload, spool, &AudioConfig { spool_bytes_max, ..AudioConfig::default() })
    }

    fn text(input: AudioInput) -> (bool, Vec<u8>) {
        let mut all = Vec::new();
        match input {
            AudioInput::File(mut file) => (true, file.read_to_end(&mut all).map(|_| all).unwrap()),
            AudioInput::Stream(mut stream) => {
                (false, stream.read_to_end(&mut all).map(|_| all).unwrap())
            }
        }
    }

    #[test]
    fn only_a_container_that_is_read_out_of_order_goes_to_a_file() {
        let (mp4, wav) =
            (b"\0\0\0\x20ftypM4A and more".to_vec(), b"RIFF....WAVE and more".to_vec());
        assert_eq!(text(input(&mp4, false, 100).unwrap()), (true, mp4.clone()));
        assert_eq!(text(input(&wav, false, 100).unwrap()), (false, wav.clone()));
        assert_eq!(text(input(&wav, true, 100).unwrap()), (true, wav.clone()));
        assert_eq!(text(input(b"RI", false, 100).unwrap()), (false, b"RI".to_vec()));
        for (recording, remedy) in [(&mp4, "as WAV"), (&wav, "without this parameter")] {
            let error = input(recording, true, 15).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(error.message().contains(remedy), "{error}");
        }
    }

    #[test]
    fn a_full_disk_is_named_as_such() {
        let full = not_stored(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        assert!(full.message().contains("--spool-dir"), "{full}");
    }

    #[test]
    fn only_a_limit_of_the_system_is_an_overload() {
        // ENOENT, EIO, ENFILE and EMFILE.
        for (code, overload) in [(2, false), (5, false), (23, true), (24, true)] {
            let error = not_stored(io::Error::from_raw_os_error(code));
            assert_eq!(error.is_overload(), overload, "{error}");
            let source = std::error::Error::source(&error);
            assert!(source.is_some_and(|source| source.is::<io::Error>()));
        }
    }
}
