//! Queries and their outcomes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use base::{Error, Result};
use matching::index::{EdgeQuery, EdgeScratch};
use matching::{MatchOptions, Probe, Scratch, score};

use super::super::Impression;
use super::gallery::Gallery;

/// Number of rows that a thread of the whole comparison takes at a time.
const CHUNK: usize = 4096;
/// Number of queries whose scores show the difference between real and made-up impostors.
const IMPOSTOR_QUERIES: usize = 100;
/// Number of made-up prints that each such query is compared with.
const IMPOSTOR_ROWS: usize = 200;

/// A query whose finger is enrolled.
#[derive(Clone, Copy)]
pub(super) struct EnrolledQuery<'a> {
    pub(super) query: &'a Impression,
    /// Row of its finger.
    pub(super) row: u32,
}

/// Outcome of a query.
#[derive(Clone, Debug, Default)]
pub(super) struct IdentifyOutcome {
    pub(super) database: String,
    /// Score of the finger's enrolled print.
    pub(super) genuine: f32,
    /// True if the finger's enrolled print was a candidate.
    pub(super) found: bool,
    /// Highest score of another candidate.
    pub(super) impostor: f32,
    /// Number of prints compared exactly.
    pub(super) compared: usize,
    /// Time of the whole query in milliseconds.
    pub(super) ms: f64,
    /// Time of the index alone in milliseconds.
    pub(super) index_ms: f64,
    /// True if no print of the gallery has a score as high; `None` if the prints were not compared.
    pub(super) first_of_all: Option<bool>,
}

impl IdentifyOutcome {
    /// Returns true if the right finger came first.
    pub(super) fn rank1(&self) -> bool {
        self.found && self.leads()
    }

    /// Returns true if the right finger's score is above those of all other candidates.
    pub(super) fn leads(&self) -> bool {
        self.genuine > self.impostor
    }
}

/// Returns all impressions but the first of each finger, or `count` of them at equal distances.
pub(super) fn trials(
    impressions: &[Impression],
    count: Option<usize>,
) -> Result<Vec<EnrolledQuery<'_>>> {
    let mut all = Vec::new();
    let mut row = 0;
    for pair in impressions.windows(2) {
        if pair[1].same_finger(&pair[0]) {
            all.push(EnrolledQuery { query: &pair[1], row });
        } else {
            row += 1;
        }
    }
    if all.is_empty() {
        return Err(Error::invalid("--dir: no finger has two impressions"));
    }
    let count = count.unwrap_or(all.len()).clamp(1, all.len());
    Ok((0..count).map(|at| all[at * all.len() / count]).collect())
}

/// Scores of impostors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Impostors {
    pub(super) enrolled_p99: f32,
    pub(super) background_p99: f32,
}

/// Scores some queries against prints of other fingers, enrolled and made up.
pub(super) fn impostors(gallery: &Gallery, trials: &[EnrolledQuery<'_>]) -> Result<Impostors> {
    let mut scratch = Scratch::new();
    let mut enrolled = Vec::new();
    let mut background = Vec::new();
    for trial in trials.iter().step_by(trials.len().div_ceil(IMPOSTOR_QUERIES)) {
        let probe = Probe::new(&trial.query.graph, MatchOptions::default());
        for row in (0..gallery.enrolled).filter(|&row| row != trial.row as usize) {
            enrolled.push(score(&probe, gallery.record(row), &mut scratch)?);
        }
        for row in (gallery.enrolled..gallery.len()).take(IMPOSTOR_ROWS) {
            background.push(score(&probe, gallery.record(row), &mut scratch)?);
        }
    }
    Ok(Impostors { enrolled_p99: p99(enrolled), background_p99: p99(background) })
}

fn p99(mut scores: Vec<f32>) -> f32 {
    scores.sort_by(f32::total_cmp);
    scores.get(scores.len() * 99 / 100).copied().unwrap_or(0.0)
}

/// Answers all queries, one after the other on this thread.
pub(super) fn identify(
    gallery: &Gallery,
    trials: &[EnrolledQuery<'_>],
    penetration: f64,
) -> Result<Vec<IdentifyOutcome>> {
    let most = ((gallery.len() as f64 * penetration / 100.0) as usize).max(1);
    let mut scratch = EdgeScratch::default();
    let mut exact = Scratch::new();
    let mut hits = Vec::new();
    let mut outcomes = Vec::new();
    for trial in trials {
        let start = Instant::now();
        let query = EdgeQuery::new(&trial.query.graph);
        gallery.index.search(&query, most, |_| true, &mut scratch, &mut hits);
        let index_ms = start.elapsed().as_secs_f64() * 1e3;
        let probe = Probe::new(&trial.query.graph, MatchOptions::default());
        let mut outcome = IdentifyOutcome {
            database: trial.query.database.clone(),
            ..IdentifyOutcome::default()
        };
        // Rows are neighbours in memory; in order they are prefetched.
        hits.sort_unstable_by_key(|hit| hit.row);
        for hit in &hits {
            let score = score(&probe, gallery.record(hit.row as usize), &mut exact)?;
            if hit.row == trial.row {
                outcome.found = true;
            } else {
                outcome.impostor = outcome.impostor.max(score);
            }
        }
        outcome.genuine = score(&probe, gallery.record(trial.row as usize), &mut exact)?;
        outcome.compared = hits.len();
        outcome.ms = start.elapsed().as_secs_f64() * 1e3;
        outcome.index_ms = index_ms;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Compares `count` of the queries with the whole gallery, on all cores.
pub(super) fn compare_all(
    gallery: &Gallery,
    trials: &[EnrolledQuery<'_>],
    outcomes: &mut [IdentifyOutcome],
    count: usize,
) -> Result<()> {
    let count = count.min(trials.len());
    for number in 0..count {
        // Spread evenly over the queries.
        let at = number * trials.len() / count;
        let outcome = &mut outcomes[at];
        // A query that is not first among the candidates is not first among all prints.
        let leads = outcome.leads();
        outcome.first_of_all = Some(leads && leads_all(gallery, &trials[at], outcome.genuine)?);
    }
    Ok(())
}

/// Returns true if no other print has a score of `genuine` or more.
fn leads_all(gallery: &Gallery, trial: &EnrolledQuery<'_>, genuine: f32) -> Result<bool> {
    let probe = Probe::new(&trial.query.graph, MatchOptions::default());
    let next = AtomicUsize::new(0);
    let work = || -> Result<bool> {
        let mut scratch = Scratch::new();
        loop {
            let first = next.fetch_add(CHUNK, Ordering::Relaxed);
            if first >= gallery.len() {
                return Ok(true);
            }
            for row in first..(first + CHUNK).min(gallery.len()) {
                if row != trial.row as usize
                    && score(&probe, gallery.record(row), &mut scratch)? >= genuine
                {
                    next.store(gallery.len(), Ordering::Relaxed);
                    return Ok(false);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut leads = true;
        for thread in running {
            leads &= thread.join().map_err(|_| Error::internal("a thread failed"))??;
        }
        Ok(leads)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use matching::synthetic;

    #[test]
    fn made_up_fingers_are_identified() {
        let impression = |finger: u64, copy: u64| {
            let graph = synthetic::distorted(&synthetic::impression(finger), copy);
            Impression::new("made up".into(), finger.to_string(), graph)
        };
        let impressions: Vec<Impression> = (0..6)
            .flat_map(|finger| (1..4).map(move |copy| (finger, copy)))
            .map(|(finger, copy)| impression(finger, copy))
            .collect();
        let gallery = Gallery::new(&impressions, 400).unwrap();
        assert_eq!((gallery.enrolled, gallery.len()), (6, 406));
        let trials = trials(&impressions, None).unwrap();
        assert_eq!(
            trials.iter().map(|trial| trial.row).collect::<Vec<_>>(),
            [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
        );
        let mut outcomes = identify(&gallery, &trials, 5.0).unwrap();
        compare_all(&gallery, &trials, &mut outcomes, 3).unwrap();
        assert!(outcomes.iter().all(|outcome| outcome.compared <= 20));
        assert!(outcomes.iter().filter(|outcome| outcome.rank1()).count() >= 6);
        let compared = outcomes.iter().filter(|outcome| outcome.first_of_all.is_some()).count();
        assert_eq!(compared, 3);
        assert_eq!(super::trials(&impressions, Some(2)).unwrap().len(), 2);
    }
}
