//! Originals of old uploads to a collection of a cluster, listed part by part. A node that is
//! killed between the write of an original and the write of its point leaves an original without a
//! point.
//!
//! A part has the images whose ids begin with the same two hexadecimal digits.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use base::Result;
use image_features::features::{originals_of, uuid};
use object_store::ObjectMeta;
use object_store::path::Path as ObjectPath;
use search::points::PointId;
use tokio_stream::{Stream, StreamExt};

use super::originals::{Originals, failed};

/// Original of one upload in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalUpload {
    /// Id of its image.
    pub id: PointId,
    /// Key, which no other upload has.
    pub key: String,
}

impl OriginalUpload {
    /// Returns the upload of an object in `directory`, which is that of `space`. Returns `None` if
    /// the object has no key that a cluster gives to originals.
    fn of(object: &ObjectPath, directory: &ObjectPath, space: &str) -> Option<OriginalUpload> {
        let object: &str = object.as_ref();
        let directory: &str = directory.as_ref();
        let name = object.strip_prefix(directory)?.strip_prefix('/')?;
        let (image, _) = name.rsplit_once('/')?;
        let id: PointId = image.rsplit('/').next()?.parse().ok()?;
        uuid(&id)?;
        // Another file can belong to another image, whose point names it.
        let is_of_image = format!("{space}/{image}") == originals_of(&id, space);
        is_of_image.then(|| OriginalUpload { id, key: format!("{space}/{name}") })
    }
}

/// Originals of old uploads in a part of a directory of originals, read batch by batch.
pub struct OldUploads<'a> {
    originals: &'a Originals,
    space: String,
    age: Duration,
    objects: Pin<Box<dyn Stream<Item = object_store::Result<ObjectMeta>> + Send>>,
    has_ended: bool,
    /// Latest time of an old upload by the clock of the store. `None` until an object is listed,
    /// because no time is read for an empty part.
    until: Option<SystemTime>,
}

impl<'a> OldUploads<'a> {
    /// Lists the part `part` of `space`. Uploads are old that were written at least `age` ago by
    /// the clock of the store.
    ///
    /// # Errors
    /// Returns the error of opening the store.
    pub(crate) fn new(
        originals: &'a Originals,
        space: &str,
        part: u8,
        age: Duration,
    ) -> Result<OldUploads<'a>> {
        let store = originals.store()?;
        let objects = store.objects().list(Some(&store.key(&format!("{space}/{part:02x}"))));
        let space = space.to_owned();
        Ok(OldUploads { originals, space, age, objects, has_ended: false, until: None })
    }

    /// Returns the next old uploads, at most `count_max`. Returns none at the end.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub async fn next_batch(&mut self, count_max: usize) -> Result<Vec<OriginalUpload>> {
        let directory = self.originals.store()?.key(&self.space);
        let mut uploads = Vec::new();
        while uploads.len() < count_max && !self.has_ended {
            let Some(object) = self.objects.next().await else {
                self.has_ended = true;
                break;
            };
            let object = object.map_err(failed)?;
            let until = match self.until {
                Some(until) => until,
                None => {
                    let now = self.originals.store_time(&self.space).await?;
                    now.checked_sub(self.age).unwrap_or(SystemTime::UNIX_EPOCH)
                }
            };
            self.until = Some(until);
            if SystemTime::from(object.last_modified) <= until {
                uploads.extend(OriginalUpload::of(&object.location, &directory, &self.space));
            }
        }
        Ok(uploads)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::config::ImagesConfig;

    const SPACE: &str = "1a/originals";

    /// Returns the key of an upload of the image `id`.
    fn upload(id: [u8; 16], upload: &str) -> String {
        format!("{}/{upload}.png", originals_of(&PointId::Uuid(id), SPACE))
    }

    #[tokio::test]
    async fn old_uploads_are_listed_in_batches() {
        let dir = tempfile::tempdir().unwrap();
        let config = ImagesConfig { directory: Some(dir.path().into()), ..ImagesConfig::default() };
        let originals = Originals::new(config);
        let mut wanted = Vec::new();
        for number in 0..5_u8 {
            let id = [0x5c, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            wanted.push(OriginalUpload { id: PointId::Uuid(id), key: upload(id, "2b") });
        }
        let alone = format!("{}.png", originals_of(&wanted[0].id, SPACE));
        let other = upload([0x5d; 16], "2b");
        let files =
            [alone, other, format!("{SPACE}/5c/notes/a.txt"), format!("{SPACE}/5c/7/a.png")];
        for key in files.iter().chain(wanted.iter().map(|it| &it.key)) {
            originals.put(key, Bytes::from_static(b"1")).await.unwrap();
        }
        let mut uploads = OldUploads::new(&originals, SPACE, 0x5c, Duration::ZERO).unwrap();
        let mut listed = Vec::new();
        let mut sizes = Vec::new();
        loop {
            let batch = uploads.next_batch(2).await.unwrap();
            sizes.push(batch.len());
            if batch.is_empty() {
                break;
            }
            listed.extend(batch);
        }
        listed.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!((sizes, listed), (vec![2, 2, 1, 0], wanted));
        let hour = Duration::from_secs(3600);
        let mut young = OldUploads::new(&originals, SPACE, 0x5c, hour).unwrap();
        assert!(young.next_batch(2).await.unwrap().is_empty());
        let mut empty = OldUploads::new(&originals, SPACE, 0xff, Duration::ZERO).unwrap();
        assert!(empty.next_batch(2).await.unwrap().is_empty());
    }
}
