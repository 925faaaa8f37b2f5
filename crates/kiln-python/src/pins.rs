//! Weights that are where they were at the calls before: of these a call compares two addresses, and what else is known of them stays.
//!
//! A tensor of PyTorch is the same one if both its `TensorImpl` and its elements have the same address. Dynamo's guards, which have passed
//! before a program is called, see to it that sizes, strides and dtype are those of the capture.

use crate::shim::Shim;
use kiln_runtime::{PinKey, RawInput};
use pyo3::ffi::PyObject;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Calls with the same address after which a tensor is pinned.
const STEADY: u8 = 2;
/// How often a pinned tensor may be somewhere else before it is left alone.
const MOST_MOVES: u8 = 4;
/// Calls at which addresses are looked at for pinning.
const MOST_LOOKS: u32 = 64;
/// Fewer tensors are not worth it.
pub(crate) const FEWEST: usize = 8;

static KEYS: AtomicU64 = AtomicU64::new(0);

/// Where a tensor was: its `TensorImpl` and its elements.
type Spot = (usize, usize);

/// The tensors of a program that have not moved.
#[derive(Default)]
pub(crate) struct Pins(Mutex<State>);

#[derive(Default)]
struct State {
    pinned: Option<Arc<Pinned>>,
    /// By tensor.
    seen: Vec<Seen>,
    looks: u32,
}

#[derive(Default, Clone, Copy)]
struct Seen {
    spot: Spot,
    steady: u8,
    moves: u8,
}

/// A set of pinned tensors.
pub(crate) struct Pinned {
    pub(crate) key: PinKey,
    /// Pinned tensors by their places among the arguments, and where they are.
    spots: Vec<(usize, Spot)>,
    /// By tensor, whether it is pinned.
    has: Vec<bool>,
    /// The tensors that are not, and the inputs of the program that are none of the pinned ones.
    pub(crate) other_tensors: Vec<usize>,
    pub(crate) other_inputs: Vec<usize>,
    /// By tensor, its place in `other_tensors`.
    ranks: Vec<usize>,
    /// By input of the program; of those that are not pinned nothing is known.
    inputs: Vec<RawInput<'static>>,
    /// What the sizes and strides in `inputs` point to.
    _layouts: Vec<Box<[i64]>>,
}

// SAFETY: the addresses are compared with those of a call's tensors before anything is done with them.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Whether all are where they were; `object` gives an argument.
    #[inline]
    pub(crate) fn holds(&self, shim: &Shim, object: impl Fn(usize) -> *mut PyObject) -> bool {
        self.spots.iter().all(|&(number, spot)| shim.spot(object(number)) == Some(spot))
    }

    /// The place of a tensor among those that are not pinned.
    pub(crate) fn rank(&self, tensor: usize) -> usize {
        self.ranks[tensor]
    }

    /// All inputs of the program.
    pub(crate) fn inputs(&self) -> &[RawInput<'_>] {
        &self.inputs
    }
}

/// A tensor that may be pinned.
pub(crate) struct Candidate {
    /// Its number among the arguments.
    pub(crate) argument: usize,
    /// The input of the program that it is, unless it has to be looked at in every call.
    pub(crate) input: Option<usize>,
}

impl Pins {
    /// The set of the last call.
    pub(crate) fn get(&self) -> Option<Arc<Pinned>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pinned.clone()
    }

    /// Takes note of a call in which not all pinned tensors were where they should be, or none was pinned.
    pub(crate) fn look(
        &self,
        shim: &Shim,
        candidates: &[Candidate],
        inputs: &[RawInput<'_>],
        object: impl Fn(usize) -> *mut PyObject,
    ) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looks >= MOST_LOOKS {
            state.pinned = None;
            return;
        }
        state.looks += 1;
        state.seen.resize(candidates.len(), Seen::default());
        let before = state.pinned.take();
        let mut count = 0;
        for (number, (seen, candidate)) in state.seen.iter_mut().zip(candidates).enumerate() {
            let spot = candidate.input.and_then(|_| shim.spot(object(candidate.argument))).unwrap_or_default();
            if spot == seen.spot && spot != Spot::default() {
                seen.steady = seen.steady.saturating_add(1);
            } else {
                seen.moves += u8::from(before.as_ref().is_some_and(|before| before.has[number]));
                (seen.spot, seen.steady) = (spot, 0);
            }
            count += usize::from(seen.is_steady());
        }
        if count >= FEWEST {
            state.pinned = Some(Arc::new(Pinned::new(&state.seen, candidates, inputs)));
        }
    }
}

impl Seen {
    fn is_steady(&self) -> bool {
        self.steady >= STEADY && self.moves < MOST_MOVES
    }
}

impl Pinned {
    fn new(seen: &[Seen], candidates: &[Candidate], given: &[RawInput<'_>]) -> Pinned {
        let key = (u64::MAX, KEYS.fetch_add(1, Ordering::Relaxed));
        let mut layouts = Vec::new();
        let mut list = |numbers: &[i64]| -> &'static [i64] {
            let boxed: Box<[i64]> = numbers.into();
            // SAFETY: the box is dropped together with what is made here, and its numbers do not move before.
            let numbers = unsafe { std::slice::from_raw_parts(boxed.as_ptr(), boxed.len()) };
            layouts.push(boxed);
            numbers
        };
        let without_layout = |&RawInput { ptr, dtype, is_value, .. }: &RawInput<'_>| RawInput {
            ptr,
            dtype,
            shape: &[],
            strides: &[],
            is_value,
        };
        let mut inputs: Vec<RawInput<'static>> = given.iter().map(without_layout).collect();
        let mut spots = Vec::new();
        let mut has = vec![false; candidates.len()];
        for (number, (seen, candidate)) in seen.iter().zip(candidates).enumerate() {
            let Some(input) = candidate.input.filter(|_| seen.is_steady()) else { continue };
            has[number] = true;
            spots.push((candidate.argument, seen.spot));
            inputs[input].shape = list(given[input].shape);
            inputs[input].strides = list(given[input].strides);
        }
        let other_tensors: Vec<usize> = (0..candidates.len()).filter(|&tensor| !has[tensor]).collect();
        let ranks =
            (0..candidates.len()).map(|tensor| other_tensors.partition_point(|&other| other < tensor)).collect();
        let is_pinned = |input: usize| candidates.iter().zip(&has).any(|(one, has)| *has && one.input == Some(input));
        let other_inputs = (0..given.len()).filter(|&input| !is_pinned(input)).collect();
        Pinned { key, spots, has, other_tensors, other_inputs, ranks, inputs, _layouts: layouts }
    }
}
