//! A throughput-latency chart as SVG: answers per second to the right, the 99th percentile upwards
//! in powers of ten.

use std::fmt::Write;

use loadgen::report::{escape, per_second};

use super::score::ClientStep;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 48.0;
/// Approximate number of ticks of the lower axis.
const TICKS: f64 = 6.0;

pub(super) struct ChartLine<'a> {
    /// CSS class of its colour: "s0" to "s3".
    pub(super) class: &'static str,
    /// Name, unescaped.
    pub(super) name: &'a str,
    pub(super) steps: &'a [ClientStep],
}

/// Mapping from figures to positions.
struct ChartAxes {
    qps_max: f64,
    /// Lower end of the axis, as the decimal logarithm of milliseconds.
    low: f64,
    /// Upper end of the axis, as the decimal logarithm of milliseconds.
    high: f64,
}

impl ChartAxes {
    fn new(lines: &[ChartLine<'_>], target_ms: f64) -> ChartAxes {
        let steps = || lines.iter().flat_map(|line| line.steps).filter(|step| step.qps > 0.0);
        let qps_max = steps().map(|step| step.qps).fold(1.0, f64::max);
        let p99 = || steps().map(|step| step.p99_ms.max(1e-3)).chain([target_ms.max(1e-3)]);
        let low = p99().fold(f64::INFINITY, f64::min).log10().floor();
        let high = p99().fold(0.0, f64::max).log10().ceil();
        ChartAxes { qps_max: qps_max * 1.05, low, high: high.max(low + 1.0) }
    }

    fn x(&self, qps: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * qps / self.qps_max
    }

    fn y(&self, ms: f64) -> f64 {
        let share = (ms.max(1e-3).log10() - self.low) / (self.high - self.low);
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share.clamp(0.0, 1.0)
    }

    /// Draws the lines of the grid with their labels.
    fn grid(&self, svg: &mut String) {
        let step = nice(self.qps_max / TICKS);
        let mut qps = 0.0;
        while qps <= self.qps_max {
            let x = self.x(qps);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{0:.1}\"/>\
                 <text x=\"{x:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{qps}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 18.0
            );
            qps += step;
        }
        let mut decade = self.low;
        while decade <= self.high {
            for (factor, label) in [(1.0, true), (2.0, true), (5.0, true)] {
                let ms = factor * 10f64.powf(decade);
                if label && decade + factor.log10() <= self.high {
                    let y = self.y(ms);
                    let _ = write!(
                        svg,
                        "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{0:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                         <text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
                        WIDTH - RIGHT,
                        LEFT - 8.0,
                        y + 4.0,
                        (ms * 1e4).round() / 1e4
                    );
                }
            }
            decade += 1.0;
        }
    }
}

/// Returns the chart as one `<svg>` element.
pub(super) fn chart(lines: &[ChartLine<'_>], target_ms: f64) -> String {
    let axes = ChartAxes::new(lines, target_ms);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"99th percentile latency against throughput; the table below has the figures\">"
    );
    axes.grid(&mut svg);
    let y = axes.y(target_ms);
    let end = WIDTH - RIGHT;
    let _ = write!(
        svg,
        "<line class=\"target\" x1=\"{LEFT}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <text class=\"target-text\" x=\"{0:.1}\" y=\"{1:.1}\">target {target_ms} ms</text>",
        LEFT + 6.0,
        y - 5.0
    );
    for line in lines {
        let steps: Vec<&ClientStep> = line.steps.iter().filter(|step| step.qps > 0.0).collect();
        let at = |step: &&ClientStep| format!("{:.1},{:.1}", axes.x(step.qps), axes.y(step.p99_ms));
        let points: Vec<String> = steps.iter().map(at).collect();
        let _ = write!(
            svg,
            "<polyline class=\"line {}\" points=\"{}\"/>",
            line.class,
            points.join(" ")
        );
        for step in steps {
            let _ = write!(
                svg,
                "<circle class=\"dot {}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{}: {} clients, {} \
                 answers/s, p50 {:.2} ms, p99 {:.2} ms</title></circle>",
                line.class,
                axes.x(step.qps),
                axes.y(step.p99_ms),
                escape(line.name),
                step.clients,
                per_second(step.qps),
                step.p50_ms,
                step.p99_ms
            );
        }
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">answers per second</text>\
         <text transform=\"rotate(-90)\" x=\"{:.1}\" y=\"14\" text-anchor=\"middle\">p99 in ms</text></svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0,
        -(TOP + HEIGHT - BOTTOM) / 2.0
    );
    svg
}

/// Returns 1, 2 or 5 times a power of ten, at least `step`.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|&nice| nice >= step)
        .unwrap_or(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_places() {
        let step = |qps, p99_ms| ClientStep { clients: 1, qps, p50_ms: 1.0, p99_ms, failed: 0 };
        let steps = [step(0.0, 0.0), step(1000.0, 10.0), step(2000.0, 100.0)];
        let lines = [ChartLine { class: "s0", name: "<a>", steps: &steps }];
        let axes = ChartAxes::new(&lines, 20.0);
        assert_eq!((axes.low, axes.high), (1.0, 2.0));
        assert!(
            (axes.y(10.0) - (HEIGHT - BOTTOM)).abs() < 1e-9 && (axes.y(100.0) - TOP).abs() < 1e-9
        );
        assert!(axes.x(2000.0) < WIDTH - RIGHT);
        let svg = chart(&lines, 20.0);
        assert_eq!(svg.matches("<circle").count(), 2, "what was not answered has no place");
        assert!(svg.contains("&lt;a&gt;") && !svg.contains("<a>") && svg.contains("target 20 ms"));
        assert_eq!([3.0, 70.0, 1.0].map(nice), [5.0, 100.0, 1.0]);
    }
}
