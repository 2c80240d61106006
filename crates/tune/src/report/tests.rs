use super::*;

fn scored(point: TunePoint, qps: f64, p99_ms: f64) -> ScoredTunePoint {
    let best = ClientStep { clients: 4, qps, p50_ms: p99_ms / 2.0, p99_ms, failed: 0 };
    let within = p99_ms <= 10.0;
    ScoredTunePoint { point, best, within, steps: vec![best], refused: None, failure: None }
}

fn found() -> TuneResult {
    let finalists = vec![
        scored(TunePoint::batches(2), 2000.0, 9.0),
        scored(TunePoint::sync(2, 1), 1000.0, 5.0),
    ];
    let refused =
        ScoredTunePoint { refused: Some("<no>".into()), ..scored(TunePoint::sync(1, 2), 0.0, 0.0) };
    let rung = |name: &str, points| Rung { name: name.into(), slice_ms: 100, points };
    TuneResult {
        best: finalists[0].clone(),
        baseline: Some(finalists[1].clone()),
        rungs: vec![rung("rung 1", vec![refused]), rung("final", finalists.clone())],
        finalists,
        seconds: 12.5,
        tried: 9,
    }
}

fn with_summary<T>(grid: Option<&GridFound>, then: impl FnOnce(&TuneSummary<'_>) -> T) -> T {
    let context = loadgen::machine::NoiseWatch::start().context(None);
    then(&TuneSummary {
        model: "<m>",
        dir: "/models/a&b".into(),
        version: 3,
        target_ms: 10.0,
        requests: "64 requests",
        grid_points: 87,
        found: &found(),
        grid,
        context: &context,
        command: "millpond tune '<m>'".into(),
        settings: "[schedule]\nmode = \"async\"\n",
    })
}

fn json(grid: Option<&GridFound>) -> serde_json::Value {
    with_summary(grid, |summary| serde_json::to_value(summary.json()).unwrap())
}

#[test]
fn the_json_has_the_documented_fields() {
    let report = json(None);
    assert_eq!(report["found"]["mode"], "async");
    assert_eq!(report["found"]["max_batch"], 32);
    assert_eq!((&report["found_qps"], &report["target_p99_ms"]), (&2000.0.into(), &10.0.into()));
    assert_eq!(report["points"].as_array().unwrap().len(), 3);
    assert!(report["points"][0]["refused"].is_string() && report.get("ratio").is_none());
}

#[test]
fn the_ratio_is_that_of_the_comparison_side_by_side() {
    let rung = |points: Vec<ScoredTunePoint>| Rung { name: "duel".into(), slice_ms: 1, points };
    let best = scored(TunePoint::batches(1), 2100.0, 9.0);
    let own = scored(TunePoint::batches(2), 1995.0, 9.0);
    let grid = GridFound { sweep: rung(vec![]), duel: rung(vec![best, own.clone()]), found: own };
    let report = json(Some(&grid));
    assert_eq!(
        (&report["best_of_grid_qps"], &report["found_qps"]),
        (&2100.0.into(), &1995.0.into())
    );
    assert!((report["ratio"].as_f64().unwrap() - 0.95).abs() < 1e-9);
    // Not within the target, while the best is: its share is 0.
    let late = scored(TunePoint::batches(2), 2200.0, 11.0);
    let best = scored(TunePoint::batches(1), 2100.0, 9.0);
    let grid = GridFound { sweep: rung(vec![]), duel: rung(vec![best, late.clone()]), found: late };
    assert_eq!(json(Some(&grid))["ratio"], 0.0);
}

#[test]
fn the_page_is_complete_and_escapes_names() {
    let page = with_summary(None, |summary| summary.html());
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert_eq!((page.matches("<svg").count(), page.matches("<polyline").count()), (1, 2));
    assert!(
        page.contains("&lt;m&gt;")
            && page.contains("a&amp;b")
            && page.contains("refused: &lt;no&gt;")
    );
    assert!(!page.contains("<m>") && !page.contains("<no>"));
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"));
    assert!(page.contains("prefers-color-scheme:dark"));
}
