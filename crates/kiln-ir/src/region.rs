//! Graphs inside of ops: the body of [`crate::Op::Loop`].
//!
//! ```text
//!  operands   carried₀ …    over₀[turns, …] …     same₀ …
//!                │               │ row of the turn   │
//!  body       (carried,        row,               same) ─▶ (carried on, result)       turns times
//!                                                              │           │
//!  results                                      of the last turn,   stacked: [turns, …]
//! ```
//!
//! A node has one result, so a loop is a node for each result that is used, all with the same region and operands; whoever runs a
//! graph runs them as one. Symbols of the body are those of the graph around it.

use crate::{DType, Dim, Graph, Source, TensorType, TypeError};

/// A loop: a graph that runs for each turn.
///
/// ```
/// use kiln_ir::Graph;
/// let graph = Graph::parse("graph(%0: f32[], %1: f32[n]) {
///   %2: f32[n] = loop %0, %1 {turns=n, carried=1, scanned=1, result=1, body=graph(%0: f32[], %1: f32[]) {
///     %2: f32[] = add %0, %1
///     return %2, %2
///   }}
///   return %2
/// }").unwrap();
/// let input = |shape: &[usize], values: &[f32]| kiln_ir::HostTensor::from_slice(shape, values).unwrap();
/// let sums = kiln_ir::interpret::run(&graph, &[input(&[], &[10.0]), input(&[3], &[1.0, 2.0, 3.0])]).unwrap();
/// assert_eq!(sums[0].to_f64(), [11.0, 13.0, 16.0]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Region {
    /// One turn. Its inputs are what is carried, the rows of what is looped over, and what is the same at every turn; its outputs
    /// what is carried on, and the results of the turn. Its nodes have no source lines: the line is that of the loop.
    body: Graph,
    turns: Dim,
    carried: usize,
    scanned: usize,
    reverse: bool,
    is_conditional: bool,
}

impl Region {
    /// A loop of `turns` turns. The first `carried` inputs and outputs of `body` are what is carried from turn to turn, the next
    /// `scanned` inputs are rows; with `reverse` the last row comes first.
    pub fn new(body: Graph, turns: Dim, carried: usize, scanned: usize, reverse: bool) -> Region {
        let body = body.map_sources(&mut |_| Source::default());
        Region { body, turns, carried, scanned, reverse, is_conditional: false }
    }

    /// A loop of as many turns as the last of what it carries, a bool without axes, is true. All outputs of `body` are carried on.
    pub fn conditional(body: Graph) -> Region {
        let carried = body.outputs().len();
        Region { is_conditional: true, ..Region::new(body, Dim::default(), carried, 0, false) }
    }

    /// One turn.
    pub fn body(&self) -> &Graph {
        &self.body
    }

    /// Whether it goes on for as long as the last of what it carries is true.
    pub fn is_conditional(&self) -> bool {
        self.is_conditional
    }

    /// The number of turns; none is known of a loop until a condition fails.
    pub fn turns(&self) -> &Dim {
        &self.turns
    }

    /// How many values are carried from turn to turn.
    pub fn carried(&self) -> usize {
        self.carried
    }

    /// How many operands are looped over.
    pub fn scanned(&self) -> usize {
        self.scanned
    }

    /// Whether the last row comes first.
    pub fn reverse(&self) -> bool {
        self.reverse
    }

    /// The number of results: what is carried on, and what is stacked.
    pub fn results(&self) -> usize {
        self.body.outputs().len()
    }

    /// Whether an operand is looped over, row by row.
    pub fn is_scanned(&self, operand: usize) -> bool {
        (self.carried..self.carried + self.scanned).contains(&operand)
    }

    /// The same loop with another body of the same inputs and outputs.
    pub fn with_body(&self, body: Graph) -> Region {
        let is_conditional = self.is_conditional;
        Region { is_conditional, ..Region::new(body, self.turns.clone(), self.carried, self.scanned, self.reverse) }
    }

    /// The same loop with `f` applied to every size.
    pub fn map_dims(&self, f: &dyn Fn(&Dim) -> Dim) -> Region {
        Region { body: self.body.map_dims(f), turns: f(&self.turns), ..*self }
    }

    /// The type of a result.
    pub(crate) fn infer(&self, result: usize, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
        let wrong = |what| Err(TypeError::BadLoop { what });
        let Region { body, turns, carried, scanned, .. } = self;
        let looped = carried.checked_add(*scanned);
        if body.inputs().len() != operands.len() || looped.is_none_or(|looped| looped > operands.len()) {
            return wrong("its body has more or fewer inputs than it has operands");
        }
        if *carried > self.results() || result >= self.results() {
            return wrong("its body has too few outputs");
        }
        if body.outputs().iter().any(|output| output.updates.is_some()) {
            return wrong("its body updates an input");
        }
        if turns.as_const().is_some_and(|turns| turns < 0) {
            return wrong("its number of turns is negative");
        }
        if self.is_conditional {
            let condition = carried.checked_sub(1).and_then(|last| operands.get(last));
            if condition.is_none_or(|ty| ty.dtype != DType::Bool || ty.rank() != 0) {
                return wrong("the last of what it carries is not a bool without axes");
            }
            if *scanned > 0 || self.results() > *carried {
                return wrong("until a condition fails nothing is looped over or stacked");
            }
        }
        for (number, (&input, &operand)) in body.inputs().iter().zip(operands).enumerate() {
            let own = body.ty(input);
            let fits = match self.is_scanned(number) {
                true => *operand == rows(own, turns),
                false => operand == own,
            };
            if !fits {
                return wrong("an operand is not of the type that its body takes");
            }
            if own.dtype == DType::I4 && number < carried + scanned {
                return wrong("elements of half a byte cannot be carried or looped over");
            }
        }
        for (input, output) in body.inputs().iter().zip(body.outputs()).take(*carried) {
            if body.ty(*input) != body.ty(output.node) {
                return wrong("what it carries on is of another type than what it began with");
            }
        }
        let own = body.ty(body.outputs()[result].node);
        if own.dtype == DType::I4 {
            return wrong("elements of half a byte cannot be carried or looped over");
        }
        Ok(if result < *carried { own.clone() } else { rows(own, turns) })
    }
}

/// The type of so many tensors along a new first axis.
fn rows(ty: &TensorType, turns: &Dim) -> TensorType {
    let shape: Vec<Dim> = [turns].into_iter().chain(&ty.shape).cloned().collect();
    TensorType::new(ty.dtype, shape)
}

impl Graph {
    /// The same graph with `f` applied to every size; types are not inferred again.
    pub(crate) fn map_dims(&self, f: &dyn Fn(&Dim) -> Dim) -> Graph {
        let mut graph = self.clone();
        graph.change_nodes(&mut |node| {
            node.op = node.op.map_dims(f);
            node.ty.shape.iter_mut().for_each(|size| *size = f(size));
        });
        graph
    }
}
