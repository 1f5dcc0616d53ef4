//! PTX modules as this program keeps them. `build.rs` packs them, and `archive.rs` unpacks one when it is loaded.
//!
//! The modules of a family are compressed as one text, because they differ in little but the types they work on and the numbers of their
//! registers. Each number is therefore written as the difference to the last one of the same class: `%r7, %r9, %rd3` becomes
//! `%r+7, %r+2, %rd+3`. zstd makes 1.1 MB of the 23 MB of PTX then; of the modules one by one it makes 2.4 MB.
#![allow(dead_code, reason = "packing is for build.rs alone")]

use std::fmt::Write;
use std::mem;

/// Begins the line before each module of a family.
const MODULE_LINE: &str = "// module ";

/// The family of a module, which is a file's name: the first two words of its own.
pub fn family(module: &str) -> String {
    module.replace("::", "_").split('_').take(2).collect::<Vec<_>>().join("_")
}

/// A module as part of its family's text.
pub fn pack(name: &str, ptx: &str) -> String {
    let packed = renumber(ptx, digits, |number, last, text| {
        let _ = write!(text, "{:+}", number - mem::replace(last, number)); // a String takes everything
    });
    format!("{MODULE_LINE}{name}\n{packed}")
}

/// Names and packed PTX of the modules in a family's text.
pub fn modules(family: &str) -> impl Iterator<Item = (&str, &str)> {
    family.split(MODULE_LINE).filter_map(|module| module.split_once('\n'))
}

/// The PTX of a module.
pub fn unpack(packed: &str) -> String {
    let difference = |text: &str| if text.starts_with(['+', '-']) { 1 + digits(&text[1..]) } else { 0 };
    renumber(packed, difference, |difference, last, text| {
        *last = last.wrapping_add(difference);
        let _ = write!(text, "{last}"); // a String takes everything
    })
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Writes the number of each register as `write` does, which gets that number, the last one of the class and the text so far. `length`
/// says how many bytes at the beginning of a text are a number.
fn renumber(ptx: &str, length: impl Fn(&str) -> usize, write: impl Fn(i64, &mut i64, &mut String)) -> String {
    let mut classes: Vec<(&str, i64)> = Vec::new();
    let mut text = String::with_capacity(ptx.len() + ptx.len() / 4);
    let mut rest = ptx;
    while let Some(at) = rest.bytes().position(|byte| byte == b'%') {
        let (before, piece) = rest.split_at(at + 1);
        let (class, piece) = piece.split_at(piece.bytes().take_while(u8::is_ascii_lowercase).count());
        let (number, after) = piece.split_at(length(piece));
        text.push_str(before);
        text.push_str(class);
        match number.parse() {
            Ok(number) => {
                let at = classes.iter().position(|(other, _)| *other == class).unwrap_or_else(|| {
                    classes.push((class, 0));
                    classes.len() - 1
                });
                write(number, &mut classes[at].1, &mut text);
            }
            Err(_) => text.push_str(number),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}
