//! Requests for the similarities of a sample of points to each other.

use base::Result;
use search::filter::Filter;

use super::{AbsentField, out_of_limits, positive};

/// Number of points of a sample if the request has no number.
const DEFAULT_SAMPLE: usize = 10;
/// Maximum points of a sample. Each is compared with each other.
const SAMPLE_MAX: usize = 1024;
/// Nearest points of each point if the request has no limit.
const DEFAULT_LIMIT: usize = 3;

/// Request for the nearest points of each point of a sample, within the sample.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixRequest {
    /// Limits the points of the sample.
    #[serde(default, deserialize_with = "super::filter::optional")]
    pub filter: Option<Filter>,
    #[serde(default, deserialize_with = "positive")]
    sample: Option<usize>,
    #[serde(default, deserialize_with = "positive")]
    limit: Option<usize>,
    /// Name of the vector; `None` if the request names none.
    pub using: Option<String>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl MatrixRequest {
    /// Returns the number of points of the sample.
    ///
    /// # Errors
    /// `InvalidArgument` for less than 2 or more than 1024 points.
    pub fn sample(&self) -> Result<usize> {
        let sample = self.sample.unwrap_or(DEFAULT_SAMPLE);
        if !(2..=SAMPLE_MAX).contains(&sample) {
            let problem = format!("value {sample} invalid, must be from 2 to {SAMPLE_MAX}");
            return Err(out_of_limits("sample", problem));
        }
        Ok(sample)
    }

    /// Returns the maximum number of nearest points of each point.
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }
}
