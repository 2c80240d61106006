//! Limits of a key: requests per second, and CPU seconds per minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::Error;
use os::CpuAccount;

/// Limits as an operator sets them. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct KeyQuota {
    pub(super) requests_per_second: Option<f64>,
    pub(super) cpu_seconds_per_minute: Option<f64>,
}

/// Limits of a key, and its use so far.
#[derive(Debug)]
pub(super) struct KeyLimits {
    quota: KeyQuota,
    requests: Mutex<RequestCount>,
    pub(super) cpu: Arc<CpuAccount>,
}

/// Requests of a key.
#[derive(Clone, Copy, Debug)]
struct RequestCount {
    bucket: TokenBucket,
    accepted: u64,
    refused: u64,
}

/// Use of a key since the start of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyUsage {
    /// Name of the key, which is not secret.
    pub name: Arc<str>,
    /// Accepted requests.
    pub accepted: u64,
    /// Requests refused for too many requests.
    pub refused_requests: u64,
    /// Requests refused for too much processor time.
    pub refused_cpu: u64,
    /// Processor time of the requests' work.
    pub cpu: Duration,
}

impl KeyLimits {
    pub(super) fn new(quota: KeyQuota) -> Arc<KeyLimits> {
        let bucket = TokenBucket::full(quota.requests_per_second);
        Arc::new(KeyLimits {
            quota,
            requests: Mutex::new(RequestCount { bucket, accepted: 0, refused: 0 }),
            cpu: CpuAccount::new(quota.cpu_seconds_per_minute),
        })
    }

    /// Returns limits of the same quota as `after`, which continue with the use of `before`.
    pub(super) fn carried(before: &Arc<KeyLimits>, after: &Arc<KeyLimits>) -> Arc<KeyLimits> {
        if before.quota == after.quota {
            return before.clone();
        }
        let mut requests = before.read();
        if before.quota.requests_per_second != after.quota.requests_per_second {
            requests.bucket = TokenBucket::full(after.quota.requests_per_second);
        }
        Arc::new(KeyLimits {
            quota: after.quota,
            requests: Mutex::new(requests),
            cpu: before.cpu.with_quota(after.quota.cpu_seconds_per_minute),
        })
    }

    fn read(&self) -> RequestCount {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the use of the key `name`.
    pub(super) fn usage(&self, name: &Arc<str>) -> KeyUsage {
        let RequestCount { accepted, refused, .. } = self.read();
        let cpu = self.cpu.usage();
        KeyUsage {
            name: name.clone(),
            accepted,
            refused_requests: refused,
            refused_cpu: cpu.refused,
            cpu: cpu.used,
        }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(super) fn count(&self) -> Result<(), ExceededLimit> {
        let cpu = self.quota.cpu_seconds_per_minute.unwrap_or_default();
        self.cpu.check().map_err(|wait| ExceededLimit::Cpu { per_minute: cpu, wait })?;
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(rate) = self.quota.requests_per_second else {
            requests.accepted += 1;
            return Ok(());
        };
        match requests.bucket.take(rate, Instant::now()) {
            Ok(()) => {
                requests.accepted += 1;
                Ok(())
            }
            Err(wait) => {
                requests.refused += 1;
                Err(ExceededLimit::Requests { per_second: rate, wait })
            }
        }
    }
}

/// A limit that a request would exceed, and the time to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ExceededLimit {
    Requests { per_second: f64, wait: Duration },
    Cpu { per_minute: f64, wait: Duration },
}

impl ExceededLimit {
    /// Returns the label of the metric of refusals.
    pub(super) fn kind(self) -> &'static str {
        match self {
            ExceededLimit::Requests { .. } => "key_rate",
            ExceededLimit::Cpu { .. } => "key_cpu",
        }
    }

    /// Returns the error for a request of the key `name`.
    pub(super) fn error(self, name: &str) -> Error {
        let (limit, wait) = match self {
            ExceededLimit::Requests { per_second, wait } => {
                (format!("make {per_second} requests per second"), wait)
            }
            ExceededLimit::Cpu { per_minute, wait } => {
                (format!("use {per_minute} CPU seconds per minute"), wait)
            }
        };
        Error::exhausted(format!("key \"{name}\" may {limit}; try again later"))
            .with_retry_after(wait)
    }
}

/// Requests that a key may still make.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    /// Returns a bucket for `rate` requests a second, which holds the requests of one second.
    fn full(rate: Option<f64>) -> TokenBucket {
        TokenBucket { tokens: rate.unwrap_or(0.0).max(1.0), filled: Instant::now() }
    }

    /// Takes one request, or returns the time until the next.
    fn take(&mut self, rate: f64, now: Instant) -> Result<(), Duration> {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * rate).min(rate.max(1.0));
        self.filled = self.filled.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::try_from_secs_f64((1.0 - self.tokens) / rate).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn buckets_fill_at_their_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket { tokens: 2.0, filled: start };
        assert!(bucket.take(2.0, start).is_ok() && bucket.take(2.0, start).is_ok());
        assert_eq!(bucket.take(2.0, start), Err(Duration::from_millis(500)));
        assert!(bucket.take(2.0, start + Duration::from_millis(500)).is_ok());
        let late = start + Duration::from_secs(100);
        assert_eq!((0..9).filter(|_| bucket.take(2.0, late).is_ok()).count(), 2, "one second's");
    }

    #[test]
    fn both_limits_are_counted_and_carried() {
        let quota =
            KeyQuota { requests_per_second: Some(0.001), cpu_seconds_per_minute: Some(0.6) };
        let limits = KeyLimits::new(quota);
        limits.count().unwrap();
        let refused = limits.count().unwrap_err();
        assert!(matches!(refused, ExceededLimit::Requests { .. }), "{refused:?}");
        limits.cpu.charge(Duration::from_secs(10));
        let refused = limits.count().unwrap_err();
        assert!(matches!(refused, ExceededLimit::Cpu { .. }), "{refused:?}");
        let faster = KeyLimits::new(KeyQuota { requests_per_second: None, ..quota });
        let carried = KeyLimits::carried(&limits, &faster);
        assert!(carried.count().is_err(), "the processor time is still used up");
        let usage = carried.usage(&"key".into());
        assert_eq!((usage.accepted, usage.refused_requests, usage.refused_cpu), (1, 1, 2));
        assert_eq!(usage.cpu, Duration::from_secs(10));
    }
}
