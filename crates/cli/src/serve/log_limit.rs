//! A limit on the warnings of h2 in the log.

use std::fmt;
use std::time::Instant;

use os::WarningLimiter;
use parking_lot::Mutex;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::options::LogFormat;

/// Target of the events of h2, the library for HTTP/2, and start of the targets of its modules. It
/// writes a warning for each connection of a client that exceeds a limit of HTTP/2.
const TARGET: &str = "h2";
const TARGET_START: &str = "h2::";

/// Format of events that writes the warnings of h2 at most once in 10 seconds. A line with the
/// number of omitted warnings precedes the next one.
#[derive(Debug)]
pub(super) struct LimitedEvents<E> {
    format: LogFormat,
    events: E,
    warnings: Mutex<WarningLimiter>,
}

impl<E> LimitedEvents<E> {
    pub(super) fn new(format: LogFormat, events: E) -> LimitedEvents<E> {
        LimitedEvents { format, events, warnings: Mutex::default() }
    }

    /// Writes a line about `omitted` warnings.
    fn note(&self, writer: &mut Writer<'_>, omitted: u64) -> fmt::Result {
        let message = format!("warnings of h2 about other connections are omitted here: {omitted}");
        match self.format {
            LogFormat::Text => writeln!(writer, "WARN {message}"),
            LogFormat::Json => {
                writeln!(writer, "{{\"level\":\"WARN\",\"message\":\"{message}\"}}")
            }
        }
    }
}

/// Returns true for a warning of h2.
fn is_limited(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    *metadata.level() == Level::WARN && (target == TARGET || target.starts_with(TARGET_START))
}

impl<S, N, E> FormatEvent<S, N> for LimitedEvents<E>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    E: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if is_limited(event.metadata()) {
            // Without any text, the subscriber writes no line.
            let Some(count) = self.warnings.lock().count(Instant::now()) else { return Ok(()) };
            if let Some(omitted @ 1..) = count.checked_sub(1) {
                self.note(&mut writer, omitted)?;
            }
        }
        self.events.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::log_fields::MemoryOutput;
    use super::*;

    #[test]
    fn warnings_of_h2_are_limited() {
        let output = MemoryOutput::default();
        let to = output.clone();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .map_event_format(|events| LimitedEvents::new(LogFormat::Text, events))
            .with_writer(move || to.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..3 {
                tracing::warn!(target: "h2::proto::streams", "limit {number}");
                tracing::warn!("own {number}");
            }
        });
        assert_eq!(output.text(), " WARN limit 0\n WARN own 0\n WARN own 1\n WARN own 2\n");
    }

    #[test]
    fn omitted_warnings_are_counted() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        for (format, note) in [
            (LogFormat::Text, "WARN warnings of h2 about other connections are omitted here: 1\n"),
            (
                LogFormat::Json,
                "{\"level\":\"WARN\",\"message\":\"warnings of h2 about other connections are \
                 omitted here: 1\"}\n",
            ),
        ] {
            let output = MemoryOutput::default();
            let to = output.clone();
            let subscriber = tracing_subscriber::fmt()
                .without_time()
                .with_target(false)
                .with_ansi(false)
                .map_event_format(|events| {
                    let events = LimitedEvents::new(format, events);
                    // A minute ago, one warning was written and one was omitted.
                    assert_eq!(events.warnings.lock().count(long_ago), Some(1));
                    assert_eq!(events.warnings.lock().count(long_ago), None);
                    events
                })
                .with_writer(move || to.clone())
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(target: "h2", "limit");
            });
            assert_eq!(output.text(), format!("{note} WARN limit\n"));
        }
    }
}
