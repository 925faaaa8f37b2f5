//! Composites that move, reduce, sort and index.

use crate::harness::{check, count, floats, ints, noise, run, run_all};
use kiln_ir::build::{self, GraphBuilder, PadMode};
use kiln_ir::{DType, Dim, HostTensor, ReduceKind, ScatterKind, TensorType, interpret};

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&n| Dim::from(n)).collect()
}

#[test]
fn cutting_and_joining() {
    let x = count(&[2, 3]);
    check(&run(&[&x], |b, v| build::transpose(b, &v[0], 0, 1)), &[3, 2], &[0., 3., 1., 4., 2., 5.]);
    check(&run(&[&x], |b, v| build::narrow(b, &v[0], 1, 1, 2)), &[2, 2], &[1., 2., 4., 5.]);
    check(&run(&[&x], |b, v| build::pick(b, &v[0], 0, 1)), &[3], &[3., 4., 5.]);
    check(&run(&[&x], |b, v| build::flatten(b, &v[0], 0, 1)), &[6], &[0., 1., 2., 3., 4., 5.]);
    let parts = run_all(&[&x], |b, v| build::split(b, &v[0], 1, &dims(&[1, 2])));
    check(&parts[0], &[2, 1], &[0., 3.]);
    check(&parts[1], &[2, 2], &[1., 2., 4., 5.]);
    let parts = run_all(&[&x], |b, v| build::chunk(b, &v[0], 0, 2));
    check(&parts[1], &[1, 3], &[3., 4., 5.]);
    let stacked = run(&[&x], |b, v| build::stack(b, &[v[0], v[0]], 1));
    check(&stacked, &[2, 2, 3], &[0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.]);
    assert_eq!(run(&[&x], |b, v| build::unsqueeze(b, &v[0], 2)).shape(), [2, 3, 1]);
}

#[test]
fn repeating_and_rolling() {
    let x = count(&[3]);
    check(&run(&[&x], |b, v| build::repeat(b, &v[0], &dims(&[2, 2]))), &[2, 6], &[0., 1., 2.].repeat(4));
    check(&run(&[&x], |b, v| build::repeat_interleave(b, &v[0], 0, 2)), &[6], &[0., 0., 1., 1., 2., 2.]);
    for (shift, want) in [(1, [2., 0., 1.]), (-1, [1., 2., 0.]), (4, [2., 0., 1.]), (3, [0., 1., 2.])] {
        check(&run(&[&x], |b, v| build::roll(b, &v[0], 0, shift)), &[3], &want);
    }
    check(&run(&[&x], |b, v| build::flip(b, &v[0], &[0])), &[3], &[2., 1., 0.]);
}

#[test]
fn triangles() {
    let x = floats(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    check(&run(&[&x], |b, v| build::tril(b, &v[0], 0)), &[2, 3], &[1., 0., 0., 4., 5., 0.]);
    check(&run(&[&x], |b, v| build::tril(b, &v[0], -1)), &[2, 3], &[0., 0., 0., 4., 0., 0.]);
    check(&run(&[&x], |b, v| build::triu(b, &v[0], 1)), &[2, 3], &[0., 2., 3., 0., 0., 6.]);
}

#[test]
fn padding_modes() {
    let x = count(&[4]);
    let pad = |mode| run(&[&x], |b, v| build::pad_axis(b, &v[0], 0, 2, 1, mode));
    check(&pad(PadMode::Reflect), &[7], &[2., 1., 0., 1., 2., 3., 2.]);
    check(&pad(PadMode::Replicate), &[7], &[0., 0., 0., 1., 2., 3., 3.]);
    check(&pad(PadMode::Circular), &[7], &[2., 3., 0., 1., 2., 3., 0.]);
    check(&run(&[&x], |b, v| build::pad_constant(b, &v[0], &[(1, -2)], 9.0)), &[3], &[9., 0., 1.]);
}

#[test]
fn statistics() {
    let x = floats(&[2, 4], &[1., 2., 3., 6., -1., 0., 0., 1.]);
    check(&run(&[&x], |b, v| build::mean(b, &v[0], &[1], false)), &[2], &[3., 0.]);
    check(&run(&[&x], |b, v| build::mean(b, &v[0], &[1, 0], true)), &[1, 1], &[1.5]);
    check(&run(&[&x], |b, v| build::var(b, &v[0], &[1], 0.0, false)), &[2], &[3.5, 0.5]);
    check(&run(&[&x], |b, v| build::var(b, &v[0], &[1], 1.0, true)), &[2, 1], &[14.0 / 3.0, 2.0 / 3.0]);
    check(&run(&[&x], |b, v| build::std_dev(b, &v[0], &[1], 0.0, false)), &[2], &[3.5f64.sqrt(), 0.5f64.sqrt()]);
    for (p, want) in [
        (2.0, [50f64.sqrt(), 2f64.sqrt()]),
        (1.0, [12., 2.]),
        (0.0, [4., 2.]),
        (3.0, [252f64.cbrt(), 2f64.cbrt()]),
        (f64::INFINITY, [6., 1.]),
        (f64::NEG_INFINITY, [1., 0.]),
    ] {
        check(&run(&[&x], |b, v| build::norm(b, &v[0], p, &[1], false)), &[2], &want);
    }
    check(&run(&[&x], |b, v| build::prod(b, &v[0], &[1], false)), &[2], &[36., 0.]);
    assert_eq!(run(&[&x], |b, v| build::argmax(b, &v[0], 1, false)).to_i64(), [3, 3]);
    assert_eq!(run(&[&x], |b, v| build::argmin(b, &v[0], 1, true)).shape(), [2, 1]);
    assert_eq!(run(&[&x], |b, v| build::any(b, &v[0], &[0], false)).to_i64(), [1, 1, 1, 1]);
    assert_eq!(run(&[&x], |b, v| build::all(b, &v[0], &[0], false)).to_i64(), [1, 0, 0, 1]);
    check(&run(&[&x], |b, v| build::cumsum(b, &v[0], 1)), &[2, 4], &[1., 3., 6., 12., -1., -1., -1., 0.]);
    check(&run(&[&x], |b, v| build::cumprod(b, &v[0], 0)), &[2, 4], &[1., 2., 3., 6., -1., 0., 0., 6.]);
    // A mean of bf16 does not stall where its sum would.
    let ones = HostTensor::from_f64(DType::Bf16, &[1000], &[1.0; 1000]).unwrap();
    check(&run(&[&ones], |b, v| build::mean(b, &v[0], &[0], false)), &[], &[1.0]);
}

#[test]
fn softmax_and_its_logarithms() {
    let x = noise(&[3, 5], 1);
    let rows: Vec<Vec<f64>> = x.to_f64().chunks(5).map(<[f64]>::to_vec).collect();
    let total = |row: &[f64]| row.iter().map(|v| v.exp()).sum::<f64>();
    let want: Vec<f64> = rows.iter().flat_map(|r| r.iter().map(|v| v.exp() / total(r)).collect::<Vec<_>>()).collect();
    check(&run(&[&x], |b, v| build::softmax(b, &v[0], 1)), &[3, 5], &want);
    let logs: Vec<f64> = want.iter().map(|p| p.ln()).collect();
    check(&run(&[&x], |b, v| build::log_softmax(b, &v[0], 1)), &[3, 5], &logs);
    let sums: Vec<f64> = rows.iter().map(|r| total(r).ln()).collect();
    check(&run(&[&x], |b, v| build::logsumexp(b, &v[0], &[1], false)), &[3], &sums);
    let large = floats(&[3], &[1000.0, 1000.0, f64::NEG_INFINITY]);
    check(&run(&[&large], |b, v| build::softmax(b, &v[0], 0)), &[3], &[0.5, 0.5, 0.0]);
    let hidden = floats(&[2], &[f64::NEG_INFINITY; 2]);
    check(&run(&[&hidden], |b, v| build::logsumexp(b, &v[0], &[0], true)), &[1], &[f64::NEG_INFINITY]);
}

#[test]
fn sorting() {
    let x = floats(&[2, 3], &[3., 1., 2., 5., 6., 4.]);
    let sorted = run_all(&[&x], |b, v| build::sort(b, &v[0], 1, false).map(|(a, b)| vec![a, b]));
    check(&sorted[0], &[2, 3], &[1., 2., 3., 4., 5., 6.]);
    assert_eq!(sorted[1].to_i64(), [1, 2, 0, 2, 0, 1]);
    let top = run_all(&[&x], |b, v| build::topk(b, &v[0], 2, 1, true).map(|(a, b)| vec![a, b]));
    check(&top[0], &[2, 2], &[3., 2., 6., 5.]);
    assert_eq!(top[1].to_i64(), [0, 2, 1, 0]);
}

#[test]
fn indexing() {
    let x = count(&[3, 2]);
    let index = ints(&[2], &[2, 0]);
    check(&run(&[&x, &index], |b, v| build::index_select(b, &v[0], 0, &v[1])), &[2, 2], &[4., 5., 0., 1.]);
    let wrapped = ints(&[2, 1], &[-1, 0]);
    check(&run(&[&x, &wrapped], |b, v| build::take(b, &v[0], 0, &v[1])), &[2, 1, 2], &[4., 5., 0., 1.]);
    check(&run(&[&x, &wrapped], |b, v| build::take(b, &v[0], 1, &v[1])), &[3, 2, 1], &[1., 0., 3., 2., 5., 4.]);
    let tokens = ints(&[2, 2], &[0, 2, 1, 1]);
    let rows = run(&[&x, &tokens], |b, v| build::embedding(b, &v[0], &v[1]));
    check(&rows, &[2, 2, 2], &[0., 1., 4., 5., 2., 3., 2., 3.]);
    // A gather whose index is shorter than x on the other axis.
    let short = ints(&[2, 1], &[1, 0]);
    check(&run(&[&x, &short], |b, v| build::gather(b, &v[0], 1, &v[1])), &[2, 1], &[1., 2.]);
    let hot = run(&[&ints(&[3], &[1, 0, 1])], |b, v| build::one_hot(b, &v[0], 2, DType::F32));
    check(&hot, &[3, 2], &[0., 1., 1., 0., 0., 1.]);
}

#[test]
fn writing_by_index() {
    let x = count(&[3, 2]);
    let (index, rows) = (ints(&[2], &[2, 2]), floats(&[2, 2], &[10., 20., 30., 40.]));
    let added = run(&[&x, &index, &rows], |b, v| build::scatter_rows(b, ScatterKind::Add, &v[0], 0, &v[1], &v[2]));
    check(&added, &[3, 2], &[0., 1., 2., 3., 44., 65.]);
    let (i, j, values) = (ints(&[2], &[0, -1]), ints(&[2], &[1, 0]), floats(&[2], &[7., 8.]));
    let put = run(&[&x, &i, &j, &values], |b, v| build::index_put(b, ScatterKind::Set, &v[0], &v[1..3], &v[3]));
    check(&put, &[3, 2], &[0., 7., 2., 3., 8., 5.]);
    let row = floats(&[2], &[7., 8.]);
    let put = run(&[&x, &i, &row], |b, v| build::index_put(b, ScatterKind::Set, &v[0], &v[1..2], &v[2]));
    check(&put, &[3, 2], &[7., 8., 2., 3., 7., 8.]);
}

#[test]
fn symbolic_sizes_are_numbers_too() {
    let (n, m) = (Dim::symbol("n").unwrap(), Dim::symbol("m").unwrap());
    let mut b = GraphBuilder::new();
    let x = b.input(TensorType::new(DType::F32, vec![n.clone(), m.clone()])).unwrap();
    let index = b.input(TensorType::new(DType::I64, vec![Dim::from(2)])).unwrap();
    let outputs = [
        build::mean(&mut b, &x, &[0, 1], false).unwrap(),
        build::var(&mut b, &x, &[1], 1.0, false).unwrap(),
        build::take(&mut b, &x, 0, &index).unwrap(),
        build::size_value(&mut b, &(&n * &m + 1), DType::I32).unwrap(),
        build::reduce(&mut b, ReduceKind::Max, &x, &[1, 0], false).unwrap(),
        build::roll(&mut b, &x, 1, -1).unwrap(),
        build::repeat(&mut b, &x, &[n.clone(), Dim::from(1)]).unwrap(),
    ];
    outputs.iter().for_each(|&o| b.output(o));
    let graph = b.finish();
    let x = count(&[2, 3]).cast(DType::F32).unwrap();
    let got = interpret::run(&graph, &[x, ints(&[2], &[-1, 0])]).unwrap();
    check(&got[0], &[], &[2.5]);
    check(&got[1], &[2], &[1.0, 1.0]);
    check(&got[2], &[2, 3], &[3., 4., 5., 0., 1., 2.]);
    assert_eq!(got[3].to_i64(), [7]);
    check(&got[4], &[], &[5.]);
    check(&got[5], &[2, 3], &[1., 2., 0., 4., 5., 3.]);
    check(&got[6], &[4, 3], &[0., 1., 2., 3., 4., 5.].repeat(2));
}
