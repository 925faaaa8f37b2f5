//! The rules of a graph, checked from scratch: what passes run between each other in debug builds.

use crate::infer::{check_type, infer};
use crate::{Error, Graph, Op};

/// Checks what [`Graph::verify`] says.
pub fn verify(graph: &Graph) -> Result<(), Error> {
    let mut inputs = 0;
    for (id, node) in graph.iter() {
        let at = || node.source.clone();
        if let Some(&operand) = node.operands.iter().find(|&&operand| operand >= id) {
            return Err(Error::UnknownNode { node: operand, at: at() });
        }
        if let Op::Input { index } = node.op {
            if index != inputs || graph.inputs().get(index) != Some(&id) || !node.operands.is_empty() {
                return Err(Error::InputOrder { node: id });
            }
            check_type(&node.ty).map_err(|cause| Error::InputType { index, cause: Box::new(cause), at: at() })?;
            inputs += 1;
            continue;
        }
        let operands: Vec<_> = node.operands.iter().map(|&operand| graph.ty(operand)).collect();
        let inferred = infer(&node.op, &operands).map_err(|cause| Error::Type {
            node: id,
            op: node.op.kind().name(),
            cause: Box::new(cause),
            at: at(),
        })?;
        if inferred != node.ty {
            return Err(Error::WrongType { node: id, declared: node.ty.clone(), inferred, at: at() });
        }
    }
    if let Some(&extra) = graph.inputs().get(inputs) {
        return Err(Error::InputOrder { node: extra });
    }
    verify_outputs(graph)
}

/// The part of the rules that is about outputs.
pub(crate) fn verify_outputs(graph: &Graph) -> Result<(), Error> {
    let mut updated = vec![false; graph.inputs().len()];
    for (output, out) in graph.outputs().iter().enumerate() {
        if out.node.index() >= graph.nodes().len() {
            return Err(Error::UnknownOutput { output, node: out.node });
        }
        let Some(input) = out.updates else { continue };
        let bad = |reason| Err(Error::BadUpdate { output, input, reason });
        let Some(&target) = graph.inputs().get(input) else { return bad("there is no such input") };
        if graph.ty(target) != graph.ty(out.node) {
            return bad("the new value has another type");
        }
        if std::mem::replace(&mut updated[input], true) {
            return bad("it is updated twice");
        }
    }
    Ok(())
}
