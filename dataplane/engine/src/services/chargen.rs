//! Character generator (RFC 864): sends lines of printing characters until the peer closes, and discards received data.

/// Bytes of one line: 72 characters, CR, LF.
const LINE: u64 = 74;
/// The printing characters of ASCII, space included.
const PRINTING: u64 = 95;
/// Bytes after which the pattern repeats: every line starts one character later.
const PERIOD: u64 = LINE * PRINTING;

/// Position in the character stream of one connection.
#[derive(Debug, Default)]
pub(crate) struct Chargen {
    position: u64,
}

impl Chargen {
    /// Fills `out` with the next bytes of the stream.
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        for (byte, at) in out.iter_mut().zip(self.position..) {
            *byte = byte_at(at);
        }
        self.position = (self.position + out.len() as u64) % PERIOD;
    }
}

/// Returns the byte at a position of the stream.
fn byte_at(position: u64) -> u8 {
    let (line, column) = (position / LINE, position % LINE);
    match column {
        72 => b'\r',
        73 => b'\n',
        // Below 95: it fits.
        _ => b' ' + u8::try_from((line + column) % PRINTING).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line and one period of the stream, bytes.
    const LENGTHS: (usize, usize) = (74, 74 * 95);

    #[test]
    fn lines_are_those_of_rfc_864() {
        let mut stream = Chargen::default();
        let mut text = vec![0; 3 * LENGTHS.0];
        stream.fill(&mut text);
        let lines: Vec<&[u8]> = text.chunks(LENGTHS.0).collect();
        // RFC 864 shows the same pattern one character further on; any starting point is allowed.
        assert!(lines[0].starts_with(b" !\"#$%&'()*+,-./0123456789:;<=>?@ABC"));
        assert!(lines[1].starts_with(b"!\"#$%&'()*+,-./0123456789:;<=>?@ABCD"));
        assert!(lines.iter().all(|line| line.ends_with(b"\r\n")));
    }

    #[test]
    fn pieces_of_any_size_make_the_same_stream() {
        let mut whole = vec![0; 2 * LENGTHS.1];
        Chargen::default().fill(&mut whole);
        let (mut stream, mut pieces) = (Chargen::default(), Vec::new());
        for size in (1..400).cycle() {
            let mut piece = vec![0; size.min(whole.len() - pieces.len())];
            stream.fill(&mut piece);
            pieces.extend(piece);
            if pieces.len() == whole.len() {
                break;
            }
        }
        assert!(pieces == whole);
    }
}
