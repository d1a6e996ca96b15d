//! Reads the number of hugepages of the machine from sysfs, for the memory of regions.

use std::fs;

/// Bytes of the hugepages that the daemon uses.
pub const HUGEPAGE_BYTES: u64 = 2 << 20;

/// The machine's hugepages of [`HUGEPAGE_BYTES`], in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugepageStatus {
    /// Bytes of one hugepage.
    pub page_bytes: u64,
    /// Hugepages of the machine, pages.
    pub total: u64,
    /// Free hugepages of the machine, pages.
    pub free: u64,
    /// Free hugepages that are reserved by a mapping, pages.
    pub reserved: u64,
}

impl HugepageStatus {
    /// Returns the pages that can still be allocated.
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

/// Reads the current numbers; zeros on a kernel without hugepages.
pub fn hugepages() -> HugepageStatus {
    let count = |name: &str| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", HUGEPAGE_BYTES >> 10);
        fs::read_to_string(path).ok().and_then(|text| text.trim_end().parse().ok()).unwrap_or(0)
    };
    HugepageStatus {
        page_bytes: HUGEPAGE_BYTES,
        total: count("nr_hugepages"),
        free: count("free_hugepages"),
        reserved: count("resv_hugepages"),
    }
}
