//! A kernel's parameters as its PTX declares them, and their comparison with its contract.

use crate::{Error, Result};
use cuda_std::KernelInfo;
use std::collections::HashMap;

/// The driver's code for PTX that it can't take.
const MISMATCH: u32 = 218;

/// A parameter of a kernel as the PTX declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    /// Its size; 0 for a type that is not known.
    pub bytes: usize,
    pub kind: Kind,
}

/// The kind of a parameter or an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A float.
    Float,
    /// An integer or an address.
    Integer,
    /// Bytes of any type.
    Bytes,
}

/// Compares a kernel's contract with its parameters in the PTX.
pub(super) fn agree(info: &KernelInfo, found: impl Iterator<Item = usize>) -> Result<()> {
    let found: Vec<usize> = found.collect();
    if found == info.parameters {
        return Ok(());
    }
    let (name, wanted) = (info.name, info.parameters);
    let log = format!(
        "kernel {name}: its parameters have {found:?} bytes in the PTX and {wanted:?} in the program; compile them from one source"
    );
    Err(Error::ModuleLoad { code: MISMATCH, log })
}

/// Compares the contracts of a module's kernels with its text. A kernel that is not there is for the driver to say.
pub(super) fn agree_all<'a>(ptx: &str, kernels: impl Iterator<Item = &'a KernelInfo>) -> Result<()> {
    let parameters = parameters(ptx);
    for info in kernels {
        if let Some(found) = parameters.get(info.name) {
            agree(info, found.iter().map(|parameter| parameter.bytes))?;
        }
    }
    Ok(())
}

/// The parameters of each `.entry NAME(.param .u64 a, .param .align 8 .b8 p[16])`. The driver reports them only since
/// CUDA 12.4.
pub(super) fn parameters(ptx: &str) -> HashMap<String, Vec<Parameter>> {
    let entries = ptx.match_indices(".entry").filter_map(|(at, word)| {
        let line = ptx[..at].rfind('\n').map_or(0, |end| end + 1);
        if ptx[line..at].contains("//") {
            return None;
        }
        // the contract alone, and not the code after it
        let mut head = String::new();
        for line in ptx[at + word.len()..].lines() {
            let line = line.split("//").next().unwrap_or(line);
            let end = line.find(['{', ';']);
            head.push_str(&line[..end.unwrap_or(line.len())]);
            head.push('\n');
            if end.is_some() {
                break;
            }
        }
        let head = head.trim_start();
        let end = head.find(|c: char| !c.is_alphanumeric() && !"_$%".contains(c)).unwrap_or(head.len());
        let (name, list) = head.split_at(end);
        let list = list.trim_start().strip_prefix('(').and_then(|list| list.split(')').next());
        let parameters =
            list.map_or(Vec::new(), |list| list.split(".param").skip(1).map(parameter).collect());
        Some((name.to_owned(), parameters))
    });
    entries.collect()
}

/// `.u64 .ptr .align 1 a` or `.align 8 .b8 p[16]`.
fn parameter(text: &str) -> Parameter {
    let typed = text.split_whitespace().find_map(|word| {
        let kind = match word.strip_prefix('.')?.chars().next()? {
            'u' | 's' => Kind::Integer,
            'b' => Kind::Bytes,
            'f' => Kind::Float,
            _ => return None,
        };
        word.get(2..)?.parse().ok().map(|bits: usize| (kind, bits))
    });
    let (kind, bits) = typed.unwrap_or((Kind::Bytes, 0));
    let count = text.split_once('[').and_then(|(_, rest)| rest.split(']').next()?.trim().parse().ok());
    Parameter { bytes: bits / 8 * count.unwrap_or(1), kind }
}

#[cfg(test)]
mod tests {
    use super::{Kind, parameters};

    #[test]
    fn parameters_are_found_however_the_text_is_broken() {
        let ptx = ".visible .entry one(\n\t.param .u64 .ptr .align 1 a\n)\n{ ret; }\n// .entry two(.param .u32 n)\n\
                   .entry two ( .param .align 8 .b8 p[16], // .param {\n .param .f32 x)\n.maxntid 32\n{ ret; }\n\
                   .entry none { ret; }\n.entry\nempty() { ret; }";
        let sizes = parameters(ptx);
        let of =
            |name: &str| Some(sizes.get(name)?.iter().map(|parameter| parameter.bytes).collect::<Vec<_>>());
        assert_eq!(
            [of("one"), of("two"), of("none"), of("empty")],
            [Some(vec![8]), Some(vec![16, 4]), Some(vec![]), Some(vec![])]
        );
        assert_eq!(
            sizes["two"].iter().map(|parameter| parameter.kind).collect::<Vec<_>>(),
            [Kind::Bytes, Kind::Float]
        );
        assert_eq!(sizes.len(), 4);
    }
}
