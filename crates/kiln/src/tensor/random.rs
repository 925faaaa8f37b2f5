//! Random tensors. A [`Generator`] is a seed and a count of draws; each draw is a pure function of the two, so that the
//! same program draws the same numbers on every device and with any number of threads.

use crate::tensor::create::check_size;
use crate::tensor::eager;
use crate::tensor::shape::resolve_shape;
use crate::{DType, Device, Error, Result, Shape, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{BinaryOp, Dim, NodeId, Op, Scalar, Source};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// A source of random tensors.
///
/// ```
/// use kiln::{DType, Device, Generator};
/// let a = Generator::new(7).rand([2, 3], DType::F32, Device::Cpu)?;
/// let b = Generator::new(7).rand([2, 3], DType::F32, Device::Cpu)?;
/// assert_eq!(a.to_vec::<f32>()?, b.to_vec::<f32>()?);
/// # Ok::<(), kiln::Error>(())
/// ```
///
/// Clones share the generator. In a compiled function a draw takes a new key at each call, the same one that it would take
/// if the function ran eagerly.
#[derive(Debug, Clone)]
pub struct Generator(Arc<State>);

#[derive(Debug)]
struct State {
    seed: AtomicU64,
    draws: AtomicU64,
}

/// Writes a draw: key, shape, stream, dtype.
type Draw = fn(&mut GraphBuilder, &NodeId, &[Dim], u32, DType) -> Result<NodeId, kiln_ir::Error>;

/// The generator of [`Tensor::rand`] and the like. Its first seed is fixed, so that programs repeat unless told otherwise.
static DEFAULT: LazyLock<Generator> = LazyLock::new(|| Generator::new(0));

/// The generator of methods that take none.
pub(crate) fn default_generator() -> &'static Generator {
    &DEFAULT
}

/// Restarts the process's default generator.
///
/// ```
/// use kiln::{DType, Device, Tensor, manual_seed};
/// manual_seed(1);
/// let a = Tensor::randn([4], DType::F32, Device::Cpu)?;
/// manual_seed(1);
/// let b = Tensor::randn([4], DType::F32, Device::Cpu)?;
/// assert_eq!(a.to_vec::<f32>()?, b.to_vec::<f32>()?);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn manual_seed(seed: u64) {
    DEFAULT.reseed(seed);
}

impl Generator {
    /// Makes a generator with a seed.
    pub fn new(seed: u64) -> Generator {
        Generator(Arc::new(State { seed: AtomicU64::new(seed), draws: AtomicU64::new(0) }))
    }

    /// Returns whether both are the same generator.
    pub fn same(&self, other: &Generator) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Restarts from another seed.
    pub fn reseed(&self, seed: u64) {
        self.0.seed.store(seed, Ordering::Relaxed);
        self.0.draws.store(0, Ordering::Relaxed);
    }

    /// How many keys were drawn.
    pub(crate) fn draws(&self) -> u64 {
        self.0.draws.load(Ordering::Relaxed)
    }

    /// Goes back to an earlier count.
    pub(crate) fn set_draws(&self, draws: u64) {
        self.0.draws.store(draws, Ordering::Relaxed);
    }

    /// A new key for one draw.
    fn key(&self, device: Device, at: &Source) -> Result<Tensor> {
        if !KEPT.with_borrow(Kept::is_idle) {
            let again = KEPT.with_borrow_mut(|kept| kept.replay.as_mut().and_then(VecDeque::pop_front));
            let key = match again {
                Some(key) => key,
                None => self.new_key(device, at)?,
            };
            KEPT.with_borrow_mut(|kept| kept.records.iter_mut().for_each(|record| record.push(key.clone())));
            return Ok(key);
        }
        self.new_key(device, at)
    }

    fn new_key(&self, device: Device, at: &Source) -> Result<Tensor> {
        if crate::tensor::tracer::is_active() {
            return crate::tensor::tracer::random_key(self, device, at);
        }
        self.draw_key(device, at)
    }

    /// A new key for one draw, now: SplitMix64 over seed and count.
    pub(crate) fn draw_key(&self, device: Device, at: &Source) -> Result<Tensor> {
        let draw = self.0.draws.fetch_add(1, Ordering::Relaxed);
        let mut z =
            self.0.seed.load(Ordering::Relaxed).wrapping_add(draw.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Tensor::scalar_at(Scalar::int(DType::I64, (z ^ (z >> 31)) as i64), device, at)
    }

    /// Draws through a graph that gets the key and the shape.
    fn draw(
        &self,
        name: &'static str,
        shape: &[crate::Dim],
        dtype: DType,
        device: Device,
        write: impl Fn(&mut GraphBuilder, &NodeId, &[Dim]) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        check_size(name, shape, dtype, at)?;
        let key = self.key(device, at)?;
        let dims = crate::tensor::dim::expressions(shape);
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| write(b, &inputs[0], &dims);
        eager::composite(name, &[(&crate::tensor::dim::hints(shape)).into(), dtype.into()], &[&key], write, at)
    }

    fn float_draw(
        &self,
        name: &'static str,
        shape: impl Shape,
        dtype: DType,
        device: Device,
        write: Draw,
        at: &Source,
    ) -> Result<Tensor> {
        if !dtype.is_float() {
            return Err(Error::WrongDType { op: name, got: dtype, expected: "a float dtype", at: at.clone() });
        }
        let shape = resolve_shape(name, shape, at)?;
        self.draw(name, &shape, dtype, device, |b, key, dims| write(b, key, dims, 0, dtype), at)
    }

    /// Draws uniformly from 0 ≤ x < 1.
    #[track_caller]
    pub fn rand(&self, shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        self.float_draw("rand", shape, dtype, device, build::uniform, &Source::caller())
    }

    /// Draws from the normal distribution with mean 0 and variance 1.
    #[track_caller]
    pub fn randn(&self, shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        self.float_draw("randn", shape, dtype, device, build::normal, &Source::caller())
    }

    /// Draws integers from `low..high`, as i64.
    #[track_caller]
    pub fn randint(&self, low: i64, high: i64, shape: impl Shape, device: Device) -> Result<Tensor> {
        let at = Source::caller();
        let shape = resolve_shape("randint", shape, &at)?;
        let Some(range) = high.checked_sub(low).filter(|&n| n > 0) else {
            let (op, name, expected) = ("randint", "high", "it has to be above low, by less than 2⁶³");
            return Err(Error::BadArgument { op, name, value: high.into(), expected, at });
        };
        // 62 random bits modulo the range: the bias is below range / 2⁶².
        let bits = |b: &mut GraphBuilder, key: &NodeId, dims: &[Dim]| {
            let number = |b: &mut GraphBuilder, value: i64| build::full(b, Scalar::int(DType::I64, value), dims);
            let word = |b: &mut GraphBuilder, stream: u32| {
                let word = b.emit(Op::RandomBits { shape: dims.to_vec(), stream }, &[*key])?;
                let word = build::cast(b, &word, DType::I64)?;
                let mask = number(b, 0x7fff_ffff)?;
                b.emit(Op::Binary(BinaryOp::And), &[word, mask])
            };
            let (high, low) = (word(b, 0)?, word(b, 1)?);
            let shift = number(b, 31)?;
            let high = b.emit(Op::Binary(BinaryOp::Shl), &[high, shift])?;
            b.emit(Op::Binary(BinaryOp::Or), &[high, low])
        };
        let bits = self.draw("randint", &shape, DType::I64, device, bits, &at)?;
        bits.fmod(range)?.add(low)
    }

    /// Draws bools that are true with a probability.
    #[track_caller]
    pub fn bernoulli(&self, probability: f64, shape: impl Shape, device: Device) -> Result<Tensor> {
        let at = Source::caller();
        let shape = resolve_shape("bernoulli", shape, &at)?;
        let evenly = self.draw(
            "rand",
            &shape,
            DType::F32,
            device,
            |b, key, dims| build::uniform(b, key, dims, 0, DType::F32),
            &at,
        )?;
        evenly.lt(probability)
    }

    /// Returns a random permutation of 0, 1, … below `count`, as i64.
    #[track_caller]
    pub fn randperm(&self, count: usize, device: Device) -> Result<Tensor> {
        self.randint(0, i64::MAX, count, device)?.argsort(0, false)
    }

    /// Zeroes each element of `x` with a probability and scales the others up to keep the mean.
    #[track_caller]
    pub fn dropout(&self, x: &Tensor, probability: f64) -> Result<Tensor> {
        let at = Source::caller();
        if !(0.0..=1.0).contains(&probability) {
            let (op, name, expected) = ("dropout", "probability", "it has to be between 0 and 1");
            return Err(Error::BadArgument { op, name, value: probability.into(), expected, at });
        }
        let key = self.key(x.device(), &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::dropout(b, &inputs[0], &inputs[1], 0, probability);
        eager::composite("dropout", &[probability.into()], &[x, &key], write, &at)
    }
}

impl Tensor {
    /// Draws uniformly from 0 ≤ x < 1, with the default generator.
    #[track_caller]
    pub fn rand(shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        DEFAULT.rand(shape, dtype, device)
    }

    /// Draws from the normal distribution with mean 0 and variance 1, with the default generator.
    #[track_caller]
    pub fn randn(shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        DEFAULT.randn(shape, dtype, device)
    }

    /// Draws uniformly from 0 ≤ x < 1 in this tensor's shape, dtype and device, with the default generator.
    #[track_caller]
    pub fn rand_like(&self) -> Result<Tensor> {
        DEFAULT.rand(self.sizes(), self.dtype(), self.device())
    }

    /// Draws from the standard normal distribution in this tensor's shape, dtype and device, with the default generator.
    #[track_caller]
    pub fn randn_like(&self) -> Result<Tensor> {
        DEFAULT.randn(self.sizes(), self.dtype(), self.device())
    }

    /// Draws integers from `low..high` as i64, with the default generator.
    #[track_caller]
    pub fn randint(low: i64, high: i64, shape: impl Shape, device: Device) -> Result<Tensor> {
        DEFAULT.randint(low, high, shape, device)
    }

    /// Returns a random permutation of 0, 1, … below `count` as i64, drawn with the default generator.
    #[track_caller]
    pub fn randperm(count: usize, device: Device) -> Result<Tensor> {
        DEFAULT.randperm(count, device)
    }

    /// Zeroes each element with a probability and scales the others up to keep the mean, with the default generator.
    #[track_caller]
    pub fn dropout(&self, probability: f64) -> Result<Tensor> {
        DEFAULT.dropout(self, probability)
    }

    /// Draws from the normal distribution of a mean and a standard deviation, with the default generator.
    #[track_caller]
    pub fn normal(mean: f64, deviation: f64, shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        DEFAULT.randn(shape, dtype, device)?.mul(deviation)?.add(mean)
    }

    /// Draws uniformly from low ≤ x < high, with the default generator.
    #[track_caller]
    pub fn uniform(low: f64, high: f64, shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        DEFAULT.rand(shape, dtype, device)?.mul(high - low)?.add(low)
    }

    /// Draws 1 with the probability that each element gives and 0 otherwise, with the default generator.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([0f32, 1., 1., 0.], Device::Cpu)?;
    /// assert_eq!(x.bernoulli()?.to_vec::<f32>()?, [0., 1., 1., 0.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn bernoulli(&self) -> Result<Tensor> {
        let evenly = DEFAULT.rand(self.sizes(), DType::F32, self.device())?;
        evenly.lt(self.detach().to_dtype(DType::F32)?)?.to_dtype(self.dtype())
    }
}

/// The keys of a thread that are written down, or drawn once more.
#[derive(Default)]
struct Kept {
    /// One for each function under way whose keys are written down.
    records: Vec<Vec<Tensor>>,
    /// The next ones, of a function that runs again.
    replay: Option<VecDeque<Tensor>>,
}

impl Kept {
    fn is_idle(&self) -> bool {
        self.records.is_empty() && self.replay.is_none()
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Runs `f` and returns the keys that it drew, in their order.
pub(crate) fn recorded_keys<T>(f: impl FnOnce() -> T) -> (T, Vec<Tensor>) {
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            if std::thread::panicking() {
                KEPT.with_borrow_mut(|kept| kept.records.pop());
            }
        }
    }
    KEPT.with_borrow_mut(|kept| kept.records.push(Vec::new()));
    let ended = Ended;
    let result = f();
    std::mem::forget(ended);
    (result, KEPT.with_borrow_mut(|kept| kept.records.pop()).unwrap_or_default())
}

/// Runs `f`, which draws these keys; what it draws beyond them is new.
pub(crate) fn replayed_keys<T>(keys: &[Tensor], f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Kept>);
    impl Drop for Restore {
        fn drop(&mut self) {
            KEPT.set(self.0.take().unwrap_or_default());
        }
    }
    let replay = Some(keys.iter().cloned().collect());
    let _restore = Restore(Some(KEPT.replace(Kept { records: Vec::new(), replay })));
    f()
}
