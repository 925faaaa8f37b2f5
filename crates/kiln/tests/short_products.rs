//! Products of short elements with prologues and epilogues: bf16 in memory and made on the way, f32 that may be rounded, bytes.

use kiln::{DType, Device, Options, Precision, Tensor, compile_with};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{DotDims, Op, TensorType};

/// Sines: rounding shows in them.
fn waves(shape: &[usize], by: f32) -> Tensor {
    let elements: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| (i as f32 * by).sin()).collect();
    Tensor::from_vec(elements, shape.to_vec(), Device::Cpu).unwrap()
}

/// The size of the difference, relative to that of what is wanted.
fn error(got: &Tensor, want: &Tensor) -> f32 {
    let values = |t: &Tensor| t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    let (got, want) = (values(got), values(want));
    assert_eq!(got.len(), want.len());
    let size = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    size(&mut got.iter().zip(&want).map(|(g, w)| g - w)) / size(&mut want.iter().copied())
}

/// Sizes below, at and beyond those of tiles and of rows that are read in place.
const ROWS: [usize; 5] = [2, 16, 33, 100, 200];

/// Both operands bf16, in both orientations, with code before and after the product: off by no more than bf16 are.
#[test]
fn bf16_with_prologues_and_epilogues() {
    let short = |t: &Tensor| t.to_dtype(DType::Bf16).unwrap();
    let (k, n) = (131, 70);
    let (w, wt, bias) = (short(&waves(&[n, k], 0.37)), short(&waves(&[k, n], 0.53)), short(&waves(&[n], 0.11)));
    for m in ROWS {
        let (x, gate, residual) =
            (short(&waves(&[m, k], 0.7)), short(&waves(&[m, k], 0.3)), short(&waves(&[m, n], 0.9)));
        for freeze in [false, true] {
            let options = || Options { freeze, verify: true, ..Options::default() };
            type Three = (Tensor, Tensor, Tensor);
            let run = |(x, gate, residual): &Three| {
                let h = x.silu()?.mul(gate)?;
                h.linear(&w, Some(&bias))?.gelu()?.add(residual)?.add(x.matmul(&wt)?)
            };
            let inputs = (x.clone(), gate.clone(), residual.clone());
            let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
            let h = short(&wide(&x).silu().unwrap().mul(wide(&gate)).unwrap());
            let first = wide(&h).linear(&wide(&w), Some(&wide(&bias))).unwrap().gelu().unwrap();
            let want = first.add(wide(&residual)).unwrap().add(wide(&x).matmul(&wide(&wt)).unwrap()).unwrap();
            let got = compile_with(run, options()).call(&inputs).unwrap();
            assert_eq!(got.dtype(), DType::Bf16);
            let off = error(&got, &want);
            assert!(off <= 1.0 / 128.0, "{m} rows, frozen {freeze}: {off}");
        }
    }
}

/// A lower precision is a permission: results are off by no more than it says, and verifying programs know of it.
#[test]
fn floats_of_lower_precision() {
    let (k, n) = (130, 96);
    let (w, wt) = (waves(&[n, k], 0.37), waves(&[k, n], 0.53));
    for m in ROWS {
        let (x, residual) = (waves(&[m, k], 0.7), waves(&[m, n], 0.9));
        let run = |(x, residual): &(Tensor, Tensor)| x.gelu()?.linear(&w, None)?.add(x.matmul(&wt)?)?.add(residual);
        let want = run(&(x.clone(), residual.clone())).unwrap();
        for (precision, allowed) in
            [(Precision::Highest, 1e-5), (Precision::High, 1.0 / 2048.0), (Precision::Medium, 1.0 / 64.0)]
        {
            for freeze in [false, true] {
                let options = Options { precision, freeze, verify: true, ..Options::default() };
                let got = compile_with(run, options).call(&(x.clone(), residual.clone())).unwrap();
                let off = error(&got, &want);
                assert!(off <= allowed, "{precision:?}, {m} rows, frozen {freeze}: {off}");
            }
        }
    }
}

/// Products of many heads at once.
#[test]
fn batches_of_bf16() {
    let short = |t: Tensor| t.to_dtype(DType::Bf16).unwrap();
    let (a, b) = (short(waves(&[3, 5, 40, 65], 0.7)), short(waves(&[3, 5, 65, 33], 0.3)));
    let options = Options { verify: true, ..Options::default() };
    let got = compile_with(|(a, b): &(Tensor, Tensor)| a.matmul(b), options).call(&(a.clone(), b.clone())).unwrap();
    let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
    assert!(error(&got, &wide(&a).matmul(&wide(&b)).unwrap()) <= 1.0 / 256.0);
}

/// Bytes with sums of 32 bits are exact, whatever the signs.
#[test]
fn bytes_are_exact() {
    for (m, k, n) in [(1, 70, 40), (9, 64, 33), (40, 131, 70), (150, 300, 64)] {
        let bytes = |count: usize, by: usize| (0..count).map(|i| (i * by % 256) as u8 as i8).collect::<Vec<i8>>();
        let (x, w) = (bytes(m * k, 7919), bytes(n * k, 104_729));
        for contract in [0, 1] {
            let shape = if contract == 1 { [n, k] } else { [k, n] };
            let mut b = GraphBuilder::new();
            let left = b.input(TensorType::fixed(DType::I8, &[m, k])).unwrap();
            let right = b.input(TensorType::fixed(DType::I8, &shape)).unwrap();
            let dims = DotDims { lhs_contract: vec![1], rhs_contract: vec![contract], ..Default::default() };
            let y = b.emit(Op::Dot { dims: dims.into(), out: DType::I32 }, &[left, right]).unwrap();
            b.output(y);
            let program = kiln::compile_graph(&b.finish(), &[]).unwrap();
            let tensor = |v: &[i8], shape: [usize; 2]| Tensor::from_vec(v.to_vec(), shape, Device::Cpu).unwrap();
            let got = program.run(&[tensor(&x, [m, k]), tensor(&w, shape)]).unwrap();
            let got = got[0].to_vec::<i32>().unwrap();
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let at = |p: usize| i32::from(if contract == 1 { w[j * k + p] } else { w[p * n + j] });
                let want: i32 = (0..k).map(|p| i32::from(x[i * k + p]) * at(p)).sum();
                assert_eq!(got[i * n + j], want, "{m}×{k}×{n}, {contract}, at ({i}, {j})");
            }
        }
    }
}
