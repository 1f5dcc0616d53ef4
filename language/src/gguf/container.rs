//! The header of one file. Counts and lengths are compared with the remaining bytes of the file before anything is
//! allocated for them. Products and sums are checked for overflow. Tensors must lie one after the other, aligned, inside
//! the file.

use super::metadata::{Array, Metadata, Value};
use crate::files::open_regular;
use crate::json::{bad, refuse_lfs_pointer};
use crate::read_at::read_exact_at;
use pascaline::quant::GgmlType;
use pascaline::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The most bytes of everything before the tensors; a vocabulary of 152 thousand tokens takes 6 MB.
const MAX_HEADER: u64 = 100_000_000;
/// The most bytes of a key or of a tensor's name; published ones have up to 50.
const MAX_NAME: u64 = 1024;
/// The most keys, and the most tensors; published files have about 40 and up to 1000.
const MAX_ENTRIES: u64 = 1 << 16;
/// The most values of all lists together; published files have 460 thousand.
const MAX_LISTED: u64 = 1 << 23;
/// The deepest nesting of lists; published files have none.
const MAX_DEPTH: usize = 3;
/// The most dimensions of a tensor; ggml's.
const MAX_DIMS: u32 = 4;
/// Tensors begin at multiples of this, unless `general.alignment` says otherwise.
const ALIGNMENT: u64 = 32;
/// The key of a different alignment.
const ALIGNMENT_KEY: &str = "general.alignment";
/// Bytes per read.
const WINDOW: usize = 1 << 20;

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// How its values are stored.
    pub ty: GgmlType,
    /// Its dimensions, outermost first; files list them in the opposite order.
    pub shape: Vec<usize>,
    /// Its first byte, counted from the start of the file.
    pub(super) begin: u64,
    /// Its size in bytes.
    pub bytes: usize,
}

impl TensorInfo {
    /// The number of its values.
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An open, checked file.
#[derive(Debug)]
pub struct Container {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Container {
    /// Opens a file and checks its header against its length.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file, the key or tensor where there is one, and what is wrong.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let io = |error: std::io::Error| bad(&path, None, error.to_string());
        let file = open_regular(&path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut header = Header {
            path: &path,
            file: &file,
            len,
            at: 0,
            window: Vec::new(),
            begin: 0,
            item: None,
            listed: 0,
        };
        let (metadata, tensors) = header.parse()?;
        Ok(Self { metadata, tensors, path, file })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its keys.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

/// A header being parsed, from front to back.
struct Header<'a> {
    path: &'a Path,
    file: &'a File,
    /// Of the file.
    len: u64,
    /// The next byte.
    at: u64,
    /// A chunk of the file, and its offset.
    window: Vec<u8>,
    begin: u64,
    /// The key or tensor that is being read, for errors.
    item: Option<String>,
    /// Values of all lists so far.
    listed: u64,
}

impl Header<'_> {
    fn bad(&self, reason: impl Into<String>) -> Error {
        bad(self.path, self.item.as_deref(), reason)
    }

    fn parse(&mut self) -> Result<(Metadata, BTreeMap<String, TensorInfo>)> {
        self.preamble()?;
        let tensors = self.count("tensors", 8 + 1 + 4 + 8 + 4 + 8)?;
        let keys = self.count("keys", 8 + 1 + 4 + 1)?;
        let mut values = BTreeMap::new();
        for _ in 0..keys {
            let key = self.name("a key")?;
            if values.contains_key(&key) {
                return Err(bad(self.path, Some(&key), "the key comes twice"));
            }
            self.item = Some(key.clone());
            let kind = self.u32()?;
            let value = self.value(kind)?;
            self.item = None;
            values.insert(key, value);
        }
        let metadata = Metadata::new(self.path, values);
        let alignment = metadata.unsigned(ALIGNMENT_KEY)?.unwrap_or(ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > u64::from(u32::MAX) {
            return Err(metadata.bad(ALIGNMENT_KEY, format!("{alignment} is no power of two of 32 bits")));
        }
        let tensors = self.tensors(tensors, alignment)?;
        Ok((metadata, tensors))
    }

    fn preamble(&mut self) -> Result<()> {
        if self.len < 24 {
            return Err(self.bad(format!("truncated: {} bytes are no GGUF file", self.len)));
        }
        let beginning = self.take(4)?;
        if beginning != b"GGUF" {
            refuse_lfs_pointer(self.path, &self.window[..self.window.len().min(64)])?;
            return Err(self.bad("not a GGUF file: it does not begin with GGUF"));
        }
        match self.u32()? {
            2 | 3 => Ok(()),
            version if matches!(version.swap_bytes(), 1..=3) => {
                Err(self.bad("is big-endian, which is not supported"))
            }
            version => {
                Err(self.bad(format!("version {version} of the format is not supported, only 2 and 3")))
            }
        }
    }

    /// The next bytes, if the file has that many.
    fn take(&mut self, bytes: u64) -> Result<&[u8]> {
        if bytes > self.len - self.at {
            let left = self.len - self.at;
            return Err(self.bad(format!("truncated: {bytes} bytes are to follow at {}, {left} do", self.at)));
        }
        if self.at + bytes > MAX_HEADER {
            return Err(self.bad(format!("the header is longer than {MAX_HEADER} bytes")));
        }
        let held = self.begin..self.begin + self.window.len() as u64;
        if self.at < held.start || self.at + bytes > held.end {
            let size = bytes.max(WINDOW as u64).min(self.len - self.at);
            self.window.resize(size as usize, 0);
            self.begin = self.at;
            let read = read_exact_at(self.file, &mut self.window, self.at);
            read.map_err(|error| self.bad(format!("can't be read: {error}")))?;
        }
        let from = (self.at - self.begin) as usize;
        self.at += bytes;
        Ok(&self.window[from..from + bytes as usize])
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut word = [0; N];
        word.copy_from_slice(self.take(N as u64)?);
        Ok(word)
    }

    fn u32(&mut self) -> Result<u32> {
        self.word().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.word().map(u64::from_le_bytes)
    }

    /// A number of entries of at least `least` bytes each.
    fn count(&mut self, what: &str, least: u64) -> Result<u64> {
        let count = self.u64()?;
        let room = (self.len - self.at) / least;
        if count > room.min(MAX_ENTRIES) {
            let reason = format!(
                "{count} {what}, of at most {} in a file of {} bytes",
                room.min(MAX_ENTRIES),
                self.len
            );
            return Err(self.bad(reason));
        }
        Ok(count)
    }

    fn string(&mut self, most: u64) -> Result<String> {
        let bytes = self.u64()?;
        if bytes > most {
            return Err(self.bad(format!("a string of {bytes} bytes, of at most {most}")));
        }
        let text = str::from_utf8(self.take(bytes)?).map(str::to_owned);
        text.map_err(|_| self.bad("a string is not UTF-8"))
    }

    fn name(&mut self, what: &str) -> Result<String> {
        let name = self.string(MAX_NAME)?;
        if name.is_empty() { Err(self.bad(format!("{what} is empty"))) } else { Ok(name) }
    }

    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u64::from(self.word::<1>()?[0])),
            1 => Value::Signed(i64::from(self.word::<1>()?[0] as i8)),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.word()?))),
            3 => Value::Signed(i64::from(i16::from_le_bytes(self.word()?))),
            4 => Value::Unsigned(u64::from(self.u32()?)),
            5 => Value::Signed(i64::from(self.u32()? as i32)),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.word()?))),
            7 => Value::Bool(self.bool()?),
            8 => Value::String(self.string(MAX_HEADER)?),
            9 => Value::Array(self.array(1)?),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(self.u64()? as i64),
            12 => Value::Float(f64::from_le_bytes(self.word()?)),
            _ => return Err(self.bad(format!("{kind} is no type of a value"))),
        })
    }

    fn bool(&mut self) -> Result<bool> {
        match self.word::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.bad(format!("{other} is not a boolean"))),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Array> {
        if depth > MAX_DEPTH {
            return Err(self.bad(format!("lists in lists, deeper than {MAX_DEPTH}")));
        }
        let (kind, count) = (self.u32()?, self.u64()?);
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            _ => return Err(self.bad(format!("{kind} is no type of a list's values"))),
        };
        let left = (self.len - self.at).min(MAX_HEADER);
        if count > left / least {
            return Err(self.bad(format!("truncated: a list of {count} values in {left} bytes")));
        }
        self.listed += count;
        if self.listed > MAX_LISTED {
            return Err(self.bad(format!("the lists have more than {MAX_LISTED} values together")));
        }
        let count = count as usize;
        Ok(match kind {
            0 => Array::Unsigned(self.list(count, |header| Ok(u64::from(header.word::<1>()?[0])))?),
            1 => Array::Signed(self.list(count, |header| Ok(i64::from(header.word::<1>()?[0] as i8)))?),
            2 => {
                Array::Unsigned(self.list(count, |header| Ok(u64::from(u16::from_le_bytes(header.word()?))))?)
            }
            3 => Array::Signed(self.list(count, |header| Ok(i64::from(i16::from_le_bytes(header.word()?))))?),
            4 => Array::Unsigned(self.list(count, |header| Ok(u64::from(header.u32()?)))?),
            5 => Array::Signed(self.list(count, |header| Ok(i64::from(header.u32()? as i32)))?),
            6 => Array::Float(self.list(count, |header| Ok(f64::from(f32::from_le_bytes(header.word()?))))?),
            7 => Array::Bool(self.list(count, Self::bool)?),
            8 => Array::String(self.list(count, |header| header.string(MAX_HEADER))?),
            9 => Array::Array(self.list(count, |header| header.array(depth + 1))?),
            10 => Array::Unsigned(self.list(count, Self::u64)?),
            11 => Array::Signed(self.list(count, |header| Ok(header.u64()? as i64))?),
            _ => Array::Float(self.list(count, |header| Ok(f64::from_le_bytes(header.word()?)))?),
        })
    }

    /// Reads `count` values; the caller has checked that the file is long enough.
    fn list<T>(&mut self, count: usize, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    fn tensors(&mut self, count: u64, alignment: u64) -> Result<BTreeMap<String, TensorInfo>> {
        let mut tensors = BTreeMap::new();
        for _ in 0..count {
            let name = self.name("a tensor's name")?;
            self.item = Some(name.clone());
            let info = self.tensor(alignment)?;
            if tensors.insert(name, info).is_some() {
                return Err(self.bad("the tensor comes twice"));
            }
            self.item = None;
        }
        self.place(&mut tensors, alignment)?;
        Ok(tensors)
    }

    /// A tensor's entry; its offset is relative to the first tensor.
    fn tensor(&mut self, alignment: u64) -> Result<TensorInfo> {
        let rank = self.u32()?;
        if !(1..=MAX_DIMS).contains(&rank) {
            return Err(self.bad(format!("has {rank} dimensions, of 1 to {MAX_DIMS}")));
        }
        let dims = (0..rank).map(|_| self.u64()).collect::<Result<Vec<_>>>()?;
        let (id, begin) = (self.u32()?, self.u64()?);
        let Some(ty) = GgmlType::of_id(id) else {
            let names = GgmlType::ALL.map(GgmlType::name).join(", ");
            return Err(self.bad(format!("type number {id} is not supported, only {names}")));
        };
        if dims.contains(&0) {
            return Err(self.bad(format!("has no values: its dimensions are {dims:?}")));
        }
        if !dims[0].is_multiple_of(ty.block() as u64) {
            let reason =
                format!("rows of {} values are not whole blocks of {}'s {}", dims[0], ty.name(), ty.block());
            return Err(self.bad(reason));
        }
        let product = |most: u64, &dim: &u64| most.checked_mul(dim);
        let values = dims.iter().try_fold(1u64, product);
        let bytes = values.map(|values| values / ty.block() as u64);
        let bytes = bytes.and_then(|blocks| blocks.checked_mul(ty.block_bytes() as u64));
        let Some(bytes) = bytes.filter(|&bytes| bytes <= self.len) else {
            return Err(self.bad(format!("truncated: dimensions {dims:?} in a file of {} bytes", self.len)));
        };
        if !begin.is_multiple_of(alignment) {
            return Err(self.bad(format!("its offset {begin} is no multiple of the alignment {alignment}")));
        }
        // Each dimension fits, as their product fits into the file.
        let shape = dims.iter().rev().map(|&dim| dim as usize).collect();
        Ok(TensorInfo { ty, shape, begin, bytes: bytes as usize })
    }

    /// Checks that the tensors lie one after the other up to the file's end, and makes their offsets relative to the file's
    /// start.
    fn place(&self, tensors: &mut BTreeMap<String, TensorInfo>, alignment: u64) -> Result<()> {
        let aligned = |at: u64| at.checked_next_multiple_of(alignment);
        let Some(data) = aligned(self.at).filter(|&data| data <= self.len || tensors.is_empty()) else {
            return Err(self.bad(format!("truncated: the header ends at {} of {}", self.at, self.len)));
        };
        let mut order: Vec<_> = tensors.iter_mut().collect();
        order.sort_unstable_by_key(|(_, info)| info.begin);
        let mut next = 0;
        for (name, info) in order {
            let wrong = |reason: String| bad(self.path, Some(name), reason);
            if info.begin != next {
                let what =
                    if info.begin < next { "overlaps the one before" } else { "leaves a hole before it" };
                return Err(wrong(format!("its offset {} {what}, which ends at {next}", info.begin)));
            }
            let left = self.len - data;
            let Some(end) = info.begin.checked_add(info.bytes as u64).filter(|&end| end <= left) else {
                let reason =
                    format!("truncated: {} bytes at {} of the {left} of all tensors", info.bytes, info.begin);
                return Err(wrong(reason));
            };
            // The last tensor's padding may be missing.
            next = aligned(end).unwrap_or(end);
            info.begin += data;
        }
        match self.len > data.saturating_add(next) {
            true => {
                Err(bad(self.path, None, format!("{} bytes after the last tensor", self.len - data - next)))
            }
            false => Ok(()),
        }
    }
}
