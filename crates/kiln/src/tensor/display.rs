//! Formats tensors the way PyTorch prints them: four digits, one width for all elements, `...` in the middle of large
//! tensors, scientific notation where the range needs it, and the dtype where it is not the default of its kind.

use crate::tensor::element::scalar_from_bytes;
use crate::{DType, Result, Tensor};
use kiln_ir::{Scalar, Source};
use std::fmt;

/// Elements beyond which a tensor is summarised.
const THRESHOLD: usize = 1000;
/// Elements shown at each end of a summarised axis.
const EDGE: usize = 3;
/// Characters a line.
const WIDTH: usize = 80;
/// Digits after the point.
const PRECISION: usize = 4;

/// ```
/// use kiln::{DType, Device, Tensor};
/// let x = Tensor::from_vec(vec![1f32, 2., 3., 4.5], [2, 2], Device::Cpu)?;
/// assert_eq!(x.to_string(), "tensor([[1.0000, 2.0000],\n        [3.0000, 4.5000]])");
/// let y = Tensor::arange(3, DType::I32, Device::Cpu)?;
/// assert_eq!(y.to_string(), "tensor([0, 1, 2], dtype=i32)");
/// # Ok::<(), kiln::Error>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Shown::of(self) {
            Ok(shown) => write!(f, "tensor({}{})", shown.text(7), suffix(self)),
            Err(error) => write!(f, "tensor(unreadable: {error})"),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} on {}", self.ty(), self.device())?;
        if !self.is_contiguous() {
            write!(f, ", strides {:?}", self.strides())?;
        }
        f.write_str(")")
    }
}

fn suffix(tensor: &Tensor) -> String {
    let mut text = String::new();
    if tensor.elements() == 0 && tensor.shape() != [0] {
        text += &format!(", size={:?}", tensor.shape());
    }
    let is_default = match tensor.dtype() {
        DType::F32 => true,
        DType::I64 | DType::Bool => tensor.elements() > 0,
        _ => false,
    };
    if !is_default {
        text += &format!(", dtype={}", tensor.dtype());
    }
    text
}

/// The elements that are printed, already as text.
struct Shown {
    shape: Vec<usize>,
    /// The places of each axis that are shown; `None` is the dots.
    kept: Vec<Vec<Option<usize>>>,
    /// In row-major order over the kept places.
    elements: Vec<String>,
    width: usize,
}

impl Shown {
    fn of(tensor: &Tensor) -> Result<Shown> {
        let at = Source::default();
        let summarise = tensor.elements() > THRESHOLD;
        let mut part = tensor.clone();
        let mut kept = Vec::new();
        for (axis, &size) in tensor.shape().iter().enumerate() {
            if summarise && size > 2 * EDGE {
                let head = part.slice_at("display", axis, 0.into(), EDGE.into(), 1, &at)?;
                let tail = part.slice_at("display", axis, (size - EDGE).into(), size.into(), 1, &at)?;
                part = Tensor::cat(&[head, tail], axis)?;
                kept.push((0..EDGE).map(Some).chain([None]).chain((EDGE..2 * EDGE).map(Some)).collect());
            } else {
                kept.push((0..size).map(Some).collect());
            }
        }
        let bytes = part.bytes_at(&at)?;
        let bits = tensor.dtype().size_in_bits();
        let scalar = |i: usize| {
            let mut word = [0; 8];
            let start = i * bits / 8;
            word[..bits.div_ceil(8)].copy_from_slice(&bytes[start..start + bits.div_ceil(8)]);
            word[0] >>= i * bits % 8;
            scalar_from_bytes(tensor.dtype(), word)
        };
        let scalars: Vec<Scalar> = (0..part.elements()).map(scalar).collect();
        let elements = format_all(tensor.dtype(), &scalars);
        // As in PyTorch, infinities and NaN do not widen the others.
        let counts = |s: &Scalar| !tensor.dtype().is_float() || s.as_f64().is_finite() && s.as_f64() != 0.0;
        let widths = scalars.iter().zip(&elements).filter(|(s, _)| counts(s)).map(|(_, e)| e.len());
        let width = widths.max().unwrap_or(0);
        Ok(Shown { shape: part.shape().to_vec(), kept, elements, width })
    }

    fn text(&self, indent: usize) -> String {
        if self.shape.is_empty() {
            return self.elements.first().map_or(String::new(), |e| e.trim().to_owned());
        }
        if self.elements.is_empty() {
            return "[]".to_owned();
        }
        let mut text = String::new();
        self.write_axis(0, 0, indent, &mut text);
        text
    }

    /// Writes the elements from `first` on that share their indices on the axes before `axis`.
    fn write_axis(&self, axis: usize, first: usize, indent: usize, text: &mut String) {
        text.push('[');
        let inner: usize = self.shape[axis + 1..].iter().product();
        let last_axis = axis + 1 == self.shape.len();
        let a_line = (WIDTH.saturating_sub(indent + axis) / (self.width + 2)).max(1);
        for (n, place) in self.kept[axis].iter().enumerate() {
            if n > 0 {
                text.push(',');
                if !last_axis {
                    // Rows are a line apart, matrices two, and so on.
                    text.push_str(&"\n".repeat(self.shape.len() - 1 - axis));
                    text.push_str(&" ".repeat(indent + axis + 1));
                } else if n % a_line == 0 {
                    text.push('\n');
                    text.push_str(&" ".repeat(indent + axis + 1));
                } else {
                    text.push(' ');
                }
            }
            match place {
                None if last_axis => text.push_str(" ..."),
                None => text.push_str("..."),
                Some(i) if last_axis => text.push_str(&format!("{:>1$}", self.elements[first + i], self.width)),
                Some(i) => self.write_axis(axis + 1, first + i * inner, indent, text),
            }
        }
        text.push(']');
    }
}

/// Every element as text, in one style.
fn format_all(dtype: DType, scalars: &[Scalar]) -> Vec<String> {
    if dtype == DType::Bool {
        return scalars.iter().map(|s| if s.as_i64() != 0 { " True" } else { "False" }.to_owned()).collect();
    }
    if !dtype.is_float() {
        return scalars.iter().map(|s| s.as_i64().to_string()).collect();
    }
    let values: Vec<f64> = scalars.iter().map(|s| s.as_f64()).collect();
    let sizes: Vec<f64> = values.iter().filter(|v| v.is_finite() && **v != 0.0).map(|v| v.abs()).collect();
    let (low, high) = sizes.iter().fold((f64::INFINITY, 0f64), |(low, high), &v| (low.min(v), high.max(v)));
    let whole = sizes.iter().all(|v| v.fract() == 0.0);
    let style = match () {
        () if sizes.is_empty() => Style::Whole,
        () if whole && (high / low > 1000.0 || high > 1e8) => Style::Scientific,
        () if whole => Style::Whole,
        () if high / low > 1000.0 || high > 1e8 || low < 1e-4 => Style::Scientific,
        () => Style::Fixed,
    };
    let text = |v: &f64| match style {
        _ if v.is_nan() => "nan".to_owned(),
        _ if v.is_infinite() => if *v > 0.0 { "inf" } else { "-inf" }.to_owned(),
        Style::Whole => format!("{v:.0}."),
        Style::Fixed => format!("{v:.PRECISION$}"),
        Style::Scientific => scientific(*v),
    };
    values.iter().map(text).collect()
}

#[derive(Clone, Copy)]
enum Style {
    /// `3.`
    Whole,
    /// `3.1416`
    Fixed,
    /// `3.1416e+00`
    Scientific,
}

fn scientific(v: f64) -> String {
    let text = format!("{v:.PRECISION$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        None => text,
    }
}
