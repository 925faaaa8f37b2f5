//! Groups of parameters, each with options of its own.

use super::Optimizer;
use crate::nn::{Loaded, Module};
use crate::{Error, Result, Tensor, Var};
use kiln_ir::Source;
use std::collections::BTreeMap;

/// Several optimizers that take steps together: groups of parameters with rates and options of their own, or even of other kinds.
///
/// ```
/// use kiln::nn::{Linear, Module};
/// use kiln::optim::{AdamConfig, AdamW, Optimizer, ParameterGroups};
/// let (body, head) = (Linear::new(4, 4)?, Linear::new(4, 2)?);
/// let optimizer = ParameterGroups::new(vec![
///     Box::new(AdamW::new(body.parameters(), 1e-4)?),
///     Box::new(AdamW::with(head.parameters(), AdamConfig { weight_decay: 0.0, ..AdamW::config(1e-3) })?),
/// ])?;
/// assert_eq!((optimizer.parameters().len(), optimizer.learning_rates().len()), (4, 2));
/// # Ok::<(), kiln::Error>(())
/// ```
pub struct ParameterGroups {
    groups: Vec<Box<dyn Optimizer + Send + Sync>>,
    parameters: Vec<Var>,
    state: State,
}

/// The variables of all groups.
#[derive(Debug, Module)]
struct State {
    #[module(buffer)]
    groups: Vec<Var>,
}

impl std::fmt::Debug for ParameterGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ParameterGroups({} of {} parameters)", self.groups.len(), self.parameters.len())
    }
}

impl ParameterGroups {
    /// Makes one optimizer of several. There is one at the least, and no parameter is in two.
    #[track_caller]
    pub fn new(groups: Vec<Box<dyn Optimizer + Send + Sync>>) -> Result<ParameterGroups> {
        let refused = |value: usize, expected| {
            let (op, name, at) = ("optimizer", "groups", Source::caller());
            Err(Error::BadArgument { op, name, value: value.into(), expected, at })
        };
        if groups.is_empty() {
            return refused(0, "one group at the least");
        }
        let parameters: Vec<Var> = groups.iter().flat_map(|group| group.parameters().to_vec()).collect();
        if super::distinct(parameters.clone()).len() != parameters.len() {
            return refused(groups.len(), "a parameter is in one group alone");
        }
        let vars = groups.iter().flat_map(|group| group.state().named_buffers().into_iter().map(|(_, var)| var));
        let state = State { groups: vars.collect() };
        Ok(ParameterGroups { groups, parameters, state })
    }

    /// The groups.
    pub fn groups(&self) -> impl Iterator<Item = &dyn Optimizer> {
        self.groups.iter().map(|group| &**group as &dyn Optimizer)
    }
}

impl Optimizer for ParameterGroups {
    #[track_caller]
    fn step(&self) -> Result<()> {
        self.groups.iter().try_for_each(|group| group.step())
    }

    fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    /// The rate of the first group.
    fn learning_rate(&self) -> &Var {
        self.groups[0].learning_rate()
    }

    fn learning_rates(&self) -> Vec<&Var> {
        self.groups.iter().flat_map(|group| group.learning_rates()).collect()
    }

    fn state(&self) -> &dyn Module {
        &self.state
    }

    /// The names of a group's variables begin with its number.
    fn state_dict(&self) -> BTreeMap<String, Tensor> {
        let mut all = BTreeMap::new();
        for (number, group) in self.groups.iter().enumerate() {
            all.extend(group.state_dict().into_iter().map(|(name, tensor)| (format!("{number}.{name}"), tensor)));
        }
        all
    }

    #[track_caller]
    fn load_state_dict(&self, tensors: &BTreeMap<String, Tensor>) -> Result<Loaded> {
        let mut own: Vec<BTreeMap<String, Tensor>> = vec![BTreeMap::new(); self.groups.len()];
        for (name, tensor) in tensors {
            let split = name.split_once('.').and_then(|(number, rest)| Some((number.parse::<usize>().ok()?, rest)));
            match split.filter(|&(number, _)| number < own.len()) {
                Some((number, rest)) => own[number].insert(rest.to_owned(), tensor.clone()),
                // The first group says that it does not know it.
                None => own[0].insert(name.clone(), tensor.clone()),
            };
        }
        let mut all = None;
        for (group, own) in self.groups.iter().zip(&own) {
            all = Some(group.load_state_dict(own)?);
        }
        match all {
            Some(loaded) => Ok(loaded),
            None => self.state.load_state_dict(&BTreeMap::new(), true),
        }
    }
}
