//! How much memory strangers may make this program keep, and how much of that each purpose gets.

use std::fs;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};

use crate::config;

/// Without a configured ceiling, it is this fraction (1/N) of what the system allows: the rest is for the program itself, for
/// what it makes in passing, and for sockets.
const OF_SYSTEM: usize = 2;
/// What a connection takes with its buffers.
const CONNECTION_BYTES: usize = 18 << 10;
/// The least ceiling that can be configured or derived: below this, the program itself would not fit.
const LEAST_BYTES: usize = 16 << 20;

/// Upper bounds in bytes. Together they stay below the ceiling, because a list is copied while it is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The registry's servers with all that they say of themselves.
    pub servers: usize,
    /// Rendered lists, including those that slow readers have not taken yet.
    pub lists: usize,
    /// Changes that readers of events have not been told yet.
    pub changes: usize,
    /// How many connections fit.
    pub connections: usize,
}

impl Memory {
    pub fn of(guard: &config::Guard) -> Memory {
        let ceiling = match guard.memory_bytes_max {
            0 => allowed_by_system() / OF_SYSTEM,
            configured => configured,
        };
        Memory::within(ceiling.max(LEAST_BYTES), guard.list_bytes_held_max)
    }

    fn within(ceiling: usize, lists_max: usize) -> Memory {
        Memory {
            servers: ceiling / 8,
            lists: lists_max.min(ceiling / 4),
            changes: ceiling / 16,
            connections: ceiling / 4 / CONNECTION_BYTES,
        }
    }
}

/// The least of the machine's memory, the limit of a container or service around this process, and its own (`ulimit -d`, `-v`).
fn allowed_by_system() -> usize {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| cgroup_limit(&text));
    let own = [Resource::RLIMIT_DATA, Resource::RLIMIT_AS].map(|limit| getrlimit(limit).ok().map(|(soft, _)| soft));
    let all = own.into_iter().chain([machine, group]).flatten();
    all.min().map_or(usize::MAX, |least| usize::try_from(least).unwrap_or(usize::MAX))
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least limit of the control groups around this process. In a container, its own group is the root of what it sees.
fn cgroup_limit(own: &str) -> Option<u64> {
    let limit = |folder: &Path, file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let folder = Path::new(root).join(path.trim_start_matches('/'));
        folder.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(|at| limit(at, file)).min()
    };
    own.lines().filter_map(of_line).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_stay_below_the_ceiling() {
        for mib in [16, 128, 512, 4096] {
            let Memory { servers, lists, changes, connections } = Memory::within(mib << 20, 256 << 20);
            let all = servers + lists + changes + connections * CONNECTION_BYTES;
            assert!(all <= (mib << 20) * 7 / 8 && lists <= 256 << 20, "{mib} MiB: {all}");
        }
    }

    #[test]
    fn the_machines_memory_is_read_from_meminfo() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        for bad in ["", "MemTotal: kB", "MemTotal: 5 MB", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(total(bad), None, "{bad:?}");
        }
        assert!(allowed_by_system() >= LEAST_BYTES);
    }

    #[test]
    fn what_is_no_control_group_has_no_limit() {
        for text in ["", "garbage", "0:", "3:cpu:/", "0::/no/such/group\n"] {
            let limit = cgroup_limit(text);
            assert!(limit.is_none_or(|bytes| bytes > 0), "{text:?}: {limit:?}");
        }
    }
}
