//! Writing by mask and by group, and gradients of attention with shared heads: what PyTorch's own results cannot show.

use crate::harness::{check, floats, ints, noise, run, run_all};
use kiln_ir::build::{self, AttentionOptions, AttentionRecord, GraphBuilder};
use kiln_ir::{DType, Error, HostTensor, NodeId, TensorType, interpret};

fn bools(values: &[bool]) -> HostTensor {
    HostTensor::from_slice(&[values.len()], values).unwrap()
}

/// Whether running a graph over these inputs works.
fn runs(inputs: &[HostTensor], build: fn(&mut GraphBuilder, &[NodeId]) -> Result<NodeId, Error>) -> bool {
    let mut b = GraphBuilder::new();
    let ids: Vec<NodeId> = inputs.iter().map(|t| b.input(TensorType::fixed(t.dtype(), t.shape())).unwrap()).collect();
    let y = build(&mut b, &ids).unwrap();
    b.output(y);
    interpret::run(&b.finish(), inputs).is_ok()
}

#[test]
fn a_mask_with_more_than_the_source_has_is_an_error() {
    let x = floats(&[4], &[1., 2., 3., 4.]);
    let two = bools(&[true, false, true, false]);
    let three = bools(&[true, false, true, true]);
    let source = floats(&[2], &[8., 9.]);
    let written = run(&[&x, &two, &source], |b, v| build::masked_scatter(b, &v[0], &v[1], &v[2]));
    check(&written, &[4], &[8., 2., 9., 4.]);
    for (mask, works) in [(&two, true), (&three, false)] {
        let scatter = |b: &mut GraphBuilder, v: &[NodeId]| build::masked_scatter(b, &v[0], &v[1], &v[2]);
        assert_eq!(runs(&[x.clone(), mask.clone(), source.clone()], scatter), works);
        let put = |b: &mut GraphBuilder, v: &[NodeId]| build::masked_put(b, &v[0], 0, &v[1], &v[2], true);
        assert_eq!(runs(&[x.clone(), mask.clone(), source.clone()], put), works);
        let pack = |b: &mut GraphBuilder, v: &[NodeId]| build::masked_pack(b, &v[0], &v[1], &[2.into()]);
        assert_eq!(runs(&[x.clone(), mask.clone()], pack), works);
    }
}

#[test]
fn rows_of_no_group_give_zeros() {
    let (x, w) = (floats(&[3, 1], &[1., 2., 3.]), floats(&[2, 1, 1], &[10., 100.]));
    let ends = ints(&[2], &[1, 2]);
    let y = run(&[&x, &w, &ends], |b, v| build::grouped_matmul(b, &v[0], &v[1], &v[2]));
    check(&y, &[3, 1], &[10., 200., 0.]);
}

#[test]
fn keys_that_heads_share_get_the_sum_of_their_gradients() {
    let (q, gradient) = (noise(&[1, 4, 3, 2], 1), noise(&[1, 4, 3, 2], 2));
    let (k, v) = (noise(&[1, 2, 5, 2], 3), noise(&[1, 2, 5, 2], 4));
    let shared = |b: &mut GraphBuilder, ids: &[NodeId], spread: bool| {
        let options = AttentionOptions { causal: true, ..Default::default() };
        let (mut k, mut v) = (ids[1], ids[2]);
        if spread {
            k = build::repeat_interleave(b, &k, 1, 2)?;
            v = build::repeat_interleave(b, &v, 1, 2)?;
        }
        let output = build::scaled_dot_product_attention(b, &ids[0], &k, &v, &options)?;
        let logsumexp = build::attention_logsumexp(b, &ids[0], &k, &options)?;
        let record = AttentionRecord { q: ids[0], k, v, output, logsumexp };
        let mut gradients = build::attention_backward(b, &ids[3], &record, &options)?.to_vec();
        if spread {
            for gradient in &mut gradients[1..] {
                let split = build::reshape(b, gradient, &[1, 2, 2, 5, 2].map(|n: usize| n.into()))?;
                *gradient = build::sum(b, &split, &[2], false)?;
            }
        }
        Ok(gradients)
    };
    let got = run_all(&[&q, &k, &v, &gradient], |b, ids| shared(b, ids, false));
    let want = run_all(&[&q, &k, &v, &gradient], |b, ids| shared(b, ids, true));
    for (got, want) in got.iter().zip(&want) {
        check(got, want.shape(), &want.to_f64());
        assert_eq!(got.dtype(), DType::F64);
    }
}
