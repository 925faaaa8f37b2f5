//! Tensors as text, next to what PyTorch prints for the same.

use kiln::{DType, Device, Tensor};

fn text<N: kiln::Nested>(nested: N) -> String {
    Tensor::new(nested, Device::Cpu).unwrap().to_string()
}

#[test]
fn small_tensors() {
    assert_eq!(text([1f32, 2., 3.]), "tensor([1., 2., 3.])");
    assert_eq!(text([[1f32, 2.5], [-3., 4.]]), "tensor([[ 1.0000,  2.5000],\n        [-3.0000,  4.0000]])");
    assert_eq!(text(7.5f32), "tensor(7.5000)");
    assert_eq!(text(7i64), "tensor(7)");
    assert_eq!(text([1i64, -20, 300]), "tensor([  1, -20, 300])");
    assert_eq!(text([true, false]), "tensor([ True, False])");
    assert_eq!(text([1i32, 2]), "tensor([1, 2], dtype=i32)");
    assert_eq!(text([half::bf16::from_f32(1.0)]), "tensor([1.], dtype=bf16)");
    assert_eq!(text([1f64, 0.5]), "tensor([1.0000, 0.5000], dtype=f64)");
    let three = Tensor::arange(8, DType::I64, Device::Cpu).unwrap().reshape([2, 2, 2]).unwrap();
    assert_eq!(three.to_string(), "tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]])");
}

#[test]
fn special_values_and_ranges() {
    assert_eq!(text([f32::NAN, f32::INFINITY, 1.]), "tensor([nan, inf, 1.])");
    assert_eq!(text([f32::NEG_INFINITY, 1.5]), "tensor([  -inf, 1.5000])");
    assert_eq!(text([1e-5f32, 1.0]), "tensor([1.0000e-05, 1.0000e+00])");
    assert_eq!(text([1f32, 10000.]), "tensor([1.0000e+00, 1.0000e+04])");
    assert_eq!(text([0f32, 0.]), "tensor([0., 0.])");
    assert_eq!(text([0.001f32, 0.5]), "tensor([0.0010, 0.5000])");
    assert_eq!(text([1e10f32]), "tensor([1.0000e+10])");
}

#[test]
fn empty_tensors() {
    let empty = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, Device::Cpu).unwrap().to_string();
    assert_eq!(empty(&[0], DType::F32), "tensor([])");
    assert_eq!(empty(&[2, 0], DType::F32), "tensor([], size=[2, 0])");
    assert_eq!(empty(&[0], DType::I64), "tensor([], dtype=i64)");
}

#[test]
fn large_tensors_are_summarised() {
    let line = Tensor::arange(2000, DType::I64, Device::Cpu).unwrap();
    assert_eq!(line.to_string(), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])");
    let square = Tensor::arange(10000, DType::I64, Device::Cpu).unwrap().reshape([100, 100]).unwrap();
    let want = "tensor([[   0,    1,    2,  ...,   97,   98,   99],
        [ 100,  101,  102,  ...,  197,  198,  199],
        [ 200,  201,  202,  ...,  297,  298,  299],
        ...,
        [9700, 9701, 9702,  ..., 9797, 9798, 9799],
        [9800, 9801, 9802,  ..., 9897, 9898, 9899],
        [9900, 9901, 9902,  ..., 9997, 9998, 9999]])";
    assert_eq!(square.to_string(), want);
}

#[test]
fn long_rows_are_wrapped() {
    let row = Tensor::arange(30, DType::I64, Device::Cpu).unwrap();
    let want = "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,
        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29])";
    assert_eq!(row.to_string(), want);
}

#[test]
fn debug_says_what_it_is() {
    let x = Tensor::zeros([2, 3], DType::F32, Device::Cpu).unwrap();
    assert_eq!(format!("{x:?}"), "Tensor(f32[2, 3] on cpu)");
    assert_eq!(format!("{:?}", x.t().unwrap()), "Tensor(f32[3, 2] on cpu, strides [1, 3])");
}
