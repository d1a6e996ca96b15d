//! The descriptors that drivers of DPDK open and do not show. `device` compares those before and after the start of a
//! device.
#![allow(unsafe_code, reason = "borrows descriptors that belong to DPDK")]

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;

/// Returns the open sockets of this process, of every kind.
pub(super) fn open_sockets() -> BTreeSet<RawFd> {
    open_files("socket:")
}

/// Returns the open descriptors of this process whose file has a name that begins so.
pub(super) fn open_files(begin: &str) -> BTreeSet<RawFd> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return BTreeSet::new() };
    let descriptors = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    descriptors
        .filter(|&fd| file_of(fd).is_some_and(|file| file.to_string_lossy().starts_with(begin)))
        .collect()
}

/// Returns the name of a descriptor's file: a path, or for a socket its kind and number.
pub(super) fn file_of(fd: RawFd) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{fd}")).ok()
}

/// Borrows a descriptor of a driver's, for one query.
pub(super) fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the driver keeps a descriptor open until its device is closed, which outlives the objects here that the
    // device holds; one that another thread opened meanwhile and has closed since only answers the one query with an
    // error.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
