//! Buckets: padded arguments, masks, cut results; few programs for many sizes.

use kiln::runtime::event::{self, Category};
use kiln::{Buckets, DType, Device, Generator, Options, Result, Tensor};
use std::sync::{Arc, Mutex};

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    let (a, b) = (got.to_host().unwrap().to_f64(), expected.to_host().unwrap().to_f64());
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        assert!(x == y || (x - y).abs() <= 1e-4 * (1.0 + y.abs()), "{what}: element {i} is {x}, not {y}");
    }
}

fn bucketed(buckets: Buckets) -> Options {
    Options { buckets: vec![buckets], ..Options::default() }
}

/// Below, at, between and above the buckets 4, 8 and 16.
const SIZES: [usize; 12] = [1, 3, 4, 5, 7, 8, 2, 9, 15, 16, 0, 11];

/// Calls a function of `[t, 8]` at many sizes; says how many programs there are.
fn compare(f: fn(&Tensor) -> Result<Tensor>, sizes: &[usize]) -> u64 {
    let fast = kiln::compile_with(f, bucketed(Buckets::powers_of_two(4, 16).at(0, 0)));
    for &t in sizes {
        let x = random(&[t, 8], t as u64);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("t = {t}"));
    }
    fast.stats().compiles
}

#[test]
fn what_works_place_by_place_needs_no_mask() {
    assert_eq!(compare(|x| x.gelu()?.softmax(-1), &SIZES), 3);
    assert_eq!(compare(|x| x.t()?.mul(2.0), &SIZES), 3);
    assert_eq!(compare(|x| x.sum(1)?.unsqueeze(0)?.exp(), &SIZES), 3);
}

#[test]
fn a_softmax_over_padded_tokens_with_a_mask() {
    let f = |x: &Tensor| {
        let mask = x.valid_mask(0)?.unsqueeze(1)?;
        mask.where_(x, f32::NEG_INFINITY)?.softmax(0)
    };
    assert_eq!(compare(f, &SIZES), 3);
}

#[test]
fn mean_pooling_with_a_mask() {
    let f = |x: &Tensor| {
        let mask = x.valid_mask(0)?.unsqueeze(1)?;
        mask.where_(x, 0.0)?.sum(0)?.div(x.valid_length(0)?.to_dtype(DType::F32)?)
    };
    assert_eq!(compare(f, &[1, 3, 4, 5, 7, 8, 2, 9, 15, 16, 11]), 3);
}

#[test]
fn without_the_mask_a_mean_sees_the_padding() {
    let f = |x: &Tensor| x.mean(0);
    let fast = kiln::compile_with(f, bucketed(Buckets::of([8]).at(0, 0)));
    let x = Tensor::ones([4, 2], DType::F32, Device::Cpu).unwrap();
    assert_eq!(fast.call(&x).unwrap().to_vec::<f32>().unwrap(), [0.5, 0.5], "as the docs say");
}

#[test]
fn causal_attention_needs_no_mask_and_full_attention_does() {
    let causal = |x: &Tensor| {
        let q = x.reshape((1, -1, 2, 4))?.transpose(1, 2)?;
        q.scaled_dot_product_attention(&q, &q, None, true, None)?.transpose(1, 2)?.reshape((x.size(0)?, 8))
    };
    assert_eq!(compare(causal, &[1, 3, 4, 5, 8, 9, 16, 11]), 3);
    let full = |x: &Tensor| {
        let q = x.reshape((1, x.size(0)?, 2, 4))?.transpose(1, 2)?;
        let mask = x.valid_mask(0)?.reshape((1, 1, 1, -1))?.expand((1, 2, x.size(0)?, x.size(0)?))?;
        let mixed = q.scaled_dot_product_attention(&q, &q, Some(&mask), false, None)?;
        mixed.transpose(1, 2)?.reshape((x.size(0)?, 8))
    };
    assert_eq!(compare(full, &[1, 3, 4, 5, 8, 9, 16, 11]), 3);
}

#[test]
fn beyond_the_largest_bucket_nothing_is_padded() {
    let f = |x: &Tensor| x.valid_mask(0)?.unsqueeze(1)?.where_(x, 0.0)?.sum(0);
    let fast = kiln::compile_with(f, bucketed(Buckets::of([4, 8]).at(0, 0)));
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let into = said.clone();
    let listening = event::listen(&[Category::Perf], move |event| into.lock().unwrap().push(event.to_string()));
    for t in [3, 7, 20, 30, 9, 8, 100] {
        let x = random(&[t, 8], t as u64);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("t = {t}"));
    }
    drop(listening);
    let beyond = "a size of 20 is beyond the buckets [4, 8] and is not padded";
    assert!(said.lock().unwrap().iter().any(|text| text.contains(beyond)), "{said:?}");
    // Two buckets, and one program for all larger sizes.
    assert_eq!(fast.stats().compiles, 3, "{:#?}", fast.programs());
}

#[test]
fn several_tensors_and_several_axes() {
    let f = |(x, y): &(Tensor, Tensor)| Ok((x.add(y)?, x.sum(-1)?, y.mul(2.0)?));
    let buckets = vec![Buckets::of([2, 4]).at(0, 0).at(1, 0), Buckets::multiples_of(3, 9).at(0, 1).at(1, -1)];
    let fast = kiln::compile_with(f, Options { buckets, ..Options::default() });
    for (b, t) in [(1, 1), (2, 3), (3, 2), (4, 7), (1, 9), (3, 3)] {
        let pair = (random(&[b, t], 1), random(&[b, t], 2));
        let (got, expected) = (fast.call(&pair).unwrap(), f(&pair).unwrap());
        assert_close(&got.0, &expected.0, "sum");
        assert_close(&got.1, &expected.1, "over padding, which is zeros");
        assert_close(&got.2, &expected.2, "double");
    }
    assert_eq!(fast.stats().compiles, 4);
    let message = fast.call(&(random(&[1, 2], 1), random(&[2, 2], 1))).unwrap_err().to_string();
    assert!(message.contains("axis 0 of tensor 1 is 2, but 1 elsewhere"), "{message}");
}

#[test]
fn equal_numbers_are_not_taken_for_the_padded_axis() {
    // The result's second axis is 8 like the bucket, but follows the weight.
    let weight = random(&[8, 8], 5);
    let f = move |x: &Tensor| x.matmul(&weight);
    let fast = kiln::compile_with(&f, bucketed(Buckets::of([8]).at(0, 0)));
    for t in [3, 8, 5] {
        let x = random(&[t, 8], 1);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), "matmul");
    }
    assert_eq!(fast.stats().compiles, 1);
}

#[test]
fn what_cannot_be_cut_is_an_error_that_says_so() {
    let doubled = kiln::compile_with(|x: &Tensor| x.repeat(&[2, 1]), bucketed(Buckets::of([8]).at(0, 0)));
    let message = doubled.call(&random(&[3, 8], 1)).unwrap_err().to_string();
    assert!(message.contains("axis 0 of result 0 has padded0*2 places"), "{message}");
    let line = line!() + 1;
    let numbers = |x: &Tensor| x.mul(x.dim(0)? as f64);
    let read = kiln::compile_with(numbers, bucketed(Buckets::of([8]).at(0, 0)));
    let message = read.call(&random(&[3, 8], 1)).unwrap_err().to_string();
    assert!(message.contains("as a number") && message.contains(&format!("buckets.rs:{line}")), "{message}");
    let nowhere = kiln::compile_with(|x: &Tensor| x.exp(), bucketed(Buckets::of([8])));
    assert!(nowhere.call(&random(&[3, 8], 1)).unwrap_err().to_string().contains("Buckets::at"));
    let other = |x: &Tensor| x.exp()?.valid_mask(0);
    let other = kiln::compile_with(other, bucketed(Buckets::of([8]).at(0, 0)));
    let message = other.call(&random(&[3, 8], 1)).unwrap_err().to_string();
    assert!(message.contains("only axes of arguments that have buckets"), "{message}");
}

#[test]
fn warming_up_makes_the_buckets_programs() {
    let fast = kiln::compile_with(|x: &Tensor| x.exp(), bucketed(Buckets::of([4, 8]).at(0, 0)));
    let examples = [random(&[2, 8], 1), random(&[7, 8], 1)];
    fast.warm_up(&examples).unwrap();
    assert_eq!(fast.stats().compiles, 2);
    for t in [1, 4, 5, 8] {
        fast.call(&random(&[t, 8], 1)).unwrap();
    }
    assert_eq!((fast.stats().compiles, fast.stats().hits), (2, 4));
}

#[test]
fn eagerly_nothing_is_padded_and_masks_are_all_true() {
    let f = |x: &Tensor| x.valid_mask(0)?.to_dtype(DType::I64)?.add(&x.valid_length(0)?);
    let x = random(&[3, 8], 1);
    assert_eq!(f(&x).unwrap().to_vec::<i64>().unwrap(), [4, 4, 4]);
    let options = Options { disable: true, ..bucketed(Buckets::of([8]).at(0, 0)) };
    assert_eq!(kiln::compile_with(f, options).call(&x).unwrap().to_vec::<i64>().unwrap(), [4, 4, 4]);
    let fast = kiln::compile_with(f, bucketed(Buckets::of([8]).at(0, 0)));
    assert_eq!(fast.call(&x).unwrap().to_vec::<i64>().unwrap(), [4, 4, 4]);
}

#[test]
fn what_is_cut_depends_on_settings() {
    let padded = || bucketed(Buckets::of([8]).at(0, 0));
    for first in [1, 0] {
        let setting = kiln::Setting::new(first);
        let own = setting.clone();
        let f = move |x: &Tensor| if own.get() == 1 { x.sum(..) } else { x.exp() };
        let fast = kiln::compile_with(f.clone(), padded());
        for turn in 0..6 {
            setting.set((first + turn) % 2);
            let x = random(&[3 + turn as usize % 3], turn);
            assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("{first}: turn {turn}"));
        }
        assert_eq!(fast.stats().fallbacks, 0, "{:?}", fast.stats());
    }
    // Whether a variable has a gradient is another such question, and whether gradients are recorded.
    let weight = kiln::Var::new(&random(&[1], 9)).requires_grad(true);
    let own = weight.clone();
    let f = move |x: &Tensor| match own.grad() {
        Some(slope) => x.mul(slope),
        None => x.sum(..),
    };
    let fast = kiln::compile_with(f.clone(), padded());
    for turn in 0..4 {
        weight.set_grad((turn % 2 == 1).then(|| random(&[1], turn))).unwrap();
        let x = random(&[5], turn);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("gradient {turn}"));
    }
    let f = |x: &Tensor| {
        let x = x.requires_grad();
        match x.sum(..)?.gradients(&[&x]) {
            Ok(_) => x.detach().exp(),
            Err(_) => x.detach().sum(..),
        }
    };
    let fast = kiln::compile_with(f, padded());
    for turn in 0..4 {
        let x = random(&[5], turn);
        let (got, expected) = match turn % 2 {
            0 => (fast.call(&x), f(&x)),
            _ => kiln::no_grad(|| (fast.call(&x), f(&x))),
        };
        assert_close(&got.unwrap(), &expected.unwrap(), &format!("recorded {turn}"));
    }
}
