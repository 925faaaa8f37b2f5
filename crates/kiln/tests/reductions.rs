//! Reductions, scans, sorting, gathering and scattering, against sums done by hand.

use kiln::ir::ScatterKind;
use kiln::{DType, Device, Result, Tensor};

fn t<N: kiln::Nested>(nested: N) -> Tensor {
    Tensor::new(nested, Device::Cpu).unwrap()
}

fn f32s(tensor: Result<Tensor>) -> Vec<f32> {
    tensor.unwrap().to_vec().unwrap()
}

fn i64s(tensor: Result<Tensor>) -> Vec<i64> {
    tensor.unwrap().to_vec().unwrap()
}

#[test]
fn sums_means_and_extremes() {
    let x = t([[1f32, 2., 3.], [4., 5., 9.]]);
    assert_eq!(f32s(x.sum(0)), [5., 7., 12.]);
    assert_eq!(f32s(x.sum(-1)), [6., 18.]);
    assert_eq!(f32s(x.sum(..)), [24.]);
    assert_eq!(x.sum(..).unwrap().shape(), [0usize; 0]);
    assert_eq!(x.mean_keepdim(1).unwrap().shape(), [2, 1]);
    assert_eq!(f32s(x.mean(1)), [2., 6.]);
    assert_eq!(f32s(x.prod(1)), [6., 180.]);
    assert_eq!(f32s(x.amax(1)), [3., 9.]);
    assert_eq!(f32s(x.min([0, 1])), [1.]);
    assert_eq!(i64s(x.argmax(1)), [2, 2]);
    assert_eq!(i64s(x.argmin(..)), [0]);
    assert_eq!(x.argmax_keepdim(..).unwrap().shape(), [1, 1]);
    let (values, indices) = x.max_with_index(0).unwrap();
    assert_eq!((f32s(Ok(values)), i64s(Ok(indices))), (vec![4., 5., 9.], vec![1, 1, 1]));
    assert!(f32s(t([1f32, f32::NAN]).amax(0))[0].is_nan());
    assert_eq!(i64s(t([3i32, 4]).sum(0)), [7]);
    assert_eq!(i64s(t([true, true, false]).sum(0)), [2]);
    assert_eq!(f32s(t([1i64, 2]).mean(0)), [1.5]);
    assert!(t([[1f32]]).argmax([0, 1]).is_ok());
}

#[test]
fn variances_and_norms() {
    let x = t([1f32, 2., 3., 4.]);
    assert_eq!(f32s(x.var(0)), [5. / 3.]);
    assert_eq!(f32s(x.var_with(0, 0.0, true)), [1.25]);
    assert_eq!(f32s(x.std_with(0, 0.0, false)), [1.25f32.sqrt()]);
    assert_eq!(f32s(t([3f32, 4.]).norm(2.0, 0)), [5.]);
    assert_eq!(f32s(t([3f32, -4.]).norm(1.0, 0)), [7.]);
    assert_eq!(f32s(t([3f32, -4.]).norm(f64::INFINITY, 0)), [4.]);
    assert_eq!(f32s(t([3f32, 0.]).norm(0.0, 0)), [1.]);
    let far = (&t([1f32, 2., 3., 4.]) + 1e6).unwrap();
    assert!((f32s(far.var(0))[0] - 5. / 3.).abs() < 1e-3, "a variance far from zero keeps its digits");
    assert_eq!(f32s(t([1000f32, 1000.]).logsumexp(0)), [1000. + 2f32.ln()]);
    assert_eq!(f32s(t([f32::NEG_INFINITY; 2]).logsumexp(0)), [f32::NEG_INFINITY]);
}

#[test]
fn bools_and_scans() {
    let bools = |r: Result<Tensor>| r.unwrap().to_vec::<bool>().unwrap();
    let x = t([[0f32, 1.], [0., 0.]]);
    assert_eq!(bools(x.any(1)), [true, false]);
    assert_eq!(bools(x.all(0)), [false, false]);
    assert_eq!(bools(Tensor::zeros([0], DType::F32, Device::Cpu).unwrap().all(0)), [true]);
    assert_eq!(i64s(t([[1i64, 2], [3, 4]]).cumsum(0)), [1, 2, 4, 6]);
    assert_eq!(f32s(t([1f32, 2., 3.]).cumprod(0)), [1., 2., 6.]);
    assert_eq!(f32s(t([1f32, 3., 2.]).cummax(0)), [1., 3., 3.]);
    assert_eq!(f32s(t([3f32, 1., 2.]).cummin(0)), [3., 1., 1.]);
}

#[test]
fn sorting() {
    let x = t([[3f32, 1., 2.], [9., 7., 8.]]);
    let (values, indices) = x.sort(1, true).unwrap();
    assert_eq!((f32s(Ok(values)), i64s(Ok(indices))), (vec![3., 2., 1., 9., 8., 7.], vec![0, 2, 1, 0, 2, 1]));
    let (values, indices) = x.topk(2, -1, false).unwrap();
    assert_eq!((f32s(Ok(values)), i64s(Ok(indices))), (vec![1., 2., 7., 8.], vec![1, 2, 1, 2]));
    assert_eq!(i64s(t([2i64, 1, 2, 1]).argsort(0, false)), [1, 3, 0, 2]);
    assert_eq!(x.topk(0, 1, true).unwrap().0.shape(), [2, 0]);
}

#[test]
fn gathering_and_scattering() {
    let x = t([[1f32, 2., 3.], [4., 5., 6.]]);
    let index = t([[2i64, 0], [1, 1]]);
    assert_eq!(f32s(x.gather(1, &index)), [3., 1., 5., 5.]);
    assert_eq!(f32s(x.index_select(1, &t([2i32, 0]))), [3., 1., 6., 4.]);
    let zeros = Tensor::zeros([2, 3], DType::F32, Device::Cpu).unwrap();
    let updates = t([[1f32, 2.], [3., 4.]]);
    assert_eq!(f32s(zeros.scatter(1, &index, &updates)), [2., 0., 1., 0., 4., 0.]);
    assert_eq!(f32s(zeros.scatter_add(1, &index, &updates)), [2., 0., 1., 0., 7., 0.]);
    assert_eq!(f32s(x.scatter_reduce(1, &index, &updates, ScatterKind::Max)), [2., 2., 3., 4., 5., 6.]);
    assert_eq!(f32s(x.index_add(0, &t([1i64]), &t([[10f32, 10., 10.]]))), [1., 2., 3., 14., 15., 16.]);
    assert_eq!(i64s(t([2i64, 0]).one_hot(3)), [0, 0, 1, 1, 0, 0]);
    assert_eq!(i64s(t([[0f32, 1.], [2., 0.]]).nonzero()), [0, 1, 1, 0]);
    assert_eq!(f32s(x.masked_select(&x.gt(2.5).unwrap())), [3., 4., 5., 6.]);
    assert_eq!(f32s(x.tril(0)), [1., 0., 0., 4., 5., 0.]);
    assert_eq!(f32s(x.triu(1)), [0., 2., 3., 0., 0., 6.]);
    assert_eq!(f32s(Tensor::eye(2, DType::F32, Device::Cpu)), [1., 0., 0., 1.]);
}
