//! Random graphs and inputs for tests and fuzzers: any op, any dtype, ranks 0 to 5, sizes 0, 1, primes and powers of two.
//! Equal seeds give equal graphs.
//!
//! A symbol stands for the number in its name (`s7` is 7), so that a graph alone says what inputs fit it.

mod composites;
mod convolutions;
mod indexing;
mod loops;
mod products;
mod shapes;
mod sharing;
mod values;

pub use convolutions::convolutions;
pub use values::inputs;

use crate::examples::Random;
use crate::table::DTypeClass as Class;
use crate::{BinaryOp, DType, Dim, Graph, NodeId, Op, OpKind, Scalar, Source, Symbol, TensorType, UnaryOp};
use sharing::Sharing;

/// What the graphs are like.
#[derive(Debug, Clone)]
pub struct Options {
    /// Ops to try for; helper nodes come on top.
    pub nodes: usize,
    /// Elements that a node may have.
    pub max_elements: usize,
    /// Make some sizes symbols.
    pub symbolic: bool,
    /// Dtypes of inputs and casts.
    pub dtypes: Vec<DType>,
    /// The ops to draw from.
    pub ops: Vec<OpKind>,
    /// How often to draw a composite (a norm, a softmax, an activation) instead of an op, from 0 to 1.
    pub composites: f64,
    /// How often a graph is one in which nodes of the same few types share much memory, from 0 to 1.
    pub sharing: f64,
}

impl Default for Options {
    fn default() -> Options {
        let (dtypes, ops) = (DType::ALL.to_vec(), OpKind::all());
        Options { nodes: 12, max_elements: 2048, symbolic: false, dtypes, ops, composites: 0.06, sharing: 0.25 }
    }
}

/// The graph of a seed.
pub fn graph(seed: u64, options: &Options) -> Graph {
    let mut maker = Maker::new(seed, options);
    if maker.rng.chance(options.sharing) {
        maker.share();
    }
    let wanted = 1 + maker.rng.below(options.nodes.max(1));
    let mut made = 0;
    for _ in 0..wanted * 8 {
        if made == wanted {
            break;
        }
        let grown = match maker.rng.chance(options.composites) {
            true => maker.composite(),
            false => {
                let kind = maker.draw_kind();
                maker.grow(kind)
            }
        };
        made += usize::from(grown.is_some());
    }
    maker.finish()
}

/// The number that a symbol of a generated graph stands for.
pub fn symbol_value(symbol: Symbol) -> Option<i64> {
    symbol.as_str().strip_prefix('s')?.parse().ok()
}

/// A graph in the making.
struct Maker<'o> {
    rng: Random,
    graph: Graph,
    options: &'o Options,
    palette: Vec<Dim>,
    /// The types of a graph that is about sharing memory.
    sharing: Option<Sharing>,
}

/// The sizes that graphs are made of: tails, primes, powers of two.
const SIZES: [i64; 14] = [1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31, 32, 33];

impl<'o> Maker<'o> {
    fn new(seed: u64, options: &'o Options) -> Maker<'o> {
        let mut rng = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let mut palette: Vec<Dim> = (0..2 + rng.below(3)).map(|_| Dim::from(*rng.choose(&SIZES))).collect();
        if rng.chance(0.06) {
            palette.push(Dim::from(0));
        }
        let mut maker = Maker { rng, graph: Graph::new(), options, palette, sharing: None };
        if options.symbolic {
            maker.add_symbols();
        }
        maker
    }

    /// Some sizes become symbols, each bound by an input of its own.
    fn add_symbols(&mut self) {
        for _ in 0..1 + self.rng.below(2) {
            let value = match self.rng.below(8) {
                0 => 0,
                1 => 1,
                _ => *self.rng.choose(&SIZES),
            };
            let Some(size) = Dim::symbol(&format!("s{value}")) else { continue };
            let dtype = self.draw_dtype(Class::Any);
            let _ = self.graph.input(TensorType::new(dtype, [size.clone()]), self.source());
            self.palette.push(size);
        }
    }

    fn source(&self) -> Source {
        Source::new("generated.rs", self.graph.nodes().len() as u32 + 1)
    }

    /// The number that a size stands for.
    fn number(&self, size: &Dim) -> usize {
        size.eval(&symbol_value).and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
    }

    fn elements(&self, shape: &[Dim]) -> usize {
        shape.iter().fold(1, |n: usize, size| n.saturating_mul(self.number(size)))
    }

    fn fits(&self, shape: &[Dim]) -> bool {
        self.elements(shape) <= self.options.max_elements
    }

    fn ty(&self, id: NodeId) -> TensorType {
        self.graph.ty(id).clone()
    }

    /// Adds an op if its result is a tensor of reasonable size; the ops themselves are made to be valid.
    fn add(&mut self, op: Op, operands: &[NodeId]) -> Option<NodeId> {
        let types: Vec<&TensorType> = operands.iter().map(|&o| self.graph.ty(o)).collect();
        let ty = crate::infer(&op, &types).ok()?;
        let whole = ty.shape.iter().all(|size| size.eval(&symbol_value).is_some_and(|n| n >= 0));
        if !whole || !self.fits(&ty.shape) || ty.rank() > 6 {
            return None;
        }
        let source = self.source();
        self.graph.add(op, operands, source).ok()
    }

    fn draw_kind(&mut self) -> OpKind {
        if let Some(kind) = self.draw_memory_kind() {
            return kind;
        }
        // Half of the draws are pointwise, as in real programs; the rest is fair to every op.
        let ops = &self.options.ops;
        let kind = *self.rng.choose(ops);
        let common = matches!(kind, OpKind::Binary(_) | OpKind::Select | OpKind::Reduce(_));
        if common || self.rng.chance(0.7) { kind } else { *self.rng.choose(ops) }
    }

    fn draw_dtype(&mut self, class: Class) -> DType {
        if let Some(dtype) = self.shared_dtype(class) {
            return dtype;
        }
        let of_class: Vec<DType> = self.options.dtypes.iter().copied().filter(|&d| class.has(d)).collect();
        match of_class.is_empty() {
            true => class.example(),
            false if self.rng.chance(0.3) && of_class.contains(&DType::F32) => DType::F32,
            false => *self.rng.choose(&of_class),
        }
    }

    fn draw_shape(&mut self) -> Vec<Dim> {
        if let Some(shape) = self.shared_shape() {
            return shape;
        }
        let rank = *self.rng.choose(&[0, 1, 1, 2, 2, 2, 3, 3, 4, 5]);
        let mut shape: Vec<Dim> = (0..rank).map(|_| self.draw_size()).collect();
        while !self.fits(&shape) {
            let axis = self.rng.below(shape.len());
            shape[axis] = Dim::from(1 + self.rng.below(2));
        }
        shape
    }

    fn draw_size(&mut self) -> Dim {
        if self.rng.chance(0.15) { Dim::from(1) } else { self.rng.choose(&self.palette).clone() }
    }

    /// A node of a class, from what is there if possible; late nodes are liked better.
    fn pick(&mut self, class: Class) -> Option<NodeId> {
        for _ in 0..12 {
            let count = self.graph.nodes().len();
            if count == 0 || self.rng.chance(0.08) {
                break;
            }
            let back = self.rng.below(count).min(self.rng.below(count));
            let id = NodeId((count - 1 - back) as u32);
            if class.has(self.graph.ty(id).dtype) {
                return Some(id);
            }
        }
        let (dtype, shape) = (self.draw_dtype(class), self.draw_shape());
        self.make(dtype, &shape)
    }

    /// A node of this class and at least this rank.
    fn pick_ranked(&mut self, class: Class, rank: usize) -> Option<NodeId> {
        (0..6).find_map(|_| self.pick(class).filter(|&x| self.graph.ty(x).rank() >= rank))
    }

    /// A node of exactly this type, from what is there if possible.
    fn like(&mut self, dtype: DType, shape: &[Dim]) -> Option<NodeId> {
        if self.rng.chance(0.6) {
            let same: Vec<NodeId> = (self.graph.iter())
                .filter(|(_, n)| n.ty.dtype == dtype && n.ty.shape == shape)
                .map(|(id, _)| id)
                .collect();
            if !same.is_empty() {
                return Some(*self.rng.choose(&same));
            }
            let castable: Vec<NodeId> =
                self.graph.iter().filter(|(_, n)| n.ty.shape == shape).map(|(id, _)| id).collect();
            if !castable.is_empty() && self.rng.chance(0.5) {
                let x = *self.rng.choose(&castable);
                return self.add(Op::Cast(dtype), &[x]);
            }
        }
        self.make(dtype, shape)
    }

    /// A new node of exactly this type: an input, a smaller input expanded, or something generated.
    fn make(&mut self, dtype: DType, shape: &[Dim]) -> Option<NodeId> {
        if !self.fits(shape) {
            return None;
        }
        let many_inputs = self.graph.inputs().len() >= 8;
        match self.rng.below(if many_inputs { 5 } else { 12 }) {
            0 | 1 => {
                let value = self.draw_scalar(dtype);
                self.add(Op::Full { value, shape: shape.to_vec() }, &[])
            }
            2 => self.literal(dtype, shape),
            3 if !shape.is_empty() && !dtype.is_storage_only() && dtype != DType::Bool => {
                let axis = self.rng.below(shape.len());
                self.add(Op::Iota { dtype, shape: shape.to_vec(), axis }, &[])
            }
            3..=6 if !shape.is_empty() => {
                let mut small = shape.to_vec();
                for size in &mut small {
                    if self.rng.chance(0.5) {
                        *size = Dim::from(1);
                    }
                }
                let source = self.source();
                let x = self.graph.input(TensorType::new(dtype, small), source).ok()?;
                self.add(Op::Expand { shape: shape.to_vec() }, &[x])
            }
            _ => {
                let source = self.source();
                self.graph.input(TensorType::new(dtype, shape), source).ok()
            }
        }
    }

    fn literal(&mut self, dtype: DType, shape: &[Dim]) -> Option<NodeId> {
        let sizes: Option<Vec<usize>> = shape.iter().map(Dim::as_usize).collect();
        let Some(sizes) = sizes.filter(|sizes| sizes.iter().product::<usize>() <= 64) else {
            let value = self.draw_scalar(dtype);
            return self.add(Op::Full { value, shape: shape.to_vec() }, &[]);
        };
        let values = values::tensor(&mut self.rng, dtype, &sizes);
        self.add(Op::Constant(values.to_literal()), &[])
    }

    /// A constant that rules like to know about, or any other.
    fn draw_scalar(&mut self, dtype: DType) -> Scalar {
        let special =
            [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 0.1, -8.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40];
        if dtype.is_float() {
            let top = if self.rng.chance(0.9) { 9 } else { special.len() };
            return Scalar::float(dtype, special[self.rng.below(top)]);
        }
        let value = *self.rng.choose(&[0, 1, -1, 2, 3, 7, 8, 127, -128, i64::MIN, i64::MAX]);
        Scalar::int(dtype, value)
    }

    /// Adds one op of a kind with its operands; nothing where the graph so far has no suitable ones.
    fn grow(&mut self, kind: OpKind) -> Option<NodeId> {
        match kind {
            OpKind::Input | OpKind::Full | OpKind::Constant | OpKind::Iota => {
                let (dtype, shape) = (self.draw_dtype(Class::Any), self.draw_shape());
                self.make(dtype, &shape)
            }
            OpKind::RandomBits => {
                let seed = self.like(DType::I64, &[])?;
                let (shape, stream) = (self.draw_shape(), self.rng.below(3) as u32);
                self.add(Op::RandomBits { shape, stream }, &[seed])
            }
            OpKind::Unary(op) => {
                let x = self.pick(op.row().accepts)?;
                self.add(Op::Unary(op), &[x])
            }
            OpKind::Binary(op) => self.binary(op),
            OpKind::Compare(op) => {
                let (x, y) = self.pair(Class::Computable)?;
                self.add(Op::Compare(op), &[x, y])
            }
            OpKind::Select => {
                let (x, y) = self.pair(Class::Any)?;
                let condition = self.like(DType::Bool, &self.ty(x).shape)?;
                self.add(Op::Select, &[condition, x, y])
            }
            OpKind::Cast => {
                let x = self.pick(Class::Any)?;
                let dtype = self.draw_dtype(Class::Any);
                self.add(Op::Cast(dtype), &[x])
            }
            OpKind::Bitcast => self.bitcast(),
            OpKind::Reduce(kind) => {
                let x = self.pick(kind.accepts())?;
                let axes = (0..self.graph.ty(x).rank()).filter(|_| self.rng.chance(0.5)).collect();
                self.add(Op::Reduce { kind, axes }, &[x])
            }
            OpKind::Scan(kind) => {
                let x = self.pick_ranked(kind.accepts(), 1)?;
                let axis = self.draw_axis(x);
                let reverse = self.rng.chance(0.5);
                self.add(Op::Scan { kind, axis, reverse }, &[x])
            }
            OpKind::ArgReduce(kind) => {
                let x = self.pick_ranked(Class::Computable, 1)?;
                let axis = self.draw_axis(x);
                if self.number(&self.graph.ty(x).shape[axis]) == 0 {
                    return None;
                }
                self.add(Op::ArgReduce { kind, axis }, &[x])
            }
            OpKind::SortIndices => self.sort(),
            OpKind::Reshape => self.reshape(),
            OpKind::Permute => self.permute(),
            OpKind::Expand => self.expand(),
            OpKind::Slice => self.slice(),
            OpKind::Pad => self.pad(),
            OpKind::Flip => {
                let x = self.pick(Class::Any)?;
                let axes = (0..self.graph.ty(x).rank()).filter(|_| self.rng.chance(0.5)).collect();
                self.add(Op::Flip { axes }, &[x])
            }
            OpKind::Unfold => self.unfold(),
            OpKind::Concat => self.concat(),
            OpKind::Gather => self.gather(),
            OpKind::Scatter(kind) => self.scatter(kind),
            OpKind::Dot => self.dot(),
            OpKind::Dequantize => self.dequantize(),
            OpKind::Conv => self.conv(),
            OpKind::ReduceWindow(kind) => self.reduce_window(kind),
            OpKind::Attention => self.attention(),
            OpKind::AttentionLogsumexp => self.attention_logsumexp(),
            OpKind::AttentionGradient(of) => self.attention_gradient(of),
            OpKind::Loop => self.repeat(),
            OpKind::Cond => self.choice(),
        }
    }

    fn draw_axis(&mut self, x: NodeId) -> usize {
        self.rng.below(self.graph.ty(x).rank())
    }

    /// Two nodes of one type.
    fn pair(&mut self, class: Class) -> Option<(NodeId, NodeId)> {
        let x = self.pick(class)?;
        let ty = self.ty(x);
        let y = if self.rng.chance(0.04) { x } else { self.like(ty.dtype, &ty.shape)? };
        Some(if self.rng.chance(0.2) { (y, x) } else { (x, y) })
    }

    fn binary(&mut self, op: BinaryOp) -> Option<NodeId> {
        let (x, y) = self.pair(op.row().accepts)?;
        self.add(Op::Binary(op), &[x, y])
    }

    /// The sign and payload of a NaN are unspecified, so NaNs are replaced before a bitcast.
    fn bitcast(&mut self) -> Option<NodeId> {
        let mut x = self.pick(Class::Computable)?;
        let ty = self.ty(x);
        if ty.dtype.is_float() {
            let nan = self.add(Op::Unary(UnaryOp::IsNan), &[x])?;
            let value = Scalar::float(ty.dtype, 0.0);
            let zero = self.add(Op::Full { value, shape: ty.shape.clone() }, &[])?;
            x = self.add(Op::Select, &[nan, zero, x])?;
        }
        let same_width = |d: &DType| d.size_in_bits() == ty.dtype.size_in_bits() && *d != DType::Bool;
        let dtypes: Vec<DType> = self.options.dtypes.iter().copied().filter(same_width).collect();
        let dtype = if dtypes.is_empty() { ty.dtype } else { *self.rng.choose(&dtypes) };
        self.add(Op::Bitcast(dtype), &[x])
    }

    /// Unused nodes become outputs, and some others; some outputs update an input of their type.
    fn finish(mut self) -> Graph {
        if self.graph.nodes().is_empty() {
            let source = self.source();
            let _ = self.graph.input(TensorType::fixed(DType::F32, &[3]), source);
        }
        let users = self.graph.users();
        let inputs: Vec<TensorType> = self.graph.inputs().iter().map(|&id| self.ty(id)).collect();
        let mut updated = vec![false; inputs.len()];
        for (n, users) in users.iter().enumerate() {
            let id = NodeId(n as u32);
            let input = matches!(self.graph.node(id).op, Op::Input { .. });
            let wanted = if users.is_empty() { !input || self.rng.chance(0.1) } else { self.rng.chance(0.04) };
            if !wanted {
                continue;
            }
            let fitting = (0..inputs.len()).find(|&i| !updated[i] && &inputs[i] == self.graph.ty(id));
            match fitting.filter(|_| self.rng.chance(0.2)) {
                Some(input) => {
                    updated[input] = true;
                    self.graph.update(id, input);
                }
                None => self.graph.output(id),
            }
        }
        if self.sharing.is_some() {
            self.return_again(&mut updated);
        }
        if self.graph.outputs().is_empty() {
            self.graph.output(NodeId(users.len() as u32 - 1));
        }
        self.graph
    }
}
