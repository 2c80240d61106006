//! Tables and progress for people, JSON for programs.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::{Error, Result, escape_controls};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// A table of text cells, two spaces apart.
#[derive(Debug)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
    /// True for figures: a line below the header, and all columns but the first right-aligned.
    figures: bool,
}

impl TextTable {
    /// Creates a table of figures with these column names.
    pub fn new(columns: &[&str]) -> TextTable {
        TextTable { figures: true, ..TextTable::left(columns) }
    }

    /// Creates a table of left-aligned text with these column names.
    pub fn left(columns: &[&str]) -> TextTable {
        let header = columns.iter().map(|name| (*name).to_owned()).collect();
        TextTable { rows: vec![header], figures: false }
    }

    /// Adds a row. Line breaks in cells become spaces, other control characters are escaped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let one_line = |cell: String| escape_controls(&cell.replace('\n', " "), &[]).into_owned();
        self.rows.push(cells.into_iter().map(one_line).collect());
    }
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let gap = if column == 0 { "" } else { "  " };
                line.push_str(&if self.figures && column > 0 {
                    format!("{gap}{cell:>width$}")
                } else {
                    format!("{gap}{cell:width$}")
                });
            }
            writeln!(f, "{}", line.trim_end())?;
            if index == 0 && self.figures {
                writeln!(
                    f,
                    "{}",
                    "-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1))
                )?;
            }
        }
        Ok(())
    }
}

/// Formats milliseconds with their significant digits.
pub fn ms(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Formats a number of answers or requests per second. Slow models have less than one.
pub fn per_second(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Writes a line to standard error. A line that cannot be written is dropped, because the disk is
/// full or the reader of a pipe has ended. Results do not depend on it.
fn print_note(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// True once a part of the output was lost.
static OUTPUT_LOST: AtomicBool = AtomicBool::new(false);

/// Writes to standard output. A closed one is not an error, because programs read the JSON
/// file. Another error is printed once, and [`output_is_lost`] then returns true.
pub fn print_text(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    let is_closed = error.kind() == std::io::ErrorKind::BrokenPipe;
    if !is_closed && !OUTPUT_LOST.swap(true, Ordering::SeqCst) {
        print_note(format_args!("cannot write to standard output: {error}"));
    }
}

/// Returns true if [`print_text`] could not write, for example to a full disk. The exit code of the
/// program should say so.
pub fn output_is_lost() -> bool {
    OUTPUT_LOST.load(Ordering::SeqCst)
}

/// Writes `value` as JSON to `path` in one step, so that a reader never sees half of it.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json(path: &Path, value: &(impl Serialize + ?Sized)) -> Result<()> {
    let text =
        serde_json::to_vec_pretty(value).map_err(|e| Error::internal("report").caused_by(e))?;
    write_file(path, &text)
}

/// Writes a file in one step. Follows a link, and writes directly to a target that is not a regular
/// file, such as a pipe.
///
/// # Errors
/// If it cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, &e))?;
    }
    let put = |mut file: File| file.write_all(bytes).and_then(|()| file.write_all(b"\n"));
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let opened = std::fs::OpenOptions::new().write(true).open(path);
        return opened.and_then(put).map_err(|e| Error::io(path, &e));
    }
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut part = target.clone().into_os_string();
    part.push(format!(".{}.part", std::process::id()));
    // A killed process with the same ID can have left this file, because IDs repeat in a container.
    // If it cannot be removed, the next step fails.
    let _ = std::fs::remove_file(&part);
    // Another user of the directory can predict the name, so a link there is not followed.
    let written = File::create_new(&part).and_then(put);
    let written = written.and_then(|()| std::fs::rename(&part, &target));
    written.map_err(|e| {
        // It may not exist.
        let _ = std::fs::remove_file(&part);
        Error::io(path, &e)
    })
}

/// Time between two lines about the progress if stderr is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(15);

/// A progress bar if stderr is a terminal, else a line now and then.
#[derive(Debug)]
pub struct StepProgress {
    bar: ProgressBar,
    /// Time of the last line if there is no terminal.
    last_line: Mutex<Instant>,
}

impl StepProgress {
    /// Creates a bar of `steps` steps.
    pub fn new(steps: u64) -> StepProgress {
        let visible = std::io::stderr().is_terminal();
        let target =
            if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        if let Ok(style) =
            ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} {wide_msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        // A tick a second shows that the program runs and does not disturb a measurement.
        bar.enable_steady_tick(Duration::from_secs(1));
        StepProgress { bar, last_line: Mutex::new(Instant::now()) }
    }

    /// Sets the message of the current step.
    pub fn say(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
        self.print_line();
    }

    /// Prints a line above the bar, even without a terminal.
    pub fn line(&self, text: &str) {
        if self.bar.is_hidden() {
            print_note(format_args!("{text}"));
        } else {
            self.bar.println(text);
        }
    }

    /// Counts a finished step.
    pub fn step(&self) {
        self.bar.inc(1);
        self.print_line();
    }

    /// Sets position and length (bytes, seconds).
    pub fn at(&self, position: u64, length: u64) {
        self.bar.set_length(length);
        self.bar.set_position(position);
        self.print_line();
    }

    /// Prints a line now and then if the bar is hidden, so that a log shows progress.
    fn print_line(&self) {
        let mut last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bar.is_hidden() && last_line.elapsed() >= LINE_INTERVAL {
            *last_line = Instant::now();
            let bar = &self.bar;
            let seconds = self.bar.elapsed().as_secs();
            let length = bar.length().unwrap_or_default();
            let position = bar.position();
            let message = bar.message();
            print_note(format_args!("{seconds:>5} s  {position}/{length}  {message}"));
        }
    }
}

impl Drop for StepProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Escapes `text` for text or attributes of HTML and XML.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_slow_models_have_decimals() {
        assert_eq!([0.25, 9.5, 10.4, 123_456.7].map(per_second), ["0.25", "9.50", "10", "123457"]);
    }

    #[test]
    fn files_are_replaced_and_links_stay() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("out.json");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        std::fs::write(dir.path().join("out.part"), "mine").unwrap();
        write_json(&link, &[1]).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let file = dir.path().join("new/out.json");
        for value in [1, 2] {
            write_json(&file, &value).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{value}\n"));
        }
        assert_eq!(std::fs::read(dir.path().join("out.part")).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 1);
    }

    #[test]
    fn a_link_beside_the_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "content").unwrap();
        let file = dir.path().join("out.json");
        let part = dir.path().join(format!("out.json.{}.part", std::process::id()));
        std::os::unix::fs::symlink(&other, &part).unwrap();
        write_json(&file, &1).unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "content");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "1\n");
        // The file of a killed process with the same ID is replaced.
        std::fs::write(&part, "half").unwrap();
        write_json(&file, &2).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "2\n");
        // A directory cannot be removed.
        std::fs::create_dir(&part).unwrap();
        assert!(write_json(&file, &3).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "2\n");
    }

    #[test]
    fn tables_line_up() {
        let mut table = TextTable::new(&["arm", "p50 ms"]);
        table.row(["pool".into(), "0.9".into()]);
        table.row(["control".into(), "10.25".into()]);
        assert_eq!(
            table.to_string(),
            "arm      p50 ms\n---------------\npool        0.9\ncontrol   10.25\n"
        );
    }

    #[test]
    fn control_characters_in_cells_are_escaped() {
        let mut table = TextTable::left(&["NAME", "ID"]);
        table.row(["a\nb\u{1b}[31m".into(), "1".into()]);
        assert_eq!(table.to_string(), "NAME           ID\na b\\u001b[31m  1\n");
    }

    #[test]
    fn json_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/out.json");
        write_json(&path, &[1, 2]).unwrap();
        write_json(&path, &[3]).unwrap();
        let back: Vec<i32> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(back, [3]);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn figures_keep_meaningful_digits() {
        assert_eq!([ms(0.123), ms(12.34), ms(234.5)], ["0.12", "12.3", "234"]);
    }
}
