//! Dates and times of day in UTC.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: u64 = 24 * 3600;

/// A date of the Gregorian calendar and a time of day, in UTC. Shown as `2026-11-26 14:05:09 UTC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtcTime {
    /// Year, 1970 or later.
    pub year: u64,
    /// Month, 1 to 12.
    pub month: u64,
    /// Day of the month, 1 to 31.
    pub day: u64,
    /// Hour, 0 to 23.
    pub hour: u64,
    /// Minute, 0 to 59.
    pub minute: u64,
    /// Second, 0 to 59.
    pub second: u64,
    /// Microseconds of the second, 0 to 999,999.
    pub micros: u32,
}

/// Returns the time since 1970 began, in UTC; zero for an earlier time.
pub fn unix_time(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl UtcTime {
    /// Converts a time. A time before 1970 becomes the first moment of 1970.
    pub fn of(time: SystemTime) -> UtcTime {
        let since = unix_time(time);
        let days = since.as_secs() / SECONDS_PER_DAY;
        let second = since.as_secs() % SECONDS_PER_DAY;
        // Years begin in March here, so that a leap day is the last one of its year. Day 0 is
        // 0000-03-01, and 400 years have 146,097 days.
        let days = days + 719_468;
        let era = days / 146_097;
        let of_era = days % 146_097;
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        UtcTime {
            year: era * 400 + year + u64::from(month <= 2),
            month,
            day: of_year - (153 * from_march + 2) / 5 + 1,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
            micros: since.subsec_micros(),
        }
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UtcTime { year, month, day, hour, minute, second, .. } = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_the_epoch_have_dates() {
        for (seconds, wanted) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (1_795_642_245, "2026-11-25 21:30:45 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            let time = UtcTime::of(UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!(time.to_string(), wanted);
        }
        assert_eq!(UtcTime::of(UNIX_EPOCH + Duration::from_micros(7)).micros, 7);
        assert_eq!(UtcTime::of(UNIX_EPOCH - Duration::from_secs(1)).year, 1970);
        assert_eq!(unix_time(UNIX_EPOCH + Duration::from_secs(7)), Duration::from_secs(7));
        assert_eq!(unix_time(UNIX_EPOCH - Duration::from_secs(1)), Duration::ZERO);
    }
}
