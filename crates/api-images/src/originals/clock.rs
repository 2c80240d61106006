//! Clock of the store of originals: the clock of this machine may be wrong.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use base::Result;
use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::path::Path as ObjectPath;

use super::{Originals, failed};

/// Object in the directory of a collection's originals whose time is that of the store's clock. No
/// original has this name.
const CLOCK: &str = "clock";

impl Originals {
    /// Returns the time of the store's clock. Writes an object in the directory `space`, and reads
    /// the time at which the store wrote it. The object stays, so that another node that reads the
    /// time meanwhile finds it.
    pub(crate) async fn store_time(&self, space: &str) -> Result<SystemTime> {
        self.time_of_new(&format!("{space}/{CLOCK}")).await
    }

    /// Returns the time of the store's clock, rounded up if the store reports whole seconds. Writes
    /// an object to read the time, and removes it: only this server uses the directory `space`.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn now(&self, space: &str) -> Result<SystemTime> {
        let number = self.clocks.fetch_add(1, Ordering::Relaxed);
        let key = format!("{space}/{CLOCK}-{number}");
        let time = self.time_of_new(&key).await;
        if let Err(error) = self.delete(&key).await {
            tracing::warn!(%error, key, "an empty object stays in the store of originals");
        }
        time.map(end_of_whole_second)
    }

    /// Writes an empty object and returns the time at which the store wrote it.
    async fn time_of_new(&self, key: &str) -> Result<SystemTime> {
        self.put(key, Bytes::new()).await?;
        let store = self.store()?;
        let head = store.objects().head(&store.key(key)).await;
        head.map(|object| SystemTime::from(object.last_modified)).map_err(failed)
    }
}

/// Returns true if [`Originals::now`] has written the object in the directory of a space.
pub(super) fn is_clock(object: &ObjectPath, directory: &ObjectPath) -> bool {
    let object: &str = object.as_ref();
    let directory: &str = directory.as_ref();
    let name = object.strip_prefix(directory).and_then(|name| name.strip_prefix('/'));
    let number = name.and_then(|name| name.strip_prefix(CLOCK)?.strip_prefix('-'));
    // An administrator may keep other files in the directory.
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// Returns the end of the second of `time` if `time` has no fraction. Some stores report the time
/// of one object in whole seconds, and list objects with fractions. Without the rounding, an
/// original that was written just before would look newer.
fn end_of_whole_second(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    if since.is_ok_and(|since| since.subsec_nanos() == 0) {
        time + Duration::from_nanos(999_999_999)
    } else {
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_a_fraction_covers_its_second() {
        let second = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        // A list shows the original with a fraction.
        let written = second + Duration::from_millis(300);
        assert!(written <= end_of_whole_second(second));
        assert!(end_of_whole_second(second) < second + Duration::from_secs(1));
        assert_eq!(end_of_whole_second(written), written);
    }
}
