//! The pass floor of Kiln: takes a graph and returns a smaller graph that computes the same.
//!
//! ```text
//!            ┌───────────────────────── until nothing changes ─────────────────────────┐
//!  Graph ──▶ decompose ▶ canonicalize ▶ fold_constants ▶ simplify_algebra ▶ fold_views ▶ recognise_attention ▶ common_subexpressions ▶ dead_code ──▶ Graph
//!
//!  Graph ──▶ differentiate ──▶ Graph with gradients (on request, not part of the list)
//!  Graph ──▶ recompute ──▶ Graph that computes cheap values again near late uses (on request, under a memory budget)
//!  Graph ──▶ fold_norms ──▶ Graph whose frozen convolutions have their batch norms in the weights (on request, under `freeze`)
//!  Graph ──▶ split_frozen ──▶ a Graph run once and a Graph run by every call (on request, under `freeze`)
//! ```
//!
//! Invariants: a pass keeps every value bit for bit as IEEE 754 defines it (signed zeros and infinities included; one NaN
//! counts as any other), but for `decompose`, which may sum in another order, and `recognise_attention`, which hides scores that are not
//! finite where −∞ would be added to them; inputs, outputs and their types stay; in
//! debug builds the verifier runs after each pass and a failure names the pass.

mod canonicalize;
mod common_subexpressions;
mod dead_code;
mod decompose;
mod differentiate;
mod dims;
mod facts;
mod flatten_choices;
mod fold_constants;
mod fold_norms;
mod fold_views;
mod frozen;
mod recognise_attention;
mod recompute;
mod rewrite;
mod simplify_algebra;
mod split_frozen;
mod vectorize;

pub use differentiate::{
    Derivative, DifferentiateError, DifferentiateOptions, Gradients, Seeds, accumulate, body_gradients, derivative,
    differentiate, gradient, is_differentiable, with_states,
};

pub use fold_norms::fold_norms;
pub use recompute::recompute;
pub use split_frozen::{MainInput, Split, SplitOptions, split_frozen};
pub use vectorize::{Vectorized, vectorize};

use kiln_ir::Graph;

/// A graph after a pass.
#[derive(Debug, Clone)]
pub struct Rewritten {
    /// The graph.
    pub graph: Graph,
    /// False when the pass found nothing to do.
    pub changed: bool,
}

/// Options of the passes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Keep attention as one op, for targets that have a kernel for it; on by default.
    pub keep_attention: bool,
    /// Keep the gradients of attention as one op each, for targets that have kernels for them; off by default.
    pub keep_attention_gradients: bool,
    /// Keep bounds as masks of attention, for targets whose kernels know them, where no gradient of attention is kept; off by default.
    pub keep_bounds: bool,
    /// Transposed convolutions are ordinary ones by phases, not products with zeros between the elements; off by default.
    pub split_phases: bool,
    /// Depthwise convolutions are products, a channel each, and not sums; off by default.
    pub depthwise_products: bool,
    /// Windows over several axes are reduced an axis at a time where that takes less; off by default.
    pub separate_windows: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            keep_attention: true,
            keep_attention_gradients: false,
            keep_bounds: false,
            split_phases: false,
            depthwise_products: false,
            separate_windows: false,
        }
    }
}

/// One pass: a verb phrase and what it does.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    /// The name, which is also the name of its file.
    pub name: &'static str,
    step: fn(Graph, &Options) -> Result<Rewritten, kiln_ir::Error>,
}

impl Pass {
    /// The pass of that name.
    pub fn named(name: &str) -> Option<Pass> {
        PASSES.iter().copied().find(|pass| pass.name == name)
    }

    /// Runs this pass alone, once.
    pub fn run(&self, graph: Graph, options: &Options) -> Result<Rewritten, Error> {
        let broken = |cause| Error::Broken { pass: self.name, cause };
        let out = (self.step)(graph, options).map_err(broken)?;
        if kiln_ir::verify::verifiers_run() && out.changed {
            out.graph.verify().map_err(broken)?;
        }
        Ok(out)
    }
}

/// Lists passes by the names of their files.
macro_rules! passes {
    ($($name:ident),* $(,)?) => { &[$(Pass { name: stringify!($name), step: $name::run }),*] };
}

/// Graph → Graph, in this order, again and again until none of them finds anything. Each pass is one file of the same name.
pub const PASSES: &[Pass] = passes![
    decompose,
    flatten_choices,
    canonicalize,
    fold_constants,
    simplify_algebra,
    fold_views,
    recognise_attention,
    common_subexpressions,
    dead_code,
];

/// Rounds through [`PASSES`] after which the graph is taken as it is. Every round but the last makes the graph simpler, so
/// this only bounds the time spent on a graph made to be awkward.
const MAX_ROUNDS: usize = 12;

/// An error of the passes; always a mistake in a pass or a graph that was not valid to begin with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph given does not verify.
    #[error("the graph is not valid: {cause}")]
    Invalid {
        /// The cause.
        cause: kiln_ir::Error,
    },
    /// A pass made an invalid graph.
    #[error("pass {pass} broke the graph: {cause}")]
    Broken {
        /// The pass.
        pass: &'static str,
        /// The cause.
        cause: kiln_ir::Error,
    },
}

/// Runs every pass until nothing changes.
///
/// ```
/// use kiln_ir::Graph;
/// let graph = Graph::parse("graph(%0: f32[4]) {
///   %1: f32[4] = neg %0
///   %2: f32[4] = neg %1
///   %3: f32[4] = exp %2
///   return %3
/// }").unwrap();
/// let graph = kiln_passes::run(graph).unwrap();
/// assert_eq!(graph.nodes().len(), 2);
/// ```
pub fn run(graph: Graph) -> Result<Graph, Error> {
    run_options(graph, &Options::default(), &mut |_, _| {})
}

/// Runs every pass until nothing changes and passes the graph after each pass that changed it to `observe`.
pub fn run_with(graph: Graph, observe: &mut dyn FnMut(&'static str, &Graph)) -> Result<Graph, Error> {
    run_options(graph, &Options::default(), observe)
}

/// [`run_with`] under options other than the default.
pub fn run_options(
    mut graph: Graph,
    options: &Options,
    observe: &mut dyn FnMut(&'static str, &Graph),
) -> Result<Graph, Error> {
    if kiln_ir::verify::verifiers_run() {
        graph.verify().map_err(|cause| Error::Invalid { cause })?;
    }
    // Each body and each side by itself; what passes do around it changes nothing inside.
    if graph.has_bodies() {
        graph = graph.map_bodies(&mut |body| run_options(body, options, &mut |_, _| {}))?;
    }
    let mut quiet = 0;
    for pass in PASSES.iter().cycle().take(MAX_ROUNDS * PASSES.len()) {
        let out = pass.run(graph, options)?;
        graph = out.graph;
        if out.changed {
            quiet = 0;
            observe(pass.name, &graph);
        } else {
            quiet += 1;
        }
        if quiet >= PASSES.len() {
            break;
        }
    }
    Ok(graph)
}

/// The version of this crate and a digest of its sources: part of every key of the disk cache.
pub const FINGERPRINT: &str = env!("KILN_FINGERPRINT");
