//! Random chains of views: on strides alone, and with a copy after every step, which has nothing to get wrong.

use kiln::{DType, Device, Result, Tensor};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

/// One random view, the same for every tensor of one shape and the same random numbers.
fn step(x: &Tensor, random: &mut Random) -> Result<Tensor> {
    let rank = x.rank();
    let axis = random.below(rank);
    let (kind, a, b) = (random.below(10), random.below(7), random.below(7));
    if rank == 0 {
        return x.unsqueeze(0)?.expand([3]);
    }
    let size = x.shape()[axis];
    match kind {
        0 => x.transpose(axis, a % rank),
        1 => x.flip(axis),
        2 => x.slice(axis, a.min(size), size, b + 1),
        3 if size > 0 => x.select(axis, a % size),
        4 if rank < 5 => x.unsqueeze(a % (rank + 1)),
        5 => x.squeeze(..),
        6 if rank > 1 => x.flatten(axis.min(rank - 2), axis.min(rank - 2) + 1),
        7 if size > 0 && rank < 5 => x.unfold(axis, a % size + 1, b + 1),
        8 if size == 1 => x.broadcast_to(
            x.shape().iter().enumerate().map(|(i, &n)| if i == axis { a + 1 } else { n }).collect::<Vec<_>>(),
        ),
        9 if size.is_multiple_of(2) && size > 0 => x.unflatten(axis, [2, -1]),
        _ => x.movedim(axis, b % rank),
    }
}

#[test]
fn views_agree_with_copies() {
    let mut longest = 0;
    for seed in 0..400 {
        let mut view = Tensor::arange(60, DType::I64, Device::Cpu).unwrap().reshape([3, 4, 5]).unwrap();
        let mut copy = view.clone();
        let mut history = Vec::new();
        for turn in 0..8 {
            let (mut one, mut other) = (Random(seed * 100 + turn), Random(seed * 100 + turn));
            view = step(&view, &mut one).unwrap();
            copy = step(&copy, &mut other).unwrap().contiguous().unwrap();
            // Memory of its own, so that the next step starts from plain strides.
            copy = Tensor::from_vec(copy.to_vec::<i64>().unwrap(), copy.shape(), Device::Cpu).unwrap();
            history.push(format!("{view:?}"));
            assert_eq!(view.shape(), copy.shape(), "seed {seed}: {history:?}");
            assert_eq!(view.to_vec::<i64>().unwrap(), copy.to_vec::<i64>().unwrap(), "seed {seed}: {history:?}");
            let sum = (&view + &view).unwrap().sum(..).unwrap().item::<i64>().unwrap();
            assert_eq!(sum, 2 * copy.to_vec::<i64>().unwrap().iter().sum::<i64>(), "seed {seed}: {history:?}");
            longest = longest.max(view.elements());
            if view.elements() > 10_000 {
                break;
            }
        }
    }
    assert!(longest > 200, "chains grow");
}
