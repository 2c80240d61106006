//! Limits the images of archives and folders that this root lets each node extract at the same
//! time. All such requests of a root share the limit, so one root alone never fills a node's queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Maximum images of this root in extraction on one node. Its queue of bulk work takes as many.
const NODE_IMAGES_MAX: usize = 64;
/// Longest wait for a slot before the nodes are checked again. A new node notifies no waiter.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A node that extracts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExtractionPlace {
    /// This node.
    Here,
    /// Another node, by its name.
    Node(String),
}

impl ExtractionPlace {
    /// Returns the name of the node; empty for this one.
    pub(super) fn name(&self) -> &str {
        match self {
            ExtractionPlace::Here => "",
            ExtractionPlace::Node(name) => name,
        }
    }
}

/// Numbers of images in extraction, by the name of the node.
#[derive(Debug, Default)]
pub(super) struct ExtractionSlots {
    taken: Mutex<HashMap<String, usize>>,
    freed: Notify,
}

impl ExtractionSlots {
    /// Takes a slot of the place with the fewest images, the first of several. Returns `None` if
    /// all places are full.
    pub(super) fn take(self: &Arc<Self>, places: &[ExtractionPlace]) -> Option<ExtractionSlot> {
        let mut taken = self.taken.lock();
        let number = |place: &&ExtractionPlace| taken.get(place.name()).copied().unwrap_or(0);
        let place = places.iter().min_by_key(number)?;
        if number(&place) >= NODE_IMAGES_MAX {
            return None;
        }
        *taken.entry(place.name().to_owned()).or_default() += 1;
        Some(ExtractionSlot { slots: self.clone(), place: place.clone() })
    }

    /// Waits until a slot is freed, or it is time to check the nodes again.
    pub(super) async fn wait_free(&self) {
        // The caller checks again in either case.
        let _ = timeout(CHECK_INTERVAL, self.freed.notified()).await;
    }

    /// Frees a slot of the node `name`.
    fn release(&self, name: &str) {
        let mut taken = self.taken.lock();
        if let Some(number) = taken.get_mut(name) {
            *number -= 1;
            if *number == 0 {
                taken.remove(name);
            }
        }
        drop(taken);
        self.freed.notify_one();
    }
}

/// A slot of a node, which is free again once this is dropped.
pub(super) struct ExtractionSlot {
    slots: Arc<ExtractionSlots>,
    pub(super) place: ExtractionPlace,
}

impl Drop for ExtractionSlot {
    fn drop(&mut self) {
        self.slots.release(self.place.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> ExtractionPlace {
        ExtractionPlace::Node(name.to_owned())
    }

    #[test]
    fn the_node_with_the_fewest_images_is_taken() {
        let slots = Arc::new(ExtractionSlots::default());
        let places = [ExtractionPlace::Here, node("a"), node("b")];
        let mut taken: Vec<ExtractionSlot> = (0..4).map(|_| slots.take(&places).unwrap()).collect();
        let order: Vec<&str> = taken.iter().map(|slot| slot.place.name()).collect();
        assert_eq!(order, ["", "a", "b", ""]);
        taken.remove(2);
        assert_eq!(slots.take(&places).unwrap().place, places[2]);
    }

    #[test]
    fn full_nodes_have_no_slot() {
        let slots = Arc::new(ExtractionSlots::default());
        let places = [node("a"), node("b")];
        let mut taken: Vec<ExtractionSlot> =
            (0..2 * NODE_IMAGES_MAX).map(|_| slots.take(&places).unwrap()).collect();
        assert!(slots.take(&places).is_none());
        taken.truncate(2 * NODE_IMAGES_MAX - 1);
        assert_eq!(slots.take(&places).unwrap().place, places[1]);
        drop(taken);
        assert!(slots.taken.lock().is_empty(), "nodes without images are forgotten");
    }
}
