//! Nodes that extract the images of archives and folders.

use cluster_root::RootState;

use super::extraction_slots::{ExtractionPlace, ExtractionSlot};
use super::state::ImageRootState;

/// Takes a slot of a node whose name is not in `tried`. Prefers nodes that have not just failed,
/// and of these the one with the fewest images. Waits while all are full. Each image frees its slot
/// within the time of background work. Returns `None` if there is no other node that extracts.
pub(super) async fn take_slot(state: &ImageRootState, tried: &[String]) -> Option<ExtractionSlot> {
    loop {
        let places = places(&state.root, tried);
        if places.is_empty() {
            return None;
        }
        if let Some(slot) = state.extraction_slots.take(&places) {
            return Some(slot);
        }
        state.extraction_slots.wait_free().await;
    }
}

/// Returns the places that extract and are not in `tried`, this node first, and then the others by
/// turns. Nodes that have just failed are left out if there is another place.
fn places(state: &RootState, tried: &[String]) -> Vec<ExtractionPlace> {
    let view = state.view.current();
    let names: Vec<&str> = view
        .nodes
        .values()
        .filter(|node| node.roles.extract && node.name != state.node)
        .map(|node| node.name.as_str())
        .filter(|name| !tried.iter().any(|it| it == name))
        .collect();
    let order = state.order_nodes(&names);
    let here = state.extraction().is_some() && !tried.iter().any(String::is_empty);
    let mut places: Vec<ExtractionPlace> =
        here.then_some(ExtractionPlace::Here).into_iter().collect();
    let works = order.iter().filter(|name| !state.has_failed(name));
    places.extend(works.map(|name| ExtractionPlace::Node(name.clone())));
    if places.is_empty() {
        places.extend(order.into_iter().map(ExtractionPlace::Node));
    }
    places
}
