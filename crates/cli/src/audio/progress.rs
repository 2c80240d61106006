//! The progress bar of a recording, and the summary line afterwards.

use std::time::{Duration, Instant};

use base::units::format_bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval between two redraws.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// The bar counts milliseconds of the recording.
const UNITS_PER_SECOND: f64 = 1e3;

/// A progress bar on standard error, hidden if standard error is not a terminal.
pub(crate) struct RecordingBar {
    bar: ProgressBar,
    started: Instant,
    name: String,
}

impl RecordingBar {
    /// Creates a bar for the recording `name` and starts its clock.
    pub(crate) fn new(name: &str) -> RecordingBar {
        // indicatif hides a bar if its target is not a terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.enable_steady_tick(DRAW_INTERVAL);
        RecordingBar { bar, started: Instant::now(), name: name.to_owned() }
    }

    /// Reports `seconds` of `total` as done.
    pub(crate) fn show(&self, seconds: f64, total: Option<f64>) {
        if self.bar.is_hidden() {
            return;
        }
        let template = match total {
            Some(_) => "{bar:30} {percent:>3} %  {msg}",
            None => "{spinner} {msg}",
        };
        if self.bar.length() != total.map(units)
            && let Ok(style) = ProgressStyle::with_template(template)
        {
            self.bar.set_style(style.progress_chars("=> "));
            if let Some(total) = total {
                self.bar.set_length(units(total));
            }
        }
        self.bar.set_position(units(seconds));
        self.bar.set_message(message(&self.name, seconds, total, self.started.elapsed()));
    }

    /// Prints a line above the bar, or without it if it is hidden.
    pub(crate) fn line(&self, text: &str) {
        if self.bar.is_hidden() {
            command_line::exit::print_note(text);
        } else {
            self.bar.println(command_line::exit::printable(text));
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for RecordingBar {
    fn drop(&mut self) {
        self.finish();
    }
}

fn units(seconds: f64) -> u64 {
    (seconds.max(0.0) * UNITS_PER_SECOND) as u64
}

/// Returns, for example, "a.mp3  0:10:00 of 2:00:00, real-time factor 0.0120, 0:01:19 left".
fn message(name: &str, seconds: f64, total: Option<f64>, elapsed: Duration) -> String {
    let factor = factor(elapsed.as_secs_f64(), seconds);
    let Some(total) = total else {
        return format!("{name}  {}, real-time factor {factor:.4}", clock(seconds));
    };
    let left = (total - seconds).max(0.0) * factor;
    format!(
        "{name}  {} of {}, real-time factor {factor:.4}, {} left",
        clock(seconds),
        clock(total),
        clock(left)
    )
}

/// Returns the processing time per second of a recording, or 0 for an empty recording.
pub(crate) fn factor(work: f64, recording: f64) -> f64 {
    if recording > 0.0 { work / recording } else { 0.0 }
}

/// Returns the summary line of a recording.
pub(crate) fn summary(name: &str, recording: f64, work: f64, peak_bytes: u64) -> String {
    let factor = factor(work, recording);
    let speed = if factor > 0.0 {
        let times = 1.0 / factor;
        let digits = usize::from(times < 10.0);
        format!(", {times:.digits$} times as fast as it plays")
    } else {
        String::new()
    };
    format!(
        "{name}: {} in {work:.2} s, real-time factor {factor:.4}{speed}, peak memory {}",
        clock(recording),
        format_bytes(peak_bytes)
    )
}

/// Formats seconds as "0:01:02".
pub(crate) fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_position_speed_and_time_left() {
        let text = message("a.mp3", 600.0, Some(7200.0), Duration::from_secs(6));
        assert_eq!(text, "a.mp3  0:10:00 of 2:00:00, real-time factor 0.0100, 0:01:06 left");
        assert_eq!(message("-", 0.0, None, Duration::ZERO), "-  0:00:00, real-time factor 0.0000");
        let text = summary("a.mp3", 7200.0, 36.0, 100 << 20);
        assert!(
            text.starts_with(
                "a.mp3: 2:00:00 in 36.00 s, real-time factor 0.0050, 200 times as fast"
            ),
            "{text}"
        );
        assert!(
            summary("slow.wav", 10.0, 25.0, 0).contains(", 0.4 times as fast as it plays"),
            "a slow recogniser is not 0 times as fast"
        );
        assert!(
            text.ends_with("peak memory 100.0 MiB") || text.ends_with("peak memory 100 MiB"),
            "{text}"
        );
    }
}
