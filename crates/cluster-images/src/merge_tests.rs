//! Merged rounds compared with the ranking of all points.

use api_images::{RankAnswer, RankedImage};
use proptest::prelude::*;
use search::points::PointId;
use serde_json::{Value, json};

use super::*;

const THRESHOLD: f32 = 50.0;

/// A point of the union of all shards.
#[derive(Clone, Copy, Debug)]
struct UnionPoint {
    id: u64,
    score: f32,
    coarse: f32,
}

impl UnionPoint {
    fn scores(&self) -> StageScores {
        StageScores { score: self.score, coarse: self.coarse }
    }
}

fn texts(results: impl IntoIterator<Item = (u32, Value)>) -> ResultTexts {
    let text = |value: Value| RawValue::from_string(value.to_string()).unwrap();
    results.into_iter().map(|(shard, value)| (shard, text(value))).collect()
}

/// Returns the best `most` points by their coarse score.
fn coarse_order(points: &[UnionPoint], most: usize) -> Vec<UnionPoint> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| b.coarse.total_cmp(&a.coarse).then(a.id.cmp(&b.id)));
    sorted.truncate(most);
    sorted
}

/// Returns the best `k` points.
fn ranked(points: &[UnionPoint], order: ImageOrder, k: usize) -> Vec<UnionPoint> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| order.compare(a.scores(), b.scores()).then(a.id.cmp(&b.id)));
    sorted.truncate(k);
    sorted
}

fn coarse_answer(points: &[UnionPoint], most: usize) -> Value {
    let best = coarse_order(points, most);
    json!(CoarseAnswer {
        ids: best.iter().map(|point| point.id).collect(),
        coarse: best.iter().map(|point| point.coarse).collect(),
        of: points.len() as u64,
        partial: false,
    })
}

fn rank_answer(points: &[UnionPoint], order: ImageOrder, k: usize) -> Value {
    let hit = |point: &UnionPoint| RankedImage {
        key: point.id,
        id: PointId::Number(point.id),
        score: point.score,
        coarse: point.coarse,
        shown: json!({"id": point.id}),
    };
    json!(RankAnswer {
        hits: ranked(points, order, k).iter().map(hit).collect(),
        compared: points.len() as u64,
        of: points.len() as u64,
        partial: false,
    })
}

fn shown_ids(hits: &MergedImageHits<'_>) -> Vec<u64> {
    let id = |hit: &MergedImageHit<'_>| {
        let shown: Value = serde_json::from_str(hit.shown.get()).unwrap();
        shown["id"].as_u64().unwrap()
    };
    hits.hits.iter().map(id).collect()
}

fn ids(points: &[UnionPoint]) -> Vec<u64> {
    points.iter().map(|point| point.id).collect()
}

#[test]
fn accepted_photos_come_first_and_prints_go_by_score() {
    let point = |id, score, coarse| UnionPoint { id, score, coarse };
    let points = [
        point(1, 49.0, 0.1),
        point(2, 0.0, 0.9),
        point(3, 75.0, 0.2),
        point(4, 60.0, 0.8),
        point(5, 2.0, 0.9),
    ];
    for (order, expected) in [
        (ImageOrder::Photos { threshold: THRESHOLD }, [3, 4, 5, 2, 1]),
        (ImageOrder::Prints, [3, 4, 1, 5, 2]),
    ] {
        let (first, second) = points.split_at(2);
        let answers = [first, second].map(|points| rank_answer(points, order, 9));
        let answers = texts((0..).zip(answers));
        let merged = hits(&answers, &[], order, 9).unwrap();
        assert_eq!(shown_ids(&merged), expected, "{order:?}");
        assert_eq!((merged.compared, merged.of, merged.partial), (5, 5, false));
    }
}

#[test]
fn hits_keep_their_text() {
    let shown = r#"{"id":1,"score":0.10000000149011612,"payload":{"n":18446744073709551615}}"#;
    let hit = format!(r#"{{"key":1,"id":1,"score":0.1,"coarse":0.5,"shown":{shown}}}"#);
    let text = format!(r#"{{"hits":[{hit}],"compared":1,"of":7,"partial":true}}"#);
    let answers = ResultTexts::from([(3, RawValue::from_string(text).unwrap())]);
    let mut merged = hits(&answers, &[], ImageOrder::Prints, 1).unwrap();
    assert_eq!(merged.hits[0].shown.get(), shown);
    assert_eq!((merged.of, merged.partial), (7, true));
    let payload = r#""payload":{"n":18446744073709551615},"score":0.10000000149011612}"#;
    for (threshold, accepted) in [(0.1, true), (0.2, false)] {
        merged.accept_from(threshold).unwrap();
        let text = format!(r#"{{"accepted":{accepted},"id":1,{payload}"#);
        assert_eq!(merged.hits[0].shown.get(), text);
    }
}

#[test]
fn hits_of_views_count_if_they_are_better() {
    let order = ImageOrder::Photos { threshold: THRESHOLD };
    let point = |id, score, coarse| UnionPoint { id, score, coarse };
    let whole = [point(1, 20.0, 0.9), point(2, 30.0, 0.1), point(3, 40.0, 0.5)];
    let views = [point(2, 70.0, 0.2), point(3, 39.0, 0.6), point(4, 60.0, 0.3), point(5, 1.0, 0.9)];
    let answer = |points: &[UnionPoint]| texts([(0, rank_answer(points, order, 9))]);
    let (whole, views) = (answer(&whole), answer(&views));
    let views = accepted(&views, THRESHOLD).unwrap();
    assert_eq!((views.hits.len(), views.partial), (2, false));
    let merged = hits(&whole, &views.hits, order, 3).unwrap();
    assert_eq!(shown_ids(&merged), [2, 4, 1]);
    assert_eq!(merged.compared, 3, "views are not counted");
}

#[test]
fn wrong_results_are_errors() {
    let wrong = json!({"ids": [1, 2], "coarse": [0.5], "of": 2, "partial": false});
    assert!(candidates(&texts([(0, wrong)]), 5).is_err());
    assert!(candidates(&texts([(0, json!({}))]), 5).is_err());
    assert!(hits(&texts([(0, json!({}))]), &[], ImageOrder::Prints, 5).is_err());
}

prop_compose! {
    /// Points with few different scores, so that many are equal.
    fn points()(scores in prop::collection::vec((0u8..8, 0u8..5), 0..60)) -> Vec<UnionPoint> {
        let point = |(id, (score, coarse)): (u64, (u8, u8))| UnionPoint {
            id,
            score: f32::from(score) * 15.0,
            coarse: f32::from(coarse) * 0.1,
        };
        (0..).zip(scores).map(point).collect()
    }
}

/// Returns the points of each shard.
fn split(points: &[UnionPoint], shards: u64) -> BTreeMap<u32, Vec<UnionPoint>> {
    let mut split: BTreeMap<u32, Vec<UnionPoint>> = BTreeMap::new();
    for point in points {
        // Not in the order of the ids.
        split.entry((point.id * 7 % shards) as u32).or_default().push(*point);
    }
    split
}

proptest! {
    #[test]
    fn two_rounds_rank_as_the_union_does(
        points in points(),
        shards in 1u64..6,
        most in 1usize..30,
        k in 1usize..30,
    ) {
        let order = ImageOrder::Photos { threshold: THRESHOLD };
        let split = split(&points, shards);
        let coarse = split.iter().map(|(shard, own)| (*shard, coarse_answer(own, most)));
        let merged = candidates(&texts(coarse), most).unwrap();
        let expected = coarse_order(&points, most);
        prop_assert_eq!(&merged.ids, &ids(&expected));
        prop_assert_eq!(merged.of, points.len() as u64);
        let chosen = |own: &[UnionPoint]| -> Vec<UnionPoint> {
            own.iter().filter(|point| merged.ids.contains(&point.id)).copied().collect()
        };
        let has_some = |own: &Vec<UnionPoint>| !chosen(own).is_empty();
        let with_some: BTreeSet<u32> =
            split.iter().filter(|(_, own)| has_some(own)).map(|(shard, _)| *shard).collect();
        prop_assert_eq!(&merged.shards, &with_some);
        let asked = split.iter().filter(|(shard, _)| merged.shards.contains(shard));
        let answers = asked.map(|(shard, own)| (*shard, rank_answer(&chosen(own), order, k)));
        let answers = texts(answers);
        let found = hits(&answers, &[], order, k).unwrap();
        prop_assert_eq!(shown_ids(&found), ids(&ranked(&expected, order, k)));
        prop_assert_eq!(found.compared, expected.len() as u64);
    }

    #[test]
    fn one_round_of_prints_ranks_as_the_union_does(
        points in points(),
        shards in 1u64..6,
        k in 1usize..30,
    ) {
        let answers = split(&points, shards)
            .into_iter()
            .map(|(shard, own)| (shard, rank_answer(&own, ImageOrder::Prints, k)));
        let answers = texts(answers);
        let found = hits(&answers, &[], ImageOrder::Prints, k).unwrap();
        prop_assert_eq!(shown_ids(&found), ids(&ranked(&points, ImageOrder::Prints, k)));
    }
}
