//! Images that a node of a cluster is adding. Each upload has an original of its own. So two
//! uploads of one image at the same time would leave one original without a point.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use search::points::PointId;
use tokio::sync::Notify;

/// Ids of the images.
#[derive(Default)]
pub(crate) struct RunningUploads {
    ids: Mutex<HashSet<PointId>>,
    ended: Notify,
}

/// Exclusive claim to upload an image. Other uploads of the same image wait until it is dropped.
pub struct UploadClaim {
    uploads: Arc<RunningUploads>,
    id: PointId,
    /// True if another upload of the image has ended meanwhile.
    pub has_waited: bool,
}

impl RunningUploads {
    /// Waits until no other upload of the image runs.
    pub(crate) async fn claim(self: &Arc<Self>, id: PointId) -> UploadClaim {
        let mut has_waited = false;
        loop {
            // Created before the check, so that an end in between is seen.
            let ended = self.ended.notified();
            if self.ids.lock().insert(id) {
                return UploadClaim { uploads: self.clone(), id, has_waited };
            }
            has_waited = true;
            ended.await;
        }
    }
}

impl Drop for UploadClaim {
    fn drop(&mut self) {
        self.uploads.ids.lock().remove(&self.id);
        self.uploads.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn uploads_of_one_image_follow_each_other() {
        let uploads = Arc::<RunningUploads>::default();
        let (one, other) = (PointId::Number(1), PointId::Number(2));
        let first = uploads.claim(one).await;
        assert!(!first.has_waited && !uploads.claim(other).await.has_waited);
        let later = tokio::spawn({
            let uploads = uploads.clone();
            async move { uploads.claim(one).await.has_waited }
        });
        tokio::task::yield_now().await;
        assert!(!later.is_finished());
        drop(first);
        assert!(later.await.unwrap());
        assert!(uploads.ids.lock().is_empty());
    }
}
