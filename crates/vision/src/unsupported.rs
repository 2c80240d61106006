//! Names of image formats that cannot be decoded, so that a refusal can say what the file is.

/// Returns the name of a well-known format that is not supported, or `None` for other bytes.
pub(crate) fn format_name(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        // ISO/IEC 14496-12: the first box has the brand.
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => by_brand(brand),
        [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] | [0xff, 0x0a, ..] => Some("JPEG XL"),
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] | [0xff, 0x4f, 0xff, 0x51, ..] => {
            Some("JPEG 2000")
        }
        [b'I', b'I', 0xbc, ..] => Some("JPEG XR"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("GIF"),
        [b'8', b'B', b'P', b'S', ..] => Some("PSD"),
        [b'%', b'P', b'D', b'F', b'-', ..] => Some("PDF"),
        [b'<', b's', b'v', b'g', ..] => Some("SVG"),
        _ => None,
    }
}

fn by_brand(brand: &[u8]) -> Option<&'static str> {
    match brand.first_chunk::<4>()? {
        b"avif" | b"avis" => Some("AVIF"),
        b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" => Some("HEIC"),
        b"mif1" | b"msf1" => Some("HEIF"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;

    #[test]
    fn formats_of_phones_and_programs_are_named() {
        let named: [(&[u8], &str); 12] = [
            (b"\0\0\0\x24ftypheic\0\0\0\0mif1heic", "HEIC"),
            (b"\0\0\0\x20ftypavif\0\0\0\0avifmif1", "AVIF"),
            (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "HEIF"),
            (b"\xff\x0a\xfa\x1f", "JPEG XL"),
            (b"\0\0\0\x0cJXL \x0d\x0a\x87\x0a", "JPEG XL"),
            (b"\0\0\0\x0cjP  \x0d\x0a\x87\x0a", "JPEG 2000"),
            (b"\xff\x4f\xff\x51\0\x2f", "JPEG 2000"),
            (b"II\xbc\x01\x20\0\0\0", "JPEG XR"),
            (b"GIF89a\x01\0", "GIF"),
            (b"8BPS\0\x01", "PSD"),
            (b"%PDF-1.7", "PDF"),
            (b"<svg xmlns=", "SVG"),
        ];
        for (file, name) in named {
            assert_eq!(format_name(file), Some(name));
            assert_eq!(Format::sniff(file), None, "{name}");
        }
        for other in [&b""[..], b"hello", b"\0\0\0\x20ftypisom", b"\0\0\0\x20ftyp", b"GIF", b"%P"] {
            assert_eq!(format_name(other), None);
        }
    }
}
