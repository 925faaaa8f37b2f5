//! Complex numbers and Fourier transforms.

use crate::context::{Context, Entry, Value, real};
use kiln_ir::{Dim, build};

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.view_as_real.default", "aten.view_as_complex.default"],
        text: "the value itself: complex numbers are a last axis of 2",
        build: |c| {
            let x = c.tensor("self");
            Ok(vec![Value { id: x.id, complex: !x.complex }])
        },
    },
    Entry {
        ops: &["aten.polar.default"],
        text: "`polar`",
        build: |c| {
            let (magnitude, angle) = (c.node("abs"), c.node("angle"));
            Ok(vec![Value { id: build::polar(&mut c.b, &magnitude, &angle)?, complex: true }])
        },
    },
    Entry {
        ops: &["aten._fft_c2c.default"],
        text: "`dft` along each axis",
        build: |c| {
            let (mut x, axes, forward) = (c.tensor("self"), c.axes(c.tensor("self"), "dim"), c.call.flag("forward"));
            for axis in axes {
                let factor = factor(c, &c.shape(x)[axis]);
                x.id = build::dft(&mut c.b, &x.id, axis, forward, factor)?;
            }
            Ok(vec![x])
        },
    },
    Entry {
        ops: &["aten._fft_r2c.default"],
        text: "`dft_of_real` along the last axis, or `dft` of `complex_from_real`; `dft` along the others",
        build: |c| {
            let x = c.tensor("self");
            let mut axes = c.axes(x, "dim");
            let last = axes.pop().unwrap();
            let last_factor = factor(c, &c.shape(x)[last]);
            let mut id = if c.call.flag("onesided") {
                build::dft_of_real(&mut c.b, &x.id, last, true, last_factor)?
            } else {
                let whole = build::complex_from_real(&mut c.b, &x.id)?;
                build::dft(&mut c.b, &whole, last, true, last_factor)?
            };
            for axis in axes {
                let factor = factor(c, &c.shape(x)[axis]);
                id = build::dft(&mut c.b, &id, axis, true, factor)?;
            }
            Ok(vec![Value { id, complex: true }])
        },
    },
    Entry {
        ops: &["aten._fft_c2r.default"],
        text: "`dft` along each axis, `dft_to_real` along the last",
        build: |c| {
            let mut x = c.tensor("self");
            let mut axes = c.axes(x, "dim");
            let last = axes.pop().unwrap();
            for axis in axes {
                let factor = factor(c, &c.shape(x)[axis]);
                x.id = build::dft(&mut c.b, &x.id, axis, false, factor)?;
            }
            let n = Dim::from(c.call.int("last_dim_size"));
            let last_factor = factor(c, &n);
            Ok(vec![real(build::dft_to_real(&mut c.b, &x.id, last, &n, false, last_factor)?)])
        },
    },
];

/// What a transform along an axis of this length is multiplied by.
fn factor(c: &Context, n: &Dim) -> f64 {
    let n = || n.as_const().expect("only a transform without a factor may be of a symbolic length") as f64;
    match c.call.int("normalization") {
        0 => 1.0,
        1 => 1.0 / n().sqrt(),
        _ => 1.0 / n(),
    }
}
