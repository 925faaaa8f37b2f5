//! Normalisations, losses and random numbers.

use crate::harness::{check, floats, ints, noise, run};
use kiln_ir::build::{self, CrossEntropyOptions, Reduction};
use kiln_ir::{DType, Dim, HostTensor};

/// Mean and population variance.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n)
}

#[test]
fn layer_and_rms_norm() {
    let (x, w, bias) = (noise(&[3, 2, 4], 1), noise(&[2, 4], 2), noise(&[2, 4], 3));
    let mut want = vec![];
    let mut want_rms = vec![];
    for row in x.to_f64().chunks(8) {
        let (mean, variance) = moments(row);
        let square = row.iter().map(|v| v * v).sum::<f64>() / 8.0;
        for (i, v) in row.iter().enumerate() {
            want.push((v - mean) / (variance + 1e-5).sqrt() * w.get_f64(i) + bias.get_f64(i));
            want_rms.push(v / (square + 1e-6).sqrt() * w.get_f64(i));
        }
    }
    let layer = run(&[&x, &w, &bias], |b, v| build::layer_norm(b, &v[0], 2, Some(&v[1]), Some(&v[2]), 1e-5));
    check(&layer, &[3, 2, 4], &want);
    check(&run(&[&x, &w], |b, v| build::rms_norm(b, &v[0], 2, Some(&v[1]), 1e-6)), &[3, 2, 4], &want_rms);
    // Half precision keeps its statistics in f32: the squares of these overflow f16.
    let large = HostTensor::from_f64(DType::F16, &[4], &[300., -300., 300., -300.]).unwrap();
    check(&run(&[&large], |b, v| build::rms_norm(b, &v[0], 1, None, 1e-6)), &[4], &[1., -1., 1., -1.]);
    check(&run(&[&large], |b, v| build::layer_norm(b, &v[0], 1, None, None, 1e-6)), &[4], &[1., -1., 1., -1.]);
}

#[test]
fn group_norm_normalises_groups_of_channels() {
    let (x, w, bias) = (noise(&[2, 4, 3], 1), noise(&[4], 2), noise(&[4], 3));
    let mut want = vec![];
    for (row, group) in x.to_f64().chunks(6).enumerate() {
        let (mean, variance) = moments(group);
        for (i, v) in group.iter().enumerate() {
            let channel = row % 2 * 2 + i / 3;
            want.push((v - mean) / (variance + 1e-5).sqrt() * w.get_f64(channel) + bias.get_f64(channel));
        }
    }
    let got = run(&[&x, &w, &bias], |b, v| build::group_norm(b, &v[0], 2, Some(&v[1]), Some(&v[2]), 1e-5));
    check(&got, &[2, 4, 3], &want);
}

#[test]
fn batch_norm_uses_given_statistics() {
    let x = noise(&[2, 3, 2], 1);
    let (mean, variance) = (floats(&[3], &[0.1, 0.2, 0.3]), floats(&[3], &[1.0, 4.0, 9.0]));
    let (w, bias) = (floats(&[3], &[1.0, 2.0, 3.0]), floats(&[3], &[5.0, 6.0, 7.0]));
    let one = |(i, v): (usize, f64)| {
        let c = i / 2 % 3;
        (v - mean.get_f64(c)) / (variance.get_f64(c) + 1e-5).sqrt() * w.get_f64(c) + bias.get_f64(c)
    };
    let want: Vec<f64> = x.to_f64().into_iter().enumerate().map(one).collect();
    let got = run(&[&x, &mean, &variance, &w, &bias], |b, v| {
        build::batch_norm(b, &v[0], &v[1], &v[2], Some(&v[3]), Some(&v[4]), 1e-5)
    });
    check(&got, &[2, 3, 2], &want);
}

#[test]
fn cross_entropies() {
    let logits = noise(&[4, 3], 1);
    let targets = ints(&[4], &[2, 0, -100, 1]);
    let weight = floats(&[3], &[1.0, 2.0, 0.5]);
    let values = logits.to_f64();
    let log = |i: usize, c: usize| {
        let total: f64 = values[i * 3..i * 3 + 3].iter().map(|v| v.exp()).sum();
        values[i * 3 + c] - total.ln()
    };
    let loss = |options: CrossEntropyOptions<()>, weighted: bool| {
        run(&[&logits, &targets, &weight], |b, v| {
            let options = CrossEntropyOptions {
                weight: weighted.then_some(v[2]),
                ignore_index: options.ignore_index,
                label_smoothing: options.label_smoothing,
                reduction: options.reduction,
            };
            build::cross_entropy(b, &v[0], &v[1], &options)
        })
    };
    let single = [-log(0, 2), -log(1, 0), 0.0, -log(3, 1)];
    let none = CrossEntropyOptions { reduction: Reduction::None, ..Default::default() };
    check(&loss(none, false), &[4], &single);
    let total: f64 = single.iter().sum();
    check(&loss(CrossEntropyOptions { reduction: Reduction::Sum, ..Default::default() }, false), &[], &[total]);
    check(&loss(CrossEntropyOptions::default(), false), &[], &[total / 3.0]);
    let weighted = 0.5 * single[0] + single[1] + 2.0 * single[3];
    check(&loss(CrossEntropyOptions::default(), true), &[], &[weighted / 3.5]);
    let smooth: f64 = [0, 1, 3].iter().map(|&i| -(0..3).map(|c| log(i, c)).sum::<f64>() / 3.0).sum();
    let smoothed = CrossEntropyOptions { label_smoothing: 0.1, ..Default::default() };
    check(&loss(smoothed, false), &[], &[(0.9 * total + 0.1 * smooth) / 3.0]);
}

#[test]
fn other_losses() {
    let (x, y) = (floats(&[3], &[0.5, -2.0, 3.0]), floats(&[3], &[0.0, 1.0, 1.0]));
    check(&run(&[&x, &y], |b, v| build::mse_loss(b, &v[0], &v[1], Reduction::Mean)), &[], &[13.25 / 3.0]);
    check(&run(&[&x, &y], |b, v| build::l1_loss(b, &v[0], &v[1], Reduction::Sum)), &[], &[5.5]);
    let smooth = run(&[&x, &y], |b, v| build::smooth_l1_loss(b, &v[0], &v[1], 1.0, Reduction::None));
    check(&smooth, &[3], &[0.125, 2.5, 1.5]);
    let one = |x: f64, y: f64| {
        let p = 1.0 / (1.0 + (-x).exp());
        -(y * p.ln() + (1.0 - y) * (1.0 - p).ln())
    };
    let want = [one(0.5, 0.0), one(-2.0, 1.0), one(3.0, 1.0)];
    let got = run(&[&x, &y], |b, v| build::binary_cross_entropy_with_logits(b, &v[0], &v[1], Reduction::None));
    check(&got, &[3], &want);
}

#[test]
fn random_numbers_have_their_moments() {
    const N: usize = 40_000;
    let seed = ints(&[], &[42]);
    let shape = [Dim::from(N)];
    for (dtype, top) in
        [(DType::F32, 1.0 - 1.0 / (1 << 24) as f64), (DType::F16, 1.0 - 1.0 / 2048.0), (DType::Bf16, 255.0 / 256.0)]
    {
        let values = run(&[&seed], |b, v| build::uniform(b, &v[0], &shape, 0, dtype)).to_f64();
        assert!(values.iter().all(|&v| (0.0..=top).contains(&v)), "{dtype}");
        let (mean, variance) = moments(&values);
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.003, "{dtype}: {mean} {variance}");
    }
    let values = run(&[&seed], |b, v| build::normal(b, &v[0], &shape, 3, DType::F32)).to_f64();
    let (mean, variance) = moments(&values);
    let fourth = values.iter().map(|v| v.powi(4)).sum::<f64>() / N as f64;
    assert!(
        mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03 && (fourth - 3.0).abs() < 0.15,
        "{mean} {variance} {fourth}"
    );
    let other = run(&[&seed], |b, v| build::normal(b, &v[0], &shape, 4, DType::F32)).to_f64();
    let correlation = values.iter().zip(&other).map(|(a, b)| a * b).sum::<f64>() / N as f64;
    assert!(correlation.abs() < 0.02, "{correlation}");

    let hits = run(&[&seed], |b, v| build::bernoulli(b, &v[0], &shape, 0, 0.3)).to_i64();
    assert!((hits.iter().sum::<i64>() as f64 / N as f64 - 0.3).abs() < 0.01);
    let ones = floats(&[N], &[1.0; N]);
    let kept = run(&[&ones, &seed], |b, v| build::dropout(b, &v[0], &v[1], 0, 0.25)).to_f64();
    assert!(kept.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-12));
    assert!((moments(&kept).0 - 1.0).abs() < 0.02);
    assert_eq!(run(&[&ones, &seed], |b, v| build::dropout(b, &v[0], &v[1], 0, 1.0)).get_f64(7), 0.0);
}
