//! How work is divided, so that no launch takes long and temporary memory stays small.

use crate::Device;

/// The most floating-point operations of a launch for each multiprocessor: a twentieth of a second on the smallest Pascal card, which has
/// three. A card that drives a display is reset when a launch takes seconds; at a twentieth of a second the overhead of a launch is negligible.
const FLOPS_PER_MULTIPROCESSOR: usize = 20_000_000_000;
/// Pieces on the CPU are those of the smallest card.
const FEWEST_MULTIPROCESSORS: u32 = 3;

/// The most rows of one launch; a multiple of the kernels' tiles.
pub fn rows_per_launch(flops_per_row: usize, device: &Device) -> usize {
    let multiprocessors =
        device.as_cuda().map_or(FEWEST_MULTIPROCESSORS, |device| device.properties().multiprocessors);
    let most = FLOPS_PER_MULTIPROCESSOR.saturating_mul(multiprocessors as usize);
    (most / flops_per_row.max(1) / 128 * 128).max(128)
}

/// The rows of a piece where `rows` are divided into as few pieces as possible of at most `most`, a multiple of 128: all but
/// the last are equal, and whole tiles.
pub fn even_pieces(rows: usize, most: usize) -> usize {
    rows.div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(128).clamp(1, most)
}

/// Rows of an MLP that are computed at a time. This bounds the memory of the wide intermediate; more rows would not make
/// the products faster.
pub const MLP_ROWS: usize = 4096;

/// Values that are in f32 on the device at a time while a matrix is quantised: 64 MiB.
pub const QUANTIZE_PIECE: usize = 16 << 20;
