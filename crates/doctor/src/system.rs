//! The kernel and its limits.

use crate::{Check, CheckVerdict, read};

/// Oldest kernel that Millpond was tested on.
const KERNEL_MIN: (u32, u32) = (5, 4);
/// Number of descriptors of the server besides its connections: files, timers, signals, engines.
const DESCRIPTORS_OWN: u64 = 256;
/// Default of `--max-connections`.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Runs all checks of kernel and limits.
pub(crate) fn checks(connections: fn(u64) -> usize) -> Vec<Check> {
    let limits = read("/proc/self/limits").unwrap_or_default();
    vec![
        open_files(open_file_limit(&limits), connections),
        kernel(read("/proc/sys/kernel/osrelease").as_deref()),
    ]
}

/// Returns the hard limit, since the server raises the soft limit to it.
fn open_file_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    match line.split_whitespace().nth(4)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn open_files(limit: Option<u64>, connections: fn(u64) -> usize) -> Check {
    let name = "open files";
    let Some(limit) = limit else {
        return Check::warn(name, "unknown", "The limit could not be read from /proc/self/limits.");
    };
    let found = if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() };
    if limit < 2 * DESCRIPTORS_OWN {
        let meaning =
            "Too few for the server itself; raise it with `ulimit -Hn 65536` or LimitNOFILE=65536.";
        return Check::fail(name, found, meaning);
    }
    let room = connections(limit);
    if room < CONNECTIONS_MAX {
        let meaning = format!(
            "Room for about {room} connections per listener instead of 16384; give --max-connections {room}, or raise the \
             limit with LimitNOFILE=65536 in the service's unit."
        );
        return Check::warn(name, found, meaning);
    }
    Check::ok(name, found, "Enough for 16384 connections on each listener.")
}

fn kernel(release: Option<&str>) -> Check {
    let number =
        |text: Option<&str>| text?.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok();
    let mut parts = release.unwrap_or_default().splitn(3, '.');
    let version = number(parts.next()).zip(number(parts.next()));
    let known = version.is_some_and(|version| version >= KERNEL_MIN);
    let meaning = if known {
        "Has the features that parameter memory, idle-priority loaders and direct reads need."
    } else {
        "Older than Linux 5.4, which is untested; huge pages and idle priority may be refused."
    };
    Check::new("kernel", CheckVerdict::warn_unless(known), release.unwrap_or("unknown"), meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_of_open_files_is_a_finding() {
        let text = "Limit    Soft Limit  Hard Limit  Units\nMax open files            1024                20000                files\n";
        assert_eq!(open_file_limit(text), Some(20000));
        assert_eq!(open_file_limit("Max open files  1024  unlimited  files"), Some(u64::MAX));
        let enough = |_| CONNECTIONS_MAX;
        assert_eq!(open_files(Some(65536), enough).verdict, CheckVerdict::Ok);
        let tight = open_files(Some(20000), |_| 7872);
        assert!(
            tight.verdict == CheckVerdict::Warn && tight.meaning.contains("--max-connections 7872")
        );
        assert_eq!(open_files(Some(64), enough).verdict, CheckVerdict::Fail);
    }

    #[test]
    fn an_old_kernel_is_a_finding() {
        assert_eq!(kernel(Some("6.12.8-generic")).verdict, CheckVerdict::Ok);
        assert_eq!(kernel(Some("5.4")).verdict, CheckVerdict::Ok);
        assert_eq!(kernel(Some("4.18.0-553.el8")).verdict, CheckVerdict::Warn);
        assert_eq!(kernel(None).verdict, CheckVerdict::Warn);
    }
}
