//! Loop nests: reductions, row temporaries, strides, guards, gathers and symbolic sizes, on every target.

mod support;
use kiln_ir::*;
use kiln_kernels::kernel::*;
use support::*;

const SUMS: Within = Within { relative: 3e-6, absolute: 2e-5 };

fn reduction(kind: ReductionKind, dtype: DType, by_rows: bool, m: usize, n: usize) -> K {
    let (grid, row, offset) = if by_rows { (m, n, format!("i0*{n} + i1")) } else { (n, m, format!("i1*{n} + i0")) };
    let mut k = K::new(&[("i0", &grid.to_string())], &[("i1", &row.to_string())]);
    let out = if matches!(kind, ReductionKind::Arg(_)) { DType::I64 } else { dtype };
    let (x, y) = (k.input(dtype), k.output(out));
    k.stage(Domain::Row);
    let v = k.load(x, &offset);
    let r = k.reduce(kind, dtype.compute_type(), v);
    k.stage(Domain::Point);
    k.store(y, "i0", r);
    k
}

fn kinds() -> Vec<ReductionKind> {
    let plain = ReduceKind::ALL.iter().map(|k| ReductionKind::Reduce(*k));
    plain.chain(ArgKind::ALL.iter().map(|k| ReductionKind::Arg(*k))).collect()
}

#[test]
fn reductions_along_rows_and_columns() {
    for kind in kinds() {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool, DType::Bf16] {
            let prod = kind == ReductionKind::Reduce(ReduceKind::Prod);
            for by_rows in [true, false] {
                for (m, n) in [(1, 1), (3, 5), (7, 16), (2, 33), (5, 64), (3, 70), (70, 3), (33, 129)] {
                    let k = reduction(kind, dtype, by_rows, m, n);
                    let out = if by_rows { m } else { n };
                    let od = if matches!(kind, ReductionKind::Arg(_)) { DType::I64 } else { dtype };
                    let extremes = !matches!(kind, ReductionKind::Reduce(ReduceKind::Sum | ReduceKind::Prod));
                    let x = tensor(dtype, m * n, (m * n) as u64, extremes);
                    let close = if dtype == DType::Bf16 { Within { relative: 1e-2, absolute: 1e-2 } } else { SUMS };
                    let close = if prod { Within { relative: 3e-5, absolute: 1e-5 } } else { close };
                    check(
                        &k.kernel(),
                        &[x, zeros(od, out)],
                        &[],
                        if dtype.is_float() && !extremes { close } else { EXACT },
                    );
                }
            }
        }
    }
}

#[test]
fn the_first_of_equals_wins() {
    for by_rows in [true, false] {
        for kind in ArgKind::ALL {
            let k = reduction(ReductionKind::Arg(*kind), DType::F32, by_rows, 40, 40);
            let values: Vec<f64> = (0..1600).map(|i| ((i * 7919) % 3) as f64).collect();
            let x = HostTensor::from_f64(DType::F32, &[1600], &values).unwrap();
            check(&k.kernel(), &[x, zeros(DType::I64, 40)], &[], EXACT);
        }
    }
}

#[test]
fn empty_rows_give_identities() {
    for kind in kinds() {
        for dtype in [DType::F32, DType::I32, DType::I64, DType::Bool] {
            let mut k = K::new(&[("i0", "5")], &[("i1", "n")]);
            k.size("n");
            let out = if matches!(kind, ReductionKind::Arg(_)) { DType::I64 } else { dtype };
            let (x, y) = (k.input(dtype), k.output(out));
            k.stage(Domain::Row);
            let v = k.load(x, "i0*n + i1");
            let r = k.reduce(kind, dtype, v);
            k.stage(Domain::Point);
            k.store(y, "i0", r);
            for n in [0usize, 1, 40] {
                let t = [tensor(dtype, 5 * n, 1, false), zeros(out, 5)];
                check(&k.kernel(), &t, &[n as i64], Within { relative: 1e-4, absolute: 1e-4 });
            }
        }
    }
}

/// exp(x − max) / Σ, through one row temporary.
fn softmax(grid: &str, row: &str, offset: &str, dtype: DType) -> K {
    let mut k = K::new(&[("i0", grid)], &[("i1", row)]);
    let f = DType::F32;
    let (x, y) = (k.input(dtype), k.output(dtype));
    k.body.temps.push(f);
    k.stage(Domain::Row);
    let v = k.load(x, offset);
    let top = k.reduce(ReductionKind::Reduce(ReduceKind::Max), f, v);
    k.stage(Domain::Row);
    let v = k.load(x, offset);
    let d = k.binary(BinaryOp::Sub, f, v, top);
    let e = k.unary(UnaryOp::Exp, f, d);
    k.push(f, InstKind::StoreTemp(0, e));
    let sum = k.reduce(ReductionKind::Reduce(ReduceKind::Sum), f, e);
    k.stage(Domain::Point);
    let inverse = k.unary(UnaryOp::Recip, f, sum);
    k.stage(Domain::Row);
    let e = k.push(f, InstKind::LoadTemp(0));
    let v = k.binary(BinaryOp::Mul, f, e, inverse);
    k.store(y, offset, v);
    k
}

#[test]
fn softmax_along_rows_and_columns() {
    for (m, n) in [(1, 1), (3, 7), (4, 64), (2, 100), (65, 9), (40, 200)] {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let close = if dtype == DType::F32 { SUMS } else { Within { relative: 1e-2, absolute: 1e-3 } };
            let t = [tensor(dtype, m * n, 5, false), zeros(dtype, m * n)];
            let rows = softmax(&m.to_string(), &n.to_string(), &format!("i0*{n} + i1"), dtype);
            check(&rows.kernel(), &t, &[], close);
            let columns = softmax(&n.to_string(), &m.to_string(), &format!("i1*{n} + i0"), dtype);
            check(&columns.kernel(), &t, &[], close);
        }
    }
}

#[test]
fn rows_of_several_axes() {
    // Mean and variance over (c, w) of [b, c, h, w], two passes, then normalised: the row's axes do not merge.
    for (b, c, h, w) in [(2, 3, 4, 5), (1, 2, 3, 33), (3, 1, 1, 1), (2, 5, 2, 16)] {
        let mut k = K::new(
            &[("i0", &b.to_string()), ("i1", &h.to_string())],
            &[("i2", &c.to_string()), ("i3", &w.to_string())],
        );
        let f = DType::F32;
        let (x, y) = (k.input(f), k.output(f));
        let offset = format!("i0*{} + i2*{} + i1*{w} + i3", c * h * w, h * w);
        k.body.temps.push(f);
        k.stage(Domain::Row);
        let v = k.load(x, &offset);
        let sum = k.reduce(ReductionKind::Reduce(ReduceKind::Sum), f, v);
        k.stage(Domain::Point);
        let n = k.f32(1.0 / (c * w) as f64);
        let mean = k.binary(BinaryOp::Mul, f, sum, n);
        k.stage(Domain::Row);
        let v = k.load(x, &offset);
        let d = k.binary(BinaryOp::Sub, f, v, mean);
        k.push(f, InstKind::StoreTemp(0, d));
        let sq = k.binary(BinaryOp::Mul, f, d, d);
        let var = k.reduce(ReductionKind::Reduce(ReduceKind::Sum), f, sq);
        let most = k.reduce(ReductionKind::Arg(ArgKind::Max), f, v);
        k.stage(Domain::Row);
        let d = k.push(f, InstKind::LoadTemp(0));
        let s = k.unary(UnaryOp::Sqrt, f, var);
        let v = k.binary(BinaryOp::Mul, f, d, s);
        let at = k.push(f, InstKind::Cast(most));
        let v = k.binary(BinaryOp::Add, f, v, at);
        k.store(y, &offset, v);
        let t = [tensor(f, b * c * h * w, 5, false), zeros(f, b * c * h * w)];
        check(&k.kernel(), &t, &[], Within { relative: 1e-5, absolute: 1e-4 });
    }
}

#[test]
fn strides_of_every_kind() {
    for dtype in [DType::F32, DType::F64, DType::I8, DType::Bf16, DType::Bool, DType::I64] {
        for (m, n) in [(1, 1), (5, 7), (17, 33), (64, 20)] {
            let places = [
                format!("i0*{n} + i1"),
                format!("i1*{m} + i0"),
                format!("{} - i0*{n} - i1", m * n - 1),
                format!("i0*{}  + i1*2", 2 * n),
                "i1".to_string(),
                "i0".to_string(),
                "3".to_string(),
                format!("(i0*{n} + i1) // 3"),
                format!("(i0*{n} + i1) % 7"),
                format!("min(i0*{n} + i1, 11)"),
                "max(i0, i1)".to_string(),
            ];
            for place in &places {
                let mut k = K::new(&[("i0", &m.to_string()), ("i1", &n.to_string())], &[]);
                let (x, y) = (k.input(dtype), k.output(dtype));
                let v = k.load(x, place);
                k.store(y, &format!("i0*{n} + i1"), v);
                let t = [tensor(dtype, 2 * m * n + 12, 1, false), zeros(dtype, m * n)];
                check(&k.kernel(), &t, &[], EXACT);
            }
            for place in &places[..4] {
                let mut k = K::new(&[("i0", &m.to_string()), ("i1", &n.to_string())], &[]);
                let (x, y) = (k.input(dtype), k.output(dtype));
                let v = k.load(x, &format!("i0*{n} + i1"));
                k.store(y, place, v);
                let t = [tensor(dtype, m * n, 1, false), zeros(dtype, 2 * m * n)];
                check(&k.kernel(), &t, &[], EXACT);
            }
        }
    }
}

/// Every element twice, and every second one: stores with gaps between elements.
#[test]
fn elements_two_apart_are_stored() {
    for dtype in [DType::F32, DType::I32, DType::Bf16, DType::F64, DType::Bool] {
        for n in [1, 7, 16, 17, 32, 33, 70] {
            for copies in [1, 2] {
                let mut k = K::new(&[("i0", "3"), ("i1", &n.to_string()), ("i2", &copies.to_string())], &[]);
                let (x, y) = (k.input(dtype), k.output(dtype));
                let v = k.load(x, &format!("i0*{n} + i1"));
                k.store(y, &format!("i0*{} + i1*2 + i2", 2 * n), v);
                check(&k.kernel(), &[tensor(dtype, 3 * n, 5, true), zeros(dtype, 6 * n)], &[], EXACT);
            }
        }
    }
}

#[test]
fn guards_never_touch_what_they_exclude() {
    // y = pad(x, 3 before, 4 after), and a concatenation of two buffers, in one kernel each.
    for dtype in [DType::F32, DType::F64, DType::I8, DType::F16, DType::I64, DType::Bool] {
        for n in [1usize, 5, 16, 40, 100] {
            let total = n + 7;
            let mut k = K::new(&[("i0", &total.to_string())], &[]);
            let (x, y) = (k.input(dtype), k.output(dtype));
            let inside = k
                .push(DType::Bool, InstKind::InRange { expr: dim("i0 - 3"), low: dim("0"), high: dim(&n.to_string()) });
            let place = k.place(x, "i0 - 3");
            let v = k.push(dtype.compute_type(), InstKind::Load { place, guard: Some(inside) });
            k.store(y, "i0", v);
            check(&k.kernel(), &[tensor(dtype, n, 3, false), zeros(dtype, total)], &[], EXACT);

            let mut k = K::new(&[("i0", &total.to_string())], &[]);
            let (a, b, y) = (k.input(dtype), k.input(dtype), k.output(dtype));
            let first =
                k.push(DType::Bool, InstKind::InRange { expr: dim("i0"), low: dim("0"), high: dim(&n.to_string()) });
            let second = k.unary(UnaryOp::Not, DType::Bool, first);
            let place = k.place(a, "i0");
            let p = k.push(dtype.compute_type(), InstKind::Load { place, guard: Some(first) });
            let place = k.place(b, &format!("i0 - {n}"));
            let q = k.push(dtype.compute_type(), InstKind::Load { place, guard: Some(second) });
            let v = k.push(dtype.compute_type(), InstKind::Select(first, p, q));
            let place = k.place(y, "i0");
            let even = k.push(DType::Bool, InstKind::InRange { expr: dim("i0 % 3"), low: dim("0"), high: dim("2") });
            k.push(dtype.compute_type(), InstKind::Store { place, value: v, guard: Some(even) });
            check(
                &k.kernel(),
                &[tensor(dtype, n, 3, false), tensor(dtype, 7, 4, false), zeros(dtype, total)],
                &[],
                EXACT,
            );
        }
    }
}

#[test]
fn guards_on_strided_and_uniform_places() {
    for dtype in [DType::F32, DType::I16, DType::I64, DType::Bool] {
        let mut k = K::new(&[("i0", "9"), ("i1", "21")], &[]);
        let (x, y) = (k.input(dtype), k.output(dtype));
        let odd = k.push(DType::Bool, InstKind::InRange { expr: dim("2*i1 - 4"), low: dim("0"), high: dim("30") });
        let place = k.place(x, "(2*i1 - 4)*3 + i0");
        let p = k.push(dtype.compute_type(), InstKind::Load { place, guard: Some(odd) });
        let row = k.push(DType::Bool, InstKind::InRange { expr: dim("i0 - 5"), low: dim("0"), high: dim("100") });
        let place = k.place(x, "i0 - 5");
        let q = k.push(dtype.compute_type(), InstKind::Load { place, guard: Some(row) });
        let place = k.place(x, "i0 - 5");
        let both = k.binary(BinaryOp::And, DType::Bool, row, odd);
        let r = k.push(dtype.compute_type(), InstKind::Load { place, guard: Some(both) });
        let v = k.binary(BinaryOp::Max, dtype.compute_type(), p, q);
        let v = k.binary(BinaryOp::Max, dtype.compute_type(), v, r);
        k.store(y, "i0*21 + i1", v);
        check(&k.kernel(), &[tensor(dtype, 29 * 3 + 9, 3, false), zeros(dtype, 9 * 21)], &[], EXACT);
    }
}

fn gather(rows: usize, width: usize, index: DType, along: bool) -> K {
    let mut k = K::new(&[("i0", "6"), ("i1", &width.to_string())], &[]);
    let (x, i, y) = (k.input(DType::F32), k.input(index), k.output(DType::F32));
    let at = k.load(i, if along { "i1" } else { "i0" });
    let at = if index == DType::I32 { k.push(DType::I64, InstKind::Cast(at)) } else { at };
    let at = k.push(DType::I64, InstKind::CheckIndex { value: at, size: dim(&rows.to_string()) });
    let place = Place { buffer: x, offset: dim("i1"), indirect: vec![(at, dim(&width.to_string()))] };
    let v = k.push(DType::F32, InstKind::Load { place, guard: None });
    k.store(y, &format!("i0*{width} + i1"), v);
    k
}

#[test]
fn gathers_and_index_checks() {
    use kiln_cpu::features::Isa;
    use kiln_cpu::lower::Options;
    for index in [DType::I32, DType::I64] {
        for along in [false, true] {
            for width in [1usize, 6, 16, 37] {
                let kernel = gather(10, width, index, along).kernel();
                let n = if along { width } else { 6 };
                let good: Vec<i64> = (0..n as i64).map(|i| (i * 7) % 10).collect();
                let x = tensor(DType::F32, 10 * width, 1, false);
                let t = |values: &[i64]| {
                    [x.clone(), HostTensor::from_i64(index, &[n], values).unwrap(), zeros(DType::F32, 6 * width)]
                };
                check(&kernel, &t(&good), &[], EXACT);
                for wrong in [10, -1, i32::MAX as i64] {
                    let mut values = good.clone();
                    values[n / 2] = wrong;
                    for isa in Isa::available() {
                        let got = run_on(&kernel, isa, &mut t(&values), &[], Options::default());
                        let want = kiln_runtime::LaunchError::IndexOutOfRange { index: wrong, size: 10 };
                        assert_eq!(got, Err(want), "{isa:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn symbolic_sizes() {
    // y[i, j] = x[j, i]·w[j] + index, for any m and n; then a column sum.
    let mut k = K::new(&[("i0", "m"), ("i1", "n")], &[]);
    k.size("m");
    k.size("n");
    let f = DType::F32;
    let (x, w, y) = (k.input(f), k.input(f), k.output(f));
    let v = k.load(x, "i1*m + i0");
    let s = k.load(w, "i1");
    let v = k.binary(BinaryOp::Mul, f, v, s);
    let at = k.push(DType::I64, InstKind::Index(dim("i0*n + i1")));
    let at = k.push(f, InstKind::Cast(at));
    let v = k.binary(BinaryOp::Add, f, v, at);
    k.store(y, "i0*n + i1", v);
    let mut sum = K::new(&[("i0", "n")], &[("i1", "m")]);
    sum.size("m");
    sum.size("n");
    let (x2, y2) = (sum.input(f), sum.output(f));
    sum.stage(Domain::Row);
    let v = sum.load(x2, "i1*n + i0");
    let r = sum.reduce(ReductionKind::Reduce(ReduceKind::Sum), f, v);
    sum.stage(Domain::Point);
    sum.store(y2, "i0", r);
    for (m, n) in [(0, 3), (3, 0), (1, 1), (4, 9), (17, 31), (100, 70)] {
        let t = [tensor(f, m * n, 1, false), tensor(f, n, 2, false), zeros(f, m * n)];
        check(&k.kernel(), &t, &[m as i64, n as i64], CLOSE);
        let t = [tensor(f, m * n, 1, false), zeros(f, n)];
        check(&sum.kernel(), &t, &[m as i64, n as i64], SUMS);
    }
}

#[test]
fn in_place_updates() {
    for n in [1usize, 20, 64, 100] {
        let mut k = K::new(&[("i0", &n.to_string())], &[]);
        let f = DType::F32;
        let (x, g) = (k.buffer(f, Access::ReadWrite), k.input(f));
        let (v, d) = (k.load(x, "i0"), k.load(g, "i0"));
        let rate = k.f32(0.1);
        let step = k.binary(BinaryOp::Mul, f, rate, d);
        let v = k.binary(BinaryOp::Sub, f, v, step);
        k.store(x, "i0", v);
        let again = k.load(x, "i0");
        let v = k.binary(BinaryOp::Add, f, again, again);
        k.store(x, "i0", v);
        check(&k.kernel(), &[tensor(f, n, 1, false), tensor(f, n, 2, false)], &[], CLOSE);
    }
}

#[test]
fn packed_halves_are_read() {
    let mut k = K::new(&[("i0", "9"), ("i1", "33")], &[]);
    let (x, y) = (k.input(DType::I4), k.output(DType::F32));
    let v = k.load(x, "i0*33 + i1");
    let w = k.load(x, "i0");
    let v = k.binary(BinaryOp::Mul, DType::I32, v, w);
    let v = k.push(DType::F32, InstKind::Cast(v));
    k.store(y, "i0*33 + i1", v);
    check(&k.kernel(), &[tensor(DType::I4, 9 * 33, 2, false), zeros(DType::F32, 9 * 33)], &[], EXACT);
}

#[test]
fn one_point_and_many_points_in_parallel() {
    let mut k = K::new(&[], &[]);
    let (x, y) = (k.input(DType::F32), k.output(DType::F32));
    let v = k.load(x, "2");
    let v = k.unary(UnaryOp::Exp, DType::F32, v);
    k.store(y, "1", v);
    check(&k.kernel(), &[tensor(DType::F32, 3, 1, false), zeros(DType::F32, 2)], &[], CLOSE);
    let n = 300_001;
    let mut k = K::new(&[("i0", "3"), ("i1", &(n / 3).to_string())], &[]);
    let (x, b, y) = (k.input(DType::F32), k.input(DType::F32), k.output(DType::F32));
    let (v, w) = (k.load(x, &format!("i0*{} + i1", n / 3)), k.load(b, "i0"));
    let v = k.binary(BinaryOp::Sub, DType::F32, v, w);
    let v = k.unary(UnaryOp::Tanh, DType::F32, v);
    k.store(y, &format!("i0*{} + i1", n / 3), v);
    check(
        &k.kernel(),
        &[tensor(DType::F32, n, 1, false), tensor(DType::F32, 3, 2, false), zeros(DType::F32, n)],
        &[],
        CLOSE,
    );
}

#[test]
fn long_rows_in_parts() {
    for kind in kinds() {
        if kind == ReductionKind::Reduce(ReduceKind::Prod) {
            continue;
        }
        let out = |dtype| if matches!(kind, ReductionKind::Arg(_)) { DType::I64 } else { dtype };
        for dtype in [DType::F32, DType::I64, DType::Bool] {
            let close = if dtype == DType::F32 { Within { relative: 1e-5, absolute: 1e-2 } } else { EXACT };
            for (m, n) in [(1, 100_003), (3, 40_000)] {
                let k = reduction(kind, dtype, true, m, n);
                check(&k.kernel(), &[tensor(dtype, m * n, 1, false), zeros(out(dtype), m)], &[], close);
            }
            let k = reduction(kind, dtype, false, 70_001, 5);
            check(&k.kernel(), &[tensor(dtype, 70_001 * 5, 1, false), zeros(out(dtype), 5)], &[], close);
        }
    }
}

#[test]
fn transpositions() {
    for dtype in [DType::F32, DType::F64, DType::I8] {
        for (m, n) in [(1, 40), (70, 33), (16, 64), (300, 17)] {
            let mut k = K::new(&[("i0", "2"), ("i1", &m.to_string()), ("i2", &n.to_string())], &[]);
            let (x, y) = (k.input(dtype), k.output(dtype));
            let v = k.load(x, &format!("i0*{} + i2*{m} + i1", m * n));
            k.store(y, &format!("i0*{} + i1*{n} + i2", m * n), v);
            check(&k.kernel(), &[tensor(dtype, 2 * m * n, 1, false), zeros(dtype, 2 * m * n)], &[], EXACT);
        }
    }
}

#[test]
fn pairs_of_bf16_elements() {
    // Loads and stores by pairs, with an index, a truth value and random bits that know each element's position.
    let (b, f) = (DType::Bf16, DType::F32);
    for (m, n) in [(1usize, 1usize), (2, 31), (3, 64), (2, 130), (1, 300)] {
        let mut k = K::new(&[("i0", &m.to_string()), ("i1", &n.to_string())], &[]);
        let (x, w, s, y) = (k.input(b), k.input(b), k.input(DType::I64), k.output(b));
        let (v, u) = (k.load(x, &format!("i0*{n} + i1")), k.load(w, "i1"));
        let v = k.binary(BinaryOp::Mul, f, v, u);
        let at = k.push(DType::I64, InstKind::Index(dim("3*i1 - i0")));
        let at = k.push(f, InstKind::Cast(at));
        let v = k.binary(BinaryOp::Add, f, v, at);
        let inside = k.push(DType::Bool, InstKind::InRange { expr: dim("i1"), low: dim("2"), high: dim("75") });
        let seed = k.load(s, "0");
        let bits = k.push(DType::I32, InstKind::Random { seed, position: dim(&format!("i0*{n} + i1")), stream: 1 });
        let bits = k.push(f, InstKind::Cast(bits));
        let v = k.push(f, InstKind::Select(inside, v, bits));
        k.store(y, &format!("i0*{n} + i1"), v);
        let t = [tensor(b, m * n, 1, true), tensor(b, n, 2, false), tensor(DType::I64, 1, 3, true), zeros(b, m * n)];
        check(&k.kernel(), &t, &[], Within { relative: 1e-2, absolute: 0.0 });
    }
}

#[test]
fn a_product_equals_itself() {
    // x·w − max(x·w) is 0 at the largest and never positive, though the product is computed twice.
    let mut k = K::new(&[("i0", "7")], &[("i1", "100")]);
    let f = DType::F32;
    let (x, w, y) = (k.input(f), k.input(f), k.output(f));
    let product = |k: &mut K| {
        let (v, u) = (k.load(x, "i0*100 + i1"), k.load(w, "i1"));
        k.binary(BinaryOp::Mul, f, v, u)
    };
    k.stage(Domain::Row);
    let p = product(&mut k);
    let top = k.reduce(ReductionKind::Reduce(ReduceKind::Max), f, p);
    k.stage(Domain::Row);
    let p = product(&mut k);
    let d = k.binary(BinaryOp::Sub, f, p, top);
    k.store(y, "i0*100 + i1", d);
    check(&k.kernel(), &[tensor(f, 700, 1, false), tensor(f, 100, 2, false), zeros(f, 700)], &[], EXACT);
}

/// Every dtype whose lanes are permuted, and some whose are not.
const MOVED: [DType; 8] =
    [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I16, DType::U8, DType::I64, DType::Bool];

#[test]
fn elements_that_are_repeated_along_a_short_axis() {
    for dtype in MOVED {
        for times in [2usize, 3, 4, 7, 15] {
            for n in [1usize, 3, 16, 29] {
                let (along, short) = (n.to_string(), times.to_string());
                let mut k = K::new(&[("i0", "3"), ("i1", &along), ("i2", &short)], &[]);
                let (x, y) = (k.input(dtype), k.output(dtype));
                k.stage(Domain::Point);
                let v = k.load(x, &format!("i0*{n} + i1"));
                k.store(y, &format!("i0*{} + i1*{times} + i2", n * times), v);
                let t = [tensor(dtype, 3 * n, 5, true), zeros(dtype, 3 * n * times)];
                check(&k.kernel(), &t, &[], EXACT);
            }
        }
    }
}

/// The number of rows is known when the kernel runs, and a second operand is not repeated.
#[test]
fn repeated_elements_beside_others() {
    for n in [0usize, 1, 5, 40] {
        let mut k = K::new(&[("i0", "n"), ("i1", "11"), ("i2", "2")], &[]);
        k.size("n");
        let f = DType::F32;
        let (x, w, y) = (k.input(f), k.input(f), k.output(f));
        k.stage(Domain::Point);
        let v = k.load(x, "i0*11 + i1");
        let b = k.load(w, "i1*2 + i2");
        let sum = k.binary(BinaryOp::Add, f, v, b);
        k.store(y, "i0*22 + i1*2 + i2", sum);
        let t = [tensor(f, 11 * n, 5, true), tensor(f, 22, 6, true), zeros(f, 22 * n)];
        check(&k.kernel(), &t, &[n as i64], EXACT);
    }
}

#[test]
fn elements_in_reverse() {
    for dtype in MOVED {
        for n in [1usize, 7, 16, 33, 70] {
            let along = n.to_string();
            let mut k = K::new(&[("i0", "3"), ("i1", &along)], &[]);
            let (x, y) = (k.input(dtype), k.output(dtype));
            k.stage(Domain::Point);
            let v = k.load(x, &format!("i0*{n} + {} - i1", n - 1));
            k.store(y, &format!("i0*{n} + i1"), v);
            check(&k.kernel(), &[tensor(dtype, 3 * n, 5, true), zeros(dtype, 3 * n)], &[], EXACT);
        }
    }
}

/// One element of a row, stored along all of it.
#[test]
fn elements_of_a_row_that_are_stored_along_it() {
    for dtype in [DType::Bf16, DType::F16, DType::F32] {
        for n in [1usize, 31, 64, 70] {
            let along = n.to_string();
            let mut k = K::new(&[("i0", "5")], &[("i1", &along)]);
            let (x, y) = (k.input(dtype), k.output(dtype));
            k.stage(Domain::Point);
            let v = k.load(x, "i0*2");
            k.stage(Domain::Row);
            k.store(y, &format!("i0*{n} + i1"), v);
            check(&k.kernel(), &[tensor(dtype, 10, 5, true), zeros(dtype, 5 * n)], &[], EXACT);
        }
    }
}

/// Short floats that nothing is computed with keep all of their bits, those of NaNs too, whichever way they are read.
#[test]
fn short_floats_are_moved_as_bits() {
    let (rows, columns) = (9usize, 75usize);
    let mut r = Random(5);
    let bits: Vec<u16> = (0..rows * columns).map(|_| r.next() as u16).collect();
    let bytes: Vec<u8> = bits.iter().flat_map(|word| word.to_le_bytes()).collect();
    let chosen: Vec<i64> = (0..rows).map(|row| (row * 5 % rows) as i64).collect();
    type At<'a> = Box<dyn Fn(usize, usize) -> u16 + 'a>;
    let at = |row: usize, column: usize| bits[row * columns + column];
    let cases: Vec<(&str, At<'_>)> = vec![
        ("i0 * 75 + i1", Box::new(at)),
        ("i0 * 75 + 74 - i1", Box::new(|row, column| at(row, 74 - column))),
        ("i1 * 9 + i0", Box::new(|row, column| bits[column * 9 + row])),
        ("i0 * 75", Box::new(|row, _| at(row, 0))),
        ("7", Box::new(|_, _| bits[7])),
        ("guard", Box::new(|row, column| if (3..60).contains(&column) { at(row, column - 3) } else { 0 })),
        ("rows", Box::new(|row, column| at(chosen[row] as usize, column))),
    ];
    for dtype in [DType::Bf16, DType::F16] {
        for (place, want) in &cases {
            let mut k = K::new(&[("i0", "9"), ("i1", "75")], &[]);
            let (x, index, y) = (k.input(dtype), k.input(DType::I64), k.output(dtype));
            let value = match *place {
                "guard" => {
                    let (expr, low, high) = (dim("i1"), dim("3"), dim("60"));
                    let guard = Some(k.push(DType::Bool, InstKind::InRange { expr, low, high }));
                    let place = Place { buffer: x, offset: dim("i0 * 75 + i1 - 3"), indirect: vec![] };
                    k.push(DType::F32, InstKind::Load { place, guard })
                }
                "rows" => {
                    let row = k.load(index, "i0");
                    let row = k.push(DType::I64, InstKind::CheckIndex { value: row, size: dim("9") });
                    let place = Place { buffer: x, offset: dim("i1"), indirect: vec![(row, dim("75"))] };
                    k.push(DType::F32, InstKind::Load { place, guard: None })
                }
                place => k.load(x, place),
            };
            k.store(y, "i0 * 75 + i1", value);
            for isa in kiln_cpu::features::Isa::available() {
                let input = HostTensor::from_bytes(dtype, &[rows * columns], bytes.clone()).unwrap();
                let chosen = HostTensor::from_slice(&[rows], &chosen).unwrap();
                let mut tensors = [input, chosen, zeros(dtype, rows * columns)];
                run_on(&k.kernel(), isa, &mut tensors, &[], kiln_cpu::lower::Options::default()).unwrap();
                let got: Vec<u16> =
                    tensors[2].bytes().chunks(2).map(|word| u16::from_le_bytes([word[0], word[1]])).collect();
                let want: Vec<u16> = (0..rows * columns).map(|i| want(i / columns, i % columns)).collect();
                assert_eq!(got, want, "{isa:?}: {dtype} {place}");
            }
        }
    }
}
