//! Activations that are computed again: `checkpoint`, against the same without it.

mod listening;

use kiln::nn::{Dropout, Forward, LayerNorm, Linear, Module};
use kiln::{DType, Device, Options, Result, Tensor, Var, checkpoint};
use listening::slow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Module)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

impl Block {
    fn new(width: usize) -> Result<Block> {
        Ok(Block {
            norm: LayerNorm::new(width, 1e-5)?,
            up: Linear::new(width, 4 * width)?,
            down: Linear::new(4 * width, width)?,
            dropout: Dropout::new(0.25),
        })
    }

    fn run(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.dropout.forward(&self.up.forward(&self.norm.forward(x)?)?.gelu()?)?;
        x.add(&self.down.forward(&inner)?.tanh()?)
    }
}

/// The numbers of one generator go to whoever draws next: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    Plain,
    Each,
    Nested,
}

type Blocks = Arc<Vec<Arc<Block>>>;

fn forward(blocks: &Blocks, how: How, calls: &Arc<AtomicUsize>, x: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    let one = |block: &Arc<Block>| {
        let (block, calls) = (block.clone(), calls.clone());
        move |x: &Tensor| {
            calls.fetch_add(1, Ordering::Relaxed);
            block.run(x)
        }
    };
    match how {
        How::Plain => {
            for block in blocks.iter() {
                x = one(block)(&x)?;
            }
        }
        How::Each => {
            for block in blocks.iter() {
                x = checkpoint(one(block), &x)?;
            }
        }
        How::Nested => {
            for pair in blocks.chunks(2) {
                let pair: Vec<_> = pair.iter().map(one).collect();
                let pair = Arc::new(pair);
                x = checkpoint(
                    move |x: &Tensor| {
                        let mut x = x.clone();
                        for number in 0..pair.len() {
                            let pair = pair.clone();
                            x = checkpoint(move |x: &Tensor| pair[number](x), &x)?;
                        }
                        Ok(x)
                    },
                    &x,
                )?;
            }
        }
    }
    Ok(x)
}

/// The loss, the gradient of the input and those of all parameters; and the arena of the program, if there is one.
fn step(blocks: &Blocks, how: How, compiled: bool, calls: &Arc<AtomicUsize>) -> Result<(Vec<Vec<f32>>, usize)> {
    let x = Tensor::arange(64 * 32, DType::F32, Device::Cpu)?.reshape([64, 32])?.mul(0.37)?.sin()?;
    let parameters: Vec<Var> = blocks.iter().flat_map(|block| block.parameters()).collect();
    parameters.iter().for_each(Var::zero_grad);
    let (own, counted) = (blocks.clone(), calls.clone());
    let run = move |x: &Tensor| {
        let x = x.requires_grad();
        let loss = forward(&own, how, &counted, &x)?.square()?.mean(..)?;
        let gradient = loss.gradients(&[&x])?;
        let gradient = gradient.get(&x).cloned().unwrap_or_else(|| x.clone()).detach();
        forward(&own, how, &counted, &x.detach())?.square()?.mean(..)?.backward()?;
        Ok((loss.detach(), gradient))
    };
    kiln::manual_seed(11);
    let fast = kiln::compile_with(run.clone(), Options { fullgraph: true, ..Options::default() });
    let (loss, gradient) = if compiled { fast.call(&x)? } else { run(&x)? };
    let mut all = vec![loss.to_vec::<f32>()?, gradient.to_vec::<f32>()?];
    for parameter in &parameters {
        all.push(parameter.grad().expect("a gradient").to_vec::<f32>()?);
    }
    let explained = if compiled { fast.explain(&x)?.segments } else { Vec::new() };
    Ok((all, explained.iter().map(|segment| segment.arena_bytes).max().unwrap_or(0)))
}

#[test]
fn gradients_are_the_same_and_memory_is_less() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    kiln::manual_seed(5);
    let blocks: Blocks = Arc::new((0..6).map(|_| Block::new(32).map(Arc::new)).collect::<Result<_>>()?);
    for compiled in [false, true] {
        let calls = Arc::new(AtomicUsize::new(0));
        let (plain, before) = step(&blocks, How::Plain, compiled, &calls)?;
        let called = calls.swap(0, Ordering::Relaxed);
        assert!(compiled || called == 12, "{called}");
        for how in [How::Each, How::Nested] {
            let (got, arena) = step(&blocks, how, compiled, &calls)?;
            let called = calls.swap(0, Ordering::Relaxed);
            let wanted = if how == How::Each { 24 } else { 36 };
            assert!(compiled || called == wanted, "{how:?}: a block runs once more for its gradient: {called}");
            for (number, (a, b)) in got.iter().zip(&plain).enumerate() {
                match compiled {
                    // Kernels are the same ones.
                    false => assert_eq!(a, b, "{how:?}, {number}"),
                    true => {
                        let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                        assert!(far <= 1e-6, "{how:?}, {number}: {far:e} apart");
                    }
                }
            }
            if compiled {
                eprintln!("{how:?}: {before} bytes become {arena}");
                assert!(arena * 10 < before * 7, "{how:?}: an arena of {arena} bytes, {before} without");
            }
        }
    }
    Ok(())
}

#[test]
fn what_needs_no_gradient_is_just_called() -> Result<()> {
    let x = Tensor::ones(3, DType::F32, Device::Cpu)?;
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let f = move |x: &Tensor| {
        seen.fetch_add(1, Ordering::Relaxed);
        x.exp()
    };
    assert!(!kiln::no_grad(|| checkpoint(f.clone(), &x.requires_grad()))?.has_tape());
    assert!(!checkpoint(f.clone(), &x)?.has_tape());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    // Two arguments, two results, one of them an argument; a result that nobody asks for.
    let (a, b) = (x.requires_grad(), x.mul(2.0)?.requires_grad());
    let both = checkpoint(|(a, b): &(Tensor, Tensor)| Ok((a.mul(b)?, a.clone(), b.exp()?)), &(a.clone(), b.clone()))?;
    let gradients = both.0.add(&both.1)?.sum(..)?.gradients(&[&a, &b])?;
    assert_eq!(gradients.get(&a).unwrap().to_vec::<f32>()?, [3.; 3]);
    assert_eq!(gradients.get(&b).unwrap().to_vec::<f32>()?, [1.; 3]);
    Ok(())
}

/// A gradient outside of a compiled function goes through what it recomputes.
#[test]
fn gradients_go_through_a_compiled_forward_pass() -> Result<()> {
    let fast = kiln::compile(|x: &Tensor| checkpoint(|x: &Tensor| x.sin()?.exp(), x));
    let x = Tensor::new([0.5f32, -1.0], Device::Cpu)?.requires_grad();
    let got = fast.call(&x)?.sum(..)?.gradients(&[&x])?.get(&x).unwrap().to_vec::<f32>()?;
    let plain = x.sin()?.exp()?.sum(..)?.gradients(&[&x])?.get(&x).unwrap().to_vec::<f32>()?;
    assert!(got.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} and {plain:?}");
    Ok(())
}

/// A training step under a budget of memory: less of it, the same bits.
#[test]
fn cheap_values_are_computed_again_under_a_budget() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    kiln::manual_seed(5);
    let blocks: Blocks = Arc::new((0..6).map(|_| Block::new(32).map(Arc::new)).collect::<Result<_>>()?);
    let parameters: Vec<Var> = blocks.iter().flat_map(|block| block.parameters()).collect();
    let x = Tensor::arange(64 * 32, DType::F32, Device::Cpu)?.reshape([64, 32])?.mul(0.37)?.sin()?;
    let mut arenas = Vec::new();
    let mut results: Vec<Vec<Vec<f32>>> = Vec::new();
    for memory_budget in [None, Some(1 << 30), Some(0)] {
        let own = blocks.clone();
        let run = move |x: &Tensor| {
            let loss = forward(&own, How::Plain, &Arc::default(), x)?.square()?.mean(..)?;
            loss.backward()?;
            Ok(loss.detach())
        };
        let fast = kiln::compile_with(run, Options { fullgraph: true, memory_budget, ..Options::default() });
        parameters.iter().for_each(Var::zero_grad);
        kiln::manual_seed(11);
        let mut all = vec![fast.call(&x)?.to_vec::<f32>()?];
        for parameter in &parameters {
            all.push(parameter.grad().expect("a gradient").to_vec::<f32>()?);
        }
        results.push(all);
        let explained = fast.explain(&x)?;
        arenas.push(explained.segments[0].arena_bytes);
    }
    eprintln!("arenas: {arenas:?}");
    assert_eq!(arenas[0], arenas[1], "it fits");
    assert!(arenas[2] * 10 <= arenas[0] * 6, "{arenas:?}");
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
    Ok(())
}

#[test]
fn a_gradient_has_a_gradient() -> Result<()> {
    let x = Tensor::new([1f64, 2.0], Device::Cpu)?.requires_grad();
    let y = checkpoint(|x: &Tensor| x.mul(x)?.mul(x), &x.mul(1.0)?)?;
    let slope = y.sum(..)?.gradients_on_tape(&[&x])?.get(&x).unwrap().clone();
    assert_eq!(slope.to_vec::<f64>()?, [3.0, 12.0]);
    assert_eq!(slope.sum(..)?.gradients(&[&x])?.get(&x).unwrap().to_vec::<f64>()?, [6.0, 12.0]);
    // Of one tensor that is given twice, too.
    let y = checkpoint(|(x, z): &(Tensor, Tensor)| x.mul(x)?.mul(z), &(x.clone(), x.clone()))?;
    let slope = y.sum(..)?.gradients_on_tape(&[&x])?.get(&x).unwrap().clone();
    assert_eq!(slope.to_vec::<f64>()?, [3.0, 12.0]);
    assert_eq!(slope.sum(..)?.gradients(&[&x])?.get(&x).unwrap().to_vec::<f64>()?, [6.0, 12.0]);
    Ok(())
}

/// A budget that cannot be met, or that says nothing about symbolic sizes, is not passed over in silence.
#[test]
fn a_budget_that_is_not_met_is_reported() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // No program of an earlier run is found on disk: that one was reported when it was made.
    let own = f64::from(std::process::id()) + std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
    let f = move |x: &Tensor| x.matmul(x)?.mul(own)?.cumsum(0)?.matmul(x);
    let x = Tensor::ones([40, 40], DType::F32, Device::Cpu)?;
    let fast = kiln::compile_with(f, Options { memory_budget: Some(1), ..Options::default() });
    let said = slow(|| fast.call(&x).map(|_| ()))?;
    assert!(said.contains("more than the memory budget of 1"), "{said}");
    // A second size makes it a program of any.
    let said = slow(|| fast.call(&Tensor::ones([24, 24], DType::F32, Device::Cpu)?).map(|_| ()))?;
    assert!(said.contains("the memory budget of 1 bytes is ignored"), "{said}");
    Ok(())
}

/// Under a budget weights are still packed for all products that read them.
#[test]
fn frozen_weights_are_packed_under_a_budget() -> Result<()> {
    let dims = "{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}";
    let mut text = format!("graph(%0: f32[64, 64], %1: f32[64, 64]) {{\n  %2: f32[64, 64] = dot %0, %1 {dims}\n");
    for at in 3..14 {
        text += &format!("  %{at}: f32[64, 64] = dot %{}, %0 {dims}\n", at - 1);
    }
    text += &format!("  %14: f32[64, 64] = dot %13, %1 {dims}\n  return %14\n}}");
    let graph = kiln::ir::Graph::parse(&text).expect("a graph");
    let memory = |memory_budget: Option<usize>| {
        let compile = kiln::CompileOptions { memory_budget, ..Default::default() };
        let options = kiln::FreezeOptions { compile, pack: kiln::PackWeights::Always, ..Default::default() };
        let memory = kiln::FrozenGraph::new(&graph, &[], &[false, true], &options)?.memory();
        Ok::<_, kiln::Error>((memory.packed_bytes, memory.prepared_bytes, memory.unread))
    };
    assert!(memory(None)?.0 > 0);
    assert_eq!(memory(Some(1))?, memory(None)?);
    Ok(())
}
