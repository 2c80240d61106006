//! Files of templates: fingerprints as minutiae, without pixels.

use base::{Error, Result};
use matching::template::{self, TemplateFormat, TemplateView};
use vision::Format;

use super::settings::ImageKind;

/// Media type of a file of an unknown format, and of templates without a registered type.
const BYTES: &str = "application/octet-stream";

/// Format of an original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Pixels.
    Image(Format),
    /// Minutiae of a fingerprint.
    Template(TemplateFormat),
}

impl FileFormat {
    /// Returns the names of all formats.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let templates = TemplateFormat::ALL.into_iter().map(TemplateFormat::name);
        Format::ALL.into_iter().map(Format::name).chain(templates)
    }

    /// Returns the format of a file by its first bytes, or `None` if it has no known format.
    pub fn sniff(bytes: &[u8]) -> Option<FileFormat> {
        let template = || TemplateFormat::of(bytes).map(FileFormat::Template);
        Format::sniff(bytes).map(FileFormat::Image).or_else(template)
    }

    /// Returns true if `head`, the first 16 bytes of a file in an archive or a folder, begins as an
    /// image or a template does.
    pub fn has_magic(head: &[u8]) -> bool {
        Format::sniff(head).is_some() || TemplateFormat::has_magic(head)
    }

    /// Returns the name in responses and payloads, and the extension of originals.
    pub fn name(self) -> &'static str {
        match self {
            FileFormat::Image(format) => format.name(),
            FileFormat::Template(format) => format.name(),
        }
    }
}

/// Returns the media type of an original.
pub fn media_type(bytes: &[u8]) -> &'static str {
    match FileFormat::sniff(bytes) {
        Some(FileFormat::Image(format)) => format.media_type(),
        Some(FileFormat::Template(TemplateFormat::SourceAfis)) => "application/cbor",
        Some(FileFormat::Template(_)) | None => BYTES,
    }
}

/// Returns true if a file of a collection of this kind is a template, or begins like a template.
pub fn is_template(kind: ImageKind, bytes: &[u8]) -> bool {
    kind == ImageKind::Fingerprint
        && (TemplateFormat::of(bytes).is_some() || TemplateFormat::has_magic(bytes))
}

/// Checks that the file of a photograph is not a template.
///
/// # Errors
/// `InvalidArgument` with the remedy.
pub fn check_kind(kind: ImageKind, bytes: &[u8]) -> Result<()> {
    if kind == ImageKind::Photo && TemplateFormat::has_magic(bytes) {
        return Err(Error::invalid(
            "this file is the template of a fingerprint, and photographs are expected: use a collection of \
             fingerprints, or create one with kind=fingerprint",
        ));
    }
    Ok(())
}

/// A template that was read.
pub struct ReadTemplate {
    pub(crate) format: TemplateFormat,
    /// First finger view with minutiae, or the first view if none has minutiae.
    pub view: TemplateView,
}

/// Reads a finger view of a template: the first one with minutiae, or the first one if no view has
/// minutiae.
///
/// # Errors
/// `InvalidArgument` if the bytes are not a template, or one without a view.
pub fn read(bytes: &[u8]) -> Result<ReadTemplate> {
    let views = template::views(bytes)?;
    let with_minutiae = views.iter().find(|view| !view.graph.vertices.is_empty());
    match (TemplateFormat::of(bytes), with_minutiae.or(views.first())) {
        (Some(format), Some(view)) => Ok(ReadTemplate { format, view: view.clone() }),
        _ => Err(Error::invalid("the template holds no finger view")),
    }
}

#[cfg(test)]
mod tests {
    use matching::synthetic;

    use super::*;

    fn written(format: TemplateFormat) -> Vec<u8> {
        template::write(&synthetic::fingerprint(3), format).unwrap()
    }

    #[test]
    fn templates_are_known_by_their_contents() {
        for format in TemplateFormat::ALL {
            let bytes = written(format);
            assert!(is_template(ImageKind::Fingerprint, &bytes), "{format}");
            assert!(FileFormat::has_magic(&bytes[..16]), "{format}");
            assert!(!is_template(ImageKind::Photo, &bytes), "{format}");
            assert!(check_kind(ImageKind::Fingerprint, &bytes).is_ok());
            let error = check_kind(ImageKind::Photo, &bytes).unwrap_err();
            assert!(error.message().contains("kind=fingerprint"), "{error}");
            assert_eq!(read(&bytes).unwrap().format, format);
            assert!(FileFormat::names().any(|name| name == format.name()));
        }
        assert!(is_template(ImageKind::Fingerprint, b"FMR\0 99\0"), "an unknown version");
        let png = b"\x89PNG\r\n\x1a\n";
        assert!(FileFormat::has_magic(png) && !FileFormat::has_magic(b"some text"));
        assert!(!is_template(ImageKind::Fingerprint, png));
        assert!(check_kind(ImageKind::Photo, png).is_ok());
    }

    #[test]
    fn originals_have_media_types() {
        assert_eq!(media_type(b"\x89PNG\r\n\x1a\n"), "image/png");
        assert_eq!(media_type(&written(TemplateFormat::SourceAfis)), "application/cbor");
        assert_eq!(media_type(&written(TemplateFormat::Iso2011)), BYTES);
        assert_eq!(media_type(b"text"), BYTES);
    }

    #[test]
    fn a_template_without_a_view_is_refused() {
        let mut bytes = written(TemplateFormat::Iso2005);
        bytes.truncate(24);
        bytes[8..12].copy_from_slice(&24_u32.to_be_bytes());
        bytes[22] = 0;
        let error = read(&bytes).err().unwrap();
        assert!(error.message().contains("no finger view"), "{error}");
    }
}
