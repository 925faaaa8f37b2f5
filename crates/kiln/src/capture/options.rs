//! What can be asked of a compiled function.

use kiln_kernels::Numerics;
use std::time::Duration;

/// When sizes of the arguments become symbols, so that one program is for many sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dynamic {
    /// Never: a program for each shape.
    Static,
    /// A size that has changed does, at the second compile.
    #[default]
    Automatic,
    /// Every size that can, at the first compile.
    Always,
}

/// How much is done for speed at the first call. The names are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Fused kernels.
    #[default]
    Default,
    /// And launches that are resolved once: a call looks nothing up and allocates nothing but its results.
    ReduceOverhead,
    /// And for each kernel the fastest of several variants, measured on the arguments of the first call; the choice is kept on
    /// disk.
    MaxAutotune,
    /// [`Mode::MaxAutotune`] without the launch list of [`Mode::ReduceOverhead`].
    MaxAutotuneNoCudagraphs,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 4] = [Mode::Default, Mode::ReduceOverhead, Mode::MaxAutotune, Mode::MaxAutotuneNoCudagraphs];

    /// The name, as PyTorch writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::ReduceOverhead => "reduce-overhead",
            Mode::MaxAutotune => "max-autotune",
            Mode::MaxAutotuneNoCudagraphs => "max-autotune-no-cudagraphs",
        }
    }

    /// The mode of this name.
    ///
    /// ```
    /// use kiln::Mode;
    /// assert_eq!(Mode::named("max-autotune"), Some(Mode::MaxAutotune));
    /// assert_eq!(Mode::named("fast"), None);
    /// ```
    pub fn named(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Whether launches are resolved once.
    pub(super) fn replays(self) -> bool {
        matches!(self, Mode::MaxAutotune | Mode::ReduceOverhead)
    }
}

/// Choices beyond the defaults for [`crate::compile_with`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether reading elements, which ends a graph, is an error that names the line.
    pub fullgraph: bool,
    /// When sizes become symbols.
    pub dynamic: Dynamic,
    /// How much is done for speed at the first call.
    pub mode: Mode,
    /// How long [`Mode::MaxAutotune`] may measure for one program.
    pub tuning_budget: Duration,
    /// Where short floats are rounded.
    pub numerics: Numerics,
    /// Whether what depends on weights alone is computed once, and weights are packed for the products that use them. It is
    /// done again when a variable changes.
    pub freeze: bool,
    /// Whether every kernel of a new program is compared with the reference interpreter on the arguments of its first call. A
    /// difference is an error with a report.
    pub verify: bool,
    /// Whether a new program is compiled by another thread, while calls run eagerly.
    pub background: bool,
    /// Whether a new program is measured against eager execution, and the faster kept.
    pub never_slower: bool,
    /// Call the function as it is.
    pub disable: bool,
    /// Programs kept; beyond that the one unused for longest goes.
    pub cache_limit: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fullgraph: false,
            dynamic: Dynamic::default(),
            mode: Mode::default(),
            tuning_budget: Duration::from_secs(2),
            numerics: Numerics::default(),
            freeze: false,
            verify: false,
            background: false,
            never_slower: false,
            disable: false,
            cache_limit: 16,
        }
    }
}
