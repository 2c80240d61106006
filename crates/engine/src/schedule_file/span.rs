//! Durations as text: "2ms".

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    base::units::parse_duration(&text).map(Some).map_err(|error| de::Error::custom(error.message()))
}

pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => to.serialize_str(&text(*time)),
        None => to.serialize_none(),
    }
}

/// Writes the largest unit of which the duration is a whole number.
fn text(time: Duration) -> String {
    let nanos = time.as_nanos();
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
    let (size, unit) =
        units.into_iter().find(|(size, _)| nanos.is_multiple_of(*size)).unwrap_or((1, "ns"));
    format!("{}{unit}", nanos / size)
}
