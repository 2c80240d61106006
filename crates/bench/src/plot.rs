//! Line charts, laid out once and drawn twice: as SVG for a page, as PNG for everything else.
//!
//! A [`Chart`] is figures and names; [`Chart::picture`] turns it into a few shapes with places, which `svg` and `png`
//! draw. So both files show the same, and neither needs a font of the system.

mod png;
mod svg;

pub(crate) use png::png;
pub(crate) use svg::svg;

/// Size of a picture in pixels.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
/// Room beside the axes.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 52.0;
/// Marks of an axis, about.
const TICKS: f64 = 6.0;
/// Sizes of text in pixels.
const SMALL: f64 = 12.0;
const TITLE: f64 = 15.0;
/// Advance of a character as a share of its size, for the places of the legend.
const ADVANCE: f64 = 0.62;
/// Colours that the colour-blind tell apart too, dark enough on white.
const COLOURS: [Colour; 6] =
    [[0, 90, 181], [200, 80, 0], [0, 130, 95], [150, 60, 140], [90, 90, 90], [150, 110, 0]];
const TEXT: Colour = [60, 66, 74];
const GRID: Colour = [220, 224, 229];

/// Red, green, blue.
pub(crate) type Colour = [u8; 3];
/// To the right and down, in pixels.
pub(crate) type Place = (f64, f64);

/// One line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// In the order of the lower axis.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A line chart whose left axis starts at zero.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What the lower axis counts.
    pub(crate) x: String,
    /// What the left axis counts.
    pub(crate) y: String,
    pub(crate) series: Vec<Series>,
    /// The only values of the lower axis, evenly spaced; without them it counts from zero.
    pub(crate) steps: Option<Vec<f64>>,
    /// Whether each point gets a dot: for few points.
    pub(crate) dots: bool,
}

/// What is drawn.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Line { points: Vec<Place>, colour: Colour, width: f64 },
    Dot { at: Place, radius: f64, colour: Colour, title: String },
    Text { at: Place, text: String, anchor: Anchor, size: f64, colour: Colour, upwards: bool },
}

/// Which part of a text its place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// Shapes on a white ground.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// What it shows, for those who do not see it.
    pub(crate) label: String,
    pub(crate) shapes: Vec<Shape>,
}

/// From figures to places.
struct Axes<'a> {
    steps: Option<&'a [f64]>,
    x_max: f64,
    y_max: f64,
}

impl Axes<'_> {
    fn x(&self, value: f64) -> f64 {
        let share = match self.steps {
            Some(steps) => {
                let place = steps.iter().position(|step| *step == value).unwrap_or(0);
                (place as f64 + 0.5) / steps.len().max(1) as f64
            }
            None => value / self.x_max,
        };
        LEFT + (WIDTH - LEFT - RIGHT) * share.clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / self.y_max).clamp(0.0, 1.0)
    }
}

impl Chart {
    /// The chart as shapes.
    pub(crate) fn picture(&self) -> Picture {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let most = |of: fn(&(f64, f64)) -> f64| {
            points().map(of).filter(|value| value.is_finite()).fold(0.0, f64::max)
        };
        let y_step = nice(most(|point| point.1) / TICKS);
        let y_max = ((most(|point| point.1) / y_step).ceil() * y_step).max(y_step);
        let x_max = most(|point| point.0).max(f64::MIN_POSITIVE);
        let axes = Axes { steps: self.steps.as_deref(), x_max, y_max };
        let mut shapes = vec![text((LEFT, 24.0), &self.title, Anchor::Start, TITLE)];
        self.grid(&axes, y_step, &mut shapes);
        self.lines(&axes, &mut shapes);
        self.legend(&mut shapes);
        Picture { width: WIDTH, height: HEIGHT, label: self.title.clone(), shapes }
    }

    fn grid(&self, axes: &Axes<'_>, y_step: f64, shapes: &mut Vec<Shape>) {
        let line = |from, to| Shape::Line { points: vec![from, to], colour: GRID, width: 1.0 };
        let (floor, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let count = (axes.y_max / y_step).round() as usize;
        for mark in 0..=count {
            let value = mark as f64 * y_step;
            let y = axes.y(value);
            shapes.push(line((LEFT, y), (end, y)));
            shapes.push(text((LEFT - 8.0, y + 4.0), &figure(value), Anchor::End, SMALL));
        }
        let x_step = nice(axes.x_max / TICKS);
        let even = || (0..=(axes.x_max / x_step) as usize).map(|mark| mark as f64 * x_step).collect();
        for value in self.steps.clone().unwrap_or_else(even) {
            let x = axes.x(value);
            shapes.push(line((x, floor), (x, floor + 5.0)));
            shapes.push(text((x, floor + 20.0), &figure(value), Anchor::Middle, SMALL));
        }
        shapes.push(text(((LEFT + end) / 2.0, HEIGHT - 12.0), &self.x, Anchor::Middle, SMALL));
        shapes.push(Shape::Text {
            at: (18.0, (TOP + floor) / 2.0),
            text: self.y.clone(),
            anchor: Anchor::Middle,
            size: SMALL,
            colour: TEXT,
            upwards: true,
        });
    }

    fn lines(&self, axes: &Axes<'_>, shapes: &mut Vec<Shape>) {
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle().copied()) {
            let finite = series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            let places: Vec<Place> = finite.clone().map(|&(x, y)| (axes.x(x), axes.y(y))).collect();
            shapes.push(Shape::Line { points: places.clone(), colour, width: 2.0 });
            if self.dots {
                shapes.extend(finite.zip(places).map(|((x, y), at)| Shape::Dot {
                    at,
                    radius: 4.0,
                    colour,
                    title: format!("{}: {} at {}", series.name, figure(*y), figure(*x)),
                }));
            }
        }
    }

    fn legend(&self, shapes: &mut Vec<Shape>) {
        let mut left = LEFT;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle().copied()) {
            let y = 44.0;
            shapes.push(Shape::Line { points: vec![(left, y), (left + 22.0, y)], colour, width: 3.0 });
            shapes.push(text((left + 28.0, y + 4.0), &series.name, Anchor::Start, SMALL));
            left += 28.0 + series.name.chars().count() as f64 * SMALL * ADVANCE + 22.0;
        }
    }
}

fn text(at: Place, text: &str, anchor: Anchor, size: f64) -> Shape {
    Shape::Text { at, text: text.to_owned(), anchor, size, colour: TEXT, upwards: false }
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn nice(step: f64) -> f64 {
    if !(step.is_finite() && step > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|&nice| nice >= step).unwrap_or(step)
}

/// A figure with three digits behind the point at most, and no zeros at its end.
fn figure(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn chart() -> Chart {
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
        }
    }

    #[test]
    fn what_is_no_number_has_no_place() {
        let picture = chart().picture();
        let dots: Vec<Place> = picture
            .shapes
            .iter()
            .filter_map(|shape| if let Shape::Dot { at, .. } = shape { Some(*at) } else { None })
            .collect();
        assert_eq!(dots.len(), 4);
        // Steps are evenly spaced, and higher figures lie higher.
        assert!(dots[0].0 < dots[1].0 && dots[0].1 < dots[1].1);
        assert_eq!(dots[2].0, dots[0].0);
        assert!(dots.iter().all(|(x, y)| (LEFT..WIDTH).contains(x) && (TOP..HEIGHT).contains(y)));
        let empty = Chart { series: Vec::new(), steps: None, ..chart() };
        assert!(!empty.picture().shapes.is_empty());
    }

    #[test]
    fn figures() {
        assert_eq!([0.0, 0.25, 10.0, 1.0 / 3.0].map(figure), ["0", "0.25", "10", "0.333"]);
        assert_eq!([0.03, 3.0, 70.0, 0.0].map(nice), [0.05, 5.0, 100.0, 1.0]);
    }
}
