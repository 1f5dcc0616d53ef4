//! What kernels ask of a format of keys and values: [`Stored`], and of one of blocks on the host.

use crate::device::F16;

/// The keys or values of a tensor. Indices count elements from the first, with the padding of rows to whole blocks.
pub trait Stored: Copy {
    /// Whether [`load8_words`](Self::load8_words) reads two separate pieces of 16 bytes, and not neighbouring ones.
    const APART: bool;

    /// The shuffles of [`store`](Self::store).
    const SHUFFLES: u32 = 0;

    /// Keys and values. Only codes have `exponent_bits`, only blocks have `scales`.
    fn of(kv: [*const u8; 2], exponent_bits: u32, scales: [*const F16; 2]) -> [Self; 2];

    /// Loads four neighbours in their memory format, without converting them, so that no instruction waits for them.
    ///
    /// # Safety
    /// They are inside a row, and `at` is a multiple of four.
    unsafe fn load4_words(self, at: usize) -> [u32; 4];

    /// Converts the result of [`load4_words`](Self::load4_words).
    fn values4(self, words: [u32; 4]) -> [f32; 4];

    /// Loads eight elements of the row that begins at `row`, two pieces of four columns, in their memory format.
    ///
    /// # Safety
    /// Both pieces are inside the row, their first columns multiples of four; and neighbours, the first at a multiple of
    /// eight, unless they are [`APART`](Self::APART).
    unsafe fn load8_words(self, row: usize, pieces: [u32; 2]) -> [[u32; 4]; 2];

    /// Converts the result of [`load8_words`](Self::load8_words).
    fn values8(self, words: [[u32; 4]; 2]) -> [f32; 8];

    /// Writes a row, of which the lane has some pairs, and gives what reading it will give.
    ///
    /// # Safety
    /// The row is inside the tensor if it is written; all 32 lanes call it together.
    unsafe fn store(row: Row, pairs: Pairs) -> Pairs;
}

/// A lane's columns of a row: those of the first half, and those of the second.
pub type Pairs = [[f32; PAIRS]; 2];

/// A row of 2·half columns for writing.
#[derive(Clone, Copy)]
pub struct Row {
    /// The tensor, as [`Stored::of`] has it.
    pub values: *mut u8,
    pub scales: *mut F16,
    pub exponent_bits: u32,
    /// Its number.
    pub row: u32,
    pub half: u32,
    /// Whether it is written, the same in all lanes.
    pub is_written: bool,
}

/// Pairs of columns, half a row apart, that a lane has of a row that is written.
pub const PAIRS: usize = 4;

/// Repeats a statement for the pairs of a lane that exist: number `$p`, elements `$i` and `$i` + half.
macro_rules! each_pair {
    ($half:expr, $p:ident, $i:ident => $body:expr) => {
        crate::kv::stored::each_pair!(@ $half, $p, $i, $body; 0 1 2 3)
    };
    (@ $half:expr, $p:ident, $i:ident, $body:expr; $($number:literal)*) => {$({
        const $p: usize = $number;
        let $i = $number * 32 + ::cuda_std::warp::lane_id();
        if $i < $half {
            $body
        }
    })*};
}
pub(crate) use each_pair;

/// A format of blocks on the host. What it has in common with weights is in [`Format`](crate::quant::Format)'s descriptor.
#[cfg(not(target_arch = "nvptx64"))]
pub trait HostBlocks {
    /// A value's error, at most, relative to the largest of its block.
    const LARGEST_ERROR: f64;

    /// Reads the first columns of a block.
    fn read(quants: &[u8], scale: f32, to: &mut [f32]);
}
