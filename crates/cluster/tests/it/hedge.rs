//! Second requests: after the 95th percentile, and never more than 5 %.

use std::time::Duration;

use cluster::{HedgeBudget, LatencyEstimate};

#[test]
fn the_estimate_approaches_the_quantile() {
    let mut estimate = LatencyEstimate::new(Duration::from_millis(500));
    // Latencies of 1 to 100 ms in a mixed order.
    for turn in 0..5000_u64 {
        estimate.record(Duration::from_millis(turn * 37 % 100 + 1));
    }
    let value = estimate.value().as_millis();
    assert!((85..=105).contains(&value), "{value}");
}

#[test]
fn the_budget_bounds_second_requests() {
    let mut budget = HedgeBudget::default();
    assert!(!budget.spend());
    let spent = (0..1000).filter(|_| {
        budget.count_request();
        budget.spend()
    });
    assert_eq!(spent.count(), 50);
    (0..10_000).for_each(|_| budget.count_request());
    assert_eq!((0..100).filter(|_| budget.spend()).count(), 10, "a quiet time saves only a few");
}
