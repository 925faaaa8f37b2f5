//! Two small networks whose losses and gradients PyTorch has computed; `reference.py` says how.

use kiln_ir::build::{self, AttentionOptions, ConvOptions, CrossEntropyOptions, GraphBuilder, PoolOptions, Reduction};
use kiln_ir::{DType, Dim, Error, Graph, HostTensor, NodeId, TensorType, interpret};
use kiln_passes::{DifferentiateOptions, differentiate};

/// The formula that fills the parameters on the other side too.
fn parameter(number: usize, shape: &[usize]) -> HostTensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| 0.4 * (0.618 * (i + 1) as f64 * (number as f64 + 1.7)).sin();
    HostTensor::from_slice(shape, &(0..count).map(value).collect::<Vec<f64>>()).unwrap()
}

/// Compares the loss that `make` builds from parameters of these shapes, and its gradients, with a reference.
fn compare(reference: &str, shapes: &[&[usize]], make: impl Fn(&mut GraphBuilder, &[NodeId]) -> Result<NodeId, Error>) {
    let mut b = GraphBuilder::new();
    let types = shapes.iter().map(|shape| TensorType::fixed(DType::F64, shape));
    let ids: Vec<NodeId> = types.map(|ty| b.input(ty).unwrap()).collect();
    let loss = make(&mut b, &ids).unwrap();
    b.output(loss);
    let by: Vec<usize> = (0..shapes.len()).collect();
    let joint = differentiate(&b.finish(), &[0], &by, &DifferentiateOptions::default()).unwrap();
    let inputs: Vec<HostTensor> = shapes.iter().enumerate().map(|(n, shape)| parameter(n, shape)).collect();
    let want: Vec<Vec<f64>> =
        reference.lines().map(|line| line.split(' ').map(|v| v.parse().unwrap()).collect()).collect();
    let simpler: Graph = kiln_passes::run(joint.clone()).unwrap();
    for graph in [&joint, &simpler] {
        let got = interpret::run(graph, &inputs).unwrap();
        assert_eq!(got.len(), want.len());
        for (n, (got, want)) in got.iter().zip(&want).enumerate() {
            let got = got.to_f64();
            assert_eq!(got.len(), want.len(), "result {n}");
            for (i, (got, want)) in got.iter().zip(want).enumerate() {
                let tolerance = 1e-9 * want.abs() + 1e-11;
                assert!((got - want).abs() <= tolerance, "result {n}, element {i}: {got} instead of {want}");
            }
        }
    }
}

#[test]
fn a_decoder() {
    let (batch, time, width, heads, groups, vocabulary) = (2, 4, 8, 4, 2, 7);
    let depth = width / heads;
    let fused = width + 2 * groups * depth;
    let (vector, table, places) = ([width], [vocabulary, width], [time, width]);
    let (qkv, square, up, up_bias, down) = ([fused, width], [width, width], [12, width], [12], [width, 12]);
    let layer: [&[usize]; 8] = [&vector, &vector, &qkv, &square, &vector, &up, &up_bias, &down];
    let shapes: Vec<&[usize]> =
        [&table[..], &places].into_iter().chain(layer).chain(layer).chain([&vector[..]]).collect();
    compare(include_str!("decoder.txt"), &shapes, |b, p| {
        let index = |b: &mut GraphBuilder, f: &dyn Fn(usize, usize) -> usize| {
            let values: Vec<i64> = (0..batch * time).map(|n| (f(n / time, n % time) % vocabulary) as i64).collect();
            build::constant_i64(b, &values)
        };
        let tokens = index(b, &|n, i| 3 * i + 5 * n)?;
        let tokens = build::reshape(b, &tokens, &[batch, time].map(Dim::from))?;
        let targets = index(b, &|n, i| 2 * i + n + 1)?;
        let x = build::embedding(b, &p[0], &tokens)?;
        let mut x = build::add(b, &x, &p[1])?;
        for layer in 0..2 {
            let [norm_w, norm_b, qkv, out, rms_w, up, up_bias, down] = p[2 + 8 * layer..][..8] else { unreachable!() };
            let h = build::layer_norm(b, &x, 1, Some(&norm_w), Some(&norm_b), 1e-5)?;
            let h = build::linear(b, &h, &qkv, None)?;
            let parts = build::split(b, &h, 2, &[width, groups * depth, groups * depth].map(Dim::from))?;
            let mut split_heads = vec![];
            for (part, heads) in parts.iter().zip([heads, groups, groups]) {
                let apart = build::reshape(b, part, &[batch, time, heads, depth].map(Dim::from))?;
                split_heads.push(build::transpose(b, &apart, 1, 2)?);
            }
            let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
            let [q, k, v] = split_heads[..] else { unreachable!() };
            let a = build::scaled_dot_product_attention(b, &q, &k, &v, &options)?;
            let a = build::transpose(b, &a, 1, 2)?;
            let a = build::reshape(b, &a, &[batch, time, width].map(Dim::from))?;
            let a = build::linear(b, &a, &out, None)?;
            x = build::add(b, &x, &a)?;
            let h = build::rms_norm(b, &x, 1, Some(&rms_w), 1e-6)?;
            let h = build::linear(b, &h, &up, Some(&up_bias))?;
            let h = build::gelu(b, &h)?;
            let h = build::linear(b, &h, &down, None)?;
            x = build::add(b, &x, &h)?;
        }
        let x = build::rms_norm(b, &x, 1, Some(&p[18]), 1e-6)?;
        let logits = build::linear(b, &x, &p[0], None)?;
        let logits = build::reshape(b, &logits, &[batch * time, vocabulary].map(Dim::from))?;
        let options = CrossEntropyOptions { label_smoothing: 0.1, ..CrossEntropyOptions::default() };
        build::cross_entropy(b, &logits, &targets, &options)
    });
}

#[test]
fn a_convolutional_network() {
    let shapes: [&[usize]; 9] =
        [&[2, 3, 9, 8], &[4, 3, 3, 3], &[4], &[4], &[4], &[6, 2, 3, 2], &[6, 1, 2, 2], &[5, 6], &[5]];
    compare(include_str!("convolutions.txt"), &shapes, |b, p| {
        let same = ConvOptions { padding: vec![1, 1], ..ConvOptions::new(2) };
        let h = build::conv(b, &p[0], &p[1], Some(&p[2]), &same)?;
        let h = build::group_norm(b, &h, 2, Some(&p[3]), Some(&p[4]), 1e-5)?;
        let h = build::relu(b, &h)?;
        let pool = PoolOptions { stride: vec![2, 2], padding: vec![1, 1], ..PoolOptions::new(&[3, 3]) };
        let h = build::max_pool(b, &h, &pool)?;
        let grouped = ConvOptions { stride: vec![2, 1], padding: vec![1, 0], dilation: vec![1, 2], groups: 2 };
        let h = build::conv(b, &h, &p[5], None, &grouped)?;
        let h = build::silu(b, &h)?;
        let back = ConvOptions { stride: vec![2, 2], padding: vec![1, 1], dilation: vec![1, 1], groups: 6 };
        let h = build::conv_transpose(b, &h, &p[6], None, &back, &[0, 0])?;
        let pool = PoolOptions { stride: vec![1, 1], padding: vec![1, 1], ..PoolOptions::new(&[2, 2]) };
        let h = build::avg_pool(b, &h, &pool, false)?;
        let h = build::max_over(b, &h, &[2, 3], false)?;
        let h = build::linear(b, &h, &p[7], Some(&p[8]))?;
        let y = build::tanh(b, &h)?;
        let zero = build::full_like(b, &y, 0.0)?;
        build::mse_loss(b, &y, &zero, Reduction::Sum)
    });
}
