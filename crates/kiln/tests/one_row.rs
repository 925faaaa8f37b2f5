//! One row times a weight, as decoding does it: against sums in f64, with and without something done to the sums.

use kiln::{DType, Device, Tensor};

/// Numbers that are neither equal nor small integers.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn sums_agree_for_every_length_and_width() {
    for k in [1, 3, 8, 15, 16, 17, 64, 72, 172, 255, 300, 352, 1000] {
        for n in [1, 7, 8, 9, 15, 64, 172] {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let row = Tensor::from_vec(numbers(k, 1), [1, k], Device::Cpu).unwrap();
                let weight = Tensor::from_vec(numbers(n * k, 2), [n, k], Device::Cpu).unwrap();
                let weight = weight.to_dtype(dtype).unwrap();
                let (a, w) = (row.to_vec::<f32>().unwrap(), weight.to_dtype(DType::F32).unwrap());
                let w = w.to_vec::<f32>().unwrap();
                let sum = |i: usize| -> f64 { (0..k).map(|j| f64::from(a[j]) * f64::from(w[i * k + j])).sum() };
                let fused = kiln::compile(|(row, weight): &(Tensor, Tensor)| {
                    let weight = weight.to_dtype(DType::F32)?;
                    let product = row.matmul(&weight.transpose(0, 1)?)?;
                    Ok((product.clone(), (product.tanh()? + 1.0)?))
                });
                let (product, finished) = fused.call(&(row.clone(), weight)).unwrap();
                let (product, finished) = (product.to_vec::<f32>().unwrap(), finished.to_vec::<f32>().unwrap());
                for i in 0..n {
                    let expected = sum(i);
                    let bound = 1e-6 * (k as f64).max(4.0);
                    assert!((f64::from(product[i]) - expected).abs() < bound, "{dtype} k {k} n {n}, column {i}");
                    let expected = expected.tanh() + 1.0;
                    assert!((f64::from(finished[i]) - expected).abs() < bound, "{dtype} k {k} n {n}, column {i}");
                }
            }
        }
    }
}

#[test]
fn rows_of_a_larger_matrix_are_read_where_they_lie() {
    let (n, k, width) = (24, 40, 100);
    let all = numbers(n * width, 3);
    let weight = Tensor::from_vec(all.clone(), [n, width], Device::Cpu).unwrap();
    let a = numbers(k, 4);
    let row = Tensor::from_vec(a.clone(), [1, k], Device::Cpu).unwrap();
    let fused = kiln::compile(move |(row, weight): &(Tensor, Tensor)| row.linear(&weight.narrow(1, 7, k)?, None));
    let product = fused.call(&(row, weight)).unwrap().to_vec::<f32>().unwrap();
    for i in 0..n {
        let expected: f64 = (0..k).map(|j| f64::from(a[j]) * f64::from(all[i * width + 7 + j])).sum();
        assert!((f64::from(product[i]) - expected).abs() < 1e-5, "column {i}");
    }
}
