//! Images that occur several times in one request. They are added once: two nodes that process one
//! image at the same time would both add it, each with an original.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use search::points::PointId;
use tokio::sync::Notify;

/// Maximum added images that are remembered. Before one is forgotten, holders have applied it, so a
/// node finds it.
const REMEMBERED_MAX: usize = 4096;

/// The images of a request that are being added, and the last added ones.
#[derive(Default)]
pub(super) struct ImageRepeats {
    known: Mutex<KnownImages>,
    /// Notified when an image was added, or could not be added.
    ended: Notify,
}

#[derive(Default)]
struct KnownImages {
    running: HashSet<PointId>,
    done: HashSet<PointId>,
    /// The ids in `done`, oldest first.
    order: VecDeque<PointId>,
}

impl KnownImages {
    /// Records an added image. Forgets the oldest one if there are too many.
    fn remember(&mut self, id: PointId) {
        if !self.done.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.done.remove(&oldest);
        }
    }
}

impl ImageRepeats {
    /// Begins to add an image once it is not in flight. Returns `None` if the request has added it
    /// already. One task at a time may wait.
    pub(super) async fn begin(self: &Arc<Self>, id: PointId) -> Option<RunningImage> {
        loop {
            let ended = self.ended.notified();
            {
                let mut known = self.known.lock();
                if known.done.contains(&id) {
                    return None;
                }
                if known.running.insert(id) {
                    return Some(RunningImage { repeats: self.clone(), id });
                }
            }
            ended.await;
        }
    }
}

/// An image in flight, until this is dropped.
pub(super) struct RunningImage {
    repeats: Arc<ImageRepeats>,
    id: PointId,
}

impl RunningImage {
    /// Remembers that the image was added.
    pub(super) fn succeeded(self) {
        self.repeats.known.lock().remember(self.id);
    }
}

impl Drop for RunningImage {
    fn drop(&mut self) {
        self.repeats.known.lock().running.remove(&self.id);
        self.repeats.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> PointId {
        PointId::Number(number)
    }

    #[tokio::test]
    async fn an_image_in_flight_is_waited_for() {
        let repeats = Arc::new(ImageRepeats::default());
        let first = repeats.begin(id(1)).await.unwrap();
        assert!(repeats.begin(id(2)).await.is_some());
        let second = tokio::spawn({
            let repeats = repeats.clone();
            async move { repeats.begin(id(1)).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert!(second.await.unwrap(), "a failed image is put in again");
        repeats.begin(id(1)).await.unwrap().succeeded();
        assert!(repeats.begin(id(1)).await.is_none());
    }

    #[tokio::test]
    async fn the_oldest_images_are_forgotten() {
        let repeats = Arc::new(ImageRepeats::default());
        for number in 0..=REMEMBERED_MAX as u64 {
            repeats.begin(id(number)).await.unwrap().succeeded();
        }
        assert!(repeats.begin(id(0)).await.is_some());
        assert!(repeats.begin(id(1)).await.is_none());
        let known = repeats.known.lock();
        assert_eq!((known.done.len(), known.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    }
}
