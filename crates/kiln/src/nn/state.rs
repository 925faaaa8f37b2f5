//! State dicts: the variables of a module by name, and loading tensors into them.

use super::{Met, MetMut, Part, Role, Visit, VisitMut};
use crate::error::{Loaded, ShapeMismatch, StateDictError};
use crate::{Error, Result, Tensor, Var};
use kiln_ir::Source;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Returns the variables of a module whose role is `wanted`, with their names.
pub(super) fn named(module: &(impl Part + ?Sized), wanted: impl Fn(Role) -> bool) -> Vec<(String, Var)> {
    let mut found = Vec::new();
    module.visit(&mut Visit::new(&mut |met| {
        if let Met::Var { name, role, var } = met
            && wanted(role)
        {
            found.push((name.to_owned(), var.clone()));
        }
    }));
    found
}

/// Returns the variables that a state dict holds.
pub(super) fn saved(module: &(impl Part + ?Sized)) -> Vec<(String, Var)> {
    named(module, |role| role != Role::Transient)
}

/// Makes a variable with another value and the same name and gradient setting.
pub(super) fn like(var: &Var, value: &Tensor) -> Var {
    let new = match var.name() {
        Some(name) => Var::named(name, value),
        None => Var::new(value),
    };
    new.requires_grad(var.is_trainable())
}

/// Compares names and shapes.
fn check(variables: &[(String, Var)], tensors: &BTreeMap<String, Tensor>, strict: bool, at: &Source) -> Result<Loaded> {
    let mut names = Loaded::default();
    let mut mismatches = Vec::new();
    for (name, var) in variables {
        match tensors.get(name) {
            None => names.missing.push(name.clone()),
            Some(tensor) if tensor.shape() != var.shape() => mismatches.push(ShapeMismatch {
                name: name.clone(),
                expected: (var.dtype(), var.shape().to_vec()),
                got: (tensor.dtype(), tensor.shape().to_vec()),
            }),
            Some(_) => {}
        }
    }
    let known: HashSet<&String> = variables.iter().map(|(name, _)| name).collect();
    names.unexpected = tensors.keys().filter(|name| !known.contains(name)).cloned().collect();
    let refused = !mismatches.is_empty() || (strict && names != Loaded::default());
    if refused {
        let names = if strict { names } else { Loaded::default() };
        return Err(Error::StateDict { cause: Box::new(StateDictError { names, mismatches }), at: at.clone() });
    }
    Ok(names)
}

/// Sets the variables to the tensors' values.
pub(super) fn load(
    module: &(impl Part + ?Sized),
    tensors: &BTreeMap<String, Tensor>,
    strict: bool,
    at: &Source,
) -> Result<Loaded> {
    let variables = saved(module);
    let loaded = check(&variables, tensors, strict, at)?;
    // Convert everything before anything is changed.
    let mut values = Vec::with_capacity(variables.len());
    for (name, var) in &variables {
        if let Some(tensor) = tensors.get(name) {
            values.push((var, tensor.to_device(var.device())?.to_dtype_at(var.dtype(), at)?));
        }
    }
    for (var, value) in values {
        var.set(&value)?;
    }
    Ok(loaded)
}

/// Replaces the variables by new ones that hold the tensors themselves.
pub(super) fn assign(
    module: &mut (impl Part + ?Sized),
    tensors: &BTreeMap<String, Tensor>,
    strict: bool,
    at: &Source,
) -> Result<Loaded> {
    let loaded = check(&saved(module), tensors, strict, at)?;
    let mut known: HashMap<u64, Var> = HashMap::new();
    module.visit_mut(&mut VisitMut::new(&mut |met| {
        if let MetMut::Var { name, role: Role::Parameter | Role::Buffer, var } = met
            && let Some(tensor) = tensors.get(name)
        {
            // One that is there under two names stays one.
            *var = known.entry(var.id()).or_insert_with(|| like(var, tensor)).clone();
        }
    }));
    Ok(loaded)
}
