//! `expr!`: every leaf of an arithmetic expression is wrapped, so that the operators between them are those of `kiln::Expr`.
//!
//! ```text
//!  2.0 * &x - (y.exp()? + 1)  ──▶  leaf(2.0) * leaf(&x) - (leaf(y.exp()?) + leaf(1))
//! ```
//!
//! Rust's own parser sees the result and gives the operators their precedence; here leaves and operators are only told apart.

use proc_macro2::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};
use quote::quote;
use std::iter::Peekable;

type Tokens = Peekable<proc_macro2::token_stream::IntoIter>;

/// The expression with its leaves wrapped.
pub(crate) fn expand(input: TokenStream) -> syn::Result<TokenStream> {
    let wrapped = wrap(input)?;
    Ok(quote! { ::kiln::Expr::finish(#wrapped) })
}

fn wrap(input: TokenStream) -> syn::Result<TokenStream> {
    let mut tokens = input.into_iter().peekable();
    let mut out = TokenStream::new();
    loop {
        operand(&mut tokens, &mut out)?;
        match tokens.next() {
            None => return Ok(out),
            Some(TokenTree::Punct(op)) if is_operator(&op) && op.spacing() == Spacing::Alone => {
                out.extend([TokenTree::Punct(op)]);
            }
            // `*&x` and `-&x` are two operators, which the lexer joins.
            Some(TokenTree::Punct(op)) if is_operator(&op) && begins_operand(&op, tokens.peek()) => {
                out.extend([TokenTree::Punct(op)]);
            }
            Some(other) => return Err(syn::Error::new(other.span(), "expr! takes the operators + - * / % & | ^")),
        }
    }
}

fn is_operator(punct: &Punct) -> bool {
    "+-*/%&|^".contains(punct.as_char())
}

/// Whether what follows an operator without a space begins an operand rather than a longer operator such as `&&` or `+=`.
fn begins_operand(op: &Punct, next: Option<&TokenTree>) -> bool {
    match next {
        Some(TokenTree::Punct(next)) => "&-!*".contains(next.as_char()) && next.as_char() != op.as_char(),
        _ => true,
    }
}

/// One operand: its `-` and `!`, then a leaf or an expression in parentheses.
fn operand(tokens: &mut Tokens, out: &mut TokenStream) -> syn::Result<()> {
    while let Some(TokenTree::Punct(sign)) = tokens.next_if(|t| is_punct(t, "-!")) {
        out.extend([TokenTree::Punct(sign)]);
    }
    let mut leaf: Vec<TokenTree> = Vec::new();
    while let Some(prefix) = tokens.next_if(|t| is_punct(t, "&*")) {
        leaf.push(prefix);
    }
    match tokens.next() {
        Some(TokenTree::Group(group)) if leaf.is_empty() && is_nested(&group, tokens.peek()) => {
            let mut nested = Group::new(Delimiter::Parenthesis, wrap(group.stream())?);
            nested.set_span(group.span());
            out.extend([TokenTree::Group(nested)]);
            return Ok(());
        }
        Some(first @ (TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Literal(_))) => leaf.push(first),
        // A path from the root.
        Some(first) if is_punct(&first, ":") => leaf.push(first),
        Some(other) => return Err(syn::Error::new(other.span(), "expr! takes an operand here")),
        None => return Err(syn::Error::new(Span::call_site(), "expr! ends where it takes an operand")),
    }
    postfix(tokens, &mut leaf);
    let leaf: TokenStream = leaf.into_iter().collect();
    out.extend(quote! { ::kiln::Expr::from_leaf(#leaf) });
    Ok(())
}

/// Whether a group is an expression of its own: in parentheses, no tuple, and nothing is called on it.
fn is_nested(group: &Group, next: Option<&TokenTree>) -> bool {
    let is_tuple = group.stream().is_empty() || group.stream().into_iter().any(|t| is_punct(&t, ","));
    let is_base = next.is_some_and(|next| is_punct(next, ".?") || matches!(next, TokenTree::Group(_)) || is_as(next));
    group.delimiter() == Delimiter::Parenthesis && !is_tuple && !is_base
}

/// What belongs to a leaf after its first token: paths, fields, calls, indices, `?`, macros, casts.
fn postfix(tokens: &mut Tokens, leaf: &mut Vec<TokenTree>) {
    let mut type_follows = false;
    while let Some(next) = tokens.peek() {
        let macro_call = is_punct(next, "!") && matches!(leaf.last(), Some(TokenTree::Ident(_)));
        let word = matches!(next, TokenTree::Ident(_) | TokenTree::Literal(_));
        let after_joint = leaf.last().is_some_and(|t| is_punct(t, ".:")) || type_follows;
        type_follows = is_as(next);
        let goes_on = matches!(next, TokenTree::Group(_))
            || is_punct(next, ".?:")
            || macro_call
            || is_as(next)
            || (word && after_joint);
        if goes_on {
            leaf.extend(tokens.next());
        } else if is_punct(next, "<") && leaf.last().is_some_and(|t| is_punct(t, ":")) {
            generics(tokens, leaf);
        } else {
            return;
        }
    }
}

/// `<…>` of a path.
fn generics(tokens: &mut Tokens, leaf: &mut Vec<TokenTree>) {
    let mut depth = 0;
    for token in tokens.by_ref() {
        depth += i32::from(is_punct(&token, "<")) - i32::from(is_punct(&token, ">"));
        leaf.push(token);
        if depth == 0 {
            return;
        }
    }
}

fn is_punct(token: &TokenTree, any_of: &str) -> bool {
    matches!(token, TokenTree::Punct(punct) if any_of.contains(punct.as_char()))
}

fn is_as(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Ident(word) if *word == Ident::new("as", Span::call_site()))
}
