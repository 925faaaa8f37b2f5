//! Complex numbers and Fourier transforms.

use crate::context::{Entry, Value};
use kiln_ir::build;

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
            let mut x = c.tensor("self");
            let shape = c.shape(x);
            for axis in c.axes(x, "dim") {
                let n = shape[axis].as_const().unwrap() as f64;
                let factor = match c.call.int("normalization") {
                    0 => 1.0,
                    1 => 1.0 / n.sqrt(),
                    _ => 1.0 / n,
                };
                x.id = build::dft(&mut c.b, &x.id, axis, c.call.flag("forward"), factor)?;
            }
            Ok(vec![x])
        },
    },
];
