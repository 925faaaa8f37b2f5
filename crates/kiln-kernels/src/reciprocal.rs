//! Division of a row by a sum of exponentials of it (a softmax) is multiplication by the reciprocal, which is computed once a
//! row: a division takes several times as long. The result may be off by one unit in the last place, so this is for
//! [`crate::Numerics::Fast`] only. Other divisions stay: users rely on `x / y` being exact where it can be, and the reciprocal of
//! a number close to zero overflows.

use crate::dag::{Dag, Def, map_operands, visit_dims, visit_operands};
use crate::kernel::{InstKind, ReductionKind, ValueId};
use crate::stages::StoreAt;
use kiln_ir::{BinaryOp, DType, ReduceKind, Symbol, UnaryOp};

/// The values without such divisions; `None` if there are none. Stores follow.
pub(crate) fn multiply_by_reciprocals(dag: &Dag, row: &[Symbol], stores: &mut [StoreAt]) -> Option<Dag> {
    let count = dag.values().len();
    // For each value: moves along the row.
    let mut moves = vec![false; count];
    let mut found = false;
    for (at, value) in dag.values().iter().enumerate() {
        if let Def::Inst(kind) = &value.def {
            let mut along = false;
            visit_dims(kind, &mut |dim| along |= row.iter().any(|v| dim.contains(*v)));
            visit_operands(kind, &mut |x| along |= moves[x.0 as usize]);
            moves[at] = along;
            found |= divides(dag, at, &moves).is_some();
        }
    }
    if !found {
        return None;
    }
    let mut new = Dag::default();
    let mut ids: Vec<ValueId> = Vec::with_capacity(count);
    for (at, value) in dag.values().iter().enumerate() {
        ids.push(match (&value.def, divides(dag, at, &moves)) {
            (_, Some((x, y))) => {
                let inverse = new.unary(UnaryOp::Recip, ids[y.0 as usize]);
                new.binary(BinaryOp::Mul, ids[x.0 as usize], inverse)
            }
            (Def::Inst(kind), None) => {
                let mut kind = kind.clone();
                map_operands(&mut kind, &|x| ids[x.0 as usize]);
                new.inst(kind, value.dtype)
            }
            (Def::Reduced { kind, value: x }, None) => {
                new.add(Def::Reduced { kind: *kind, value: ids[x.0 as usize] }, value.dtype)
            }
        });
    }
    stores.iter_mut().for_each(|store| store.value = ids[store.value.0 as usize]);
    Some(new)
}

/// The operands, if the value is a division as above.
fn divides(dag: &Dag, at: usize, moves: &[bool]) -> Option<(ValueId, ValueId)> {
    let value = &dag.values()[at];
    match value.def {
        Def::Inst(InstKind::Binary(BinaryOp::Div, x, y)) if value.dtype == DType::F32 => {
            (moves[x.0 as usize] && is_sum_of_exponentials(dag, y)).then_some((x, y))
        }
        _ => None,
    }
}

fn is_sum_of_exponentials(dag: &Dag, y: ValueId) -> bool {
    let Def::Reduced { kind: ReductionKind::Reduce(ReduceKind::Sum), value } = dag.value(y).def else { return false };
    matches!(dag.value(value).def, Def::Inst(InstKind::Unary(UnaryOp::Exp | UnaryOp::Exp2, _)))
}
