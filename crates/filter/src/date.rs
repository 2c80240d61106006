//! Dates in texts: RFC 3339, and the shorter forms that Qdrant accepts. Without an offset they are
//! in UTC.

use chrono::{DateTime, FixedOffset, NaiveDate, NaiveDateTime};

/// Longest date: nanoseconds, an offset, and spaces.
const BYTES_MAX: usize = 40;
/// Maximum digits of a year.
const YEAR_DIGITS_MAX: usize = 4;
/// Maximum digits of a month.
const MONTH_DIGITS_MAX: usize = 2;

/// Returns the microseconds since 1970 of a date, or `None` if the text is not a date.
pub fn parse_date(text: &str) -> Option<i64> {
    // Payload indexes have no dates of texts that are too long for them.
    if text.len() > BYTES_MAX {
        return None;
    }
    let text = text.trim_start();
    if !looks_like_date(text) {
        return None;
    }
    if let Ok(date) = DateTime::parse_from_rfc3339(text) {
        return Some(date.timestamp_micros());
    }
    // This form has "UTC" as an offset, spaces, and months and days of one digit.
    if let Ok(date) = text.parse::<DateTime<FixedOffset>>() {
        return Some(date.timestamp_micros());
    }
    for format in ["%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%d %H:%M:%S%.f%#z"] {
        if let Ok(date) = DateTime::parse_from_str(text, format) {
            return Some(date.timestamp_micros());
        }
    }
    let local =
        ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"];
    for format in local {
        if let Ok(date) = NaiveDateTime::parse_from_str(text, format) {
            return Some(date.and_utc().timestamp_micros());
        }
    }
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
    Some(day.and_hms_opt(0, 0, 0)?.and_utc().timestamp_micros())
}

/// Returns true if a text begins with two numbers and hyphens. Most texts do not, and the parser is
/// slow.
fn looks_like_date(text: &str) -> bool {
    let is_number = |part: &str, digits_max: usize| {
        (1..=digits_max).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let Some((year, rest)) = text.split_once('-') else { return false };
    let Some((month, _)) = rest.split_once('-') else { return false };
    is_number(year, YEAR_DIGITS_MAX) && is_number(month.trim_start(), MONTH_DIGITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_qdrant_reads_them() {
        let noon = 1_718_452_800_000_000;
        for text in [
            "2024-06-15T12:00:00Z",
            "2024-06-15T14:00:00+02:00",
            "2024-06-15 12:00:00.000000Z",
            "2024-06-15 14:00:00+02",
            "2024-06-15T12:00:00",
            "2024-06-15 12:00:00",
            "2024-06-15T12:00",
            "2024-06-15 12:00",
            "2024-06-15 12:00:00 UTC",
            "2024-06-15 14:00:00.000 +02:00",
            "2024-6-15 12:00:00Z",
            " 2024-06-15T12:00:00Z",
        ] {
            assert_eq!(parse_date(text), Some(noon), "{text}");
        }
        assert_eq!(parse_date("2024-06-15"), Some(noon - 43_200_000_000));
        assert_eq!(parse_date("2024-6-15"), parse_date("2024-06-15"));
        assert_eq!(parse_date("2024-06-15T12:00:00.25Z"), Some(noon + 250_000));
        for text in [
            "",
            "2024",
            "2024-06-15 12",
            "2024-13-01",
            "2024-0615",
            "Ünïcödé-text",
            "20240615T12",
            "1-2",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
        let indented = |width: usize| parse_date(&format!("{:>width$}", "2024-06-15"));
        assert_eq!((indented(40), indented(600)), (parse_date("2024-06-15"), None));
    }
}
