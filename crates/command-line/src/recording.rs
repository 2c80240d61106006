//! Recordings that are named on the command line.

use std::fs::File;
use std::path::Path;

use audio::decode::AudioInput;
use base::{Error, Result};

/// Name of standard input.
const STDIN: &str = "-";

/// Opens a recording. Returns its bytes and a hint at its format, from the file's extension.
///
/// # Errors
/// Returns `NotFound` and other errors of the file system, naming the file.
pub fn open(file: &Path) -> Result<(AudioInput, Option<String>)> {
    if file == Path::new(STDIN) {
        return Ok((AudioInput::Stream(Box::new(std::io::stdin())), None));
    }
    let input = File::open(file).map_err(|error| Error::io(file, &error))?;
    if input.metadata().is_ok_and(|meta| meta.is_dir()) {
        return Err(Error::invalid(format!(
            "{}: it is a directory and not a recording",
            file.display()
        )));
    }
    let hint =
        file.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    Ok((AudioInput::File(input), hint))
}
