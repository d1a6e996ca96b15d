//! Fuzz target [`options()`]: parsing and emitting TCP headers and options.

use crate::wire::{SackBlocks, TcpHeader, TcpOptions};
use alloc::vec;

/// Parses arbitrary bytes as a header's options and as a segment: what is parsed can be emitted, and parses the same
/// again.
pub fn options(data: &[u8]) {
    let area = data.get(..TcpOptions::LEN_MAX).unwrap_or(data);
    check(&TcpOptions::parse(area));
    if let Ok((header, options, payload)) = TcpHeader::parse(data) {
        assert_eq!(data.len(), TcpHeader::LEN + options.len() + payload.len(), "no byte is lost");
        let options = TcpOptions::parse(options);
        let mut out = vec![0; TcpHeader::len_with(&options)];
        assert!(header.emit(&options, &mut out), "{header:?} {options:?}");
        let again = TcpHeader::parse(&out);
        assert!(again.is_ok_and(|(again, _, rest)| again == header && rest.is_empty()), "{header:?}");
    }
}

fn check(options: &TcpOptions) {
    let len = options.emitted_len();
    assert!(len <= TcpOptions::LEN_MAX && len.is_multiple_of(4), "{len} bytes of {options:?}");
    let mut out = vec![0; len];
    assert!(options.emit(&mut out), "{options:?}");
    let again = TcpOptions::parse(&out);
    // The last SACK ranges may not have fitted.
    assert!(options.sack.as_slice().starts_with(again.sack.as_slice()), "{options:?} {again:?}");
    let without = |options: &TcpOptions| TcpOptions { sack: SackBlocks::EMPTY, ..*options };
    assert_eq!(without(&again), without(options));
    let mut short = vec![0; len + 1];
    assert!(!options.emit(&mut short), "another length is refused");
}
