//! Bodies that only move elements of one or two bytes: padding, choices, rows that an index names. Elements fill whole registers where the
//! target has masks for them.

mod support;
use kiln_cpu::features::Isa;
use kiln_cpu::lower::{Options, lower};
use kiln_ir::{BinaryOp, CompareOp, DType, HostTensor, Scalar, UnaryOp};
use kiln_kernels::kernel::{Domain, InstKind, Kernel, KernelBody, Place, ValueId};
use kiln_runtime::LaunchError;
use support::*;

/// Dtypes of one and two bytes, and some that are longer.
const DTYPES: [DType; 10] = [
    DType::Bf16,
    DType::F16,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::Bool,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F32,
    DType::I64,
];

/// Around one, two and four vectors of 32 elements, and of 64, and far beyond.
const LENGTHS: [usize; 16] = [1, 2, 15, 16, 17, 31, 32, 33, 58, 64, 65, 127, 129, 256, 257, 1000];

/// Along a shorter axis there may be no vectors.
const LONG: usize = 31;

/// Bytes of a lane of the code for AVX-512, 0 where elements are not packed.
fn packed(kernel: &Kernel) -> u8 {
    let KernelBody::Loop(body) = &kernel.body else { panic!("no loop") };
    lower(kernel, body, Options::default().on(Isa::Avx512)).unwrap().function.packed
}

fn bytes(dtype: DType) -> u8 {
    let bytes = dtype.size_in_bits() / 8;
    if bytes <= 2 { bytes as u8 } else { 0 }
}

fn in_range(k: &mut K, expr: &str, low: &str, high: &str) -> ValueId {
    k.push(DType::Bool, InstKind::InRange { expr: dim(expr), low: dim(low), high: dim(high) })
}

fn guarded(k: &mut K, buffer: usize, offset: &str, guard: ValueId) -> ValueId {
    let (dtype, place) = (k.buffers[buffer].dtype.compute_type(), k.place(buffer, offset));
    k.push(dtype, InstKind::Load { place, guard: Some(guard) })
}

fn constant(k: &mut K, dtype: DType, value: f64) -> ValueId {
    let held = dtype.compute_type();
    let scalar = if held.is_float() { Scalar::float(held, value) } else { Scalar::int(held, value as i64) };
    k.push(held, InstKind::Const(scalar))
}

#[test]
fn padding_by_zeros_and_by_a_value() {
    for dtype in DTYPES {
        for n in LENGTHS {
            for value in [0.0, 1.0] {
                let (m, low, high) = (3, 1, 2);
                let line = n + low + high;
                let mut k = K::new(&[("i0", "2"), ("i1", &(m + 2).to_string()), ("i2", &line.to_string())], &[]);
                let (x, y) = (k.input(dtype), k.output(dtype));
                let row = in_range(&mut k, "i1", "1", &(m + 1).to_string());
                let column = in_range(&mut k, "i2", &low.to_string(), &(low + n).to_string());
                let inside = k.binary(BinaryOp::And, DType::Bool, row, column);
                let place = format!("i0*{} + i1*{n} + i2 - {}", m * n, n + low);
                let mut element = guarded(&mut k, x, &place, inside);
                if value != 0.0 {
                    let filler = constant(&mut k, dtype, value);
                    element = k.push(dtype.compute_type(), InstKind::Select(inside, element, filler));
                }
                k.store(y, &format!("i0*{} + i1*{line} + i2", (m + 2) * line), element);
                let t = [tensor(dtype, 2 * m * n, 7, true), zeros(dtype, 2 * (m + 2) * line)];
                check(&k.kernel(), &t, &[], EXACT);
                assert!(n < LONG || packed(&k.kernel()) == bytes(dtype), "{dtype}, {n}");
            }
        }
    }
}

#[test]
fn choices_between_elements() {
    for dtype in DTYPES {
        for n in LENGTHS {
            let mut k = K::new(&[("i0", "3"), ("i1", &n.to_string())], &[]);
            let (c, d, a, b, y) =
                (k.input(DType::Bool), k.input(DType::Bool), k.input(dtype), k.input(dtype), k.output(dtype));
            let place = format!("i0*{n} + i1");
            let (c, d) = (k.load(c, &place), k.load(d, "i0"));
            let differs = k.push(DType::Bool, InstKind::Compare(CompareOp::Ne, c, d));
            let early = in_range(&mut k, "2*i1", "0", &n.to_string());
            let late = k.unary(UnaryOp::Not, DType::Bool, early);
            let either = k.binary(BinaryOp::Or, DType::Bool, differs, late);
            // One element for a whole row, and elements side by side that do not begin where vectors do.
            let (a, b) = (k.load(a, "i0"), k.load(b, &format!("i0*{} + i1 + 1", n + 1)));
            let chosen = k.push(dtype.compute_type(), InstKind::Select(either, a, b));
            k.store(y, &place, chosen);
            let t = [
                tensor(DType::Bool, 3 * n, 5, false),
                tensor(DType::Bool, 3, 6, false),
                tensor(dtype, 3, 7, true),
                tensor(dtype, 3 * (n + 1), 8, true),
                zeros(dtype, 3 * n),
            ];
            check(&k.kernel(), &t, &[], EXACT);
            assert!(n < LONG || packed(&k.kernel()) == bytes(dtype), "{dtype}, {n}");
        }
    }
}

/// Rows of a table as points of a grid, and as rows that are computed for each of its points.
#[test]
fn rows_that_an_index_names() {
    for dtype in DTYPES {
        for n in LENGTHS {
            for by_row in [false, true] {
                let (rows, count, line) = (11, 7, n.to_string());
                let (points, row) = (("i0", "7"), ("i1", line.as_str()));
                let mut k = if by_row { K::new(&[points], &[row]) } else { K::new(&[points, row], &[]) };
                let (x, at, y) = (k.input(dtype), k.input(DType::I64), k.output(dtype));
                let index = k.load(at, "i0");
                let index = k.push(DType::I64, InstKind::CheckIndex { value: index, size: dim(&rows.to_string()) });
                if by_row {
                    k.stage(Domain::Row);
                }
                let place = Place { buffer: x, offset: dim("i1"), indirect: vec![(index, dim(&line))] };
                let element = k.push(dtype.compute_type(), InstKind::Load { place, guard: None });
                k.store(y, &format!("i0*{n} + i1"), element);
                let tensors = |last: i64| {
                    let place = |i: i64| if i == 6 { last } else { i * 4 % rows as i64 };
                    let places: Vec<i64> = (0..count as i64).map(place).collect();
                    let places = HostTensor::from_i64(DType::I64, &[count], &places).unwrap();
                    [tensor(dtype, rows * n, 5, true), places, zeros(dtype, count * n)]
                };
                check(&k.kernel(), &tensors(10), &[], EXACT);
                assert!(n < LONG || packed(&k.kernel()) == bytes(dtype), "{dtype}, {n}, {by_row}");
                for isa in Isa::available() {
                    let got = run_on(&k.kernel(), isa, &mut tensors(11), &[], Options::default());
                    assert_eq!(got, Err(LaunchError::IndexOutOfRange { index: 11, size: 11 }), "{isa:?}");
                }
            }
        }
    }
}

/// Lengths that are known at launch alone, and stores under a guard: elements outside stay.
#[test]
fn guarded_stores_of_any_length() {
    for dtype in DTYPES {
        for n in LENGTHS {
            let mut k = K::new(&[("i0", "3"), ("i1", "n")], &[]);
            k.size("n");
            let (x, y) = (k.input(dtype), k.output(dtype));
            let element = k.load(x, "i0*n + i1");
            let guard = in_range(&mut k, "i1", "2", "n - 1");
            let place = k.place(y, "i0*n + i1");
            k.push(dtype.compute_type(), InstKind::Store { place, value: element, guard: Some(guard) });
            let t = [tensor(dtype, 3 * n, 7, true), tensor(dtype, 3 * n, 9, false)];
            check(&k.kernel(), &t, &[n as i64], EXACT);
            assert!(n < LONG || packed(&k.kernel()) == bytes(dtype), "{dtype}, {n}");
        }
    }
}

/// What is compared, computed with, stored as another type or read with gaps is not moved as it is.
#[test]
fn other_bodies_are_not_packed() {
    let n = 70;
    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, y) = (k.input(DType::Bf16), k.output(DType::Bf16));
    let element = k.load(x, "i0");
    let zero = k.f32(0.0);
    let above = k.push(DType::Bool, InstKind::Compare(CompareOp::Gt, element, zero));
    let chosen = k.push(DType::F32, InstKind::Select(above, element, zero));
    k.store(y, "i0", chosen);
    assert_eq!(packed(&k.kernel()), 0);
    check(&k.kernel(), &[tensor(DType::Bf16, n, 7, true), zeros(DType::Bf16, n)], &[], EXACT);

    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, y) = (k.input(DType::Bf16), k.output(DType::F16));
    let element = k.load(x, "i0");
    k.store(y, "i0", element);
    assert_eq!(packed(&k.kernel()), 0);
    check(&k.kernel(), &[tensor(DType::Bf16, n, 7, true), zeros(DType::F16, n)], &[], EXACT);

    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, y) = (k.input(DType::U8), k.output(DType::U8));
    let element = k.load(x, "i0*3");
    k.store(y, "i0", element);
    assert_eq!(packed(&k.kernel()), 0);
    check(&k.kernel(), &[tensor(DType::U8, 3 * n, 7, false), zeros(DType::U8, n)], &[], EXACT);
}

/// Every byte but zero is true, and a moved bool is 0 or 1.
#[test]
fn moved_bools_are_zero_or_one() {
    let n = 100;
    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, y) = (k.input(DType::Bool), k.output(DType::Bool));
    let element = k.load(x, "i0");
    k.store(y, "i0", element);
    assert_eq!(packed(&k.kernel()), 1);
    let any: Vec<u8> = (0..n as u8).map(|i| i.wrapping_mul(37) % 5).collect();
    for isa in Isa::available() {
        let from = HostTensor::from_bytes(DType::Bool, &[n], any.clone()).unwrap();
        let mut t = [from, zeros(DType::Bool, n)];
        run_on(&k.kernel(), isa, &mut t, &[], Options::default()).unwrap();
        let want: Vec<u8> = any.iter().map(|b| u8::from(*b != 0)).collect();
        assert_eq!(t[1].bytes(), want, "{isa:?}");
    }
}

/// Flipped tensors: the last element of a row first, rows of any length.
#[test]
fn elements_in_reverse_order() {
    for dtype in DTYPES {
        for n in LENGTHS {
            let mut k = K::new(&[("i0", "3"), ("i1", &n.to_string())], &[]);
            let (x, y) = (k.input(dtype), k.output(dtype));
            let element = k.load(x, &format!("{} - i0*{n} - i1", 3 * n - 1));
            let row = in_range(&mut k, "i0", "0", "2");
            let filler = constant(&mut k, dtype, 1.0);
            let chosen = k.push(dtype.compute_type(), InstKind::Select(row, element, filler));
            k.store(y, &format!("i0*{n} + i1"), chosen);
            // The first element that is read is the first of the buffer.
            check(&k.kernel(), &[tensor(dtype, 3 * n, 7, true), zeros(dtype, 3 * n)], &[], EXACT);
            assert!(n < LONG || packed(&k.kernel()) == bytes(dtype), "{dtype}, {n}");
        }
    }
}

/// Lines of three axes. The longest have so many elements that several tasks share them, whose first and last lines are not whole.
#[test]
fn lines_of_several_axes() {
    for dtype in [DType::Bf16, DType::U8, DType::F32, DType::I64] {
        for (a, b, c, n) in [(3, 5, 4, 3), (3, 5, 4, 33), (3, 5, 4, 70), (2, 3, 4, 1200), (7, 11, 13, 601)] {
            let axes = [("i0", a), ("i1", b), ("i2", c), ("i3", n)].map(|(name, size)| (name, size.to_string()));
            let axes: Vec<(&str, &str)> = axes.iter().map(|(name, size)| (*name, size.as_str())).collect();
            let mut k = K::new(&axes, &[]);
            let (x, y) = (k.input(dtype), k.output(dtype));
            // Another order of axes, so that none are merged.
            let element = k.load(x, &format!("i2*{} + i1*{} + i0*{n} + i3", a * b * n, a * n));
            k.store(y, &format!("((i0*{b} + i1)*{c} + i2)*{n} + i3"), element);
            let elements = a * b * c * n;
            check(&k.kernel(), &[tensor(dtype, elements, 7, true), zeros(dtype, elements)], &[], EXACT);
        }
    }
}
