//! Copy: kernel and grid.

use super::copy_flat::contiguous;
use super::{transpose, vectors};
use crate::cuda::CudaDevice;
use crate::problem::copy::{Dim, MAX_DIMS, merge};
use crate::{Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::copy::{
    self, COLUMNS_PER_THREAD, DIMS_BLOCK, Dims, copy_dims_b16, copy_dims_b32, copy_dims_b128,
};

/// The number of neighbouring threads that share a row of this many columns, as a power of two; at least eight, since eight
/// f32 fill a memory sector.
fn width_log2(columns: u32) -> u32 {
    let width = columns.div_ceil(COLUMNS_PER_THREAD).next_power_of_two().clamp(8, DIMS_BLOCK);
    width.ilog2().min(columns.ilog2())
}

pub(crate) fn copy(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let n = x.shape().elements();
    if n == 0 {
        return Ok(());
    }
    let (size, y_address, x_address) = (x.dtype().size(), y.address(), x.address());
    let mut dims = merge(x.dims(), y.strides(), x.strides());
    match dims[..] {
        [] => return contiguous(device, y_address, x_address, n as u32, size),
        [Dim { y: 1, x: 1, .. }] => return contiguous(device, y_address, x_address, n as u32, size),
        // y contiguous, x with its last two dimensions exchanged
        [Dim { extent: cols, y: ldy, x: 1 }, Dim { extent: rows, y: 1, x: ldx }]
            if ldy == rows && ldx == cols =>
        {
            return transpose::tiles(device, y_address, x_address, 1, rows as u32, cols as u32, size);
        }
        [
            Dim { y: y_batch, x: x_batch, .. },
            Dim { extent: cols, y: ldy, x: 1 },
            Dim { extent: rows, y: 1, x: ldx },
        ] if ldy == rows && ldx == cols && y_batch == rows * cols && x_batch == rows * cols => {
            let batch = dims[0].extent as u32;
            return transpose::tiles(device, y_address, x_address, batch, rows as u32, cols as u32, size);
        }
        _ => {}
    }
    let vectorized = vectorized(&mut dims, &[y_address, x_address], size);
    // SAFETY: `ops::copy_into` has checked that both have the same shape and element type on this stream and reach
    // less than 2³¹ elements, and that there are at most six dimensions after merging; a TensorMut overlaps nothing.
    unsafe {
        match (vectorized, size) {
            (true, _) => strided(device, &copy_dims_b128, y_address, x_address, dims),
            (false, 2) => strided(device, &copy_dims_b16, y_address, x_address, dims),
            (false, _) => strided(device, &copy_dims_b32, y_address, x_address, dims),
        }
    }
}

/// Copies `dims`, at most six; the last one is the columns.
///
/// # Safety
/// As [`CudaDevice::launch`]; this function ensures the grid and the number of dimensions.
unsafe fn strided<E: Copy>(
    device: &CudaDevice,
    spec: &KernelSpec<Dims<E>>,
    y: u64,
    x: u64,
    mut dims: Vec<Dim>,
) -> Result<()> {
    let n: usize = dims.iter().map(|dim| dim.extent).product();
    while dims.len() < MAX_DIMS {
        dims.insert(0, Dim { extent: 1, y: 0, x: 0 });
    }
    let columns = dims[MAX_DIMS - 1].extent as u32;
    let (rows, width_log2) = (n as u32 / columns, width_log2(columns));
    let grid = [(rows << width_log2).div_ceil(DIMS_BLOCK), 1, 1];
    let [d0, d1, d2, d3, d4, d5] = [0, 1, 2, 3, 4, 5].map(|d| {
        let Dim { extent, y, x } = dims[d];
        copy::Dim { size: extent as u32, y: y as u32, x: x as u32 }
    });
    let (y, x) = (y as *mut E, x as *const E);
    // SAFETY: the pointers hold by this function's contract. There are exactly six dimensions: the caller gives at most six,
    // and the loop adds the rest. 2^width_log2 ≤ columns, so the grid has no more threads than elements.
    unsafe { device.launch(spec, grid, &Dims { y, x, rows, width_log2, d0, d1, d2, d3, d4, d5 }) }
}

/// Counts in vectors of 16 bytes, not elements of `size` bytes, if the last dimension is contiguous in both and its size,
/// the strides and the addresses are whole vectors. Returns whether they are.
fn vectorized(dims: &mut [Dim], addresses: &[u64], size: usize) -> bool {
    let len = vectors::len(size) as usize;
    let Some((Dim { extent, y: 1, x: 1 }, outer)) = dims.split_last_mut() else { return false };
    let whole = extent.is_multiple_of(len)
        && outer.iter().all(|dim| dim.y.is_multiple_of(len) && dim.x.is_multiple_of(len))
        && vectors::rows_aligned(*extent as u32, size, addresses);
    if whole {
        *extent /= len;
        for dim in outer {
            *dim = Dim { extent: dim.extent, y: dim.y / len, x: dim.x / len };
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_vectors_are_copied_as_such() {
        let dims = |inner: Dim| vec![Dim { extent: 3, y: 64, x: 128 }, inner];
        let dense = |extent| Dim { extent, y: 1, x: 1 };
        let mut whole = dims(dense(24));
        assert!(vectorized(&mut whole, &[256, 512], 2));
        assert_eq!(whole, [Dim { extent: 3, y: 8, x: 16 }, dense(3)]);
        for (mut dims, addresses, what) in [
            (dims(dense(23)), [256, 512], "a ragged end"),
            (dims(dense(24)), [256, 520], "an address"),
            (dims(Dim { extent: 24, y: 1, x: 8 }), [256, 512], "a stride inside"),
            (vec![Dim { extent: 3, y: 64, x: 100 }, dense(24)], [256, 512], "a stride outside"),
        ] {
            let before = dims.clone();
            assert!(!vectorized(&mut dims, &addresses, 2), "{what}");
            assert_eq!(dims, before, "{what}");
        }
    }

    #[test]
    fn threads_of_a_row_never_outnumber_its_columns() {
        assert_eq!([1, 2, 3, 8, 33, 64, 65, 1 << 20].map(width_log2), [0, 1, 1, 3, 4, 4, 5, 8]);
    }
}
