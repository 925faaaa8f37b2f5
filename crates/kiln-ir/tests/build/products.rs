//! Products, attention, convolution and pooling against plain loops.

use crate::harness::{check, count, floats, ints, noise, run, run_all};
use kiln_ir::build::{self, AttentionOptions, ConvOptions, GraphBuilder, PoolOptions, RopeStyle};
use kiln_ir::{DType, Dim, HostTensor, TensorType};

/// Row-major multiplication of [m, k] and [k, n].
fn multiply(x: &[f64], y: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let at = |i: usize, j: usize| (0..k).map(|l| x[i * k + l] * y[l * n + j]).sum();
    (0..m * n).map(|p| at(p / n, p % n)).collect()
}

#[test]
fn linear_layers() {
    let (x, w, bias) = (noise(&[2, 3, 4], 1), noise(&[5, 4], 2), noise(&[5], 3));
    let transposed: Vec<f64> = (0..20).map(|i| w.get_f64(i % 5 * 4 + i / 5)).collect();
    let mut want = multiply(&x.to_f64(), &transposed, 6, 4, 5);
    check(&run(&[&x, &w], |b, v| build::linear(b, &v[0], &v[1], None)), &[2, 3, 5], &want);
    want.iter_mut().enumerate().for_each(|(i, v)| *v += bias.get_f64(i % 5));
    check(&run(&[&x, &w, &bias], |b, v| build::linear(b, &v[0], &v[1], Some(&v[2]))), &[2, 3, 5], &want);
}

#[test]
fn matmul_of_every_rank() {
    let product = |x: &HostTensor, y: &HostTensor| run(&[x, y], |b, v| build::matmul(b, &v[0], &v[1]));
    let (a, b) = (noise(&[6], 1).to_f64(), noise(&[6], 2).to_f64());
    let (m23, m32) = (floats(&[2, 3], &a), floats(&[3, 2], &b));
    check(&product(&m23, &m32), &[2, 2], &multiply(&a, &b, 2, 3, 2));
    check(&product(&floats(&[6], &a), &floats(&[6], &b)), &[], &multiply(&a, &b, 1, 6, 1));
    check(&product(&floats(&[3], &a[..3]), &m32), &[2], &multiply(&a[..3], &b, 1, 3, 2));
    check(&product(&m23, &floats(&[3], &b[..3])), &[2], &multiply(&a, &b[..3], 2, 3, 1));
    // Batches, broadcast on either side.
    let x = noise(&[2, 1, 2, 3], 3);
    let y = noise(&[4, 3, 2], 4);
    let mut want = vec![];
    for i in 0..2 {
        for j in 0..4 {
            want.extend(multiply(&x.to_f64()[i * 6..][..6], &y.to_f64()[j * 6..][..6], 2, 3, 2));
        }
    }
    check(&product(&x, &y), &[2, 4, 2, 2], &want);
    let row = floats(&[3], &a[..3]);
    let rows: Vec<f64> = (0..4).flat_map(|j| multiply(&a[..3], &y.to_f64()[j * 6..][..6], 1, 3, 2)).collect();
    check(&product(&row, &y), &[4, 2], &rows);
    let columns: Vec<f64> = (0..4).flat_map(|j| multiply(&y.to_f64()[j * 6..][..6], &b[..2], 3, 2, 1)).collect();
    check(&product(&y, &floats(&[2], &b[..2])), &[4, 3], &columns);
    let flat: Vec<f64> = (0..4).flat_map(|j| multiply(&y.to_f64()[j * 6..][..6], &a, 3, 2, 3)).collect();
    check(&product(&y, &m23), &[4, 3, 3], &flat);
    let left: Vec<f64> = (0..4).flat_map(|j| multiply(&a, &y.to_f64()[j * 6..][..6], 2, 3, 2)).collect();
    check(&product(&m23, &y), &[4, 2, 2], &left);
}

#[test]
fn einsums() {
    let (x, y) = (noise(&[2, 3], 1), noise(&[3, 4], 2));
    let want = multiply(&x.to_f64(), &y.to_f64(), 2, 3, 4);
    let transposed: Vec<f64> = (0..8).map(|i| want[i % 2 * 4 + i / 2]).collect();
    check(&run(&[&x, &y], |b, v| build::einsum(b, "ij, jk", v)), &[2, 4], &want);
    check(&run(&[&x, &y], |b, v| build::einsum(b, "ij,jk->ki", v)), &[4, 2], &transposed);
    let sums: Vec<f64> = want.chunks(4).map(|r| r.iter().sum()).collect();
    check(&run(&[&x, &y], |b, v| build::einsum(b, "ij,jk->i", v)), &[2], &sums);
    check(&run(&[&x], |b, v| build::einsum(b, "ab->ba", v)), &[3, 2], &[0, 3, 1, 4, 2, 5].map(|i| x.get_f64(i)));
    // Batched, and with three operands.
    let (p, q) = (noise(&[2, 2, 3], 3), noise(&[2, 3, 2], 4));
    let batched: Vec<f64> =
        (0..2).flat_map(|i| multiply(&p.to_f64()[i * 6..][..6], &q.to_f64()[i * 6..][..6], 2, 3, 2)).collect();
    check(&run(&[&p, &q], |b, v| build::einsum(b, "bij,bjk->bik", v)), &[2, 2, 2], &batched);
    let z = noise(&[4, 2], 5);
    let chain = multiply(&want, &z.to_f64(), 2, 4, 2);
    check(&run(&[&x, &y, &z], |b, v| build::einsum(b, "ij,jk,kl->il", v)), &[2, 2], &chain);
    let mut b = GraphBuilder::new();
    let x = b.input(TensorType::fixed(DType::F32, &[2, 2])).unwrap();
    for (bad, message) in [
        ("ij->k", "names a label that no operand has ('k')"),
        ("ij->kk", "names a label twice ('k')"),
        ("ij->ii", "names a label twice ('i')"),
        ("ij,jk->ik", "one term an operand"),
        ("i", "another number of labels"),
        ("ijk...", "another number of labels"),
        ("i1->i", "labels are letters ('1')"),
        ("i...j...", "labels are letters ('.')"),
    ] {
        let error = build::einsum(&mut b, bad, &[x]).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains(bad), "{bad}: {error}");
    }
}

#[test]
fn einsums_with_diagonals_ellipses_and_broadcasts() {
    let x = noise(&[3, 3], 1);
    let diagonal = [0, 4, 8].map(|i| x.get_f64(i));
    check(&run(&[&x], |b, v| build::einsum(b, "ii->i", v)), &[3], &diagonal);
    check(&run(&[&x], |b, v| build::einsum(b, "ii", v)), &[], &[diagonal.iter().sum()]);
    let y = noise(&[3, 2, 3, 3], 2);
    let taken: Vec<f64> =
        (0..2).flat_map(|j| (0..3).map(move |i| ((i * 2 + j) * 3 + i) * 3 + i)).map(|i| y.get_f64(i)).collect();
    check(&run(&[&y], |b, v| build::einsum(b, "ijii->ji", v)), &[2, 3], &taken);
    // `...` is aligned from the last axis, and broadcasts.
    let (p, q) = (noise(&[2, 2, 3], 3), noise(&[1, 3, 2], 4));
    let batched: Vec<f64> = (0..2).flat_map(|i| multiply(&p.to_f64()[i * 6..][..6], &q.to_f64(), 2, 3, 2)).collect();
    check(&run(&[&p, &q], |b, v| build::einsum(b, "...ij,...jk->...ik", v)), &[2, 2, 2], &batched);
    check(&run(&[&p, &q], |b, v| build::einsum(b, "...ij,...jk", v)), &[2, 2, 2], &batched);
    let summed: Vec<f64> = (0..4).map(|i| batched[i] + batched[i + 4]).collect();
    check(&run(&[&p, &q], |b, v| build::einsum(b, "...ij,...jk->ik", v)), &[2, 2], &summed);
    // A labelled axis of size 1 broadcasts against the others, and stays where it is alone.
    check(&run(&[&p, &q], |b, v| build::einsum(b, "bij,bjk->bik", v)), &[2, 2, 2], &batched);
    check(&run(&[&q], |b, v| build::einsum(b, "bij->bij", v)), &[1, 3, 2], &q.to_f64());
    let mut b = GraphBuilder::new();
    let x = b.input(TensorType::fixed(DType::F32, &[2, 3])).unwrap();
    assert!(build::einsum(&mut b, "ii->i", &[x]).unwrap_err().to_string().contains("2 ≠ 3"));
}

#[test]
fn attention_of_every_rank() {
    let (q, k, v) = (noise(&[1, 2, 3, 4], 1), noise(&[1, 2, 5, 4], 2), noise(&[1, 2, 5, 3], 3));
    let mask = noise(&[3, 5], 4);
    let mut want = vec![];
    for head in 0..2 {
        for i in 0..3 {
            let score = |j: usize| {
                let product: f64 =
                    (0..4).map(|d| q.get_f64((head * 3 + i) * 4 + d) * k.get_f64((head * 5 + j) * 4 + d)).sum();
                (product * 0.5 + mask.get_f64(i * 5 + j)).exp()
            };
            // Three rows, five columns: columns up to i + 2 are visible to row i.
            let powers: Vec<f64> = (0..=i + 2).map(score).collect();
            let total: f64 = powers.iter().sum();
            let value = |e: usize| {
                powers.iter().enumerate().map(|(j, p)| p / total * v.get_f64((head * 5 + j) * 3 + e)).sum::<f64>()
            };
            want.extend((0..3).map(value));
        }
    }
    let attend = |rank: usize| {
        let cut = |t: &HostTensor| t.clone().reshape(&t.shape()[4 - rank..]).unwrap();
        run(&[&cut(&q), &cut(&k), &cut(&v), &mask], |b, ids| {
            let options = AttentionOptions { mask: Some(ids[3]), causal: true, scale: None };
            build::scaled_dot_product_attention(b, &ids[0], &ids[1], &ids[2], &options)
        })
    };
    check(&attend(4), &[1, 2, 3, 3], &want);
    check(&attend(3), &[2, 3, 3], &want);
}

#[test]
fn rotary_embeddings_turn_pairs() {
    let x = noise(&[2, 3, 4], 1);
    let positions = ints(&[3], &[0, 1, 5]);
    let angle = |t: usize, i: usize| positions.get_f64(t) * 100f64.powf(-(i as f64) / 2.0);
    for (style, pair) in [
        (RopeStyle::Half, (|i| (i, i + 2)) as fn(usize) -> (usize, usize)),
        (RopeStyle::Interleaved, |i| (2 * i, 2 * i + 1)),
    ] {
        let mut want = x.to_f64();
        for row in 0..6 {
            for i in 0..2 {
                let ((a, b), angle) = (pair(i), angle(row % 3, i));
                let (xa, xb) = (x.get_f64(row * 4 + a), x.get_f64(row * 4 + b));
                want[row * 4 + a] = xa * angle.cos() - xb * angle.sin();
                want[row * 4 + b] = xb * angle.cos() + xa * angle.sin();
            }
        }
        let got = run(&[&x.cast(DType::F32).unwrap(), &positions], |b, v| {
            let (cos, sin) = build::rope_tables(b, &v[1], 4, 100.0)?;
            build::rope(b, &v[0], &cos, &sin, style)
        });
        check(&got, &[2, 3, 4], &want);
    }
    check(&run(&[&count(&[4])], |b, v| build::rotate_half(b, &v[0])), &[4], &[-2., -3., 0., 1.]);
}

#[test]
fn a_transposed_convolution_is_the_gradient_of_a_convolution() {
    // ⟨conv(x), y⟩ = ⟨x, convᵀ(y)⟩ for every x and y.
    for (stride, padding, dilation, groups, length) in
        [(1, 0, 1, 1, 5), (2, 1, 1, 1, 6), (3, 2, 2, 2, 9), (2, 0, 1, 4, 7)]
    {
        let options = ConvOptions { stride: vec![stride], padding: vec![padding], dilation: vec![dilation], groups };
        let (inputs, outputs) = (4, 8);
        let x = noise(&[2, inputs, length], 1);
        let w = noise(&[outputs, inputs / groups, 3], 2);
        let forward = run(&[&x, &w], |b, v| build::conv(b, &v[0], &v[1], None, &options));
        let y = noise(forward.shape(), 3);
        let size = forward.shape()[2];
        let extra = length + 2 * padding - (dilation * 2 + 1) - (size - 1) * stride;
        let back = run(&[&y, &w], |b, v| build::conv_transpose(b, &v[0], &v[1], None, &options, &[extra]));
        assert_eq!(back.shape(), x.shape());
        let inner = |a: &HostTensor, b: &HostTensor| a.to_f64().iter().zip(b.to_f64()).map(|(p, q)| p * q).sum::<f64>();
        assert!((inner(&forward, &y) - inner(&x, &back)).abs() < 1e-10);
    }
    let bias = floats(&[2], &[10., 20.]);
    let (x, w) = (floats(&[1, 1, 1], &[1.]), floats(&[2, 1, 1], &[1., 2.]));
    let got = run(&[&x, &w, &bias], |b, v| build::conv(b, &v[0], &v[1], Some(&v[2]), &ConvOptions::new(1)));
    check(&got, &[1, 2, 1], &[11., 22.]);
}

#[test]
fn pools() {
    let x = floats(&[1, 5], &[1., 2., 3., 4., 5.]);
    let mut options = PoolOptions::new(&[2]);
    check(&run(&[&x], |b, v| build::max_pool(b, &v[0], &options)), &[1, 2], &[2., 4.]);
    check(&run(&[&x], |b, v| build::avg_pool(b, &v[0], &options, true)), &[1, 2], &[1.5, 3.5]);
    options.ceil = true;
    check(&run(&[&x], |b, v| build::max_pool(b, &v[0], &options)), &[1, 3], &[2., 4., 5.]);
    check(&run(&[&x], |b, v| build::avg_pool(b, &v[0], &options, true)), &[1, 3], &[1.5, 3.5, 5.]);
    let options = PoolOptions { size: vec![3], stride: vec![2], padding: vec![1], dilation: vec![1], ceil: false };
    check(&run(&[&x], |b, v| build::max_pool(b, &v[0], &options)), &[1, 3], &[2., 4., 5.]);
    check(&run(&[&x], |b, v| build::avg_pool(b, &v[0], &options, true)), &[1, 3], &[1., 3., 3.]);
    check(&run(&[&x], |b, v| build::avg_pool(b, &v[0], &options, false)), &[1, 3], &[1.5, 3., 4.5]);
    // Four elements, padding 1, windows of 3 by 2: rounding up adds a window over one element and the padding after it.
    let x = floats(&[1, 4], &[1., 2., 3., 4.]);
    let options = PoolOptions { ceil: true, ..options };
    check(&run(&[&x], |b, v| build::avg_pool(b, &v[0], &options, true)), &[1, 3], &[1., 3., 2.]);
    check(&run(&[&x], |b, v| build::avg_pool(b, &v[0], &options, false)), &[1, 3], &[1.5, 3., 4.]);
    // Two elements, a window of 4 by 4: rounding up makes one incomplete window. A window of 6 by 4 has none.
    let x = floats(&[1, 2], &[1., 4.]);
    let options = PoolOptions { size: vec![4], stride: vec![4], padding: vec![0], ..options };
    check(&run(&[&x], |b, v| build::max_pool(b, &v[0], &options)), &[1, 1], &[4.]);
    check(&run(&[&x], |b, v| build::avg_pool(b, &v[0], &options, true)), &[1, 1], &[2.5]);
    // A window far longer than the axis costs no more than the axis has elements.
    let long = PoolOptions { size: vec![320], stride: vec![320], ..options.clone() };
    check(&run(&[&x], |b, v| build::max_pool(b, &v[0], &long)), &[1, 1], &[4.]);
    check(&run(&[&x], |b, v| build::avg_pool(b, &v[0], &long, false)), &[1, 1], &[2.5]);
    let mut builder = GraphBuilder::new();
    let inputs = [[1, 2], [1, 1]].map(|shape| builder.input(TensorType::fixed(DType::F32, &shape)).unwrap());
    let mean = build::avg_pool(&mut builder, &inputs[0], &long, true).unwrap();
    let gradient = build::avg_pool_backward(&mut builder, &inputs[1], &inputs[0], &long, true).unwrap();
    for result in [mean, gradient] {
        builder.output(result);
    }
    let graph = builder.finish();
    assert!(!graph.to_string().contains("320"), "{graph}");
    let options = PoolOptions { size: vec![6], ..options };
    let mut builder = GraphBuilder::new();
    let input = builder.input(TensorType::fixed(DType::F32, &[1, 2])).unwrap();
    assert!(build::max_pool(&mut builder, &input, &options).is_err());
    let square = count(&[1, 1, 4, 4]);
    let means = run(&[&square], |b, v| build::avg_pool(b, &v[0], &PoolOptions::new(&[2, 2]), true));
    check(&means, &[1, 1, 2, 2], &[2.5, 4.5, 10.5, 12.5]);
}

#[test]
fn adaptive_pools() {
    let x = count(&[2, 5]);
    check(&run(&[&x], |b, v| build::adaptive_avg_pool(b, &v[0], &[1])), &[2, 1], &[2., 7.]);
    // Parts of 5 in 3: [0, 2), [1, 4), [3, 5).
    check(&run(&[&x], |b, v| build::adaptive_avg_pool(b, &v[0], &[3])), &[2, 3], &[0.5, 2., 3.5, 5.5, 7., 8.5]);
    let square = count(&[1, 4, 3]);
    check(&run(&[&square], |b, v| build::adaptive_avg_pool(b, &v[0], &[2, 2])), &[1, 2, 2], &[2., 3., 8., 9.]);
    check(&run(&[&square], |b, v| build::adaptive_avg_pool(b, &v[0], &[4, 3])), &[1, 4, 3], &square.to_f64());
}

#[test]
fn interpolation() {
    let x = floats(&[1, 3], &[0., 10., 20.]);
    check(&run(&[&x], |b, v| build::interpolate_nearest(b, &v[0], &[6])), &[1, 6], &[0., 0., 10., 10., 20., 20.]);
    check(&run(&[&x], |b, v| build::interpolate_nearest(b, &v[0], &[2])), &[1, 2], &[0., 10.]);
    check(&run(&[&x], |b, v| build::interpolate_nearest(b, &v[0], &[4])), &[1, 4], &[0., 0., 10., 20.]);
    check(&run(&[&x], |b, v| build::interpolate_linear(b, &v[0], &[5], true)), &[1, 5], &[0., 5., 10., 15., 20.]);
    let halves = run(&[&x], |b, v| build::interpolate_linear(b, &v[0], &[6], false));
    check(&halves, &[1, 6], &[0., 2.5, 7.5, 12.5, 17.5, 20.]);
    let square = count(&[1, 2, 2]);
    let got = run(&[&square], |b, v| build::interpolate_linear(b, &v[0], &[3, 3], true));
    check(&got, &[1, 3, 3], &[0., 0.5, 1., 1., 1.5, 2., 2., 2.5, 3.]);
    let twice = run(&[&square], |b, v| build::upsample_nearest(b, &v[0], &[1, 2]));
    check(&twice, &[1, 2, 4], &[0., 0., 1., 1., 2., 2., 3., 3.]);
}

#[test]
fn outer_and_inner_products() {
    let (x, y) = (floats(&[2], &[1., 2.]), floats(&[2], &[3., 4.]));
    let got = run_all(&[&x, &y], |b, v| Ok(vec![build::outer(b, &v[0], &v[1])?, build::inner(b, &v[0], &v[1], 0)?]));
    check(&got[0], &[2, 2], &[3., 4., 6., 8.]);
    check(&got[1], &[], &[11.]);
}

#[test]
fn a_symbolic_depth_needs_a_scale() {
    let d = Dim::symbol("d").unwrap();
    let mut b = GraphBuilder::new();
    let q = b.input(TensorType::new(DType::F32, vec![Dim::from(2), d])).unwrap();
    assert!(build::scaled_dot_product_attention(&mut b, &q, &q, &q, &AttentionOptions::default()).is_err());
    let options = AttentionOptions { scale: Some(1.0), ..AttentionOptions::default() };
    build::scaled_dot_product_attention(&mut b, &q, &q, &q, &options).unwrap();
}

/// The gradient of a maximum pool is the same whether windows look for their element or elements for their windows.
#[test]
fn gradients_of_maximum_pools() {
    // Sizes, then window, step, padding and dilation of both axes, and whether the last window may reach beyond.
    let cases = [
        ([2, 3, 9, 10], [[3, 3], [2, 2], [1, 1], [1, 1]], false),
        ([1, 2, 7, 7], [[2, 2], [2, 2], [0, 0], [1, 1]], true),
        ([1, 2, 7, 8], [[3, 2], [1, 3], [1, 0], [1, 1]], false),
        ([2, 1, 11, 9], [[3, 3], [2, 1], [1, 1], [2, 1]], true),
        ([1, 1, 5, 5], [[2, 2], [3, 3], [0, 0], [1, 1]], false),
        ([1, 1, 12, 12], [[5, 5], [1, 1], [2, 2], [1, 1]], false),
        ([1, 1, 6, 6], [[4, 4], [3, 3], [2, 2], [1, 1]], true),
    ];
    for (shape, windows, ceil) in cases {
        let count: usize = shape.iter().product();
        // Many equal elements: each window has one largest, the first.
        let x = HostTensor::from_slice(&shape, &(0..count).map(|i| ((i * 7919) % 13) as f32).collect::<Vec<f32>>())
            .unwrap();
        let [size, stride, padding, dilation] = windows.map(|list: [usize; 2]| list.to_vec());
        let options = PoolOptions { size, stride, padding, dilation, ceil };
        let dims: Vec<Dim> = shape.iter().map(|&size| Dim::from(size as i64)).collect();
        let by_windows = run(&[&x], |b, v| {
            let (values, indices) = build::max_pool_with_indices(b, &v[0], &options)?;
            build::max_pool_backward(b, &values, &indices, &dims, 2)
        });
        let by_elements = run(&[&x], |b, v| {
            let (values, indices) = build::max_pool_with_indices(b, &v[0], &options)?;
            build::max_pool_windows_backward(b, &values, &indices, &dims, &options)
        });
        assert!(by_windows.to_f64().iter().any(|&x| x > 0.0));
        check(&by_elements, &shape, &by_windows.to_f64());
    }
}
