//! Functions that rustc and LLVM take for granted and that no library provides on the GPU: the remainder of floats, and
//! comparisons and copies of bytes. `cuda_builder` puts the remainders in the place of LLVM's, which are wrong for quotients of
//! more than 24 or 53 bits, and leaves out of the PTX each function that no kernel calls.

macro_rules! remainder {
    ($($(#[$doc:meta])* $name:ident($float:ty, $bits:ty, $significand:literal, $wide:ty, $step:literal);)*) => {$(
        $(#[$doc])*
        ///
        /// x = mx · 2^ex and y = my · 2^ey: the remainder is (mx · 2^(ex − ey) mod my) · 2^ey, which no rounding touches. The
        /// power of two is multiplied in as many bits at a time as fit beside a remainder.
        #[cfg_attr(target_arch = "nvptx64", unsafe(no_mangle))]
        pub(crate) extern "C" fn $name(x: $float, y: $float) -> $float {
            const FRACTION: u32 = $significand - 1;
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            const INFINITY: $bits = <$float>::INFINITY.to_bits();
            let (sign, ux, uy) = (x.to_bits() & SIGN, x.to_bits() & !SIGN, y.to_bits() & !SIGN);
            if ux >= INFINITY || uy > INFINITY || uy == 0 {
                return <$float>::NAN;
            }
            if ux < uy {
                return x;
            }
            // subnormals have the exponent of the smallest normal numbers, without the leading one
            let parts = |u: $bits| {
                let (exponent, fraction) = (u >> FRACTION, u & ((1 << FRACTION) - 1));
                if exponent == 0 { (fraction, 1) } else { (fraction | 1 << FRACTION, exponent) }
            };
            let ((mx, ex), (my, ey)) = (parts(ux), parts(uy));
            let (mut rest, divisor, mut exponents) = (mx as $wide, my as $wide, (ex - ey) as u32);
            // `max`: it is not zero, which rustc does not know
            rest %= divisor.max(1);
            while exponents > 0 && rest != 0 {
                let step = exponents.min($step);
                rest = (rest << step) % divisor.max(1);
                exponents -= step;
            }
            let rest = rest as $bits;
            if rest == 0 {
                return <$float>::from_bits(sign);
            }
            // back to a leading one, as far as the exponent allows
            let shift = ((rest.leading_zeros() - (<$bits>::BITS - $significand)) as $bits).min(ey - 1);
            let rest = rest << shift;
            let exponent = if rest >> FRACTION == 0 { 0 } else { ey - shift };
            <$float>::from_bits(sign | exponent << FRACTION | rest & ((1 << FRACTION) - 1))
        }
    )*};
}

remainder! {
    /// `x % y` of f32, exact.
    cuda_std_fmod_f32(f32, u32, 24, u64, 40);
    /// `x % y` of f64, exact.
    cuda_std_fmod_f64(f64, u64, 53, u64, 11);
}

#[cfg(target_arch = "nvptx64")]
mod bytes {
    use core::ffi::c_void;

    /// Compares two texts of bytes, for `[u8]` and `str`.
    ///
    /// # Safety
    /// Both are valid for reads of `n` bytes.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const c_void, b: *const c_void, n: usize) -> i32 {
        let (a, b) = (a.cast::<u8>(), b.cast::<u8>());
        let mut i = 0;
        while i < n {
            // SAFETY: i < n, and the caller promises n bytes of both.
            let (x, y) = unsafe { (*a.add(i), *b.add(i)) };
            if x != y {
                return i32::from(x) - i32::from(y);
            }
            i += 1;
        }
        0
    }

    /// Zero if two texts of bytes are equal.
    ///
    /// # Safety
    /// As [`memcmp`].
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(a: *const c_void, b: *const c_void, n: usize) -> i32 {
        // SAFETY: the caller's contract.
        unsafe { memcmp(a, b, n) }
    }

    /// Copies bytes between places that may overlap.
    ///
    /// # Safety
    /// `from` is valid for reads of `n` bytes, `to` for writes of as many.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, n: usize) -> *mut c_void {
        let (bytes, from) = (to.cast::<u8>(), from.cast::<u8>());
        let mut i = 0;
        while i < n {
            let at = if bytes.cast_const() < from { i } else { n - 1 - i };
            // SAFETY: at < n. Volatile, or LLVM makes a call of this very function of the loop.
            unsafe { bytes.add(at).write_volatile(from.add(at).read_volatile()) };
            i += 1;
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::{cuda_std_fmod_f32, cuda_std_fmod_f64};

    /// Equal bits, or both NaN.
    fn same(got: f64, wanted: f64) -> bool {
        got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan()
    }

    #[test]
    fn toolchain_remainders_are_those_of_the_host() {
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            3.7,
            0.1,
            1e10,
            1e300,
            -1e300,
            5e-324,
            3e-320,
            2.3e-308,
            f64::MIN_POSITIVE,
            f64::MAX,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            4.0,
            1e-45,
            1e38,
            3.4e38,
            1.2e-38,
        ];
        let mut state = 1u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut pairs: Vec<(f64, f64)> =
            special.iter().flat_map(|&x| special.iter().map(move |&y| (x, y))).collect();
        pairs.extend((0..20_000).map(|_| (f64::from_bits(random()), f64::from_bits(random()))));
        for (x, y) in pairs {
            assert!(same(cuda_std_fmod_f64(x, y), x % y), "{x:e} % {y:e}: {:e}", cuda_std_fmod_f64(x, y));
            let (a, b) = (x as f32, y as f32);
            assert!(same(cuda_std_fmod_f32(a, b).into(), (a % b).into()), "{a:e} % {b:e}");
            let (a, b) = (f32::from_bits(x.to_bits() as u32), f32::from_bits(y.to_bits() as u32));
            assert!(same(cuda_std_fmod_f32(a, b).into(), (a % b).into()), "{a:e} % {b:e}");
        }
    }
}
