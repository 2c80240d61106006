//! Processor time that a control group allows.
//!
//! A limit on processor time ("limits: cpu" of a container) is a quota for each period, usually of
//! 100 ms. When all threads of the group together have used it up, all of them stop until the next
//! period, at any priority. Loads are not delayed while the quota is nearly used up (ADR 0002 has
//! the reason).

use std::path::Path;
use std::time::Duration;

use crate::control_group;

/// Tightest limit on processor time of this process's control group and its ancestors, of version 2
/// or 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuQuota {
    /// Allowed cores, above zero.
    pub cores: f64,
    /// Time for which the used-up quota has stopped the group's threads since the group was
    /// created, summed over cores.
    pub throttled: Duration,
}

impl CpuQuota {
    /// Returns the limit of this process, or `None` if there is none or it cannot be read.
    pub fn of_this_process() -> Option<CpuQuota> {
        let membership = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        CpuQuota::find(Path::new(control_group::ROOT), &membership)
    }

    /// Finds the limit under `root`. `membership` is the text of /proc/self/cgroup.
    fn find(root: &Path, membership: &str) -> Option<CpuQuota> {
        let second = control_group::path(membership, "")
            .into_iter()
            .flat_map(|path| control_group::directories(root, path));
        let version_1 = root.join("cpu");
        let first = control_group::path(membership, "cpu")
            .into_iter()
            .flat_map(|path| control_group::directories(&version_1, path));
        second
            .filter_map(|group| CpuQuota::version_2(&group))
            .chain(first.filter_map(|group| CpuQuota::version_1(&group)))
            .min_by(|one, other| one.cores.total_cmp(&other.cores))
    }

    fn version_2(group: &Path) -> Option<CpuQuota> {
        let limit = read(group, "cpu.max")?;
        let (quota, period) = limit.trim().split_once(' ')?;
        let throttled = Duration::from_micros(stat(group, "throttled_usec"));
        Some(CpuQuota { cores: cores(quota, period)?, throttled })
    }

    fn version_1(group: &Path) -> Option<CpuQuota> {
        let quota = read(group, "cpu.cfs_quota_us")?;
        let period = read(group, "cpu.cfs_period_us")?;
        let throttled = Duration::from_nanos(stat(group, "throttled_time"));
        Some(CpuQuota { cores: cores(&quota, &period)?, throttled })
    }
}

fn read(group: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(group.join(name)).ok()
}

/// Parses a quota. "200000" in "100000" is two cores. "max" and -1 mean no limit.
fn cores(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// Returns a figure of the group's cpu.stat, or 0 if it is absent.
fn stat(group: &Path, name: &str) -> u64 {
    let text = read(group, "cpu.stat").unwrap_or_default();
    let line = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    text.lines().find_map(line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(name), text).unwrap();
    }

    /// Creates a group of version 2 that may use `quota` microseconds of every 100 ms.
    fn group(dir: &Path, quota: &str, throttled_us: u64) {
        write(dir, "cpu.max", &format!("{quota} 100000\n"));
        write(
            dir,
            "cpu.stat",
            &format!("usage_usec 5\nnr_periods 4\nnr_throttled 2\nthrottled_usec {throttled_us}\n"),
        );
    }

    #[test]
    fn the_tightest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        group(&root.path().join("pod"), "150000", 700);
        group(&root.path().join("pod/box"), "200000", 20);
        let quota = CpuQuota::find(root.path(), "12:cpu:/x\n0::/pod/box\n");
        assert_eq!(quota, Some(CpuQuota { cores: 1.5, throttled: Duration::from_micros(700) }));
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_root() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "50000", 1);
        for membership in ["0::/", "0::/gone/from/here", "0::/../../other"] {
            assert_eq!(CpuQuota::find(root.path(), membership).unwrap().cores, 0.5, "{membership}");
        }
    }

    #[test]
    fn no_limit_is_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(CpuQuota::find(root.path(), "0::/\n").is_none());
        for quota in ["max", "-1", "0", "many"] {
            group(root.path(), quota, 1);
            assert!(CpuQuota::find(root.path(), "0::/\n").is_none(), "{quota}");
        }
        assert!(CpuQuota::find(root.path(), "").is_none());
    }

    #[test]
    fn version_1_has_a_file_for_each_number() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("cpu/box");
        write(&dir, "cpu.cfs_quota_us", "250000\n");
        write(&dir, "cpu.cfs_period_us", "100000\n");
        write(&dir, "cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 5000\n");
        let quota = CpuQuota::find(root.path(), "4:cpu,cpuacct:/box\n0::/\n");
        assert_eq!(quota, Some(CpuQuota { cores: 2.5, throttled: Duration::from_micros(5) }));
    }
}
