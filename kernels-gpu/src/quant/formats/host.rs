//! Formats as the host sees them: a [`Descriptor`] for each with kernels, a [`FileType`] for each type of GGUF files.
//!
//! Words are little-endian; a compile-time check rejects big-endian hosts.

use super::super::blocks::{BLOCK, BLOCKS_PER_SUPER, Half, SUPER_BLOCK};
use super::super::weights::{Matrix, Weights, chunk, upper};
use super::format::Format;
use crate::float16::Float16;

/// Values of a run: half a block, whose quants are the low or the high halves of a chunk.
const RUN: usize = BLOCK / 2;

const _: () = assert!(cfg!(target_endian = "little"));

/// The scales of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// One f32.
    Row,
    /// A 16-bit float for each block of 32 values: f16, of MXFP4 bf16.
    Halves,
    /// This many u32 words for each super-block of 256 values.
    Words(usize),
}

impl Scales {
    /// The bytes of a row's scales, for rows of `k` values.
    pub const fn row_bytes(self, k: usize) -> usize {
        match self {
            Self::Row => 4,
            Self::Halves => k / BLOCK * 2,
            Self::Words(words) => k / SUPER_BLOCK * 4 * words,
        }
    }
}

/// The step and the minimum of a block's two halves, the same where halves do not differ.
pub type Halves = [(f32, f32); 2];

/// A format with kernels.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// In kernels, in case ids and on command lines.
    pub name: &'static str,
    /// Bits of a quant, not counting scales.
    pub bits: usize,
    /// The memory of a row is a multiple of this many values.
    pub block: usize,
    /// The scales of a row.
    pub scales: Scales,
    /// Whether blocks have a minimum.
    pub minimum: bool,
    /// Whether the halves of a block have different steps, and minima if there are any.
    pub halves: bool,
    /// The relative error on normal values (root mean square), at most.
    pub error: f64,
    /// Its blocks in GGUF files.
    pub file: Option<FileType>,
    /// Encodes a row of whole blocks as quants and scales.
    pub encode: fn(row: &[f32], quants: &mut [u8], scales: &mut [u8]),
    /// Reads a row: its quants less their offset, and the step and the minimum of each block's halves.
    pub decode: DecodeRow,
    /// Converts blocks of a file to quants and scales.
    pub from_file: fn(file: &[u8], quants: &mut [u8], scales: &mut [u8]),
    /// The inverse.
    pub to_file: fn(file: &mut [u8], quants: &[u8], scales: &[u8]),
}

/// See [`Descriptor::decode`].
pub type DecodeRow = fn(quants: &[u32], scales: &[u8], values: &mut [i8], steps: &mut [Halves]);

/// See [`FileType::encode`].
pub type EncodeBlock = fn(values: &[f32], block: &mut [u8]);

impl Descriptor {
    pub(super) const fn new<F: Host>(name: &'static str) -> Self {
        Self {
            name,
            bits: F::BITS as usize,
            block: F::BLOCK,
            scales: F::SCALES,
            minimum: F::MINIMUM,
            halves: F::HALVES,
            error: F::ERROR,
            file: F::FILE,
            encode: encode_row::<F>,
            decode: decode_row::<F>,
            from_file: from_file::<F>,
            to_file: to_file::<F>,
        }
    }

    /// Bits of a value in memory, scales included; of a scale for a row nothing is counted.
    pub fn stored_bits(&self) -> f64 {
        let of_scales = if self.scales == Scales::Row { 0 } else { self.scales.row_bytes(self.block) * 8 };
        self.bits as f64 + of_scales as f64 / self.block as f64
    }
}

/// A type of tensors in GGUF files.
#[derive(Clone, Copy, Debug)]
pub struct FileType {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: &'static str,
    /// The values of a block; a row is whole blocks.
    pub block: usize,
    /// The bytes of a block.
    pub bytes: usize,
    /// The offsets of the f16 scales in a block.
    pub scales: &'static [usize],
    /// The offset of a scale that is a power of two, stored as an exponent of eight bits (E8M0), in types that have one.
    pub exponent: Option<usize>,
    /// The minimum's factor, relative to the scale's, that centres blocks of random bits; 0 without minima.
    pub centre: f32,
    /// How matrices are stored on a device.
    pub storage: DeviceStorage,
    /// The values of a block, exactly.
    pub decode: fn(block: &[u8], values: &mut [f64]),
    /// Encodes a block, for types without kernels that can be written.
    pub encode: Option<EncodeBlock>,
}

impl FileType {
    /// A type of one value of so many bytes.
    const fn plain(id: u32, name: &'static str, bytes: usize, decode: fn(&[u8], &mut [f64])) -> Self {
        let storage = DeviceStorage::Plain;
        Self {
            id,
            name,
            block: 1,
            bytes,
            scales: &[],
            exponent: None,
            centre: 0.0,
            storage,
            decode,
            encode: None,
        }
    }
}

/// How matrices of a type in files are stored on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStorage {
    /// As floating-point numbers, in the type chosen for those.
    Plain,
    /// In the same format, bit for bit.
    AsIs(Format),
    /// Converted, as there are no kernels for the type. The target is the nearest format in size whose error is clearly
    /// below the type's own.
    Converted(Format),
}

pub(super) const F32: FileType = FileType::plain(0, "F32", 4, |bytes, to| to[0] = f32_at(bytes, 0).into());
pub(super) const F16: FileType = FileType::plain(1, "F16", 2, |bytes, to| to[0] = half_at(bytes, 0));
pub(super) const BF16: FileType =
    FileType::plain(30, "BF16", 2, |bytes, to| to[0] = Float16::<8>(u16_at(bytes, 0)).to_f32().into());

/// The type of a format's blocks in files.
pub(super) const fn file_type<F: Host>() -> FileType {
    match F::FILE {
        Some(file) => file,
        None => panic!("the table gives a type to a format that is not in files"),
    }
}

/// A format on the host.
pub(crate) trait Host: Weights {
    /// Values of a block, to a multiple of which rows are padded.
    const BLOCK: usize;
    /// The scales of a row.
    const SCALES: Scales;
    /// The relative error on normal values (root mean square), at most.
    const ERROR: f64;
    /// The type of files.
    const FILE: Option<FileType>;

    /// Encodes a block: `BLOCK` values, or a whole row if that has one scale.
    fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]);

    /// Converts a block of a file; if not given, that is the scales, then the quants.
    fn from_file(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
        let (of_scales, of_quants) = file.split_at(scales.len());
        scales.copy_from_slice(of_scales);
        quants.copy_from_slice(of_quants);
    }

    /// The inverse of [`from_file`](Self::from_file).
    fn to_file(file: &mut [u8], quants: &[u8], scales: &[u8]) {
        let (of_scales, of_quants) = file.split_at_mut(scales.len());
        of_scales.copy_from_slice(scales);
        of_quants.copy_from_slice(quants);
    }
}

/// The bytes of a block's quants and of its scales.
const fn parts<F: Host>(values: usize) -> [usize; 2] {
    [values / 8 * F::BITS as usize, F::SCALES.row_bytes(values)]
}

fn encode_row<F: Host>(row: &[f32], quants: &mut [u8], scales: &mut [u8]) {
    let block = if F::SCALES == Scales::Row { row.len() } else { F::BLOCK };
    let [of_quants, of_scales] = parts::<F>(block);
    let targets = quants.chunks_exact_mut(of_quants).zip(scales.chunks_exact_mut(of_scales));
    for (values, (quants, scales)) in row.chunks_exact(block).zip(targets) {
        F::encode(values, quants, scales);
    }
}

fn decode_row<F: Host>(quants: &[u32], scales: &[u8], values: &mut [i8], steps: &mut [Halves]) {
    let k = values.len();
    let [of_quants, of_scales] = parts::<F>(k);
    assert!(k.is_multiple_of(F::BLOCK) && quants.len() * 4 >= of_quants && scales.len() >= of_scales);
    let row = Matrix { quants: quants.as_ptr().cast(), scales: scales.as_ptr(), k: k as u32 };
    for (b, step) in steps.iter_mut().enumerate().take(k / BLOCK) {
        // SAFETY: the row has k values, as was just asserted, and so this block.
        let (packed, scale) = unsafe { (F::packed(row, 0, b as u32), F::row_scale(row, 0)) };
        let of_half = |second| {
            let (step, minimum) = F::of_half(packed, b as u32, second);
            (step * scale, minimum)
        };
        let first = of_half(false);
        *step = [first, if F::HALVES { of_half(true) } else { first }];
    }
    let mut put = |run: usize, words: [u32; 4]| {
        let bytes = words.map(u32::to_le_bytes);
        let values = &mut values[run * RUN..][..RUN];
        values.iter_mut().zip(bytes.as_flattened()).for_each(|(value, byte)| *value = *byte as i8);
    };
    for c in 0..k as u32 / F::CHUNK {
        // SAFETY: the row has k values, and so this chunk. Loads of several words need no alignment on the host.
        let (quants, upper) = unsafe { (chunk::<F>(row, 0, c), upper::<F>(row, 0, c)) };
        if F::BITS == 8 {
            put(c as usize, quants);
        } else {
            let [low, high] = F::widen(quants, upper);
            let (high_after, c) = (F::HIGH as usize, c as usize);
            let run = c / high_after * 2 * high_after + c % high_after;
            put(run, low);
            put(run + high_after, high);
        }
    }
    if F::OFFSET != 0 {
        values.iter_mut().for_each(|value| *value = value.wrapping_sub(F::OFFSET as i8));
    }
}

fn from_file<F: Host>(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
    let ([of_quants, of_scales], bytes) = (parts::<F>(F::BLOCK), file_type::<F>().bytes);
    let targets = quants.chunks_exact_mut(of_quants).zip(scales.chunks_exact_mut(of_scales));
    for (file, (quants, scales)) in file.chunks_exact(bytes).zip(targets) {
        F::from_file(file, quants, scales);
    }
}

fn to_file<F: Host>(file: &mut [u8], quants: &[u8], scales: &[u8]) {
    let ([of_quants, of_scales], bytes) = (parts::<F>(F::BLOCK), file_type::<F>().bytes);
    let sources = quants.chunks_exact(of_quants).zip(scales.chunks_exact(of_scales));
    for (file, (quants, scales)) in file.chunks_exact_mut(bytes).zip(sources) {
        F::to_file(file, quants, scales);
    }
}

/// The blocks of a super-block.
pub(super) type SuperBlock = [[f32; BLOCK]; BLOCKS_PER_SUPER];
/// A block's quants, a byte each.
pub(super) type Quants = [u32; BLOCK / 4];

/// The 32 values of a block.
pub(super) fn block(values: &[f32]) -> [f32; BLOCK] {
    std::array::from_fn(|i| values[i])
}

/// A super-block by its blocks.
pub(super) fn super_block(values: &[f32]) -> SuperBlock {
    std::array::from_fn(|j| block(&values[j * BLOCK..]))
}

/// The low nibbles of a super-block's quants: two blocks share each byte.
pub(super) fn pair_nibbles(quants: &[Quants; BLOCKS_PER_SUPER]) -> impl Iterator<Item = u32> {
    let low = |word: u32| word & 0x0f0f_0f0f;
    quants
        .chunks_exact(2)
        .flat_map(move |pair| (0..BLOCK / 4).map(move |i| low(pair[0][i]) | low(pair[1][i]) << 4))
}

/// Stores words.
pub(super) fn put(to: &mut [u8], words: impl IntoIterator<Item = u32>) {
    for (to, word) in to.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

/// The N words of 4·N bytes, at any alignment.
pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|i| {
        u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
    })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_bits(words::<1>(&bytes[at..])[0])
}

/// The f16 at an offset.
pub(super) fn half_at(bytes: &[u8], at: usize) -> f64 {
    Float16::<5>(u16_at(bytes, at)).to_f32().into()
}

/// Stores an f16 at an offset.
pub(super) fn put_half(bytes: &mut [u8], at: usize, half: Half) {
    bytes[at..at + 2].copy_from_slice(&half.0.to_le_bytes());
}

/// Nibble `i` of a block of 32: the low nibbles of 16 bytes come first, then the high ones.
pub(super) fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

/// Two-bit quant `i` of those in groups of 32 bytes: the lowest two bits of all bytes, then the next two.
pub(super) fn twos(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// A five-bit quant of those whose fifth bits are a word, followed by nibbles.
pub(super) fn five(bytes: &[u8], i: usize) -> u8 {
    nibble(&bytes[4..], i) | (bytes[i / 8] >> (i % 8) & 1) << 4
}
