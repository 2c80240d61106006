//! A control group with a limit on processor time, like that of a container with "limits: cpu".

use std::path::{Path, PathBuf};
use std::process::Command;

use base::{Error, Result};

use crate::machine::is_running;

/// Directory of control groups of version 1.
const VERSION_1: &str = "/sys/fs/cgroup/cpu";
/// Directory of control groups of version 2.
const VERSION_2: &str = "/sys/fs/cgroup";
/// Default period of the kernel and of containers in microseconds.
const PERIOD_US: f64 = 100_000.0;
/// Beginning of a group's name, before the process's id.
const NAME: &str = "millpond-bench-";
/// Minimum that the kernel accepts.
const CORES_MIN: f64 = 0.01;

/// A group of processes that share a limit on processor time. Dropping it removes the group, if it
/// is empty.
#[derive(Debug)]
pub struct CpuGroup {
    dirs: Vec<PathBuf>,
    limit: LimitFile,
}

/// File that holds the limit.
#[derive(Clone, Copy, Debug)]
enum LimitFile {
    Version1,
    Version2,
}

impl CpuGroup {
    /// Creates a group with the time of `cores` cores.
    ///
    /// # Errors
    /// If this process may not create one, or `cores` is out of range.
    pub fn new(cores: f64) -> Result<CpuGroup> {
        let quota = quota_us(cores)?;
        let name = format!("{NAME}{}", std::process::id());
        let version_1 = Path::new(VERSION_1);
        let (limit, dirs, settings) = if version_1.join("cpu.cfs_quota_us").exists() {
            // In version 1, a separate hierarchy counts processor time. It is often another name
            // of the hierarchy that limits the time.
            let account = Path::new(VERSION_1).with_file_name("cpuacct");
            let settings = [
                ("cpu.cfs_period_us", format!("{PERIOD_US}")),
                ("cpu.cfs_quota_us", format!("{quota}")),
            ];
            (
                LimitFile::Version1,
                vec![version_1.join(&name), account.join(&name)],
                settings.to_vec(),
            )
        } else {
            (
                LimitFile::Version2,
                vec![Path::new(VERSION_2).join(&name)],
                vec![("cpu.max", format!("{quota} {PERIOD_US}"))],
            )
        };
        let group = CpuGroup { dirs, limit };
        for dir in &group.dirs {
            dir.parent().into_iter().for_each(remove_abandoned);
            std::fs::create_dir_all(dir).map_err(|e| refused(dir, &e))?;
        }
        for (name, value) in settings {
            let path = group.dirs[0].join(name);
            std::fs::write(&path, value).map_err(|e| refused(&path, &e))?;
        }
        Ok(group)
    }

    /// Changes the limit to the time of `cores` cores.
    ///
    /// # Errors
    /// If the system refuses, or `cores` is out of range.
    pub fn limit(&self, cores: f64) -> Result<()> {
        let quota = quota_us(cores)?;
        let (name, value) = match self.limit {
            LimitFile::Version1 => ("cpu.cfs_quota_us", format!("{quota}")),
            LimitFile::Version2 => ("cpu.max", format!("{quota} {PERIOD_US}")),
        };
        let path = self.dirs[0].join(name);
        std::fs::write(&path, value).map_err(|e| refused(&path, &e))
    }

    /// Returns a command that runs `program` in this group from its first instruction.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        let script = "while [ \"$1\" != -- ]; do echo $$ > \"$1\" || exit 1; shift; done; shift; exec \"$@\"";
        command.args(["-c", script, "sh"]);
        command.args(self.dirs.iter().map(|dir| dir.join("cgroup.procs"))).arg("--").arg(program);
        command
    }
}

/// Removes the empty groups in `parent` of processes that have ended. A process that a signal ends
/// leaves its group.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !is_running(pid)) {
            // A group with a process is not empty.
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Returns the quota of `cores` cores in microseconds.
fn quota_us(cores: f64) -> Result<f64> {
    if !(CORES_MIN..=1e4).contains(&cores) {
        return Err(Error::invalid(format!("a limit is {CORES_MIN} to 10000 cores")));
    }
    Ok((cores * PERIOD_US).round())
}

fn refused(path: &Path, error: &std::io::Error) -> Error {
    Error::io(path, error)
        .context("a limit on processor time needs root and a writable control group")
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // A group with a running server is not empty. It stays.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_ended_processes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let own = format!("{NAME}{}", std::process::id());
        let ended = format!("{NAME}{}", u32::MAX);
        for name in [own.as_str(), &ended, "other-4294967295"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        remove_abandoned(dir.path());
        assert!(path(&own).exists() && path("other-4294967295").exists());
        assert!(!path(&ended).exists());
    }

    #[test]
    fn a_program_runs_in_its_group() {
        assert!(CpuGroup::new(0.0).is_err() && CpuGroup::new(f64::NAN).is_err());
        // Without the right to make groups, the test can only check the error.
        let group = match CpuGroup::new(1.5) {
            Ok(group) => group,
            Err(error) => return assert!(error.to_string().contains("needs root"), "{error}"),
        };
        let run = group.command(Path::new("/bin/cat")).arg("/proc/self/cgroup").output().unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        let name = format!("/millpond-bench-{}", std::process::id());
        assert!(text.contains(&name), "{text} {}", String::from_utf8_lossy(&run.stderr));
        let dir = group.dirs[0].clone();
        drop(group);
        assert!(!dir.exists());
    }
}
