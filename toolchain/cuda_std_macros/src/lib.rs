//! The attributes of `cuda_std`: [`macro@kernel`] and [`macro@gpu_only`].

use proc_macro::TokenStream;
use quote::{format_ident, quote};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, FnArg, ItemFn, Meta, MetaList, ReturnType, Token, parse_macro_input};

/// Makes a function a GPU kernel: on `nvptx64` it becomes a PTX entry under its own name; elsewhere it stays an
/// ordinary function, so that the host can type-check and lint it.
///
/// `#[kernel(launch_bounds(MAX_THREADS))]` and `#[kernel(launch_bounds(MAX_THREADS, MIN_BLOCKS_PER_SM))]` take
/// constant expressions. They travel through the compiler as a marker constant, which `cuda_builder` turns into
/// the entry's `.maxntid` and `.minnctapersm`.
///
/// Refused at compile time: a kernel that is not `unsafe`, returns something, is generic or is a method, and a
/// parameter that is not [`Copy`].
#[proc_macro_attribute]
pub fn kernel(attributes: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(attributes with Punctuated::<Meta, Token![,]>::parse_terminated);
    let function = parse_macro_input!(item as ItemFn);
    expand_kernel(options, function).unwrap_or_else(Error::into_compile_error).into()
}

fn expand_kernel(
    options: Punctuated<Meta, Token![,]>,
    mut function: ItemFn,
) -> syn::Result<proc_macro2::TokenStream> {
    let (max_threads, min_blocks) = launch_bounds(&options)?;
    let signature = &function.sig;
    if signature.unsafety.is_none() {
        return Err(Error::new_spanned(
            signature,
            "a kernel must be an `unsafe fn`: it is launched by contract",
        ));
    }
    if let ReturnType::Type(..) = signature.output {
        return Err(Error::new_spanned(
            &signature.output,
            "a kernel returns nothing; write through a pointer",
        ));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &signature.generics,
            "a kernel has one symbol, so it can't be generic",
        ));
    }
    let mut checks = Vec::new();
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(receiver) => {
                return Err(Error::new_spanned(receiver, "a kernel can't be a method"));
            }
            FnArg::Typed(parameter) => {
                let ty = &parameter.ty;
                checks.push(quote!(assert_kernel_parameter_is_copy::<#ty>();));
            }
        }
    }
    let name = signature.ident.to_string();
    let marker = format_ident!("__launch_bounds_{}", signature.ident);
    let check = format_ident!("__kernel_parameters_{}", signature.ident);

    let host = function.clone();
    function.sig.abi = Some(syn::parse_quote!(extern "ptx-kernel"));
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(export_name = #name)]
        #function

        #[cfg(target_arch = "nvptx64")]
        #[used]
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static #marker: [u32; 2] = [(#max_threads) as u32, (#min_blocks) as u32];

        #[cfg(not(target_arch = "nvptx64"))]
        #host

        #[cfg(not(target_arch = "nvptx64"))]
        const _: (u32, u32) = ((#max_threads) as u32, (#min_blocks) as u32);

        #[allow(dead_code, non_snake_case)]
        const fn #check() {
            const fn assert_kernel_parameter_is_copy<T: ::core::marker::Copy>() {}
            #(#checks)*
        }
    })
}

/// The two values of `launch_bounds(..)`; zero where one is not given.
fn launch_bounds(options: &Punctuated<Meta, Token![,]>) -> syn::Result<(Expr, Expr)> {
    let zero = || syn::parse_quote!(0u32);
    let mut bounds = (zero(), zero());
    for option in options {
        match option {
            Meta::List(MetaList { path, .. }) if path.is_ident("launch_bounds") => {
                let list = option.require_list()?;
                let values = list.parse_args_with(Punctuated::<Expr, Token![,]>::parse_terminated)?;
                if values.is_empty() || values.len() > 2 {
                    let wanted = "launch_bounds takes MAX_THREADS or MAX_THREADS, MIN_BLOCKS_PER_SM";
                    return Err(Error::new_spanned(list, wanted));
                }
                let mut values = values.into_iter();
                bounds = (values.next().unwrap_or_else(zero), values.next().unwrap_or_else(zero));
            }
            other => {
                return Err(Error::new_spanned(other, "unknown option; #[kernel] knows launch_bounds(..)"));
            }
        }
    }
    Ok(bounds)
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
