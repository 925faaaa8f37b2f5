//! Watches a call on this thread: which graphs it runs on which inputs, and where a graph ends. This is how `explain` and `verify`
//! learn what a call does; it costs a call one load while nobody watches.

use crate::Tensor;
use crate::tensor::compiled_graph::CompiledGraph;
use kiln_inspect::explain::{Break, BreakCost};
use kiln_ir::Source;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// What a watched call did.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) segments: Vec<ObservedSegment>,
    pub(crate) breaks: Vec<Break>,
    /// Whether it changed something, so that calling again is not the same.
    pub(crate) effects: bool,
    /// Graphs that ran without code of their own.
    pub(crate) eager: usize,
    /// Graphs that ran with weights prepared and packed.
    pub(crate) frozen: usize,
}

/// A graph that a call ran.
pub(crate) struct ObservedSegment {
    pub(crate) code: Arc<CompiledGraph>,
    /// The inputs as they were before the run.
    pub(crate) inputs: Vec<Tensor>,
    /// What each of them is.
    pub(crate) names: Vec<String>,
}

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static OBSERVED: RefCell<Observed> = RefCell::default();
}

/// Whether anybody looks.
#[inline]
pub(crate) fn is_watching() -> bool {
    WATCHING.get()
}

/// Does `work` and says what it did on this thread.
pub(crate) fn watch<T>(work: impl FnOnce() -> T) -> (T, Observed) {
    /// Ends the watch even if `work` panics.
    struct Ending(bool);
    impl Drop for Ending {
        fn drop(&mut self) {
            WATCHING.set(self.0);
        }
    }
    let outer = OBSERVED.take();
    let ending = Ending(WATCHING.replace(true));
    let result = work();
    drop(ending);
    (result, OBSERVED.replace(outer))
}

/// A graph is about to run.
#[cold]
pub(crate) fn see_segment(code: Arc<CompiledGraph>, inputs: Vec<Tensor>, names: Vec<String>) {
    OBSERVED.with_borrow_mut(|observed| observed.segments.push(ObservedSegment { code, inputs, names }));
}

/// A graph is about to run an operation at a time.
#[cold]
pub(crate) fn see_eager() {
    OBSERVED.with_borrow_mut(|observed| observed.eager += 1);
}

/// A graph is about to run with packed weights.
#[cold]
pub(crate) fn see_frozen() {
    OBSERVED.with_borrow_mut(|observed| observed.frozen += 1);
}

/// Elements were read, so that a graph ends.
#[cold]
pub(crate) fn see_break(what: &str, fix: &str, cost: BreakCost, at: &Source) {
    let broken = Break { what: what.to_owned(), fix: fix.to_owned(), at: at.clone(), cost: Some(cost) };
    OBSERVED.with_borrow_mut(|observed| observed.breaks.push(broken));
}

/// Something changes, or may.
#[cold]
pub(crate) fn see_effect() {
    OBSERVED.with_borrow_mut(|observed| observed.effects = true);
}
