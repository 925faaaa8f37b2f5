//! `#[derive(Module)]`.

use crate::shape::{self, Part, Variant};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, Error, LitStr, parse_quote};

/// What is to be done with a field.
struct Choices {
    /// The visitor's method, none for a field that is skipped.
    method: Option<Ident>,
    /// Nothing for a field whose parts are those of the module itself.
    name: String,
}

pub fn expand(input: &DeriveInput) -> Result<TokenStream, Error> {
    if let Some(attribute) = input.attrs.iter().find(|attribute| attribute.path().is_ident("module")) {
        return Err(Error::new(attribute.span(), "`#[module(…)]` belongs on a field"));
    }
    let variants = shape::variants(input, "Module")?;
    let mut choices: Vec<Vec<Choices>> = Vec::new();
    for variant in &variants {
        let fields = variant.fields.iter().map(|part| Choices::of(part, variant.is_wrapper()));
        choices.push(fields.collect::<Result<_, _>>()?);
    }
    let generics = shape::bound(&input.generics, parse_quote!(::kiln::nn::Part));
    let (generics, arguments, conditions) = generics.split_for_impl();
    let name = &input.ident;
    let visit = shape::arms(&variants, |number, variant| {
        let which = variant.name.iter().map(|name| quote!(visit.value(::kiln::Leaf::Text(#name));));
        let parts = visits(variant, &choices[number]);
        quote!(#(#which)* #parts)
    });
    let visit_mut = shape::arms(&variants, |number, variant| visits(variant, &choices[number]));
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::kiln::nn::Part for #name #arguments #conditions {
            #[allow(unused_variables)]
            fn visit(&self, visit: &mut ::kiln::nn::Visit<'_>) {
                #visit
            }
            #[allow(unused_variables)]
            fn visit_mut(&mut self, visit: &mut ::kiln::nn::VisitMut<'_>) {
                #visit_mut
            }
        }
        #[automatically_derived]
        impl #generics ::kiln::nn::Module for #name #arguments #conditions {}
    })
}

/// The visits of a variant's fields.
fn visits(variant: &Variant<'_>, choices: &[Choices]) -> TokenStream {
    let visit = |(part, choices): (&Part<'_>, &Choices)| {
        let (binding, name, method) = (&part.binding, &choices.name, choices.method.as_ref()?);
        Some(quote_spanned!(part.field.ty.span()=> visit.#method(#name, #binding);))
    };
    variant.fields.iter().zip(choices).filter_map(visit).collect()
}

impl Choices {
    /// Reads `#[module(…)]`.
    fn of(part: &Part<'_>, wrapped: bool) -> Result<Choices, Error> {
        let (mut role, mut rename, mut flatten) = (None, None, false);
        for attribute in part.field.attrs.iter().filter(|attribute| attribute.path().is_ident("module")) {
            attribute.parse_nested_meta(|meta| {
                let path = &meta.path;
                let roles = ["buffer", "transient", "skip"];
                if let Some(which) = roles.into_iter().find(|name| path.is_ident(name)) {
                    if let Some(other) = role.replace(which) {
                        return Err(meta.error(format!("`{which}` and `{other}` exclude each other")));
                    }
                } else if path.is_ident("rename") {
                    let name: LitStr = meta.value()?.parse()?;
                    if name.value().is_empty() {
                        return Err(Error::new(name.span(), "an empty name; `flatten` leaves the name out"));
                    }
                    rename = Some(name);
                } else if path.is_ident("flatten") {
                    flatten = true;
                } else {
                    return Err(
                        meta.error("`buffer`, `transient`, `rename = \"name\"`, `flatten` or `skip` is expected")
                    );
                }
                Ok(())
            })?;
        }
        if let (Some(name), true) = (&rename, flatten) {
            return Err(Error::new(name.span(), "`rename` and `flatten` exclude each other"));
        }
        let name = match rename {
            Some(name) => name.value(),
            None if flatten || wrapped => String::new(),
            None => part.name.clone(),
        };
        let method = match role {
            None => Some(format_ident!("part")),
            Some("skip") => None,
            Some(kind) => Some(format_ident!("{kind}")),
        };
        Ok(Choices { method, name })
    }
}
