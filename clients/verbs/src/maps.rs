//! Mappings of this process (`/proc/self/maps`).

use std::ops::Range;

/// A mapping, as far as the registration of memory needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapsEntry {
    /// Addresses of its first byte and of the byte after its last one.
    pub(crate) range: Range<usize>,
    /// True if it can be read.
    pub(crate) read: bool,
    /// True if it can be written.
    pub(crate) write: bool,
    /// True if its pages are private anonymous memory and no stack of the main thread, readable and writable only.
    pub(crate) is_anonymous: bool,
    /// True if it is memory that the daemon has allocated for a program, shared.
    pub(crate) is_exchanged: bool,
}

impl MapsEntry {
    /// Parses a line: `start-end rwxp offset device inode path`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let rights = fields.next()?.as_bytes();
        let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
        // `[anon:…]` is a name that the program has given (PR_SET_VMA_ANON_NAME).
        let name = fields.next();
        let named = name.is_none_or(|name| name == "[heap]" || name.starts_with("[anon:"));
        let of_daemon = name.is_some_and(|name| name.starts_with("/memfd:iwarp-region-app-"));
        Some(Self {
            range: address(start)?..address(end)?,
            read: rights.first() == Some(&b'r'),
            write: rights.get(1) == Some(&b'w'),
            is_anonymous: rights == b"rw-p" && inode == "0" && named,
            is_exchanged: rights == b"rw-s" && of_daemon,
        })
    }
}

/// Returns the mappings that have bytes of a range, ascending.
pub(crate) fn mappings(range: &Range<usize>) -> std::io::Result<Vec<MapsEntry>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let entries = maps.lines().filter_map(MapsEntry::parse);
    Ok(entries.filter(|entry| entry.range.start < range.end && entry.range.end > range.start).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_parsed() {
        for (line, anonymous) in [
            ("7f3c00000000-7f3c00021000 rw-p 00000000 00:00 0", true),
            ("55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]", true),
            ("7f3c00000000-7f3c00021000 rw-p 00000000 00:00 0  [anon:arena of a program]", true),
            ("7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]", false),
            ("7f3c00000000-7f3c00021000 rw-s 00000000 00:01 77  /memfd:x (deleted)", false),
            ("7f3c00000000-7f3c00200000 rw-p 00000000 00:0f 9  /anon_hugepage (deleted)", false),
            ("7f3c00000000-7f3c00021000 rw-p 00002000 fe:00 12  /usr/lib/x.so", false),
            ("7f3c00000000-7f3c00021000 rwxp 00000000 00:00 0", false),
            ("7f3c00000000-7f3c00021000 r--p 00000000 00:00 0", false),
        ] {
            let entry = MapsEntry::parse(line).unwrap();
            assert_eq!(entry.is_anonymous, anonymous, "{line}");
            assert_eq!((entry.read, entry.write), (true, !line.contains("r--p")), "{line}");
        }
        let entry = MapsEntry::parse("1000-3000 ---p 00000000 00:00 0").unwrap();
        assert_eq!((entry.range, entry.read, entry.write), (0x1000..0x3000, false, false));
        assert_eq!(MapsEntry::parse("1000-3000 rw-p"), None);
    }

    #[test]
    fn a_variable_is_in_one_mapping() {
        let boxed = Box::new([7_u8; 100]);
        let start = boxed.as_ptr() as usize;
        let found = mappings(&(start..start + 100)).unwrap();
        assert!(found.len() == 1 && found[0].read && found[0].write, "{found:?}");
        assert_eq!(mappings(&(0..4096)).unwrap(), []);
    }
}
