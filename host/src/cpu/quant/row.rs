//! A row of quantised weights as integers and factors.

use crate::Result;
use crate::cpu::slice;
use crate::quant::{QuantTensor, bytes};
use kernels_gpu::quant::blocks::BLOCK;
use kernels_gpu::quant::formats::Halves;

/// A row's quants less their offset (for table formats, the values they index), and the factors of every block.
pub(crate) struct DecodedRow {
    pub quants: Vec<i8>,
    /// Of each block's halves.
    pub steps: Vec<Halves>,
    /// Whether the halves differ.
    pub halves: bool,
}

/// Row `r` of a tensor on the CPU.
pub(crate) fn read_row(w: &QuantTensor, r: usize) -> Result<DecodedRow> {
    let (about, k) = (w.format().descriptor(), w.k);
    let (row_words, row_bytes) = (k / 32 * about.bits, about.scales.row_bytes(k));
    let (words, scales) = (&slice::<u32>(&w.quants)?[r * row_words..], &bytes(&w.scales)[r * row_bytes..]);
    let mut row =
        DecodedRow { quants: vec![0; k], steps: vec![Halves::default(); k / BLOCK], halves: about.halves };
    (about.decode)(&words[..row_words], &scales[..row_bytes], &mut row.quants, &mut row.steps);
    Ok(row)
}
