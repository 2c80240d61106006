//! Comparison of the keypoints of a pair.

use base::Result;
use matching::{Graph, MatchOptions, Probe, Scratch};

/// Outcome of the comparison of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairOutcome {
    /// The keypoints agree, with this score. `None` if a point has no record to compare.
    Accepted(Option<f32>),
    /// The keypoints do not agree.
    Refused,
    /// The other point was removed.
    Removed,
    /// The other record cannot be read.
    Unreadable,
}

/// Comparison of the records of other points with the record of one.
pub struct PairVerifier {
    /// `None` for a point without a record.
    probe: Option<Probe>,
    accept: f32,
}

impl PairVerifier {
    /// Reads the record of one point, which is empty if the point has no image. `accept` is the
    /// least score of an accepted pair.
    ///
    /// # Errors
    /// `DataLoss` for a damaged record.
    pub fn new(record: &[u8], accept: f32) -> Result<PairVerifier> {
        let probe = if record.is_empty() {
            None
        } else {
            Some(Probe::new(&Graph::decode(record)?, MatchOptions::default()))
        };
        Ok(PairVerifier { probe, accept })
    }

    /// Compares the record of another point, as [`crate::collection::Collection::points`] returned
    /// it. Returns `None` for a removed point.
    pub fn compare(&self, record: Result<Option<Vec<u8>>>, scratch: &mut Scratch) -> PairOutcome {
        let scored = match (record, &self.probe) {
            (Ok(None), _) => return PairOutcome::Removed,
            (Ok(Some(record)), Some(probe)) if !record.is_empty() => {
                matching::score(probe, &record, scratch)
            }
            (Ok(Some(_)), _) => return PairOutcome::Accepted(None),
            (Err(error), _) => Err(error),
        };
        match scored {
            Ok(score) if score >= self.accept => PairOutcome::Accepted(Some(score)),
            Ok(_) => PairOutcome::Refused,
            Err(error) => {
                tracing::debug!(%error, "a point is left out of the search for duplicates");
                PairOutcome::Unreadable
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Error;

    use super::*;

    #[test]
    fn points_without_records_are_accepted_without_a_score() {
        let mut scratch = Scratch::new();
        let mut record = Vec::new();
        Graph::default().encode(&mut record);
        let bare = PairVerifier::new(&[], 1.0).unwrap();
        assert_eq!(
            bare.compare(Ok(Some(record.clone())), &mut scratch),
            PairOutcome::Accepted(None)
        );
        let verifier = PairVerifier::new(&record, 1.0).unwrap();
        assert_eq!(
            verifier.compare(Ok(Some(Vec::new())), &mut scratch),
            PairOutcome::Accepted(None)
        );
        assert_eq!(verifier.compare(Ok(None), &mut scratch), PairOutcome::Removed);
        assert_eq!(verifier.compare(Ok(Some(record)), &mut scratch), PairOutcome::Refused);
        for damaged in [Ok(Some(vec![1])), Err(Error::data_loss("damaged"))] {
            assert_eq!(verifier.compare(damaged, &mut scratch), PairOutcome::Unreadable);
        }
        assert!(PairVerifier::new(&[1], 1.0).is_err());
    }
}
