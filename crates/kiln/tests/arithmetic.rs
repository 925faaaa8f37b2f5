//! Pointwise operations: values, broadcasting, promotion, operators.

use half::{bf16, f16};
use kiln::{DType, Device, Result, Tensor};

fn t<N: kiln::Nested>(nested: N) -> Tensor {
    Tensor::new(nested, Device::Cpu).unwrap()
}

fn f32s(tensor: Result<Tensor>) -> Vec<f32> {
    tensor.unwrap().to_vec().unwrap()
}

#[test]
fn operators_between_tensors_numbers_and_results() {
    let (x, y) = (t([1f32, 2., 3.]), t([4f32, 5., 6.]));
    assert_eq!(f32s(&x + &y), [5., 7., 9.]);
    assert_eq!(f32s(x.clone() - y.clone()), [-3., -3., -3.]);
    assert_eq!(f32s(&x * &y + &x), [5., 12., 21.]);
    assert_eq!(f32s(&x + &x * &y), [5., 12., 21.]);
    assert_eq!(f32s(&y / 2.0), [2., 2.5, 3.]);
    assert_eq!(f32s(1.0 - &x), [0., -1., -2.]);
    assert_eq!(f32s(6.0 / x.clone()), [6., 3., 2.]);
    assert_eq!(f32s(&y % 4.0), [0., 1., 2.]);
    assert_eq!(f32s(-&x), [-1., -2., -3.]);
    assert_eq!(f32s(&x + 1), [2., 3., 4.]);
}

#[test]
fn bits_and_bools() {
    let (a, b) = (t([0b1100i32, 0b1010]), t([0b1010i32, 0b0110]));
    assert_eq!((&a & &b).unwrap().to_vec::<i32>().unwrap(), [0b1000, 0b0010]);
    assert_eq!((&a | &b).unwrap().to_vec::<i32>().unwrap(), [0b1110, 0b1110]);
    assert_eq!((&a ^ &b).unwrap().to_vec::<i32>().unwrap(), [0b0110, 0b1100]);
    assert_eq!((!&a).unwrap().to_vec::<i32>().unwrap(), [!0b1100, !0b1010]);
    let (p, q) = (t([true, true, false]), t([true, false, false]));
    assert_eq!((&p & &q).unwrap().to_vec::<bool>().unwrap(), [true, false, false]);
    assert_eq!((&p | &q).unwrap().to_vec::<bool>().unwrap(), [true, true, false]);
    assert_eq!((!p).unwrap().to_vec::<bool>().unwrap(), [false, false, true]);
    assert_eq!(a.shl(1).unwrap().to_vec::<i32>().unwrap(), [0b11000, 0b10100]);
    assert_eq!(t([-8i32]).shr(1).unwrap().to_vec::<i32>().unwrap(), [-4]);
}

#[test]
fn broadcasting_follows_numpy() {
    let column = t([[1f32], [2.], [3.]]);
    let row = t([10f32, 20.]);
    let sum = (&column + &row).unwrap();
    assert_eq!(sum.shape(), [3, 2]);
    assert_eq!(sum.to_vec::<f32>().unwrap(), [11., 21., 12., 22., 13., 23.]);
    let empty = Tensor::zeros([0, 2], DType::F32, Device::Cpu).unwrap();
    assert_eq!((&empty + &row).unwrap().shape(), [0, 2]);
    assert_eq!((&empty * 2.0).unwrap().to_vec::<f32>().unwrap(), [0f32; 0]);
}

#[test]
fn promotion_follows_pytorch() {
    let dtype = |r: Result<Tensor>| r.unwrap().dtype();
    let of = |dtype, shape: &[usize]| Tensor::ones(shape, dtype, Device::Cpu).unwrap();
    assert_eq!(dtype(&of(DType::I32, &[2]) + &of(DType::F16, &[2])), DType::F16);
    assert_eq!(dtype(&of(DType::F16, &[2]) + &of(DType::Bf16, &[2])), DType::F32);
    assert_eq!(dtype(&of(DType::I8, &[2]) * &of(DType::U8, &[2])), DType::I16);
    assert_eq!(dtype(&of(DType::F16, &[2]) + &of(DType::F64, &[])), DType::F16);
    assert_eq!(dtype(&of(DType::I64, &[2]) + 2.5), DType::F32);
    assert_eq!(dtype(&of(DType::U8, &[2]) + 2), DType::U8);
    assert_eq!(dtype(&of(DType::Bool, &[2]) + 1), DType::I64);
    assert_eq!(dtype(&of(DType::I32, &[2]) / 2), DType::F32);
    assert_eq!(dtype(of(DType::I64, &[2]).exp()), DType::F32);
    assert_eq!(dtype(of(DType::Bf16, &[2]).exp()), DType::Bf16);
    assert_eq!(dtype(of(DType::I32, &[2]).eq(of(DType::F64, &[2]))), DType::Bool);
    let mixed = (&t([1i32, 2]) + &t([half::f16::from_f32(0.5); 2])).unwrap();
    assert_eq!(mixed.to_vec::<f16>().unwrap(), [f16::from_f32(1.5), f16::from_f32(2.5)]);
}

#[test]
fn integer_division_and_remainders() {
    let x = t([7i64, -7, 7, -7]);
    let y = t([2i64, 2, -2, -2]);
    let i64s = |r: Result<Tensor>| r.unwrap().to_vec::<i64>().unwrap();
    assert_eq!(i64s(x.div_floor(&y)), [3, -4, -4, 3]);
    assert_eq!(i64s(x.div_trunc(&y)), [3, -3, -3, 3]);
    assert_eq!(i64s(x.remainder(&y)), [1, 1, -1, -1]);
    assert_eq!(i64s(x.fmod(&y)), [1, -1, 1, -1]);
    assert_eq!(f32s(t([7.5f32, -7.5]).remainder(2.0)), [1.5, 0.5]);
    assert_eq!(f32s(t([7.5f32, -7.5]).div_floor(2.0)), [3., -4.]);
    assert_eq!(i64s(t([3i64, -2]).pow(3)), [27, -8]);
    assert_eq!(i64s(t([3i64, -2]).pow(0)), [1, 1]);
    assert!(t([3i64]).pow(-1).is_err());
    assert_eq!(i64s(t([2i64, 3]).pow(t([10i64, 2]))), [1024, 9]);
    assert_eq!(f32s(t([4f32, 9.]).pow(0.5)), [2., 3.]);
}

#[test]
fn comparisons_selection_and_clamping() {
    let x = t([1f32, f32::NAN, 3.]);
    let bools = |r: Result<Tensor>| r.unwrap().to_vec::<bool>().unwrap();
    assert_eq!(bools(x.gt(1.0)), [false, false, true]);
    assert_eq!(bools(x.ne(1.0)), [false, true, true]);
    assert_eq!(bools(x.le(t([1f32, 1., 1.]))), [true, false, false]);
    assert_eq!(bools(x.is_nan()), [false, true, false]);
    assert_eq!(bools(t([f32::INFINITY, 1., f32::NAN]).is_inf()), [true, false, false]);
    assert_eq!(bools(t([f32::NEG_INFINITY, 1., f32::NAN]).is_finite()), [false, true, false]);
    assert_eq!(f32s(x.gt(2.0).unwrap().where_(&x, -1.0)), [-1., -1., 3.]);
    assert_eq!(f32s(t([-1f32, 0.5, 2.]).clamp(0.0, 1.0)), [0., 0.5, 1.]);
    assert_eq!(f32s(t([-1f32, 0.5, 2.]).minimum(1.0)), [-1., 0.5, 1.]);
    assert_eq!(f32s(t([1f32, 2.]).masked_fill(&t([true, false]), f64::NEG_INFINITY)), [f32::NEG_INFINITY, 2.]);
    assert_eq!(f32s(t([1f32, 5.]).maximum(t([3f32, 2.]))), [3., 5.]);
    assert_eq!(f32s(t([0f32, 10.]).lerp(&t([10f32, 20.]), 0.5)), [5., 15.]);
}

#[test]
fn every_unary_function_agrees_with_the_standard_library() {
    type Of = fn(&Tensor) -> Result<Tensor>;
    type Std = fn(f64) -> f64;
    let table: &[(&str, Of, Std)] = &[
        ("neg", Tensor::neg, |x| -x),
        ("abs", Tensor::abs, f64::abs),
        ("floor", Tensor::floor, f64::floor),
        ("ceil", Tensor::ceil, f64::ceil),
        ("round", Tensor::round, f64::round_ties_even),
        ("trunc", Tensor::trunc, f64::trunc),
        ("sqrt", Tensor::sqrt, f64::sqrt),
        ("rsqrt", Tensor::rsqrt, |x| 1.0 / x.sqrt()),
        ("recip", Tensor::recip, f64::recip),
        ("exp", Tensor::exp, f64::exp),
        ("exp2", Tensor::exp2, f64::exp2),
        ("expm1", Tensor::expm1, f64::exp_m1),
        ("log", Tensor::log, f64::ln),
        ("log2", Tensor::log2, f64::log2),
        ("log1p", Tensor::log1p, f64::ln_1p),
        ("sin", Tensor::sin, f64::sin),
        ("cos", Tensor::cos, f64::cos),
        ("tan", Tensor::tan, f64::tan),
        ("asin", Tensor::asin, f64::asin),
        ("acos", Tensor::acos, f64::acos),
        ("atan", Tensor::atan, f64::atan),
        ("tanh", Tensor::tanh, f64::tanh),
        ("sinh", Tensor::sinh, f64::sinh),
        ("cosh", Tensor::cosh, f64::cosh),
        ("asinh", Tensor::asinh, f64::asinh),
        ("atanh", Tensor::atanh, f64::atanh),
        ("square", Tensor::square, |x| x * x),
        ("sigmoid", Tensor::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        ("silu", Tensor::silu, |x| x / (1.0 + (-x).exp())),
        ("relu", Tensor::relu, |x| x.max(0.0)),
        ("softplus", Tensor::softplus, |x| x.exp().ln_1p()),
    ];
    let values = [-0.9f32, -0.5, -0.1, 0.1, 0.3, 0.7, 0.95];
    let x = t(values);
    for (name, of, std) in table {
        let got = f32s(of(&x));
        for (&v, g) in values.iter().zip(got) {
            let want = std(v as f64) as f32;
            let same = want.is_nan() && g.is_nan() || (g - want).abs() <= 4.0 * f32::EPSILON * want.abs().max(0.1);
            assert!(same, "{name}({v}) = {g}, not {want}");
        }
    }
}

#[test]
fn every_dtype_goes_in_and_out() {
    fn check<T: kiln::Element + PartialEq + std::fmt::Debug>(values: Vec<T>) {
        let x = Tensor::from_vec(values.clone(), values.len(), Device::Cpu).unwrap();
        assert_eq!(x.dtype(), T::DTYPE);
        assert_eq!(x.to_vec::<T>().unwrap(), values);
        assert_eq!(x.select(0, 1).unwrap().item::<T>().unwrap(), values[1]);
    }
    check(vec![1.5f32, -2.5, f32::INFINITY]);
    check(vec![1.5f64, f64::MIN_POSITIVE]);
    check(vec![f16::from_f32(0.5), f16::MAX]);
    check(vec![bf16::from_f32(0.5), bf16::MIN]);
    check(vec![1i8, i8::MIN]);
    check(vec![1i16, i16::MIN]);
    check(vec![1i32, i32::MIN]);
    check(vec![1i64, i64::MIN]);
    check(vec![1u8, u8::MAX]);
    check(vec![true, false]);
}

#[test]
fn casts_convert_as_documented() {
    let x = t([1.9f32, -1.9, 300.7, f32::NAN]);
    assert_eq!(x.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap(), [1, -1, 300, 0]);
    assert_eq!(x.to_dtype(DType::Bool).unwrap().to_vec::<bool>().unwrap(), [true; 4]);
    assert_eq!(t([258i64, -1]).to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), [2, 255]);
    assert!(x.to_dtype(DType::F32).unwrap().same(&x));
    let bits = t([1f32]).bitcast(DType::I32).unwrap();
    assert_eq!(bits.to_vec::<i32>().unwrap(), [0x3f80_0000]);
    let small = t([0.3f32, -2.0]).to_dtype(DType::F8E4M3).unwrap();
    assert_eq!(f32s(small.to_dtype(DType::F32)), [0.3125, -2.0]);
}
