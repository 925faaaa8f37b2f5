//! Ops that make tensors of nothing, and casts.

use crate::call::{Value, one};
use crate::graph::Argument;
use crate::rows::Row;
use kiln_ir::{DType, Dim, Scalar, build};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.arange.start_step", "aten.arange.start", "aten.arange.default"],
        text: "`arange`; of symbolic bounds `iota`, `mul` and `add`",
        build: |c| {
            let is_float = |name: &&str| matches!(c.given(name), Some(Argument::Float(_)));
            let is_whole = !["start", "end", "step"].iter().any(is_float);
            let dtype = c.dtype("dtype")?.unwrap_or(if is_whole { DType::I64 } else { DType::F32 });
            let symbolic = |name: &&str| matches!(c.given(name), Some(Argument::Size(dim)) if dim.as_const().is_none());
            if ["start", "end", "step"].iter().any(symbolic) {
                let (start, end) = (c.optional_dim("start")?.unwrap_or_default(), c.dim("end")?);
                let step = c.optional_dim("step")?.unwrap_or(Dim::from(1));
                let size = match c.result_meta().and_then(|meta| meta.shape.first()) {
                    Some(size) => size.clone(),
                    None => Dim::max(&(&end - &start).ceil_div(&step), &Dim::from(0)),
                };
                let counted = build::iota(&mut c.b, DType::I64, &[size], 0)?;
                let step = build::size_value(&mut c.b, &step, DType::I64)?;
                let start = build::size_value(&mut c.b, &start, DType::I64)?;
                let steps = build::mul(&mut c.b, &counted, &step)?;
                let places = build::add(&mut c.b, &steps, &start)?;
                return one(build::cast(&mut c.b, &places, dtype)?);
            }
            let (start, end, step) = (c.float_or("start", 0.0)?, c.float("end")?, c.float_or("step", 1.0)?);
            let size = ((end - start) / step).ceil().max(0.0) as usize;
            one(build::arange(&mut c.b, dtype, start, step, size)?)
        },
    },
    Row {
        ops: &["prims.iota.default"],
        text: "`iota`, `mul` and `add`",
        build: |c| {
            let dtype = c.dtype("dtype")?.unwrap_or(DType::I64);
            let (length, start, step) = (c.dim("length")?, c.dim("start")?, c.dim("step")?);
            let counted = build::iota(&mut c.b, dtype, &[length], 0)?;
            let step = build::size_value(&mut c.b, &step, dtype)?;
            let start = build::size_value(&mut c.b, &start, dtype)?;
            let steps = build::mul(&mut c.b, &counted, &step)?;
            one(build::add(&mut c.b, &steps, &start)?)
        },
    },
    Row {
        ops: &[
            "aten.full.default",
            "aten.full_like.default",
            "aten.scalar_tensor.default",
            "prims.scalar_tensor.default",
        ],
        text: "`full`",
        build: |c| {
            let like = c.optional("self")?;
            let name = if c.given("s").is_some() { "s" } else { "fill_value" };
            let plain = if c.op().contains("scalar_tensor") { DType::F32 } else { c.promoted(&[name])? };
            let otherwise = like.map_or(plain, |x| c.ty(x).dtype);
            let element = c.element("dtype")?;
            let complex = element.map_or(like.is_some_and(|x| x.complex), |element| element.complex);
            let dtype = element.map_or(otherwise, |element| element.dtype);
            let shape = match like {
                Some(x) => c.shape(x),
                None => c.dims("size")?,
            };
            let value = c.cast_to(name, dtype)?;
            let filled = build::broadcast_to(&mut c.b, &value, &shape)?;
            if complex {
                let id = build::complex_from_real(&mut c.b, &filled)?;
                return Ok(vec![Value { id, complex }]);
            }
            one(filled)
        },
    },
    Row {
        // PyTorch keeps no memory for it; a program's outputs have some.
        ops: &["aten._efficientzerotensor.default"],
        text: "`full`",
        build: |c| {
            let (shape, element) = (c.dims("size")?, c.element("dtype")?);
            let (dtype, complex) = element.map_or((DType::F32, false), |element| (element.dtype, element.complex));
            let zeros = build::full(&mut c.b, Scalar::int(DType::I64, 0).cast(dtype), &shape)?;
            let id = if complex { build::complex_from_real(&mut c.b, &zeros)? } else { zeros };
            Ok(vec![Value { id, complex }])
        },
    },
    Row {
        ops: &[
            "aten.empty.memory_format",
            "aten.empty_permuted.default",
            "aten.new_empty_strided.default",
            "aten.empty_strided.default",
            "aten.new_empty.default",
            "aten.empty_like.default",
        ],
        text: "`full` of zeros: nobody reads what is in it",
        build: |c| {
            let like = c.optional("self")?;
            let element = c.element("dtype")?;
            let complex = element.map_or(like.is_some_and(|x| x.complex), |element| element.complex);
            let otherwise = like.map_or(DType::F32, |x| c.ty(x).dtype);
            let dtype = element.map_or(otherwise, |element| element.dtype);
            let mut shape = match (c.given("size"), like) {
                (None, Some(x)) => c.shape(x),
                _ => c.dims("size")?,
            };
            if complex {
                shape.push(Dim::from(2));
            }
            let id = build::full(&mut c.b, Scalar::int(dtype, 0), &shape)?;
            Ok(vec![Value { id, complex }])
        },
    },
    Row {
        ops: &["aten._to_copy.default", "prims.convert_element_type.default"],
        text: "`cast`; to complex numbers also `complex_from_real`",
        build: |c| {
            let x = match c.optional("self")? {
                Some(x) => x,
                None => c.tensor("a")?,
            };
            let element = c.element("dtype")?;
            let complex = element.map_or(x.complex, |element| element.complex);
            let dtype = element.map_or(c.ty(x).dtype, |element| element.dtype);
            if x.complex && !complex {
                return c.unsupported("of complex numbers to real ones");
            }
            let mut id = build::cast(&mut c.b, &x.id, dtype)?;
            if complex && !x.complex {
                id = build::complex_from_real(&mut c.b, &id)?;
            }
            Ok(vec![Value { id, complex }])
        },
    },
];
