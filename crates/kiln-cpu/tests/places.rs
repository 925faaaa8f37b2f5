//! Work that is the same at all points of an axis, at places that data choose: it is done once, inside the loop over vectors.

mod support;
use kiln_cpu::features::Isa;
use kiln_cpu::lower::Options;
use kiln_ir::{BinaryOp, DType, HostTensor};
use kiln_kernels::kernel::{InstKind, Place};
use kiln_runtime::LaunchError;
use support::*;

/// Two elements of each channel at computed places, blended by weights: `channels` of `size` elements, `points` results each.
fn sampled(channels: usize, size: usize, points: usize, dtype: DType, index: DType) -> K {
    let mut k = K::new(&[("i0", "2"), ("i1", &channels.to_string()), ("i2", &points.to_string())], &[]);
    let (x, y) = (k.input(dtype), k.output(dtype));
    let (at, weights) = ([0; 2].map(|_| k.input(index)), [0; 2].map(|_| k.input(DType::F32)));
    let held = dtype.compute_type();
    let mut parts = Vec::new();
    for (at, weight) in at.into_iter().zip(weights) {
        let place = format!("i0*{points} + i2");
        let (at, weight) = (k.load(at, &place), k.load(weight, &place));
        let weight = k.binary(BinaryOp::Mul, DType::F32, weight, weight);
        let weight = k.binary(BinaryOp::Add, DType::F32, weight, weight);
        let at = if index == DType::I32 { k.push(DType::I64, InstKind::Cast(at)) } else { at };
        let at = k.push(DType::I64, InstKind::CheckIndex { value: at, size: dim(&size.to_string()) });
        let offset = dim(&format!("i0*{} + i1*{size}", channels * size));
        let place = Place { buffer: x, offset, indirect: vec![(at, dim("1"))] };
        let element = k.push(held, InstKind::Load { place, guard: None });
        parts.push(k.binary(BinaryOp::Mul, DType::F32, element, weight));
    }
    let sum = k.binary(BinaryOp::Add, DType::F32, parts[0], parts[1]);
    k.store(y, &format!("i0*{} + i1*{points} + i2", channels * points), sum);
    k
}

#[test]
fn channels_are_read_at_the_same_places() {
    for (dtype, index) in [(DType::F32, DType::I32), (DType::F32, DType::I64), (DType::Bf16, DType::I32)] {
        for (channels, points) in [(3, 20), (4, 1), (5, 16), (32, 70), (65, 33), (72, 33)] {
            let size = 37;
            let kernel = sampled(channels, size, points, dtype, index).kernel();
            let places = |by: i64| (0..2 * points as i64).map(|i| i * by % size as i64).collect::<Vec<i64>>();
            let tensors = |places: [Vec<i64>; 2]| {
                let [first, second] = places.map(|list| HostTensor::from_i64(index, &[2 * points], &list).unwrap());
                let (x, y) = (2 * channels * size, 2 * channels * points);
                let [w0, w1] = [7, 8].map(|seed| tensor(DType::F32, 2 * points, seed, false));
                [tensor(dtype, x, 5, false), zeros(dtype, y), first, second, w0, w1]
            };
            check(&kernel, &tensors([places(5), places(11)]), &[], Within { relative: 1e-6, absolute: 1e-6 });
            let mut wrong = places(5);
            wrong[points] = size as i64;
            for isa in Isa::available() {
                let got = run_on(&kernel, isa, &mut tensors([places(5), wrong.clone()]), &[], Options::default());
                assert_eq!(got, Err(LaunchError::IndexOutOfRange { index: size as i64, size: size as i64 }), "{isa:?}");
            }
        }
    }
}
