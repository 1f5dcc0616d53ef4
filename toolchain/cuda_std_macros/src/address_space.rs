//! `#[address_space(..)]` on a static.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use std::sync::atomic::{AtomicUsize, Ordering};
use syn::{Error, Ident, ItemStatic, StaticMutability};

/// The number of the next static of this crate: names in PTX are unique.
static NEXT: AtomicUsize = AtomicUsize::new(0);

pub fn expand(space: &Ident, item: ItemStatic) -> syn::Result<TokenStream> {
    match space.to_string().as_str() {
        "shared" => shared(item),
        "global" => Ok(quote!(#item)),
        "constant" => Err(Error::new_spanned(space, "constant memory is declared by `cuda_std::constant!`")),
        _ => Err(Error::new_spanned(space, "an address space is `shared` or `global`")),
    }
}

/// On the GPU the static is a place that dereferences to the array. The array is a static of its own, which `cuda_builder` moves to
/// shared memory.
fn shared(item: ItemStatic) -> syn::Result<TokenStream> {
    let ItemStatic { attrs, vis, mutability, ident, ty, .. } = &item;
    if !matches!(mutability, StaticMutability::Mut(_)) {
        return Err(Error::new_spanned(
            &item,
            "a static in shared memory is `static mut`: nobody can fill another",
        ));
    }
    let package = std::env::var("CARGO_CRATE_NAME").unwrap_or_default();
    let unique = format!("{package}_{}_{ident}", NEXT.fetch_add(1, Ordering::Relaxed));
    let (storage, place) = (format!("__shared_static_{unique}"), format!("__shared_place_{unique}"));
    let address = format!("cvta.shared.u64 {{}}, {storage};");
    let of = format_ident!("__Shared{unique}");
    Ok(quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #item

        #[cfg(target_arch = "nvptx64")]
        #[allow(non_camel_case_types)]
        #[doc(hidden)]
        #vis struct #of(u8);

        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #[unsafe(export_name = #place)]
        #vis static mut #ident: #of = #of(0);

        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            #[used]
            #[unsafe(export_name = #storage)]
            static mut STORAGE: ::core::mem::MaybeUninit<#ty> = ::core::mem::MaybeUninit::uninit();

            impl #of {
                #[inline(always)]
                fn address() -> *mut #ty {
                    let address: u64;
                    // SAFETY: takes the generic address of `STORAGE`, which `cuda_builder` has moved to shared memory.
                    unsafe {
                        ::core::arch::asm!(#address, out(reg64) address, options(pure, nomem, nostack, preserves_flags));
                    }
                    address as *mut #ty
                }
            }

            impl ::core::ops::Deref for #of {
                type Target = #ty;

                #[inline(always)]
                fn deref(&self) -> &#ty {
                    // SAFETY: the static is `mut`: whoever names it has written the element, and keeps others from writing it.
                    unsafe { &*Self::address() }
                }
            }

            impl ::core::ops::DerefMut for #of {
                #[inline(always)]
                fn deref_mut(&mut self) -> &mut #ty {
                    // SAFETY: the static is `mut`: whoever names it keeps others from reading or writing the element meanwhile.
                    unsafe { &mut *Self::address() }
                }
            }
        };
    })
}
