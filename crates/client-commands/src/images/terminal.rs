//! Shows images in a terminal, by the escape sequences of kitty or iTerm2, or as coloured half
//! blocks.

use std::io::IsTerminal;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use command_line::environment;

/// Height of an image in text rows.
const ROWS: u32 = 12;
/// Maximum payload of one kitty sequence, by its protocol.
const KITTY_CHUNK: usize = 4096;

/// Ways to show an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Terminal {
    /// kitty's graphics protocol: pixels in chunks of Base64.
    Kitty,
    /// iTerm2's inline files, which WezTerm and others take too.
    ITerm,
    /// Half blocks in 24-bit colours.
    Blocks,
}

impl Terminal {
    /// Returns the best way to show images on standard output, by the environment; `None` if
    /// standard output is not a terminal.
    pub(super) fn detect() -> Option<Terminal> {
        if !std::io::stdout().is_terminal() {
            return None;
        }
        let text = |variable: environment::Variable| variable.text().unwrap_or_default();
        Terminal::of(
            &text(environment::TERM),
            &text(environment::TERM_PROGRAM),
            &text(environment::COLORTERM),
            environment::NO_COLOR.text().is_some(),
        )
    }

    /// Returns the way to show images in a terminal, from the variables TERM, TERM_PROGRAM and
    /// COLORTERM. `plain` forbids colours.
    fn of(term: &str, program: &str, colours: &str, plain: bool) -> Option<Terminal> {
        match (term, program) {
            // Multiplexers forward neither protocol.
            _ if term.starts_with("screen") || term.starts_with("tmux") => {}
            ("xterm-kitty" | "xterm-ghostty", _) | (_, "ghostty") => return Some(Terminal::Kitty),
            (_, "iTerm.app" | "WezTerm" | "mintty") => return Some(Terminal::ITerm),
            _ => {}
        }
        (matches!(colours, "truecolor" | "24bit") && !plain).then_some(Terminal::Blocks)
    }
}

/// Returns the text that shows the JPEG `bytes`; `None` if they cannot be decoded.
pub(super) fn show(bytes: &[u8], terminal: Terminal) -> Option<String> {
    if terminal == Terminal::ITerm {
        let size = bytes.len();
        let text = STANDARD.encode(bytes);
        return Some(format!(
            "\x1b]1337;File=inline=1;size={size};height={ROWS};preserveAspectRatio=1:{text}\x07"
        ));
    }
    let image = image::load_from_memory(bytes).ok()?.into_rgb8();
    if image.width() == 0 || image.height() == 0 {
        return None;
    }
    Some(if terminal == Terminal::Kitty { kitty(&image) } else { blocks(&image) })
}

/// Encodes kitty's sequences. The first sequence has the size, and `m=0` marks the last one.
fn kitty(image: &image::RgbImage) -> String {
    let text = STANDARD.encode(image.as_raw());
    let chunks: Vec<&[u8]> = text.as_bytes().chunks(KITTY_CHUNK).collect();
    let mut sequences = String::with_capacity(text.len() + 16 * chunks.len() + 64);
    for (at, chunk) in chunks.iter().enumerate() {
        let more = u8::from(at + 1 < chunks.len());
        let head = match at {
            0 => format!("a=T,f=24,s={},v={},r={ROWS},", image.width(), image.height()),
            _ => String::new(),
        };
        sequences
            .push_str(&format!("\x1b_G{head}m={more};{}\x1b\\", String::from_utf8_lossy(chunk)));
    }
    sequences
}

/// Encodes two pixels per character: the upper one in the foreground colour, the lower one in the
/// background colour.
fn blocks(image: &image::RgbImage) -> String {
    let rows = ROWS * 2;
    let columns =
        (u64::from(image.width()) * u64::from(rows) / u64::from(image.height())).clamp(1, 72);
    let small = image::imageops::thumbnail(image, columns as u32, rows);
    let mut lines = Vec::new();
    for y in (0..small.height().saturating_sub(1)).step_by(2) {
        let mut line = String::new();
        for x in 0..small.width() {
            let ([r, g, b], [s, t, u]) = (small.get_pixel(x, y).0, small.get_pixel(x, y + 1).0);
            line.push_str(&format!("\x1b[38;2;{r};{g};{b};48;2;{s};{t};{u}m▀"));
        }
        lines.push(format!("{line}\x1b[0m"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jpeg() -> Vec<u8> {
        let image = image::RgbImage::from_pixel(96, 64, image::Rgb([200, 30, 30]));
        let mut bytes = std::io::Cursor::new(Vec::new());
        image.write_to(&mut bytes, image::ImageFormat::Jpeg).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn terminals_are_detected_by_their_environment() {
        assert_eq!(Terminal::of("xterm-kitty", "", "truecolor", false), Some(Terminal::Kitty));
        assert_eq!(Terminal::of("xterm-256color", "iTerm.app", "", true), Some(Terminal::ITerm));
        assert_eq!(
            Terminal::of("tmux-256color", "iTerm.app", "truecolor", false),
            Some(Terminal::Blocks)
        );
        assert_eq!(Terminal::of("xterm-256color", "", "truecolor", true), None);
        assert_eq!(Terminal::of("dumb", "", "", false), None);
    }

    #[test]
    fn each_terminal_gets_its_own() {
        let bytes = jpeg();
        let shown = show(&bytes, Terminal::ITerm).unwrap();
        assert!(shown.starts_with("\x1b]1337;File=inline=1;") && shown.ends_with('\x07'));
        let shown = show(&bytes, Terminal::Kitty).unwrap();
        let (start, end) = (shown.matches("\x1b_G").count(), shown.matches("\x1b\\").count());
        // 96 x 64 x 3 bytes in Base64 are six chunks.
        assert_eq!((start, end, shown.matches("m=1;").count()), (6, 6, 5));
        assert!(shown.starts_with("\x1b_Ga=T,f=24,s=96,v=64,"));
        let shown = show(&bytes, Terminal::Blocks).unwrap();
        assert_eq!((shown.lines().count(), shown.matches('▀').count()), (12, 12 * 36));
        assert_eq!(show(b"no image", Terminal::Blocks), None);
        assert_eq!(show(b"no image", Terminal::Kitty), None);
    }
}
