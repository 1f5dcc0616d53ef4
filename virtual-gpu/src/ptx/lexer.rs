//! PTX text to tokens. Words keep their dots (`ld.global.v4.f32`, `%tid.x`), as PTX itself reads them.

use super::PtxError;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Tok<'a> {
    /// Identifier, register, opcode with its modifiers, or directive.
    Word(&'a str),
    Int(u64),
    /// `0fXXXXXXXX`: the bits of an f32.
    F32(u32),
    /// `0dXXXXXXXXXXXXXXXX` or a decimal fraction: the bits of an f64.
    F64(u64),
    Str(&'a str),
    /// The comment `// inlined_at 1 42 9, …` on the line of a `.loc`, as `cuda_builder` writes it: its text after the word.
    InlinedAt(&'a str),
    Punct(u8),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token<'a> {
    pub tok: Tok<'a>,
    pub line: u32,
}

fn word_char(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

pub(super) fn lex(text: &str) -> Result<Vec<Token<'_>>, PtxError> {
    let s = text.as_bytes();
    let (mut i, mut line) = (0usize, 1u32);
    let mut out = Vec::with_capacity(s.len() / 5);
    while i < s.len() {
        let c = s[i];
        match c {
            b'\n' => {
                line += 1;
                i += 1;
            }
            b' ' | b'\t' | b'\r' => i += 1,
            // A NUL ends the text: the driver takes C strings, and builders append one.
            0 if s[i..].iter().all(|&c| c == 0) => break,
            b'/' if s.get(i + 1) == Some(&b'/') => {
                let start = i;
                while i < s.len() && s[i] != b'\n' {
                    i += 1;
                }
                // after the three numbers of a `.loc`
                let directive = out.len().checked_sub(4).map(|at: usize| out[at]);
                if directive == Some(Token { tok: Tok::Word(".loc"), line })
                    && let Some(places) = text[start..i].strip_prefix("// inlined_at ")
                {
                    out.push(Token { tok: Tok::InlinedAt(places), line });
                }
            }
            b'/' if s.get(i + 1) == Some(&b'*') => {
                let start = line;
                i += 2;
                loop {
                    match s.get(i) {
                        None => return Err(PtxError::new(start, "unterminated comment")),
                        Some(b'*') if s.get(i + 1) == Some(&b'/') => break,
                        Some(b'\n') => line += 1,
                        _ => {}
                    }
                    i += 1;
                }
                i += 2;
            }
            b'"' => {
                let start = i + 1;
                let end = s[i + 1..].iter().position(|&c| c == b'"' || c == b'\n');
                match end {
                    Some(n) if s[i + 1 + n] == b'"' => i += n + 2,
                    _ => return Err(PtxError::new(line, "unterminated string")),
                }
                out.push(Token { tok: Tok::Str(&text[start..i - 1]), line });
            }
            b'0'..=b'9' => {
                let start = i;
                while i < s.len() && (s[i].is_ascii_alphanumeric() || s[i] == b'.') {
                    // The sign of a decimal exponent belongs to the number: 1.5e-3.
                    let decimal = !text[start..].starts_with("0x") && text[start..i].contains('.');
                    if decimal && matches!(s[i], b'e' | b'E') && matches!(s.get(i + 1), Some(b'+' | b'-')) {
                        i += 1;
                    }
                    i += 1;
                }
                out.push(Token { tok: number(&text[start..i], line)?, line });
            }
            _ if word_char(c) => {
                let start = i;
                loop {
                    // `.reg.b32` are two directives, as with a space between them.
                    if i > start && s[start] == b'.' && s.get(i) == Some(&b'.') {
                        break;
                    }
                    if i < s.len() && word_char(s[i]) {
                        i += 1;
                    } else if s[i..].starts_with(b"::") {
                        i += 2;
                    } else {
                        break;
                    }
                }
                out.push(Token { tok: Tok::Word(&text[start..i]), line });
            }
            _ if c.is_ascii_punctuation() => {
                out.push(Token { tok: Tok::Punct(c), line });
                i += 1;
            }
            _ => return Err(PtxError::new(line, format!("unexpected byte 0x{c:02x}"))),
        }
    }
    Ok(out)
}

fn number(t: &str, line: u32) -> Result<Tok<'static>, PtxError> {
    let bad = || PtxError::new(line, format!("`{t}` is not a number"));
    let lower = t.to_ascii_lowercase();
    if let Some(h) = lower.strip_prefix("0f") {
        return if h.len() == 8 {
            u32::from_str_radix(h, 16).map(Tok::F32).map_err(|_| bad())
        } else {
            Err(bad())
        };
    }
    if let Some(h) = lower.strip_prefix("0d") {
        return if h.len() == 16 {
            u64::from_str_radix(h, 16).map(Tok::F64).map_err(|_| bad())
        } else {
            Err(bad())
        };
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let value = if let Some(h) = digits.strip_prefix("0x") {
        u64::from_str_radix(h, 16)
    } else if let Some(b) = digits.strip_prefix("0b") {
        u64::from_str_radix(b, 2)
    } else if digits.contains('.') {
        return digits.parse::<f64>().map(|v| Tok::F64(v.to_bits())).map_err(|_| bad());
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    value.map(Tok::Int).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toks(t: &str) -> Vec<Tok<'_>> {
        lex(t).unwrap().into_iter().map(|t| t.tok).collect()
    }

    #[test]
    fn words_numbers_and_lines() {
        assert_eq!(
            toks("ld.global.v4.f32 {%f1, _}, [%rd1+-16]; // tail"),
            [
                Tok::Word("ld.global.v4.f32"),
                Tok::Punct(b'{'),
                Tok::Word("%f1"),
                Tok::Punct(b','),
                Tok::Word("_"),
                Tok::Punct(b'}'),
                Tok::Punct(b','),
                Tok::Punct(b'['),
                Tok::Word("%rd1"),
                Tok::Punct(b'+'),
                Tok::Punct(b'-'),
                Tok::Int(16),
                Tok::Punct(b']'),
                Tok::Punct(b';'),
            ]
        );
        assert_eq!(
            toks("0f3F800000 0d3FF0000000000000 0x10U 017 1.5e-3"),
            [
                Tok::F32(0x3f80_0000),
                Tok::F64(0x3ff0_0000_0000_0000),
                Tok::Int(16),
                Tok::Int(15),
                Tok::F64(1.5e-3f64.to_bits())
            ]
        );
        assert_eq!(
            toks("{.reg.b32 %f.x;}"),
            [
                Tok::Punct(b'{'),
                Tok::Word(".reg"),
                Tok::Word(".b32"),
                Tok::Word("%f.x"),
                Tok::Punct(b';'),
                Tok::Punct(b'}'),
            ]
        );
        let lines: Vec<u32> = lex("a /* x\n y */ b\nc").unwrap().iter().map(|t| t.line).collect();
        assert_eq!(lines, [1, 2, 3]);
    }

    #[test]
    fn refusals_name_the_line() {
        assert_eq!(lex("a\n/* b").unwrap_err().line, 2);
        assert_eq!(lex("a\n\n0f12").unwrap_err().line, 3);
        assert!(lex("\u{e9}").is_err());
    }
}
