//! Loop kernels on every target against the reference executor.

mod support;
use kiln_ir::*;
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

#[test]
fn gelu_of_every_length() {
    for n in (0..=70).chain([1000, 4096]) {
        let kernel = gelu(&n.to_string()).kernel();
        let tensors: Vec<HostTensor> =
            (0..3).map(|s| tensor(DType::F32, n, s, false)).chain([zeros(DType::F32, n)]).collect();
        check(&kernel, &tensors, &[], CLOSE);
    }
}
