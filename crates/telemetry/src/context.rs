//! Trace context of the W3C: the header `traceparent`, and ids.

use std::fmt::{Display, Formatter};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest `tracestate` in bytes that is passed on. The W3C requires at least 512.
pub(crate) const STATE_BYTES_MAX: usize = 512;
/// Length of `traceparent` of version 00: version, trace id, span id, flags.
const PARENT_BYTES: usize = 55;
/// Multiplier that spreads consecutive numbers evenly: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Id of a trace, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub(crate) [u8; 16]);

/// Id of a span, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub(crate) [u8; 8]);

/// The span of a client that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// Trace of the span.
    pub(crate) trace_id: TraceId,
    /// Span of the client, which becomes the parent of this server's span.
    pub(crate) span_id: SpanId,
    /// True if the client records the trace.
    pub(crate) sampled: bool,
}

impl Display for TraceId {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl Display for SpanId {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl TraceId {
    /// Returns the bytes in the order of their hexadecimal form.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns a number from 0 to 1 (excluded) that depends on the id only. It is made of the last
    /// seven bytes, which the W3C requires to be random.
    pub(crate) fn fraction(&self) -> f64 {
        let number = u128::from_be_bytes(self.0) as u64 & ((1 << 56) - 1);
        number as f64 / (1u64 << 56) as f64
    }
}

impl SpanId {
    /// Returns the bytes in the order of their hexadecimal form.
    pub fn bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl TraceContext {
    /// Parses the value of `traceparent`. Later versions than 00 may have more fields, which
    /// are ignored. Returns `None` for a malformed value, which the W3C asks to ignore.
    pub(crate) fn parse(value: &str) -> Option<TraceContext> {
        let value = value.trim();
        let (fields, rest) = value.split_at_checked(PARENT_BYTES)?;
        let mut fields = fields.split('-');
        let version = number(fields.next()?, 2)? as u8;
        let more = rest.is_empty() || (version > 0 && rest.starts_with('-'));
        let trace_id = TraceId(number(fields.next()?, 32)?.to_be_bytes());
        let span_id = SpanId((number(fields.next()?, 16)? as u64).to_be_bytes());
        let flags = number(fields.next()?, 2)? as u8;
        let valid = version != 0xff
            && more
            && fields.next().is_none()
            && trace_id.0 != [0; 16]
            && span_id.0 != [0; 8];
        valid.then_some(TraceContext { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

/// Returns the value of `digits` lower-case hexadecimal digits.
fn number(text: &str, digits: usize) -> Option<u128> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let valid = text.len() == digits && text.bytes().all(hex);
    valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Source of random ids. It does not call the system.
pub(crate) struct IdSource {
    seeds: [u64; 2],
    next: AtomicU64,
}

impl IdSource {
    pub(crate) fn new() -> IdSource {
        // Each state has random keys of the system.
        let seed = || RandomState::new().hash_one(std::process::id());
        IdSource { seeds: [seed(), seed()], next: AtomicU64::new(seed()) }
    }

    pub(crate) fn trace(&self) -> TraceId {
        let number = self.next.fetch_add(SPREAD, Ordering::Relaxed);
        let high = u128::from(mixed(number ^ self.seeds[0]));
        let low = u128::from(mixed(number.wrapping_add(self.seeds[1])));
        TraceId(((high << 64 | low).max(1)).to_be_bytes())
    }

    pub(crate) fn span(&self) -> SpanId {
        let number = self.next.fetch_add(SPREAD, Ordering::Relaxed);
        SpanId(mixed(number ^ self.seeds[1]).max(1).to_be_bytes())
    }
}

/// Returns a number of which each bit depends on all bits of `number` (the output of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_parent_is_parsed() {
        let context = TraceContext::parse(PARENT).unwrap();
        assert_eq!(context.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id.to_string(), "00f067aa0ba902b7");
        assert!(context.sampled);
        let off = TraceContext::parse(&PARENT.replace("-01", "-02")).unwrap();
        assert!(!off.sampled, "the flag is bit 0");
        let later = PARENT.replacen("00", "cc", 1) + "-what-the-future-brings";
        assert_eq!(TraceContext::parse(&later), Some(context));
    }

    #[test]
    fn malformed_parents_are_ignored() {
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
        ] {
            assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn ids_survive_the_header(trace in 1..u128::MAX, span in 1..u64::MAX, flags in 0..=255u8) {
            let text = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
            let parsed = TraceContext::parse(&text).unwrap();
            let TraceContext { trace_id, span_id, sampled } = parsed;
            prop_assert_eq!(format!("00-{trace_id}-{span_id}-{flags:02x}"), text);
            prop_assert_eq!(sampled, flags % 2 == 1);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,80}") {
            TraceContext::parse(&text);
        }
    }

    #[test]
    fn ids_differ_and_are_spread() {
        let ids = IdSource::new();
        let traces: Vec<TraceId> = (0..10_000).map(|_| ids.trace()).collect();
        let spans: HashSet<SpanId> = (0..10_000).map(|_| ids.span()).collect();
        assert_eq!(traces.iter().collect::<HashSet<_>>().len(), traces.len());
        assert_eq!(spans.len(), 10_000);
        let sampled = traces.iter().filter(|id| id.fraction() < 0.1).count();
        assert!((800..1200).contains(&sampled), "{sampled}");
    }
}
