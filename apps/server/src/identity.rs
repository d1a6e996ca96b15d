//! Users, and system calls with their rights.

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user whose rights work is done with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// ID of the user.
    pub uid: u32,
    /// ID of the primary group.
    pub gid: u32,
    /// IDs of the supplementary groups.
    pub groups: Vec<u32>,
}

/// Executes `work` with the user's rights on this thread. A program that does not run as root keeps its own.
pub fn with_rights<T>(user: &User, work: impl FnOnce() -> T) -> T {
    let Some(_rights) = Rights::assume(user) else { return work() };
    work()
}

/// Rights of a user, until dropped.
struct Rights;

impl Rights {
    fn assume(user: &User) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || user.uid == 0 {
            return None;
        }
        // −1 would leave an ID as it is: nobody has it.
        let id = |id: u32| if id == u32::MAX { id.saturating_sub(1) } else { id };
        let groups: Vec<Gid> = user.groups.iter().map(|group| Gid::from_raw(id(*group))).collect();
        let rights = Self;
        let done = set_thread_groups(&groups)
            .and_then(|()| set_thread_res_gid(None, Gid::from_raw(id(user.gid)), None))
            .and_then(|()| set_thread_res_uid(None, Uid::from_raw(id(user.uid)), None));
        if done.is_err() {
            // With the rights of root the work would be done for anybody.
            std::process::abort();
        }
        Some(rights)
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        let restored = set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| set_thread_res_gid(None, Gid::ROOT, None))
            .and_then(|()| set_thread_groups(&[]));
        if restored.is_err() {
            // Other work would be done with the rights of this one's user.
            std::process::abort();
        }
    }
}
