//! Responses in Qdrant's envelope, with the coverage of partial answers.

use std::time::Duration;

use api_qdrant::refuse;
use base::{Error, Result};
use http::StatusCode;
use serde::Serialize;
use transport::{Reply, RequestResources, Reservation};

/// Shards that answered a read, of the shards that were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReadCoverage {
    /// Number of shards with an answer.
    pub shards: usize,
    /// Number of shards that were asked.
    pub of: usize,
}

impl ReadCoverage {
    /// Returns true if every shard answered.
    pub fn is_whole(self) -> bool {
        self.shards == self.of
    }

    /// Returns the coverage with the smallest part of its shards; `None` if there is none.
    pub(super) fn smallest(coverages: [Option<ReadCoverage>; 2]) -> Option<ReadCoverage> {
        let smaller = |one: ReadCoverage, other: ReadCoverage| {
            if other.shards * one.of < one.shards * other.of { other } else { one }
        };
        coverages.into_iter().flatten().reduce(smaller)
    }
}

/// Completeness of the rounds of a read so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completeness {
    /// Smallest coverage of the rounds in which shards were missing.
    coverage: Option<ReadCoverage>,
    /// True if points may be missing.
    pub(super) partial: bool,
}

impl Completeness {
    /// Before the first round.
    pub(super) const WHOLE: Completeness = Completeness { coverage: None, partial: false };

    /// Returns the completeness after another round.
    pub(super) fn after(self, round: ReadCoverage) -> Completeness {
        if round.is_whole() {
            return self;
        }
        let coverage = ReadCoverage::smallest([self.coverage, Some(round)]);
        Completeness { coverage, partial: true }
    }

    /// Returns the completeness with more points that may be missing, if `partial` is true.
    pub(super) fn or_partial(self, partial: bool) -> Completeness {
        Completeness { partial: self.partial || partial, ..self }
    }

    /// Returns the coverage, if shards were missing.
    pub(super) fn coverage(self) -> Option<ReadCoverage> {
        self.coverage
    }
}

/// Result of a request.
pub(super) struct RootAnswer {
    /// JSON text.
    pub(super) result: Vec<u8>,
    /// Coverage, if shards are missing.
    pub(super) coverage: Option<ReadCoverage>,
    /// Bytes of memory that the result takes.
    pub(super) reservation: Option<Reservation>,
    /// True if the work continues after the answer. The status is 202 then.
    pub(super) continues: bool,
}

impl RootAnswer {
    /// Creates an answer from a value.
    ///
    /// # Errors
    /// `Internal` if the value cannot be written as JSON.
    pub(super) fn of(result: &impl Serialize) -> Result<RootAnswer> {
        let result = serde_json::to_vec(result)
            .map_err(|error| Error::internal("an answer cannot be written").caused_by(error))?;
        Ok(RootAnswer { result, coverage: None, reservation: None, continues: false })
    }

    /// Returns the answer with the smallest coverage of its own round and of earlier ones.
    pub(super) fn after(self, earlier: Completeness) -> RootAnswer {
        let coverage = ReadCoverage::smallest([self.coverage, earlier.coverage]);
        RootAnswer { coverage, ..self }
    }
}

/// Returns the response of a result.
pub(super) fn reply(
    result: Result<RootAnswer>,
    requests: &RequestResources,
    took: Duration,
) -> Reply {
    match result {
        Ok(answer) => {
            if answer.continues {
                let body = serde_json::json!({ "status": "accepted", "time": took.as_secs_f64() });
                return Reply::json(body.to_string()).with_status(StatusCode::ACCEPTED);
            }
            let reply = Reply::json(envelope(&answer.result, answer.coverage, took));
            match answer.reservation {
                Some(reservation) => reply.with_reservation(requests, reservation),
                None => reply,
            }
        }
        Err(error) => refuse(&error, took),
    }
}

/// Puts a result, which is JSON text, into its envelope.
fn envelope(result: &[u8], coverage: Option<ReadCoverage>, took: Duration) -> Vec<u8> {
    let coverage = coverage.map_or_else(String::new, |coverage| {
        format!(",\"coverage\":{{\"shards\":{},\"of\":{}}}", coverage.shards, coverage.of)
    });
    let tail = format!("{coverage},\"status\":\"ok\",\"time\":{}}}", took.as_secs_f64());
    [b"{\"result\":", result, tail.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_with_missing_shards_makes_the_answer_partial() {
        let whole = ReadCoverage { shards: 4, of: 4 };
        let missing = ReadCoverage { shards: 3, of: 4 };
        assert_eq!(Completeness::WHOLE.after(whole), Completeness::WHOLE);
        let after = Completeness::WHOLE.after(missing).after(whole);
        assert_eq!((after.coverage(), after.partial), (Some(missing), true));
        let fewer = ReadCoverage { shards: 1, of: 4 };
        let after = Completeness::WHOLE.after(missing).after(fewer).after(missing);
        assert_eq!(after.coverage(), Some(fewer), "later rounds do not hide missing shards");
        let answer = RootAnswer { coverage: Some(missing), ..RootAnswer::of(&1).unwrap() };
        assert_eq!(answer.after(after).coverage, Some(fewer));
        let damaged = Completeness::WHOLE.or_partial(true).or_partial(false);
        assert_eq!((damaged.coverage(), damaged.partial), (None, true));
    }

    #[test]
    fn coverage_is_beside_the_result() {
        let text = |coverage| {
            String::from_utf8(envelope(b"[1]", coverage, Duration::from_millis(500))).unwrap()
        };
        assert_eq!(text(None), r#"{"result":[1],"status":"ok","time":0.5}"#);
        assert_eq!(
            text(Some(ReadCoverage { shards: 3, of: 4 })),
            r#"{"result":[1],"coverage":{"shards":3,"of":4},"status":"ok","time":0.5}"#
        );
    }
}
