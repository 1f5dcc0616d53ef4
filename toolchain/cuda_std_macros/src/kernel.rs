//! `#[kernel]`: the PTX entry, and for typed kernels their contract.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    Error, Expr, ExprLit, ExprMacro, FnArg, Ident, ItemFn, Lit, Pat, PatType, ReturnType, Token, Type,
    TypeArray, TypeReference, parenthesized, parse_quote,
};

/// One static array of `shared(name: [T; N], ..)`.
struct Array {
    name: Ident,
    ty: TypeArray,
}

impl Parse for Array {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let name = input.parse()?;
        input.parse::<Token![:]>()?;
        Ok(Self { name, ty: input.parse()? })
    }
}

/// The attribute's options.
#[derive(Default)]
pub struct Options {
    launch_bounds: Option<(Expr, Option<Expr>)>,
    block: Option<Expr>,
    min_blocks: Option<Expr>,
    shared: Vec<Array>,
    shared_bytes: Option<Expr>,
    shuffles: Option<Expr>,
    module: Option<Expr>,
    name: Option<String>,
}

const KNOWN: &str = "unknown option; #[kernel] knows launch_bounds(..), or block, min_blocks, shared(..), shared_bytes, \
                     shuffles, module and name";

impl Parse for Options {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            if input.peek(syn::token::Paren) {
                let list;
                parenthesized!(list in input);
                match name.to_string().as_str() {
                    "launch_bounds" => {
                        let values = Punctuated::<Expr, Token![,]>::parse_terminated(&list)?;
                        let mut values = values.into_iter();
                        options.launch_bounds = match (values.next(), values.next(), values.next()) {
                            (Some(threads), blocks, None) => Some((threads, blocks)),
                            _ => {
                                let wanted =
                                    "launch_bounds takes MAX_THREADS or MAX_THREADS, MIN_BLOCKS_PER_SM";
                                return Err(Error::new(name.span(), wanted));
                            }
                        };
                    }
                    "shared" => {
                        let arrays = Punctuated::<Array, Token![,]>::parse_terminated(&list)?;
                        options.shared = arrays.into_iter().collect();
                    }
                    _ => return Err(Error::new(name.span(), KNOWN)),
                }
            } else {
                input.parse::<Token![=]>().map_err(|_| Error::new(name.span(), KNOWN))?;
                let value = Some(input.parse::<Expr>()?);
                if let (true, Some(value)) = (name == "name", &value) {
                    options.name = Some(text(value)?);
                    options.module.get_or_insert_with(|| value.clone());
                }
                match name.to_string().as_str() {
                    "block" => options.block = value,
                    "min_blocks" => options.min_blocks = value,
                    "shared_bytes" => options.shared_bytes = value,
                    "shuffles" => options.shuffles = value,
                    "module" => options.module = value,
                    "name" => {}
                    _ => return Err(Error::new(name.span(), KNOWN)),
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

/// The text of a literal, or of `concat!` of literals.
fn text(value: &Expr) -> syn::Result<String> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.value()),
        Expr::Group(group) => text(&group.expr), // a fragment of a macro
        Expr::Macro(ExprMacro { mac, .. }) if mac.path.is_ident("concat") => {
            let parts = mac.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated)?;
            parts.iter().map(text).collect()
        }
        other => Err(Error::new_spanned(other, "a name is a string literal, or concat! of such")),
    }
}

pub fn expand(options: Options, function: ItemFn) -> syn::Result<TokenStream> {
    let signature = &function.sig;
    if signature.unsafety.is_none() {
        let reason = "a kernel must be an `unsafe fn`: whoever launches it must keep its safety contract";
        return Err(Error::new_spanned(signature, reason));
    }
    if let ReturnType::Type(..) = signature.output {
        let reason = "a kernel returns nothing; write through a pointer";
        return Err(Error::new_spanned(&signature.output, reason));
    }
    if !signature.generics.params.is_empty() {
        let reason = "a kernel has one symbol, so it can't be generic";
        return Err(Error::new_spanned(&signature.generics, reason));
    }
    for input in &signature.inputs {
        if let FnArg::Receiver(receiver) = input {
            return Err(Error::new_spanned(receiver, "a kernel can't be a method"));
        }
    }
    match &options.block {
        Some(block) => typed(&options, block, function),
        None => listed(&options, function),
    }
}

/// A kernel with one parameter type and a contract: `#[kernel(block = ..)]`.
fn typed(options: &Options, block: &Expr, mut function: ItemFn) -> syn::Result<TokenStream> {
    let name = &function.sig.ident;
    if options.launch_bounds.is_some() {
        return Err(Error::new_spanned(
            name,
            "`block` already gives the launch bounds; remove launch_bounds",
        ));
    }
    let parameters: Type = match function.sig.inputs.len() {
        0 => parse_quote!(()),
        1 => match &function.sig.inputs[0] {
            FnArg::Typed(PatType { ty, .. }) => (**ty).clone(),
            FnArg::Receiver(_) => unreachable!("refused before"),
        },
        _ => {
            let reason = "a kernel with a `block` takes one struct that derives KernelParams";
            return Err(Error::new_spanned(&function.sig.inputs, reason));
        }
    };
    let block: Vec<Expr> = match block {
        Expr::Array(array) if (1..=3).contains(&array.elems.len()) => array.elems.iter().cloned().collect(),
        Expr::Array(array) => return Err(Error::new_spanned(array, "a block has one to three dimensions")),
        other => vec![other.clone()],
    };
    let mut dims = block.iter().map(|dim| quote!((#dim) as u32)).collect::<Vec<_>>();
    dims.resize(3, quote!(1));

    let declared: TokenStream = options
        .shared
        .iter()
        .map(|Array { name, ty: TypeArray { elem, len, .. } }| {
            quote!(let #name = ::cuda_std::shared::declare::<#elem, { (#len) as usize }>();)
        })
        .collect();
    let bytes: TokenStream = options
        .shared
        .iter()
        .map(|Array { ty, .. }| {
            let TypeArray { elem, len, .. } = ty;
            quote!(+ ::core::mem::size_of::<#elem>() as u32 * (#len) as u32)
        })
        .collect();
    let number = |value: &Option<Expr>| value.as_ref().map_or(quote!(0), |value| quote!((#value) as u32));
    let (min_blocks, more_bytes, shuffles) =
        (number(&options.min_blocks), number(&options.shared_bytes), number(&options.shuffles));
    let module = module(options);

    let statements = &function.block.stmts;
    *function.block = parse_quote!({ #declared #(#statements)* });

    let ItemFn { attrs, vis, sig, block: body } = &function;
    let (name, inputs) = (&sig.ident, &sig.inputs);
    let symbol = options.name.clone().unwrap_or_else(|| name.to_string());
    let fields: Vec<_> = (0..crate::params::MAX).map(|i| format_ident!("f{i}")).collect();
    let types = (0..crate::params::MAX).map(|i| format_ident!("F{i}"));
    let threads = dims.iter().map(|dim| quote!(* #dim)).collect::<TokenStream>();
    let markers = markers(&symbol, &quote!(1 #threads), &min_blocks, &module);
    let call = if sig.inputs.is_empty() {
        quote!(body())
    } else {
        quote!(body(<#parameters as ::cuda_std::KernelParams>::from_fields(#(#fields),*)))
    };
    Ok(quote! {
        #(#attrs)*
        #[allow(non_upper_case_globals, clippy::undocumented_unsafe_blocks)]
        #vis const #name: ::cuda_std::KernelSpec<#parameters> = unsafe {
            ::cuda_std::KernelSpec::new(::cuda_std::KernelInfo {
                name: #symbol,
                module: #module,
                block: [#(#dims),*],
                min_blocks: #min_blocks,
                shared_bytes: #more_bytes #bytes,
                shuffles: #shuffles,
                parameters: <#parameters as ::cuda_std::KernelParams>::SIZES,
            })
        };

        const _: () = {
            #[cfg(target_arch = "nvptx64")]
            #[unsafe(export_name = #symbol)]
            #[allow(improper_ctypes_definitions)]
            unsafe extern "ptx-kernel" fn entry(
                #(#fields: <#parameters as ::cuda_std::KernelParams>::#types),*
            ) {
                // SAFETY: whoever launches the kernel keeps its contract.
                unsafe { #call }
            }

            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), allow(dead_code))]
            unsafe fn body(#inputs) #body
        };

        #markers
    })
}

/// A kernel with parameters of its own, as Rust-CUDA has them: `#[kernel]`, `#[kernel(launch_bounds(..))]`.
fn listed(options: &Options, mut function: ItemFn) -> syn::Result<TokenStream> {
    let typed_only = [&options.min_blocks, &options.shared_bytes, &options.shuffles];
    if let Some(option) = typed_only.into_iter().flatten().next() {
        return Err(Error::new_spanned(option, "this option needs a `block`"));
    }
    if options.name.is_some() {
        return Err(Error::new_spanned(&function.sig.ident, "a kernel with a name needs a `block`"));
    }
    if let Some(array) = options.shared.first() {
        return Err(Error::new_spanned(&array.name, "shared(..) needs a `block`"));
    }
    let (mut lowered, mut arguments, mut checks) = (Vec::<FnArg>::new(), Vec::new(), Vec::new());
    for (index, input) in function.sig.inputs.iter().enumerate() {
        let FnArg::Typed(PatType { ty, .. }) = input else { unreachable!("refused before") };
        let parameter = format_ident!("parameter_{index}");
        match &**ty {
            Type::Reference(TypeReference { mutability, elem, .. }) if matches!(**elem, Type::Slice(_)) => {
                if mutability.is_some() {
                    let reason =
                        "all threads of the grid would hold this `&mut`; take a `*mut` and write through it";
                    return Err(Error::new_spanned(ty, reason));
                }
                let Type::Slice(slice) = &**elem else { unreachable!("matched above") };
                let (element, length) = (&slice.elem, format_ident!("length_{index}"));
                lowered.push(parse_quote!(#parameter: *const #element));
                lowered.push(parse_quote!(#length: usize));
                arguments.push(quote!(::core::slice::from_raw_parts(#parameter, #length)));
                checks.push(quote!(assert_kernel_parameter_is_copy::<#element>();));
            }
            ty => {
                lowered.push(parse_quote!(#parameter: #ty));
                arguments.push(quote!(#parameter));
                checks.push(quote!(assert_kernel_parameter_is_copy::<#ty>();));
            }
        }
    }
    let bounds = options.launch_bounds.as_ref();
    let threads = bounds.map_or(quote!(0u32), |(threads, _)| quote!((#threads) as u32));
    let blocks = bounds
        .and_then(|(_, blocks)| blocks.as_ref())
        .map_or(quote!(0u32), |blocks| quote!((#blocks) as u32));
    let symbol = function.sig.ident.to_string();
    let check = format_ident!("__kernel_parameters_{}", function.sig.ident);
    let markers = markers(&symbol, &threads, &blocks, &module(options));

    let host = function.clone();
    let ItemFn { attrs, vis, sig, block: body } = &mut function;
    for input in &mut sig.inputs {
        if let FnArg::Typed(PatType { pat, .. }) = input
            && let Pat::Ident(name) = &mut **pat
        {
            name.by_ref = None;
        }
    }
    let (name, inputs) = (&sig.ident, &sig.inputs);
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #[unsafe(export_name = #symbol)]
        #vis unsafe extern "ptx-kernel" fn #name(#(#lowered),*) {
            #[inline(always)]
            unsafe fn body(#inputs) #body
            // SAFETY: whoever launches the kernel keeps its contract; a slice is a pointer and the number of its elements.
            unsafe { body(#(#arguments),*) }
        }

        #markers

        #[cfg(not(target_arch = "nvptx64"))]
        #host

        #[cfg(not(target_arch = "nvptx64"))]
        const _: (u32, u32) = (#threads, #blocks);

        #[allow(dead_code, non_snake_case)]
        const fn #check() {
            const fn assert_kernel_parameter_is_copy<T: ::core::marker::Copy>() {}
            #(#checks)*
        }
    })
}

/// The PTX module that holds the kernel: the Rust module's path, if not given.
fn module(options: &Options) -> TokenStream {
    match &options.module {
        Some(name) => quote!(#name),
        None => quote!(::cuda_std::launch::module_name(::core::module_path!())),
    }
}

/// The constants by which launch bounds and the module reach `cuda_builder`, which takes them out of the PTX.
fn markers(symbol: &str, threads: &TokenStream, blocks: &TokenStream, module: &TokenStream) -> TokenStream {
    let bounds = format_ident!("__launch_bounds_{symbol}");
    let in_module = format_ident!("__kernel_module_{symbol}");
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #[used]
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static #bounds: [u32; 2] = [#threads, #blocks];

        #[cfg(target_arch = "nvptx64")]
        #[used]
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static #in_module: [u8; (#module).len()] = ::cuda_std::launch::text_bytes(#module);
    }
}
