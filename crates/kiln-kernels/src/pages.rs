//! Paged keys and values, found through a page table: attention reads through a gather of whole pages itself, so that no
//! gathered copy exists.
//!
//! ```text
//!  pool [pages, heads, length, width] ──gather by table [b, n]──▶ … permute, reshape … ──▶ [b, heads, n · length, width]
//! ```

use crate::assemble::argument;
use crate::dag::{Dag, Def};
use crate::domain::{Domain, substitute_axes};
use crate::kernel::{InstKind, Pages, Place, Strided, ValueId};
use crate::schedule::BufferId;
use crate::trace::{FusionRejection, Scope, Trace, Tracer};
use kiln_ir::{DType, Dim, Graph, NodeId, Op, Symbol};

/// Keys of a page below which a copy of the pages is better than reading them where they are.
const SHORTEST: i64 = 8;

/// The gather under the views of an operand, if there is one.
pub(crate) fn gather_below(graph: &Graph, operand: NodeId) -> Option<NodeId> {
    let mut at = operand;
    loop {
        match &graph.node(at).op {
            Op::Gather { .. } => return Some(at),
            op if op.is_view() => at = graph.node(at).operands[0],
            _ => return None,
        }
    }
}

/// The page table of keys or values, [b, g, s, d]; the error names a node that is not read through a table.
pub(crate) fn paged(
    scope: Scope<'_>,
    node: NodeId,
    args: &mut Vec<(BufferId, DType)>,
) -> Result<(Strided, Pages), FusionRejection> {
    let shape = &scope.graph.ty(node).shape;
    let rejection = FusionRejection { node: gather_below(scope.graph, node).unwrap_or(node) };
    let (mut domain, mut index) = Domain::of_shape(shape, &[]);
    let mut keys = index[2].clone();
    let (trace, value) = loop {
        let mut tracer = Tracer::new(scope, &domain);
        let value = tracer.value_at(node, index.clone())?;
        let trace = tracer.finish();
        // The axis of keys is split into pages and rows of a page.
        let Some((split, axes)) = domain.split(&trace.open, scope.known) else { break (trace, value) };
        let ranges = split.ranges(scope.known);
        index = index.iter().map(|at| substitute_axes(at, &axes).simplify(&ranges)).collect();
        keys = index[2].clone();
        domain = split;
    };
    let view = Indirect::new(&trace, value).ok_or(rejection)?;
    let axis = |at: &Dim| at.as_symbol();
    // Each of the other axes is one variable, or has one element.
    let [batch, head, width] = [0, 1, 3].map(|at| (axis(&index[at]), index[at].is_zero()));
    if [batch, head, width].iter().any(|(symbol, none)| symbol.is_none() && !none) {
        return Err(rejection);
    }
    let mut rows = symbols_of(&keys);
    // The variable that moves the table is that of the page.
    let page = rows.iter().position(|&s| view.table.offset.contains(s)).map(|at| rows.remove(at));
    let (row, more) = (rows.pop(), rows.pop());
    if more.is_some() {
        return Err(rejection);
    }
    let size_of = |symbol: Option<Symbol>| match symbol.and_then(crate::domain::axis_number) {
        Some(axis) => domain.shape[axis].clone(),
        None => Dim::from(1),
    };
    let length = size_of(row);
    if length.as_const().is_some_and(|length| length < SHORTEST) {
        return Err(rejection);
    }
    // A key's number is page · length + row.
    let number = |symbol: Option<Symbol>| symbol.map_or_else(Dim::default, Dim::from);
    if keys != number(page) * &length + number(row) {
        return Err(rejection);
    }
    let (table, [batch_step, page_step]) = linear(view.table, [batch.0, page]).ok_or(rejection)?;
    let (pool, [head_step, row_step, width_step]) = linear(view.pool, [head.0, row, width.0]).ok_or(rejection)?;
    let (pool_buffer, dtype) = trace.args[view.pool.buffer];
    let (table_buffer, table_dtype) = trace.args[view.table.buffer];
    let strided = Strided {
        buffer: argument(args, pool_buffer, dtype),
        offset: pool,
        strides: vec![Dim::default(), head_step, row_step, width_step],
    };
    let table = Strided {
        buffer: argument(args, table_buffer, table_dtype),
        offset: table,
        strides: vec![batch_step, page_step],
    };
    Ok((strided, Pages { table, length, stride: view.stride, count: view.count }))
}

/// A load whose address one table entry gives.
struct Indirect<'a> {
    pool: &'a Place,
    stride: Dim,
    table: &'a Place,
    count: Dim,
}

impl Indirect<'_> {
    fn new(trace: &Trace, value: ValueId) -> Option<Indirect<'_>> {
        let pool = load(&trace.dag, value)?;
        let [(checked, stride)] = pool.indirect.as_slice() else { return None };
        let Def::Inst(InstKind::CheckIndex { value, size }) = &trace.dag.value(*checked).def else { return None };
        let entry = match &trace.dag.value(*value).def {
            Def::Inst(InstKind::Cast(inner)) => *inner,
            _ => *value,
        };
        let table = load(&trace.dag, entry).filter(|table| table.indirect.is_empty())?;
        let whole = matches!(trace.args[table.buffer].1, DType::I32 | DType::I64);
        whole.then(|| Indirect { pool, stride: stride.clone(), table, count: size.clone() })
    }
}

fn load(dag: &Dag, value: ValueId) -> Option<&Place> {
    match &dag.value(value).def {
        Def::Inst(InstKind::Load { place, guard: None }) => Some(place),
        _ => None,
    }
}

fn symbols_of(dim: &Dim) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::new();
    dim.visit_symbols(&mut |symbol| symbols.push(symbol));
    symbols.retain(|&symbol| crate::domain::axis_number(symbol).is_some());
    symbols.sort_unstable();
    symbols.dedup();
    symbols
}

/// The offset of a place and its strides along some variables, if it moves along no others.
fn linear<const N: usize>(place: &Place, along: [Option<Symbol>; N]) -> Option<(Dim, [Dim; N])> {
    let mut rest = place.offset.clone();
    let mut strides = [const { None }; N];
    for (stride, symbol) in strides.iter_mut().zip(along) {
        *stride = Some(match symbol {
            Some(symbol) => {
                let (step, other) = rest.linear_in(symbol)?;
                rest = other;
                step
            }
            None => Dim::default(),
        });
    }
    let strides = strides.map(|stride| stride.unwrap_or_default());
    let moves = |dim: &Dim| !symbols_of(dim).is_empty();
    (!moves(&rest) && !strides.iter().any(moves)).then_some((rest, strides))
}
