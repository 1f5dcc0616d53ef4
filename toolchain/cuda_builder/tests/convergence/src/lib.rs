//! Exchanges between lanes, each after a divergent branch and before another on the same condition: where compilers copy them.

#![no_std]
#![feature(abi_ptx)]

use cuda_std::butterfly;
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

macro_rules! divergent {
    ($($(#[$doc:meta])* $name:ident: |$value:ident, $i:ident, $n:ident| $exchange:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `x` and `y` valid for `n` elements; launched with one warp.
        #[kernel]
        pub unsafe fn $name(y: *mut f32, x: *const f32, $n: u32) {
            let $i = thread::thread_idx_x();
            let mut $value = 0.0f32;
            // SAFETY: i < n where memory is touched; the whole warp is at the exchange.
            unsafe {
                if $i < $n {
                    $value = *x.add($i as usize);
                    if $value > 1.0 {
                        $value *= 2.0;
                    }
                }
                let result = $exchange;
                if $i < $n {
                    *y.add($i as usize) = result;
                }
            }
        }
    )*};
}

divergent! {
    /// One shuffle by LLVM's intrinsic.
    divergent_shuffle: |value, i, n| value + warp_shuffle_xor(FULL_MASK, value, 16, 32).0;
    /// Two.
    divergent_shuffles: |value, i, n| {
        let (far, _) = warp_shuffle_xor(FULL_MASK, value, 16, 32);
        let sum = value + far;
        sum + warp_shuffle_xor(FULL_MASK, sum, 8, 32).0
    };
    /// A shuffle of 64 bits, which is two.
    divergent_shuffle_of_64: |value, i, n| warp_shuffle_xor(FULL_MASK, f64::from(value), 16, 32).0 as f32;
    /// One of 128 bits, which is four.
    divergent_shuffle_of_128: |value, i, n| {
        let wide = u128::from(value.to_bits()) << 48 | u128::from(i) << 112 | u128::from(n);
        let far = warp_shuffle_xor(FULL_MASK, wide, 16, 32).0;
        (far as u64 ^ (far >> 64) as u64) as f32
    };
    /// A butterfly of five shuffles.
    divergent_sum: |value, i, n| Sum.over::<32>(value);
    /// The same for a width known at run time.
    divergent_sum_of_lanes: |value, i, n| Sum.over_lanes(value, n);
    /// Its operation is more than one instruction.
    divergent_max_or_nan: |value, i, n| MaxOrNan.over::<32>(value);
    /// Two butterflies in one block.
    divergent_argmax: |value, i, n| f32::from_bits(butterfly::argmax(value.to_bits(), i, 32).1);
}
