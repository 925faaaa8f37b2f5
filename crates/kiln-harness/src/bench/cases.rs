//! What is measured: small graphs with the shapes transformers meet.

use super::census;
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::{DType, Dim, DotDims, Error, Graph, NodeId, Op, Scalar, ScatterKind, TensorType};
use serde_json::{Value, json};

/// Ways of one product, `linear`, that are measured beside the one it takes.
pub const WAYS: [&str; 3] = ["packed", "row_by_row", "side_by_side"];

/// One row of a table.
#[derive(Debug, Clone)]
pub struct Case {
    /// What is computed; the torch peer knows it under the same name.
    pub kind: &'static str,
    /// The sizes, as the kind reads them.
    pub shape: Vec<usize>,
    /// Of activations and weights.
    pub dtype: DType,
    /// Threads of both sides.
    pub threads: usize,
    /// The call, where it is one of an ATen op.
    pub row: Option<census::Row>,
}

impl Case {
    fn new(kind: &'static str, shape: &[usize], dtype: DType, threads: usize) -> Case {
        Case { kind, shape: shape.to_vec(), dtype, threads, row: None }
    }

    /// For the peer.
    pub fn to_json(&self) -> Value {
        if let Some(row) = &self.row {
            return row.to_json(self.dtype);
        }
        // How weights are packed or read is Kiln's affair: the peer has plain ones.
        let kind = if WAYS.contains(&self.kind) { "linear" } else { self.kind };
        json!({"kind": kind, "shape": self.shape, "dtype": self.dtype.name()})
    }

    /// For the table.
    pub fn name(&self) -> String {
        if let Some(row) = &self.row {
            return row.name(self.dtype);
        }
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!("{} {} {}", self.kind, shape.join("×"), self.dtype)
    }

    /// The graph; its inputs and outputs are all the memory that has to move.
    pub fn graph(&self) -> Result<Graph, Box<dyn std::error::Error>> {
        if let Some(row) = &self.row {
            return Ok(row.graph(self.dtype)?);
        }
        let mut b = GraphBuilder::new();
        let dtype = self.dtype;
        let last = self.shape.last().copied().unwrap_or(1);
        let input = |b: &mut GraphBuilder, shape: &[usize]| b.input(TensorType::fixed(dtype, shape));
        let outputs = match self.kind {
            "gelu" => {
                let (x, w, c) = (input(&mut b, &self.shape)?, input(&mut b, &[last])?, input(&mut b, &[last])?);
                let h = build::gelu_tanh(&mut b, &x)?;
                let h = build::mul(&mut b, &h, &w)?;
                vec![build::add(&mut b, &h, &c)?]
            }
            "rms_norm" => {
                let (x, w) = (input(&mut b, &self.shape)?, input(&mut b, &[last])?);
                vec![build::rms_norm(&mut b, &x, 1, Some(&w), 1e-5)?]
            }
            "residual_rms_norm" => {
                let (x, y) = (input(&mut b, &self.shape)?, input(&mut b, &self.shape)?);
                let w = input(&mut b, &[last])?;
                let h = build::add(&mut b, &x, &y)?;
                let n = build::rms_norm(&mut b, &h, 1, Some(&w), 1e-5)?;
                vec![h, n]
            }
            "layer_norm" => {
                let (x, w, c) = (input(&mut b, &self.shape)?, input(&mut b, &[last])?, input(&mut b, &[last])?);
                vec![build::layer_norm(&mut b, &x, 1, Some(&w), Some(&c), 1e-5)?]
            }
            "softmax" => {
                let x = input(&mut b, &self.shape)?;
                vec![build::softmax(&mut b, &x, self.shape.len() - 1)?]
            }
            "rope" => {
                let (t, d) = (self.shape[0], self.shape[2]);
                let x = input(&mut b, &self.shape)?;
                let (cos, sin) = (input(&mut b, &[t, 1, d])?, input(&mut b, &[t, 1, d])?);
                vec![rope(&mut b, x, cos, sin, d)?]
            }
            "swiglu" => {
                let (x, y) = (input(&mut b, &self.shape)?, input(&mut b, &self.shape)?);
                let h = build::silu(&mut b, &x)?;
                vec![build::mul(&mut b, &h, &y)?]
            }
            // rows, length, and how many of each row
            "topk" => {
                let x = input(&mut b, &self.shape[..2])?;
                let (values, indices) = build::topk(&mut b, &x, self.shape[2], 1, true)?;
                vec![values, indices]
            }
            "sort" => {
                let x = input(&mut b, &self.shape)?;
                let (values, indices) = build::sort(&mut b, &x, 1, false)?;
                vec![values, indices]
            }
            "cumsum" | "cumsum_down" => {
                let x = input(&mut b, &self.shape)?;
                vec![build::cumsum(&mut b, &x, usize::from(self.kind == "cumsum"))?]
            }
            // an index for each element, in its row
            "scatter_add" | "gather" => {
                let x = input(&mut b, &self.shape)?;
                let index = b.input(TensorType::fixed(DType::I64, &self.shape))?;
                if self.kind == "gather" {
                    vec![build::gather(&mut b, &x, 1, &index)?]
                } else {
                    let updates = input(&mut b, &self.shape)?;
                    vec![build::scatter(&mut b, ScatterKind::Add, &x, 1, &index, &updates)?]
                }
            }
            // rows, length of a row, and how many rows are added to them or taken from them
            "index_add" | "embedding" => {
                let (rows, width, count) = (self.shape[0], self.shape[1], self.shape[2]);
                let x = input(&mut b, &[rows, width])?;
                let index = b.input(TensorType::fixed(DType::I64, &[count]))?;
                if self.kind == "embedding" {
                    vec![build::embedding(&mut b, &x, &index)?]
                } else {
                    let updates = input(&mut b, &[count, width])?;
                    vec![build::scatter_rows(&mut b, ScatterKind::Add, &x, 0, &index, &updates)?]
                }
            }
            // images, channels, height, width; the result has twice the height and width
            "nearest" => {
                let x = input(&mut b, &self.shape)?;
                vec![build::upsample_nearest(&mut b, &x, &[2, 2])?]
            }
            "linear" | "packed" | "row_by_row" | "side_by_side" => {
                let (m, k, n) = (self.shape[0], self.shape[1], self.shape[2]);
                let (x, w) = (input(&mut b, &[m, k])?, input(&mut b, &[n, k])?);
                vec![dot(&mut b, x, w, 1, sums(dtype))?]
            }
            "matmul" => {
                let (m, k, n) = (self.shape[0], self.shape[1], self.shape[2]);
                let (x, w) = (input(&mut b, &[m, k])?, input(&mut b, &[k, n])?);
                vec![dot(&mut b, x, w, 0, sums(dtype))?]
            }
            // masked_attention: batch, heads, key heads, queries, keys, width, keys that are seen
            "masked_attention" => {
                let [n, h, g, t, s, d, _] = self.shape[..] else { unreachable!("masked cases have seven sizes") };
                let (q, k) = (input(&mut b, &[n, h, t, d])?, input(&mut b, &[n, g, s, d])?);
                let (v, mask) =
                    (input(&mut b, &[n, g, s, d])?, b.input(TensorType::fixed(DType::Bool, &[1, 1, t, s]))?);
                vec![masked_attention(&mut b, q, [k, v], mask)?]
            }
            // paged_attention: the same with the keys of a page, in pages that a table names
            "paged_attention" => {
                let [n, h, g, t, s, d, _, page] = self.shape[..] else { unreachable!("paged cases have eight sizes") };
                let (q, count) = (input(&mut b, &[n, h, t, d])?, s / page);
                let (k, v) = (input(&mut b, &[n * count, g, page, d])?, input(&mut b, &[n * count, g, page, d])?);
                let table = b.input(TensorType::fixed(DType::I64, &[n * count]))?;
                let mask = b.input(TensorType::fixed(DType::Bool, &[1, 1, t, s]))?;
                let mut rows = |pool: NodeId| -> Result<NodeId, Error> {
                    let own = build::index_select(&mut b, &pool, 0, &table)?;
                    let own = build::reshape(&mut b, &own, &[n, count, g, page, d].map(Dim::from))?;
                    let own = build::permute(&mut b, &own, &[0, 2, 1, 3, 4])?;
                    build::reshape(&mut b, &own, &[n, g, s, d].map(Dim::from))
                };
                let (k, v) = (rows(k)?, rows(v)?);
                vec![masked_attention(&mut b, q, [k, v], mask)?]
            }
            // attention: batch, heads, queries, keys, width
            _ => {
                let [n, h, t, s, d] = self.shape[..] else { unreachable!("attention cases have five sizes") };
                let (q, k) = (input(&mut b, &[n, h, t, d])?, input(&mut b, &[n, h, s, d])?);
                let v = input(&mut b, &[n, h, s, d])?;
                let causal = self.kind.starts_with("causal_attention");
                let scale = Scalar::float(DType::F64, 1.0 / (d as f64).sqrt());
                let op = Op::Attention { causal, scale, mask: false };
                let y = build::Emit::emit(&mut b, op.clone(), &[q, k, v])?;
                if self.kind.ends_with("_gradients") {
                    let g = input(&mut b, &[n, h, t, d])?;
                    let gradients = kiln_passes::gradient(&mut b, &op, &[q, k, v], &y, &g, &[true; 3])?;
                    std::iter::once(y).chain(gradients.into_iter().flatten()).collect()
                } else {
                    vec![y]
                }
            }
        };
        for output in outputs {
            b.output(output);
        }
        Ok(b.finish())
    }

    /// Elements of an input: ordinary numbers in −1..1, bytes in −127..127, but for a mask that shows the first keys, a table in which every page has another
    /// place, and what an ATen op asks for.
    pub fn elements(&self, input: usize, dtype: DType, count: usize, mut random: impl FnMut() -> f64) -> Vec<f64> {
        if let Some(row) = &self.row {
            return row.elements(self.dtype, input, (0..count).map(|_| random()).collect());
        }
        let scale = if dtype == DType::I8 { 127.0 } else { 1.0 };
        self.special(dtype, count).unwrap_or_else(|| (0..count).map(|_| (2.0 * random() - 1.0) * scale).collect())
    }

    fn special(&self, dtype: DType, count: usize) -> Option<Vec<f64>> {
        match (self.kind, dtype) {
            ("masked_attention" | "paged_attention", DType::Bool) => {
                let (keys, seen) = (self.shape[4], self.shape[6]);
                Some((0..count).map(|i| f64::from(i % keys < seen)).collect())
            }
            ("paged_attention", DType::I64) => {
                // 37 has no factor in common with the numbers of pages here.
                Some((0..count).map(|i| (i * 37 % count) as f64).collect())
            }
            // Every place is hit, in no order.
            ("scatter_add" | "gather", DType::I64) => {
                Some((0..count).map(|i| (i * 7919 % self.shape[1]) as f64).collect())
            }
            ("index_add" | "embedding", DType::I64) => {
                Some((0..count).map(|i| (i * 7919 % self.shape[0]) as f64).collect())
            }
            _ => None,
        }
    }

    /// Arithmetic of products, two operations a multiply-add; 0 for memory-bound kinds.
    pub fn operations(&self) -> f64 {
        let product: f64 = self.shape.iter().map(|&n| n as f64).product();
        match self.kind {
            "linear" | "matmul" => 2.0 * product,
            kind if WAYS.contains(&kind) => 2.0 * product,
            "attention" => 4.0 * product,
            "causal_attention" => 2.0 * product,
            // Two products forward, five backward.
            "attention_gradients" => 14.0 * product,
            "causal_attention_gradients" => 7.0 * product,
            "masked_attention" | "paged_attention" => {
                let [n, h, _, t, _, d, seen] = self.shape[..7] else { return 0.0 };
                4.0 * (n * h * t * d * seen) as f64
            }
            _ => 0.0,
        }
    }
}

/// The element type of a product's result: bytes are summed in 32 bits.
fn sums(dtype: DType) -> DType {
    if dtype == DType::I8 { DType::I32 } else { dtype }
}

fn dot(b: &mut GraphBuilder, x: NodeId, w: NodeId, contract: usize, out: DType) -> Result<NodeId, Error> {
    let dims = DotDims { lhs_contract: vec![1], rhs_contract: vec![contract], ..Default::default() };
    build::Emit::emit(b, Op::Dot { dims: dims.into(), out }, &[x, w])
}

/// Attention of few queries over a cache, under a mask that all texts and heads share.
fn masked_attention(b: &mut GraphBuilder, q: NodeId, [k, v]: [NodeId; 2], mask: NodeId) -> Result<NodeId, Error> {
    let shape = build::Emit::ty(b, &q).shape;
    let keys = build::Emit::ty(b, &k).shape[2].clone();
    let width = shape[3].as_const().unwrap_or(1);
    let mask = build::broadcast_to(b, &mask, &[shape[0].clone(), shape[1].clone(), shape[2].clone(), keys])?;
    let scale = Scalar::float(DType::F64, 1.0 / (width as f64).sqrt());
    build::Emit::emit(b, Op::Attention { causal: false, scale, mask: true }, &[q, k, v, mask])
}

/// x·cos + rotate_half(x)·sin, written as a model writes it.
fn rope(b: &mut GraphBuilder, x: NodeId, cos: NodeId, sin: NodeId, width: usize) -> Result<NodeId, Error> {
    let half = width / 2;
    let low = build::narrow(b, &x, 2, 0i64, Dim::from(half))?;
    let high = build::narrow(b, &x, 2, Dim::from(half), Dim::from(half))?;
    let high = build::neg(b, &high)?;
    let rotated = build::concat(b, &[high, low], 2)?;
    let left = build::mul(b, &x, &cos)?;
    let right = build::mul(b, &rotated, &sin)?;
    build::add(b, &left, &right)
}

/// Fused kernels, in cache and out of it.
pub fn ops(threads: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &threads in threads {
        for dtype in [DType::F32, DType::Bf16] {
            let mut case = |kind, shape: &[usize]| cases.push(Case::new(kind, shape, dtype, threads));
            for shape in [&[64usize, 1024][..], &[4096, 1024]] {
                case("gelu", shape);
            }
            for shape in [&[16usize, 2048][..], &[1024, 2048], &[2048, 4096]] {
                case("rms_norm", shape);
                case("residual_rms_norm", shape);
                case("layer_norm", shape);
            }
            for shape in [&[64usize, 1024][..], &[4096, 1024]] {
                case("softmax", shape);
            }
            for shape in [&[32usize, 16, 128][..], &[512, 16, 128]] {
                case("rope", shape);
            }
            for shape in [&[16usize, 8192][..], &[512, 8192]] {
                case("swiglu", shape);
            }
            for shape in [&[8usize, 4096, 50][..], &[16, 128256, 50]] {
                case("topk", shape);
            }
            case("sort", &[64, 4096]);
            for kind in ["cumsum", "cumsum_down", "scatter_add", "gather"] {
                case(kind, &[64, 1024]);
                case(kind, &[2048, 1024]);
            }
            for kind in ["index_add", "embedding"] {
                case(kind, &[1024, 256, 2048]);
                case(kind, &[32000, 768, 4096]);
            }
            for shape in [&[1usize, 64, 56, 56][..], &[8, 256, 32, 32]] {
                case("nearest", shape);
            }
        }
        for row in census::rows() {
            for &dtype in row.dtypes() {
                cases.push(Case { row: Some(row.clone()), ..Case::new(row.op, &[], dtype, threads) });
            }
        }
    }
    cases
}

/// Products: plain weights in both orientations, and weights packed beforehand.
pub fn matmul(threads: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &threads in threads {
        for (k, n) in [(768, 768), (768, 3072), (3072, 768), (2048, 2048), (4096, 4096)] {
            for m in [1, 8, 32, 128, 512] {
                for kind in ["linear", "matmul", "packed"] {
                    cases.push(Case::new(kind, &[m, k, n], DType::F32, threads));
                }
            }
            for kind in ["linear", "packed"] {
                cases.push(Case::new(kind, &[1, k, n], DType::Bf16, threads));
            }
            for m in [8, 32, 128, 512, 2048] {
                for kind in ["linear", "matmul", "packed"] {
                    cases.push(Case::new(kind, &[m, k, n], DType::Bf16, threads));
                }
                // Bytes with sums of 32 bits.
                for kind in ["linear", "matmul"] {
                    cases.push(Case::new(kind, &[m, k, n], DType::I8, threads));
                }
            }
        }
        // From a hidden vector to logits: many rows from beyond the caches, and both orders to read them in.
        for (k, n) in [(288, 32000), (576, 49152), (2048, 32000)] {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                for kind in ["linear", "row_by_row", "side_by_side"] {
                    cases.push(Case::new(kind, &[1, k, n], dtype, threads));
                }
            }
        }
    }
    cases
}

/// Attention: prefill, with gradients, and one query against a cache.
pub fn attention(threads: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &threads in threads {
        for width in [64, 128] {
            for tokens in [1, 16, 128, 512, 2048] {
                for kind in ["attention", "causal_attention"] {
                    cases.push(Case::new(kind, &[1, 8, tokens, tokens, width], DType::F32, threads));
                }
            }
            cases.push(Case::new("attention", &[1, 8, 1, 2048, width], DType::F32, threads));
        }
        // With the gradients of queries, keys and values, as a training step has them.
        for kind in ["attention_gradients", "causal_attention_gradients"] {
            for shape in [[8, 8, 128, 128, 32], [32, 3, 65, 65, 64], [4, 12, 256, 256, 64], [1, 8, 1024, 1024, 128]] {
                cases.push(Case::new(kind, &shape, DType::F32, threads));
            }
            cases.push(Case::new(kind, &[4, 12, 256, 256, 64], DType::Bf16, threads));
        }
        // A cache of 2048 places of which a position shows some; then the same in pages of 16.
        for dtype in [DType::F32, DType::Bf16] {
            let mut case = |kind, shape: &[usize]| cases.push(Case::new(kind, shape, dtype, threads));
            for seen in [16, 128, 512, 2048] {
                case("masked_attention", &[1, 9, 3, 1, 2048, 64, seen]);
            }
            case("masked_attention", &[1, 9, 3, 128, 2048, 64, 128]);
            for (texts, seen) in [(1, 512), (8, 512), (8, 2048)] {
                case("masked_attention", &[texts, 32, 8, 1, 2048, 64, seen]);
                case("paged_attention", &[texts, 32, 8, 1, 2048, 64, seen, 16]);
            }
        }
    }
    cases
}
