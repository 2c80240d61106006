//! A picture as an `<svg>` element.

use loadgen::report::escape;
use std::fmt::Write;

use super::{Anchor, Colour, Picture, Place, Shape};

/// The picture as one element.
pub(crate) fn svg(picture: &Picture) -> String {
    let mut svg = format!(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" font-family=\"sans-serif\">",
        picture.width,
        picture.height,
        escape(&picture.label)
    );
    for shape in &picture.shapes {
        // Writing to a string cannot fail.
        let _ = match shape {
            Shape::Line { points, colour, width } => write!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"/>",
                points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" "),
                hex(*colour)
            ),
            Shape::Dot { at: (x, y), radius, colour, title } => write!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{}\"><title>{}</title></circle>",
                hex(*colour),
                escape(title)
            ),
            Shape::Text { at, text, anchor, size, colour, upwards } => write!(
                svg,
                "<text {} text-anchor=\"{}\" font-size=\"{size}\" fill=\"{}\">{}</text>",
                place(*at, *upwards),
                anchor_name(*anchor),
                hex(*colour),
                escape(text)
            ),
        };
    }
    svg.push_str("</svg>");
    svg
}

fn place((x, y): Place, upwards: bool) -> String {
    let turn = if upwards { format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"") } else { String::new() };
    format!("x=\"{x:.1}\" y=\"{y:.1}\"{turn}")
}

fn anchor_name(anchor: Anchor) -> &'static str {
    match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    }
}

fn hex([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_with_escaped_text() {
        let svg = svg(&super::super::tests::chart().picture());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>"));
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("Time &lt;by&gt; threads") && !svg.contains("<by>") && !svg.contains("NaN"));
        assert!(svg.contains("rotate(-90"));
    }
}
