//! Options of compiled functions.

use crate::{Buckets, PackWeights};
use kiln_ir::Symbol;
use kiln_kernels::{Numerics, Precision};
use std::ops::{Bound, RangeBounds};
use std::time::Duration;

/// When sizes of the arguments become symbols, so that one program serves many sizes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Dynamic {
    /// Never: one program per shape.
    Static,
    /// At the second compile, the sizes that have changed.
    #[default]
    Automatic,
    /// At the first compile, every size that can.
    Always,
    /// At the first compile, the declared sizes; others as with [`Dynamic::Automatic`].
    Declared(Vec<Declared>),
}

impl Dynamic {
    /// Declares a size with a name and a range, which may include 0 and 1; [`Declared::at`] says of which axis. An argument
    /// outside of the range is an error.
    ///
    /// ```
    /// use kiln::{DType, Device, Dynamic, Options, Tensor};
    /// let options = Options { dynamic: Dynamic::range("t", 0..=4096).at(0, 1).into(), ..Options::default() };
    /// let fast = kiln::compile_with(|x: &Tensor| x.softmax(-1), options);
    /// for t in [3, 0, 1, 4096] {
    ///     assert_eq!(fast.call(&Tensor::zeros([2, t], DType::F32, Device::Cpu)?)?.shape(), [2, t]);
    /// }
    /// assert_eq!(fast.stats().compiles, 1);
    /// let message = fast.call(&Tensor::zeros([2, 5000], DType::F32, Device::Cpu)?).unwrap_err().to_string();
    /// assert!(message.contains("t is 5000, but declared as 0..=4096"), "{message}");
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn range(name: &str, sizes: impl RangeBounds<usize>) -> Declared {
        let least = match sizes.start_bound() {
            Bound::Included(&least) => least,
            Bound::Excluded(&below) => below.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let most = match sizes.end_bound() {
            Bound::Included(&most) => Some(most),
            Bound::Excluded(&above) => Some(above.saturating_sub(1)),
            Bound::Unbounded => None,
        };
        Declared { name: name.to_owned(), symbol: symbol(name), least, most, places: Vec::new() }
    }

    /// Declares several sizes, each with its name and range.
    pub fn declared(sizes: impl IntoIterator<Item = Declared>) -> Dynamic {
        Dynamic::Declared(sizes.into_iter().collect())
    }
}

/// A size with a name and a range; see [`Dynamic::range`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    pub(super) name: String,
    /// What graphs call it; none where the name is not one for them, which then gets another.
    pub(super) symbol: Option<Symbol>,
    pub(super) least: usize,
    pub(super) most: Option<usize>,
    /// Tensors and axes.
    pub(super) places: Vec<(usize, i64)>,
}

impl Declared {
    /// Declares the size of an axis of a tensor, given by its number among the tensors of the arguments. If this is called
    /// for several axes, their sizes must be equal. Negative axes count from the end.
    pub fn at(mut self, tensor: usize, axis: i64) -> Declared {
        self.places.push((tensor, axis));
        self
    }

    pub(super) fn is_at(&self, tensor: usize, axis: usize, rank: usize) -> bool {
        self.places.iter().any(|&(t, a)| t == tensor && kiln_ir::build::axis(rank, a) == Some(axis))
    }
}

impl From<Declared> for Dynamic {
    fn from(declared: Declared) -> Dynamic {
        Dynamic::Declared(vec![declared])
    }
}

/// The symbol of a name, unless kernels (`i0`) or undeclared sizes (`s0`) have such names.
fn symbol(name: &str) -> Option<Symbol> {
    let taken = name.strip_prefix(['i', 's']).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    Symbol::new(name).filter(|_| !taken)
}

/// How much is done for speed at the first call. The names are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Fused kernels.
    #[default]
    Default,
    /// Also resolves launches once: their arguments are kept, and results reuse the memory of earlier results that have
    /// been dropped. A call allocates nothing but the handles of its results.
    ReduceOverhead,
    /// Also picks the fastest of several variants of each kernel, measured on the arguments of the first call; the choice
    /// is kept in the disk cache.
    MaxAutotune,
    /// [`Mode::MaxAutotune`] without the launch list of [`Mode::ReduceOverhead`].
    MaxAutotuneNoCudagraphs,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 4] = [Mode::Default, Mode::ReduceOverhead, Mode::MaxAutotune, Mode::MaxAutotuneNoCudagraphs];

    /// Returns PyTorch's name of the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::ReduceOverhead => "reduce-overhead",
            Mode::MaxAutotune => "max-autotune",
            Mode::MaxAutotuneNoCudagraphs => "max-autotune-no-cudagraphs",
        }
    }

    /// Returns the mode of this name.
    ///
    /// ```
    /// use kiln::Mode;
    /// assert_eq!(Mode::named("max-autotune"), Some(Mode::MaxAutotune));
    /// assert_eq!(Mode::named("fast"), None);
    /// ```
    pub fn named(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Whether kernels are measured.
    pub(super) fn tunes(self) -> bool {
        matches!(self, Mode::MaxAutotune | Mode::MaxAutotuneNoCudagraphs)
    }

    /// Whether launches are resolved once.
    pub(super) fn replays(self) -> bool {
        matches!(self, Mode::MaxAutotune | Mode::ReduceOverhead)
    }
}

/// Options of [`crate::compile_with`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether a graph break, such as reading elements, is an error that names the line.
    pub fullgraph: bool,
    /// When sizes become symbols.
    pub dynamic: Dynamic,
    /// Sizes that arguments are padded to, so that few programs are made; results are cut to their valid part. See
    /// [`Buckets`] for what the function has to do about the padding. A size larger than the largest bucket is not padded:
    /// its program is made as [`Options::dynamic`] says.
    pub buckets: Vec<Buckets>,
    /// How much is done for speed at the first call.
    pub mode: Mode,
    /// How long [`Mode::MaxAutotune`] may measure for one program.
    pub tuning_budget: Duration,
    /// Where floats shorter than f32 are rounded.
    pub numerics: Numerics,
    /// The precision of f32 products. Kernels may use a lower one where that is faster; on the CPU products with quantised
    /// weights do.
    pub precision: Precision,
    /// Bytes of temporaries that a program may take: beyond it, cheap values that wait long for a use are computed again there, as far as that
    /// helps. Results are the same within the rounding of fused code; compiling takes longer. An event of the category `perf` says where it is not met. What is recomputed as a whole is [`crate::checkpoint`]'s. For programs of fixed
    /// sizes.
    pub memory_budget: Option<usize>,
    /// Whether what depends on weights alone is computed once, and weights are packed for the products that read them. This
    /// is repeated when a variable changes.
    pub freeze: bool,
    /// Which weights are packed under [`Options::freeze`].
    pub pack: PackWeights,
    /// Whether every kernel of a new program is compared with the reference interpreter on the arguments of its first call. A
    /// difference is an error with a report.
    pub verify: bool,
    /// Whether a new program is compiled on another thread while calls run eagerly.
    pub background: bool,
    /// Whether a new program is timed against eager execution, and the faster one kept.
    pub never_slower: bool,
    /// Whether the function is not compiled but called directly.
    pub disable: bool,
    /// The number of programs kept; beyond it the least recently used one is dropped.
    pub cache_limit: usize,
    /// The bytes that programs may hold: graphs, constants, data that was read. Beyond it the least recently used programs
    /// are dropped, and a function with one larger program runs eagerly, with an event. Arenas and packed weights are not
    /// included.
    pub cache_bytes: usize,
    /// The number of programs, or branches, that one reason may lead to, including the first. A reason is a guard on one
    /// part of the arguments, or one line that reads elements. Beyond it, calls that no program is for run the function
    /// eagerly, and an event names the line, the guard and a remedy.
    pub recompile_limit: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fullgraph: false,
            dynamic: Dynamic::default(),
            buckets: Vec::new(),
            mode: Mode::default(),
            tuning_budget: Duration::from_secs(2),
            numerics: Numerics::default(),
            precision: Precision::default(),
            memory_budget: None,
            freeze: false,
            pack: PackWeights::default(),
            verify: false,
            background: false,
            never_slower: false,
            disable: false,
            cache_limit: 16,
            cache_bytes: 128 << 20,
            recompile_limit: 16,
        }
    }
}
