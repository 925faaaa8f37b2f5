//! Ops that make tensors of nothing, and casts.

use crate::context::{Entry, Value, real, scalar_of};
use kiln_ir::{DType, Dim, NodeId, Scalar, build};

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.arange.start_step"],
        text: "`arange`",
        build: |c| {
            let (start, end, step) = (c.call.float("start"), c.call.float("end"), c.call.float("step"));
            let whole = ["start", "end", "step"]
                .iter()
                .all(|name| scalar_of(c.call.attribute(name).unwrap()).dtype() == DType::I64);
            let dtype = c.call.dtype("dtype").map_or(if whole { DType::I64 } else { DType::F32 }, |d| d.0);
            let size = ((end - start) / step).ceil().max(0.0) as usize;
            Ok(vec![real(build::arange(&mut c.b, dtype, start, step, size)?)])
        },
    },
    Entry {
        ops: &["prims.iota.default"],
        text: "`arange`",
        build: |c| {
            let dtype = c.call.dtype("dtype").unwrap().0;
            let (start, step) = (c.call.float("start"), c.call.float("step"));
            Ok(vec![real(build::arange(&mut c.b, dtype, start, step, c.call.size("length"))?)])
        },
    },
    Entry {
        ops: &["aten.full.default", "aten.full_like.default", "aten.scalar_tensor.default"],
        text: "`full`",
        build: |c| {
            let like = c.optional("self");
            let value =
                scalar_of(c.call.attribute(if c.call.attribute("s").is_some() { "s" } else { "fill_value" }).unwrap());
            let plain = if c.call.op.contains("scalar_tensor") { DType::F32 } else { value.dtype() };
            let otherwise = like.map_or(plain, |x| c.ty(x).dtype);
            let (dtype, complex) = c.call.dtype("dtype").unwrap_or((otherwise, false));
            let shape = like.map_or(dims(&c.call.ints("size")), |x| c.shape(x));
            let filled = build::full(&mut c.b, value.cast(dtype), &shape)?;
            if complex {
                let id = build::complex_from_real(&mut c.b, &filled)?;
                return Ok(vec![Value { id, complex }]);
            }
            Ok(vec![real(filled)])
        },
    },
    Entry {
        ops: &["aten.empty.memory_format", "aten.empty_permuted.default", "aten.new_empty_strided.default"],
        text: "`full` of zeros: nobody reads what is in it",
        build: |c| {
            let otherwise = c.optional("self").map_or(DType::F32, |x| c.ty(x).dtype);
            let dtype = c.call.dtype("dtype").map_or(otherwise, |d| d.0);
            let shape = dims(&c.call.ints("size"));
            Ok(vec![real(build::full(&mut c.b, Scalar::int(dtype, 0), &shape)?)])
        },
    },
    Entry {
        ops: &["aten._to_copy.default", "prims.convert_element_type.default"],
        text: "`cast`; to complex numbers also `complex_from_real`",
        build: |c| {
            let x = c.optional("self").unwrap_or_else(|| c.tensor("a"));
            let (dtype, complex) = c.call.dtype("dtype").unwrap_or((c.ty(x).dtype, x.complex));
            let mut id: NodeId = build::cast(&mut c.b, &x.id, dtype)?;
            if complex && !x.complex {
                id = build::complex_from_real(&mut c.b, &id)?;
            }
            Ok(vec![Value { id, complex }])
        },
    },
];

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&n| Dim::from(n)).collect()
}
