//! Messages: what they say, and that they name the caller's line.

use kiln::{DType, Device, Error, Tensor};

fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(shape, DType::F32, Device::Cpu).unwrap()
}

/// The message of an error, which has to be of this line.
#[track_caller]
fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let text = result.unwrap_err().to_string();
    let here = format!(", at {}:{}", file!(), std::panic::Location::caller().line());
    assert!(text.ends_with(&here), "'{text}' does not end with '{here}'");
    text[..text.len() - here.len()].to_owned()
}

#[test]
fn messages_name_shapes_and_lines() {
    let (x, y) = (ones(&[2, 3]), ones(&[4, 5]));
    assert_eq!(message(x.matmul(&y)), "matmul: [2, 3] and [4, 5] do not agree (3 ≠ 4)");
    assert_eq!(message(&x + &y), "add: [2, 3] and [4, 5] do not agree (2 ≠ 4)");
    assert_eq!(message(x.mul(&y)), "mul: [2, 3] and [4, 5] do not agree (2 ≠ 4)");
    assert_eq!(message(x.sum(2)), "sum: axis 2 is out of range for [2, 3]");
    assert_eq!(message(x.sum([0, -2])), "sum: axis 0 is named twice for [2, 3]");
    assert_eq!(message(x.softmax(-3)), "softmax: axis -3 is out of range for [2, 3]");
    assert_eq!(message(x.reshape([4, 2])), "reshape: [2, 3] has 6 elements and cannot become [4, 2]");
    assert_eq!(message(x.reshape([4, -1])), "reshape: [2, 3] has 6 elements and cannot become [4, -1]");
    assert_eq!(message(x.reshape([-1, -1])), "reshape: [2, 3] has 6 elements and cannot become [-1, -1]");
    assert_eq!(message(x.i((0, 7))), "index: index 7 is out of range for an axis of 3");
    assert_eq!(message(x.narrow(0, 1, 5)), "narrow: 1..6 is no range of an axis of 2");
    assert_eq!(message(x.item::<f32>()), "item: [2, 3] does not hold exactly one element");
    assert_eq!(message(x.to_vec::<i64>()), "to_vec: f32 and i64 differ in dtype");
    assert_eq!(message(Tensor::cat(&[], 0)), "cat: takes at least one tensor");
    assert_eq!(message(Tensor::cat(&[x.clone(), y.clone()], 0)), "cat: [2, 3] and [4, 5] do not agree (3 ≠ 5)");
    assert_eq!(message(Tensor::zeros([2, -3], DType::F32, Device::Cpu)), "zeros: [2, -3] is no shape");
    assert_eq!(
        message(Tensor::from_vec(vec![1f32], [2, 2], Device::Cpu)),
        "from_vec: [2, 2] holds 4 elements, 1 were given"
    );
    assert_eq!(message(x.broadcast_to([3, 3])), "broadcast_to: [2, 3] and [3, 3] do not agree (2 ≠ 3)");
    assert_eq!(message(x.linear(&y, None)), "linear: [2, 3] and [4, 5] do not agree (3 ≠ 5)");
    assert_eq!(message(ones(&[0]).amax(0)), "amax: [0] has no elements to choose from");
    assert_eq!(message(x.conv2d(&y, None, &Default::default())), "conv2d: takes four axes, not [2, 3]");
    assert_eq!(message(x.masked_fill(&y, 0.0)), "masked_fill: takes a bool mask, not f32");
    assert_eq!(message(x.gather(0, &y)), "gather: takes i32 or i64 indices, not f32");
    assert_eq!(message(x.topk(9, 1, true)), "topk: count = 9, but the axis has not as many elements");
    assert_eq!(message(x.split(0, 0)), "split: size = 0, but it has to be 1 or more");
    let doubles = x.to_dtype(DType::F64).unwrap();
    assert_eq!(message(x.matmul(&doubles.t().unwrap())), "matmul: f32 and f64 differ in dtype");
}

#[test]
fn errors_of_primitive_ops_are_located_too() {
    let flags = Tensor::new([true, false], Device::Cpu).unwrap();
    let text = message(-&flags);
    assert!(text.starts_with("neg: "), "{text}");
    let text = message(ones(&[2]).bitand(ones(&[2])));
    assert!(text.starts_with("and: "), "{text}");
    let text = message(ones(&[2, 3]).group_norm(2, None, None, 1e-5));
    assert!(text.starts_with("group_norm: "), "{text}");
}

#[test]
fn indices_that_tensors_hold_are_checked() {
    let table = ones(&[3, 2]);
    let index = Tensor::new([0i64, 3], Device::Cpu).unwrap();
    assert_eq!(message(table.embedding(&index)), "embedding: index 3 is out of range for an axis of 3");
    let below = Tensor::new([0i64, -1], Device::Cpu).unwrap();
    assert_eq!(message(table.index_select(0, &below)), "index_select: index -1 is out of range for an axis of 3");
    assert!(table.scatter_add(0, &Tensor::new([[5i64, 5]], Device::Cpu).unwrap(), &ones(&[1, 2])).is_err());
}

#[test]
fn too_large_is_an_error_and_not_a_crash() {
    let huge = [1usize << 40, 1 << 40];
    assert!(matches!(Tensor::zeros(huge, DType::F32, Device::Cpu), Err(Error::TooLarge { .. })));
    let large = Tensor::zeros([1usize << 50], DType::F32, Device::Cpu);
    assert!(matches!(large, Err(Error::Runtime { .. })), "{large:?}");
    let wide = ones(&[1]).broadcast_to([1usize << 50]).unwrap();
    assert!(wide.contiguous().is_err());
    assert!((&wide + 1.0).is_err());
    assert!(ones(&[1]).broadcast_to(huge).is_err());
    assert!(Tensor::arange(f64::INFINITY, DType::F32, Device::Cpu).is_err());
    assert!(Tensor::arange_step(0, 1, 0, DType::F32, Device::Cpu).is_err());
    assert!(ones(&[2]).unfold(0, 3, 1).is_err());
    assert!(ones(&[2]).repeat(&[usize::MAX]).is_err());
}
