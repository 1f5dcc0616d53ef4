//! A model's file, or the files that it was split into, as one; and reading its tensors.
//!
//! A split model's files are named `NAME-00001-of-00003.gguf` and so on. The first has the metadata; each states its own
//! number (`split.no`, from 0), how many there are (`split.count`) and the tensors of all (`split.tensors.count`).

use super::container::{Container, TensorInfo};
use super::metadata::Metadata;
use crate::json::bad;
use crate::number::{Number, first_wrong};
use crate::read_at::read_exact_at;
use bytemuck::zeroed_vec;
use pascaline::quant::GgmlType;
use pascaline::{DType, Error, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Values that a thread reads and converts at a time: a multiple of every type's block.
const PIECE: usize = 1 << 17;
/// Values that are dequantised at a time: as many as the largest block has.
const WINDOW: usize = 256;

/// An open, checked model: one file, or several.
#[derive(Debug)]
pub struct Gguf {
    files: Vec<Container>,
    /// name → file
    index: BTreeMap<String, usize>,
}

/// The path without `-00001-of-00003.gguf`, the number in it and the count.
fn split_name(path: &Path) -> Option<(String, u64, u64)> {
    let (base, rest) = path.to_str()?.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (base, number) = base.rsplit_once('-')?;
    let parse = |digits: &str| match digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse().ok(),
        false => None,
    };
    Some((base.to_owned(), parse(number)?, parse(rest)?))
}

/// Whether a file's name is that of the second or a later part of a split model.
pub(crate) fn is_later_part(path: &Path) -> bool {
    split_name(path).is_some_and(|(_, number, _)| number > 1)
}

impl Gguf {
    /// Opens a file. If it is the first of a split model, opens the others in its folder too.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file, the key or tensor where there is one, and what is wrong.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let first = Container::open(&path)?;
        let metadata = first.metadata();
        let count = metadata.unsigned("split.count")?.unwrap_or(1);
        let named = split_name(&path);
        match &named {
            Some((base, number, of)) if (*number, *of) != (1, count) => {
                let reason = match *of == count {
                    true => format!("is part {number} of {of}; name the first, {base}-00001-of-{of:05}.gguf"),
                    false => format!("is {count}, the file's name says {of}"),
                };
                return Err(metadata.bad("split.count", reason));
            }
            None if count > 1 => {
                let reason =
                    format!("is {count}, but the file's name does not end in -00001-of-{count:05}.gguf");
                return Err(metadata.bad("split.count", reason));
            }
            _ => {}
        }
        let total = metadata.unsigned("split.tensors.count")?;
        let mut files = vec![first];
        if let (Some((base, ..)), 2..) = (&named, count) {
            for number in 2..=count {
                files.push(Container::open(format!("{base}-{number:05}-of-{count:05}.gguf"))?);
            }
        }
        let gguf = Self::joined(files)?;
        let check = |metadata: &Metadata, key: &str, expected: u64| match metadata.unsigned(key)? {
            None if gguf.files.len() == 1 => Ok(()),
            found if found == Some(expected) => Ok(()),
            found => {
                let found = found.map_or("missing".to_owned(), |found| format!("is {found}"));
                Err(metadata.bad(key, format!("{found}, expected {expected}")))
            }
        };
        for (number, file) in gguf.files.iter().enumerate() {
            check(file.metadata(), "split.no", number as u64)?;
            check(file.metadata(), "split.count", count)?;
            check(file.metadata(), "split.tensors.count", total.unwrap_or(gguf.index.len() as u64))?;
        }
        if total.is_some_and(|total| total != gguf.index.len() as u64) {
            let reason = format!("is {}, the files have {}", total.unwrap_or(0), gguf.index.len());
            return Err(gguf.metadata().bad("split.tensors.count", reason));
        }
        Ok(gguf)
    }

    fn joined(files: Vec<Container>) -> Result<Self> {
        let mut index = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            for name in file.tensors().keys() {
                if let Some(other) = index.insert(name.clone(), number) {
                    let reason = format!("is in {} too", files[other].path().display());
                    return Err(bad(file.path(), Some(name), reason));
                }
            }
        }
        Ok(Self { files, index })
    }

    /// The file's path; of a split model, the first's.
    pub fn path(&self) -> &Path {
        self.files[0].path()
    }

    /// The model's keys.
    pub fn metadata(&self) -> &Metadata {
        self.files[0].metadata()
    }

    /// The files.
    pub fn files(&self) -> &[Container] {
        &self.files
    }

    /// All tensors' names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.files[*self.index.get(name)?].tensors().get(name)
    }

    /// The file that a tensor is in; the first file if there is no such tensor.
    pub fn file_of(&self, name: &str) -> &Path {
        self.files[self.index.get(name).copied().unwrap_or(0)].path()
    }

    /// The error for a tensor.
    pub fn bad(&self, name: &str, reason: impl Into<String>) -> Error {
        bad(self.file_of(name), Some(name), reason)
    }

    fn held(&self, name: &str) -> Result<(&Container, &TensorInfo)> {
        let found = self.index.get(name).and_then(|&file| {
            let file = &self.files[file];
            Some((file, file.tensors().get(name)?))
        });
        found.ok_or_else(|| self.bad(name, "missing"))
    }

    /// A tensor's values: in f32 exact for unquantised types, otherwise as ggml dequantises them; in f16 these, rounded to nearest even.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is no such tensor, a value is not finite or beyond f16's range, or the file can't be read any more.
    pub fn read<T: Number>(&self, name: &str) -> Result<Vec<T>> {
        let mut values = zeroed_vec(self.held(name)?.1.values()); // the threads write all of it
        let pieces = values.par_chunks_mut(PIECE).enumerate();
        pieces.try_for_each(|(piece, values)| self.read_into(name, piece * PIECE, values))?;
        Ok(values)
    }

    /// As [`read`](Self::read), the values from number `first` on, on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn read_into<T: Number>(&self, name: &str, first: usize, values: &mut [T]) -> Result<()> {
        let (file, info) = self.held(name)?;
        if first.checked_add(values.len()).is_none_or(|end| end > info.values()) {
            return Err(self.bad(name, format!("has {} values", info.values())));
        }
        if matches!((info.ty, T::DTYPE), (GgmlType::F16, DType::F16) | (GgmlType::F32, DType::F32)) {
            self.fill(
                name,
                file,
                bytemuck::cast_slice_mut(values),
                info.begin + info.ty.bytes(first) as u64,
            )?;
            values.iter_mut().for_each(|value| *value = value.in_native_order());
        } else {
            // whole blocks, of which the first may begin before the values and the last end after them
            let block = info.ty.block();
            let (begin, end) = (first / block * block, (first + values.len()).next_multiple_of(block));
            let mut bytes = vec![0; info.ty.bytes(end - begin)];
            self.fill(name, file, &mut bytes, info.begin + info.ty.bytes(begin) as u64)?;
            let mut wide = [0f32; WINDOW];
            let (mut skipped, mut rest) = (first - begin, &mut *values);
            for bytes in bytes.chunks(info.ty.bytes(WINDOW)) {
                pascaline::quant::dequantize_blocks(info.ty, bytes, &mut wide);
                let (own, others) = rest.split_at_mut(rest.len().min(WINDOW - skipped));
                T::narrow(own, &wide[skipped..]);
                (skipped, rest) = (0, others);
            }
        }
        match first_wrong(values) {
            None => Ok(()),
            Some((at, wrong)) => Err(self.bad(name, format!("value {} {wrong}", first + at))),
        }
    }

    /// Reads a tensor's bytes as they are in the file; `bytes` must have that length.
    ///
    /// # Errors
    /// As [`read`](Self::read); of quantised tensors only the scales are checked.
    pub fn read_bytes(&self, name: &str, bytes: &mut [u8]) -> Result<()> {
        let (file, info) = self.held(name)?;
        if bytes.len() != info.bytes {
            return Err(self.bad(name, format!("has {} bytes, not {}", info.bytes, bytes.len())));
        }
        let (block, ty) = (info.ty.block_bytes(), info.ty.descriptor());
        let piece = info.ty.bytes(PIECE);
        bytes.par_chunks_mut(piece).enumerate().try_for_each(|(number, bytes)| {
            self.fill(name, file, bytes, info.begin + (number * piece) as u64)?;
            // All exponent bits set: the f16 is not finite. The same of an E8M0 is NaN.
            let is_finite = |block: &[u8]| {
                ty.scales.iter().all(|&at| block[at + 1] & 0x7c != 0x7c)
                    && ty.exponent.is_none_or(|at| block[at] != 255)
            };
            match bytes.chunks_exact(block).position(|block| !is_finite(block)) {
                None => Ok(()),
                Some(at) => {
                    let value = (number * piece / block + at) * info.ty.block();
                    Err(self.bad(name, format!("the scale of the block at value {value} is not finite")))
                }
            }
        })
    }

    fn fill(&self, name: &str, file: &Container, bytes: &mut [u8], at: u64) -> Result<()> {
        let read = read_exact_at(file.file(), bytes, at);
        read.map_err(|error| self.bad(name, format!("can't be read: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_split_files() {
        let of = |name: &str| split_name(Path::new(name));
        assert_eq!(of("a/b-c-00002-of-00003.gguf"), Some(("a/b-c".into(), 2, 3)));
        for name in
            ["b.gguf", "b-1-of-3.gguf", "b-00001-of-00003", "b-0000+-of-00003.gguf", "b-00001-of-.gguf"]
        {
            assert_eq!(of(name), None, "{name}");
        }
    }

    #[test]
    fn pieces_are_whole_blocks() {
        assert!(GgmlType::ALL.iter().all(|ty| PIECE.is_multiple_of(ty.block()) && 256 % ty.block() == 0));
    }
}
