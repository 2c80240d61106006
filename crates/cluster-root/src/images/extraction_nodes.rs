//! Nodes that extract the images of archives and folders.

use std::sync::Arc;
use std::time::Instant;

use super::super::extraction_slots::{ExtractionPlace, ExtractionSlot};
use super::super::state::RootState;

/// Takes a slot of a node whose name is not in `tried`: of a node that has not just failed, and of
/// these the one with the fewest images. Waits while all are full; each image frees its slot within
/// the time of background work. Returns `None` if there is no such node.
pub(super) async fn take_slot(state: &Arc<RootState>, tried: &[String]) -> Option<ExtractionSlot> {
    loop {
        let places = places(state, tried);
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
    let (order, down) = {
        let latencies = state.latencies.lock();
        let now = Instant::now();
        let order = latencies.order(&names, state.next_query(), now);
        let down: Vec<bool> = order.iter().map(|name| latencies.is_down(name, now)).collect();
        (order, down)
    };
    let here = state.extraction().is_some() && !tried.iter().any(String::is_empty);
    let mut places: Vec<ExtractionPlace> =
        here.then_some(ExtractionPlace::Here).into_iter().collect();
    let works = order.iter().zip(&down).filter(|(_, down)| !**down);
    places.extend(works.map(|(name, _)| ExtractionPlace::Node(name.clone())));
    if places.is_empty() {
        places.extend(order.into_iter().map(ExtractionPlace::Node));
    }
    places
}
