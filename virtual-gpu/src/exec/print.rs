//! `vprintf`, which CUDA C++'s `printf` becomes: a format, and the arguments in a row, each at a multiple of its size.
//!
//! Source: CUDA C++ Programming Guide, "Formatted Output"; the conversions are C's.

use super::block::{Block, Check};
use super::global::{get, global};
use super::lane::What;
use super::regs::lanes;
use super::scratch::{LOCAL, SHARED, bytes_at, checked, place};
use super::warp::Warp;
use crate::finding::FindingKind;
use crate::memory::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::ptx::inst::{CallSite, Inst, Value};

/// Bytes of a format or string that are read at most, as it may lack its terminating zero.
const MAX_STRING: u64 = 1 << 16;
/// The widest field: bounds the memory that a width given by a kernel takes.
const MAX_WIDTH: usize = 1 << 12;

/// Prints for each lane of `mask`; the call's value is the number of arguments.
pub(super) fn vprintf(b: &mut Block<'_>, w: &mut Warp, site: &CallSite, inst: &Inst, mask: u32) -> Check {
    for lane in lanes(mask) {
        let mut at = [0; 2];
        for (at, &(value, ..)) in at.iter_mut().zip(&site.args) {
            *at = w.argument(value, lane);
        }
        let mut source = Source { b, w, inst, lane };
        let format = source.string(at[0])?;
        let (text, arguments) = formatted(&format, at[1], &mut source)?;
        b.print(&text);
        for &(_, place, _) in &site.rets {
            w.set_result(place, lane, arguments);
        }
    }
    Ok(())
}

/// Ends the kernel: an assertion of the first lane of `mask` has failed. The call gives the addresses of its text, of the
/// file's and the function's name, and the line. Source: `__assertfail` in crt/device_functions.h of CUDA 12.4.
pub(super) fn assert_fail<T>(
    b: &mut Block<'_>,
    w: &mut Warp,
    site: &CallSite,
    inst: &Inst,
    mask: u32,
) -> Check<T> {
    let lane = mask.trailing_zeros() as usize;
    let mut at = [0; 4];
    for (at, &(value, ..)) in at.iter_mut().zip(&site.args) {
        *at = w.argument(value, lane);
    }
    let mut source = Source { b, w, inst, lane };
    let mut text = |at| source.string(at).map(|text| String::from_utf8_lossy(&text).into_owned());
    let [assertion, file, line, function] = at;
    let (assertion, file, function) = (text(assertion)?, text(file)?, text(function)?);
    let message = format!("assertion `{assertion}` failed in {function}, {file}:{}", line as u32);
    let thread = w.id * 32 + lane as u32;
    Err(b.finding(FindingKind::AssertFailed, inst.line, thread, message))
}

/// A thread's memory, as these functions read it.
struct Source<'s, 'j> {
    b: &'s mut Block<'j>,
    w: &'s Warp,
    inst: &'s Inst,
    lane: usize,
}

/// Memory that a format's arguments and strings are read from.
trait Read {
    /// The little-endian number of 1, 4 or 8 bytes at a generic address.
    fn read(&mut self, at: u64, bytes: u32) -> Check<u64>;

    /// The bytes before the first zero.
    fn string(&mut self, at: u64) -> Check<Vec<u8>> {
        let mut bytes = Vec::new();
        for i in 0..MAX_STRING {
            match self.read(at.wrapping_add(i), 1)? {
                0 => break,
                byte => bytes.push(byte as u8),
            }
        }
        Ok(bytes)
    }
}

impl Read for Source<'_, '_> {
    fn read(&mut self, at: u64, bytes: u32) -> Check<u64> {
        let Self { b, w, inst, lane } = self;
        let (lane, what) = (*lane, What { verb: "read by vprintf", bytes, line: inst.line, loose: false });
        if let offset @ 0..WINDOW_BYTES = at.wrapping_sub(SHARED_WINDOW) {
            let offset = place::<SHARED>(b, w, what, lane, offset)?;
            return Ok(bytes_at(&b.shared, offset, bytes as u8));
        }
        if let offset @ 0..WINDOW_BYTES = at.wrapping_sub(LOCAL_WINDOW) {
            let offset = checked::<LOCAL>(b, w, what, lane, offset)?;
            return Ok(bytes_at(&w.local, offset, bytes as u8));
        }
        let (p, _) = global(b, w, what, lane, at)?;
        // SAFETY: `global` has found `bytes` live, aligned bytes at `p`.
        Ok(unsafe { get(p, bytes as u8) })
    }
}

/// One conversion: `%-08.3lld`.
#[derive(Default)]
struct Conversion {
    left: bool,
    plus: bool,
    blank: bool,
    alternate: bool,
    zeros: bool,
    width: usize,
    precision: Option<usize>,
    /// `l`, `ll`, `z`, `j` or `t`: integers of 64 bits.
    long: bool,
}

/// The text of a format with the arguments at `arguments`, and how many it takes.
fn formatted(format: &[u8], mut arguments: u64, memory: &mut impl Read) -> Check<(Vec<u8>, u32)> {
    let (mut out, mut taken) = (Vec::new(), 0);
    let mut next = |memory: &mut dyn FnMut(u64, u32) -> Check<u64>, bytes: u32| {
        arguments = arguments.next_multiple_of(u64::from(bytes));
        let value = memory(arguments, bytes);
        arguments += u64::from(bytes);
        taken += 1;
        value
    };
    let mut rest = format.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut read = |at, bytes| memory.read(at, bytes);
        let mut c = Conversion::default();
        while let Some(flag @ (b'-' | b'+' | b' ' | b'#' | b'0')) = rest.peek().copied() {
            match flag {
                b'-' => c.left = true,
                b'+' => c.plus = true,
                b' ' => c.blank = true,
                b'#' => c.alternate = true,
                _ => c.zeros = true,
            }
            rest.next();
        }
        let mut number = |rest: &mut std::iter::Peekable<_>| -> Check<Option<i64>> {
            if rest.next_if_eq(&b'*').is_some() {
                return Ok(Some(i64::from(next(&mut read, 4)? as i32)));
            }
            let mut value = None;
            while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
                value = Some((value.unwrap_or(0) * 10 + i64::from(digit - b'0')).min(MAX_WIDTH as i64));
            }
            Ok(value)
        };
        let width = number(&mut rest)?.unwrap_or(0);
        c.left |= width < 0;
        c.width = (width.unsigned_abs() as usize).min(MAX_WIDTH);
        if rest.next_if_eq(&b'.').is_some() {
            let precision = number(&mut rest)?.unwrap_or(0);
            c.precision = usize::try_from(precision).ok().map(|p| p.min(MAX_WIDTH)); // a negative one counts as none
        }
        while let Some(size) = rest.next_if(|byte| b"hlLzjt".contains(byte)) {
            c.long |= size != b'h';
        }
        let Some(kind) = rest.next() else { break };
        match kind {
            b'%' => out.push(b'%'),
            b'd' | b'i' | b'u' | b'x' | b'X' | b'o' => {
                let value = next(&mut read, if c.long { 8 } else { 4 })?;
                c.integer(&mut out, kind, value);
            }
            b'p' => {
                c.alternate = true;
                let value = next(&mut read, 8)?;
                c.long = true;
                c.integer(&mut out, b'x', value);
            }
            b'c' => {
                let value = next(&mut read, 4)?;
                c.pad(&mut out, b"", &[value as u8], false);
            }
            b'e' | b'E' | b'f' | b'F' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(next(&mut read, 8)?);
                c.float(&mut out, kind, value);
            }
            b's' => {
                let at = next(&mut read, 8)?;
                let mut text = if at == 0 { b"(null)".to_vec() } else { memory.string(at)? };
                text.truncate(c.precision.unwrap_or(usize::MAX));
                c.pad(&mut out, b"", &text, false);
            }
            other => out.extend([b'%', other]), // not a conversion: printed unchanged
        }
    }
    Ok((out, taken))
}

impl Conversion {
    /// Writes `digits` after a sign or prefix, padded to the field's width.
    fn pad(&self, out: &mut Vec<u8>, prefix: &[u8], digits: &[u8], zeros: bool) {
        let fill = self.width.saturating_sub(prefix.len() + digits.len());
        if !self.left && !zeros {
            out.resize(out.len() + fill, b' ');
        }
        out.extend_from_slice(prefix);
        if !self.left && zeros {
            out.resize(out.len() + fill, b'0');
        }
        out.extend_from_slice(digits);
        if self.left {
            out.resize(out.len() + fill, b' ');
        }
    }

    fn sign(&self, negative: bool) -> &'static [u8] {
        match (negative, self.plus, self.blank) {
            (true, ..) => b"-",
            (_, true, _) => b"+",
            (.., true) => b" ",
            _ => b"",
        }
    }

    fn integer(&self, out: &mut Vec<u8>, kind: u8, value: u64) {
        let signed = if self.long { value as i64 } else { i64::from(value as i32) };
        let prefixed = self.alternate && value != 0;
        let (prefix, digits) = match kind {
            b'd' | b'i' => (self.sign(signed < 0), signed.unsigned_abs().to_string()),
            b'x' => (if prefixed { b"0x".as_slice() } else { b"" }, format!("{value:x}")),
            b'X' => (if prefixed { b"0X".as_slice() } else { b"" }, format!("{value:X}")),
            b'o' => (if prefixed { b"0".as_slice() } else { b"" }, format!("{value:o}")),
            _ => (b"".as_slice(), value.to_string()),
        };
        let digits = match self.precision {
            Some(0) if value == 0 => String::new(),
            Some(precision) => format!("{digits:0>precision$}"),
            None => digits,
        };
        self.pad(out, prefix, digits.as_bytes(), self.zeros && self.precision.is_none());
    }

    fn float(&self, out: &mut Vec<u8>, kind: u8, value: f64) {
        let magnitude = value.abs();
        let precision = self.precision.unwrap_or(6);
        let text = match kind.to_ascii_lowercase() {
            _ if value.is_nan() => "nan".to_owned(),
            _ if value.is_infinite() => "inf".to_owned(),
            b'e' => exponential(magnitude, precision),
            b'g' => self.shortest(magnitude, precision.max(1)),
            b'a' => hexadecimal(magnitude, self.precision),
            _ => format!("{magnitude:.precision$}"),
        };
        let text = if kind.is_ascii_uppercase() { text.to_ascii_uppercase() } else { text };
        let zeros = self.zeros && value.is_finite();
        self.pad(out, self.sign(value.is_sign_negative() && !value.is_nan()), text.as_bytes(), zeros);
    }

    /// `%g`: `precision` significant digits, without zeros at the end.
    fn shortest(&self, magnitude: f64, precision: usize) -> String {
        let long = exponential(magnitude, precision - 1);
        let exponent = long.split_once('e').and_then(|(_, e)| e.parse::<i32>().ok()).unwrap_or(0);
        let trimmed = |digits: &str| match digits.contains('.') && !self.alternate {
            true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => digits.to_owned(),
        };
        if exponent < -4 || exponent >= precision as i32 {
            let (digits, exponent) = long.split_once('e').unwrap_or((&long, "+00"));
            return format!("{}e{exponent}", trimmed(digits));
        }
        let decimals = (precision as i32 - 1 - exponent) as usize;
        trimmed(&format!("{magnitude:.decimals$}"))
    }
}

/// `1.500000e+03`
fn exponential(magnitude: f64, precision: usize) -> String {
    let text = format!("{magnitude:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `0x1.8p+1`
fn hexadecimal(magnitude: f64, precision: Option<usize>) -> String {
    let bits = magnitude.to_bits();
    let is_normal = bits >> 52 != 0;
    let exponent = match bits {
        0 => 0,
        _ if is_normal => (bits >> 52) as i32 - 1023,
        _ => -1022,
    };
    let mut mantissa = bits & ((1 << 52) - 1) | u64::from(is_normal) << 52;
    let digits = precision.unwrap_or(13).min(13);
    let dropped = 4 * (13 - digits as u32);
    if dropped > 0 {
        let (half, lost) = (1u64 << (dropped - 1), mantissa & ((1 << dropped) - 1));
        mantissa >>= dropped;
        mantissa += u64::from(lost > half || lost == half && mantissa & 1 == 1);
    }
    let fraction = mantissa & ((1u64 << (4 * digits)) - 1);
    let mut text = if digits == 0 { String::new() } else { format!("{fraction:0digits$x}") };
    match precision {
        None => text.truncate(text.trim_end_matches('0').len()),
        Some(precision) => text = format!("{text:0<precision$}"),
    }
    let point = if text.is_empty() { "" } else { "." };
    format!("0x{:x}{point}{text}p{exponent:+}", mantissa >> (4 * digits))
}

impl Warp {
    /// The value of a call's argument in a lane.
    fn argument(&self, value: Value, lane: usize) -> u64 {
        match value {
            Value::Local(offset) => bytes_at(&self.local, self.local_place(offset, lane), 8),
            Value::Row32(row) => u64::from(self.regs.row32(row)[lane]),
            Value::Row64(row) => self.regs.row64(row)[lane],
        }
    }

    /// Stores a lane's 32-bit result of a call.
    fn set_result(&mut self, place: Value, lane: usize, result: u32) {
        match place {
            Value::Local(offset) => {
                let at = self.local_place(offset, lane);
                self.local[at..at + 4].copy_from_slice(&result.to_le_bytes());
                if !self.local_written.is_empty() {
                    self.local_written[at..at + 4].fill(1);
                }
            }
            Value::Row32(row) => self.regs.row32_mut(row)[lane] = result,
            Value::Row64(row) => self.regs.row64_mut(row)[lane] = u64::from(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments from address 0 on, and strings from 1000 on.
    struct Memory(Vec<u8>, &'static [u8]);

    impl Read for Memory {
        fn read(&mut self, at: u64, bytes: u32) -> Check<u64> {
            if at >= 1000 {
                return Ok(self.1.get(at as usize - 1000).copied().unwrap_or(0).into());
            }
            Ok(bytes_at(&self.0, at as usize, bytes as u8))
        }
    }

    enum A {
        I(i32),
        L(i64),
        F(f64),
    }
    use A::*;

    fn printed(format: &str, arguments: &[A]) -> (String, u32) {
        let mut bytes = Vec::new();
        for a in arguments {
            let wide: [u8; 8] = match a {
                I(v) => {
                    bytes.extend(v.to_le_bytes());
                    continue;
                }
                L(v) => v.to_le_bytes(),
                F(v) => v.to_le_bytes(),
            };
            bytes.resize(bytes.len().next_multiple_of(8), 0xaa);
            bytes.extend(wide);
        }
        let (text, taken) = formatted(format.as_bytes(), 0, &mut Memory(bytes, b"name")).unwrap();
        (String::from_utf8(text).unwrap(), taken)
    }

    /// The expected texts are those of C's printf.
    #[test]
    fn conversions_are_those_of_c() {
        for (format, arguments, text) in [
            ("a%%b\n", vec![], "a%b\n"),
            ("%d %i %u", vec![I(-1), I(7), I(-1)], "-1 7 4294967295"),
            ("%lld|%zu|%hd", vec![L(-5), L(6), I(3)], "-5|6|3"),
            ("%5d|%-5d|%05d|%+d|% d", vec![I(42), I(42), I(-42), I(42), I(42)], "   42|42   |-0042|+42| 42"),
            ("%.3d|%6.3d|%.0d", vec![I(7), I(-7), I(0)], "007|  -007|"),
            (
                "%x %X %#x %o %#o %08x",
                vec![I(255), I(255), I(255), I(8), I(8), I(-1)],
                "ff FF 0xff 10 010 ffffffff",
            ),
            ("%p", vec![L(0x7f00)], "0x7f00"),
            ("%c%c", vec![I(72), I(105)], "Hi"),
            ("[%s|%6s|%-6s|%.2s]", vec![L(1000), L(1000), L(1000), L(1000)], "[name|  name|name  |na]"),
            ("%s", vec![L(0)], "(null)"),
            (
                "%f %.2f %8.3f %-8.1f| %08.2f",
                vec![F(1.5), F(2.345), F(-1.0), F(9.96), F(-3.5)],
                "1.500000 2.35   -1.000 10.0    | -0003.50",
            ),
            ("%e %.0e %E", vec![F(1500.0), F(0.00012), F(1e-10)], "1.500000e+03 1e-04 1.000000E-10"),
            (
                "%g %g %g %g %#g",
                vec![F(100000.0), F(1e6), F(0.0001), F(0.00001), F(1.0)],
                "100000 1e+06 0.0001 1e-05 1.00000",
            ),
            ("%a %a %.1a", vec![F(3.0), F(0.0), F(1.53)], "0x1.8p+1 0x0p+0 0x1.8p+0"),
            ("%f %5.1f %F", vec![F(f64::NAN), F(f64::NEG_INFINITY), F(f64::INFINITY)], "nan  -inf INF"),
            ("%*d|%.*f|%*d", vec![I(4), I(1), I(1), F(0.25), I(-3), I(5)], "   1|0.2|5  "),
            ("%.0d %e %.3g", vec![I(5), F(1.5), F(999.6)], "5 1.500000e+00 1e+03"),
            ("%e %g %a", vec![F(f64::INFINITY), F(f64::INFINITY), F(f64::INFINITY)], "inf inf inf"),
            // rounded from above one half, from one half to the even digit, and from below it
            (
                "%.1a %.1a %.1a %.1a",
                vec![F(1.03125 + 1e-6), F(1.03125), F(1.09375), F(1.02)],
                "0x1.1p+0 0x1.0p+0 0x1.2p+0 0x1.0p+0",
            ),
            ("%a", vec![F(5e-324)], "0x0.0000000000001p-1022"),
            ("%y", vec![], "%y"),
            ("end %", vec![], "end "),
        ] {
            assert_eq!(printed(format, &arguments).0, text, "{format}");
        }
    }

    #[test]
    fn arguments_lie_at_multiples_of_their_sizes_and_are_counted() {
        assert_eq!(printed("%d %f %d %lld", &[I(1), F(0.5), I(2), L(3)]), ("1 0.500000 2 3".to_owned(), 4));
    }

    #[test]
    fn a_field_is_no_wider_than_the_widest() {
        assert_eq!(printed("%999999999d", &[I(1)]).0.len(), MAX_WIDTH);
    }
}
