//! Constant memory: up to 64 KB of a module that the host fills and kernels read.
//!
//! A warp whose lanes read one address is served by one access of the constant cache; lanes with n addresses take n. So it is for what all threads
//! read together, such as the taps of a filter. What each lane reads elsewhere belongs in global memory. Source: CUDA C++ Programming
//! Guide, "Constant Memory".

/// Bytes of constant memory that a module can declare.
pub const MAX_BYTES: usize = 64 << 10;

/// A value that constant memory holds.
///
/// # Safety
/// The type has no padding, and each pattern of its bytes is a value. Its alignment is at most 16.
pub unsafe trait ConstantValue: Copy + 'static {}

macro_rules! values {
    ($($ty:ty)*) => {$(
        // SAFETY: a number.
        unsafe impl ConstantValue for $ty {}
    )*};
}
values! { u8 i8 u16 i16 u32 i32 u64 i64 usize isize f32 f64 }

// SAFETY: the elements are values without padding, one behind the other.
unsafe impl<T: ConstantValue, const N: usize> ConstantValue for [T; N] {}

/// An array that [`constant!`](crate::constant!) declares.
///
/// # Safety
/// [`NAME`](Self::NAME) is a `.const` variable of the module, of [`LEN`](Self::LEN) elements, and `address` is its address in that state space. The macro
/// establishes both.
pub unsafe trait Constant: Copy {
    /// The type of an element.
    type Element: ConstantValue;
    /// Number of elements.
    const LEN: usize;
    /// The variable's name in the PTX.
    const NAME: &'static str;

    #[doc(hidden)]
    fn address() -> u64;

    /// Element `index`, or `None` behind the end.
    #[inline(always)]
    fn get(self, index: usize) -> Option<Self::Element> {
        // SAFETY: the element is in the array.
        (index < Self::LEN).then(|| unsafe { self.get_unchecked(index) })
    }

    /// Element `index`.
    ///
    /// # Safety
    /// `index` is below [`LEN`](Self::LEN).
    #[inline(always)]
    unsafe fn get_unchecked(self, index: usize) -> Self::Element {
        // SAFETY: the element is in the array, as the caller promises.
        unsafe { load(Self::address() + (index * size_of::<Self::Element>()) as u64) }
    }
}

/// The value at an address of constant memory, by accesses as wide as its alignment, up to 8 bytes.
///
/// # Safety
/// A value of this type is there.
#[crate::gpu_only]
#[inline(always)]
unsafe fn load<T: ConstantValue>(address: u64) -> T {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    let to = value.as_mut_ptr();
    macro_rules! by {
        ($word:ty, $class:ident, $instruction:literal) => {
            for i in 0..size_of::<T>() / size_of::<$word>() {
                let word: $word;
                // SAFETY: the word is a part of the value, which is there, as the caller promises; nobody writes constant memory
                // while kernels run. `to` has as many words, aligned as the value is.
                unsafe {
                    core::arch::asm!(
                        $instruction,
                        word = out($class) word,
                        address = in(reg64) address + (i * size_of::<$word>()) as u64,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                    to.cast::<$word>().add(i).write(word);
                }
            }
        };
    }
    match align_of::<T>() {
        // a register has 16 bits at least
        1 => {
            for i in 0..size_of::<T>() {
                let byte: u16;
                // SAFETY: the byte is a part of the value, which is there, as the caller promises; nobody writes constant memory while
                // kernels run.
                unsafe {
                    core::arch::asm!(
                        "ld.const.u8 {byte}, [{address}];",
                        byte = out(reg16) byte,
                        address = in(reg64) address + i as u64,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                    to.cast::<u8>().add(i).write(byte as u8);
                }
            }
        }
        2 => by!(u16, reg16, "ld.const.b16 {word}, [{address}];"),
        4 => by!(u32, reg32, "ld.const.b32 {word}, [{address}];"),
        _ => by!(u64, reg64, "ld.const.b64 {word}, [{address}];"),
    }
    // SAFETY: all its bytes were written, and any are a value.
    unsafe { value.assume_init() }
}

/// Declares an array in constant memory: `constant!(pub TAPS: [f32; 64]);`. Kernels read it by [`Constant::get`]; its elements are zero until
/// the host writes them, by `PtxModule::set_constant`, or by cust's `Module::get_global::<[f32; 64]>` and the name.
///
/// The name is the variable's in the PTX, so it is unique among all crates of a module. An array of more than 64 KB does not compile. On the GPU the crate needs
/// `feature(asm_experimental_arch)`.
///
/// What is known while compiling needs no constant memory: small tables become immediate numbers, and a `static` is read from global memory.
#[macro_export]
macro_rules! constant {
    ($(#[$meta:meta])* $vis:vis $name:ident: [$element:ty; $len:expr] $(;)?) => {
        $(#[$meta])*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        $vis struct $name;

        // SAFETY: the variable is declared below, with as many bytes, and its address is taken.
        unsafe impl $crate::constant::Constant for $name {
            type Element = $element;
            const LEN: usize = $len;
            const NAME: &'static str = ::core::stringify!($name);

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            fn address() -> u64 {
                let address: u64;
                // SAFETY: takes the address of a variable that is declared below.
                unsafe {
                    ::core::arch::asm!(
                        ::core::concat!("mov.u64 {}, ", ::core::stringify!($name), ";"),
                        out(reg64) address,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                }
                address
            }

            #[cfg(not(target_arch = "nvptx64"))]
            fn address() -> u64 {
                ::core::panic!("constant memory is the GPU's")
            }
        }

        const _: () = {
            const BYTES: usize = ::core::mem::size_of::<[$element; $len]>();
            ::core::assert!(BYTES <= $crate::constant::MAX_BYTES, "constant memory has 64 KB");
            ::core::assert!(::core::mem::align_of::<$element>() <= 16, "constant memory is aligned to 16 bytes");
        };

        #[cfg(target_arch = "nvptx64")]
        ::core::arch::global_asm!(
            ::core::concat!(".visible .const .align 16 .b8 ", ::core::stringify!($name), "[{}];"),
            const ::core::mem::size_of::<[$element; $len]>(),
        );
    };
}
