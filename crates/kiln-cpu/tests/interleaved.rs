//! Accesses with gaps along the lanes that together touch every element: they are made as whole vectors, whose lanes change places.

mod support;
use kiln_ir::{BinaryOp, DType};
use kiln_kernels::kernel::InstKind;
use support::*;

/// Dtypes that are interleaved, and some that are not.
const DTYPES: [DType; 6] = [DType::F32, DType::I32, DType::F64, DType::Bf16, DType::F16, DType::I64];

#[test]
fn groups_are_split_and_joined() {
    for dtype in DTYPES {
        for count in [2, 3, 4, 8, 16] {
            // Less than a vector, whole vectors, and some elements more.
            for n in [1, 8, 16, 33, 70] {
                let mut k = K::new(&[("i0", "3"), ("i1", &n.to_string())], &[]);
                let (x, y) = (k.input(dtype), k.output(dtype));
                let line = count * n;
                let place = |at: usize| format!("i0*{line} + i1*{count} + {at}");
                let values: Vec<_> = (0..count).map(|at| k.load(x, &place(at))).collect();
                // In another order, so that an element that stays where it was is a mistake.
                for (at, value) in values.iter().rev().enumerate() {
                    k.store(y, &place((at + 1) % count), *value);
                }
                check(&k.kernel(), &[tensor(dtype, 3 * line, 7, false), zeros(dtype, 3 * line)], &[], EXACT);
            }
        }
    }
}

#[test]
fn groups_that_are_not_whole_touch_nothing_else() {
    for dtype in DTYPES {
        for loaded in [&[0, 1, 2][..], &[1, 2], &[0, 3], &[1]] {
            let n = 40;
            let mut k = K::new(&[("i0", &n.to_string())], &[]);
            let (x, y) = (k.input(dtype), k.output(dtype));
            for (at, from) in loaded.iter().enumerate() {
                let value = k.load(x, &format!("i0*2 + {from}"));
                k.store(y, &format!("i0*4 + {at}"), value);
            }
            // The last element that is read is the last of the buffer.
            let elements = 2 * (n - 1) + loaded.iter().max().unwrap() + 1;
            check(&k.kernel(), &[tensor(dtype, elements, 9, false), zeros(dtype, 4 * n)], &[], EXACT);
        }
    }
}

#[test]
fn parts_of_complex_numbers() {
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let (m, n, held) = (5, 37, dtype.compute_type());
        let mut k = K::new(&[("i0", &m.to_string()), ("i1", &n.to_string())], &[]);
        let (a, b, y) = (k.input(dtype), k.input(dtype), k.output(dtype));
        let place = |part: usize| format!("i0*{} + i1*2 + {part}", 2 * n);
        let [ar, ai] = [0, 1].map(|part| k.load(a, &place(part)));
        let [br, bi] = [0, 1].map(|part| k.load(b, &place(part)));
        let (rr, ii) = (k.binary(BinaryOp::Mul, held, ar, br), k.binary(BinaryOp::Mul, held, ai, bi));
        let (ri, ir) = (k.binary(BinaryOp::Mul, held, ar, bi), k.binary(BinaryOp::Mul, held, ai, br));
        let (real, imaginary) = (k.binary(BinaryOp::Sub, held, rr, ii), k.binary(BinaryOp::Add, held, ri, ir));
        k.store(y, &place(1), imaginary);
        k.store(y, &place(0), real);
        let t = [tensor(dtype, 2 * m * n, 3, false), tensor(dtype, 2 * m * n, 4, false), zeros(dtype, 2 * m * n)];
        check(&k.kernel(), &t, &[], EXACT);
    }
}

/// Each element in several places side by side, every one of which does something else with it.
#[test]
fn results_that_lie_between_each_other() {
    for dtype in DTYPES {
        for times in [2, 3, 4, 5] {
            for n in [1, 7, 8, 16, 33] {
                let mut k = K::new(&[("i0", "3"), ("i1", &n.to_string()), ("i2", &times.to_string())], &[]);
                let (x, y, z) = (k.input(dtype), k.output(dtype), k.output(dtype));
                let value = k.load(x, &format!("i0*{n} + i1"));
                let place = format!("i1*{times} + i2");
                let number = k.push(DType::I64, InstKind::Index(dim(&place)));
                let held = dtype.compute_type();
                let number = if held == DType::I64 { number } else { k.push(held, InstKind::Cast(number)) };
                let sum = k.binary(BinaryOp::Add, held, value, number);
                let line = n * times;
                k.store(y, &format!("i0*{line} + {place}"), sum);
                k.store(z, &format!("i0*{line} + {place}"), value);
                let t = [tensor(dtype, 3 * n, 7, false), zeros(dtype, 3 * line), zeros(dtype, 3 * line)];
                check(&k.kernel(), &t, &[], EXACT);
            }
        }
    }
}

/// Complex numbers in reverse order, and the same for longer groups.
#[test]
fn groups_that_go_backwards() {
    for dtype in DTYPES {
        for count in [2, 3, 4, 8] {
            for n in [1, 8, 16, 33, 70] {
                let mut k = K::new(&[("i0", "3"), ("i1", &n.to_string())], &[]);
                let (x, y) = (k.input(dtype), k.output(dtype));
                let line = count * n;
                for at in 0..count {
                    let value = k.load(x, &format!("i0*{line} + {} - i1*{count}", line - count + at));
                    k.store(y, &format!("i0*{line} + i1*{count} + {}", count - 1 - at), value);
                }
                // The first element that is read is the first of the buffer.
                check(&k.kernel(), &[tensor(dtype, 3 * line, 7, false), zeros(dtype, 3 * line)], &[], EXACT);
            }
        }
    }
}
