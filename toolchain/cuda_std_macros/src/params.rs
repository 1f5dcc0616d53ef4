//! `#[derive(KernelParams)]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields};

/// `cuda_std::launch::MAX_PARAMS`.
pub const MAX: usize = 32;

pub fn expand(input: DeriveInput) -> syn::Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "kernel parameters are a struct"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(&input.ident, "kernel parameters are named"));
    };
    let is_repr_c = input.attrs.iter().any(|attribute| {
        attribute.path().is_ident("repr")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|kind| kind == "C")
    });
    if !is_repr_c {
        return Err(Error::new_spanned(&input.ident, "kernel parameters are #[repr(C)]"));
    }
    if fields.named.len() > MAX {
        return Err(Error::new_spanned(
            &fields.named[MAX],
            format!("a kernel takes {MAX} parameters at most"),
        ));
    }
    let names: Vec<_> = fields.named.iter().filter_map(|field| field.ident.as_ref()).collect();
    let types: Vec<_> = fields.named.iter().map(|field| &field.ty).collect();
    let used = names.len();
    let slots: Vec<_> = (0..MAX).map(|i| format_ident!("F{i}")).collect();
    let arguments: Vec<_> = (0..MAX).map(|i| format_ident!("f{i}")).collect();
    let (used_slots, free_slots) = slots.split_at(used);
    let (used_arguments, free_arguments) = arguments.split_at(used);
    let nulls = (used..MAX).map(|_| quote!(::core::ptr::null()));

    let name = &input.ident;
    let (generics, of, bounds) = input.generics.split_for_impl();
    let of_copies = input.generics.type_params().map(|parameter| &parameter.ident);
    let conditions =
        bounds.map(|bounds| bounds.predicates.iter().map(|p| quote!(#p,)).collect::<TokenStream>());
    Ok(quote! {
        // SAFETY: `SIZES`, `pointers` and the types of the entry's parameters all list the fields in their order.
        unsafe impl #generics ::cuda_std::KernelParams for #name #of where #(#of_copies: ::core::marker::Copy,)* #conditions {
            #(type #used_slots = #types;)*
            #(type #free_slots = ();)*

            const SIZES: &'static [usize] = &[#(::core::mem::size_of::<#types>()),*];

            #[inline(always)]
            fn from_fields(#(#used_arguments: #types,)* #(#free_arguments: (),)*) -> Self {
                Self { #(#names: #used_arguments),* }
            }

            fn pointers(&self) -> [*const (); ::cuda_std::launch::MAX_PARAMS] {
                [#((&raw const self.#names).cast(),)* #(#nulls),*]
            }
        }
    })
}
