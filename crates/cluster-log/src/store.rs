//! The objects of a shard's log.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use cluster::{EndSearch, EntryNumber, Epoch, LogEntry, PIPELINE_MAX, ShardKey};
use model_store::{SmallObjects, StorePlace};
use object_store::path::Path as Key;
use object_store::{Error as StoreError, ObjectStoreExt, PutPayload};
use tokio_stream::{Stream, StreamExt};

use super::codec::{Batch, ENTRY_BYTES_MAX, decode_entry, encode_entry};

/// Longest time of a request to the store.
pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Number of objects of floors that are kept, the newest included. A listing of a directory may
/// miss an object that is created meanwhile and one that is removed meanwhile. With these, it
/// misses the floor only if the floor is raised as many times during one listing.
const FLOORS_KEPT: usize = 4;

/// Lower end of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogFloor {
    /// First entry that is not removed.
    pub entry: EntryNumber,
    /// Largest epoch of the entries below.
    pub epoch: Epoch,
}

impl fmt::Display for LogFloor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.entry, self.epoch.0)
    }
}

impl LogFloor {
    /// Reads the name of a floor's object.
    pub(crate) fn parse(name: &str) -> Option<LogFloor> {
        let (entry, epoch) = name.split_once('-')?;
        Some(LogFloor { entry: parse_number(entry)?, epoch: Epoch(parse_number(epoch)?.0) })
    }
}

/// Reads a number of exactly 16 hexadecimal digits.
fn parse_number(digits: &str) -> Option<EntryNumber> {
    let valid = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = valid.then(|| u64::from_str_radix(digits, 16).ok())?;
    number.map(EntryNumber)
}

/// Outcome of a create that succeeds only if no entry has the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The entry was created.
    Created,
    /// An entry of this number exists.
    NotCreated,
    /// The entry may have been created, or may still be created.
    Unknown(Error),
}

/// Log of a shard in a store. Clones are the same log.
#[derive(Clone, Debug)]
pub struct ShardLog {
    objects: SmallObjects,
    entries: Key,
    floors: Key,
    shown: Arc<str>,
    /// Object that the store always has; `None` if its presence is not checked.
    marker: Option<Key>,
}

impl ShardLog {
    /// Opens the log of a shard below the root of a cluster's store. Does not connect.
    pub fn new(place: &StorePlace, key: &ShardKey) -> ShardLog {
        let directory = |name: &str| format!("data/{}/{name}/{:04}", key.collection, key.shard.0);
        ShardLog {
            entries: place.key(&directory("wal")),
            floors: place.key(&directory("floor")),
            objects: SmallObjects::new(place.clone(), REQUEST_TIMEOUT_DEFAULT),
            shown: key.to_string().into(),
            marker: None,
        }
    }

    /// Sets the object `name` of the store as its marker. A directory that is not mounted any more
    /// lacks it, and would take entries that no other node sees.
    #[must_use]
    pub fn with_marker(mut self, name: &str) -> ShardLog {
        self.marker = Some(self.place().key(name));
        self
    }

    /// Checks that the store has its marker, if one is set.
    ///
    /// # Errors
    /// `DataLoss` without the marker; the store's error.
    pub async fn check_marker(&self) -> Result<()> {
        let Some(marker) = &self.marker else { return Ok(()) };
        if self.exists(marker).await? {
            return Ok(());
        }
        Err(Error::data_loss(format!(
            "{} has no object {marker} any more; check that the directory is mounted",
            self.place().shown()
        )))
    }

    /// Sets the longest time of a request, by default [`REQUEST_TIMEOUT_DEFAULT`].
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> ShardLog {
        self.objects = SmallObjects::new(self.place().clone(), timeout);
        self
    }

    /// Returns the shard as `ID/SSSS`, for messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    fn place(&self) -> &StorePlace {
        self.objects.place()
    }

    fn entry_key(&self, number: EntryNumber) -> Key {
        self.entries.clone().join(number.to_string())
    }

    /// Reads an entry; `None` if it is absent.
    ///
    /// # Errors
    /// `DataLoss` for a damaged entry and `Unimplemented` for one of a newer program, both with its
    /// key; otherwise the store's error.
    pub async fn read(&self, number: EntryNumber) -> Result<Option<LogEntry<Batch>>> {
        let key = self.entry_key(number);
        let read = async {
            let got = match self.place().objects().get(&key).await {
                Err(StoreError::NotFound { .. }) => return Ok(None),
                got => got.map_err(|error| self.place().failed(error))?,
            };
            if got.meta.size > ENTRY_BYTES_MAX as u64 {
                let bytes = got.meta.size;
                return Err(Error::data_loss(format!("{bytes} bytes are too many for an entry")));
            }
            match got.bytes().await {
                // A directory's entry was removed after it was opened.
                Err(StoreError::NotFound { .. }) => Ok(None),
                bytes => bytes.map(Some).map_err(|error| self.place().failed(error)),
            }
        };
        let bytes = self.wait_for_answer(&key, read).await;
        let entry = bytes.and_then(|bytes| bytes.as_ref().map(decode_entry).transpose());
        entry.map_err(|error| error.context(format!("{key} in {}", self.place().shown())))
    }

    /// Creates an entry if it is absent.
    pub async fn create(&self, number: EntryNumber, entry: &LogEntry<Batch>) -> CreateOutcome {
        let bytes = match encode_entry(entry) {
            Ok(bytes) => bytes,
            Err(error) => return CreateOutcome::Unknown(error),
        };
        match self.objects.create(&self.entry_key(number), bytes).await {
            Ok(true) => CreateOutcome::Created,
            Ok(false) => CreateOutcome::NotCreated,
            Err(error) => CreateOutcome::Unknown(error),
        }
    }

    /// Returns the floor, by default 0. The entries below it may be removed.
    ///
    /// # Errors
    /// The store's error, with a remedy.
    pub async fn floor(&self) -> Result<LogFloor> {
        let floors = self.wait_for_answer(&self.floors, self.list_floors()).await?;
        Ok(floors.last().copied().unwrap_or_default())
    }

    async fn list_floors(&self) -> Result<BTreeSet<LogFloor>> {
        let mut floors = BTreeSet::new();
        let mut listing = self.place().objects().list(Some(&self.floors));
        while let Some(object) = listing.next().await {
            let location = object.map_err(|error| self.place().failed(error))?.location;
            floors.extend(location.filename().and_then(LogFloor::parse));
        }
        Ok(floors)
    }

    /// Returns the number after the last entry. Every entry that was acknowledged before the call
    /// is below it.
    ///
    /// # Errors
    /// As [`ShardLog::check_marker`]; the store's error, with a remedy.
    pub async fn end(&self) -> Result<EntryNumber> {
        let floor = self.floor().await?.entry;
        let mut listing = self.place().objects().list(Some(&self.entries));
        let mut end = floor;
        while let Some(object) = self.wait_for_answer(&self.entries, next(&mut listing)).await? {
            let location = object.map_err(|error| self.place().failed(error))?.location;
            let number = location.filename().and_then(parse_number);
            end = end.max(number.map_or(floor, |number| number.plus(1)));
        }
        // Checked after the listing: a directory that is not mounted any more has no entries.
        self.check_marker().await?;
        Ok(end)
    }

    /// Returns a number above all entries that were acknowledged before the call, by the rules of
    /// [`EndSearch`]. `from` is the next entry of a reader. Returns `None` if the reader is too far
    /// behind, or if entries ahead of it were removed.
    ///
    /// Unlike [`ShardLog::end`], it lists no entries, because an hour of them is many objects.
    ///
    /// # Errors
    /// As [`ShardLog::check_marker`]; the store's error, with a remedy.
    pub async fn acknowledged_end(&self, from: EntryNumber) -> Result<Option<EntryNumber>> {
        let mut search = EndSearch::new(from);
        while self.has(search.number()).await? {
            if !search.pass_by() {
                return Ok(None);
            }
        }
        // Both are read after the number: its entry may have been removed, and a directory that is
        // not mounted any more has no entries.
        let ((), floor) = tokio::try_join!(self.check_marker(), self.floor())?;
        Ok(search.end(floor.entry))
    }

    /// Checks that the log ends at the absent entry `number`. An owner creates an entry only if the
    /// one [`PIPELINE_MAX`] before it is acknowledged. So a later entry shows that `number` was
    /// lost, and a fence at `number` would make all acknowledged entries after it invalid.
    ///
    /// # Errors
    /// `DataLoss` if the entry was lost; the store's error, with a remedy.
    pub async fn check_end(&self, number: EntryNumber) -> Result<()> {
        // The listing begins after this entry.
        let last_ahead = number.plus(PIPELINE_MAX as u64 - 1);
        let Some(later) = self.any_after(last_ahead).await? else { return Ok(()) };
        // An owner may have written since the entry was read, or a snapshot raised the floor.
        if self.has(number).await? || self.floor().await?.entry > number {
            return Ok(());
        }
        Err(Error::data_loss(format!(
            "{} in {} is missing, and there are later entries such as {later}: the store has lost \
             entries; restore them from a copy of the store, such as earlier versions of its objects",
            self.entry_key(number),
            self.place().shown()
        )))
    }

    /// Returns an entry that exists above `number`; `None` if there is none.
    async fn any_after(&self, number: EntryNumber) -> Result<Option<EntryNumber>> {
        let offset = self.entry_key(number);
        let mut listing = self.place().objects().list_with_offset(Some(&self.entries), &offset);
        while let Some(object) = self.wait_for_answer(&self.entries, next(&mut listing)).await? {
            let location = object.map_err(|error| self.place().failed(error))?.location;
            let found = location.filename().and_then(parse_number);
            let later = found.filter(|found| *found > number);
            if later.is_some() {
                return Ok(later);
            }
        }
        Ok(None)
    }

    /// Returns true if an entry has the number.
    async fn has(&self, number: EntryNumber) -> Result<bool> {
        self.exists(&self.entry_key(number)).await
    }

    /// Returns true if the store has the object.
    async fn exists(&self, key: &Key) -> Result<bool> {
        let read = async {
            match self.place().objects().head(key).await {
                Ok(_) => Ok(true),
                Err(StoreError::NotFound { .. }) => Ok(false),
                Err(error) => Err(self.place().failed(error)),
            }
        };
        self.wait_for_answer(key, read).await
    }

    /// Raises the floor, then removes the objects of old floors. A floor below the present one
    /// changes nothing.
    ///
    /// # Errors
    /// The store's error: the floor may be raised or not.
    pub async fn raise_floor(&self, floor: LogFloor) -> Result<()> {
        let key = |floor: LogFloor| self.floors.clone().join(floor.to_string());
        self.objects.create(&key(floor), PutPayload::default()).await?;
        let floors = self.wait_for_answer(&self.floors, self.list_floors()).await;
        let old = floors.map(|floors| {
            let old = floors.iter().rev().skip(FLOORS_KEPT);
            old.map(|old| key(*old)).collect::<Vec<Key>>()
        });
        let removed = match old {
            Ok(old) => self.remove(old).await,
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::debug!(shard = &*self.shown, %error, "old floors stay until the next raise");
        }
        Ok(())
    }

    /// Removes the entries below `entry`, or below the floor if that is lower. Returns their
    /// number.
    ///
    /// # Errors
    /// The store's error, with a remedy; some entries may be removed.
    pub async fn remove_below(&self, entry: EntryNumber) -> Result<u64> {
        // An entry at or above the floor must exist, otherwise its absence looks like the end.
        let entry = entry.min(self.floor().await?.entry);
        let mut listing = self.place().objects().list(Some(&self.entries));
        let mut below = Vec::new();
        while let Some(object) = self.wait_for_answer(&self.entries, next(&mut listing)).await? {
            let location = object.map_err(|error| self.place().failed(error))?.location;
            let number = location.filename().and_then(parse_number);
            if number.is_some_and(|number| number < entry) {
                below.push(location);
            }
        }
        self.remove(below).await
    }

    /// Removes objects, several at the same time. Returns how many there were.
    async fn remove(&self, keys: Vec<Key>) -> Result<u64> {
        let keys: Pin<Box<dyn Stream<Item = object_store::Result<Key>> + Send>> =
            Box::pin(tokio_stream::iter(keys.into_iter().map(Ok)));
        // Stores remove up to 1,000 objects with a request, or up to 20 at the same time.
        let mut outcomes = self.place().objects().delete_stream(keys);
        let mut removed = 0;
        while let Some(outcome) = self.wait_for_answer(&self.entries, next(&mut outcomes)).await? {
            match outcome {
                Ok(_) => removed += 1,
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(self.place().failed(error)),
            }
        }
        Ok(removed)
    }

    /// Waits for a request about `key`, up to the timeout.
    async fn wait_for_answer<T>(
        &self,
        key: &Key,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let answer = self.objects.within(request).await;
        answer.map_err(|error| error.context(format_args!("object {key}")))?
    }
}

/// Returns the next item, which may be an error of its own.
async fn next<S: Stream + Unpin>(stream: &mut S) -> Result<Option<S::Item>> {
    Ok(stream.next().await)
}
