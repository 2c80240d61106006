//! The document of aliases and changes ([`CatalogChanges`]) in the store. Each version is an object
//! that is created only if it is absent. So if two changes are made at the same moment, one is made
//! again on top of the other.
//!
//! Old versions are removed, so a slow change can create the number of a removed version. Such a
//! version has no effect, because newer ones are there: the change is made again.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use model_store::SmallObjects;
use object_store::path::Path as Key;
use tokio_stream::StreamExt;

use crate::changes::{CHANGES_BYTES_MAX, CatalogChanges};

/// Directory of the versions.
const VERSIONS: &str = "catalog-changes";
/// Maximum versions that are listed. Each change removes old versions, so there are few.
const VERSIONS_MAX: usize = 100_000;
/// Newest versions that stay. Another node may be reading one of them. A change whose number was
/// removed finds at least this many newer versions.
const VERSIONS_KEPT: u64 = 8;
/// Maximum attempts of one change, if other nodes change the document at the same time.
const ATTEMPTS_MAX: usize = 16;
/// Retry advice after that many attempts.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A version of the document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ChangesVersion {
    /// Number; 0 for the document without an object.
    pub(super) number: u64,
    pub(super) changes: Arc<CatalogChanges>,
}

/// The versions in the store.
pub(super) struct ChangeLog {
    objects: SmallObjects,
}

impl ChangeLog {
    pub(super) fn new(objects: SmallObjects) -> ChangeLog {
        ChangeLog { objects }
    }

    /// Returns the newest version. `known` is one that was read before.
    ///
    /// # Errors
    /// The store's error; `DataLoss` for a version that cannot be read; `Unavailable` with retry
    /// advice if other nodes change the document all the time.
    pub(super) async fn newest(&self, known: &ChangesVersion) -> Result<ChangesVersion> {
        // A version may be removed between the list and the read, because there is a newer one.
        for _ in 0..ATTEMPTS_MAX {
            let number = self.numbers(known.number).await?.into_iter().max().unwrap_or(0);
            if number <= known.number {
                return Ok(known.clone());
            }
            if let Some(changes) = self.read(number).await? {
                return Ok(ChangesVersion { number, changes: Arc::new(changes) });
            }
        }
        Err(contended())
    }

    /// Makes a change of the newest version. Returns the new one.
    ///
    /// # Errors
    /// Errors of `change`; as [`ChangeLog::newest`].
    pub(super) async fn change(
        &self,
        known: &ChangesVersion,
        change: &(dyn Fn(&CatalogChanges) -> Result<CatalogChanges> + Send + Sync),
    ) -> Result<ChangesVersion> {
        let mut known = known.clone();
        for _ in 0..ATTEMPTS_MAX {
            known = self.newest(&known).await?;
            let changes = change(&known.changes)?;
            if changes == *known.changes {
                return Ok(known);
            }
            let number = known.number + 1;
            if !self.objects.create_own(&self.key(number), changes.encode()?).await? {
                continue;
            }
            let numbers = self.numbers(0).await?;
            // Other nodes may have made and removed a version of this number since the read.
            let newest = numbers.iter().copied().max().unwrap_or(number);
            if newest < number.saturating_add(VERSIONS_KEPT) {
                self.remove_old(newest, numbers).await;
                return Ok(ChangesVersion { number, changes: Arc::new(changes) });
            }
        }
        Err(contended())
    }

    /// Returns the numbers of the versions after the version `after`.
    async fn numbers(&self, after: u64) -> Result<Vec<u64>> {
        let prefix = self.objects.key(VERSIONS);
        let place = self.objects.place();
        let list = async {
            let mut objects = place.objects().list_with_offset(Some(&prefix), &self.key(after));
            let mut numbers = Vec::new();
            while let Some(object) = objects.next().await {
                let key = object.map_err(|error| place.failed(error))?.location;
                numbers.extend(key.filename().and_then(|name| name.parse::<u64>().ok()));
                if numbers.len() > VERSIONS_MAX {
                    return Err(Error::exhausted(format!(
                        "{prefix} has more than {VERSIONS_MAX} objects; remove all but the last"
                    )));
                }
            }
            Ok(numbers)
        };
        self.objects.within(list).await?
    }

    async fn read(&self, number: u64) -> Result<Option<CatalogChanges>> {
        let key = self.key(number);
        let bytes = self.objects.read(&key, CHANGES_BYTES_MAX as u64).await?;
        let changes = bytes.map(|bytes| CatalogChanges::decode(&bytes)).transpose();
        changes.map_err(|error| error.context(&key))
    }

    /// Removes all of the versions `numbers` except the newest ones. `newest` is the newest
    /// version.
    async fn remove_old(&self, newest: u64, numbers: Vec<u64>) {
        let is_old = |number: &u64| number.saturating_add(VERSIONS_KEPT) <= newest;
        for old in numbers.into_iter().filter(is_old) {
            // Remaining versions are removed after the next change.
            let _ = self.objects.remove(&self.key(old)).await;
        }
    }

    fn key(&self, number: u64) -> Key {
        // With leading zeros, so that lists show the versions in order.
        self.objects.key(&format!("{VERSIONS}/{number:020}"))
    }
}

fn contended() -> Error {
    let message = "other nodes change aliases at the same time; try again";
    Error::unavailable(message).with_retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use base::ErrorKind;
    use model_store::StorePlace;
    use object_store::memory::InMemory;
    use search::registry::AliasChange;

    use super::*;

    fn log() -> ChangeLog {
        let place = StorePlace::new(Arc::new(InMemory::new()), "c", "memory");
        ChangeLog::new(SmallObjects::new(place, Duration::from_secs(10)))
    }

    fn with_alias(alias: &str) -> impl Fn(&CatalogChanges) -> Result<CatalogChanges> {
        let change =
            AliasChange::Create { alias: alias.to_owned(), collection: "there".to_owned() };
        move |changes| changes.with_aliases(std::slice::from_ref(&change), |name| name == "there")
    }

    #[tokio::test]
    async fn no_change_is_lost_to_another_one() {
        let log = log();
        let start = ChangesVersion::default();
        assert_eq!(log.newest(&start).await.unwrap(), start);
        // Both begin with the first version.
        log.change(&start, &with_alias("a")).await.unwrap();
        let second = log.change(&start, &with_alias("b")).await.unwrap();
        assert_eq!(second.number, 2);
        assert_eq!(second.changes.aliases.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(log.newest(&start).await.unwrap(), second);
        let third = log.change(&second, &with_alias("c")).await.unwrap();
        assert_eq!(third.number, 3);
        for number in 4..12 {
            let alias = format!("more-{number}");
            log.change(&third, &with_alias(&alias)).await.unwrap();
        }
        let mut numbers = log.numbers(0).await.unwrap();
        numbers.sort_unstable();
        assert_eq!(numbers, (4..12).collect::<Vec<u64>>(), "some stay for nodes that read them");
    }

    #[tokio::test]
    async fn a_change_with_a_removed_number_is_made_again() {
        let log = log();
        let start = ChangesVersion::default();
        let overtaken = AtomicBool::new(false);
        let others = || {
            let changes = async {
                for number in 0..=VERSIONS_KEPT {
                    let alias = format!("other-{number}");
                    log.change(&start, &with_alias(&alias)).await?;
                }
                Ok(())
            };
            model_store::block_on(changes).unwrap();
        };
        // Other nodes change the document between the read and the create.
        let slow = |changes: &CatalogChanges| {
            if !overtaken.swap(true, Ordering::Relaxed) {
                std::thread::scope(|scope| scope.spawn(others).join().unwrap());
            }
            with_alias("slow")(changes)
        };
        let made = log.change(&start, &slow).await.unwrap();
        assert_eq!(log.newest(&start).await.unwrap(), made);
        assert!(made.changes.aliases.contains_key("slow"));
        assert_eq!(made.changes.aliases.len(), 10);
    }

    #[tokio::test]
    async fn a_change_that_is_always_overtaken_has_retry_advice() {
        let log = log();
        let start = ChangesVersion::default();
        let attempts = AtomicUsize::new(0);
        let overtaken = |changes: &CatalogChanges| {
            let alias = format!("other-{}", attempts.fetch_add(1, Ordering::Relaxed));
            let other = || model_store::block_on(log.change(&start, &with_alias(&alias)));
            std::thread::scope(|scope| scope.spawn(other).join().unwrap())?;
            with_alias("slow")(changes)
        };
        let error = log.change(&start, &overtaken).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.retry_after()),
            (ErrorKind::Unavailable, Some(RETRY_AFTER))
        );
        assert_eq!(attempts.into_inner(), ATTEMPTS_MAX);
    }

    #[tokio::test]
    async fn a_change_without_effect_makes_no_version() {
        let log = log();
        let first = log.change(&ChangesVersion::default(), &with_alias("a")).await.unwrap();
        assert_eq!(log.change(&first, &with_alias("a")).await.unwrap(), first);
    }

    #[tokio::test]
    async fn a_damaged_version_is_named() {
        let log = log();
        log.objects.create(&log.key(7), b"{".to_vec()).await.unwrap();
        let error = log.newest(&ChangesVersion::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        assert!(error.message().contains("c/catalog-changes/00000000000000000007"), "{error}");
    }
}
