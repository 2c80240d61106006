//! The output of a log: standard error.

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing_subscriber::fmt::MakeWriter;

use super::options::LogFormat;

/// Longest wait for an output that takes no bytes. While lines are dropped, no thread waits.
const STALL_MAX: Duration = Duration::from_millis(100);
/// Maximum bytes of one write. A pipe that is ready takes these without a wait (`PIPE_BUF` in
/// pipe(7)).
const PIECE_BYTES: usize = 4096;

/// Standard error as the output of a log.
///
/// A line that cannot be written is dropped. The disk of a log file may be full, or the reader of a
/// pipe may have ended or stopped. The subscriber gets no error. It would print it to standard
/// error too, and the failure of that print ends the thread. A line with the number of dropped
/// lines precedes the next line that is written.
#[derive(Debug)]
pub(crate) struct LogOutput {
    format: LogFormat,
    /// Number of lines dropped since the last line that was written.
    dropped: AtomicU64,
}

impl LogOutput {
    pub(crate) fn new(format: LogFormat) -> LogOutput {
        LogOutput { format, dropped: AtomicU64::new(0) }
    }

    /// As [`LogOutput::write_line`]. Drops the line if the reader of `output` has stopped. All
    /// threads that log would wait for it.
    fn write_if_read<W: Write + AsFd>(&self, output: W, line: &[u8]) {
        let is_stalled = self.dropped.load(Ordering::Relaxed) > 0;
        let wait = if is_stalled { Duration::ZERO } else { STALL_MAX };
        self.write_line(&mut ReadyOutput { output, wait }, line);
    }

    /// Writes a line to `output`, or counts it as dropped.
    fn write_line(&self, output: &mut impl Write, line: &[u8]) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 && output.write_all(self.note(dropped).as_bytes()).is_err() {
            self.dropped.fetch_add(dropped.saturating_add(1), Ordering::Relaxed);
        } else if output.write_all(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a line about `dropped` lines. It begins on a line of its own, since the last line
    /// may be there in part.
    fn note(&self, dropped: u64) -> String {
        let message =
            format!("lines of the log are missing here, as they could not be written: {dropped}");
        match self.format {
            LogFormat::Text => format!("\nWARN {message}\n"),
            LogFormat::Json => format!("\n{{\"level\":\"WARN\",\"message\":\"{message}\"}}\n"),
        }
    }
}

/// An output such as a pipe, whose writes wait for its reader for a limited time.
struct ReadyOutput<W> {
    output: W,
    /// Longest wait of a write.
    wait: Duration,
}

impl<W: Write + AsFd> Write for ReadyOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let timeout = Timespec::try_from(self.wait).unwrap_or_default();
        let mut polled = [PollFd::new(&self.output, PollFlags::OUT)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => return Err(ErrorKind::Interrupted.into()),
            // If the system cannot say, the write shows it.
            Ok(_) | Err(_) => {}
        }
        self.output.write(&bytes[..bytes.len().min(PIECE_BYTES)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}

impl<'a> MakeWriter<'a> for LogOutput {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine(self)
    }
}

/// Writer of one line of a log. It reports no error.
#[derive(Debug)]
pub(crate) struct LogLine<'a>(&'a LogOutput);

impl Write for LogLine<'_> {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.write_if_read(std::io::stderr().lock(), line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        // Standard error has no buffer.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::{Arc, mpsc};
    use std::time::Instant;

    use super::*;

    /// Longest time of a step that ends at once.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A file on a disk with room for `room` more bytes.
    #[derive(Default)]
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let fits = bytes.len().min(self.room);
            if fits == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.room -= fits;
            self.text.extend_from_slice(&bytes[..fits]);
            Ok(fits)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn dropped_lines_are_counted_in_the_log() {
        let output = LogOutput::new(LogFormat::Text);
        let mut disk = Disk { room: 8, ..Disk::default() };
        for line in ["one\n", "second\n", "third\n"] {
            output.write_line(&mut disk, line.as_bytes());
        }
        disk.room = 3;
        // Not even the note fits.
        output.write_line(&mut disk, b"fourth\n");
        disk.room = 1000;
        output.write_line(&mut disk, b"fifth\n");
        output.write_line(&mut disk, b"sixth\n");
        let text = String::from_utf8(disk.text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let note = "WARN lines of the log are missing here, as they could not be written: 3";
        assert_eq!(lines, ["one", "seco", "WA", note, "fifth", "sixth"], "{text}");
    }

    #[test]
    fn a_reader_that_stops_holds_back_no_thread() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let output = Arc::new(LogOutput::new(LogFormat::Text));
        let (done, ended) = mpsc::channel();
        let shared = output.clone();
        std::thread::spawn(move || {
            // More than a pipe holds.
            let line = format!("{}\n", "x".repeat(PIECE_BYTES + 1));
            for _ in 0..512 {
                shared.write_if_read(&writer, line.as_bytes());
            }
            done.send(writer)
        });
        let writer = ended.recv_timeout(TIMEOUT).expect("the log waits for its reader");
        assert!(output.dropped.load(Ordering::Relaxed) > 0);
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        let deadline = Instant::now() + TIMEOUT;
        while output.dropped.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < deadline, "the log stays stopped");
            output.write_if_read(&writer, b"last\n");
        }
        drop(writer);
        let text = reading.join().unwrap().unwrap();
        assert!(
            text.contains("\nWARN lines of the log are missing here") && text.ends_with("\nlast\n")
        );
    }

    #[test]
    fn the_note_about_dropped_lines_is_json_if_the_log_is() {
        let note = LogOutput::new(LogFormat::Json).note(2);
        let parsed: serde_json::Value = serde_json::from_str(&note).unwrap();
        assert_eq!(parsed["level"], "WARN");
        assert!(parsed["message"].as_str().unwrap().ends_with(": 2"), "{note}");
    }
}
