//! `#[derive(KernelParam)]` of the library `ferrotile`, which exports the macro beside the trait of that name and
//! documents both.

use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Meta, Result, Token};

/// The most bytes of parameters that every driver takes (CUDA C++ Programming Guide, "Function Parameters").
const MAX_BYTES: usize = 4096;

/// Makes a struct a parameter of kernels: see the trait of the same name.
///
/// The struct is `#[repr(C)]` or `#[repr(transparent)]`, `Copy`, has no generic parameters and no padding, and each
/// field is a `ferrotile::KernelValue`.
#[proc_macro_derive(KernelParam)]
pub fn kernel_param(item: TokenStream) -> TokenStream {
    let expanded = syn::parse(item).and_then(|item| expand(&item));
    expanded.unwrap_or_else(Error::into_compile_error).into()
}

fn expand(item: &DeriveInput) -> Result<proc_macro2::TokenStream> {
    let name = &item.ident;
    let Data::Struct(data) = &item.data else {
        return Err(Error::new(name.span(), "a kernel takes a struct, a number or memory: an enum or a union is none"));
    };
    if !item.generics.params.is_empty() {
        return Err(Error::new(item.generics.span(), "a parameter of a kernel has one layout: it cannot be generic"));
    }
    if !has_fixed_layout(&item.attrs)? {
        return Err(Error::new(
            name.span(),
            format!(
                "the kernel needs to know the layout of `{name}`: write `#[repr(C)]` on it, here and in the kernel"
            ),
        ));
    }
    let types: Vec<_> = data.fields.iter().map(|field| &field.ty).collect();
    if types.is_empty() {
        return Err(Error::new(name.span(), "a parameter of a kernel has at least one field"));
    }
    let fields = types.iter().map(|ty| quote_spanned! { ty.span() => #ty: ::ferrotile::KernelValue, });
    let padded = format!(
        "`{name}` has padding, which nothing writes: put the largest fields first, and fill up the end with a field"
    );
    let large = format!("`{name}` is larger than {MAX_BYTES} bytes, the most that the parameters of a kernel have");
    Ok(quote! {
        // SAFETY: the layout is fixed, each field is such a value, and there is nothing between fields.
        #[automatically_derived]
        unsafe impl ::ferrotile::KernelValue for #name
        where
            #(#fields)*
        {
        }

        const _: () = {
            let fields = [#(::core::mem::size_of::<#types>()),*];
            let (mut bytes, mut i) = (0, 0);
            while i < fields.len() {
                bytes += fields[i];
                i += 1;
            }
            assert!(bytes == ::core::mem::size_of::<#name>(), #padded);
            assert!(bytes <= #MAX_BYTES, #large);
        };
    })
}

/// Whether `#[repr(C)]` or `#[repr(transparent)]` is among the attributes.
fn has_fixed_layout(attributes: &[Attribute]) -> Result<bool> {
    let mut is_fixed = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        let hints = attribute.parse_args_with(syn::punctuated::Punctuated::<Meta, Token![,]>::parse_terminated)?;
        is_fixed |= hints.iter().any(|hint| hint.path().is_ident("C") || hint.path().is_ident("transparent"));
    }
    Ok(is_fixed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    fn error(item: &DeriveInput) -> String {
        expand(item).expect_err("the item is refused").to_string()
    }

    #[test]
    fn every_field_must_be_a_value() {
        let item = parse_quote! {
            #[derive(Clone)]
            #[repr(C, align(16))]
            struct Scale {
                data: *mut f32,
                factor: f32,
            }
        };
        let text = expand(&item).unwrap().to_string();
        for bound in ["* mut f32 : :: ferrotile :: KernelValue ,", "f32 : :: ferrotile :: KernelValue ,"] {
            assert!(text.contains(bound), "{text}");
        }
    }

    #[test]
    fn a_struct_without_a_layout_is_refused_by_name() {
        for item in [
            parse_quote!(
                struct Scale {
                    factor: f32,
                }
            ),
            parse_quote!(
                #[repr(align(8))]
                struct Scale(f32);
            ),
        ] {
            assert!(error(&item).contains("layout of `Scale`: write `#[repr(C)]`"));
        }
        assert!(
            expand(&parse_quote!(
                #[repr(transparent)]
                struct Scale(f32);
            ))
            .is_ok()
        );
    }

    #[test]
    fn what_no_kernel_takes_is_refused() {
        assert!(
            error(&parse_quote!(
                #[repr(C)]
                enum E {
                    A,
                }
            ))
            .contains("an enum or a union")
        );
        assert!(error(&parse_quote!(#[repr(C)] union U { a: u32 })).contains("an enum or a union"));
        assert!(
            error(&parse_quote!(
                #[repr(C)]
                struct S<T> {
                    x: T,
                }
            ))
            .contains("cannot be generic")
        );
        assert!(
            error(&parse_quote!(
                #[repr(C)]
                struct S;
            ))
            .contains("at least one field")
        );
    }
}
