//! What networks do with images beside convolutions: pooling, resizing and norms, alone and with their gradients.

use super::cases::Work;
use kiln_ir::build::{self, Filter, GraphBuilder, PoolOptions, ResampleOptions};
use kiln_ir::{DType, Dim, Error, Graph, NodeId, TensorType};
use kiln_passes::{DifferentiateOptions, Seeds, differentiate};
use serde_json::json;

/// Operations and the sizes of one image: channels, height, width. The peer knows them under the same names.
const ROWS: &[(&str, [usize; 3])] = &[
    ("max pool 3×3 s2", [64, 112, 112]),
    ("max pool 2×2", [128, 56, 56]),
    ("avg pool 2×2", [128, 56, 56]),
    ("avg pool 3×3 s1", [192, 35, 35]),
    ("global avg pool", [512, 7, 7]),
    ("adaptive avg pool to 7", [256, 32, 32]),
    ("nearest ×2", [256, 32, 32]),
    ("bilinear ×2", [256, 32, 32]),
    ("bicubic ×2", [64, 32, 32]),
    ("group norm", [320, 32, 32]),
    ("instance norm", [64, 128, 128]),
    ("batch norm of training", [64, 56, 56]),
    ("pixel shuffle ×2", [256, 32, 32]),
];

/// All rows, of one image and of eight, forward and with the gradient in the image.
pub fn all(threads: &[usize]) -> Vec<Work> {
    let mut works = Vec::new();
    for (&threads, batch) in threads.iter().flat_map(|threads| [(threads, 1), (threads, 8)]) {
        for &(kind, [channels, height, width]) in ROWS {
            for gradient in [false, true] {
                let shape = vec![batch, channels, height, width];
                let name = format!(
                    "{kind} of {batch}×{channels}×{height}×{width}{}",
                    if gradient { ", and gradient" } else { "" }
                );
                works.push(Work {
                    name,
                    threads,
                    batch,
                    dtype: DType::F32,
                    operations: 0.0,
                    has_weights: false,
                    json: json!({"kind": "image", "op": kind, "gradient": gradient, "shape": shape, "dtype": "f32"}),
                    graph: Box::new(move || graph(kind, &shape, gradient)),
                });
            }
        }
    }
    works
}

fn graph(kind: &str, shape: &[usize], gradient: bool) -> Result<Graph, Box<dyn std::error::Error>> {
    let mut b = GraphBuilder::new();
    let x = b.input(TensorType::fixed(DType::F32, shape))?;
    let y = apply(&mut b, kind, &x, shape)?;
    b.output(y);
    let forward = b.finish();
    if !gradient {
        return Ok(forward);
    }
    let options = DifferentiateOptions { seeds: Seeds::Inputs, ..DifferentiateOptions::default() };
    Ok(differentiate(&forward, &[0], &[0], &options)?)
}

fn apply(b: &mut GraphBuilder, kind: &str, x: &NodeId, shape: &[usize]) -> Result<NodeId, Error> {
    let twice = [2 * shape[2], 2 * shape[3]];
    let pool = |size: usize, stride: usize, padding: usize| PoolOptions {
        stride: vec![stride; 2],
        padding: vec![padding; 2],
        ..PoolOptions::new(&[size, size])
    };
    let channels = |b: &mut GraphBuilder| b.input(TensorType::fixed(DType::F32, &shape[1..2]));
    Ok(match kind {
        "max pool 3×3 s2" => build::max_pool(b, x, &pool(3, 2, 1))?,
        "max pool 2×2" => build::max_pool(b, x, &pool(2, 2, 0))?,
        "avg pool 2×2" => build::avg_pool(b, x, &pool(2, 2, 0), true)?,
        "avg pool 3×3 s1" => build::avg_pool(b, x, &pool(3, 1, 1), true)?,
        "global avg pool" => build::adaptive_avg_pool(b, x, &[1, 1])?,
        "adaptive avg pool to 7" => build::adaptive_avg_pool(b, x, &[7, 7])?,
        "nearest ×2" => build::interpolate_nearest(b, x, &twice)?,
        "bilinear ×2" => build::interpolate_linear(b, x, &twice, false)?,
        "bicubic ×2" => {
            let options =
                ResampleOptions { filter: Filter::Cubic, align_corners: false, antialias: false, scales: None };
            build::resample(b, x, &twice, &options)?
        }
        "group norm" => {
            let (weight, bias) = (channels(b)?, channels(b)?);
            build::group_norm(b, x, 32, Some(&weight), Some(&bias), 1e-5)?
        }
        "instance norm" => {
            let (weight, bias) = (channels(b)?, channels(b)?);
            build::group_norm(b, x, shape[1], Some(&weight), Some(&bias), 1e-5)?
        }
        "batch norm of training" => {
            let (weight, bias) = (channels(b)?, channels(b)?);
            build::batch_norm_statistics(b, x, Some(&weight), Some(&bias), 1e-5)?.0
        }
        _ => {
            let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<Dim>>();
            let [n, c, h, w] = shape.try_into().unwrap_or([1; 4]);
            let split = build::reshape(b, x, &dims(&[n, c / 4, 2, 2, h, w]))?;
            let moved = build::permute(b, &split, &[0, 1, 4, 2, 5, 3])?;
            build::reshape(b, &moved, &dims(&[n, c / 4, 2 * h, 2 * w]))?
        }
    })
}
