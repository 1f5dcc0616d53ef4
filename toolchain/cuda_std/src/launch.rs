//! Launch contracts, shared by the kernel and the host that launches it.
//!
//! A kernel takes one parameter type that derives [`KernelParams`]. `#[kernel(block = ..)]` makes the PTX entry and a
//! [`KernelSpec`] of that type from one definition, so that the host fills in named, typed fields and a launch that
//! swaps an output with an input does not compile.
//!
//! The entry takes the fields as parameters of their own, in the order of their declaration, not the struct as a whole:
//! from a struct passed by value LLVM 22 loads pointers as integers, no longer knows that they point to global memory, and
//! writes generic loads and stores.

use core::marker::PhantomData;
use core::ops::Deref;

/// The most fields of a parameter type.
pub const MAX_PARAMS: usize = 32;

/// A kernel's parameters. Derive it: `#[derive(Clone, Copy, KernelParams)] #[repr(C)] pub struct Rows<T> { .. }`.
///
/// Fields are numbers, [`DevicePtr`](crate::DevicePtr) and [`DevicePtrMut`](crate::DevicePtrMut), raw pointers, and `#[repr(C)]` structs of 4-byte numbers. On the host a pointer field holds a
/// device address, which the host must not access.
///
/// # Safety
/// `pointers` returns [`SIZES`](Self::SIZES)`.len()` addresses, each of a field of that many bytes; a kernel's entry takes
/// `F0`, `F1`, … in that order. The derive establishes both.
pub unsafe trait KernelParams: Sized {
    #[doc(hidden)]
    type F0;
    #[doc(hidden)]
    type F1;
    #[doc(hidden)]
    type F2;
    #[doc(hidden)]
    type F3;
    #[doc(hidden)]
    type F4;
    #[doc(hidden)]
    type F5;
    #[doc(hidden)]
    type F6;
    #[doc(hidden)]
    type F7;
    #[doc(hidden)]
    type F8;
    #[doc(hidden)]
    type F9;
    #[doc(hidden)]
    type F10;
    #[doc(hidden)]
    type F11;
    #[doc(hidden)]
    type F12;
    #[doc(hidden)]
    type F13;
    #[doc(hidden)]
    type F14;
    #[doc(hidden)]
    type F15;
    #[doc(hidden)]
    type F16;
    #[doc(hidden)]
    type F17;
    #[doc(hidden)]
    type F18;
    #[doc(hidden)]
    type F19;
    #[doc(hidden)]
    type F20;
    #[doc(hidden)]
    type F21;
    #[doc(hidden)]
    type F22;
    #[doc(hidden)]
    type F23;
    #[doc(hidden)]
    type F24;
    #[doc(hidden)]
    type F25;
    #[doc(hidden)]
    type F26;
    #[doc(hidden)]
    type F27;
    #[doc(hidden)]
    type F28;
    #[doc(hidden)]
    type F29;
    #[doc(hidden)]
    type F30;
    #[doc(hidden)]
    type F31;
    /// Bytes of each field, in the order of their declaration.
    const SIZES: &'static [usize];

    /// The struct of the entry's parameters.
    #[doc(hidden)]
    #[allow(clippy::too_many_arguments)]
    fn from_fields(
        f0: Self::F0,
        f1: Self::F1,
        f2: Self::F2,
        f3: Self::F3,
        f4: Self::F4,
        f5: Self::F5,
        f6: Self::F6,
        f7: Self::F7,
        f8: Self::F8,
        f9: Self::F9,
        f10: Self::F10,
        f11: Self::F11,
        f12: Self::F12,
        f13: Self::F13,
        f14: Self::F14,
        f15: Self::F15,
        f16: Self::F16,
        f17: Self::F17,
        f18: Self::F18,
        f19: Self::F19,
        f20: Self::F20,
        f21: Self::F21,
        f22: Self::F22,
        f23: Self::F23,
        f24: Self::F24,
        f25: Self::F25,
        f26: Self::F26,
        f27: Self::F27,
        f28: Self::F28,
        f29: Self::F29,
        f30: Self::F30,
        f31: Self::F31,
    ) -> Self;

    /// The addresses of the fields, for `cuLaunchKernel`; null after the last.
    #[doc(hidden)]
    fn pointers(&self) -> [*const (); MAX_PARAMS];
}

// SAFETY: no fields, no parameters.
unsafe impl KernelParams for () {
    type F0 = ();
    type F1 = ();
    type F2 = ();
    type F3 = ();
    type F4 = ();
    type F5 = ();
    type F6 = ();
    type F7 = ();
    type F8 = ();
    type F9 = ();
    type F10 = ();
    type F11 = ();
    type F12 = ();
    type F13 = ();
    type F14 = ();
    type F15 = ();
    type F16 = ();
    type F17 = ();
    type F18 = ();
    type F19 = ();
    type F20 = ();
    type F21 = ();
    type F22 = ();
    type F23 = ();
    type F24 = ();
    type F25 = ();
    type F26 = ();
    type F27 = ();
    type F28 = ();
    type F29 = ();
    type F30 = ();
    type F31 = ();
    const SIZES: &'static [usize] = &[];

    fn from_fields(
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
        _: (),
    ) -> Self {
    }

    fn pointers(&self) -> [*const (); MAX_PARAMS] {
        [core::ptr::null(); MAX_PARAMS]
    }
}

/// A kernel's launch contract without the type of its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// The symbol in the PTX.
    pub name: &'static str,
    /// The PTX module that holds it.
    pub module: &'static str,
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Blocks per SM that the compiler leaves registers for; zero where it is free to choose.
    pub min_blocks: u32,
    /// Bytes of static shared memory.
    pub shared_bytes: u32,
    /// Shuffle instructions in the finished PTX, loops unrolled. A test compares: if the compiler copied one into the two
    /// arms of a divergent branch, which is undefined on sm_61, there are more.
    pub shuffles: u32,
    /// Bytes of each parameter.
    pub parameters: &'static [usize],
}

impl KernelInfo {
    /// Threads in a block.
    pub const fn threads(&self) -> u32 {
        self.block[0] * self.block[1] * self.block[2]
    }
}

/// How a kernel with parameters `P` is launched: its name, block, shared memory, and the type that a launch must give.
pub struct KernelSpec<P> {
    info: KernelInfo,
    /// A `P` of a shorter lifetime is one to the kernel.
    parameters: PhantomData<fn() -> P>,
}

impl<P> Clone for KernelSpec<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for KernelSpec<P> {}

impl<P> core::fmt::Debug for KernelSpec<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.info.fmt(f)
    }
}

impl<P> PartialEq for KernelSpec<P> {
    fn eq(&self, other: &Self) -> bool {
        self.info == other.info
    }
}

impl<P> Deref for KernelSpec<P> {
    type Target = KernelInfo;

    fn deref(&self) -> &KernelInfo {
        &self.info
    }
}

impl<P: KernelParams> KernelSpec<P> {
    /// The contract of a kernel whose entry takes `P`; `#[kernel(block = ..)]` calls it.
    ///
    /// # Safety
    /// The kernel `info.name` of the PTX module `info.module` takes the fields of `P`.
    #[doc(hidden)]
    pub const unsafe fn new(info: KernelInfo) -> Self {
        assert!(info.parameters.len() == P::SIZES.len(), "the parameters are those of the type");
        Self { info, parameters: PhantomData }
    }
}

impl<P> KernelSpec<P> {
    /// The same without the parameters' type, for lists of all kernels.
    pub const fn info(&self) -> KernelInfo {
        self.info
    }

    /// The same kernel in one-dimensional blocks of fewer threads, where its contract allows that.
    pub const fn of_threads(mut self, threads: u32) -> Self {
        self.info.block = [threads, 1, 1];
        self
    }
}

/// A module's path without the crate's name.
#[doc(hidden)]
pub const fn module_name(path: &'static str) -> &'static str {
    let bytes = path.as_bytes();
    let mut i = 0;
    while i + 1 < bytes.len() {
        if bytes[i] == b':' && bytes[i + 1] == b':' {
            return path.split_at(i + 2).1;
        }
        i += 1;
    }
    path
}

/// The bytes of a text as an array, for a static of the PTX.
#[doc(hidden)]
pub const fn text_bytes<const N: usize>(text: &str) -> [u8; N] {
    let (mut bytes, mut i) = ([0; N], 0);
    while i < N {
        bytes[i] = text.as_bytes()[i];
        i += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KernelParams, kernel};

    #[derive(Clone, Copy, KernelParams)]
    #[repr(C)]
    struct Strides {
        row: u32,
        column: u32,
    }

    #[derive(Clone, Copy, KernelParams)]
    #[repr(C)]
    struct Params<T> {
        y: *mut T,
        x: *const T,
        strides: Strides,
        scale: f32,
    }

    /// # Safety
    /// None: it does nothing.
    #[kernel(block = 64, min_blocks = 2, shuffles = 3)]
    unsafe fn nothing(_p: Params<f32>) {}

    /// # Safety
    /// None: it does nothing.
    #[kernel(block = [16, 4], shared_bytes = 256, module = "elsewhere")]
    unsafe fn square() {}

    #[test]
    fn the_fields_are_the_parameters_in_order() {
        let p = Params::<f32> {
            y: core::ptr::null_mut(),
            x: core::ptr::null(),
            strides: Strides { row: 3, column: 1 },
            scale: 0.5,
        };
        assert_eq!(Params::<f32>::SIZES, [8, 8, 8, 4]);
        let pointers = p.pointers();
        assert_eq!(pointers[2], (&raw const p.strides).cast());
        assert!(pointers[4].is_null());
        // SAFETY: the addresses of two fields of `p`, which lives.
        unsafe { assert_eq!((*pointers[2].cast::<u32>(), *pointers[3].cast::<f32>()), (3, 0.5)) };
    }

    #[test]
    fn the_attribute_makes_the_contract() {
        let info = KernelInfo {
            name: "nothing",
            module: "launch::tests",
            block: [64, 1, 1],
            min_blocks: 2,
            shared_bytes: 0,
            shuffles: 3,
            parameters: &[8, 8, 8, 4],
        };
        assert_eq!(nothing.info(), info);
        assert_eq!(nothing.of_threads(32).threads(), 32);
        assert_eq!((square.block, square.shared_bytes, square.module), ([16, 4, 1], 256, "elsewhere"));
        let _: (KernelSpec<Params<f32>>, KernelSpec<()>) = (nothing, square);
    }
}
