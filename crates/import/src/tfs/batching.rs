//! TensorFlow Serving's batching parameters as a schedule.

use std::time::Duration;

use base::{Error, Result};
use engine::{BATCH_MAX, BUCKETS_MAX, QUEUE_DELAY_MAX, ScheduleMode, ScheduleOptions};
use protocol::tensorflow::serving::BatchingParameters;

/// TensorFlow Serving's default of `max_batch_size`.
const MAX_BATCH_DEFAULT: i64 = 1000;
/// TensorFlow Serving's default of `max_enqueued_batches`.
const ENQUEUED_DEFAULT: i64 = 10;
/// Maximum number of queued requests.
const QUEUE_MAX: usize = 1 << 20;

/// A schedule, and the parts that it cannot express.
pub(crate) struct ConvertedBatching {
    pub(crate) schedule: ScheduleOptions,
    pub(crate) notes: Vec<String>,
}

/// Converts batching parameters. `threads` is the number of inference threads.
///
/// # Errors
/// `InvalidArgument` for values that TensorFlow Serving refuses too.
pub(crate) fn convert(
    parameters: &BatchingParameters,
    threads: usize,
) -> Result<ConvertedBatching> {
    let mut notes = Vec::new();
    let size = positive("max_batch_size", parameters.max_batch_size, MAX_BATCH_DEFAULT)?;
    let execution = match parameters.enable_large_batch_splitting {
        Some(true) => parameters.max_execution_batch_size.unwrap_or(0),
        _ => 0,
    };
    let wanted = if execution > 0 { size.min(execution as usize) } else { size };
    let allowed = allowed_sizes(parameters, size)?;
    // The largest size that a batch can have, or can be rounded up to.
    let most = allowed.last().copied().unwrap_or(BATCH_MAX);
    let max_batch = wanted.min(most);
    if max_batch < wanted {
        notes.push(format!("max_batch_size is {wanted}; batches have at most {most} items"));
    }
    let micros = parameters.batch_timeout_micros.unwrap_or(0).max(0) as u64;
    let delay = Duration::from_micros(micros);
    if delay > QUEUE_DELAY_MAX {
        notes.push(format!(
            "batch_timeout_micros is {micros}; requests wait at most {} s for others",
            QUEUE_DELAY_MAX.as_secs()
        ));
    }
    let batches =
        positive("max_enqueued_batches", parameters.max_enqueued_batches, ENQUEUED_DEFAULT)?;
    if parameters.pad_variable_length_inputs {
        notes.push(
            "pad_variable_length_inputs has no effect: requests of different shapes run apart and none fails, \
             and an answer must not depend on the padding for other requests; to merge them, name their inputs \
             in [schedule.inputs] of a millpond.toml beside the versions"
                .to_owned(),
        );
    }
    if parameters.thread_pool_name.as_ref().is_some_and(|name| !name.is_empty()) {
        notes.push(
            "thread_pool_name has no effect: all models share the inference threads".to_owned(),
        );
    }
    Ok(ConvertedBatching {
        schedule: ScheduleOptions {
            mode: ScheduleMode::Async,
            threads: runs(parameters, threads)?,
            max_batch,
            max_queue_delay: delay.min(QUEUE_DELAY_MAX),
            preferred_batch_sizes: allowed.iter().copied().filter(|it| *it <= max_batch).collect(),
            allowed_batch_sizes: allowed,
            queue_max: Some(size.saturating_mul(batches).min(QUEUE_MAX)),
            ..ScheduleOptions::default()
        },
        notes,
    })
}

/// Returns the maximum number of concurrent runs; `None` allows one for each thread.
fn runs(parameters: &BatchingParameters, threads: usize) -> Result<Option<usize>> {
    let all = i64::try_from(threads).unwrap_or(i64::MAX);
    let wanted = positive("num_batch_threads", parameters.num_batch_threads, all)?;
    Ok((wanted < threads).then_some(wanted))
}

/// Returns `allowed_batch_sizes` up to [`BATCH_MAX`]. They must ascend and end with `size`, the
/// value of `max_batch_size`.
fn allowed_sizes(parameters: &BatchingParameters, size: usize) -> Result<Vec<usize>> {
    let sizes = &parameters.allowed_batch_sizes;
    let number = |number: &i64| usize::try_from(*number).ok().filter(|number| *number > 0);
    let sizes: Option<Vec<usize>> = sizes.iter().map(number).collect();
    let sizes = sizes.filter(|sizes| sizes.is_sorted_by(|a, b| a < b)).ok_or_else(|| {
        Error::invalid("allowed_batch_sizes entries must be monotonically increasing")
    })?;
    let Some(&last) = sizes.last() else { return Ok(sizes) };
    if last != size {
        return Err(Error::invalid(format!(
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was {last}; expected {size}"
        )));
    }
    let usable: Vec<usize> = sizes.into_iter().filter(|size| *size <= BATCH_MAX).collect();
    if usable.is_empty() || usable.len() > BUCKETS_MAX {
        return Err(Error::invalid(format!(
            "allowed_batch_sizes has {} entries up to {BATCH_MAX}; 1 to {BUCKETS_MAX} can be used",
            usable.len()
        )));
    }
    Ok(usable)
}

fn positive(name: &str, value: Option<i64>, default: i64) -> Result<usize> {
    let value = value.unwrap_or(default);
    usize::try_from(value)
        .ok()
        .filter(|value| *value > 0)
        .ok_or_else(|| Error::invalid(format!("{name} must be positive; was {value}")))
}

#[cfg(test)]
mod tests {
    use protocol::tfs::text;

    use super::*;

    fn of(text: &str) -> Result<ConvertedBatching> {
        convert(&text::parse(text).unwrap(), 4)
    }

    #[test]
    fn parameters_become_a_schedule() {
        let reference = "max_batch_size { value: 128 }\nbatch_timeout_micros { value: 0 }\n\
                         max_enqueued_batches { value: 1000000 }\nnum_batch_threads { value: 8 }\n";
        let ConvertedBatching { schedule, notes } = of(reference).unwrap();
        assert_eq!((schedule.mode, schedule.max_batch), (ScheduleMode::Async, 128));
        assert_eq!((schedule.threads, schedule.queue_max), (None, Some(QUEUE_MAX)));
        assert!(notes.is_empty(), "{notes:?}");
        let text = "max_batch_size { value: 8 } batch_timeout_micros { value: 2000 } num_batch_threads { value: 2 } \
                    allowed_batch_sizes: [2, 8] pad_variable_length_inputs: true";
        let ConvertedBatching { schedule, notes } = of(text).unwrap();
        assert_eq!(schedule.max_queue_delay, Duration::from_millis(2));
        schedule.check().unwrap();
        assert_eq!((schedule.threads, schedule.queue_max), (Some(2), Some(80)));
        assert_eq!(schedule.allowed_batch_sizes, [2, 8]);
        assert_eq!(schedule.preferred_batch_sizes, [2, 8]);
        assert!(
            notes.len() == 1 && notes[0].starts_with("pad_variable_length_inputs has no effect: "),
            "{notes:?}"
        );
        let large = of("max_batch_size { value: 100000 } batch_timeout_micros { value: 60000000 }");
        let ConvertedBatching { schedule, notes } = large.unwrap();
        schedule.check().unwrap();
        assert_eq!(notes.len(), 2, "{notes:?}");
        let split = "max_batch_size { value: 64 } enable_large_batch_splitting { value: true } \
                     max_execution_batch_size { value: 16 } allowed_batch_sizes: [16, 64]";
        let split = of(split).unwrap().schedule;
        split.check().unwrap();
        assert_eq!((split.max_batch, split.preferred_batch_sizes), (16, vec![16]));
        assert_eq!(split.allowed_batch_sizes, [16, 64]);
        let large = of("max_batch_size { value: 8192 } allowed_batch_sizes: [64, 1024, 8192]");
        let ConvertedBatching { schedule, notes } = large.unwrap();
        schedule.check().unwrap();
        assert_eq!(schedule.allowed_batch_sizes, [64, 1024]);
        assert!(notes[0].contains("at most 1024 items"), "{notes:?}");
    }

    #[test]
    fn values_that_the_reference_refuses() {
        for text in [
            "max_batch_size { value: 0 }",
            "max_batch_size { value: 8 } allowed_batch_sizes: [2, 4]",
            "max_batch_size { value: 8 } allowed_batch_sizes: [4, 2, 8]",
            "num_batch_threads { value: -1 }",
            "max_batch_size { value: 8192 } allowed_batch_sizes: [8192]",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
