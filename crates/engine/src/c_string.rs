//! Texts for the C interfaces of the engines' libraries.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base::{Error, Result};

/// Returns `text` as a C string.
///
/// # Errors
/// `InvalidArgument` if it holds a NUL byte.
pub fn c_text(text: &str) -> Result<CString> {
    c_path(Path::new(text))
}

/// Returns `path` as a C string.
///
/// # Errors
/// `InvalidArgument` if it holds a NUL byte.
pub fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| Error::invalid(format!("{path:?} holds a NUL byte")).with_source(error))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn texts_with_nul_are_refused() {
        assert_eq!(c_text("a").unwrap().as_c_str(), c"a");
        assert_eq!(c_text("a\0b").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
