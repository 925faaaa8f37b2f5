//! `#[derive(Bundle)]`, `#[derive(Module)]` and `expr!`, which `kiln` re-exports.
//!
//! ```text
//!  struct or enum ──▶ shape: variants with their fields ──▶ one match arm a variant, one call a field
//! ```
//!
//! Invariant: fields are visited in the order they are written in, by every method of a derived trait.

mod bundle;
mod expr;
mod module;
mod shape;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct or an enum a `kiln::Bundle`: an argument or a result of compiled functions. Every field has to be a
/// bundle; the variant of an enum is guarded by name. There is nothing to skip: whatever a function can see and a guard
/// could not, would make a stale program run. The documentation of `kiln::Bundle` has an example.
#[proc_macro_derive(Bundle)]
pub fn derive_bundle(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    bundle::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// The value of an arithmetic expression of tensors, results and numbers, with one `?` for the whole. The documentation of
/// `kiln::expr` has an example.
#[proc_macro]
pub fn expr(input: TokenStream) -> TokenStream {
    expr::expand(input.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct or an enum a `kiln::nn::Module`. Every field has to be a `kiln::nn::Part`: a `Var`, a tensor, a plain value,
/// another module, or an option, array, vector or map by name of them. A field's name is its part of the names in the state
/// dict; a lone field without a name adds none. Attributes of a field:
///
/// - `#[module(buffer)]`: its variables are buffers: saved with the parameters, not trained;
/// - `#[module(transient)]`: its variables are buffers that are not saved;
/// - `#[module(rename = "name")]`: another name in the state dict;
/// - `#[module(flatten)]`: its parts have their names without the field's before them;
/// - `#[module(skip)]`: no part of the module; the type may then be any.
///
/// The documentation of `kiln::nn::Module` has an example.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    module::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
