//! The functions of neural networks, against plain loops written here.

use kiln::{Conv, DType, Device, Generator, Pool, Tensor};

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_host().unwrap().to_f64()
}

#[track_caller]
fn close(got: &Tensor, want: &[f64]) {
    let got = values(got);
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-5 + 1e-4 * w.abs(), "element {i}: {g}, not {w}");
    }
}

#[test]
fn matrix_products_of_every_rank() {
    let (a, b) = (random(&[2, 1, 3, 4], 1), random(&[5, 4, 2], 2));
    let product = a.matmul(&b).unwrap();
    assert_eq!(product.shape(), [2, 5, 3, 2]);
    let (x, y) = (values(&a), values(&b));
    let mut want = Vec::new();
    for n in 0..2 {
        for m in 0..5 {
            for i in 0..3 {
                for j in 0..2 {
                    want.push((0..4).map(|k| x[(n * 3 + i) * 4 + k] * y[(m * 4 + k) * 2 + j]).sum());
                }
            }
        }
    }
    close(&product, &want);
    let (v, w) = (random(&[4], 3), random(&[4], 4));
    assert_eq!(v.matmul(&w).unwrap().shape(), [0usize; 0]);
    assert_eq!(a.matmul(&v).unwrap().shape(), [2, 1, 3]);
    assert_eq!(v.matmul(&b).unwrap().shape(), [5, 2]);
    close(&a.matmul(&b.t().unwrap().t().unwrap()).unwrap(), &want);
    let linear = a.linear(&random(&[6, 4], 5), Some(&random(&[6], 6))).unwrap();
    assert_eq!(linear.shape(), [2, 1, 3, 6]);
    let empty = Tensor::zeros([3, 0], DType::F32, Device::Cpu).unwrap();
    assert_eq!(
        empty.matmul(&Tensor::zeros([0, 2], DType::F32, Device::Cpu).unwrap()).unwrap().to_vec::<f32>().unwrap(),
        [0.; 6]
    );
}

#[test]
fn softmax_and_norms() {
    let x = random(&[3, 7], 7);
    let v = values(&x);
    let mut want = Vec::new();
    let mut logs = Vec::new();
    for row in v.chunks(7) {
        let total: f64 = row.iter().map(|x| x.exp()).sum();
        want.extend(row.iter().map(|x| x.exp() / total));
        logs.extend(row.iter().map(|x| x - total.ln()));
    }
    close(&x.softmax(-1).unwrap(), &want);
    close(&x.log_softmax(1).unwrap(), &logs);
    close(&x.t().unwrap().softmax(0).unwrap().t().unwrap(), &want);

    let (weight, bias) = (random(&[7], 8), random(&[7], 9));
    let (w, b) = (values(&weight), values(&bias));
    let (mut layer, mut rms) = (Vec::new(), Vec::new());
    for row in v.chunks(7) {
        let mean = row.iter().sum::<f64>() / 7.0;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 7.0;
        let square = row.iter().map(|x| x * x).sum::<f64>() / 7.0;
        layer.extend((0..7).map(|i| (row[i] - mean) / (variance + 1e-5).sqrt() * w[i] + b[i]));
        rms.extend((0..7).map(|i| row[i] / (square + 1e-5).sqrt() * w[i]));
    }
    close(&x.layer_norm(1, Some(&weight), Some(&bias), 1e-5).unwrap(), &layer);
    close(&x.rms_norm(1, Some(&weight), 1e-5).unwrap(), &rms);
    let grouped = random(&[2, 4, 3], 10).group_norm(2, None, None, 1e-5).unwrap();
    let means = grouped.reshape([4, 6]).unwrap().mean(1).unwrap();
    close(&means, &[0.0; 4]);
}

#[test]
fn convolution_and_pooling() {
    let (x, w, bias) = (random(&[2, 4, 6, 5], 11), random(&[6, 2, 3, 2], 12), random(&[6], 13));
    let options = Conv { stride: [2, 1], padding: [1, 1], dilation: [1, 2], groups: 2, ..Conv::default() };
    let y = x.conv2d(&w, Some(&bias), &options).unwrap();
    assert_eq!(y.shape(), [2, 6, 3, 5]);
    let (xs, ws, bs) = (values(&x), values(&w), values(&bias));
    let mut want = Vec::new();
    for n in 0..2 {
        for o in 0..6 {
            for i in 0..3i64 {
                for j in 0..5i64 {
                    let mut sum = bs[o];
                    for c in 0..2 {
                        for p in 0..3i64 {
                            for q in 0..2i64 {
                                let (row, column) = (i * 2 + p - 1, j + q * 2 - 1);
                                if (0..6).contains(&row) && (0..5).contains(&column) {
                                    let channel = o / 3 * 2 + c;
                                    sum += xs[((n * 4 + channel) * 6 + row as usize) * 5 + column as usize]
                                        * ws[((o * 2 + c) * 3 + p as usize) * 2 + q as usize];
                                }
                            }
                        }
                    }
                    want.push(sum);
                }
            }
        }
    }
    close(&y, &want);
    assert_eq!(
        random(&[1, 2, 9], 1).conv1d(&random(&[3, 2, 4], 2), None, &Conv::default()).unwrap().shape(),
        [1, 3, 6]
    );
    let up = Conv { stride: [2, 2], output_padding: [1, 1], ..Conv::default() };
    let w = random(&[4, 3, 3, 3], 3);
    assert_eq!(x.conv_transpose2d(&w, None, &up).unwrap().shape(), [2, 3, 14, 12]);

    let count = Tensor::arange(16, DType::F32, Device::Cpu).unwrap().reshape([1, 1, 4, 4]).unwrap();
    close(&count.max_pool2d(&Pool::new([2, 2])).unwrap(), &[5., 7., 13., 15.]);
    close(&count.avg_pool2d(&Pool::new([2, 2])).unwrap(), &[2.5, 4.5, 10.5, 12.5]);
    close(&count.adaptive_avg_pool2d([1, 1]).unwrap(), &[7.5]);
    let padded = Pool { padding: [1, 1], stride: [2, 2], ..Pool::new([2, 2]) };
    assert_eq!(count.max_pool2d(&padded).unwrap().shape(), [1, 1, 3, 3]);
}

#[test]
fn attention_with_masks_and_shared_heads() {
    let (q, k, v) = (random(&[2, 4, 5, 8], 14), random(&[2, 2, 7, 8], 15), random(&[2, 2, 7, 6], 16));
    let y = q.scaled_dot_product_attention(&k, &v, None, true, None).unwrap();
    assert_eq!(y.shape(), [2, 4, 5, 6]);
    let (keys, widths) = (k.repeat_interleave(2, 1).unwrap(), v.repeat_interleave(2, 1).unwrap());
    let scores = (q.matmul(&keys.t().unwrap()).unwrap() / 8f64.sqrt()).unwrap();
    let hidden = Tensor::ones([5, 7], DType::F32, Device::Cpu).unwrap().triu(3).unwrap().to_dtype(DType::Bool).unwrap();
    let scores = scores.masked_fill(&hidden, f64::NEG_INFINITY).unwrap();
    let want = scores.softmax(-1).unwrap().matmul(&widths).unwrap();
    close(&y, &values(&want));
    let seen = hidden.logical_not().unwrap();
    close(&q.scaled_dot_product_attention(&k, &v, Some(&seen), false, None).unwrap(), &values(&want));
}

#[test]
fn losses_and_regularisation() {
    let logits = Tensor::new([[1f32, 2., 3.], [3., 2., 1.]], Device::Cpu).unwrap();
    let targets = Tensor::new([2i64, 0], Device::Cpu).unwrap();
    let total = 1f64.exp() + 2f64.exp() + 3f64.exp();
    close(&logits.cross_entropy(&targets).unwrap(), &[total.ln() - 3.0]);
    close(&logits.mse_loss(&logits.flip(1).unwrap()).unwrap(), &[(4.0 + 0.0 + 4.0) / 3.0]);
    let x = Tensor::ones([10000], DType::F32, Device::Cpu).unwrap();
    let dropped = Generator::new(1).dropout(&x, 0.25).unwrap();
    let zeros = dropped.eq(0.0).unwrap().sum(..).unwrap().item::<i64>().unwrap();
    assert!((2200..2800).contains(&zeros), "{zeros} of 10000 dropped");
    assert!((dropped.mean(..).unwrap().item::<f64>().unwrap() - 1.0).abs() < 0.03);
}

#[test]
fn resizing_padding_and_rotation() {
    use kiln::{PadMode, RopeStyle};
    let x = Tensor::new([[1f32, 2.], [3., 4.]], Device::Cpu).unwrap();
    close(&x.interpolate_nearest(&[4]).unwrap(), &[1., 1., 2., 2., 3., 3., 4., 4.]);
    close(&x.interpolate_linear(&[3], true).unwrap(), &[1., 1.5, 2., 3., 3.5, 4.]);
    close(&x.pad_axis(1, 1, 1, PadMode::Reflect).unwrap(), &[2., 1., 2., 1., 4., 3., 4., 3.]);
    close(&x.pad(&[(1, 0), (0, 1)], 9.0).unwrap(), &[9., 1., 2., 9., 3., 4., 9., 9., 9.]);
    let quarter = Tensor::new([[0f32], [0.]], Device::Cpu).unwrap();
    let turned = x.rope(&quarter, &(&quarter + 1.0).unwrap(), RopeStyle::Half).unwrap();
    close(&turned, &[-2., 1., -4., 3.]);
    close(&x.slice_scatter(&Tensor::new([[7f32, 8.]], Device::Cpu).unwrap(), 0, 1).unwrap(), &[1., 2., 7., 8.]);
    assert_eq!(x.unbind(0).unwrap().len(), 2);
    let v = Tensor::new([1f32, 2.], Device::Cpu).unwrap();
    close(&v.dot(&v).unwrap(), &[5.]);
    close(&v.outer(&v).unwrap(), &[1., 2., 2., 4.]);
    close(&v.l1_loss(&(&v + 3.0).unwrap()).unwrap(), &[3.]);
    close(&v.smooth_l1_loss(&(&v + 3.0).unwrap()).unwrap(), &[2.5]);
    let fair = Generator::new(5).bernoulli(0.3, [10000], Device::Cpu).unwrap().sum(..).unwrap().item::<i64>().unwrap();
    assert!((2700..3300).contains(&fair), "{fair} of 10000");
}

#[test]
fn random_numbers_look_random() {
    let generator = Generator::new(3);
    let x = generator.rand([100, 100], DType::F32, Device::Cpu).unwrap();
    let (low, high) = (x.min(..).unwrap().item::<f32>().unwrap(), x.max(..).unwrap().item::<f32>().unwrap());
    assert!(low >= 0.0 && high < 1.0 && high > 0.99 && low < 0.01);
    assert!((x.mean(..).unwrap().item::<f64>().unwrap() - 0.5).abs() < 0.01);
    let n = generator.randn([100, 100], DType::F32, Device::Cpu).unwrap();
    assert!(n.mean(..).unwrap().item::<f64>().unwrap().abs() < 0.05);
    assert!((n.std(..).unwrap().item::<f64>().unwrap() - 1.0).abs() < 0.05);
    let dice = generator.randint(1, 7, [10000], Device::Cpu).unwrap();
    assert_eq!(dice.min(..).unwrap().item::<i64>().unwrap(), 1);
    assert_eq!(dice.max(..).unwrap().item::<i64>().unwrap(), 6);
    let order = generator.randperm(50, Device::Cpu).unwrap();
    assert_ne!(order.to_vec::<i64>().unwrap(), (0..50).collect::<Vec<i64>>());
    assert_eq!(order.sort(0, false).unwrap().0.to_vec::<i64>().unwrap(), (0..50).collect::<Vec<i64>>());
    assert!(generator.randint(3, 3, [1], Device::Cpu).is_err());
    assert!(generator.rand([1], DType::I64, Device::Cpu).is_err());
    let again = Generator::new(3).rand([100, 100], DType::F32, Device::Cpu).unwrap();
    assert_eq!(again.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    let second = generator.rand([100, 100], DType::F32, Device::Cpu).unwrap();
    assert_ne!(second.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
}
