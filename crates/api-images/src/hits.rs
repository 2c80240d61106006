//! Hits in the form of responses.

use image_features::features::BLOCK;
use matching::Graph;
use matching::rank::StageScores;
use search::points::FetchedPoint;
use serde_json::{Value, json};
use vision::photo::PhotoView;

use super::plan::{ImageMatch, SearchHit, SearchPlan};
use super::query_features::QueryFeatures;
use super::views::QueryView;

/// A result in the response.
pub(crate) struct ShownHit {
    pub(crate) id: u64,
    pub(crate) scores: StageScores,
    pub(crate) json: Value,
}

impl ShownHit {
    /// Returns the result for a hit of the photograph, or of a view of it.
    pub(crate) fn new(
        features: &QueryFeatures,
        view: Option<PhotoView>,
        found: &SearchHit,
        plan: &SearchPlan,
    ) -> ShownHit {
        let SearchHit { hit, point, matched } = found;
        let mut payload = point.payload.clone();
        let block = payload.remove(BLOCK).unwrap_or_default();
        let of = |key: &str| block.get(key).cloned().unwrap_or_default();
        let mut json = json!({
            "id": point.id, "score": hit.score, "coarse": hit.coarse, "accepted": hit.score >= plan.threshold,
            "name": of("name"), "payload": payload, "width": of("width"), "height": of("height"),
        });
        if plan.explain {
            json["pairs"] = pairs(features, view, point, matched.as_ref());
        }
        if let Some(view) = view {
            json["view"] = json!(QueryView::from(view));
        }
        let scores = StageScores { score: hit.score, coarse: hit.coarse };
        ShownHit { id: hit.id, scores, json }
    }
}

/// Returns the matched keypoints: x and y in the query, then x and y in the found image.
fn pairs(
    features: &QueryFeatures,
    view: Option<PhotoView>,
    point: &FetchedPoint,
    matched: Option<&ImageMatch>,
) -> Value {
    let Some(ImageMatch { graph, explanation }) = matched else { return json!([]) };
    let (width, height) = size(point);
    let pairs = explanation.pairs.iter().filter_map(|pair| {
        let probe = at(&features.graph, usize::from(pair.probe), features.width, features.height)?;
        let probe = view.map_or(probe, |view| view.to_photograph(probe.0, probe.1));
        let record = at(graph, usize::from(pair.record), width, height)?;
        Some([probe.0, probe.1, record.0, record.1])
    });
    json!(pairs.collect::<Vec<_>>())
}

/// Returns the position of a vertex in pixels of its image, to a tenth.
pub(crate) fn at(graph: &Graph, vertex: usize, width: f64, height: f64) -> Option<(f64, f64)> {
    let vertex = graph.vertices.get(vertex)?;
    let scaled = |place: i16, frame: u16, side: f64| {
        let factor = if frame == 0 || side == 0.0 { 1.0 } else { side / f64::from(frame) };
        (f64::from(place) * factor * 10.0).round() / 10.0
    };
    Some((scaled(vertex.x, graph.width, width), scaled(vertex.y, graph.height, height)))
}

/// Returns width and height of a point's image in pixels, 0 if they are unknown.
pub(crate) fn size(point: &FetchedPoint) -> (f64, f64) {
    let of = |key: &str| {
        point.payload.get(BLOCK).and_then(|block| block.get(key)?.as_f64()).unwrap_or(0.0)
    };
    (of("width"), of("height"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_in_pixels_of_the_image() {
        let vertex = matching::Vertex { x: 50, y: 10, ..matching::Vertex::default() };
        let graph =
            Graph { width: 100, height: 100, vertices: vec![vertex], descriptors: Vec::new() };
        assert_eq!(at(&graph, 0, 200.0, 50.0), Some((100.0, 5.0)));
        assert_eq!(at(&graph, 1, 200.0, 50.0), None);
    }
}
