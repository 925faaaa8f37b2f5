//! Accuracy of the functions as code: units in the last place against f64, F32 over samples of all bit patterns (every
//! pattern with `KILN_EXHAUSTIVE=1` in a release build, which takes minutes), F64 and two operands over samples.

mod support;
use kiln_cpu::features::Isa;
use kiln_cpu::loops::LoopKernel;
use kiln_cpu::lower::Options;
use kiln_cpu::vir::ScalarFn;
use kiln_ir::*;
use kiln_kernels::kernel::*;
use kiln_runtime::RawBuffer;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use support::*;

/// The functions of floats that round, and the bounds that the table in `math` states, rounded up.
fn functions() -> impl Iterator<Item = (UnaryOp, f64)> {
    let rounds = |op: &UnaryOp| op.row().float.is_some() && op.row().ulps > 0.0;
    UnaryOp::ALL.iter().copied().filter(rounds).map(|op| match op {
        UnaryOp::Sqrt | UnaryOp::Recip | UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Log => (op, 1.0),
        _ => (op, 2.0),
    })
}

/// Distance of an f32 from an exact value, in units of the last place of the latter rounded.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if rounded.is_nan() || got.is_nan() {
        return if rounded.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if rounded == got {
        // Zero keeps its sign.
        return if got == 0.0 && got.is_sign_negative() != rounded.is_sign_negative() { f64::INFINITY } else { 0.0 };
    }
    if rounded.is_infinite() || got.is_infinite() {
        // One step beyond the largest number.
        let edge = f64::from(f32::MAX);
        return if got.is_infinite() && want.abs() > edge * (1.0 - 1e-7) { 1.0 } else { f64::INFINITY };
    }
    let exponent = (rounded.abs().to_bits() >> 23).max(1) as i32 - 127 - 23;
    (f64::from(got) - want).abs() / 2f64.powi(exponent)
}

fn compile(op: UnaryOp, isa: Isa, n: usize) -> LoopKernel {
    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, y) = (k.input(DType::F32), k.output(DType::F32));
    let v = k.load(x, "i0");
    let v = k.unary(op, DType::F32, v);
    k.store(y, "i0", v);
    let kernel = k.kernel();
    let KernelBody::Loop(body) = &kernel.body else { unreachable!() };
    LoopKernel::compile(&kernel, body, isa, Options::default()).unwrap()
}

const BLOCK: usize = 1 << 12;

fn run(kernel: &LoopKernel, input: &mut [f32; BLOCK], output: &mut [f32; BLOCK]) {
    let bytes = 4 * BLOCK;
    let raw =
        [RawBuffer { ptr: input.as_mut_ptr().cast(), bytes }, RawBuffer { ptr: output.as_mut_ptr().cast(), bytes }];
    // SAFETY: both buffers hold a block.
    unsafe { kernel.launch(&raw, &[]).unwrap() };
}

/// The worst case over every `step`-th bit pattern, and where.
fn worst(op: UnaryOp, targets: &[Isa], step: u64, threads: usize) -> (f64, f32) {
    let exact = op.row().float.unwrap();
    let next = AtomicU64::new(0);
    let found = Mutex::new((0f64, 0f32));
    let kernels: Vec<LoopKernel> = targets.iter().map(|&isa| compile(op, isa, BLOCK)).collect();
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                let (mut input, mut output) = ([0f32; BLOCK], [0f32; BLOCK]);
                let mut local = (0f64, 0f32);
                loop {
                    let first = next.fetch_add(BLOCK as u64 * step, Ordering::Relaxed);
                    if first >= 1 << 32 {
                        break;
                    }
                    for (i, x) in input.iter_mut().enumerate() {
                        *x = f32::from_bits((first + i as u64 * step) as u32);
                    }
                    let want: Vec<f64> = input.iter().map(|&x| exact(x.into())).collect();
                    for kernel in &kernels {
                        run(kernel, &mut input, &mut output);
                        for i in 0..BLOCK {
                            let e = ulps(output[i], want[i]);
                            if e > local.0 {
                                local = (e, input[i]);
                            }
                        }
                    }
                }
                let mut all = found.lock().unwrap();
                if local.0 > all.0 {
                    *all = local;
                }
            });
        }
    });
    found.into_inner().unwrap()
}

#[test]
fn functions_stay_within_their_bounds() {
    let exhaustive = std::env::var("KILN_EXHAUSTIVE").is_ok();
    let only = std::env::var("KILN_FUNCTION").unwrap_or_default();
    let (step, threads) =
        if exhaustive { (1, std::thread::available_parallelism().map_or(2, |n| n.get())) } else { (1999, 1) };
    let mut failed = false;
    for (op, bound) in functions() {
        if !op.name().contains(&only) {
            continue;
        }
        let targets: Vec<Isa> = Isa::available().filter(|isa| !exhaustive || *isa != Isa::Portable).collect();
        let (e, at) = worst(op, &targets, step, threads);
        println!("{:8} {e:.3} ulp at {at:e} ({:08x}), bound {bound}", op.name(), at.to_bits());
        failed |= e > bound;
    }
    assert!(!failed);
}

/// Bit patterns of every size, numbers around 1, and where functions change course.
fn samples(dtype: DType, n: usize, seed: u64) -> HostTensor {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        0.5,
        2.0,
        -3.0,
        1e5,
        1e7,
        1e10,
        1e22,
        5e-324,
        1e-310,
        1e-45,
    ];
    let mut random = Random(seed);
    let values: Vec<f64> = (0..n)
        .map(|i| {
            let bits = random.next();
            let unit = (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
            match i % 4 {
                0 => special[bits as usize % special.len()],
                1 if dtype == DType::F32 => f32::from_bits(bits as u32).into(),
                1 => f64::from_bits(bits),
                2 => unit * 4.0,
                _ => unit * 2f64.powi((bits & 31) as i32 - 12),
            }
        })
        .collect();
    HostTensor::from_f64(dtype, &[n], &values).unwrap()
}

/// Distance of F64 results in units of the last place.
fn double_ulps(got: f64, want: f64) -> f64 {
    if got.is_nan() && want.is_nan() || got.to_bits() == want.to_bits() {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() || got.is_sign_negative() != want.is_sign_negative() {
        return f64::INFINITY;
    }
    got.to_bits().abs_diff(want.to_bits()) as f64
}

/// Runs `y = f(a, b)` over samples on every target and compares with the scalar function.
fn compare(dtype: DType, f: ScalarFn, bound: f64) {
    const N: usize = 6007;
    let mut k = K::new(&[("i0", &N.to_string())], &[]);
    let (a, b, y) = (k.input(dtype), k.input(dtype), k.output(dtype));
    let x = k.load(a, "i0");
    let v = match f {
        ScalarFn::Unary(op) => k.unary(op, dtype, x),
        ScalarFn::Binary(op) => {
            let other = k.load(b, "i0");
            k.binary(op, dtype, x, other)
        }
        _ => panic!("{f:?} is no op"),
    };
    k.store(y, "i0", v);
    let kernel = k.kernel();
    let KernelBody::Loop(body) = &kernel.body else { unreachable!() };
    let (left, right) = (samples(dtype, N, 1), samples(dtype, N, 2));
    for isa in Isa::available() {
        let code = LoopKernel::compile(&kernel, body, isa, Options::default()).unwrap();
        let mut bytes = [left.bytes().to_vec(), right.bytes().to_vec(), vec![0; left.bytes().len()]];
        let raw: Vec<RawBuffer> = bytes.iter_mut().map(|b| RawBuffer { ptr: b.as_mut_ptr(), bytes: b.len() }).collect();
        // SAFETY: each buffer holds N elements.
        unsafe { code.launch(&raw, &[]).unwrap() };
        let result = HostTensor::from_bytes(dtype, &[N], bytes[2].clone()).unwrap().to_f64();
        for ((x, y), got) in left.to_f64().into_iter().zip(right.to_f64()).zip(result) {
            let want = f.float(x, y);
            let error = if dtype == DType::F32 { ulps(got as f32, want) } else { double_ulps(got, want) };
            assert!(error <= bound, "{isa:?}: {f:?}({x:e}, {y:e}) = {got:e}, not {want:e}: {error} ulp");
        }
    }
}

#[test]
fn functions_of_two_operands() {
    for dtype in [DType::F32, DType::F64] {
        compare(dtype, ScalarFn::Binary(BinaryOp::Pow), 2.0);
        compare(dtype, ScalarFn::Binary(BinaryOp::Atan2), 2.0);
        compare(dtype, ScalarFn::Binary(BinaryOp::Rem), 0.0);
    }
}

/// The reference for tanh is itself off by two units, that for erf by more.
#[test]
fn functions_of_doubles() {
    for (op, _) in functions() {
        let bound = match op {
            UnaryOp::Tanh => 3.0,
            UnaryOp::Erf => 6.0,
            _ => 2.0,
        };
        compare(DType::F64, ScalarFn::Unary(op), bound);
    }
}
