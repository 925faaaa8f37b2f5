//! Loop kernels on every target against the reference executor.

mod support;
use kiln_ir::*;
use kiln_kernels::kernel::{Domain, ReductionKind};
use support::*;

/// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))·w + b
fn gelu(n: &str) -> K {
    let mut k = K::new(&[("i0", n)], &[]);
    let (x, w, b, y) = (k.input(DType::F32), k.input(DType::F32), k.input(DType::F32), k.output(DType::F32));
    let f = DType::F32;
    let vx = k.load(x, "i0");
    let sq = k.binary(BinaryOp::Mul, f, vx, vx);
    let cube = k.binary(BinaryOp::Mul, f, sq, vx);
    let c = k.f32(0.044715);
    let t = k.binary(BinaryOp::Mul, f, cube, c);
    let t = k.binary(BinaryOp::Add, f, vx, t);
    let c = k.f32(0.7978845608);
    let t = k.binary(BinaryOp::Mul, f, t, c);
    let t = k.unary(UnaryOp::Tanh, f, t);
    let one = k.f32(1.0);
    let t = k.binary(BinaryOp::Add, f, t, one);
    let half = k.f32(0.5);
    let h = k.binary(BinaryOp::Mul, f, half, vx);
    let g = k.binary(BinaryOp::Mul, f, h, t);
    let (vw, vb) = (k.load(w, "i0"), k.load(b, "i0"));
    let g = k.binary(BinaryOp::Mul, f, g, vw);
    let g = k.binary(BinaryOp::Add, f, g, vb);
    k.store(y, "i0", g);
    k
}

/// Several functions in a row: vectors take turns.
fn chain(n: usize, functions: usize, sums: bool) -> K {
    let (f, size) = (DType::F32, n.to_string());
    let mut k = if sums { K::new(&[("i0", "3")], &[("r0", &size)]) } else { K::new(&[("i0", &size)], &[]) };
    let (x, y) = (k.input(f), k.output(f));
    if sums {
        k.stage(Domain::Row);
    }
    let mut v = k.load(x, &if sums { format!("i0*{n} + r0") } else { "i0".to_owned() });
    for number in 0..functions {
        v = k.unary(if number % 2 == 0 { UnaryOp::Tanh } else { UnaryOp::Exp }, f, v);
    }
    if sums {
        let sum = k.reduce(ReductionKind::Reduce(ReduceKind::Sum), f, v);
        k.stage(Domain::Point);
        v = sum;
    }
    k.store(y, "i0", v);
    k
}

#[test]
fn chains_of_every_length() {
    for n in (0..=70).chain([127, 128, 129, 200]) {
        for functions in [1, 2, 3, 6] {
            let tensors = [tensor(DType::F32, n, n as u64, false), zeros(DType::F32, n)];
            check(&chain(n, functions, false).kernel(), &tensors, &[], CLOSE);
            let rows = [tensor(DType::F32, 3 * n, n as u64, false), zeros(DType::F32, 3)];
            check(&chain(n, functions, true).kernel(), &rows, &[], CLOSE);
        }
    }
}

#[test]
fn gelu_of_every_length() {
    for n in (0..=70).chain([1000, 4096]) {
        let kernel = gelu(&n.to_string()).kernel();
        let tensors: Vec<HostTensor> =
            (0..3).map(|s| tensor(DType::F32, n, s, false)).chain([zeros(DType::F32, n)]).collect();
        check(&kernel, &tensors, &[], CLOSE);
    }
}
