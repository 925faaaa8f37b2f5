//! Walks a tape backwards from its end.

use crate::tensor::eager::{self, Eager, Operation};
use crate::tensor::tape::{self, Edges, Kind, Node, Tape};
use crate::tensor::tracer;
use crate::{Device, Error, Result, Tensor};
use kiln_ir::build::GraphBuilder;
use kiln_ir::{NodeId, Op, Scalar, Source};
use std::collections::HashMap;
use std::sync::Arc;

/// Where a walk collects gradients.
pub(crate) enum Targets<'a> {
    /// At every variable it reaches.
    Variables,
    /// At these nodes of the tape.
    Places(&'a [Tape]),
    /// At these nodes; the walk does not continue past the first few.
    Cut(&'a [Tape], usize),
}

impl Targets<'_> {
    fn places(&self) -> &[Tape] {
        match self {
            Targets::Variables => &[],
            Targets::Places(places) | Targets::Cut(places, _) => places,
        }
    }

    fn include(&self, node: &Arc<Node>) -> bool {
        match self {
            Targets::Variables => matches!(node.kind, Kind::Leaf(Some(_)) | Kind::Argument(_)),
            _ => self.places().iter().any(|place| Arc::ptr_eq(&place.node, node)),
        }
    }

    fn is_cut(&self, node: &Arc<Node>) -> bool {
        matches!(self, Targets::Cut(places, cuts) if places[..*cuts].iter().any(|cut| Arc::ptr_eq(&cut.node, node)))
    }
}

/// A node of a walk, with what its users gave it, a list a result.
struct Visit {
    node: Arc<Node>,
    edges: Edges,
    useful: bool,
    cotangents: Vec<Vec<Tensor>>,
}

/// The cotangents of the targets, given those of tensors on the tape: of places in their order, of variables into their
/// slots.
pub(crate) fn propagate(
    ends: Vec<(Tape, Tensor)>,
    targets: &Targets<'_>,
    device: Device,
    at: &Source,
) -> Result<Vec<Option<Tensor>>> {
    let (mut visits, numbers) = order(ends.iter().map(|(end, _)| end), targets, at)?;
    let number = |tape: &Tape| numbers[&Arc::as_ptr(&tape.node)];
    let mut emit = Eager::at(device, at);
    let places = targets.places();
    let mut found: Vec<Option<Tensor>> = vec![None; places.len()];
    for (end, seed) in ends {
        give(&mut visits[number(&end)].cotangents, end.result, seed);
    }
    for current in (0..visits.len()).rev() {
        let given = std::mem::take(&mut visits[current].cotangents);
        if !visits[current].useful || given.iter().all(Vec::is_empty) {
            continue;
        }
        let mut cotangents: Vec<Option<Tensor>> = Vec::with_capacity(given.len());
        for given in given {
            cotangents.push(kiln_passes::accumulate(&mut emit, &given)?);
        }
        let node = visits[current].node.clone();
        for (found, place) in found.iter_mut().zip(places).filter(|(_, place)| Arc::ptr_eq(&place.node, &node)) {
            *found = cotangents.get(place.result).cloned().flatten();
            if matches!(targets, Targets::Cut(..)) {
                // Whoever adds these up would count what is the same place twice.
                if let Some(cotangent) = cotangents.get_mut(place.result) {
                    *cotangent = None;
                }
            }
        }
        let edges = std::mem::take(&mut visits[current].edges);
        let wanted: Vec<bool> =
            edges.iter().map(|edge| edge.as_ref().is_some_and(|edge| visits[number(edge)].useful)).collect();
        let back = match &node.kind {
            Kind::Leaf(slot) => {
                if let (Targets::Variables, Some(slot), Some(Some(gradient))) = (targets, slot, cotangents.first()) {
                    slot.add(gradient, at)?;
                }
                continue;
            }
            Kind::Argument(argument) => {
                if let (Targets::Variables, Some(Some(cotangent))) = (targets, cotangents.first()) {
                    tracer::backward_of_argument(*argument, cotangent, at)?;
                }
                continue;
            }
            _ if !wanted.contains(&true) => continue,
            Kind::Result => vec![cotangents.into_iter().next().flatten()],
            Kind::Custom(custom) => custom.gradient(&node, &edges, &cotangents, at)?,
            Kind::View { op, dtype, shape, at: line } => {
                let Some(Some(cotangent)) = cotangents.first() else { continue };
                let zero = Tensor::scalar_at(Scalar::float(*dtype, 0.0), device, line)?;
                // Only its type is looked at.
                let operand = zero.broadcast_at("backward", &crate::tensor::dim::plain(shape), line)?;
                kiln_passes::gradient(&mut emit, op, &[operand], cotangent, cotangent, &[true])?
            }
            Kind::Operation { rule, saved, at: line } => {
                let present: Vec<bool> = cotangents.iter().map(Option::is_some).collect();
                let is_wanted = |(operand, &wanted): (usize, &bool)| wanted && rule.reaches(operand, &present);
                let wanted: Vec<bool> = wanted.iter().enumerate().map(is_wanted).collect();
                if !wanted.contains(&true) {
                    continue;
                }
                let gradient = rule.gradient(&wanted, &present)?;
                let taped = |&i: &usize| saved[i].as_ref().map(|t| t.with_tape(edges[i].clone()));
                let mut inputs: Vec<Tensor> = gradient.operands.iter().filter_map(taped).collect();
                let on_tape: Vec<bool> = cotangents.iter().map(|c| c.as_ref().is_some_and(Tensor::has_tape)).collect();
                inputs.extend(cotangents.into_iter().flatten());
                let inputs: Vec<&Tensor> = inputs.iter().collect();
                let write = |b: &mut GraphBuilder, inputs: &[NodeId]| gradient.write(b, inputs);
                let results = eager::run(Operation::Gradient(gradient.id), &inputs, device, &write, line)?;
                let is_taped = |source: usize| match source.checked_sub(edges.len()) {
                    Some(cotangent) => on_tape.get(cotangent) == Some(&true),
                    None => edges[source].is_some(),
                };
                let mut results = results.into_iter().peekable();
                let result = |(operand, &is_wanted): (usize, &bool)| {
                    let result = results.next_if(|_| is_wanted)?;
                    let is_constant = result.has_tape() && !rule.is_on_tape(operand, &wanted, &present, &is_taped);
                    Some(if is_constant { result.detach() } else { result })
                };
                wanted.iter().enumerate().map(result).collect()
            }
        };
        for (edge, cotangent) in edges.iter().zip(back) {
            if let (Some(edge), Some(cotangent)) = (edge, cotangent) {
                give(&mut visits[number(edge)].cotangents, edge.result, cotangent);
            }
        }
    }
    Ok(found)
}

fn give(cotangents: &mut Vec<Vec<Tensor>>, result: usize, cotangent: Tensor) {
    if cotangents.len() <= result {
        cotangents.resize_with(result + 1, Vec::new);
    }
    cotangents[result].push(cotangent);
}

/// Every node before the ends, operands before results, and its number.
fn order<'a>(
    ends: impl Iterator<Item = &'a Tape>,
    targets: &Targets<'_>,
    at: &Source,
) -> Result<(Vec<Visit>, HashMap<*const Node, usize>)> {
    let mut visits: Vec<Visit> = Vec::new();
    let mut numbers: HashMap<*const Node, usize> = HashMap::new();
    // A node comes by twice: first its operands are put before it, then it gets its number.
    let mut waiting: Vec<(Arc<Node>, Option<Edges>)> = ends.map(|end| (end.node.clone(), None)).collect();
    while let Some((node, edges)) = waiting.pop() {
        if numbers.contains_key(&Arc::as_ptr(&node)) {
            continue;
        }
        let Some(edges) = edges else {
            if targets.is_cut(&node) {
                waiting.push((node, Some(Vec::new())));
                continue;
            }
            let Some(edges) = node.edges() else { return Err(Error::TapeReleased { at: at.clone() }) };
            let before: Vec<Arc<Node>> = edges.iter().flatten().map(|edge| edge.node.clone()).collect();
            waiting.push((node, Some(edges)));
            waiting.extend(before.into_iter().map(|node| (node, None)));
            continue;
        };
        let leads = |edge: &Tape| visits[numbers[&Arc::as_ptr(&edge.node)]].useful;
        let useful = targets.include(&node) || edges.iter().flatten().any(leads);
        numbers.insert(Arc::as_ptr(&node), visits.len());
        visits.push(Visit { node, edges, useful, cotangents: Vec::new() });
    }
    Ok((visits, numbers))
}

/// Returns the tensor as a node of its own on the tape, so that gradients by it can be requested although it has a tape
/// already.
pub(super) fn alias(tensor: &Tensor, at: &Source) -> Result<Tensor> {
    let same = || Op::Reshape { shape: tensor.ty().shape };
    let is_recorded = tensor.is_traced() || tracer::is_active();
    match tensor.tape() {
        // Also inside of `no_grad`: whoever asks for it wants a tape.
        Some(_) if is_recorded => tape::with_enabled(true, || eager::primitive(&same(), &[tensor], at)),
        Some(_) => Ok(tape::record_view(same(), tensor, tensor.detached(), at)),
        // A tape that begins anew at each call is no part of a held tensor.
        None if is_recorded => {
            tracer::alias(tensor, Some(Tape::start())).ok_or_else(|| Error::Escaped { at: at.clone() })
        }
        None => Ok(tensor.with_tape(Some(Tape::start()))),
    }
}
