//! Templates of fingerprints in the formats that others exchange, read and written.
//!
//! | format | written by | angle |
//! |---|---|---|
//! | ISO/IEC 19794-2:2005 | [`crate::iso`] | 256 steps |
//! | ISO/IEC 19794-2:2011 | `iso2011` | 256 steps |
//! | ANSI INCITS 378-2004, 378-2009 | `ansi` | 180 steps |
//! | `SourceAFIS` 3 (CBOR) | `sourceafis` | radians |
//!
//! The first two ANSI and ISO editions begin with the same eight bytes, as do the second two. Their
//! lengths and headers tell them apart.

mod ansi;
pub(crate) mod fields;
mod iso2011;
mod one_view;
mod sourceafis;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use base::{Error, Result};

use crate::graph::Graph;
use crate::iso;

pub use one_view::one_view;

/// Format of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateFormat {
    /// ISO/IEC 19794-2:2005, record format.
    Iso2005,
    /// ISO/IEC 19794-2:2011, off-card format.
    Iso2011,
    /// ANSI INCITS 378-2004.
    Ansi2004,
    /// ANSI INCITS 378-2009.
    Ansi2009,
    /// The template of `SourceAFIS` 3 for Java: CBOR.
    SourceAfis,
}

impl TemplateFormat {
    /// All formats.
    pub const ALL: [TemplateFormat; 5] = [
        TemplateFormat::Iso2005,
        TemplateFormat::Iso2011,
        TemplateFormat::Ansi2004,
        TemplateFormat::Ansi2009,
        TemplateFormat::SourceAfis,
    ];

    /// Returns the name that requests use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TemplateFormat::Iso2005 => "iso-2005",
            TemplateFormat::Iso2011 => "iso-2011",
            TemplateFormat::Ansi2004 => "ansi-2004",
            TemplateFormat::Ansi2009 => "ansi-2009",
            TemplateFormat::SourceAfis => "sourceafis",
        }
    }

    /// Returns the format of a template by its first bytes, or `None` if it is in none of them.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<TemplateFormat> {
        match bytes.first_chunk::<8>() {
            Some(b"FMR\0 20\0") if ansi::is_2004(bytes) => Some(TemplateFormat::Ansi2004),
            Some(b"FMR\0 20\0") => Some(TemplateFormat::Iso2005),
            Some(b"FMR\x00030\0") if iso2011::is_iso2011(bytes) => Some(TemplateFormat::Iso2011),
            Some(b"FMR\x00030\0") => Some(TemplateFormat::Ansi2009),
            _ => sourceafis::is_map(bytes).then_some(TemplateFormat::SourceAfis),
        }
    }

    /// Returns true if `head`, the first 16 bytes of a file, begins as a template does. This is
    /// stricter than [`TemplateFormat::of`], which accepts any map of CBOR as a template of
    /// `SourceAFIS`.
    #[must_use]
    pub fn has_magic(head: &[u8]) -> bool {
        head.starts_with(b"FMR\0") || sourceafis::has_magic(head)
    }
}

impl fmt::Display for TemplateFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TemplateFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<TemplateFormat> {
        TemplateFormat::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            let names = TemplateFormat::ALL.map(TemplateFormat::name).join(", ");
            Error::invalid(format!("there is no template format \"{text}\"; there are {names}"))
        })
    }
}

/// Finger and quality of a print, which a written template states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatedPrint {
    /// Finger, 1 to 10 as in [`TemplateView::finger`]. A template with another number states no
    /// finger.
    pub finger: Option<u8>,
    /// Quality, 1 to 100. A template with another number states no quality.
    pub quality: Option<u8>,
}

/// A finger view of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateView {
    /// Minutiae at 500 dots per inch.
    pub graph: Graph,
    /// Quality that the template states, 1 to 100, on the scale of its writer, or `None` if it
    /// states none.
    pub quality: Option<u8>,
    /// Finger that the template states, or `None` if it states no finger or several. 1 to 5 are the
    /// right thumb to the right little finger, and 6 to 10 the left ones.
    pub finger: Option<u8>,
    /// Byte range of the view in the template.
    pub(crate) bytes: Range<usize>,
}

/// Reads the finger views of a template in any of the formats, each as a graph at 500 dots per
/// inch.
///
/// # Errors
/// `InvalidArgument` if the bytes are not such a template. The message names the fault.
pub fn read(bytes: &[u8]) -> Result<Vec<Graph>> {
    Ok(views(bytes)?.into_iter().map(|view| view.graph).collect())
}

/// Reads the finger views of a template in any of the formats, with their qualities and fingers.
///
/// # Errors
/// As [`read`].
pub fn views(bytes: &[u8]) -> Result<Vec<TemplateView>> {
    match TemplateFormat::of(bytes) {
        Some(TemplateFormat::Iso2005) => iso::views(bytes),
        Some(TemplateFormat::Iso2011) => iso2011::read(bytes),
        Some(TemplateFormat::Ansi2004) => ansi::read_2004(bytes),
        Some(TemplateFormat::Ansi2009) => ansi::read_2009(bytes),
        Some(TemplateFormat::SourceAfis) => {
            let graph = sourceafis::read(bytes)?;
            Ok(vec![TemplateView { graph, quality: None, finger: None, bytes: 0..bytes.len() }])
        }
        None => Err(Error::invalid(
            "not a template of ISO/IEC 19794-2, ANSI 378 or SourceAFIS: its first bytes are not those of a template",
        )),
    }
}

/// Writes the template of one graph: one view, 500 dots per inch, no extended data. The template
/// states no finger and no quality.
///
/// # Errors
/// As [`write_stating`].
pub fn write(graph: &Graph, format: TemplateFormat) -> Result<Vec<u8>> {
    write_stating(graph, StatedPrint::default(), format)
}

/// Writes the template of one graph as [`write()`] does, with the finger and the quality of the
/// print. A template of `SourceAFIS` has neither.
///
/// # Errors
/// `InvalidArgument` if the format cannot hold the graph: descriptors, more than 255 vertices,
/// coordinates outside 0 to 16383, or a kind above 2. `SourceAFIS` holds 256 vertices, and
/// coordinates from -10000 to 10000.
pub fn write_stating(
    graph: &Graph,
    stated: StatedPrint,
    format: TemplateFormat,
) -> Result<Vec<u8>> {
    match format {
        TemplateFormat::Iso2005 => iso::write_stating(graph, stated),
        TemplateFormat::Iso2011 => iso2011::write(graph, stated),
        TemplateFormat::Ansi2004 => ansi::write_2004(graph, stated),
        TemplateFormat::Ansi2009 => ansi::write_2009(graph, stated),
        TemplateFormat::SourceAfis => sourceafis::write(graph),
    }
}
