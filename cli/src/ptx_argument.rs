//! `--arg` of `run-ptx`: a kernel's arguments, checked against its parameters.

use pascaline_virtual_gpu::{Kernel, Param};
use std::path::PathBuf;
use std::str::FromStr;

/// One `--arg`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument {
    /// Device memory filled from a file, written back to one, or both.
    Buffer {
        /// The file with its bytes before the launch.
        from: Option<PathBuf>,
        /// Its size, if no file has it.
        bytes: u64,
        /// The file for its bytes after the launch.
        to: Option<PathBuf>,
    },
    /// A number, in the low bytes.
    Scalar { bits: u64, bytes: u32 },
    /// A parameter's raw bytes from a file, for example a structure's.
    Bytes(PathBuf),
}

const FORMS: &str = "use in:FILE, inout:FILE:OUTFILE, out:BYTES:OUTFILE, bytes:FILE, or i32, u32, i64, u64, f32 or f64 with :VALUE";

impl FromStr for Argument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn number<T: FromStr>(kind: &str, value: &str) -> Result<T, String> {
            value.parse().map_err(|_| format!("`{value}` is no {kind}"))
        }
        let (kind, value) = text.split_once(':').ok_or(FORMS)?;
        let two = || value.rsplit_once(':').filter(|(a, b)| !a.is_empty() && !b.is_empty()).ok_or(FORMS);
        let scalar = |bits: u64, bytes: u32| Ok(Self::Scalar { bits, bytes });
        match kind {
            "in" if !value.is_empty() => Ok(Self::Buffer { from: Some(value.into()), bytes: 0, to: None }),
            "inout" => {
                let (from, to) = two()?;
                Ok(Self::Buffer { from: Some(from.into()), bytes: 0, to: Some(to.into()) })
            }
            "out" => {
                let (bytes, to) = value.split_once(':').filter(|(_, to)| !to.is_empty()).ok_or(FORMS)?;
                Ok(Self::Buffer { from: None, bytes: number("number of bytes", bytes)?, to: Some(to.into()) })
            }
            "bytes" if !value.is_empty() => Ok(Self::Bytes(value.into())),
            "i32" => scalar(u64::from(number::<i32>(kind, value)? as u32), 4),
            "u32" => scalar(number::<u32>(kind, value)?.into(), 4),
            "i64" => scalar(number::<i64>(kind, value)? as u64, 8),
            "u64" => scalar(number(kind, value)?, 8),
            "f32" => scalar(number::<f32>(kind, value)?.to_bits().into(), 4),
            "f64" => scalar(number::<f64>(kind, value)?.to_bits(), 8),
            _ => Err(FORMS.to_owned()),
        }
    }
}

impl Argument {
    /// The size in bytes of the matching parameter: buffers are passed by address. `None` if only the file's size tells it.
    fn parameter_bytes(&self) -> Option<u64> {
        match self {
            Self::Buffer { .. } => Some(8),
            Self::Scalar { bytes, .. } => Some(u64::from(*bytes)),
            Self::Bytes(_) => None,
        }
    }
}

/// Why the arguments do not fit the kernel.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum Misfit {
    #[error("kernel {kernel} has {wanted} parameters, {given} --arg are given: it takes ({signature})")]
    Count { kernel: String, wanted: usize, given: usize, signature: String },
    #[error("--arg number {number} has {given} bytes, but parameter {parameter} of {kernel} has {wanted}")]
    Size { kernel: String, number: usize, parameter: String, wanted: u32, given: u64 },
}

/// Checks the number of the arguments and the size of each.
pub(super) fn fit(kernel: &Kernel, arguments: &[Argument]) -> Result<(), Misfit> {
    if kernel.params.len() != arguments.len() {
        let parameters = kernel.params.iter().map(|p| format!("{}: {} bytes", p.name, p.bytes));
        return Err(Misfit::Count {
            kernel: kernel.name.clone(),
            wanted: kernel.params.len(),
            given: arguments.len(),
            signature: parameters.collect::<Vec<_>>().join(", "),
        });
    }
    for (i, (parameter, argument)) in kernel.params.iter().zip(arguments).enumerate() {
        if let Some(bytes) = argument.parameter_bytes() {
            fit_size(kernel, i, parameter, bytes)?;
        }
    }
    Ok(())
}

/// Checks the file sizes of arguments that are given as [`bytes`](Argument::Bytes).
pub(super) fn fit_files<'a>(
    kernel: &Kernel,
    inputs: impl Iterator<Item = (&'a Argument, usize)>,
) -> Result<(), Misfit> {
    for (i, (parameter, (argument, bytes))) in kernel.params.iter().zip(inputs).enumerate() {
        if let Argument::Bytes(_) = argument {
            fit_size(kernel, i, parameter, bytes as u64)?;
        }
    }
    Ok(())
}

fn fit_size(kernel: &Kernel, i: usize, parameter: &Param, given: u64) -> Result<(), Misfit> {
    match u64::from(parameter.bytes) == given {
        true => Ok(()),
        false => Err(Misfit::Size {
            kernel: kernel.name.clone(),
            number: i + 1,
            parameter: parameter.name.clone(),
            wanted: parameter.bytes,
            given,
        }),
    }
}

/// `X[,Y[,Z]]`, each at least 1.
pub(super) fn dimensions(text: &str) -> Result<[u32; 3], String> {
    let mut dimensions = [1; 3];
    let words: Vec<_> = text.split(',').collect();
    if words.len() > dimensions.len() {
        return Err("at most three dimensions: X,Y,Z".into());
    }
    for (dimension, word) in dimensions.iter_mut().zip(words) {
        *dimension = match word.trim().parse() {
            Ok(0) | Err(_) => return Err(format!("`{word}` is not a whole number from 1 on")),
            Ok(size) => size,
        };
    }
    Ok(dimensions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let scalar = |bits, bytes| Ok(Argument::Scalar { bits, bytes });
        assert_eq!("i32:-1".parse(), scalar(0xffff_ffff, 4));
        assert_eq!("i64:-2".parse(), scalar(u64::MAX - 1, 8));
        assert_eq!("u32:7".parse(), scalar(7, 4));
        assert_eq!("u64:18446744073709551615".parse(), scalar(u64::MAX, 8));
        assert_eq!("f32:-1.5".parse(), scalar(0xbfc0_0000, 4));
        assert_eq!("f64:1e3".parse(), scalar(1000f64.to_bits(), 8));
        let buffer = |from: Option<&str>, bytes, to: Option<&str>| {
            Ok(Argument::Buffer { from: from.map(Into::into), bytes, to: to.map(Into::into) })
        };
        assert_eq!("in:a b:c".parse(), buffer(Some("a b:c"), 0, None));
        assert_eq!("inout:a:b".parse(), buffer(Some("a"), 0, Some("b")));
        assert_eq!("out:16:b".parse(), buffer(None, 16, Some("b")));
        assert_eq!("bytes:a:b".parse(), Ok(Argument::Bytes("a:b".into())));
        for text in
            ["", "in:", "bytes:", "inout:a", "inout::b", "out:16", "out:x:y", "u32:-1", "i32:x", "f16:1", "7"]
        {
            assert!(text.parse::<Argument>().is_err(), "{text}");
        }
    }

    #[test]
    fn dimensions_are_one_to_three_numbers() {
        assert_eq!(dimensions("7"), Ok([7, 1, 1]));
        assert_eq!(dimensions("7,8,9"), Ok([7, 8, 9]));
        for text in ["", "0", "1,", "1,2,3,4", "-1"] {
            assert!(dimensions(text).is_err(), "{text}");
        }
    }
}
