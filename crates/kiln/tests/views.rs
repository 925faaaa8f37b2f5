//! Views share memory, keep the right elements, and refuse what does not fit.

use kiln::{DType, Device, Ellipsis, Error, Layout, Tensor, step};
use kiln_ir::examples::Random;

fn count(shape: &[usize]) -> Tensor {
    let elements: usize = shape.iter().product();
    Tensor::arange(elements, DType::I64, Device::Cpu).unwrap().reshape(shape).unwrap()
}

fn i64s(tensor: &Tensor) -> Vec<i64> {
    tensor.to_vec().unwrap()
}

#[test]
fn views_share_memory() {
    let x = count(&[2, 3, 4]);
    let views = [
        x.transpose(0, 2).unwrap(),
        x.permute([2, 0, 1]).unwrap(),
        x.narrow(1, 1, 2).unwrap(),
        x.select(0, 1).unwrap(),
        x.flip([0, 2]).unwrap(),
        x.unsqueeze(1).unwrap(),
        x.flatten(0, 1).unwrap(),
        x.reshape([4, 6]).unwrap(),
        x.unfold(2, 2, 1).unwrap(),
        x.slice(2, 0, 4, 3).unwrap(),
        x.i((.., 1, ..)).unwrap().broadcast_to([5, 2, 4]).unwrap(),
        x.diagonal(0).unwrap(),
    ];
    for view in views {
        assert!(view.buffer().same(x.buffer()), "{view:?}");
    }
    let copied = x.transpose(0, 2).unwrap().reshape([24]).unwrap();
    assert!(!copied.buffer().same(x.buffer()));
}

#[test]
fn views_have_the_right_elements() {
    let x = count(&[2, 3]);
    assert_eq!(i64s(&x.t().unwrap()), [0, 3, 1, 4, 2, 5]);
    assert_eq!(i64s(&x.flip(1).unwrap()), [2, 1, 0, 5, 4, 3]);
    assert_eq!(i64s(&x.flip([0, 1]).unwrap().t().unwrap()), [5, 2, 4, 1, 3, 0]);
    assert_eq!(i64s(&x.slice(1, 0, 3, 2).unwrap()), [0, 2, 3, 5]);
    assert_eq!(i64s(&x.flip(1).unwrap().slice(1, 0, 3, 2).unwrap()), [2, 0, 5, 3]);
    assert_eq!(i64s(&x.t().unwrap().reshape(6).unwrap()), [0, 3, 1, 4, 2, 5]);
    assert_eq!(i64s(&x.roll(1, 1).unwrap()), [2, 0, 1, 5, 3, 4]);
    assert_eq!(i64s(&x.roll(-1, 0).unwrap()), [3, 4, 5, 0, 1, 2]);
    assert_eq!(i64s(&count(&[3, 3]).diagonal(1).unwrap()), [1, 5]);
    assert_eq!(i64s(&count(&[3, 3]).diagonal(-1).unwrap()), [3, 7]);
    assert_eq!(count(&[3, 3]).diagonal(9).unwrap().shape(), [0]);
    assert_eq!(i64s(&count(&[2]).repeat(&[2, 2]).unwrap()), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(i64s(&count(&[2]).repeat_interleave(2, 0).unwrap()), [0, 0, 1, 1]);
}

#[test]
fn arithmetic_on_views_sees_their_elements() {
    let x = count(&[3, 4]);
    let sum =
        (x.t().unwrap().flip(0).unwrap() + x.i((.., step(.., 2))).unwrap().i((0, ..)).unwrap().i(0).unwrap()).unwrap();
    assert_eq!(i64s(&sum), [3, 7, 11, 2, 6, 10, 1, 5, 9, 0, 4, 8]);
    let square = (x.narrow(1, 1, 2).unwrap() * x.narrow(1, 2, 2).unwrap()).unwrap();
    assert_eq!(i64s(&square), [2, 6, 30, 42, 90, 110]);
}

#[test]
fn indexing() {
    let x = count(&[2, 3, 4]);
    assert_eq!(x.i(1).unwrap().shape(), [3, 4]);
    assert_eq!(x.i((0, 1..3, .., None)).unwrap().shape(), [2, 4, 1]);
    assert_eq!(i64s(&x.i((-1, -1, -2..)).unwrap()), [22, 23]);
    assert_eq!(i64s(&x.i((Ellipsis, 0)).unwrap()), [0, 4, 8, 12, 16, 20]);
    assert_eq!(i64s(&x.i((0, 0, ..=1)).unwrap()), [0, 1]);
    assert_eq!(i64s(&x.i((0, 0, ..=-1)).unwrap()), [0, 1, 2, 3]);
    assert_eq!(i64s(&x.i((0, 0, step(.., 3))).unwrap()), [0, 3]);
    let rows = Tensor::new([2i64, -3], Device::Cpu).unwrap();
    assert_eq!(i64s(&x.i((0, &rows, 0)).unwrap()), [8, 0]);
    assert_eq!(x.i((1, 1, 1)).unwrap().item::<i64>().unwrap(), 17);
    assert_eq!(x.i((.., 3..3)).unwrap().shape(), [2, 0, 4]);
    assert!(matches!(x.i((0, 3)), Err(Error::IndexOutOfRange { index: 3, size: 3, .. })));
    assert!(matches!(x.i((0, 2..5)), Err(Error::BadRange { start: 2, end: 5, size: 3, .. })));
    let (start, end) = (2, 1);
    assert!(matches!(x.i((0, start..end)), Err(Error::BadRange { .. })));
    assert!(matches!(x.i((0, 0, 0, 0)), Err(Error::TooManyIndices { count: 4, .. })));
}

#[test]
fn splitting_and_joining() {
    let x = count(&[5, 2]);
    let sizes = |parts: Vec<Tensor>| parts.iter().map(|p| p.shape()[0]).collect::<Vec<_>>();
    assert_eq!(sizes(x.split(2, 0).unwrap()), [2, 2, 1]);
    assert_eq!(sizes(x.chunk(2, 0).unwrap()), [3, 2]);
    assert_eq!(sizes(x.split_sizes(&[1, 4], 0).unwrap()), [1, 4]);
    assert!(x.split_sizes(&[1, 3], 0).is_err());
    let back = Tensor::cat(&x.split(2, 0).unwrap(), 0).unwrap();
    assert_eq!(i64s(&back), i64s(&x));
    let stacked = Tensor::stack(&[count(&[2]), count(&[2])], 1).unwrap();
    assert_eq!(i64s(&stacked), [0, 0, 1, 1]);
    let mixed = Tensor::cat(&[count(&[1]), Tensor::ones(1, DType::F32, Device::Cpu).unwrap()], 0).unwrap();
    assert_eq!(mixed.dtype(), DType::F32);
}

#[test]
fn empty_tensors_are_tensors() {
    let x = Tensor::zeros([2, 0, 3], DType::F32, Device::Cpu).unwrap();
    assert_eq!(x.t().unwrap().shape(), [2, 3, 0]);
    assert_eq!(x.flip(1).unwrap().reshape([0, 6]).unwrap().shape(), [0, 6]);
    assert_eq!(x.sum(1).unwrap().to_vec::<f32>().unwrap(), [0.; 6]);
    assert_eq!(x.transpose(0, 1).unwrap().contiguous().unwrap().to_vec::<f32>().unwrap(), [0f32; 0]);
    assert!(x.reshape([0, -1]).is_err());
    assert!(x.select(1, 0).is_err());
}

#[test]
fn layouts_over_foreign_memory_are_checked() {
    use kiln::{Layout, runtime::HostMemory};
    let made = |shape: &[usize], strides: &[isize], offset| {
        let buffer = HostMemory::allocate(64).unwrap();
        Tensor::from_buffer(buffer, Layout::new(shape, strides, offset), DType::F32)
    };
    assert!(made(&[4, 4], &[4, 1], 0).is_ok());
    assert!(made(&[4, 4], &[-4, -1], 15).is_ok());
    assert!(made(&[1, 4], &[isize::MAX, 1], 0).is_ok());
    assert!(made(&[0, 4], &[isize::MAX, isize::MIN], usize::MAX).is_ok());
    assert!(made(&[1 << 40], &[0], 3).is_ok());
    for (shape, strides, offset) in [
        (&[4, 4][..], &[4, 1][..], 1),
        (&[4, 4], &[-4, 1], 0),
        (&[2], &[isize::MAX], 0),
        (&[2, 2], &[isize::MAX, isize::MAX], 0),
        (&[2], &[isize::MIN], 0),
        (&[1], &[1], usize::MAX),
        (&[usize::MAX, usize::MAX], &[0, 0], 0),
        (&[usize::MAX], &[1], 0),
    ] {
        assert!(made(shape, strides, offset).is_err(), "{shape:?} {strides:?} {offset}");
    }
    let odd = made(&[1, 4], &[isize::MAX, 1], 0).unwrap();
    assert_eq!(odd.diagonal(0).unwrap().shape(), [1]);
    assert_eq!(odd.flip(0).unwrap().slice(0, 0, 1, usize::MAX >> 1).unwrap().shape(), [1, 4]);
}

/// A random view of a tensor; the same for the same random numbers.
fn random_view(x: &Tensor, random: &mut Random) -> Tensor {
    let rank = x.rank();
    if rank == 0 {
        return x.unsqueeze(0).unwrap();
    }
    let axis = random.below(rank);
    let size = x.shape()[axis];
    match random.below(8) {
        0 | 1 => x.flip([axis]).unwrap(),
        2 => {
            let start = random.below(size + 1);
            x.slice(axis, start, start + random.below(size - start + 1), 1 + random.below(3)).unwrap()
        }
        3 if size > 0 && rank < 4 => x.unfold(axis, 1 + random.below(size), 1 + random.below(3)).unwrap(),
        4 if rank >= 2 => x.diagonal(random.below(3) as i64 - 1).unwrap(),
        5 => x.transpose(axis, random.below(rank)).unwrap(),
        6 if size > 0 && rank > 1 => x.select(axis, random.below(size)).unwrap(),
        7 => x.flatten(0, rank - 1).unwrap(),
        _ => x.clone(),
    }
}

/// Elements of half a byte, seen through views that begin at any of them, forwards and backwards: as the same views of whole bytes.
#[test]
fn views_of_packed_elements_may_begin_anywhere() {
    for seed in 0..600 {
        let mut random = Random(seed);
        let shape: Vec<usize> = (0..1 + random.below(3)).map(|_| [0, 1, 2, 3, 4, 5, 7][random.below(7)]).collect();
        let mut wide = (count(&shape).remainder(16).unwrap() - 8i64).unwrap();
        let mut packed = wide.to_dtype(DType::I4).unwrap();
        for _ in 0..4 {
            let mut again = random.clone();
            (wide, packed) = (random_view(&wide, &mut random), random_view(&packed, &mut again));
            assert_eq!(packed.shape(), wide.shape(), "seed {seed}");
            assert_eq!(i64s(&packed.to_dtype(DType::I64).unwrap()), i64s(&wide), "seed {seed}, {:?}", wide.shape());
            let moved = packed.contiguous().unwrap();
            assert_eq!(i64s(&moved.to_dtype(DType::I64).unwrap()), i64s(&wide), "seed {seed}, {:?}", wide.shape());
        }
    }
}

#[test]
fn memory_of_packed_elements_begins_at_a_byte() {
    let buffer = kiln::runtime::HostMemory::allocate(2).unwrap();
    buffer.write_from_host(0, &[0x21, 0x43]).unwrap();
    let of = |strides: isize, offset: usize, n: usize| {
        Tensor::from_buffer(buffer.clone(), Layout::new(vec![n], vec![strides], offset), DType::I4)
    };
    assert_eq!(i64s(&of(-1, 3, 4).unwrap().to_dtype(DType::I64).unwrap()), [4, 3, 2, 1]);
    assert!(matches!(of(1, 1, 3), Err(Error::BadArgument { op: "from_buffer", name: "layout", .. })));
    assert!(matches!(of(-1, 3, 3), Err(Error::BadArgument { .. })));
}
