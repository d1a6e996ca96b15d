//! Limits of hugepages that control groups set (cgroups(7)), for messages: the machine can have free hugepages that
//! this process may not use.

use std::fs;
use std::path::{Path, PathBuf};

/// A limit of hugepages of 2 MiB, of this process's control group or of one above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// File of the limit.
    pub file: PathBuf,
    /// Bytes that are left below the limit.
    pub left_bytes: u64,
}

/// Files of a limit and of what counts against it, of the versions 2 and 1: pages in use, and pages that a mapping
/// reserves.
const FILES: [(&str, &str); 4] = [
    ("hugetlb.2MB.max", "hugetlb.2MB.current"),
    ("hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.current"),
    ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.usage_in_bytes"),
    ("hugetlb.2MB.rsvd.limit_in_bytes", "hugetlb.2MB.rsvd.usage_in_bytes"),
];

/// Returns the limit that leaves least; `None` if there is none, or none that this process can see.
pub(super) fn least() -> Option<GroupLimit> {
    least_at(Path::new("/"))
}

/// As [`least`], of the machine whose `/proc` and `/sys` are below `root`.
fn least_at(root: &Path) -> Option<GroupLimit> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = groups.lines().filter_map(|line| {
        // cgroups(7): hierarchy, controllers, path; no controllers in version 2.
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let mounts: &[&str] = match controllers {
            "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            _ if controllers.split(',').any(|name| name == "hugetlb") => &["sys/fs/cgroup/hugetlb"],
            _ => return None,
        };
        let above = |mount: &&str| above(&root.join(mount), path);
        mounts.iter().flat_map(above).min_by_key(|limit| limit.left_bytes)
    });
    limits.min_by_key(|limit| limit.left_bytes)
}

/// Returns the limits of a group and of those above it.
fn above(mount: &Path, path: &str) -> Vec<GroupLimit> {
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(mount));
    groups
        .flat_map(|group| FILES.map(|(limit, used)| limit_of(group.join(limit), &group.join(used))))
        .flatten()
        .collect()
}

fn limit_of(file: PathBuf, used: &Path) -> Option<GroupLimit> {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim_end().parse::<u64>().ok();
    // `max` is no number; the version 1 of it is a number larger than any machine.
    let left_bytes = number(&file)?.saturating_sub(number(used)?);
    Some(GroupLimit { file, left_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with the groups of a process and files of limits, each with its content.
    fn machine(groups: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [&[("proc/self/cgroup", groups)], files].concat() {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn least_of(groups: &str, files: &[(&str, &str)]) -> Option<(String, u64)> {
        let root = machine(groups, files);
        let limit = least_at(root.path())?;
        Some((limit.file.strip_prefix(root.path()).unwrap().display().to_string(), limit.left_bytes))
    }

    const UNIT: &str = "sys/fs/cgroup/system.slice/iwarpd.service";

    #[test]
    fn the_limit_of_a_group_above_counts_too() {
        let groups = "0::/system.slice/iwarpd.service\n";
        let own = [
            (format!("{UNIT}/hugetlb.2MB.max"), "8388608\n"),
            (format!("{UNIT}/hugetlb.2MB.current"), "0\n"),
        ];
        let mut files: Vec<_> = own.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        assert_eq!(least_of(groups, &files), Some((format!("{UNIT}/hugetlb.2MB.max"), 8 << 20)));
        files.push(("sys/fs/cgroup/system.slice/hugetlb.2MB.max", "10485760\n"));
        files.push(("sys/fs/cgroup/system.slice/hugetlb.2MB.current", "6291456\n"));
        let above = "sys/fs/cgroup/system.slice/hugetlb.2MB.max".to_owned();
        assert_eq!(least_of(groups, &files), Some((above, 4 << 20)));
    }

    #[test]
    fn reserved_pages_have_a_limit_of_their_own() {
        let files = [
            ("sys/fs/cgroup/a/hugetlb.2MB.max", "max\n"),
            ("sys/fs/cgroup/a/hugetlb.2MB.current", "0\n"),
            ("sys/fs/cgroup/a/hugetlb.2MB.rsvd.max", "4194304\n"),
            ("sys/fs/cgroup/a/hugetlb.2MB.rsvd.current", "8388608\n"),
        ];
        let rsvd = "sys/fs/cgroup/a/hugetlb.2MB.rsvd.max".to_owned();
        assert_eq!(least_of("0::/a\n", &files), Some((rsvd, 0)));
    }

    #[test]
    fn version_1_has_other_files() {
        let files = [
            ("sys/fs/cgroup/hugetlb/b/hugetlb.2MB.limit_in_bytes", "2097152\n"),
            ("sys/fs/cgroup/hugetlb/b/hugetlb.2MB.usage_in_bytes", "0\n"),
        ];
        let limit = "sys/fs/cgroup/hugetlb/b/hugetlb.2MB.limit_in_bytes".to_owned();
        assert_eq!(least_of("7:cpu:/x\n6:hugetlb:/b\n0::/\n", &files), Some((limit, 2 << 20)));
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(least_of("0::/a\n", &[]), None);
        assert_eq!(least_of("", &[]), None);
        assert_eq!(least_of("0::/a\n", &[("sys/fs/cgroup/a/hugetlb.2MB.max", "max\n")]), None);
    }
}
