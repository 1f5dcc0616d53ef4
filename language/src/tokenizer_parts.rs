//! Checks the parts of a `tokenizer.json`: only those of the models' own tokenizer are accepted.
//!
//! The format describes tokenizers of every kind. The crate that reads it panics on some inconsistent files, hangs on
//! others, and truncates or pads texts if the file says so. Parts that the published tokenizers do not have are refused by
//! name before the crate reads the file.

use super::json::{Fields, bad};
use pascaline::Result;
use serde_json::{Map, Value};
use std::path::Path;

/// The pre-tokenizer's pattern. Another pattern could take exponential time on a text.
pub(crate) const PATTERN: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\
    \\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// The most bytes of an added token, and of all together; the published ones have up to 20 and 400.
pub(crate) const MAX_ADDED: [usize; 2] = [256, 16 << 10];

/// Refuses everything but a byte-level BPE tokenizer as the models have it.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the part.
pub(super) fn check(file: &Path, root: &Map<String, Value>, vocab_size: usize) -> Result<()> {
    let top = Fields::new(file, "", root);
    let known = [
        "version",
        "truncation",
        "padding",
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
        "model",
    ];
    no_others(top, root, &known)?;
    for name in ["truncation", "padding"] {
        if top.get(name).is_some() {
            return Err(top.bad(name, "is not supported, as it changes what is asked; set it to null"));
        }
    }
    if let Some(normalizer) = part(top, "normalizer", "normalizer.")? {
        is_a(normalizer, &["NFC"])?;
        no_others(normalizer.fields, normalizer.map, &["type"])?;
    }
    check_words(file, top.required("pre_tokenizer", part(top, "pre_tokenizer", "pre_tokenizer.")?)?)?;
    if let Some(processor) = part(top, "post_processor", "post_processor.")? {
        byte_level(processor)?;
    }
    byte_level(top.required("decoder", part(top, "decoder", "decoder.")?)?)?;
    check_added(file, top, vocab_size)?;
    check_model(top.required("model", part(top, "model", "model.")?)?, vocab_size)
}

/// An object of the file.
#[derive(Clone, Copy)]
struct Part<'a> {
    fields: Fields<'a>,
    map: &'a Map<String, Value>,
}

/// An object inside another one; `prefix` is the path of its fields.
fn part<'a>(of: Fields<'a>, name: &str, prefix: &'a str) -> Result<Option<Part<'a>>> {
    let fields = of.object(name, prefix)?;
    Ok(fields.zip(of.get(name).and_then(Value::as_object)).map(|(fields, map)| Part { fields, map }))
}

fn no_others(fields: Fields, map: &Map<String, Value>, known: &[&str]) -> Result<()> {
    match map.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(fields.bad(name, "is not supported")),
    }
}

fn is_a(part: Part, kinds: &[&str]) -> Result<()> {
    let kind = part.fields.required("type", part.fields.str("type")?)?;
    match kinds.contains(&kind) {
        true => Ok(()),
        false => {
            Err(part.fields.bad("type", format!("{kind} is not supported, only {}", kinds.join(" and "))))
        }
    }
}

fn byte_level(part: Part) -> Result<()> {
    is_a(part, &["ByteLevel"])?;
    let flags = ["add_prefix_space", "trim_offsets", "use_regex"];
    no_others(part.fields, part.map, &[&["type"][..], &flags].concat())?;
    flags.iter().try_for_each(|flag| part.fields.bool(flag).map(drop))
}

/// If the field is there, it must have one of these values.
fn must_be(fields: Fields, name: &str, values: &[Value]) -> Result<()> {
    match fields.get(name) {
        Some(found) if !values.contains(found) => Err(fields.bad(name, format!("{found} is not supported"))),
        _ => Ok(()),
    }
}

/// Splits into words by the pattern, then into bytes.
fn check_words(file: &Path, sequence: Part) -> Result<()> {
    is_a(sequence, &["Sequence"])?;
    no_others(sequence.fields, sequence.map, &["type", "pretokenizers"])?;
    let steps = sequence.fields.get("pretokenizers").and_then(Value::as_array).map(Vec::as_slice);
    let Some([Value::Object(split), Value::Object(bytes)]) = steps else {
        return Err(sequence
            .fields
            .bad("pretokenizers", "is not Split and ByteLevel, all that is supported"));
    };
    let inside = |map, prefix| Part { fields: Fields::new(file, prefix, map), map };
    let split = inside(split, "pre_tokenizer.pretokenizers[0].");
    is_a(split, &["Split"])?;
    no_others(split.fields, split.map, &["type", "pattern", "behavior", "invert"])?;
    let pattern = split.fields.object("pattern", "pre_tokenizer.pretokenizers[0].pattern.")?;
    if pattern.is_none_or(|pattern| pattern.get("Regex").and_then(Value::as_str) != Some(PATTERN)) {
        return Err(split
            .fields
            .bad("pattern", "is not that of the published models, the only one supported"));
    }
    must_be(split.fields, "behavior", &["Isolated".into()])?;
    must_be(split.fields, "invert", &[false.into()])?;
    byte_level(inside(bytes, "pre_tokenizer.pretokenizers[1]."))
}

fn check_added(file: &Path, top: Fields, vocab_size: usize) -> Result<()> {
    let Some(added) = top.get("added_tokens") else { return Ok(()) };
    let Some(added) = added.as_array() else { return Err(top.bad("added_tokens", "is not a list")) };
    let mut bytes = 0;
    for token in added {
        let Value::Object(map) = token else {
            return Err(top.bad("added_tokens", "an entry is not an object"));
        };
        let fields = Fields::new(file, "added_tokens.", map);
        let flags = ["single_word", "lstrip", "rstrip", "normalized", "special"];
        no_others(fields, map, &[&["id", "content"][..], &flags].concat())?;
        flags.iter().try_for_each(|flag| fields.bool(flag).map(drop))?;
        let id = fields.required("id", fields.id("id")?)?;
        if id as usize >= vocab_size {
            let reason = format!("id {id} is outside the model's vocabulary of {vocab_size}");
            return Err(fields.bad("id", reason));
        }
        let len = fields.required("content", fields.str("content")?)?.len();
        bytes += len;
        if !(1..=MAX_ADDED[0]).contains(&len) || bytes > MAX_ADDED[1] {
            let [one, all] = MAX_ADDED;
            let reason = format!("has {len} bytes; a token has 1 to {one}, all together up to {all}");
            return Err(fields.bad("content", reason));
        }
    }
    Ok(())
}

fn check_model(model: Part, vocab_size: usize) -> Result<()> {
    let Part { fields, map } = model;
    is_a(model, &["BPE"])?;
    let (none, empty, no): (&[Value], &[Value], &[Value]) = (&[], &["".into()], &[false.into()]);
    for (name, values) in [
        ("dropout", none),
        ("unk_token", none),
        ("continuing_subword_prefix", empty),
        ("end_of_word_suffix", empty),
        ("fuse_unk", no),
        ("byte_fallback", no),
    ] {
        must_be(fields, name, values)?;
    }
    fields.bool("ignore_merges")?;
    let known =
        ["type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"];
    no_others(fields, map, &[&known[..], &["byte_fallback", "ignore_merges", "vocab", "merges"]].concat())?;

    let vocab = fields.get("vocab").and_then(Value::as_object);
    let vocab = fields.required("vocab", vocab)?;
    for (token, id) in vocab {
        if id.as_u64().is_none_or(|id| id >= vocab_size as u64) {
            let reason = format!("id {id} of {token:?} is outside the model's vocabulary of {vocab_size}");
            return Err(fields.bad("vocab", reason));
        }
    }
    let merges = fields.get("merges").and_then(Value::as_array);
    let merges = fields.required("merges", merges)?;
    // each adds a token
    if merges.len() > vocab.len() {
        let reason = format!("{} of a vocabulary of {}", merges.len(), vocab.len());
        return Err(fields.bad("merges", reason));
    }
    let is_pair = |merge: &Value| match merge {
        Value::String(pair) => pair.split(' ').count() == 2,
        Value::Array(pair) => pair.len() == 2 && pair.iter().all(Value::is_string),
        _ => false,
    };
    match merges.iter().find(|merge| !is_pair(merge)) {
        None => Ok(()),
        Some(merge) => Err(bad(fields.file(), Some("model.merges"), format!("{merge} is no pair of tokens"))),
    }
}
