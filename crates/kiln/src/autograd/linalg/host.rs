//! Runs a factorisation for each matrix of a batch, on the host.

use super::dense::Matrix;
use crate::tensor::tracer::{self, HostWork};
use crate::{DType, Element, Error, Result, Tensor};
use kiln_ir::Source;
use std::sync::Arc;

/// A result for one matrix.
pub(super) enum Part {
    Matrix(Matrix),
    Vector(Vec<f64>),
    Number(f64),
}

impl Part {
    fn shape(&self) -> Vec<usize> {
        match self {
            Part::Matrix(matrix) => vec![matrix.rows, matrix.columns],
            Part::Vector(vector) => vec![vector.len()],
            Part::Number(_) => vec![],
        }
    }

    fn numbers(&self) -> &[f64] {
        match self {
            Part::Matrix(matrix) => &matrix.data,
            Part::Vector(vector) => vector,
            Part::Number(number) => std::slice::from_ref(number),
        }
    }
}

/// What is computed for each matrix; an error says what the matrix has to be.
pub(super) type Compute = Arc<dyn Fn(&[Matrix]) -> Result<Vec<Part>, &'static str> + Send + Sync>;

/// Computes for every matrix of the last two axes; the axes before them are equal for all operands. A function being captured has a
/// graph break here.
pub(super) fn batched(op: &'static str, operands: &[&Tensor], compute: Compute, at: &Source) -> Result<Vec<Tensor>> {
    for operand in operands {
        check(op, operand, at)?;
    }
    if tracer::is_active() || operands.iter().any(|t| t.is_traced()) {
        let line = at.clone();
        let run = move |operands: &[Tensor]| here(op, &operands.iter().collect::<Vec<_>>(), &compute, &line);
        return tracer::outside(HostWork::Factorisation(op), operands, Arc::new(run), at);
    }
    here(op, operands, &compute, at)
}

/// Refuses what is no batch of matrices of f32 or f64.
pub(super) fn check(op: &'static str, x: &Tensor, at: &Source) -> Result<()> {
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        return Err(Error::WrongDType { op, got: x.dtype(), expected: "f32 or f64", at: at.clone() });
    }
    if x.rank() < 2 {
        let expected = "matrices: two axes or more";
        return Err(Error::WrongRank { op, shape: x.hint().to_vec(), expected, at: at.clone() });
    }
    Ok(())
}

fn numbers(x: &Tensor, at: &Source) -> Result<Vec<f64>> {
    x.to_dtype_at(DType::F64, at)?.to_vec::<f64>()
}

fn here(op: &'static str, operands: &[&Tensor], compute: &Compute, at: &Source) -> Result<Vec<Tensor>> {
    let Some(first) = operands.first() else { return Ok(Vec::new()) };
    let (dtype, device) = (first.dtype(), first.device());
    let batch: Vec<usize> = first.shape()[..first.rank() - 2].to_vec();
    let count: usize = batch.iter().product();
    let mut given = Vec::with_capacity(operands.len());
    for operand in operands {
        let [.., rows, columns] = operand.shape()[..] else { continue };
        given.push((rows, columns, numbers(operand, at)?));
    }
    let nth = |i: usize| -> Vec<Matrix> {
        let part = |(rows, columns, all): &(usize, usize, Vec<f64>)| {
            let size = rows * columns;
            Matrix::new(*rows, *columns, all[i * size..(i + 1) * size].to_vec())
        };
        given.iter().map(part).collect()
    };
    let refused = |i: usize| {
        move |expected| {
            let (name, value) = ("matrix number", i.into());
            Error::BadArgument { op, name, value, expected, at: at.clone() }
        }
    };
    let mut shapes: Vec<Vec<usize>> = Vec::new();
    let mut results: Vec<Vec<f64>> = Vec::new();
    for i in 0..count {
        let parts = compute(&nth(i)).map_err(refused(i))?;
        results.resize_with(parts.len(), Vec::new);
        shapes = parts.iter().map(Part::shape).collect();
        parts.iter().zip(&mut results).for_each(|(part, all)| all.extend_from_slice(part.numbers()));
    }
    if count == 0 {
        // Of no matrices at all: the shapes that a unit matrix would give.
        let unit = |(rows, columns, _): &(usize, usize, Vec<f64>)| {
            let mut unit = Matrix::zeros(*rows, *columns);
            (0..*rows.min(columns)).for_each(|i| unit.data[i * columns + i] = 1.0);
            unit
        };
        let parts = compute(&given.iter().map(unit).collect::<Vec<_>>()).map_err(refused(0))?;
        shapes = parts.iter().map(Part::shape).collect();
        results = vec![Vec::new(); parts.len()];
    }
    let make = |(shape, all): (Vec<usize>, Vec<f64>)| {
        let shape: Vec<usize> = batch.iter().copied().chain(shape).collect();
        match dtype {
            DType::F64 => Tensor::from_bytes_at(Element::as_bytes(&all), shape, dtype, device, at),
            _ => {
                let short: Vec<f32> = all.iter().map(|&v| v as f32).collect();
                Tensor::from_bytes_at(Element::as_bytes(&short), shape, dtype, device, at)
            }
        }
    };
    shapes.into_iter().zip(results).map(make).collect()
}
