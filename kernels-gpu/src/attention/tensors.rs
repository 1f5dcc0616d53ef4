//! The tensors of a kernel.

use cuda_std::KernelSpec;

/// The kernel for heads of up to so many columns, which its partial results have.
#[derive(Clone, Copy)]
pub struct Width<P> {
    pub columns: u32,
    pub spec: KernelSpec<P>,
}

/// For head_dim ≤ 64 and ≤ 128, the first and the last of a list: where there are kernels for wide heads only, they serve both.
pub(in crate::attention) const fn by_width<T: Copy>(kernels: &[T]) -> [T; 2] {
    [kernels[0], kernels[kernels.len() - 1]]
}

/// Strides of a tensor [b, heads, rows, head_dim] in elements; the last is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Strides {
    pub batch: u32,
    pub head: u32,
    pub row: u32,
}

const _: () = assert!(size_of::<Strides>() == 12 && align_of::<Strides>() == 4);

impl Strides {
    /// The first element of head `head` of batch `batch`.
    #[inline(always)]
    pub(in crate::attention) fn offset(self, batch: u32, head: u32) -> u32 {
        batch * self.batch + head * self.head
    }
}

/// Q of a float type, K stored in any way.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Floats<Q, S> {
    pub q: *const Q,
    pub k: S,
}

/// The fields that all dense and sparse kernels share, with q and k, and v wrapped in the readers of their format.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Tensors<T, F, V> {
    pub out: *mut T,
    pub factors: F,
    pub v: V,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub group: u32,
    pub q_len: u32,
    pub head_dim: u32,
    pub scale_log2: f32,
}

/// These [`Tensors`] of a kernel's parameters.
macro_rules! tensors {
    ($p:ident, $k:expr, $v:expr) => {
        crate::attention::tensors::Tensors {
            out: $p.out,
            factors: crate::attention::tensors::Floats { q: $p.q, k: $k },
            v: $v,
            out_strides: $p.out_strides,
            q_strides: $p.q_strides,
            k_strides: $p.k_strides,
            v_strides: $p.v_strides,
            group: $p.group,
            q_len: $p.q_len,
            head_dim: $p.head_dim,
            scale_log2: $p.scale_log2,
        }
    };
}
pub(in crate::attention) use tensors;

/// Tells the compiler that a divisor is not zero, so that the division compiles without a panic.
///
/// # Safety
/// `divisor` is not zero.
#[inline(always)]
pub(in crate::attention) unsafe fn not_zero(divisor: u32) {
    // SAFETY: `divisor` is not zero: this function's contract.
    unsafe { core::hint::assert_unchecked(divisor != 0) }
}

/// One past the last key that query `i` attends to; ≤ 0 if there is none.
#[inline(always)]
pub(in crate::attention) fn visible(i: u32, q_len: u32, kv_len: u32, causal: bool) -> i32 {
    if causal { i as i32 + 1 + kv_len as i32 - q_len as i32 } else { kv_len as i32 }
}
