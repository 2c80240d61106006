//! Control groups of this process, of version 2 or 1.

use std::path::{Path, PathBuf};

/// Usual mount point of control groups.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";

/// Returns the path of the group that has `controller`, such as "memory" of version 1, or "" for
/// version 2. `membership` is the text of /proc/self/cgroup.
pub(crate) fn path<'a>(membership: &'a str, controller: &str) -> Option<&'a str> {
    membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

/// Returns the directories of the group `path` below `root` and of its ancestors, nearest first. In
/// a container the path may be the host's and not exist. Then `root` is the container's own group.
pub(crate) fn directories(root: &Path, path: &str) -> Vec<PathBuf> {
    let group = root.join(path.trim_start_matches('/'));
    let group = if group.is_dir() && !path.contains("..") { group } else { root.to_owned() };
    group.ancestors().take_while(|group| group.starts_with(root)).map(Path::to_owned).collect()
}
