//! Fields of the lines of a text log.

use std::fmt::{self, Debug};

use base::escape_controls;
use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Name of the field that is written without its name.
const MESSAGE: &str = "message";

/// Format of fields: the message, then `name=value` for the others. Control characters are escaped,
/// so a name or an error from a client cannot begin another line or change a terminal.
#[derive(Clone, Copy, Debug)]
pub(super) struct EscapedFields;

impl<'writer> FormatFields<'writer> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = FieldWriter { writer, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

/// Writer of the fields of one event or span.
struct FieldWriter<'writer> {
    writer: Writer<'writer>,
    is_first: bool,
    result: fmt::Result,
}

impl FieldWriter<'_> {
    /// Writes a field as `name=value`, and the message without a name. Escapes control characters.
    fn write(&mut self, name: &str, value: &str) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        if name != MESSAGE {
            let name = name.strip_prefix("r#").unwrap_or(name);
            if self.writer.has_ansi_escapes() {
                // Italic and dimmed, as in the library's own format.
                write!(self.writer, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m")?;
            } else {
                write!(self.writer, "{name}=")?;
            }
        }
        self.writer.write_str(&escape_controls(value, &[]))
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == MESSAGE {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // The fields `log.*` of an event of the crate `log` are its level and place.
        if self.result.is_ok() && !field.name().starts_with("log.") {
            self.result = self.write(field.name(), &format!("{value:?}"));
        }
    }
}

#[cfg(test)]
pub(super) use tests::MemoryOutput;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Output of a log in memory.
    #[derive(Clone, Default)]
    pub(in crate::serve) struct MemoryOutput(Arc<Mutex<Vec<u8>>>);

    impl MemoryOutput {
        pub(in crate::serve) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    impl Write for MemoryOutput {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log of an event whose texts have control characters.
    fn log(colours: bool) -> String {
        let output = MemoryOutput::default();
        let to = output.clone();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_target(false)
            .with_ansi(colours)
            .fmt_fields(EscapedFields)
            .with_writer(move || to.clone())
            .finish();
        let text = "a\nWARN forged \u{1b}[31m";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(error = %text, name = text, count = 3, "failed: {text}");
        });
        output.text()
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        assert_eq!(
            log(false),
            " WARN failed: a\\nWARN forged \\u001b[31m error=a\\nWARN forged \\u001b[31m \
             name=\"a\\nWARN forged \\u{1b}[31m\" count=3\n"
        );
    }

    #[test]
    fn colours_are_those_of_the_format() {
        let line = log(true);
        assert!(line.contains("\u{1b}[3mcount\u{1b}[0m\u{1b}[2m=\u{1b}[0m3"), "{line:?}");
        assert!(!line.contains("\u{1b}[31m"), "{line:?}");
        assert_eq!(line.lines().count(), 1, "{line:?}");
    }
}
