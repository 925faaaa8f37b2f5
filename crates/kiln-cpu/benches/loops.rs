//! Loop kernels: compile time, time and bandwidth on every target, against a copy of the same bytes.

#[path = "../tests/support/mod.rs"]
mod support;

use kiln_cpu::features::Isa;
use kiln_cpu::loops::LoopKernel;
use kiln_cpu::lower::Options;
use kiln_cpu::pool;
use kiln_ir::*;
use kiln_kernels::kernel::*;
use kiln_runtime::RawBuffer;
use std::time::Instant;
use support::*;

const F: DType = DType::F32;

fn gelu(n: usize) -> K {
    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, w, b, y) = (k.input(F), k.input(F), k.input(F), k.output(F));
    let vx = k.load(x, "i0");
    let sq = k.binary(BinaryOp::Mul, F, vx, vx);
    let cube = k.binary(BinaryOp::Mul, F, sq, vx);
    let c = k.f32(0.044715);
    let t = k.binary(BinaryOp::Mul, F, cube, c);
    let t = k.binary(BinaryOp::Add, F, vx, t);
    let c = k.f32(0.7978845608);
    let t = k.binary(BinaryOp::Mul, F, t, c);
    let t = k.unary(UnaryOp::Tanh, F, t);
    let one = k.f32(1.0);
    let t = k.binary(BinaryOp::Add, F, t, one);
    let half = k.f32(0.5);
    let h = k.binary(BinaryOp::Mul, F, half, vx);
    let g = k.binary(BinaryOp::Mul, F, h, t);
    let (vw, vb) = (k.load(w, "i0"), k.load(b, "i0"));
    let g = k.binary(BinaryOp::Mul, F, g, vw);
    let g = k.binary(BinaryOp::Add, F, g, vb);
    k.store(y, "i0", g);
    k
}

fn add(n: usize, dtype: DType) -> K {
    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, w, y) = (k.input(dtype), k.input(dtype), k.output(dtype));
    let (a, b) = (k.load(x, "i0"), k.load(w, "i0"));
    let v = k.binary(BinaryOp::Add, F, a, b);
    k.store(y, "i0", v);
    k
}

fn rms_norm(m: usize, n: usize, dtype: DType) -> K {
    let mut k = K::new(&[("i0", &m.to_string())], &[("i1", &n.to_string())]);
    let at = format!("i0*{n} + i1");
    let (x, w, y) = (k.input(dtype), k.input(dtype), k.output(dtype));
    k.stage(Domain::Row);
    let v = k.load(x, &at);
    let sq = k.binary(BinaryOp::Mul, F, v, v);
    let sum = k.reduce(ReductionKind::Reduce(ReduceKind::Sum), F, sq);
    k.stage(Domain::Point);
    let c = k.f32(1.0 / n as f64);
    let mean = k.binary(BinaryOp::Mul, F, sum, c);
    let eps = k.f32(1e-6);
    let t = k.binary(BinaryOp::Add, F, mean, eps);
    let scale = k.unary(UnaryOp::Rsqrt, F, t);
    k.stage(Domain::Row);
    let v = k.load(x, &at);
    let vw = k.load(w, "i1");
    let v = k.binary(BinaryOp::Mul, F, v, scale);
    let v = k.binary(BinaryOp::Mul, F, v, vw);
    k.store(y, &at, v);
    k
}

fn softmax(m: usize, n: usize) -> K {
    let mut k = K::new(&[("i0", &m.to_string())], &[("i1", &n.to_string())]);
    let at = format!("i0*{n} + i1");
    let (x, y) = (k.input(F), k.output(F));
    k.body.temps.push(F);
    k.stage(Domain::Row);
    let v = k.load(x, &at);
    let top = k.reduce(ReductionKind::Reduce(ReduceKind::Max), F, v);
    k.stage(Domain::Row);
    let v = k.load(x, &at);
    let d = k.binary(BinaryOp::Sub, F, v, top);
    let e = k.unary(UnaryOp::Exp, F, d);
    k.push(F, InstKind::StoreTemp(0, e));
    let sum = k.reduce(ReductionKind::Reduce(ReduceKind::Sum), F, e);
    k.stage(Domain::Point);
    let inverse = k.unary(UnaryOp::Recip, F, sum);
    k.stage(Domain::Row);
    let e = k.push(F, InstKind::LoadTemp(0));
    let v = k.binary(BinaryOp::Mul, F, e, inverse);
    k.store(y, &at, v);
    k
}

/// x·cos + rotate_half(x)·sin over [t, heads, d]; the rotation as two guarded loads.
fn rope(t: usize, heads: usize, d: usize) -> K {
    let h = d / 2;
    let mut k = K::new(&[("i0", &t.to_string()), ("i1", &heads.to_string()), ("i2", &d.to_string())], &[]);
    let (x, c, s, y) = (k.input(F), k.input(F), k.input(F), k.output(F));
    let at = format!("i0*{} + i1*{d} + i2", heads * d);
    let v = k.load(x, &at);
    let low = k.push(DType::Bool, InstKind::InRange { expr: dim("i2"), low: dim("0"), high: dim(&h.to_string()) });
    let high = k.unary(UnaryOp::Not, DType::Bool, low);
    let place = k.place(x, &format!("{at} + {h}"));
    let up = k.push(F, InstKind::Load { place, guard: Some(low) });
    let up = k.unary(UnaryOp::Neg, F, up);
    let place = k.place(x, &format!("{at} - {h}"));
    let down = k.push(F, InstKind::Load { place, guard: Some(high) });
    let r = k.push(F, InstKind::Select(low, up, down));
    let (vc, vs) = (k.load(c, &format!("i0*{d} + i2")), k.load(s, &format!("i0*{d} + i2")));
    let a = k.binary(BinaryOp::Mul, F, v, vc);
    let b = k.binary(BinaryOp::Mul, F, r, vs);
    let v = k.binary(BinaryOp::Add, F, a, b);
    k.store(y, &at, v);
    k
}

fn column_sum(m: usize, n: usize) -> K {
    let mut k = K::new(&[("i0", &n.to_string())], &[("i1", &m.to_string())]);
    let (x, y) = (k.input(F), k.output(F));
    k.stage(Domain::Row);
    let v = k.load(x, &format!("i1*{n} + i0"));
    let r = k.reduce(ReductionKind::Reduce(ReduceKind::Sum), F, v);
    k.stage(Domain::Point);
    k.store(y, "i0", r);
    k
}

fn full_sum(n: usize) -> K {
    let mut k = K::new(&[], &[("i1", &n.to_string())]);
    let (x, y) = (k.input(F), k.output(F));
    k.stage(Domain::Row);
    let v = k.load(x, "i1");
    let r = k.reduce(ReductionKind::Reduce(ReduceKind::Sum), F, v);
    k.stage(Domain::Point);
    k.store(y, "0", r);
    k
}

fn transpose(m: usize, n: usize) -> K {
    let mut k = K::new(&[("i0", &m.to_string()), ("i1", &n.to_string())], &[]);
    let (x, y) = (k.input(F), k.output(F));
    let v = k.load(x, &format!("i1*{m} + i0"));
    k.store(y, &format!("i0*{n} + i1"), v);
    k
}

fn cast(n: usize, from: DType, to: DType) -> K {
    let mut k = K::new(&[("i0", &n.to_string())], &[]);
    let (x, y) = (k.input(from), k.output(to));
    let v = k.load(x, "i0");
    let v = k.push(to.compute_type(), InstKind::Cast(v));
    k.store(y, "i0", v);
    k
}

/// [m, n] and [m, n] side by side.
fn concat(m: usize, n: usize) -> K {
    let mut k = K::new(&[("i0", &m.to_string()), ("i1", &(2 * n).to_string())], &[]);
    let (a, b, y) = (k.input(F), k.input(F), k.output(F));
    let first = k.push(DType::Bool, InstKind::InRange { expr: dim("i1"), low: dim("0"), high: dim(&n.to_string()) });
    let second = k.unary(UnaryOp::Not, DType::Bool, first);
    let place = k.place(a, &format!("i0*{n} + i1"));
    let p = k.push(F, InstKind::Load { place, guard: Some(first) });
    let place = k.place(b, &format!("i0*{n} + i1 - {n}"));
    let q = k.push(F, InstKind::Load { place, guard: Some(second) });
    let v = k.push(F, InstKind::Select(first, p, q));
    k.store(y, &format!("i0*{} + i1", 2 * n), v);
    k
}

fn permute(t: usize, h: usize, d: usize) -> K {
    let mut k = K::new(&[("i0", &h.to_string()), ("i1", &t.to_string()), ("i2", &d.to_string())], &[]);
    let (x, y) = (k.input(F), k.output(F));
    let v = k.load(x, &format!("i1*{} + i0*{d} + i2", h * d));
    k.store(y, &format!("i0*{} + i1*{d} + i2", t * d), v);
    k
}

fn embedding(t: usize, rows: usize, d: usize) -> K {
    let mut k = K::new(&[("i0", &t.to_string()), ("i1", &d.to_string())], &[]);
    let (x, i, y) = (k.input(F), k.input(DType::I64), k.output(F));
    let at = k.load(i, "i0");
    let at = k.unary(UnaryOp::Abs, DType::I64, at);
    let at = k.push(DType::I64, InstKind::CheckIndex { value: at, size: dim(&rows.to_string()) });
    let place = Place { buffer: x, offset: dim("i1"), indirect: vec![(at, dim(&d.to_string()))] };
    let v = k.push(F, InstKind::Load { place, guard: None });
    k.store(y, &format!("i0*{d} + i1"), v);
    k
}

fn argmax(m: usize, n: usize) -> K {
    let mut k = K::new(&[("i0", &m.to_string())], &[("i1", &n.to_string())]);
    let (x, y) = (k.input(F), k.output(DType::I64));
    k.stage(Domain::Row);
    let v = k.load(x, &format!("i0*{n} + i1"));
    let r = k.reduce(ReductionKind::Arg(ArgKind::Max), F, v);
    k.stage(Domain::Point);
    k.store(y, "i0", r);
    k
}

fn time(mut f: impl FnMut(), budget: f64) -> f64 {
    let mut best = f64::MAX;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < budget {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let all: Vec<(&str, K, Vec<usize>)> = vec![
        ("add f32 16", add(16, F), vec![16; 3]),
        ("add f32 4M", add(1 << 22, F), vec![1 << 22; 3]),
        ("add bf16 4M", add(1 << 22, DType::Bf16), vec![1 << 22; 3]),
        ("add f32 16K", add(1 << 14, F), vec![1 << 14; 3]),
        ("add bf16 16K", add(1 << 14, DType::Bf16), vec![1 << 14; 3]),
        ("gelu 4M", gelu(1 << 22), vec![1 << 22; 4]),
        ("gelu 64K", gelu(1 << 16), vec![1 << 16; 4]),
        ("rms_norm f32 16x2048", rms_norm(16, 2048, F), vec![16 * 2048, 2048, 16 * 2048]),
        ("rms_norm f32 1024x2048", rms_norm(1024, 2048, F), vec![1024 * 2048, 2048, 1024 * 2048]),
        ("rms_norm bf16 16x2048", rms_norm(16, 2048, DType::Bf16), vec![16 * 2048, 2048, 16 * 2048]),
        ("rms_norm bf16 1024x2048", rms_norm(1024, 2048, DType::Bf16), vec![1024 * 2048, 2048, 1024 * 2048]),
        ("softmax 64x1024", softmax(64, 1024), vec![64 * 1024; 2]),
        ("softmax 4096x1024", softmax(4096, 1024), vec![4096 * 1024; 2]),
        ("rope 32x16x128", rope(32, 16, 128), vec![32 * 16 * 128, 32 * 128, 32 * 128, 32 * 16 * 128]),
        ("rope 512x16x128", rope(512, 16, 128), vec![512 * 16 * 128, 512 * 128, 512 * 128, 512 * 16 * 128]),
        ("column sum 2048x2048", column_sum(2048, 2048), vec![2048 * 2048, 2048]),
        ("full sum 4M", full_sum(1 << 22), vec![1 << 22, 1]),
        ("cast bf16 f32 64K", cast(1 << 16, DType::Bf16, F), vec![1 << 16; 2]),
        ("cast f32 bf16 64K", cast(1 << 16, F, DType::Bf16), vec![1 << 16; 2]),
        ("cast f16 f32 64K", cast(1 << 16, DType::F16, F), vec![1 << 16; 2]),
        ("cast f32 f16 64K", cast(1 << 16, F, DType::F16), vec![1 << 16; 2]),
        ("cast u8 f32 64K", cast(1 << 16, DType::U8, F), vec![1 << 16; 2]),
        ("cast i64 f32 64K", cast(1 << 16, DType::I64, F), vec![1 << 16; 2]),
        ("concat 512x128", concat(512, 128), vec![512 * 128, 512 * 128, 512 * 256]),
        ("permute 128x16x64", permute(128, 16, 64), vec![128 * 16 * 64; 2]),
        ("embedding 128x1024", embedding(128, 100, 1024), vec![100 * 1024, 128, 128 * 1024]),
        ("argmax 64x4096", argmax(64, 4096), vec![64 * 4096, 64]),
        ("transpose 1024", transpose(1024, 1024), vec![1 << 20; 2]),
    ];
    println!(
        "{:26} {:9} {:>8} {:>6} {:>10} {:>8} {:>10} {:>8} {:>8}",
        "kernel", "target", "compile", "bytes", "1T µs", "GB/s", "nT µs", "GB/s", "memcpy"
    );
    for (name, k, elements) in &all {
        if !name.contains(&filter) {
            continue;
        }
        let kernel = k.kernel();
        let KernelBody::Loop(body) = &kernel.body else { continue };
        let mut buffers: Vec<HostTensor> = kernel
            .buffers
            .iter()
            .zip(elements)
            .enumerate()
            .map(|(s, (b, &n))| tensor(b.dtype, n, s as u64, false))
            .collect();
        let bytes: usize = buffers.iter().map(|b| b.bytes().len()).sum();
        let copy = {
            let (a, mut b) = (vec![1u8; bytes / 2], vec![0u8; bytes / 2]);
            time(|| b.copy_from_slice(std::hint::black_box(&a)), 0.1)
        };
        for isa in Isa::available().filter(|isa| *isa != Isa::Portable) {
            let compile = time(
                || {
                    std::hint::black_box(LoopKernel::compile(&kernel, body, isa, Options::default()).unwrap());
                },
                0.05,
            );
            let compiled = LoopKernel::compile(&kernel, body, isa, Options::default()).unwrap();
            let raw: Vec<RawBuffer> = buffers
                .iter_mut()
                .map(|b| RawBuffer { ptr: b.bytes_mut().as_mut_ptr(), bytes: b.bytes().len() })
                .collect();
            // SAFETY: the buffers are as large as the kernel's places.
            let mut run = || unsafe { compiled.launch(&raw, &[]).unwrap() };
            let threads = pool::threads();
            pool::set_threads(1);
            let one = time(&mut run, 0.2);
            pool::set_threads(threads);
            let many = time(&mut run, 0.2);
            println!(
                "{name:26} {:9} {:6.1}µs {:6} {:10.1} {:8.1} {:10.1} {:8.1} {:8.2}",
                isa.name(),
                compile * 1e6,
                compiled.code_bytes(),
                one * 1e6,
                bytes as f64 / one / 1e9,
                many * 1e6,
                bytes as f64 / many / 1e9,
                copy / one
            );
        }
    }
}
