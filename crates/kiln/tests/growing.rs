//! Loops over ever new shapes: right at every size, and compiled a few times, not every time.

use kiln::{DType, Device, Result, Tensor, runtime::kernel_cache};

/// Kernels compiled while `body` runs.
fn compiled(body: impl FnOnce()) -> u64 {
    let before = kernel_cache::stats().misses;
    body();
    kernel_cache::stats().misses - before
}

fn count(shape: &[usize]) -> Tensor {
    let elements: usize = shape.iter().product();
    let values: Vec<f32> = (0..elements).map(|i| (i % 7) as f32 - 3.0).collect();
    Tensor::from_vec(values, shape, Device::Cpu).unwrap()
}

fn f32s(tensor: Result<Tensor>) -> Vec<f32> {
    tensor.unwrap().to_vec().unwrap()
}

// One test, so that nothing else compiles meanwhile.
#[test]
fn growing_shapes_compile_a_few_times() {
    let sizes = || (2..60).chain([2, 1, 0, 200]);
    let made = compiled(|| {
        for n in sizes() {
            let x = count(&[3, n]);
            let want: Vec<f32> = x.to_vec::<f32>().unwrap().iter().map(|v| v * v + 1.0).collect();
            assert_eq!(f32s(x.square().unwrap() + 1.0), want, "{n}");
        }
    });
    assert!(made < 30, "{made} kernels for x² + 1");

    let made = compiled(|| {
        for n in sizes() {
            let (x, row) = (count(&[4, n]), count(&[n]));
            let sum = f32s(&x + &row);
            let (x, row) = (x.to_vec::<f32>().unwrap(), row.to_vec::<f32>().unwrap());
            assert!((0..4 * n).all(|i| sum[i] == x[i] + row[i % n]), "{n}");
        }
    });
    assert!(made < 20, "{made} kernels for a broadcast sum");

    let made = compiled(|| {
        for n in sizes() {
            let rows = f32s(count(&[n, 5]).softmax(0).unwrap().sum(0));
            let want = if n == 0 { 0.0 } else { 1.0 };
            assert!(rows.iter().all(|r| (r - want).abs() < 1e-5), "{n}: {rows:?}");
            let total = f32s(count(&[n, n]).sum(..))[0];
            assert_eq!(total, count(&[n, n]).to_vec::<f32>().unwrap().iter().sum::<f32>(), "{n}");
        }
    });
    assert!(made < 60, "{made} kernels for softmax and sums");

    let made = compiled(|| {
        for n in sizes() {
            let (a, b) = (count(&[n, 3]), count(&[3, n + 2]));
            let product = f32s(a.matmul(&b));
            let (a, b) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
            for (i, got) in product.iter().enumerate() {
                let (row, column) = (i / (n + 2), i % (n + 2));
                let want: f32 = (0..3).map(|k| a[row * 3 + k] * b[k * (n + 2) + column]).sum();
                assert_eq!(*got, want, "{n}: [{row}, {column}]");
            }
        }
    });
    assert!(made < 20, "{made} kernels for products");

    let made = compiled(|| {
        let mut cache = count(&[1, 8]);
        for n in 2..60 {
            cache = Tensor::cat(&[cache, count(&[1, 8])], 0).unwrap();
            assert_eq!(cache.shape(), [n, 8]);
        }
        assert_eq!(f32s(cache.mean(0)), f32s(count(&[1, 8]).mean(0)));
    });
    assert!(made < 25, "{made} kernels for a growing cache");

    // Sizes that were equal and are so no more.
    for (n, m) in (3..20).map(|n| (n, n)).chain((3..20).map(|n| (n, n + 1))).chain([(7, 7)]) {
        let sum = count(&[n, m]).add(count(&[n, m]).t().unwrap().contiguous().unwrap().t().unwrap()).unwrap();
        assert_eq!(f32s(sum.sub(count(&[n, m]))), count(&[n, m]).to_vec::<f32>().unwrap());
        assert_eq!(count(&[n, m]).mean(1).unwrap().shape(), [n]);
        assert!(
            Tensor::zeros([n, m], DType::F32, Device::Cpu).unwrap().to_vec::<f32>().unwrap().iter().all(|v| *v == 0.0)
        );
    }
}
