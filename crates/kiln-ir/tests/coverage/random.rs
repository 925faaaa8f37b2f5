//! Random numbers, from the seed that the graph takes.

use crate::context::{Entry, real};
use kiln_ir::{DType, Dim, build};

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.rand.default"],
        text: "`uniform`",
        build: |c| {
            let (seed, shape): (_, Vec<Dim>) = (c.seed, c.call.ints("size").into_iter().map(Dim::from).collect());
            Ok(vec![real(build::uniform(&mut c.b, &seed, &shape, 0, DType::F32)?)])
        },
    },
    Entry {
        ops: &["aten.randn.default", "aten.randn.generator", "aten.randn_like.default"],
        text: "`normal`",
        build: |c| {
            let sizes = c.call.ints("size").into_iter().map(Dim::from).collect();
            let (seed, shape): (_, Vec<Dim>) = (c.seed, c.optional("self").map_or(sizes, |x| c.shape(x)));
            Ok(vec![real(build::normal(&mut c.b, &seed, &shape, 0, DType::F32)?)])
        },
    },
    Entry {
        ops: &["aten.bernoulli.p"],
        text: "`bernoulli` and `cast`",
        build: |c| {
            let (seed, ty) = (c.seed, c.ty(c.tensor("self")));
            let drawn = build::bernoulli(&mut c.b, &seed, &ty.shape, 0, c.call.float("p"))?;
            Ok(vec![real(build::cast(&mut c.b, &drawn, ty.dtype)?)])
        },
    },
    Entry {
        ops: &["aten.native_dropout.default"],
        text: "`dropout_with_mask`",
        build: |c| {
            let (seed, x) = (c.seed, c.node("input"));
            let probability = if c.call.flag("train") { c.call.float("p") } else { 0.0 };
            let (y, mask) = build::dropout_with_mask(&mut c.b, &x, &seed, 0, probability)?;
            Ok([y, mask].map(real).to_vec())
        },
    },
];
