//! How many hugepages the machine has.

use std::fs;

/// Bytes of the hugepages that the daemon uses.
pub const HUGEPAGE_BYTES: u64 = 2 << 20;

/// The machine's hugepages of [`HUGEPAGE_BYTES`], in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugepageStatus {
    /// Bytes of one.
    pub page_bytes: u64,
    /// All that are set aside.
    pub total: u64,
    /// Those that nobody uses.
    pub free: u64,
    /// Those of the free ones that are promised to somebody.
    pub reserved: u64,
}

impl HugepageStatus {
    /// Pages that can still be had.
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

/// The machine's hugepages now; none on a kernel without them.
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
