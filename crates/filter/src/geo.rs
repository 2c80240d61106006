//! Areas on the Earth, and the points in them.

use serde_json::Value;

/// Mean radius of the Earth in metres.
const EARTH_RADIUS: f64 = 6_371_008.8;

/// Maximum points of the rings of one area.
pub const GEO_POINTS_MAX: usize = 4096;

/// Point on the Earth, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeoPoint {
    /// Latitude, north positive. Areas have -90 to 90, and a payload any finite number.
    pub lat: f64,
    /// Longitude, east positive. Areas have -180 to 180, and a payload any finite number.
    pub lon: f64,
}

/// Area on the Earth. Points on the border of a box or of an outer ring are not in it.
#[derive(Clone, Debug, PartialEq)]
pub enum GeoArea {
    /// Points between two meridians and two parallels.
    Box {
        /// The north-west corner. A longitude above that of the other corner means that the box
        /// crosses the meridian of 180 degrees.
        top_left: GeoPoint,
        /// The south-east corner.
        bottom_right: GeoPoint,
    },
    /// Points closer to a point than a distance.
    Radius {
        /// The point.
        center: GeoPoint,
        /// The distance in metres.
        radius: f64,
    },
    /// Points in an outer ring and in none of the inner rings.
    Polygon {
        /// Points of the outer ring.
        exterior: Vec<GeoPoint>,
        /// Points of each inner ring.
        interiors: Vec<Vec<GeoPoint>>,
    },
}

impl GeoPoint {
    /// Returns the point in a value of a payload: an object with the numbers `lat` and `lon`.
    fn of(value: &Value) -> Option<GeoPoint> {
        let number =
            |name: &str| value.get(name).and_then(Value::as_f64).filter(|it| it.is_finite());
        Some(GeoPoint { lat: number("lat")?, lon: number("lon")? })
    }

    /// Returns the distance in metres on a sphere, by the haversine formula.
    fn distance(self, other: GeoPoint) -> f64 {
        let lat = (other.lat.to_radians() - self.lat.to_radians()) / 2.0;
        let lon = (other.lon.to_radians() - self.lon.to_radians()) / 2.0;
        let cosines = self.lat.to_radians().cos() * other.lat.to_radians().cos();
        let half_chord = lat.sin().powi(2) + cosines * lon.sin().powi(2);
        2.0 * EARTH_RADIUS * half_chord.min(1.0).sqrt().asin()
    }
}

impl GeoArea {
    /// Returns the number of points that describe it.
    pub(super) fn points(&self) -> usize {
        match self {
            GeoArea::Box { .. } => 2,
            GeoArea::Radius { .. } => 1,
            GeoArea::Polygon { exterior, interiors } => {
                exterior.len() + interiors.iter().map(Vec::len).sum::<usize>()
            }
        }
    }

    /// Returns about how many bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let GeoArea::Polygon { interiors, .. } = self else { return 0 };
        let points = self.points() * std::mem::size_of::<GeoPoint>();
        (points + interiors.len() * std::mem::size_of::<Vec<GeoPoint>>()) as u64
    }

    /// Returns true if a value of a payload is a point in the area.
    pub(super) fn accepts(&self, value: &Value) -> bool {
        GeoPoint::of(value).is_some_and(|point| self.contains(point))
    }

    /// Returns true if the point is inside the area, and not on its edge.
    fn contains(&self, point: GeoPoint) -> bool {
        match self {
            GeoArea::Box { top_left, bottom_right } => {
                let east = point.lon > top_left.lon;
                let west = point.lon < bottom_right.lon;
                let crosses = top_left.lon > bottom_right.lon;
                let is_between = if crosses { east || west } else { east && west };
                is_between && top_left.lat > point.lat && point.lat > bottom_right.lat
            }
            GeoArea::Radius { center, radius } => point.distance(*center) < *radius,
            GeoArea::Polygon { exterior, interiors } => {
                place_in_ring(point, exterior) == RingPlace::Inside
                    && interiors.iter().all(|ring| place_in_ring(point, ring) == RingPlace::Outside)
            }
        }
    }
}

/// Place of a point relative to a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingPlace {
    Inside,
    Border,
    Outside,
}

/// Returns the place of a point by the number of sides that a ray from it crosses. Longitudes and
/// latitudes are taken as coordinates on a plane.
fn place_in_ring(point: GeoPoint, ring: &[GeoPoint]) -> RingPlace {
    let mut is_inside = false;
    let ends = ring.iter().skip(1).chain(ring.first());
    for (start, end) in ring.iter().zip(ends) {
        let lat_sides = (start.lat - point.lat) * (end.lat - point.lat);
        let lon_sides = (start.lon - point.lon) * (end.lon - point.lon);
        let is_on_line = point.lon * (end.lat - start.lat)
            + end.lon * (start.lat - point.lat)
            + start.lon * (point.lat - end.lat)
            == 0.0;
        if start != end && is_on_line && lat_sides <= 0.0 && lon_sides <= 0.0 {
            return RingPlace::Border;
        }
        if (end.lon > point.lon) != (start.lon > point.lon) {
            let rise = (start.lat - end.lat) * (point.lon - end.lon);
            let crossing = rise / (start.lon - end.lon) + end.lat;
            is_inside ^= point.lat < crossing;
        }
    }
    if is_inside { RingPlace::Inside } else { RingPlace::Outside }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(lat: f64, lon: f64) -> GeoPoint {
        GeoPoint { lat, lon }
    }

    fn square(half: f64) -> Vec<GeoPoint> {
        let corners = [(-1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)];
        corners.map(|(lat, lon)| at(lat * half, lon * half)).to_vec()
    }

    #[test]
    fn distances_follow_the_sphere() {
        let (moscow, london) = (at(55.7558, 37.6173), at(51.5074, -0.1278));
        let distance = moscow.distance(london);
        assert!((2_400_000.0..2_600_000.0).contains(&distance), "{distance}");
        assert!(moscow.distance(moscow) < 1.0);
        assert!((at(0.0, 0.0).distance(at(0.0, 180.0)) - 20_015_114.0).abs() < 1_000.0);
    }

    #[test]
    fn boxes_may_cross_the_meridian_of_180_degrees() {
        let area = |west: f64, east: f64| GeoArea::Box {
            top_left: at(10.0, west),
            bottom_right: at(-10.0, east),
        };
        assert!(area(-5.0, 5.0).contains(at(0.0, 0.0)));
        assert!(!area(-5.0, 5.0).contains(at(0.0, 5.0)));
        assert!(!area(-5.0, 5.0).contains(at(11.0, 0.0)));
        assert!(area(170.0, -170.0).contains(at(0.0, 175.0)));
        assert!(area(170.0, -170.0).contains(at(0.0, -175.0)));
        assert!(!area(170.0, -170.0).contains(at(0.0, 0.0)));
    }

    #[test]
    fn polygons_have_holes() {
        let area = GeoArea::Polygon { exterior: square(4.0), interiors: vec![square(1.0)] };
        for (lat, lon, expected) in [
            (2.0, 2.0, true),
            (0.0, 0.0, false),
            (1.0, 0.0, false),
            (4.0, 0.0, false),
            (5.0, 0.0, false),
            (-3.0, 1.0, true),
        ] {
            assert_eq!(area.contains(at(lat, lon)), expected, "{lat} {lon}");
        }
    }

    #[test]
    fn points_are_objects_with_two_numbers() {
        let area = GeoArea::Radius { center: at(0.0, 0.0), radius: 1e6 };
        assert!(area.accepts(&json!({"lat": 1, "lon": 1.5})));
        for value in [json!({"lat": 1}), json!({"lat": "1", "lon": 1}), json!([1, 1]), json!(null)]
        {
            assert!(!area.accepts(&value), "{value}");
        }
    }
}
