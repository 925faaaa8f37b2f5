//! The rules of a graph, checked from scratch: what passes run between each other in debug builds.

use crate::infer::{check_type, infer};
use crate::{Error, Graph, Op};
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED_FOR: AtomicBool = AtomicBool::new(false);

/// Whether the compiler verifies its own work: graphs between passes, kernels, schedules, memory plans, vector IR,
/// allocations of registers. Always in debug builds; elsewhere from
/// the moment that [`run_verifiers`] was called. Every floor's verifier asks this before it runs.
pub fn verifiers_run() -> bool {
    cfg!(debug_assertions) || ASKED_FOR.load(Ordering::Relaxed)
}

/// Switches the verifiers of all floors on for the rest of the process, in release builds too.
pub fn run_verifiers() {
    ASKED_FOR.store(true, Ordering::Relaxed);
}

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
        node.op.bodies().into_iter().try_for_each(verify)?;
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

#[cfg(test)]
mod tests {
    use crate::{DType, Error, Graph, Node, NodeId, Op, Output, Source, TensorType, UnaryOp};

    /// `%0` is an input, `%1` its negation and the output.
    fn parts() -> (Vec<Node>, Vec<NodeId>, Vec<Output>) {
        let ty = TensorType::fixed(DType::F32, &[2]);
        let node = |op, operands: &[u32]| Node {
            op,
            operands: operands.iter().map(|&i| NodeId(i)).collect(),
            ty: ty.clone(),
            source: Source::new("a.rs", 3),
        };
        let nodes = vec![node(Op::Input { index: 0 }, &[]), node(Op::Unary(UnaryOp::Neg), &[0])];
        (nodes, vec![NodeId(0)], vec![Output { node: NodeId(1), updates: None }])
    }

    fn broken(change: impl Fn(&mut Vec<Node>, &mut Vec<NodeId>, &mut Vec<Output>)) -> Result<(), Error> {
        let (mut nodes, mut inputs, mut outputs) = parts();
        change(&mut nodes, &mut inputs, &mut outputs);
        Graph::from_parts(nodes, inputs, outputs).verify()
    }

    #[test]
    fn every_rule_of_the_graph_is_checked() {
        let message = |result: Result<(), Error>| result.map_err(|e| e.to_string());
        let err = |text: &str| Err(text.to_owned());
        assert_eq!(broken(|_, _, _| ()), Ok(()));
        assert_eq!(
            message(broken(|nodes, _, _| nodes[1].operands[0] = NodeId(1))),
            err("%1 is used before it is defined, at a.rs:3")
        );
        assert_eq!(
            message(broken(|nodes, _, _| nodes[1].operands[0] = NodeId(9))),
            err("%9 is used before it is defined, at a.rs:3")
        );
        assert_eq!(
            message(broken(|nodes, _, _| nodes[1].ty = TensorType::fixed(DType::F32, &[3]))),
            err("%1 is declared f32[3] but its op gives f32[2], at a.rs:3")
        );
        assert_eq!(
            message(broken(|nodes, _, _| nodes[1].op = Op::Unary(UnaryOp::Not))),
            err("%1 = not: operand 0 is f32, expected an integer or bool, at a.rs:3")
        );
        assert_eq!(
            message(broken(|nodes, _, _| nodes[0].ty = TensorType::new(DType::F32, [crate::Dim::from(-1)]))),
            err("input 0: f32[-1] has a negative size, at a.rs:3")
        );
        let order = |node: &str| err(&format!("{node}: inputs must be numbered in order and listed once"));
        assert_eq!(message(broken(|nodes, _, _| nodes[0].op = Op::Input { index: 1 })), order("%0"));
        assert_eq!(message(broken(|_, inputs, _| inputs.clear())), order("%0"));
        assert_eq!(message(broken(|_, inputs, _| inputs.push(NodeId(0)))), order("%0"));
        assert_eq!(
            message(broken(|nodes, _, _| nodes[0].operands.push(NodeId(0)))),
            err("%0 is used before it is defined, at a.rs:3")
        );
    }

    #[test]
    fn outputs_and_updates_are_checked() {
        let message = |result: Result<(), Error>| result.map_err(|e| e.to_string());
        let err = |text: &str| Err(text.to_owned());
        let update = |node, input| Output { node: NodeId(node), updates: Some(input) };
        assert_eq!(broken(|_, _, outputs| outputs[0] = update(1, 0)), Ok(()));
        assert_eq!(
            message(broken(|_, _, outputs| outputs[0].node = NodeId(2))),
            err("output 0 is %2, which the graph does not have")
        );
        assert_eq!(
            message(broken(|_, _, outputs| outputs[0] = update(1, 1))),
            err("output 0 updates input 1: there is no such input")
        );
        assert_eq!(
            message(broken(|_, _, outputs| *outputs = vec![update(1, 0), update(0, 0)])),
            err("output 1 updates input 0: it is updated twice")
        );
        assert_eq!(
            message(broken(|nodes, _, outputs| {
                nodes[1].op = Op::Cast(DType::F64);
                nodes[1].ty.dtype = DType::F64;
                outputs[0] = update(1, 0);
            })),
            err("output 0 updates input 0: the new value has another type")
        );
    }
}
