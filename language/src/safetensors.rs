//! Reads safetensors files, which are not trusted.
//!
//! Format: <https://huggingface.co/docs/safetensors> — eight bytes of header length, little-endian; a JSON object
//! `name → {dtype, shape, data_offsets}`; the data.
//! When a file is opened these are checked: the header's length, that names are unique, that every size is type × shape,
//! and that the ranges cover the data without gap or overlap. Data is read with positioned reads, not memory-mapped: a file
//! that is truncated while in use gives an error and not a signal.

use super::files::open_regular;
use super::json::{bad, refuse_lfs_pointer};
use super::number::{Number, first_wrong};
use super::read_at::read_exact_at;
use bytemuck::zeroed_vec;
use half::{bf16, f16};
use pascaline::{DType, Error, Result};
use rayon::prelude::*;
use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The longest header; the reference implementation's limit too.
pub const MAX_HEADER: u64 = 100_000_000;
/// Elements that a thread reads at a time.
const PIECE: usize = 1 << 18;
/// Elements that are converted at a time.
const WINDOW: usize = 256;

/// How a tensor's elements are stored in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// Signed 64-bit.
    I64,
    /// 8 bits, of which 4 are exponent; no infinities. A scale for each block stands in another tensor.
    F8E4M3,
}

impl FileType {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::BF16,
            "I64" => Self::I64,
            "F8_E4M3" => Self::F8E4M3,
            _ => return None,
        })
    }

    /// Whether elements of this type are stored so.
    fn is(self, dtype: DType) -> bool {
        matches!((self, dtype), (Self::F32, DType::F32) | (Self::F16, DType::F16))
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I64 => 8,
            Self::F8E4M3 => 1,
        }
    }
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// How its elements are stored.
    pub dtype: FileType,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its first byte, counted from the start of the file.
    begin: u64,
}

impl Entry {
    /// The number of its elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An open, checked file.
#[derive(Debug)]
pub struct SafeTensors {
    path: PathBuf,
    file: File,
    entries: BTreeMap<String, Entry>,
}

impl SafeTensors {
    /// Opens a file and checks its header against its length.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file, the tensor where there is one, and what is wrong.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let io = |error: std::io::Error| bad(&path, None, error.to_string());
        let mut file = open_regular(&path).map_err(io)?;
        let file_len = file.metadata().map_err(io)?.len();
        if file_len < 8 {
            return Err(bad(&path, None, format!("truncated: {file_len} bytes are no safetensors file")));
        }
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(io)?;
        let header_len = u64::from_le_bytes(prefix);
        if header_len > MAX_HEADER {
            let mut beginning = prefix.to_vec();
            (&file).take(64).read_to_end(&mut beginning).map_err(io)?;
            refuse_lfs_pointer(&path, &beginning)?;
            let reason = format!(
                "no safetensors file: its header would have {header_len} bytes, of at most {MAX_HEADER}"
            );
            return Err(bad(&path, None, reason));
        }
        if header_len > file_len - 8 {
            let reason = format!("truncated: a header of {header_len} bytes in a file of {file_len}");
            return Err(bad(&path, None, reason));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).map_err(io)?;
        let entries = parse_header(&path, &header, 8 + header_len, file_len)?;
        Ok(Self { file, path, entries })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// A tensor's elements in f32: exact, since all file types but I64 are subsets, and F8_E4M3 is read with its scales.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is no such tensor, it holds integers or a value that is not finite, or the
    /// file can't be read any more.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        self.read(name, 0..self.entry(name)?.elements())
    }

    /// A tensor's elements in f16, rounded to nearest even.
    ///
    /// # Errors
    /// As [`read_f32`](Self::read_f32), and if a value is beyond f16's range.
    pub fn read_f16(&self, name: &str) -> Result<Vec<f16>> {
        self.read(name, 0..self.entry(name)?.elements())
    }

    /// Some of a tensor's elements, on several threads; in f16 rounded to nearest even.
    ///
    /// # Errors
    /// As [`read_f32`](Self::read_f32), and if a value is beyond f16's range.
    pub fn read<T: Number>(&self, name: &str, range: Range<usize>) -> Result<Vec<T>> {
        self.check_range(name, &range)?;
        let mut values = zeroed_vec(range.len()); // the threads write all of it
        let pieces = values.par_chunks_mut(PIECE).enumerate();
        pieces.try_for_each(|(piece, values)| self.read_into(name, range.start + piece * PIECE, values))?;
        Ok(values)
    }

    /// As [`read`](Self::read), the elements from `first` on, on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn read_into<T: Number>(&self, name: &str, first: usize, values: &mut [T]) -> Result<()> {
        let dtype = self.check_range(name, &(first..first + values.len()))?.dtype;
        match dtype {
            FileType::F32 | FileType::F16 if dtype.is(T::DTYPE) => {
                self.read_at(name, first, bytemuck::cast_slice_mut(values))?;
                values.iter_mut().for_each(|value| *value = value.in_native_order());
            }
            FileType::F32 => self.convert(name, first, values, f32::from_le_bytes)?,
            FileType::F16 => self.convert(name, first, values, |bytes| f16::from_le_bytes(bytes).to_f32())?,
            FileType::BF16 => {
                self.convert(name, first, values, |bytes| bf16::from_le_bytes(bytes).to_f32())?
            }
            FileType::I64 | FileType::F8E4M3 => return Err(self.no_numbers(name)),
        }
        match first_wrong(values) {
            None => Ok(()),
            Some((at, wrong)) => Err(self.bad(name, format!("element {} {wrong}", first + at))),
        }
    }

    fn convert<const N: usize, T: Number>(
        &self,
        name: &str,
        first: usize,
        values: &mut [T],
        from: impl Fn([u8; N]) -> f32,
    ) -> Result<()> {
        let mut bytes = vec![0; values.len() * N];
        self.read_at(name, first, &mut bytes)?;
        let mut wide = [0f32; WINDOW];
        for (values, bytes) in values.chunks_mut(WINDOW).zip(bytes.chunks(WINDOW * N)) {
            for (wide, bytes) in wide.iter_mut().zip(bytes.as_chunks().0) {
                *wide = from(*bytes);
            }
            T::narrow(values, &wide);
        }
        Ok(())
    }

    /// Reads bytes from element `first` of a tensor on. The range has been checked.
    fn read_at(&self, name: &str, first: usize, bytes: &mut [u8]) -> Result<()> {
        let entry = self.entry(name)?;
        let read = read_exact_at(&self.file, bytes, entry.begin + (first * entry.dtype.size()) as u64);
        read.map_err(|error| self.bad(name, format!("can't be read: {error}")))
    }

    /// The tensor, if it has these elements.
    fn check_range(&self, name: &str, range: &Range<usize>) -> Result<&Entry> {
        let entry = self.entry(name)?;
        match range.end <= entry.elements() {
            true => Ok(entry),
            false => Err(self.bad(name, format!("has {} elements, not {}", entry.elements(), range.end))),
        }
    }

    /// A tensor of 64-bit integers.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is no such tensor, it holds something else, or the file can't be read any more.
    pub fn read_i64(&self, name: &str) -> Result<Vec<i64>> {
        let entry = self.entry(name)?;
        if entry.dtype != FileType::I64 {
            return Err(self.bad(name, format!("is {:?}, expected I64", entry.dtype)));
        }
        let bytes = self.read_bytes(name, 0..entry.elements())?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// The bytes of some of a tensor's elements.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is no such tensor, or the file can't be read any more.
    pub fn read_bytes(&self, name: &str, range: Range<usize>) -> Result<Vec<u8>> {
        let size = self.check_range(name, &range)?.dtype.size();
        let mut all = zeroed_vec(range.len() * size);
        let pieces = all.par_chunks_mut(PIECE * size).enumerate();
        pieces.try_for_each(|(piece, bytes)| self.read_at(name, range.start + piece * PIECE, bytes))?;
        Ok(all)
    }

    fn no_numbers(&self, name: &str) -> Error {
        self.bad(name, "holds integers or codes with scales, not numbers")
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| self.bad(name, "missing"))
    }

    /// The error for a tensor.
    pub fn bad(&self, name: &str, reason: impl Into<String>) -> Error {
        bad(&self.path, Some(name), reason)
    }
}

/// An entry as the header spells it; unknown and repeated fields are refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

fn parse_header(path: &Path, header: &[u8], data: u64, file_len: u64) -> Result<BTreeMap<String, Entry>> {
    let mut raw = Header::default();
    let mut json = serde_json::Deserializer::from_slice(header);
    let parsed = (&mut raw).deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = parsed {
        return Err(bad(path, raw.at.as_deref(), format!("the header is malformed: {error}")));
    }

    let mut entries = BTreeMap::new();
    let mut ranges = Vec::with_capacity(raw.entries.len());
    for (name, RawEntry { dtype, shape, data_offsets: [begin, end] }) in raw.entries {
        let wrong = |reason: String| bad(path, Some(&name), reason);
        let Some(dtype) = FileType::parse(&dtype) else {
            return Err(wrong(format!(
                "type {dtype} is not supported, only F32, F16, BF16, F8_E4M3 and I64"
            )));
        };
        let shape = shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>();
        let bytes = shape.as_ref().and_then(|shape| {
            shape.iter().try_fold(dtype.size(), |product, &size| product.checked_mul(size))
        });
        let (Some(shape), Some(bytes)) = (shape, bytes) else {
            return Err(wrong("its size overflows".into()));
        };
        if bytes == 0 {
            return Err(wrong("has no elements".into()));
        }
        if end.checked_sub(begin) != Some(bytes as u64) {
            return Err(wrong(format!(
                "is {bytes} bytes by type and shape, but its range is {begin}..{end}"
            )));
        }
        if end > file_len - data {
            let reason = format!("truncated: it ends at {end}, the file's data at {}", file_len - data);
            return Err(wrong(reason));
        }
        ranges.push((begin, end, name.clone()));
        entries.insert(name, Entry { dtype, shape, begin: data + begin });
    }
    ranges.sort_unstable();
    let mut covered = 0;
    for (begin, end, name) in ranges {
        if begin != covered {
            let what = if begin < covered { "overlaps the one before" } else { "leaves a hole before it" };
            return Err(bad(path, Some(&name), format!("its range {begin}..{end} {what}")));
        }
        covered = end;
    }
    match covered == file_len - data {
        true => Ok(entries),
        false => Err(bad(path, None, format!("{} bytes after the last tensor", file_len - data - covered))),
    }
}

/// The header's entries in order, and the last name read, for errors.
#[derive(Default)]
struct Header {
    entries: HashMap<String, RawEntry>,
    at: Option<String>,
}

impl<'de> DeserializeSeed<'de> for &mut Header {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Header {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            self.at = Some(name.clone());
            if name == "__metadata__" {
                map.next_value::<HashMap<String, String>>()?;
                if std::mem::replace(&mut metadata, true) {
                    return Err(A::Error::custom("it comes twice"));
                }
            } else if self.entries.insert(name, map.next_value()?).is_some() {
                return Err(A::Error::custom("it comes twice"));
            }
        }
        self.at = None;
        Ok(())
    }
}
