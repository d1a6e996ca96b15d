//! Internet checksum with the widest vector instructions of the processor. Processors other than x86_64 use the
//! portable loop.
#![allow(unsafe_code, reason = "calls functions for which the processor must have the instructions")]

use tcp_stack::wire::Sum;

/// Shortest input, bytes, for which the detection of vector instructions pays off.
#[cfg(target_arch = "x86_64")]
const WIDE_MIN: usize = 256;

/// Returns the same sum as [`Sum::of`].
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> Sum {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WIDE_MIN {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the instructions.
            return unsafe { sum_avx512(bytes) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the instructions.
            return unsafe { sum_avx2(bytes) };
        }
    }
    Sum::of(bytes)
}

/// [`Sum::of`], compiled for 512-bit instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(bytes: &[u8]) -> Sum {
    Sum::of(bytes)
}

/// [`Sum::of`], compiled for 256-bit instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(bytes: &[u8]) -> Sum {
    Sum::of(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_gives_the_same_sum() {
        // The period of the pattern is not a multiple of any vector width.
        let bytes: Vec<u8> =
            (0..20_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect();
        for start in [0, 1, 2, 7, 64] {
            for len in (0..600).chain([1436, 1447, 1448, 8932, 9000, 19_900]) {
                let bytes = &bytes[start..start + len];
                let expected = Sum::of(bytes).fold();
                assert_eq!(sum(bytes).fold(), expected, "{len} bytes from {start}");
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the instructions.
                    let narrower = unsafe { sum_avx2(bytes) };
                    assert_eq!(narrower.fold(), expected, "{len} bytes from {start}, AVX2");
                }
            }
        }
    }
}
