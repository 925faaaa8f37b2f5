//! `#[derive(Bundle)]`.

use crate::shape::{self, Variant};
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, Error, parse_quote};

pub fn expand(input: &DeriveInput) -> Result<TokenStream, Error> {
    let variants = shape::variants(input, "Bundle")?;
    let generics = shape::bound(&input.generics, parse_quote!(::kiln::Bundle));
    let (generics, arguments, conditions) = generics.split_for_impl();
    let name = &input.ident;
    let leaves = shape::arms(&variants, |_, variant| leaves(variant));
    let map = shape::arms(&variants, |_, variant| map(variant));
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::kiln::Bundle for #name #arguments #conditions {
            #[allow(unused_variables)]
            fn leaves<'leaf>(&'leaf self, each: &mut dyn ::core::ops::FnMut(::kiln::Leaf<'leaf>)) {
                #leaves
            }
            #[allow(unused_variables)]
            fn map_tensors(&self, map: &mut dyn ::core::ops::FnMut(&::kiln::Tensor) -> ::kiln::Tensor) -> Self {
                #map
            }
        }
    })
}

fn leaves(variant: &Variant<'_>) -> TokenStream {
    let which = variant.name.iter().map(|name| quote!(each(::kiln::Leaf::Text(#name));));
    let parts = variant.fields.iter().map(|part| {
        let binding = &part.binding;
        quote_spanned!(part.field.ty.span()=> ::kiln::Bundle::leaves(#binding, each);)
    });
    quote!(#(#which)* #(#parts)*)
}

fn map(variant: &Variant<'_>) -> TokenStream {
    variant.construct(|part| {
        let binding = &part.binding;
        quote_spanned!(part.field.ty.span()=> ::kiln::Bundle::map_tensors(#binding, map))
    })
}
