//! Restricts this process to some of the machine's cores.

use command_line::exit::{CommandError, CommandResult};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Restricts the calling thread, and every thread it starts later, to the first `count` of its
/// allowed cores. Call it before any thread is started.
///
/// # Errors
/// Returns a usage error if fewer cores are allowed, and an error if the system refuses.
pub(crate) fn restrict(count: usize) -> CommandResult {
    let refused =
        |error: rustix::io::Errno| CommandError::failed(format!("--cores {count}: {error}"));
    let allowed = sched_getaffinity(None).map_err(refused)?;
    let first = first(&allowed, count).ok_or_else(|| {
        CommandError::usage(format!(
            "--cores {count}: this process may use {} cores",
            allowed.count()
        ))
    })?;
    sched_setaffinity(None, &first).map_err(refused)
}

/// Returns the first `count` of `allowed`; `None` if it has fewer or `count` is 0.
fn first(allowed: &CpuSet, count: usize) -> Option<CpuSet> {
    let mut chosen = CpuSet::new();
    let cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    cores.take(count).for_each(|core| chosen.set(core));
    (count > 0 && chosen.count() as usize == count).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cores_are_chosen() {
        let mut allowed = CpuSet::new();
        [1, 4, 7].into_iter().for_each(|core| allowed.set(core));
        let chosen = first(&allowed, 2).unwrap();
        assert!(chosen.is_set(1) && chosen.is_set(4) && chosen.count() == 2);
        assert!(first(&allowed, 4).is_none() && first(&allowed, 0).is_none());
    }
}
