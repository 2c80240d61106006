//! Line charts, as SVG for a page and as PNG.

use std::io::Cursor;
use std::sync::Once;

use base::{Error, Result};
use image::{ImageFormat, RgbImage};
use loadgen::report::escape;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Size of a chart in pixels.
const WIDTH: u32 = 860;
const HEIGHT: u32 = 420;
/// Pixels of a PNG per pixel of the chart.
const PNG_SCALE: u32 = 2;
/// Font sizes in pixels.
const SMALL: u32 = 13;
const TITLE: u32 = 16;
/// Colours that are distinct for colour-blind readers, dark enough on white.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 90, 181),
    RGBColor(200, 80, 0),
    RGBColor(0, 130, 95),
    RGBColor(150, 60, 140),
    RGBColor(90, 90, 90),
    RGBColor(150, 110, 0),
];
const GRID: RGBColor = RGBColor(220, 224, 229);
/// Colour of marks on the x axis.
const MARK: RGBColor = RGBColor(170, 175, 182);
const FONT: &str = "sans-serif";

/// One line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Points in ascending order of x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Style sheet of a page.
const STYLE: &str = "body{background:#fff;color:#1b1f24;font:15px/1.5 system-ui,sans-serif;max-width:60rem;\
    margin:1.5rem auto;padding:0 1rem}h1{font-size:1.4rem}svg{width:100%;height:auto;margin:.5rem 0}\
    pre{overflow-x:auto;padding:.8rem;border:1px solid #d9dee3}";

/// Line chart whose y axis starts at zero, unless it is logarithmic.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Label of the x axis.
    pub(crate) x: String,
    /// Label of the y axis.
    pub(crate) y: String,
    pub(crate) series: Vec<Series>,
    /// All values of the x axis, drawn at even distances; `None` for a linear axis from zero.
    pub(crate) steps: Option<Vec<f64>>,
    /// True to mark each point with a dot.
    pub(crate) dots: bool,
    /// Values of the x axis to mark with a vertical line.
    pub(crate) marks: Vec<f64>,
    /// Ends of a logarithmic y axis, both above zero; `None` for a linear one.
    pub(crate) log_y: Option<[f64; 2]>,
}

/// Returns a self-contained HTML page with charts above `text`.
///
/// # Errors
/// `Internal` if a chart cannot be drawn.
pub(crate) fn page(title: &str, heading: &str, charts: &[Chart], text: &str) -> Result<String> {
    let charts: String = charts.iter().map(Chart::svg).collect::<Result<_>>()?;
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>{}</h1>\n{charts}<pre>{}</pre>\n</body></html>",
        escape(title),
        escape(heading),
        escape(text)
    ))
}

/// Draws charts, `columns` in a row, as a PNG file of twice their size.
///
/// # Errors
/// `Internal` if one cannot be drawn or the image cannot be encoded.
pub(crate) fn png(charts: &[Chart], columns: usize) -> Result<Vec<u8>> {
    let columns = columns.clamp(1, charts.len().max(1));
    let rows = charts.len().div_ceil(columns).max(1);
    let [width, height] = [WIDTH * columns as u32, HEIGHT * rows as u32].map(|px| px * PNG_SCALE);
    let mut image = RgbImage::new(width, height);
    let area = BitMapBackend::with_buffer(&mut image, (width, height)).into_drawing_area();
    let blank = area.fill(&WHITE);
    blank.map_err(|error| Error::internal(format!("chart: {error}")))?;
    for (panel, chart) in area.split_evenly((rows, columns)).into_iter().zip(charts) {
        chart.draw(panel, PNG_SCALE)?;
    }
    drop(area);
    let mut bytes = Cursor::new(Vec::new());
    image
        .write_to(&mut bytes, ImageFormat::Png)
        .map_err(|e| Error::internal(format!("chart: {e}")))?;
    Ok(bytes.into_inner())
}

impl Chart {
    /// Draws the chart as an `<svg>` element.
    ///
    /// # Errors
    /// `Internal` if it cannot be drawn.
    pub(crate) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area(), 1)?;
        let label = format!("<svg role=\"img\" aria-label=\"{}\" ", escape(&self.title));
        Ok(svg.replacen("<svg ", &label, 1))
    }

    fn draw<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>, scale: u32) -> Result<()> {
        register_font();
        self.try_draw(&area, scale).map_err(|error| Error::internal(format!("chart: {error}")))
    }

    /// Draws axes, lines and marks into `area`. `scale` is the number of pixels for each pixel of
    /// the chart.
    fn try_draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> std::result::Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let x_range = match &self.steps {
            Some(steps) => -0.5..steps.len() as f64 - 0.5,
            None => 0.0..self.largest(|point| point.0),
        };
        let y_range = match self.log_y {
            Some(ends) => self.height(ends[0])..self.height(ends[1]),
            None => 0.0..self.largest(|point| point.1) * 1.05,
        };
        let small = (FONT, SMALL * scale);
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, TITLE * scale))
            .margin(10 * scale)
            .x_label_area_size(42 * scale)
            .y_label_area_size(60 * scale)
            .build_cartesian_2d(x_range, y_range.clone())?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .label_style(small);
        mesh.x_desc(&self.x).y_desc(&self.y).axis_desc_style(small);
        let x_label = |x: &f64| self.x_label(*x);
        let y_label = |y: &f64| self.y_label(*y);
        mesh.x_labels(self.steps.as_ref().map_or(8, Vec::len)).x_label_formatter(&x_label);
        mesh.y_label_formatter(&y_label).draw()?;
        for x in self.marks.iter().map(|&x| self.place(x)) {
            let line = vec![(x, y_range.start), (x, y_range.end)];
            chart.draw_series([PathElement::new(line, MARK.stroke_width(scale))])?;
        }
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let finite = series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            let places: Vec<(f64, f64)> =
                finite.map(|&(x, y)| (self.place(x), self.height(y))).collect();
            let style = colour.stroke_width(2 * scale);
            chart
                .draw_series(LineSeries::new(places.iter().copied(), style))?
                .label(&series.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 20 * scale as i32, y)], style)
                });
            if self.dots {
                let dot = |&place: &(f64, f64)| Circle::new(place, 4 * scale, colour.filled());
                chart.draw_series(places.iter().map(dot))?;
            }
        }
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperRight).legend_area_size(28 * scale);
        labels.label_font(small).background_style(WHITE.mix(0.8)).draw()?;
        area.present()
    }

    /// Returns the largest finite coordinate that `of` takes from a point, above zero.
    fn largest(&self, of: fn(&(f64, f64)) -> f64) -> f64 {
        let values = self.series.iter().flat_map(|series| &series.points).map(of);
        values.filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max)
    }

    /// Returns the position of a value on the y axis.
    fn height(&self, y: f64) -> f64 {
        self.log_y.map_or(y, |[low, high]| y.clamp(low, high).log10())
    }

    fn y_label(&self, y: f64) -> String {
        match self.log_y {
            Some(_) if (y - y.round()).abs() > 1e-6 => String::new(),
            Some(_) => number(10f64.powf(y.round())),
            None => number(y),
        }
    }

    /// Returns the position of a value on the x axis.
    fn place(&self, x: f64) -> f64 {
        self.steps
            .as_ref()
            .map_or(x, |steps| steps.iter().position(|step| *step == x).unwrap_or(0) as f64)
    }

    fn x_label(&self, x: f64) -> String {
        match &self.steps {
            Some(steps) if x < 0.0 || x.fract() != 0.0 => String::new(),
            Some(steps) => steps.get(x as usize).map_or_else(String::new, |&step| number(step)),
            None => number(x),
        }
    }
}

/// Makes the font of the program the only one, because the system may have none.
fn register_font() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // Fails only for bytes that are not a font.
        let _ = plotters::style::register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    });
}

/// Formats a number with at most three digits after the point and no zeros at its end.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let series = |name: &str, height: f64| Series {
            name: name.into(),
            points: vec![(1.0, 3.0 * height), (2.0, 2.0 * height), (8.0, f64::NAN)],
        };
        Chart {
            title: "Time <by> threads".into(),
            x: "threads".into(),
            y: "seconds".into(),
            series: vec![series("intra 1", 1.0), series("intra 2", 2.0)],
            steps: Some(vec![1.0, 2.0, 4.0, 8.0]),
            dots: true,
            ..Chart::default()
        }
    }

    #[test]
    fn svg_has_lines_dots_and_escaped_texts() {
        let svg = chart().svg().unwrap();
        assert!(svg.contains("aria-label=\"Time &lt;by&gt; threads\"") && svg.contains("viewBox"));
        assert_eq!(svg.matches("<circle").count(), 4, "a point that is not a number is left out");
        for text in ["threads", "seconds", "intra 1", "intra 2", "\n8\n"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let empty = Chart { series: Vec::new(), steps: None, ..chart() };
        assert!(empty.svg().unwrap().contains("<svg"));
    }

    #[test]
    fn png_has_the_colours_of_the_lines() {
        let image = image::load_from_memory(&png(&[chart()], 2).unwrap()).unwrap().to_rgb8();
        assert_eq!(image.dimensions(), (1720, 840));
        for RGBColor(red, green, blue) in [COLOURS[0], COLOURS[1], GRID] {
            let count = image.pixels().filter(|pixel| pixel.0 == [red, green, blue]).count();
            assert!(count > 100, "{red} {green} {blue}: {count}");
        }
    }

    #[test]
    fn panels_share_an_image_and_marks_are_drawn() {
        let marked = |log_y| Chart { steps: None, marks: vec![1.0, 2.0], log_y, ..chart() };
        let charts = [marked(None), marked(Some([1.0, 100.0])), marked(None)];
        let image = image::load_from_memory(&png(&charts, 2).unwrap()).unwrap().to_rgb8();
        assert_eq!(image.dimensions(), (2 * 1720, 2 * 840));
        let lines = charts[1].svg().unwrap().matches("#AAAFB6").count();
        assert_eq!(lines, 2);
        assert_eq!(charts[1].height(10.0), 1.0);
        assert_eq!([charts[1].y_label(2.0), charts[1].y_label(0.5)], ["100", ""]);
        let page = page("t", "<h>", &charts, "a & b").unwrap();
        assert!(page.matches("<svg").count() == 3 && page.contains("<h1>&lt;h&gt;</h1>"));
    }

    #[test]
    fn numbers_have_at_most_three_digits_after_the_point() {
        assert_eq!([0.0, 0.25, 10.0, 1.0 / 3.0].map(number), ["0", "0.25", "10", "0.333"]);
    }
}
