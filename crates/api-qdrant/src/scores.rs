//! Converts vectors and scores between clients, which use distances, and collections, which use
//! similarities.

use base::{Error, Result};
use search::Metric;
use search::registry::CollectionSettings;

use crate::image_block::check_embeddings;

/// A vector with a norm below this counts as zero and is not normalised.
const NORM_MIN: f32 = f32::EPSILON;

/// Maximum square of the length of a query's vector. Points have the same limit: products of longer
/// vectors overflow.
const SQUARE_MAX: f64 = 1e36;

/// Returns the score that clients see for a similarity, which is higher for nearer points. The
/// score of L2 is the distance.
pub(crate) fn score(metric: Metric, similarity: f32) -> f32 {
    match metric {
        Metric::Cosine | Metric::Dot => similarity,
        Metric::L2 => (-similarity).max(0.0).sqrt(),
    }
}

/// Returns the similarity for a score of [`score`].
pub(crate) fn similarity(metric: Metric, score: f32) -> f32 {
    match metric {
        Metric::Cosine | Metric::Dot => score,
        Metric::L2 => -(score * score),
    }
}

/// Returns true if a score is better than `threshold`. As in Qdrant, an equal score is not.
/// Distances are better the smaller they are.
pub(crate) fn passes(metric: Metric, score: f32, threshold: Option<f32>) -> bool {
    threshold.is_none_or(|threshold| match metric {
        Metric::Cosine | Metric::Dot => score > threshold,
        Metric::L2 => score < threshold,
    })
}

/// Checks that `using` is the name of the collection's vector, and that queries can compare it.
///
/// # Errors
/// `InvalidArgument` for any other name, and for a collection of fingerprints without embeddings.
pub fn check_using(settings: &CollectionSettings, using: &str) -> Result<()> {
    if using == settings.vector_name {
        return check_embeddings(settings);
    }
    Err(Error::invalid(format!(
        "using: Not existing vector name error: \"{using}\"; the collection's vector is called \"{}\"",
        settings.vector_name
    )))
}

/// Returns a vector as the collection stores it: for the cosine, with length one.
///
/// # Errors
/// `InvalidArgument` for a wrong number of values.
pub(crate) fn embedding(settings: &CollectionSettings, mut values: Vec<f32>) -> Result<Vec<f32>> {
    if values.len() != settings.dims {
        return Err(Error::invalid(format!(
            "Vector dimension error: expected dim: {}, got {}",
            settings.dims,
            values.len()
        )));
    }
    if settings.metric == Metric::Cosine {
        let norm = values.iter().map(|value| value * value).sum::<f32>().sqrt();
        if norm > NORM_MIN && norm.is_finite() {
            values.iter_mut().for_each(|value| *value /= norm);
        }
    }
    Ok(values)
}

/// Checks that the similarities of a query's vector to points are finite. JSON cannot express other
/// scores. Searches of the index check their vectors themselves.
///
/// # Errors
/// `InvalidArgument` for a value that is not finite, and for a vector that is too long.
pub(crate) fn check_comparable(vector: &[f32]) -> Result<()> {
    if let Some(at) = vector.iter().position(|value| !value.is_finite()) {
        return Err(Error::invalid(format!(
            "the query's value at dimension {at} is not a finite number"
        )));
    }
    let square: f64 = vector.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    if square > SQUARE_MAX {
        return Err(Error::invalid(format!(
            "the query's vector has the length {:.1e}, but it must be at most {:.1e}; scale it",
            square.sqrt(),
            SQUARE_MAX.sqrt()
        )));
    }
    Ok(())
}
