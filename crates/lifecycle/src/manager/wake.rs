//! Moments at which the `lifecycle` thread acts without a message, and its wait for the first load.
//! Both must cost little on a server with thousands of models.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::PAUSE_MAX;

/// Next work that no message announces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NextWork {
    /// Time until then.
    pub(super) pause: Duration,
    /// True if the next steps of all models must be decided then.
    pub(super) decides_all: bool,
}

impl NextWork {
    /// Returns the earliest time of the next work: a decision about a model after `decision`, the
    /// regular decision about all models, or work of `others`. That is for example a queued load or
    /// the wait of a request.
    pub(super) fn earliest(
        decision: Option<Duration>,
        others: impl IntoIterator<Item = Duration>,
    ) -> NextWork {
        let decision = decision.unwrap_or(PAUSE_MAX).min(PAUSE_MAX);
        let pause = others.into_iter().fold(decision, Duration::min);
        NextWork { pause, decides_all: pause == decision }
    }
}

/// Returns the first key from `from` on whose value passes `is`. After the last key follows the
/// first one.
pub(super) fn first_from<'a, T>(
    map: &'a BTreeMap<Arc<str>, T>,
    from: &str,
    is: impl Fn(&T) -> bool,
) -> Option<&'a Arc<str>> {
    let later = map.range::<str, _>((Bound::Included(from), Bound::Unbounded));
    let earlier = map.range::<str, _>((Bound::Unbounded, Bound::Excluded(from)));
    later.chain(earlier).find(|(_, value)| is(value)).map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_decisions_concern_all_models() {
        let soon = PAUSE_MAX / 20;
        let later = PAUSE_MAX / 2;
        let earliest = |decision, others: &[Duration]| {
            let NextWork { pause, decides_all } =
                NextWork::earliest(decision, others.iter().copied());
            (pause, decides_all)
        };
        assert_eq!(earliest(None, &[]), (PAUSE_MAX, true));
        assert_eq!(earliest(None, &[later, soon]), (soon, false), "a load waits for memory");
        assert_eq!(earliest(Some(later), &[soon]), (soon, false));
        assert_eq!(earliest(Some(soon), &[later]), (soon, true), "a failed load is tried again");
        assert_eq!(earliest(Some(2 * PAUSE_MAX), &[]), (PAUSE_MAX, true));
    }

    /// The wait for the first load asks after each step of each model.
    #[test]
    fn a_search_that_continues_reads_each_model_once() {
        const MODELS: usize = 1000;
        let name = |number: usize| -> Arc<str> { format!("m{number:04}").into() };
        let mut loading: BTreeMap<Arc<str>, bool> =
            (0..MODELS).map(|number| (name(number), true)).collect();
        let reads = Cell::new(0);
        let is_loading = |loading: &bool| {
            reads.set(reads.get() + 1);
            *loading
        };
        let mut awaited: Arc<str> = "".into();
        for number in 0..MODELS {
            awaited = first_from(&loading, &awaited, is_loading).unwrap().clone();
            assert_eq!(awaited, name(number));
            loading.insert(awaited.clone(), false);
        }
        assert!(reads.get() <= 2 * MODELS, "{}", reads.get());
        loading.insert(name(7), true);
        assert_eq!(first_from(&loading, &awaited, is_loading), Some(&name(7)), "an earlier one");
        loading.insert(name(7), false);
        assert_eq!(first_from(&loading, &awaited, is_loading), None);
    }
}
