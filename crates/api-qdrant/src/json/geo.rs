//! Reads Qdrant's JSON of areas on the Earth.

use search::filter::{GEO_POINTS_MAX, GeoArea, GeoPoint};
use serde_json::Value;

use super::filter::{Parsed, in_field, members, object, required_members};
use super::limits;

/// Minimum points of a ring: three corners, and the first one again.
const RING_POINTS_MIN: usize = 4;

/// Reads `geo_bounding_box`.
pub(super) fn bounding_box(value: &Value) -> Parsed<GeoArea> {
    let [top_left, bottom_right] = required_members(value, ["top_left", "bottom_right"])?;
    Ok(GeoArea::Box {
        top_left: in_field("top_left", point(top_left))?,
        bottom_right: in_field("bottom_right", point(bottom_right))?,
    })
}

/// Reads `geo_radius`.
pub(super) fn radius(value: &Value) -> Parsed<GeoArea> {
    let [center, radius] = required_members(value, ["center", "radius"])?;
    let center = in_field("center", point(center))?;
    let radius = in_field("radius", number(radius))?;
    if radius < 0.0 {
        return Err(limits(format_args!("radius: value {radius} invalid, must be 0 or larger")));
    }
    Ok(GeoArea::Radius { center, radius })
}

/// Reads `geo_polygon`.
pub(super) fn polygon(value: &Value) -> Parsed<GeoArea> {
    let mut exterior = None;
    let mut interiors = Vec::new();
    let mut points = 0;
    for (name, value) in members(object(value)?) {
        match name {
            "exterior" => exterior = Some(in_field(name, ring(value, &mut points))?),
            "interiors" => {
                let list = value.as_array().ok_or_else(|| format!("{name}: a list is expected"))?;
                for (at, value) in list.iter().enumerate() {
                    let name = format!("interiors: [{at}]");
                    interiors.push(in_field(name, ring(value, &mut points))?);
                }
            }
            other => return Err(format!("{other}: exterior and interiors are expected")),
        }
    }
    let exterior = exterior.ok_or_else(|| "exterior is missing".to_owned())?;
    Ok(GeoArea::Polygon { exterior, interiors })
}

/// Reads a closed ring. `points` counts the points of the polygon.
fn ring(value: &Value, points: &mut usize) -> Parsed<Vec<GeoPoint>> {
    let [list] = required_members(value, ["points"])?;
    let list = list.as_array().ok_or_else(|| "points: a list is expected".to_owned())?;
    *points += list.len();
    if *points > GEO_POINTS_MAX {
        return Err(limits(format_args!("a polygon has at most {GEO_POINTS_MAX} points")));
    }
    if list.len() < RING_POINTS_MIN {
        return Err(limits(format_args!("a ring has at least {RING_POINTS_MIN} points")));
    }
    let read =
        |(at, value): (usize, &Value)| in_field(format_args!("points: [{at}]"), point(value));
    let ring: Vec<GeoPoint> = list.iter().enumerate().map(read).collect::<Parsed<_>>()?;
    if ring.first() != ring.last() {
        return Err(limits("a ring ends at its first point"));
    }
    Ok(ring)
}

fn point(value: &Value) -> Parsed<GeoPoint> {
    let [lat, lon] = required_members(value, ["lat", "lon"])?;
    Ok(GeoPoint {
        lat: in_field("lat", degrees(lat, 90.0))?,
        lon: in_field("lon", degrees(lon, 180.0))?,
    })
}

fn degrees(value: &Value, most: f64) -> Parsed<f64> {
    let degrees = number(value)?;
    if degrees.abs() > most {
        return Err(limits(format_args!("{degrees} is not within -{most} and {most}")));
    }
    Ok(degrees)
}

fn number(value: &Value) -> Parsed<f64> {
    value.as_f64().ok_or_else(|| "a number is expected".to_owned())
}
