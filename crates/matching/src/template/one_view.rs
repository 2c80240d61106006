//! Extraction of one view from a template with several views.

use std::ops::Range;

use base::{Error, Result};

use super::{TemplateFormat, TemplateView};

/// Byte ranges of fields in the header of a template.
struct HeaderLayout {
    /// Bytes of the header.
    bytes: usize,
    /// Byte range of the length of the template.
    length: Range<usize>,
    /// Byte range of the number of views.
    views: Range<usize>,
}

impl HeaderLayout {
    /// Returns the layout of the header of a template, or `None` for a format with one view.
    fn of(bytes: &[u8], format: TemplateFormat) -> Option<HeaderLayout> {
        match format {
            TemplateFormat::Iso2005 => {
                Some(HeaderLayout { bytes: 24, length: 8..12, views: 22..23 })
            }
            TemplateFormat::Iso2011 => {
                Some(HeaderLayout { bytes: 15, length: 8..12, views: 12..14 })
            }
            // The length has two bytes, or they are 0 and four bytes follow.
            TemplateFormat::Ansi2004
                if bytes.get(8..).is_some_and(|it| it.starts_with(&[0, 0])) =>
            {
                Some(HeaderLayout { bytes: 30, length: 10..14, views: 28..29 })
            }
            TemplateFormat::Ansi2004 => {
                Some(HeaderLayout { bytes: 26, length: 8..10, views: 24..25 })
            }
            TemplateFormat::Ansi2009 => {
                Some(HeaderLayout { bytes: 21, length: 8..12, views: 19..20 })
            }
            TemplateFormat::SourceAfis => None,
        }
    }
}

/// Returns the template of one view of the template `bytes`. It has the header and the bytes of the
/// view, so that all of its fields remain. `view` is of [`super::views`] of these bytes.
///
/// # Errors
/// `InvalidArgument` if the view is of other bytes.
///
/// # Example
/// The only view of a template gives the same template.
/// ```
/// use millpond_matching::template::{self, TemplateFormat};
/// use millpond_matching::synthetic;
///
/// let bytes = template::write(&synthetic::fingerprint(1), TemplateFormat::Iso2011)?;
/// let views = template::views(&bytes)?;
/// assert_eq!(template::one_view(&bytes, &views[0])?, bytes);
/// # Ok::<(), base::Error>(())
/// ```
pub fn one_view(bytes: &[u8], view: &TemplateView) -> Result<Vec<u8>> {
    let other = || Error::invalid("a finger view is of another template");
    let format = TemplateFormat::of(bytes).ok_or_else(other)?;
    let Some(layout) = HeaderLayout::of(bytes, format) else { return Ok(bytes.to_vec()) };
    let header = bytes.get(..layout.bytes).ok_or_else(other)?;
    let own = bytes.get(view.bytes.clone()).ok_or_else(other)?;
    let mut template = [header, own].concat();
    let length = u32::try_from(template.len()).map_err(|_| other())?;
    put_number(&mut template, layout.length, length);
    put_number(&mut template, layout.views, 1);
    if TemplateFormat::of(&template) == Some(format) { Ok(template) } else { Err(other()) }
}

/// Writes a number into a field of one to four bytes, big-endian.
fn put_number(template: &mut [u8], at: Range<usize>, number: u32) {
    let field = template.get_mut(at).unwrap_or_default();
    for (byte, value) in field.iter_mut().rev().zip(number.to_le_bytes()) {
        *byte = value;
    }
}
