//! The macros of `cuda_std`: [`macro@kernel`], [`macro@address_space`], [`macro@KernelParams`], [`macro@gpu_only`] and [`macro@inlined`].

mod address_space;
mod kernel;
mod params;

use proc_macro::TokenStream;
use quote::{ToTokens, quote};
use syn::{
    DeriveInput, Error, Ident, ImplItem, Item, ItemFn, ItemStatic, TraitItem, parse_macro_input, parse_quote,
};

/// Makes a function a GPU kernel: on `nvptx64` it becomes a PTX entry under its own name; elsewhere it stays an
/// ordinary function, so that the host can type-check and lint it.
///
/// # With parameters of its own, as in Rust-CUDA
///
/// `#[kernel]`, with launch bounds if wanted: `#[kernel(launch_bounds(MAX_THREADS))]` or
/// `#[kernel(launch_bounds(MAX_THREADS, MIN_BLOCKS_PER_SM))]`, both constant expressions. A parameter `&[T]` is two
/// parameters of the entry, a pointer and a number of elements (64 bits), as `cust::launch!` passes
/// `buffer.as_device_ptr(), buffer.len()`.
///
/// # With a parameter type and a contract
///
/// `#[kernel(block = N)]` takes at most one parameter, a struct that derives [`macro@KernelParams`]. In place of the function
/// there is then a constant of its name, a `KernelSpec<P>` that the host launches by. The other options:
///
/// * `block = N`, `[X, Y]` or `[X, Y, Z]`: the threads of a block, which become the entry's launch bounds.
/// * `min_blocks = N`: blocks per SM that the compiler leaves registers for.
/// * `shared(tile: [f32; 256], ..)`: static shared memory; each array is a `Shared<T>` of its name in the body.
/// * `shared_bytes = N`: static shared memory that functions called by the body declare.
/// * `shuffles = N`: shuffle instructions that the finished PTX must have; see `cuda_std`'s page on convergence.
/// * `name = ".."`, or `concat!` of literals: the entry's name, if it is not the function's; for kernels that a macro generates.
/// * `module = ".."`: the PTX module that holds the kernel; if not given, the entry's `name`, or without one the Rust module's path.
///
/// Launch bounds and module travel through the compiler as marker constants, which `cuda_builder` takes out of the PTX.
///
/// Refused at compile time: a kernel that is not `unsafe`, returns something, is generic or is a method, a parameter that
/// is not [`Copy`], and a `&mut` slice, which all threads would hold at once.
#[proc_macro_attribute]
pub fn kernel(attributes: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(attributes as kernel::Options);
    let function = parse_macro_input!(item as ItemFn);
    kernel::expand(options, function).unwrap_or_else(Error::into_compile_error).into()
}

/// Makes a `#[repr(C)]` struct the parameters of kernels: see `cuda_std::launch`.
#[proc_macro_derive(KernelParams)]
pub fn kernel_params(item: TokenStream) -> TokenStream {
    let input = parse_macro_input!(item as DeriveInput);
    params::expand(input).unwrap_or_else(Error::into_compile_error).into()
}

/// `#[address_space(shared)]` puts a `static mut` into the shared memory of the block: `static mut TILE: [f32; 256] = [0.0; 256];`.
///
/// The initial value is not written: the contents are undefined at first. All that names the static is `unsafe` and means the block's
/// own array: `TILE[i]`, or methods of the array. Its address by `&raw mut TILE` is another, and `cuda_builder` refuses the kernel; take
/// that of an element. On the GPU the crate needs `feature(asm_experimental_arch)`.
///
/// `#[address_space(global)]` is an ordinary static. Constant memory is declared by `cuda_std::constant!`.
#[proc_macro_attribute]
pub fn address_space(space: TokenStream, item: TokenStream) -> TokenStream {
    let space = parse_macro_input!(space as Ident);
    let item = parse_macro_input!(item as ItemStatic);
    address_space::expand(&space, item).unwrap_or_else(Error::into_compile_error).into()
}

/// Keeps a function's body for the GPU; elsewhere calling it panics with its name.
#[proc_macro_attribute]
pub fn gpu_only(_attributes: TokenStream, item: TokenStream) -> TokenStream {
    let ItemFn { attrs, vis, sig, block } = parse_macro_input!(item as ItemFn);
    let message = format!("`{}` can only be called on the GPU", sig.ident);
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #vis #sig #block

        #[cfg(not(target_arch = "nvptx64"))]
        #[allow(unused_variables)]
        #(#attrs)*
        #vis #sig {
            ::core::panic!(#message)
        }
    }
    .into()
}

/// `#[inline(always)]` for every function of an `impl`, and for those of a trait that have a body: device code makes no calls.
#[proc_macro_attribute]
pub fn inlined(_attributes: TokenStream, item: TokenStream) -> TokenStream {
    let mut item = parse_macro_input!(item as Item);
    match &mut item {
        Item::Impl(of) => of.items.iter_mut().for_each(|item| {
            if let ImplItem::Fn(function) = item {
                function.attrs.push(parse_quote!(#[inline(always)]));
            }
        }),
        Item::Trait(of) => of.items.iter_mut().for_each(|item| {
            if let TraitItem::Fn(function) = item
                && function.default.is_some()
            {
                function.attrs.push(parse_quote!(#[inline(always)]));
            }
        }),
        other => {
            return Error::new_spanned(other, "`inlined` takes an impl or a trait")
                .into_compile_error()
                .into();
        }
    }
    item.into_token_stream().into()
}
