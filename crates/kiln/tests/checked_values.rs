//! Values that PyTorch refuses at run time are refused, eager and compiled, under the name of what was called.

use kiln::ir::ScatterKind;
use kiln::{Device, Error, Pool, Result, Tensor};

fn i64s<const N: usize>(values: [i64; N]) -> Tensor {
    Tensor::new(values, Device::Cpu).expect("a tensor")
}

/// What a function of an i64 tensor says, eager and compiled.
fn both(f: impl Fn(&Tensor) -> Result<Tensor> + Clone + Send + Sync + 'static, x: &Tensor) -> [Result<Tensor>; 2] {
    let fast = kiln::compile(f.clone());
    [f(x), fast.call(x)]
}

#[track_caller]
fn refused(f: impl Fn(&Tensor) -> Result<Tensor> + Clone + Send + Sync + 'static, x: &Tensor, message: &str) {
    for (side, got) in ["eager", "compiled"].into_iter().zip(both(f, x)) {
        let error = got.expect_err(side).to_string();
        assert!(error.starts_with(message), "{side}: {error}");
        assert!(error.contains("checked_values.rs"), "{side} names the caller: {error}");
    }
}

#[test]
fn integers_divided_by_zero() {
    let message = |op: &str| format!("{op}: integer division by zero");
    let x = i64s([7, 8, 9]);
    refused(|x| x % &i64s([1, 0, 2]), &x, &message("rem"));
    refused(|x| 5 % &(x - 8)?, &x, &message("rem"));
    refused(|x| x.fmod(i64s([1, 0, 2])), &x, &message("fmod"));
    refused(|x| x.remainder(i64s([1, 0, 2])), &x, &message("remainder"));
    refused(|x| x.div_floor(i64s([1, 0, 2])), &x, &message("div_floor"));
    refused(|x| x.div_trunc(i64s([1, 0, 2])), &x, &message("div_trunc"));
    refused(|x| x.div_floor(0), &x, &message("div_floor"));
    refused(|x| x.to_dtype(kiln::DType::U8)?.remainder(0), &x, &message("remainder"));
    // The divisor is what is computed from the argument.
    refused(|x| i64s([5]).remainder(&(x - 8)?), &x, &message("remainder"));
    let error = x.remainder(0).unwrap_err();
    assert!(matches!(error, Error::DivisionByZero { ref op, .. } if op == "remainder"), "{error:?}");
}

#[test]
fn what_divides_by_no_zero_is_not_refused() {
    let x = i64s([-7, 8, 9]);
    for got in both(|x| x.div_floor(i64s([2, -3, 4])), &x) {
        assert_eq!(got.unwrap().to_vec::<i64>().unwrap(), [-4, -3, 2]);
    }
    for got in both(|x| x.to_dtype(kiln::DType::F32)?.div_floor(0.0), &x) {
        assert_eq!(got.unwrap().to_vec::<f32>().unwrap(), [f32::NEG_INFINITY, f32::INFINITY, f32::INFINITY]);
    }
    for got in both(|x| x / &i64s([0, 2, 4]), &x) {
        assert_eq!(got.unwrap().to_vec::<f32>().unwrap(), [f32::NEG_INFINITY, 4.0, 2.25]);
    }
    // Outside of what is padded nothing is divided, though a fused kernel computes something there.
    for got in both(|x| Tensor::cat(&[x.remainder(i64s([2, 3, 5]))?, i64s([0; 5])], 0)? + 1, &x) {
        assert_eq!(got.unwrap().to_vec::<i64>().unwrap(), [2, 3, 5, 1, 1, 1, 1, 1]);
    }
}

#[test]
fn indices_out_of_range_have_their_own_number_and_function() {
    let table = Tensor::arange(6, kiln::DType::F32, Device::Cpu).unwrap().reshape([3, 2]).unwrap();
    let one = Tensor::new(1f32, Device::Cpu).unwrap();
    let t = table.clone();
    refused(move |x| t.embedding(x), &i64s([0, 3]), "embedding: index 3 is out of range for an axis of 3");
    let t = table.clone();
    refused(move |x| t.cross_entropy(x), &i64s([0, 2, 1]), "cross_entropy: index 2 is out of range for an axis of 2");
    let (t, v) = (table.clone(), one.clone());
    let put = move |x: &Tensor| t.index_put(&[x], &v, ScatterKind::Set);
    refused(put.clone(), &i64s([-7]), "index_put: index -7 is out of range for an axis of 3");
    refused(put.clone(), &i64s([3]), "index_put: index 3 is out of range for an axis of 3");
    for got in both(put, &i64s([-3])) {
        assert_eq!(got.unwrap().to_vec::<f32>().unwrap(), [1., 1., 2., 3., 4., 5.]);
    }
    // A column beyond the row would otherwise be an element of the next one.
    let (t, v) = (table.clone(), one);
    let put = move |x: &Tensor| t.index_put(&[&i64s([0]), x], &v, ScatterKind::Set);
    refused(put, &i64s([2]), "index_put: index 2 is out of range for an axis of 2");
    let t = table.clone();
    refused(move |x| t.i(x), &i64s([-4]), "index: index -4 is out of range for an axis of 3");
    refused(|x| x.one_hot(3), &i64s([0, 3]), "one_hot: index 3 is out of range for an axis of 3");
    refused(|x| x.one_hot(3), &i64s([0, -1]), "one_hot: index -1 is out of range for an axis of 3");
    let t = table.clone();
    refused(move |x| t.index_add(0, x, &t), &i64s([0, 1, 5]), "index_add: index 5 is out of range for an axis of 3");
}

#[test]
fn one_kernel_with_two_checks_names_the_one_that_failed() {
    let table = Tensor::arange(6, kiln::DType::F32, Device::Cpu).unwrap().reshape([3, 2]).unwrap();
    let f = move |x: &Tensor| table.embedding(&x.remainder(i64s([3, 4, 9]))?);
    refused(f.clone(), &i64s([0, 3, 1]), "embedding: index 3 is out of range");
    for got in both(f, &i64s([4, 5, 9])) {
        assert_eq!(got.unwrap().to_vec::<f32>().unwrap(), [2., 3., 2., 3., 0., 1.]);
    }
}

#[test]
fn pools_of_nothing_and_with_too_much_padding() {
    let empty = Tensor::zeros([0, 3, 8, 8], kiln::DType::F32, Device::Cpu).unwrap();
    let pool = Pool::new([2, 2]);
    for f in [Tensor::max_pool2d, Tensor::avg_pool2d] {
        let options = pool.clone();
        for got in both(move |x| f(x, &options), &empty) {
            assert_eq!(got.unwrap().shape(), [0, 3, 4, 4]);
        }
        let options = Pool { padding: [0, 2], ..Pool::new([3, 3]) };
        let x = Tensor::zeros([1, 1, 8, 8], kiln::DType::F32, Device::Cpu).unwrap();
        let error = f(&x, &options).unwrap_err().to_string();
        assert!(error.contains("padding of 2 on axis 1 is more than half of the window of 3"), "{error}");
        assert_eq!(f(&x, &Pool { padding: [1, 1], ..Pool::new([3, 3]) }).unwrap().shape(), [1, 1, 3, 3]);
    }
}
