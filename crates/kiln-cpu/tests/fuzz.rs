//! Random loop kernels with many live values, so that registers run out and every operand form is met.

mod support;
use kiln_ir::*;
use kiln_kernels::kernel::*;
use support::*;

fn pick<T: Copy>(r: &mut Random, list: &[T]) -> T {
    list[(r.next() % list.len() as u64) as usize]
}

/// Values by dtype that later instructions may use.
struct Pool(Vec<(DType, ValueId)>);

impl Pool {
    fn any(&self, r: &mut Random, dtype: DType) -> Option<ValueId> {
        let list: Vec<ValueId> = self.0.iter().filter(|(d, _)| *d == dtype).map(|(_, v)| *v).collect();
        (!list.is_empty()).then(|| pick(r, &list))
    }
}

fn grow(k: &mut K, r: &mut Random, pool: &mut Pool, types: &[DType], steps: usize) {
    for _ in 0..steps {
        let dtype = pick(r, types);
        let (Some(a), Some(b)) = (pool.any(r, dtype), pool.any(r, dtype)) else { continue };
        let mask = pool.any(r, DType::Bool);
        let made = match r.next() % 10 {
            0 => (DType::Bool, k.push(DType::Bool, InstKind::Compare(pick(r, CompareOp::ALL), a, b))),
            1 | 2 if mask.is_some() => (dtype, k.push(dtype, InstKind::Select(mask.unwrap(), a, b))),
            3 => {
                let to = pick(r, types);
                let to =
                    if to == DType::I64 && dtype.is_float() || to.is_int() && dtype.is_float() { dtype } else { to };
                (to, k.push(to, InstKind::Cast(a)))
            }
            4 => (
                dtype,
                k.unary(
                    pick(r, if dtype == DType::Bool { &[UnaryOp::Not] } else { &[UnaryOp::Neg, UnaryOp::Abs] }),
                    dtype,
                    a,
                ),
            ),
            _ => {
                let op = match dtype {
                    DType::Bool => pick(r, &[BinaryOp::And, BinaryOp::Or, BinaryOp::Xor]),
                    d if d.is_float() => pick(r, &[BinaryOp::Add, BinaryOp::Sub, BinaryOp::Max, BinaryOp::Min]),
                    DType::I64 => pick(r, &[BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Xor, BinaryOp::Max]),
                    _ => pick(
                        r,
                        &[
                            BinaryOp::Add,
                            BinaryOp::Sub,
                            BinaryOp::Mul,
                            BinaryOp::Div,
                            BinaryOp::And,
                            BinaryOp::Min,
                            BinaryOp::Shr,
                        ],
                    ),
                };
                (dtype, k.binary(op, dtype, a, b))
            }
        };
        pool.0.push(made);
    }
}

/// Integers small enough that float sums of them are exact.
fn small(dtype: DType, n: usize, seed: u64) -> HostTensor {
    let mut r = Random(seed);
    let values: Vec<i64> = (0..n).map(|_| (r.next() % 7) as i64 - 3).collect();
    match dtype {
        DType::Bool => tensor(dtype, n, seed, false),
        d if d.is_float() => {
            HostTensor::from_f64(d, &[n], &values.iter().map(|v| *v as f64).collect::<Vec<_>>()).unwrap()
        }
        d => HostTensor::from_i64(d, &[n], &values).unwrap(),
    }
}

fn case(seed: u64) {
    let mut r = Random(seed);
    let wide = r.next().is_multiple_of(2);
    let types: &[DType] = if wide {
        &[DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool]
    } else {
        &[DType::F32, DType::I32, DType::Bool]
    };
    let m = pick(&mut r, &[1usize, 2, 5, 19]);
    let n = pick(&mut r, &[1usize, 3, 16, 35, 70]);
    let has_row = r.next().is_multiple_of(2);
    let by_rows = r.next().is_multiple_of(2);
    let (a, b) = (m.to_string(), n.to_string());
    let at = format!("i0*{n} + i1");
    let mut k = match (has_row, by_rows) {
        (true, true) => K::new(&[("i0", &a)], &[("i1", &b)]),
        (true, false) => K::new(&[("i1", &b)], &[("i0", &a)]),
        _ => K::new(&[("i0", &a), ("i1", &b)], &[]),
    };
    let mut tensors = Vec::new();
    let mut inputs = Vec::new();
    let only_short = r.next().is_multiple_of(4);
    for (s, &dtype) in types.iter().chain(types).enumerate() {
        let stored = match dtype {
            DType::F32 if only_short => DType::Bf16,
            DType::F32 => pick(&mut r, &[DType::F32, DType::F32, DType::Bf16, DType::F16, DType::F8E4M3]),
            DType::I32 => pick(&mut r, &[DType::I32, DType::I32, DType::I8, DType::I16, DType::U8, DType::I4]),
            other => other,
        };
        inputs.push(k.input(stored));
        tensors.push(small(stored, m * n + 1, seed ^ s as u64));
    }
    if has_row {
        k.stage(Domain::Row);
    }
    let places =
        [at.clone(), "i1".into(), "i0".into(), format!("i1*{m} + i0"), format!("(i0*{n} + i1) // 2"), "0".into()];
    let load_all = |k: &mut K, r: &mut Random| {
        let mut pool = Pool(Vec::new());
        for &x in &inputs {
            let place = &places[(r.next() % places.len() as u64) as usize];
            let v = k.load(x, place);
            pool.0.push((k.buffers[x].dtype.compute_type(), v));
        }
        pool
    };
    let mut pool = load_all(&mut k, &mut r);
    let steps = 10 + (r.next() % 60) as usize;
    grow(&mut k, &mut r, &mut pool, types, steps);
    if has_row {
        let dtype = pick(&mut r, types);
        let v = pool.any(&mut r, dtype).unwrap();
        let kind = pick(&mut r, &[ReduceKind::Max, ReduceKind::Min]);
        let result = k.reduce(ReductionKind::Reduce(kind), dtype, v);
        let arg = k.reduce(ReductionKind::Arg(ArgKind::Max), dtype, v);
        let arg = (wide, arg);
        for _ in 0..2 {
            let (dtype, v) = pick(&mut r, &pool.0);
            k.body.temps.push(dtype);
            k.push(dtype, InstKind::StoreTemp(k.body.temps.len() - 1, v));
        }
        k.stage(Domain::Row);
        pool = load_all(&mut k, &mut r);
        for n in 0..2 {
            let dtype = k.body.temps[n];
            let v = k.push(dtype, InstKind::LoadTemp(n));
            pool.0.push((dtype, v));
        }
        pool.0.push((dtype, result));
        if arg.0 {
            pool.0.push((DType::I64, arg.1));
        }
        grow(&mut k, &mut r, &mut pool, types, steps);
    }
    // Everything still alive is stored, which keeps it alive to the end.
    let outputs: Vec<(DType, ValueId)> = (0..6).map(|_| pick(&mut r, &pool.0)).collect();
    for (dtype, v) in outputs {
        let stored = match dtype {
            DType::F32 if only_short => DType::Bf16,
            DType::I32 => pick(&mut r, &[DType::I32, DType::I8, DType::I16]),
            other => other,
        };
        let y = k.output(stored);
        tensors.push(zeros(stored, m * n));
        k.store(y, &at, v);
    }
    check(&k.kernel(), &tensors, &[], EXACT);
}

#[test]
fn random_kernels() {
    let count = std::env::var("KILN_FUZZ").ok().and_then(|v| v.parse().ok()).unwrap_or(300);
    let first = std::env::var("KILN_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(1u64);
    for seed in first..first + count {
        if let Err(panic) = std::panic::catch_unwind(|| case(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
