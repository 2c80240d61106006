//! The report of `bench match`: JSON and a table.

use std::collections::BTreeMap;

use base::Result;
use serde::Serialize;

use super::images::Extractor;
use super::rates::{ErrorRates, Scores};
use super::{Cost, Impression, MatchArgs};
use crate::report::BenchReport;
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::TextTable;

/// JSON of `bench match`.
#[derive(Debug, Serialize)]
pub(super) struct MatchReport {
    /// Rates of all databases, with the pairs across them.
    pooled: ErrorRates,
    /// Processor time of one thread for a match, with its share of the probe's preparation.
    us_per_match: f64,
    us_per_genuine_match: f64,
    us_per_impostor_match: f64,
    /// Processor time of one thread for the minutiae of an image, the median of all images.
    #[serde(skip_serializing_if = "Option::is_none")]
    ms_per_extraction: Option<f64>,
    /// 95th percentile of the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    ms_per_extraction_p95: Option<f64>,
    /// Rates within each database.
    databases: BTreeMap<String, ErrorRates>,
    /// Pooled rates with the impostors of FVC's protocol: first impressions only.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_impressions: Option<ErrorRates>,
    /// Origin of the impressions.
    source: String,
    impressions: usize,
    vertices_mean: f64,
    record_bytes_mean: f64,
    rounds: usize,
    #[serde(flatten)]
    context: RunContext,
}

impl MatchReport {
    pub(super) fn new(
        args: &MatchArgs,
        impressions: &[Impression],
        scores: &Scores<'_>,
        costs: &[Cost],
        extractor: &Extractor<'_>,
        context: RunContext,
    ) -> Result<MatchReport> {
        let median = |of: fn(&Cost) -> f64| {
            let mut values: Vec<f64> = costs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        let mean = |of: fn(&Impression) -> usize| {
            impressions.iter().map(of).sum::<usize>() as f64 / impressions.len().max(1) as f64
        };
        let databases = impressions.iter().map(|impression| impression.database.clone());
        Ok(MatchReport {
            pooled: scores.pooled()?,
            us_per_match: median(|cost| cost.all),
            us_per_genuine_match: median(|cost| cost.genuine),
            us_per_impostor_match: median(|cost| cost.impostor),
            ms_per_extraction: extractor.milliseconds(0.5),
            ms_per_extraction_p95: extractor.milliseconds(0.95),
            databases: databases
                .filter_map(|name| Some((name.clone(), scores.within(&name)?)))
                .collect(),
            first_impressions: scores.first_impressions(),
            source: args
                .dir
                .as_ref()
                .map_or_else(|| "synthetic".into(), |dir| dir.display().to_string()),
            impressions: impressions.len(),
            vertices_mean: mean(|impression| impression.graph.vertices.len()),
            record_bytes_mean: mean(|impression| impression.record.len()),
            rounds: costs.len(),
            context,
        })
    }
}

impl BenchReport for MatchReport {
    fn print(&self) {
        let made_up = if self.source == "synthetic" {
            " (generated: these rates say nothing about real fingers)"
        } else {
            ""
        };
        println!(
            "{} impressions from {}{made_up}, {:.1} minutiae and {:.0} bytes each",
            self.impressions, self.source, self.vertices_mean, self.record_bytes_mean
        );
        let mut table = TextTable::new(&[
            "pairs",
            "genuine",
            "impostor",
            "EER %",
            "FNMR % at FMR 0.1 %",
            "accepted above",
        ]);
        let mut row = |name: &str, rates: &ErrorRates| {
            table.row([
                name.into(),
                rates.genuine.to_string(),
                rates.impostor.to_string(),
                format!("{:.2}", rates.eer_pct),
                format!("{:.2}", rates.fnmr_pct),
                format!("{:.1}", rates.threshold),
            ]);
        };
        row("pooled", &self.pooled);
        for (name, rates) in &self.databases {
            row(name, rates);
        }
        if let Some(rates) = &self.first_impressions {
            row("pooled, impostors as in FVC", rates);
        }
        println!("\n{table}");
        println!(
            "{:.1} us a match on one core (genuine {:.1}, impostor {:.1}), median of {} rounds",
            self.us_per_match, self.us_per_genuine_match, self.us_per_impostor_match, self.rounds
        );
        if let (Some(median), Some(p95)) = (self.ms_per_extraction, self.ms_per_extraction_p95) {
            println!(
                "{median:.1} ms for the minutiae of an image on one core, 95 of 100 within {p95:.1}"
            );
        }
        println!("{}", self.context);
    }
}
