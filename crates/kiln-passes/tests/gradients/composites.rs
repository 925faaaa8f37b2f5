//! Composites as users call them.

use crate::finite::check;
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::examples::Random;
use kiln_ir::{DType, Error, Graph, HostTensor, NodeId, TensorType};
use kiln_passes::{DifferentiateOptions, differentiate};

/// Builds a graph on f64 inputs of these shapes and checks its gradients; inputs named in `indices` hold whole numbers below
/// the number given.
fn composite(
    name: &str,
    shapes: &[&[usize]],
    indices: &[(usize, usize)],
    make: impl Fn(&mut GraphBuilder, &[NodeId]) -> Result<NodeId, Error>,
) -> Graph {
    let mut b = GraphBuilder::new();
    let mut random = Random(0x9e37 + name.len() as u64);
    let (mut ids, mut inputs) = (vec![], vec![]);
    for (i, shape) in shapes.iter().enumerate() {
        let count: usize = shape.iter().product();
        match indices.iter().find(|(input, _)| *input == i) {
            Some(&(_, below)) => {
                let values: Vec<i64> = (0..count).map(|_| random.below(below) as i64).collect();
                inputs.push(HostTensor::from_slice(shape, &values).unwrap());
                ids.push(b.input(TensorType::fixed(DType::I64, shape)).unwrap());
            }
            None => {
                let values: Vec<f64> = (0..count).map(|_| random.unit() * 3.0 - 1.4).collect();
                inputs.push(HostTensor::from_slice(shape, &values).unwrap());
                ids.push(b.input(TensorType::fixed(DType::F64, shape)).unwrap());
            }
        }
    }
    let y = make(&mut b, &ids).unwrap_or_else(|e| panic!("{name}: {e}"));
    b.output(y);
    let graph = b.finish();
    let found = check(&graph, &inputs, 5).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(found.compared > 3 * found.skipped && found.compared >= 4, "{name}: {found:?}");
    graph
}

#[test]
fn activations() {
    type Function = fn(&mut GraphBuilder, &NodeId) -> Result<NodeId, Error>;
    let functions: &[(&str, Function)] = &[
        ("relu", build::relu),
        ("relu6", build::relu6),
        ("selu", build::selu),
        ("sigmoid", build::sigmoid),
        ("log_sigmoid", build::log_sigmoid),
        ("silu", build::silu),
        ("gelu", build::gelu),
        ("gelu_tanh", build::gelu_tanh),
        ("quick_gelu", build::quick_gelu),
        ("mish", build::mish),
        ("hardsigmoid", build::hardsigmoid),
        ("hardswish", build::hardswish),
        ("softsign", build::softsign),
        ("sinh", build::sinh),
        ("cosh", build::cosh),
        ("asinh", build::asinh),
    ];
    for (name, function) in functions {
        composite(name, &[&[3, 5]], &[], |b, x| function(b, &x[0]));
    }
    composite("elu", &[&[3, 5]], &[], |b, x| build::elu(b, &x[0], 0.7));
    composite("leaky_relu", &[&[3, 5]], &[], |b, x| build::leaky_relu(b, &x[0], 0.1));
    composite("softplus", &[&[3, 5]], &[], |b, x| build::softplus(b, &x[0], 1.0, 20.0));
    composite("glu", &[&[3, 4]], &[], |b, x| build::glu(b, &x[0], 1));
    composite("clamp", &[&[3, 5]], &[], |b, x| build::clamp(b, &x[0], Some(-0.5), Some(0.9)));
}

#[test]
fn reductions() {
    composite("softmax", &[&[3, 5]], &[], |b, x| build::softmax(b, &x[0], 1));
    composite("log_softmax", &[&[3, 5]], &[], |b, x| build::log_softmax(b, &x[0], 0));
    composite("logsumexp", &[&[3, 5, 2]], &[], |b, x| build::logsumexp(b, &x[0], &[0, 1], false));
    composite("mean", &[&[3, 5]], &[], |b, x| build::mean(b, &x[0], &[1], false));
    composite("var", &[&[3, 5]], &[], |b, x| build::var(b, &x[0], &[0], 1.0, true));
    composite("std_dev", &[&[3, 5]], &[], |b, x| build::std_dev(b, &x[0], &[0, 1], 0.0, true));
    for p in [1.0, 2.0, 3.0, f64::INFINITY] {
        composite("norm", &[&[3, 5]], &[], |b, x| build::norm(b, &x[0], p, &[1], true));
    }
    composite("sort", &[&[3, 5]], &[], |b, x| Ok(build::sort(b, &x[0], 1, true)?.0));
    composite("topk", &[&[3, 5]], &[], |b, x| Ok(build::topk(b, &x[0], 2, 0, true)?.0));
}

#[test]
fn norms() {
    composite("layer_norm", &[&[3, 5], &[5], &[5]], &[], |b, x| {
        build::layer_norm(b, &x[0], 1, Some(&x[1]), Some(&x[2]), 1e-5)
    });
    composite("rms_norm", &[&[2, 3, 4], &[4]], &[], |b, x| build::rms_norm(b, &x[0], 1, Some(&x[1]), 1e-6));
}

#[test]
fn products() {
    composite("linear", &[&[2, 3, 4], &[5, 4], &[5]], &[], |b, x| build::linear(b, &x[0], &x[1], Some(&x[2])));
    composite("matmul", &[&[2, 1, 3, 4], &[3, 4, 2]], &[], |b, x| build::matmul(b, &x[0], &x[1]));
    composite("einsum", &[&[2, 3, 4], &[4, 5, 2]], &[], |b, x| build::einsum(b, "bij,jkb->kib", x));
}

#[test]
fn attention() {
    use build::{AttentionOptions, scaled_dot_product_attention};
    let (q, k, v): (&[usize], &[usize], &[usize]) = (&[2, 4, 3, 4], &[2, 2, 5, 4], &[2, 2, 5, 3]);
    for causal in [false, true] {
        composite("attention", &[q, k, v], &[], |b, x| {
            let options = AttentionOptions { causal, ..AttentionOptions::default() };
            scaled_dot_product_attention(b, &x[0], &x[1], &x[2], &options)
        });
        composite("attention with a mask", &[q, k, v, &[3, 5]], &[], |b, x| {
            let options = AttentionOptions { mask: Some(x[3]), causal, scale: Some(0.7) };
            scaled_dot_product_attention(b, &x[0], &x[1], &x[2], &options)
        });
    }
    composite("rope", &[&[2, 3, 4], &[3, 2], &[3, 2]], &[], |b, x| {
        build::rope(b, &x[0], &x[1], &x[2], build::RopeStyle::Interleaved)
    });
}

#[test]
fn convolutions_and_pools() {
    use build::{ConvOptions, PoolOptions};
    composite("conv2d", &[&[2, 3, 5, 6], &[4, 3, 3, 3], &[4]], &[], |b, x| {
        let options = ConvOptions { stride: vec![2, 1], padding: vec![1, 1], ..ConvOptions::new(2) };
        build::conv(b, &x[0], &x[1], Some(&x[2]), &options)
    });
    composite("depthwise", &[&[1, 4, 6], &[8, 1, 3]], &[], |b, x| {
        let options = ConvOptions { dilation: vec![2], groups: 4, ..ConvOptions::new(1) };
        build::conv(b, &x[0], &x[1], None, &options)
    });
    composite("pointwise", &[&[2, 3, 4, 4], &[2, 3, 1, 1]], &[], |b, x| {
        let options = ConvOptions { stride: vec![3, 2], ..ConvOptions::new(2) };
        build::conv(b, &x[0], &x[1], None, &options)
    });
    composite("conv_transpose", &[&[1, 4, 4, 3], &[4, 2, 3, 2]], &[], |b, x| {
        let options = ConvOptions { stride: vec![2, 3], padding: vec![1, 0], groups: 2, ..ConvOptions::new(2) };
        build::conv_transpose(b, &x[0], &x[1], None, &options, &[1, 0])
    });
    let overlapping = PoolOptions { stride: vec![2, 2], padding: vec![1, 1], ..PoolOptions::new(&[3, 3]) };
    let ceil = PoolOptions { ceil: true, ..PoolOptions::new(&[2, 2]) };
    for options in [PoolOptions::new(&[2, 2]), overlapping, ceil] {
        composite("max_pool", &[&[2, 2, 5, 7]], &[], |b, x| build::max_pool(b, &x[0], &options));
        composite("avg_pool", &[&[2, 2, 5, 7]], &[], |b, x| build::avg_pool(b, &x[0], &options, false));
    }
}

#[test]
fn losses_and_embedding() {
    use build::{CrossEntropyOptions, Reduction};
    composite("cross_entropy", &[&[4, 5], &[4]], &[(1, 5)], |b, x| {
        let options = CrossEntropyOptions { label_smoothing: 0.1, ..CrossEntropyOptions::default() };
        build::cross_entropy(b, &x[0], &x[1], &options)
    });
    composite("mse_loss", &[&[4, 5], &[4, 5]], &[], |b, x| build::mse_loss(b, &x[0], &x[1], Reduction::Mean));
    composite("smooth_l1_loss", &[&[4, 5], &[4, 5]], &[], |b, x| {
        build::smooth_l1_loss(b, &x[0], &x[1], 0.5, Reduction::Sum)
    });
    composite("embedding", &[&[6, 3], &[2, 5]], &[(1, 6)], |b, x| build::embedding(b, &x[0], &x[1]));
    composite("take", &[&[3, 6, 2], &[4]], &[(1, 6)], |b, x| build::take(b, &x[0], 1, &x[1]));
}

/// A gradient is a graph like any other: it can be differentiated again.
#[test]
fn second_derivatives() {
    let first = |graph: &Graph| {
        let mut b = GraphBuilder::extend(graph.clone());
        let y = graph.outputs()[0].node;
        let axes: Vec<usize> = (0..graph.ty(y).rank()).collect();
        let square = build::mul(&mut b, &y, &y).unwrap();
        let total = build::sum(&mut b, &square, &axes, false).unwrap();
        b.output(total);
        let by: Vec<usize> = (0..graph.inputs().len()).collect();
        differentiate(&b.finish(), &[1], &by, &DifferentiateOptions::default()).unwrap()
    };
    let graphs = [
        composite("tanh", &[&[4]], &[], |b, x| build::tanh(b, &x[0])),
        composite("linear", &[&[2, 3], &[2, 3]], &[], |b, x| build::linear(b, &x[0], &x[1], None)),
        composite("softmax", &[&[2, 3]], &[], |b, x| build::softmax(b, &x[0], 1)),
        composite("prod", &[&[2, 3]], &[], |b, x| build::prod(b, &x[0], &[1], false)),
        composite("conv", &[&[1, 2, 5], &[2, 2, 2]], &[], |b, x| {
            build::conv(b, &x[0], &x[1], None, &build::ConvOptions::new(1))
        }),
    ];
    for graph in &graphs {
        let joint = first(graph);
        let mut random = Random(3);
        let mut fill = |&id: &NodeId| {
            let shape = graph.ty(id).fixed_shape().unwrap();
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.unit() + 0.2).collect();
            HostTensor::from_slice(&shape, &values).unwrap()
        };
        let inputs: Vec<HostTensor> = graph.inputs().iter().map(&mut fill).collect();
        let found = check(&joint, &inputs, 9).unwrap_or_else(|e| panic!("{e}"));
        assert!(found.compared >= 4, "{found:?}\n{joint}");
    }
}
