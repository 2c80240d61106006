//! Quantities in text form: "1.6GiB", "250ms".

use std::num::ParseFloatError;
use std::time::Duration;

use crate::{Error, Result};

const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// Splits a quantity into its number and its unit in lower case.
fn split(text: &str) -> Result<(f64, String)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let value: f64 = text[..end].parse().map_err(|error: ParseFloatError| {
        Error::invalid(format!("\"{text}\" does not start with a number")).with_source(error)
    })?;
    Ok((value, text[end..].trim().to_ascii_lowercase()))
}

/// Parses a byte size: a number and B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB
/// (powers of 1024).
///
/// # Errors
/// `InvalidArgument` if it is not a number with one of these units, or 16 EiB or more.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let (value, unit) = split(text)?;
    let factor = match unit.as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => KIB as f64,
        "mib" => MIB as f64,
        "gib" => GIB as f64,
        "tib" => 1024.0 * GIB as f64,
        _ => {
            return Err(Error::invalid(format!(
                "\"{text}\": unknown size unit; use e.g. 512MiB or 2GB"
            )));
        }
    };
    let bytes = (value * factor).round();
    // The greatest integer rounds up to 2^64 as a float.
    if bytes >= u64::MAX as f64 {
        return Err(Error::invalid(format!("\"{text}\" is not a usable size")));
    }
    Ok(bytes as u64)
}

/// Parses a duration: a number and ns, us, ms, s, m or h; a bare number is seconds.
///
/// # Errors
/// `InvalidArgument` if it is not a number with one of these units.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let (value, unit) = split(text)?;
    let seconds = match unit.as_str() {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(Error::invalid(format!(
                "\"{text}\": unknown time unit; use e.g. 250ms or 2s"
            )));
        }
    };
    Duration::try_from_secs_f64(value * seconds).map_err(|error| {
        Error::invalid(format!("\"{text}\" is not a usable duration")).with_source(error)
    })
}

/// Formats a byte size with three significant digits and a binary unit.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_parsed_and_formatted() {
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 * GIB / 2));
        assert_eq!(parse_bytes("800MB"), Ok(800_000_000));
        assert!(parse_bytes("5 parsecs").is_err());
        assert_eq!(parse_bytes("16777215TiB"), Ok(u64::MAX - (1 << 40) + 1));
        for large in ["16777216TiB", "1000000000000GB", &"9".repeat(400)] {
            assert!(parse_bytes(large).is_err(), "{large}");
        }
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert!(parse_duration("1e999").is_err());
        assert_eq!(format_bytes(1_717_986_918), "1.60 GiB");
        assert_eq!(format_bytes(12), "12 B");
    }

    #[test]
    fn refused_numbers_keep_their_causes() {
        let errors =
            [parse_bytes("GiB").unwrap_err(), parse_duration(&"1".repeat(30)).unwrap_err()];
        for error in errors {
            assert!(std::error::Error::source(&error).is_some(), "{error}");
        }
    }
}
