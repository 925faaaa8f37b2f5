//! Sums of products in Einstein's notation, with the syntax of `torch.einsum`.

use super::{Built, Emit, dot, fail, iota, permute, squeeze, sum};
use crate::{DType, Dim, DotDims, Op, TypeError};

/// A sum of products in Einstein's notation, for instance `bij,bjk->bik`.
///
/// A label that an operand repeats stands for the diagonal. `...` stands for any number of axes, aligned from the last;
/// they and labelled axes of size 1 broadcast. Without an arrow the result has the axes of `...`, then the labels that
/// occur once, in alphabetical order. What the result does not name is summed over.
#[track_caller]
pub fn einsum<E: Emit>(e: &mut E, equation: &str, operands: &[E::Value]) -> Built<E> {
    let ranks: Vec<usize> = operands.iter().map(|operand| e.ty(operand).rank()).collect();
    let Equation { terms, out } = match Equation::parse(equation, &ranks) {
        Ok(parsed) => parsed,
        Err(EquationError { what, label }) => {
            return fail::<_, E>("einsum", TypeError::BadEquation { equation: equation.to_owned(), what, label });
        }
    };
    let mut list: Vec<Term<E>> = Vec::with_capacity(operands.len());
    for (labels, value) in terms.into_iter().zip(operands) {
        list.push(diagonals(e, (labels, value.clone()))?);
    }
    let mut terms = without_broadcast(e, list)?.into_iter();
    let Some((mut labels, mut value)) = terms.next() else {
        return fail::<_, E>("einsum", TypeError::OperandCount { expected: "at least one operand", got: 0 });
    };
    // From the left, each label being summed as soon as nothing after needs it.
    while let Some(right) = terms.next() {
        let needed = |l: &char| out.contains(l) || terms.as_slice().iter().any(|(t, _)| t.contains(l));
        (labels, value) = contract(e, (labels, value), right, &needed)?;
    }
    (labels, value) = drop_unneeded(e, (labels, value), &[], &|l| out.contains(l))?;
    let order: Vec<usize> = out.iter().filter_map(|l| labels.iter().position(|m| m == l)).collect();
    permute(e, &value, &order)
}

/// One term: the labels of its axes and its value.
type Term<E> = (Vec<char>, <E as Emit>::Value);

/// A term in which no label is repeated: its diagonals.
#[track_caller]
fn diagonals<E: Emit>(e: &mut E, (mut labels, mut value): Term<E>) -> Result<Term<E>, E::Error> {
    while let Some((first, second)) = repeated(&labels) {
        let ty = e.ty(&value);
        let (rows, columns) = (&ty.shape[first], &ty.shape[second]);
        if rows != columns {
            let sizes = Some(Box::new((rows.clone(), columns.clone())));
            return fail::<_, E>("einsum", TypeError::ShapesDiffer { lhs: ty.clone(), rhs: ty, sizes });
        }
        // Element i of axis `first` takes element i of axis `second`.
        let mut shape = ty.shape.clone();
        shape[second] = Dim::from(1);
        let index = iota(e, DType::I64, &shape, first)?;
        let taken = e.emit(Op::Gather { axis: second }, &[value, index])?;
        value = squeeze(e, &taken, &[second])?;
        labels.remove(second);
    }
    Ok((labels, value))
}

/// The first two axes of one label.
fn repeated(labels: &[char]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|second| Some((labels[..second].iter().position(|l| *l == labels[second])?, second)))
}

/// Terms without the axes of size 1 whose label has another size elsewhere: a product broadcasts over them.
#[track_caller]
fn without_broadcast<E: Emit>(e: &mut E, terms: Vec<Term<E>>) -> Result<Vec<Term<E>>, E::Error> {
    let mut sized: Vec<(char, Dim)> = Vec::new();
    for (labels, value) in &terms {
        let shape = e.ty(value).shape;
        sized.extend(labels.iter().copied().zip(shape).filter(|(_, size)| !size.is_one()));
    }
    let mut kept = Vec::with_capacity(terms.len());
    for (mut labels, mut value) in terms {
        for axis in (0..labels.len()).rev() {
            let spread = sized.iter().any(|(label, _)| *label == labels[axis]);
            if spread && e.ty(&value).shape[axis].is_one() {
                value = squeeze(e, &value, &[axis])?;
                labels.remove(axis);
            }
        }
        kept.push((labels, value));
    }
    Ok(kept)
}

/// The product of two terms, summed over the labels that are not needed any more.
#[track_caller]
fn contract<E: Emit>(e: &mut E, x: Term<E>, y: Term<E>, needed: &dyn Fn(&char) -> bool) -> Result<Term<E>, E::Error> {
    let (x, y) = (drop_unneeded(e, x, &y.0, needed)?, y);
    let y = drop_unneeded(e, y, &x.0, needed)?;
    let ((x_labels, x), (y_labels, y)) = (x, y);
    let mut dims = DotDims::default();
    for (i, label) in x_labels.iter().enumerate() {
        if let Some(j) = y_labels.iter().position(|l| l == label) {
            let (left, right) = if needed(label) {
                (&mut dims.lhs_batch, &mut dims.rhs_batch)
            } else {
                (&mut dims.lhs_contract, &mut dims.rhs_contract)
            };
            left.push(i);
            right.push(j);
        }
    }
    let batch = dims.lhs_batch.iter().map(|&i| x_labels[i]);
    let x_free = x_labels.iter().copied().filter(|l| !y_labels.contains(l));
    let y_free = y_labels.iter().copied().filter(|l| !x_labels.contains(l));
    let labels: Vec<char> = batch.chain(x_free).chain(y_free).collect();
    let value = dot(e, &x, &y, dims)?;
    Ok((labels, value))
}

/// A term summed over labels that neither the other term nor anything after needs.
#[track_caller]
fn drop_unneeded<E: Emit>(
    e: &mut E,
    term: Term<E>,
    other: &[char],
    needed: &dyn Fn(&char) -> bool,
) -> Result<Term<E>, E::Error> {
    let (labels, value) = term;
    let axes: Vec<usize> = (0..labels.len()).filter(|&i| !needed(&labels[i]) && !other.contains(&labels[i])).collect();
    if axes.is_empty() {
        return Ok((labels, value));
    }
    let value = sum(e, &value, &axes, false)?;
    let kept = labels.into_iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, l)| l).collect();
    Ok((kept, value))
}

/// The labels of the operands' axes and of the result's. The axes of `...` have labels of their own.
struct Equation {
    terms: Vec<Vec<char>>,
    out: Vec<char>,
}

/// An error of an equation.
struct EquationError {
    what: &'static str,
    label: Option<char>,
}

/// The label of an axis that `...` stands for, counted from the last.
fn ellipsis_label(from_last: usize) -> char {
    char::from_u32(0xe000 + from_last as u32).unwrap_or('\u{e000}')
}

impl Equation {
    fn parse(equation: &str, ranks: &[usize]) -> Result<Equation, EquationError> {
        let refuse = |what| Err(EquationError { what, label: None });
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (&text[..], None),
        };
        let parts: Vec<&str> = left.split(',').collect();
        if parts.len() != ranks.len() {
            return refuse("it needs one term an operand");
        }
        let (mut terms, mut most) = (Vec::with_capacity(parts.len()), 0);
        for (part, &rank) in parts.iter().zip(ranks) {
            let (before, after) = split_ellipsis(part)?;
            let named = before.len() + after.as_ref().map_or(0, Vec::len);
            let Some(spread) = rank.checked_sub(named).filter(|&n| n == 0 || after.is_some()) else {
                return refuse("a term has another number of labels than its operand has axes");
            };
            most = most.max(spread);
            let mut labels = before;
            labels.extend((0..spread).rev().map(ellipsis_label));
            labels.extend(after.into_iter().flatten());
            terms.push(labels);
        }
        let spread: Vec<char> = (0..most).rev().map(ellipsis_label).collect();
        let out = match right {
            Some(right) => {
                let (mut out, after) = split_ellipsis(right)?;
                if let Some(after) = after {
                    out.extend(&spread);
                    out.extend(after);
                }
                out
            }
            None => {
                let all: Vec<char> = terms.iter().flatten().copied().filter(char::is_ascii).collect();
                let occurs_once = |c: &char| all.iter().filter(|d| *d == c).count() == 1;
                let mut once: Vec<char> = all.iter().copied().filter(occurs_once).collect();
                once.sort_unstable();
                spread.into_iter().chain(once).collect()
            }
        };
        if let Some((_, second)) = repeated(&out) {
            return Err(EquationError { what: "the result names a label twice", label: Some(out[second]) });
        }
        let unknown = out.iter().find(|l| !terms.iter().any(|term| term.contains(l)));
        if let Some(&label) = unknown {
            return Err(EquationError { what: "the result names a label that no operand has", label: Some(label) });
        }
        Ok(Equation { terms, out })
    }
}

/// The labels before `...`, and those after it if it is there.
fn split_ellipsis(term: &str) -> Result<(Vec<char>, Option<Vec<char>>), EquationError> {
    let letters = |part: &str| -> Result<Vec<char>, EquationError> {
        match part.chars().find(|c| !c.is_ascii_alphabetic()) {
            Some(other) => Err(EquationError { what: "labels are letters", label: Some(other) }),
            None => Ok(part.chars().collect()),
        }
    };
    match term.split_once("...") {
        Some((before, after)) => Ok((letters(before)?, Some(letters(after)?))),
        None => Ok((letters(term)?, None)),
    }
}
