//! A [`Dim`] as bytes: its normal form, which is read back as it is instead of being computed again.

use super::normal::{Atom, MAX_DEGREE, MAX_TERMS, Monomial, OpKind, Term};
use super::{Dim, Symbol};
use crate::codec::{Codec, DecodeError, Reader, write_number};

/// Before a constant; anything else is the number of terms and this.
const CONSTANT: u64 = 0;
const FIRST_COUNT: u64 = 1;

impl Codec for Dim {
    fn encode(&self, out: &mut Vec<u8>) {
        if let Some(constant) = self.as_const() {
            write_number(CONSTANT, out);
            return constant.encode(out);
        }
        let terms = self.poly_terms();
        write_number(terms.len() as u64 + FIRST_COUNT, out);
        for term in terms {
            term.coef.encode(out);
            let atoms = term.mono.atoms();
            out.push(atoms.len() as u8);
            atoms.iter().for_each(|atom| encode_atom(atom, out));
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Dim, DecodeError> {
        let count = match from.number()? {
            CONSTANT => return i64::decode(from).map(Dim::from),
            number => (number - FIRST_COUNT) as usize,
        };
        if count == 0 {
            return Ok(Dim::undefined());
        }
        if count > MAX_TERMS {
            return Err(from.invalid("sum"));
        }
        let mut terms: Vec<Term> = Vec::with_capacity(count.min(64));
        for _ in 0..count {
            let coef = i64::decode(from)?;
            let degree = usize::from(from.byte()?);
            if coef == 0 || degree > MAX_DEGREE {
                return Err(from.invalid("term"));
            }
            let mut atoms = Vec::with_capacity(degree);
            for _ in 0..degree {
                atoms.push(from.nested(decode_atom)?);
            }
            let mono = match <[Atom; 2]>::try_from(atoms) {
                Ok(pair) => Monomial::Pair(pair),
                Err(mut atoms) => match (atoms.len(), atoms.pop()) {
                    (0, _) => Monomial::One,
                    (1, Some(atom)) => Monomial::Single(atom),
                    (_, last) => {
                        atoms.extend(last);
                        Monomial::Many(atoms.into())
                    }
                },
            };
            // In order and each once, or it is no normal form.
            if !mono.atoms().is_sorted() || terms.last().is_some_and(|last| last.mono >= mono) {
                return Err(from.invalid("sum in order"));
            }
            terms.push(Term { mono, coef });
        }
        let dim = Dim::from_sorted_terms(terms);
        if dim.as_const().is_some() || dim.is_undefined() { Err(from.invalid("sum")) } else { Ok(dim) }
    }
}

fn encode_atom(atom: &Atom, out: &mut Vec<u8>) {
    let op = match atom {
        Atom::Sym(symbol) => {
            out.push(0);
            return symbol.encode(out);
        }
        Atom::Op(op) => op,
    };
    let number = match &op.kind {
        OpKind::Div(..) => 1,
        OpKind::Mod(..) => 2,
        OpKind::Min(_) => 3,
        OpKind::Max(_) => 4,
    };
    out.push(number);
    if let OpKind::Min(list) | OpKind::Max(list) = &op.kind {
        write_number(list.len() as u64, out);
    }
    op.kind.args().for_each(|arg| arg.encode(out));
}

fn decode_atom(from: &mut Reader<'_>) -> Result<Atom, DecodeError> {
    let kind = match from.byte()? {
        0 => return Symbol::decode(from).map(Atom::Sym),
        1 => OpKind::Div(Dim::decode(from)?, Dim::decode(from)?),
        2 => OpKind::Mod(Dim::decode(from)?, Dim::decode(from)?),
        3 => OpKind::Min(Vec::decode(from)?.into_boxed_slice()),
        4 => OpKind::Max(Vec::decode(from)?.into_boxed_slice()),
        _ => return Err(from.invalid("factor")),
    };
    // Puts down the figures that keep recursion bounded, and refuses what passes them.
    match Dim::from_op(kind).poly_terms() {
        [Term { mono: Monomial::Single(atom), .. }] => Ok(atom.clone()),
        _ => Err(from.invalid("factor of bounded size")),
    }
}
