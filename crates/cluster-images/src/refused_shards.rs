//! Shards that refuse the images of an archive or a folder: their holders have full disks, or they
//! have no owner.
//!
//! The images of such a shard wait, and one of them is sent from time to time. If the shard still
//! refuses one after the limit, its images fail without being sent, except for one from time to
//! time. The images of other shards continue.
//!
//! After an outcome that says nothing about writes, such as the outcome of a present image, the
//! images are sent until the next refusal. Otherwise one refusal would fail the images that an
//! earlier upload has added.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::Error;
use cluster_node::ShardKey;
use parking_lot::Mutex;

/// Longest time for which the images of a shard that refuses them wait.
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(120);
/// Pause before the next image is sent to a shard that refused one. The refusal may advise a
/// shorter pause. The pause is also shorter if the images wait for a shorter time.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Shortest pause before the next image is sent to a shard that refused one.
const PROBE_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest time between two checks of an image that waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Step of an image.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RefusedStep {
    /// The image is sent.
    Send,
    /// The shard refuses images. The image checks it again after this time.
    Wait(Duration),
    /// The shard has refused images for too long.
    Fail(Error),
}

/// Refusals of the shards of one request.
pub(super) struct RefusedShards {
    wait_max: Duration,
    probe_pause_max: Duration,
    /// Refusals, one for each shard of the collection that refuses images.
    refusals: Mutex<BTreeMap<ShardKey, ShardRefusal>>,
}

struct ShardRefusal {
    /// Time of the first refusal since an image was added to the shard, or since images did not
    /// wait and none was refused for [`REFUSED_WAIT_MAX`].
    since: Instant,
    /// Time of the last refusal.
    latest: Instant,
    /// Time at which the next image is sent. `None` if images do not wait until the next refusal.
    next_probe: Option<Instant>,
    /// Last refusal.
    error: Error,
}

impl RefusedShards {
    /// Creates the state of a request without refusals. `timeout` is the time that the client
    /// allows for an image. Images do not wait longer.
    pub(super) fn new(timeout: Option<Duration>) -> RefusedShards {
        let wait_max = timeout.map_or(REFUSED_WAIT_MAX, |timeout| timeout.min(REFUSED_WAIT_MAX));
        let probe_pause_max = PROBE_PAUSE_MAX.min(wait_max).max(PROBE_PAUSE_MIN);
        RefusedShards { wait_max, probe_pause_max, refusals: Mutex::default() }
    }

    /// Returns the step of an image of `shard` at `now`.
    pub(super) fn step(&self, shard: &ShardKey, now: Instant) -> RefusedStep {
        let mut refusals = self.refusals.lock();
        let Some(refusal) = refusals.get_mut(shard) else { return RefusedStep::Send };
        let Some(next_probe) = refusal.next_probe else { return RefusedStep::Send };
        if now >= next_probe {
            // The outcome of this image sets the time of the next one.
            refusal.next_probe = Some(now + self.probe_pause_max);
            return RefusedStep::Send;
        }
        if self.is_over(refusal) {
            let context = "not tried, because its shard refused earlier images";
            return RefusedStep::Fail(refusal.error.clone().context(context));
        }
        let pause = next_probe.saturating_duration_since(now);
        RefusedStep::Wait(pause.min(CHECK_INTERVAL))
    }

    /// Records at `now` that `shard` has refused an image with `error`. Returns true if the image
    /// stops waiting.
    pub(super) fn record(&self, shard: &ShardKey, error: &Error, now: Instant) -> bool {
        let pause = error.retry_after().unwrap_or(PROBE_PAUSE_MAX);
        let next_probe = Some(now + pause.clamp(PROBE_PAUSE_MIN, self.probe_pause_max));
        let mut refusals = self.refusals.lock();
        let refusal = refusals.entry(shard.clone()).or_insert_with(|| {
            tracing::warn!(%shard, %error, "images of a shard wait, because it refuses them");
            ShardRefusal { since: now, latest: now, next_probe, error: error.clone() }
        });
        let since_latest = now.saturating_duration_since(refusal.latest);
        if refusal.next_probe.is_none() && since_latest >= REFUSED_WAIT_MAX {
            refusal.since = now;
        }
        // Threads may record their refusals in another order than that of their times.
        refusal.latest = refusal.latest.max(now);
        refusal.next_probe = next_probe;
        refusal.error = error.clone();
        self.is_over(refusal)
    }

    /// Records that an image of `shard` has ended without an outcome that says if the shard takes
    /// images. Its images do not wait until the next refusal.
    pub(super) fn release(&self, shard: &ShardKey) {
        if let Some(refusal) = self.refusals.lock().get_mut(shard) {
            refusal.next_probe = None;
        }
    }

    /// Records that `shard` has taken an image.
    pub(super) fn end(&self, shard: &ShardKey) {
        if self.refusals.lock().remove(shard).is_some() {
            tracing::info!(%shard, "the shard takes images again");
        }
    }

    fn is_over(&self, refusal: &ShardRefusal) -> bool {
        refusal.latest.saturating_duration_since(refusal.since) >= self.wait_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Error {
        Error::storage_full("no space").with_retry_after(Duration::from_secs(5))
    }

    #[test]
    fn images_of_a_refusing_shard_wait_and_one_is_sent() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let shards = RefusedShards::new(None);
        let refusing = ShardKey::new("1", 0);
        let other = ShardKey::new("1", 1);
        assert_eq!(shards.step(&refusing, start), RefusedStep::Send);
        assert!(!shards.record(&refusing, &full(), start));
        assert_eq!(shards.step(&other, start), RefusedStep::Send);
        assert_eq!(shards.step(&refusing, start), RefusedStep::Wait(CHECK_INTERVAL));
        assert_eq!(shards.step(&refusing, at(5)), RefusedStep::Send);
        assert_eq!(shards.step(&refusing, at(5)), RefusedStep::Wait(CHECK_INTERVAL));
        assert!(!shards.record(&refusing, &full(), at(6)));
        assert_eq!(shards.step(&refusing, at(10)), RefusedStep::Wait(CHECK_INTERVAL));
        shards.end(&refusing);
        assert_eq!(shards.step(&refusing, at(10)), RefusedStep::Send);
    }

    #[test]
    fn images_fail_after_the_longest_wait_until_one_is_taken() {
        let start = Instant::now();
        let shards = RefusedShards::new(None);
        let shard = ShardKey::new("1", 0);
        assert!(!shards.record(&shard, &full(), start));
        let end = start + REFUSED_WAIT_MAX;
        assert_eq!(shards.step(&shard, end), RefusedStep::Send);
        assert!(shards.record(&shard, &full(), end));
        let RefusedStep::Fail(error) = shards.step(&shard, end) else { panic!("it is sent") };
        assert!(error.message().starts_with("not tried"), "{error}");
        assert!(error.message().ends_with("no space"), "{error}");
        let later = end + Duration::from_secs(5);
        assert_eq!(shards.step(&shard, later), RefusedStep::Send, "one is sent from time to time");
        shards.end(&shard);
        assert!(!shards.record(&shard, &full(), later), "the time counts anew");
    }

    #[test]
    fn the_time_of_the_client_limits_the_wait() {
        let start = Instant::now();
        let shards = RefusedShards::new(Some(Duration::from_secs(1)));
        let shard = ShardKey::new("1", 0);
        let unadvised = Error::unavailable("no owner");
        assert!(!shards.record(&shard, &unadvised, start));
        assert_eq!(shards.step(&shard, start), RefusedStep::Wait(CHECK_INTERVAL));
        let end = start + Duration::from_secs(1);
        assert_eq!(shards.step(&shard, end), RefusedStep::Send);
        assert!(shards.record(&shard, &unadvised, end));
        assert!(matches!(shards.step(&shard, end), RefusedStep::Fail(_)));
        assert_eq!(shards.step(&shard, end + Duration::from_secs(1)), RefusedStep::Send);
    }

    #[test]
    fn one_refusal_fails_no_image_that_is_present() {
        let start = Instant::now();
        let shards = RefusedShards::new(None);
        let shard = ShardKey::new("1", 0);
        assert!(!shards.record(&shard, &full(), start));
        shards.release(&shard);
        let later = start + 2 * REFUSED_WAIT_MAX;
        for now in [start, later, later] {
            assert_eq!(shards.step(&shard, now), RefusedStep::Send);
        }
        assert!(!shards.record(&shard, &full(), later), "the time counts anew");
        shards.release(&shard);
        let end = later + REFUSED_WAIT_MAX - CHECK_INTERVAL;
        assert!(!shards.record(&shard, &full(), end));
        shards.release(&shard);
        let over = later + REFUSED_WAIT_MAX;
        assert!(shards.record(&shard, &full(), over), "images present do not make the wait longer");
        assert!(matches!(shards.step(&shard, over), RefusedStep::Fail(_)));
    }
}
