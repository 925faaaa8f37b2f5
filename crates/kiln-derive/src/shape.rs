//! What a derive sees of a type: its variants, of which a struct has one, with their fields.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Fields, Generics, TypeParamBound};

/// A struct, or a variant of an enum.
pub struct Variant<'a> {
    /// `Self` or `Self::Name`.
    pub path: TokenStream,
    /// The variant's name; none for a struct.
    pub name: Option<String>,
    /// In the order they are written in.
    pub fields: Vec<Part<'a>>,
    kind: &'a Fields,
}

/// A field, and the name that a pattern binds it to.
pub struct Part<'a> {
    /// As declared.
    pub field: &'a Field,
    /// In patterns.
    pub binding: Ident,
    /// The field's name, or its number.
    pub name: String,
}

/// The variants of a type.
pub fn variants<'a>(input: &'a DeriveInput, derive: &str) -> Result<Vec<Variant<'a>>, Error> {
    match &input.data {
        Data::Struct(data) => Ok(vec![Variant::new(quote!(Self), None, &data.fields)]),
        Data::Enum(data) => {
            let variant = |v: &'a syn::Variant| {
                let ident = &v.ident;
                Variant::new(quote!(Self::#ident), Some(ident.to_string()), &v.fields)
            };
            Ok(data.variants.iter().map(variant).collect())
        }
        Data::Union(data) => {
            let message =
                format!("a union does not say which of its fields is alive; {derive} takes structs and enums");
            Err(Error::new(data.union_token.span(), message))
        }
    }
}

impl<'a> Variant<'a> {
    fn new(path: TokenStream, name: Option<String>, kind: &'a Fields) -> Variant<'a> {
        let part = |(number, field): (usize, &'a Field)| {
            let name = match &field.ident {
                Some(ident) => ident.to_string().trim_start_matches("r#").to_owned(),
                None => number.to_string(),
            };
            Part { field, binding: format_ident!("part{number}", span = Span::mixed_site()), name }
        };
        Variant { path, name, fields: kind.iter().enumerate().map(part).collect(), kind }
    }

    /// Matches the variant and binds every field; also the expression that makes one of what is bound.
    pub fn pattern(&self) -> TokenStream {
        self.construct(|part| {
            let binding = &part.binding;
            quote!(#binding)
        })
    }

    /// An expression that makes one.
    pub fn construct(&self, value: impl Fn(&Part<'a>) -> TokenStream) -> TokenStream {
        let path = &self.path;
        let values = self.fields.iter().map(value);
        match self.kind {
            Fields::Named(_) => {
                let names = self.fields.iter().map(|part| &part.field.ident);
                quote!(#path { #(#names: #values),* })
            }
            Fields::Unnamed(_) => quote!(#path ( #(#values),* )),
            Fields::Unit => path.clone(),
        }
    }

    /// Whether its only field has no name, so that it is a wrapper.
    pub fn is_wrapper(&self) -> bool {
        matches!(self.kind, Fields::Unnamed(fields) if fields.unnamed.len() == 1)
    }
}

/// The generics with every type parameter bound by a trait.
pub fn bound(generics: &Generics, bound: TypeParamBound) -> Generics {
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(bound.clone());
    }
    generics
}

/// The body of a method that takes `self`: one arm a variant, by its number. An enum without variants has no values to match.
pub fn arms(variants: &[Variant<'_>], arm: impl Fn(usize, &Variant<'_>) -> TokenStream) -> TokenStream {
    if variants.is_empty() {
        return quote!(match *self {});
    }
    let arms = variants.iter().enumerate().map(|(number, variant)| {
        let (pattern, body) = (variant.pattern(), arm(number, variant));
        quote!(#pattern => { #body })
    });
    quote!(match self { #(#arms)* })
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn every_type_parameter_is_bound() {
        let input: DeriveInput = parse_quote! { struct Pair<'a, A: Clone, const N: usize, B>(&'a [A; N], B); };
        let generics = bound(&input.generics, parse_quote!(Bundle));
        let (written, ..) = generics.split_for_impl();
        assert_eq!(
            quote!(#written).to_string(),
            quote!(<'a, A: Clone + Bundle, const N: usize, B: Bundle>).to_string()
        );
    }
}
