//! Small valid graphs of every op, for the tests of every floor: what prints, parses, interprets, compiles and
//! differentiates each op takes its cases from here.

mod list;

use crate::{DType, Dim, Graph, Literal, Op, OpKind, Scalar, Source, Symbol, TensorType};

pub use list::examples;

/// A graph whose last node is an op of `kind`, and what its inputs may hold.
#[derive(Debug, Clone)]
pub struct Example {
    /// The op shown.
    pub kind: OpKind,
    /// The op and its operands' types: unique among the examples of one list that differ in no attribute.
    pub name: String,
    /// Inputs, one op, outputs.
    pub graph: Graph,
    /// The values each input may hold.
    pub values: Vec<Values>,
    /// Sizes of the symbols to try, one list a try; a single empty list where no size is symbolic.
    pub bindings: Vec<Vec<(Symbol, i64)>>,
}

/// The values an input may hold.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Numbers from `low` to `high`, both included.
    Between {
        /// The smallest.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// Indices of an axis of that size.
    Index {
        /// The size.
        below: Dim,
    },
}

impl Example {
    /// The graph of one op on inputs of these types (as text), or `None` where the op does not accept them.
    fn try_new(op: Op, inputs: &[&str]) -> Option<Example> {
        let types: Vec<TensorType> = inputs.iter().map(|text| text.parse().ok()).collect::<Option<_>>()?;
        let mut graph = Graph::new();
        let ids: Option<Vec<_>> = types.iter().map(|ty| graph.input(ty.clone(), Source::default()).ok()).collect();
        let kind = op.kind();
        let node = graph.add(op, &ids?, Source::default()).ok()?;
        graph.output(node);
        let name = format!("{}({})", kind.name(), inputs.join(", "));
        let values = types.iter().map(|ty| default_values(ty.dtype)).collect();
        let mut symbols: Vec<Symbol> = types.iter().flat_map(|ty| &ty.shape).flat_map(Dim::symbols).collect();
        symbols.extend(graph.ty(node).shape.iter().flat_map(Dim::symbols));
        symbols.sort_unstable();
        symbols.dedup();
        let bindings = match symbols.is_empty() {
            true => vec![vec![]],
            false => vec![symbols.iter().zip([3, 5, 4, 6, 2, 7].into_iter().cycle()).map(|(&s, n)| (s, n)).collect()],
        };
        Some(Example { kind, name, graph, values, bindings })
    }

    /// The graph of one op on inputs of these types (as text).
    fn new(op: Op, inputs: &[&str]) -> Example {
        let name = op.kind().name();
        Example::try_new(op, inputs).unwrap_or_else(|| panic!("{name} does not accept its example's {inputs:?}"))
    }

    /// Says which values an input may hold.
    fn between(mut self, input: usize, low: f64, high: f64) -> Example {
        self.values[input] = Values::Between { low, high };
        self
    }

    /// Says that an input holds indices.
    fn index(mut self, input: usize, below: impl Into<Dim>) -> Example {
        self.values[input] = Values::Index { below: below.into() };
        self
    }

    /// Says which sizes to try for the symbols.
    fn at(mut self, bindings: &[&[(&str, i64)]]) -> Example {
        let bind = |&(name, n): &(&str, i64)| Symbol::new(name).map(|symbol| (symbol, n));
        self.bindings = bindings.iter().map(|list| list.iter().filter_map(bind).collect()).collect();
        self
    }

    /// Contents for every input under one of the bindings, the same for the same seed. `None` where a size has no value.
    pub fn inputs(&self, binding: &[(Symbol, i64)], seed: u64) -> Option<Vec<Literal>> {
        let value = |symbol: Symbol| binding.iter().find(|(s, _)| *s == symbol).map(|(_, n)| *n);
        let mut random = Random(seed);
        let inputs = self.graph.inputs().iter().zip(&self.values);
        inputs
            .map(|(&id, values)| {
                let ty = self.graph.ty(id);
                let sizes = ty.shape.iter().map(|d| d.eval(&value).and_then(|n| usize::try_from(n).ok()));
                let shape: Vec<usize> = sizes.collect::<Option<_>>()?;
                let (low, high) = match values {
                    Values::Between { low, high } => (*low, *high),
                    Values::Index { below } => (0.0, below.eval(&value)? as f64 - 1.0),
                };
                let count: usize = shape.iter().product();
                let elements = (0..count).map(|_| random.scalar(ty.dtype, low, high));
                Literal::from_elements(ty.dtype, &shape, elements.collect::<Vec<_>>())
            })
            .collect()
    }
}

fn default_values(dtype: DType) -> Values {
    let (low, high) = match dtype {
        DType::Bool => (0.0, 1.0),
        DType::U8 => (0.0, 9.0),
        DType::I4 => (-8.0, 7.0),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (-5.0, 5.0),
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::F8E4M3 | DType::F8E5M2 => (-2.0, 2.0),
    };
    Values::Between { low, high }
}

/// SplitMix64: a few lines, and the same everywhere.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in 0..`bound`; 0 where the bound is.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.bits() % bound as u64) as usize }
    }

    /// A number in 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// One of the items.
    ///
    /// # Panics
    /// When there are none.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// Integers from −4 to 4: their sums of products are exact in any order, and they are bf16, too.
    pub fn small_integers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.below(9) as f32 - 4.0).collect()
    }

    /// A value of a dtype from `low` to `high`.
    pub fn scalar(&mut self, dtype: DType, low: f64, high: f64) -> Scalar {
        if dtype.is_float() {
            return Scalar::float(dtype, low + (high - low) * self.unit());
        }
        Scalar::int(dtype, low as i64 + (self.unit() * (high - low + 1.0)) as i64)
    }
}
