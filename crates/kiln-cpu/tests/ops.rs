//! Every op and every dtype, pointwise, on every target against the reference executor.

mod support;
use kiln_ir::*;
use kiln_kernels::kernel::*;
use support::*;

const COMPUTE: [DType; 5] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool];
const LENGTHS: [usize; 6] = [1, 5, 16, 31, 64, 70];

fn map1(from: DType, to: DType, op: impl Fn(&mut K, ValueId) -> ValueId, n: usize, special: bool, tolerance: Within) {
    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, y) = (k.input(from), k.output(to));
    let v = k.load(x, "i0");
    let v = op(&mut k, v);
    k.store(y, "i0", v);
    check(&k.kernel(), &[tensor(from, n, n as u64, special), zeros(to, n)], &[], tolerance);
}

#[test]
fn casts_between_all_dtypes() {
    for from in DType::ALL {
        for to in DType::ALL {
            if to == DType::I4 {
                continue;
            }
            for n in LENGTHS {
                for special in [false, true] {
                    let cast = |k: &mut K, v| k.push(to.compute_type(), InstKind::Cast(v));
                    map1(from, to, cast, n, special, EXACT);
                }
            }
        }
    }
}

#[test]
fn rounding_to_short_types() {
    for to in [DType::F16, DType::Bf16, DType::F8E4M3, DType::F8E5M2] {
        let round = |k: &mut K, v| k.push(DType::F32, InstKind::Round(v, to));
        map1(DType::F32, DType::F32, round, 70, true, EXACT);
    }
    for to in [DType::I8, DType::I16, DType::U8, DType::I4] {
        let round = |k: &mut K, v| k.push(DType::I32, InstKind::Round(v, to));
        map1(DType::I32, DType::I32, round, 70, true, EXACT);
    }
}

#[test]
fn bit_casts() {
    for (from, to) in
        [(DType::F32, DType::I32), (DType::I32, DType::F32), (DType::F64, DType::I64), (DType::I64, DType::F64)]
    {
        map1(from, to, |k: &mut K, v| k.push(to, InstKind::Bitcast(v)), 37, false, EXACT);
    }
}

#[test]
fn unary_ops() {
    for &op in UnaryOp::ALL {
        for dtype in COMPUTE {
            let applies = match op {
                UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign => dtype != DType::Bool,
                UnaryOp::Not => !dtype.is_float(),
                _ => dtype.is_float(),
            };
            if !applies {
                continue;
            }
            let to = if op == UnaryOp::IsNan { DType::Bool } else { dtype };
            let tolerance = if dtype.is_float() { Within { relative: 4e-7, absolute: 1e-44 } } else { EXACT };
            for n in LENGTHS {
                for special in [false, true] {
                    map1(dtype, to, |k: &mut K, v| k.unary(op, to, v), n, special, tolerance);
                }
            }
        }
    }
}

fn map2(
    from: DType,
    to: DType,
    op: impl Fn(&mut K, ValueId, ValueId) -> ValueId,
    n: usize,
    special: bool,
    tolerance: Within,
) {
    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (a, b, y) = (k.input(from), k.input(from), k.output(to));
    let (x, z) = (k.load(a, "i0"), k.load(b, "i0"));
    let v = op(&mut k, x, z);
    k.store(y, "i0", v);
    check(&k.kernel(), &[tensor(from, n, 1, special), tensor(from, n, 2, special), zeros(to, n)], &[], tolerance);
}

#[test]
fn binary_ops() {
    for &op in BinaryOp::ALL {
        for dtype in COMPUTE {
            let applies = match op {
                BinaryOp::Add | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min => true,
                BinaryOp::Sub | BinaryOp::Div | BinaryOp::Rem => dtype != DType::Bool,
                BinaryOp::Pow | BinaryOp::Atan2 => dtype.is_float(),
                BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => !dtype.is_float(),
                BinaryOp::Shl | BinaryOp::Shr | BinaryOp::Gcd => dtype.is_int(),
            };
            if !applies {
                continue;
            }
            let exact = !dtype.is_float() || !matches!(op, BinaryOp::Pow | BinaryOp::Atan2);
            let tolerance = if exact { EXACT } else { Within { relative: 4e-7, absolute: 1e-44 } };
            for n in LENGTHS {
                for special in [false, true] {
                    map2(dtype, dtype, |k, a, b| k.binary(op, dtype, a, b), n, special, tolerance);
                }
            }
        }
    }
}

#[test]
fn comparisons_and_selection() {
    for &op in CompareOp::ALL {
        for dtype in COMPUTE {
            for special in [false, true] {
                map2(
                    dtype,
                    DType::Bool,
                    |k, a, b| k.push(DType::Bool, InstKind::Compare(op, a, b)),
                    45,
                    special,
                    EXACT,
                );
                let pick = |k: &mut K, a, b| {
                    let c = k.push(DType::Bool, InstKind::Compare(op, a, b));
                    k.push(dtype, InstKind::Select(c, a, b))
                };
                map2(dtype, dtype, pick, 45, special, EXACT);
            }
        }
    }
}

#[test]
fn mixed_widths_share_masks() {
    // f32 and f64 in one kernel: masks of 64-bit comparisons select 32-bit values and the other way round.
    for n in LENGTHS {
        let mut k = K::new(&[("i0", &n.to_string())], &[]);
        let (a, b, y, z) = (k.input(DType::F32), k.input(DType::F64), k.output(DType::F32), k.output(DType::F64));
        let (x, w) = (k.load(a, "i0"), k.load(b, "i0"));
        let wide = k.push(DType::F64, InstKind::Cast(x));
        let narrow = k.push(DType::F32, InstKind::Cast(w));
        let c = k.push(DType::Bool, InstKind::Compare(CompareOp::Lt, wide, w));
        let d = k.push(DType::Bool, InstKind::Compare(CompareOp::Gt, x, narrow));
        let p = k.push(DType::F32, InstKind::Select(c, x, narrow));
        let q = k.push(DType::F64, InstKind::Select(d, wide, w));
        k.store(y, "i0", p);
        k.store(z, "i0", q);
        let t = [
            tensor(DType::F32, n, 3, true),
            tensor(DType::F64, n, 4, true),
            zeros(DType::F32, n),
            zeros(DType::F64, n),
        ];
        check(&k.kernel(), &t, &[], EXACT);
    }
}

#[test]
fn random_numbers() {
    for n in LENGTHS {
        for start in ["0", "4294967290", "5000000000"] {
            let mut k = K::new(&[("i0", &n.to_string())], &[]);
            let (s, y) = (k.input(DType::I64), k.output(DType::I32));
            let seed = k.load(s, "0");
            let v = k.push(DType::I32, InstKind::Random { seed, position: dim(&format!("i0 + {start}")), stream: 7 });
            k.store(y, "i0", v);
            check(&k.kernel(), &[tensor(DType::I64, 1, 9, true), zeros(DType::I32, n)], &[], EXACT);
        }
    }
}

/// A key of its own in each lane, and one position for all of them.
#[test]
fn random_numbers_of_many_keys() {
    for (seed_at, position) in [("i0", "i0 + 3"), ("i0", "5"), ("0", "4294967299")] {
        let n = 70;
        let mut k = K::new(&[("i0", &n.to_string())], &[]);
        let (s, y) = (k.input(DType::I64), k.output(DType::I32));
        let seed = k.load(s, seed_at);
        let v = k.push(DType::I32, InstKind::Random { seed, position: dim(position), stream: 1 << 31 });
        k.store(y, "i0", v);
        check(&k.kernel(), &[tensor(DType::I64, n, 9, true), zeros(DType::I32, n)], &[], EXACT);
    }
}

/// Bools side by side are computed by whole words, and by masks where fewer are left; any byte but zero is true.
#[test]
fn logic_of_bools() {
    let bytes = |n: usize, seed: u64| {
        let mut r = Random(seed);
        let some = [0u8, 0, 0, 1, 1, 2, 128, 255];
        let elements = (0..n).map(|_| some[(r.next() % 8) as usize]).collect();
        HostTensor::from_bytes(DType::Bool, &[n], elements).unwrap()
    };
    for n in [1, 63, 64, 65, 127, 128, 300] {
        let mut k = K::new(&[("i0", "2"), ("i1", &n.to_string())], &[]);
        let (a, b, c) = (k.input(DType::Bool), k.input(DType::Bool), k.input(DType::Bool));
        // Rows of the operands are further apart than they are long, so that the axes stay two.
        let place = format!("i0 * {} + i1", n + 5);
        let loads = [k.load(a, &place), k.load(b, &place), k.load(c, "i1 + 1")];
        let mut values = vec![k.push(DType::Bool, InstKind::Unary(UnaryOp::Not, loads[0]))];
        values.push(k.push(DType::Bool, InstKind::Select(loads[2], loads[0], loads[1])));
        for &op in CompareOp::ALL {
            values.push(k.push(DType::Bool, InstKind::Compare(op, loads[0], loads[1])));
        }
        for op in
            [BinaryOp::Add, BinaryOp::Mul, BinaryOp::Min, BinaryOp::Max, BinaryOp::And, BinaryOp::Or, BinaryOp::Xor]
        {
            values.push(k.binary(op, DType::Bool, loads[1], loads[2]));
        }
        let mut tensors = vec![bytes(2 * n + 10, 1), bytes(2 * n + 10, 2), bytes(n + 1, 3)];
        for value in values {
            let y = k.output(DType::Bool);
            k.store(y, &format!("i0 * {n} + i1"), value);
            tensors.push(zeros(DType::Bool, 2 * n));
        }
        check(&k.kernel(), &tensors, &[], EXACT);
    }
}

/// Quotients by floats are exact up to their limit, and vectors with larger numbers call a function: every pair of numbers beside a
/// power of two, among them those that a float does not hold.
#[test]
fn division_of_wide_integers_is_exact() {
    let powers = (0..63).flat_map(|bit| [(1i64 << bit) - 1, 1 << bit, (1i64 << bit) + 1]);
    let mut numbers: Vec<i64> = powers.chain([0, 3, 7, 10, 999_999_999_989]).flat_map(|n| [n, -n]).collect();
    numbers.extend([i64::MIN, i64::MIN + 1, i64::MAX, i64::MAX - 1]);
    let pairs = numbers.iter().flat_map(|&x| numbers.iter().map(move |&y| (x, y)));
    // Quotients that are nearly whole: q·y − 1 with factors whose product has some 51 bits.
    let mut r = Random(7);
    let near = (0..20_000).flat_map(|_| {
        let (q, y) = ((r.next() >> 38) as i64 + 1, (r.next() >> 40) as i64 + 1);
        [(q * y - 1, y), (q * y, y), (1 - q * y, y), (q * y - 1, -y)]
    });
    let pairs: Vec<(i64, i64)> = pairs.chain(near).collect();
    let n = pairs.len();
    let column = |pick: fn(&(i64, i64)) -> i64| {
        HostTensor::from_slice(&[n], &pairs.iter().map(pick).collect::<Vec<i64>>()).unwrap()
    };
    for op in [BinaryOp::Div, BinaryOp::Rem, BinaryOp::Gcd] {
        let mut k = K::new(&[("i0", &n.to_string())], &[]);
        let (a, b, y) = (k.input(DType::I64), k.input(DType::I64), k.output(DType::I64));
        let (x, z) = (k.load(a, "i0"), k.load(b, "i0"));
        let v = k.binary(op, DType::I64, x, z);
        k.store(y, "i0", v);
        let meaning = op.row().int.unwrap();
        for isa in kiln_cpu::features::Isa::available() {
            let mut tensors = [column(|p| p.0), column(|p| p.1), zeros(DType::I64, n)];
            run_on(&k.kernel(), isa, &mut tensors, &[], kiln_cpu::lower::Options::default()).unwrap();
            let got = tensors[2].to_vec::<i64>().unwrap();
            for (&(x, y), got) in pairs.iter().zip(got) {
                assert_eq!(got, meaning(DType::I64, x, y), "{isa:?}: {} of {x} and {y}", op.name());
            }
        }
    }
}
