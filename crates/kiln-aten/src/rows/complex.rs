//! Complex numbers and Fourier transforms.

use crate::Error;
use crate::call::{Context, Value, real};
use crate::rows::Row;
use kiln_ir::{Dim, build};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.view_as_real.default", "aten.view_as_complex.default"],
        text: "the value itself: complex numbers are a last axis of 2",
        build: |c| {
            let x = c.tensor("self")?;
            Ok(vec![Value { id: x.id, complex: !x.complex }])
        },
    },
    Row {
        ops: &["aten.polar.default"],
        text: "`polar`",
        build: |c| {
            let (magnitude, angle) = (c.node("abs")?, c.node("angle")?);
            Ok(vec![Value { id: build::polar(&mut c.b, &magnitude, &angle)?, complex: true }])
        },
    },
    Row {
        ops: &["aten._conj.default", "aten._conj_physical.default", "aten.conj_physical.default"],
        text: "`complex` of the real part and `neg` of the imaginary one; of real numbers the value itself",
        build: |c| {
            let x = c.tensor("self")?;
            if !x.complex {
                return Ok(vec![x]);
            }
            let (re, im) = build::complex_parts(&mut c.b, &x.id)?;
            let im = build::neg(&mut c.b, &im)?;
            Ok(vec![Value { id: build::complex(&mut c.b, &re, &im)?, complex: true }])
        },
    },
    Row {
        ops: &["aten._neg_view.default"],
        text: "`neg`",
        build: |c| {
            let x = c.tensor("self")?;
            Ok(vec![Value { id: build::neg(&mut c.b, &x.id)?, complex: x.complex }])
        },
    },
    Row {
        ops: &["aten.resolve_conj.default", "aten.resolve_neg.default"],
        text: "the value itself: what is lazy in PyTorch's memory is computed here",
        build: |c| Ok(vec![c.tensor("self")?]),
    },
    Row {
        ops: &["aten._fft_c2c.default"],
        text: "`dft` along each axis",
        build: |c| {
            let (mut x, axes, forward) = (c.tensor("self")?, c.axes(c.tensor("self")?, "dim")?, c.flag("forward")?);
            for axis in axes {
                let factor = factor(c, &c.shape(x)[axis])?;
                x.id = build::dft(&mut c.b, &x.id, axis, forward, factor)?;
            }
            Ok(vec![x])
        },
    },
    Row {
        ops: &["aten._fft_r2c.default"],
        text: "`dft_of_real` along the last axis, or `dft` of `complex_from_real`; `dft` along the others",
        build: |c| {
            let x = c.tensor("self")?;
            let mut axes = c.axes(x, "dim")?;
            let Some(last) = axes.pop() else { return c.unsupported("along no axis") };
            let last_factor = factor(c, &c.shape(x)[last])?;
            let mut id = if c.flag("onesided")? {
                build::dft_of_real(&mut c.b, &x.id, last, true, last_factor)?
            } else {
                let whole = build::complex_from_real(&mut c.b, &x.id)?;
                build::dft(&mut c.b, &whole, last, true, last_factor)?
            };
            for axis in axes {
                let factor = factor(c, &c.shape(x)[axis])?;
                id = build::dft(&mut c.b, &id, axis, true, factor)?;
            }
            Ok(vec![Value { id, complex: true }])
        },
    },
    Row {
        ops: &["aten._fft_c2r.default"],
        text: "`dft` along each axis, `dft_to_real` along the last",
        build: |c| {
            let mut x = c.tensor("self")?;
            let mut axes = c.axes(x, "dim")?;
            let Some(last) = axes.pop() else { return c.unsupported("along no axis") };
            for axis in axes {
                let factor = factor(c, &c.shape(x)[axis])?;
                x.id = build::dft(&mut c.b, &x.id, axis, false, factor)?;
            }
            let n = c.dim("last_dim_size")?;
            let last_factor = factor(c, &n)?;
            Ok(vec![real(build::dft_to_real(&mut c.b, &x.id, last, &n, false, last_factor)?)])
        },
    },
];

/// What a transform along an axis of this length is multiplied by.
fn factor(c: &Context, n: &Dim) -> Result<f64, Error> {
    let normalization = c.int("normalization")?;
    Ok(match (normalization, n.as_const()) {
        (0, _) => 1.0,
        (1, Some(n)) => 1.0 / (n as f64).sqrt(),
        (_, Some(n)) => 1.0 / n as f64,
        (_, None) => return c.unsupported("with a factor of a symbolic length"),
    })
}
