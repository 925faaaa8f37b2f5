//! The `Module` trait: named parameters, state dicts, devices and modes, all implemented by visiting the parts.

use super::state;
use super::{Met, MetMut, Mode, Part, Role, Visit, VisitMut};
use crate::error::Loaded;
use crate::tensor::bundle::Leaf;
use crate::tensor::files::safetensors;
use crate::{DType, Device, Result, Tensor, Var};
use kiln_ir::Source;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// A part of a network with its variables. `#[derive(Module)]` implements it for structs and enums of [`Part`]s; what the
/// module computes is its [`Forward`], or methods of its own.
///
/// ```
/// use kiln::nn::{Forward, Linear, Module};
/// use kiln::{DType, Device, Result, Tensor};
/// #[derive(Module)]
/// struct Mlp { up: Linear, down: Linear }
///
/// impl Forward for Mlp {
///     type Output = Tensor;
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.down.forward(&self.up.forward(x)?.relu()?)
///     }
/// }
///
/// let mlp = Mlp { up: Linear::new(4, 16)?, down: Linear::new(16, 1)?.without_bias() };
/// let names: Vec<String> = mlp.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["up.weight", "up.bias", "down.weight"]);
/// assert_eq!(mlp.num_parameters(), 4 * 16 + 16 + 16);
/// assert_eq!(mlp.forward(&Tensor::ones([2, 4], DType::F32, Device::Cpu)?)?.shape(), [2, 1]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no module",
    label = "is no `Module`",
    note = "put `#[derive(kiln::nn::Module)]` on a struct or an enum of variables, tensors, plain values and modules"
)]
pub trait Module: Part {
    /// Returns the trainable variables with their names; a shared variable is listed once.
    fn named_parameters(&self) -> Vec<(String, Var)> {
        let mut known = HashSet::new();
        let mut all = state::named(self, |role| role == Role::Parameter);
        all.retain(|(_, var)| known.insert(var.id()));
        all
    }

    /// Returns the trainable variables.
    fn parameters(&self) -> Vec<Var> {
        self.named_parameters().into_iter().map(|(_, var)| var).collect()
    }

    /// Returns the other variables with their names.
    fn named_buffers(&self) -> Vec<(String, Var)> {
        state::named(self, |role| role != Role::Parameter)
    }

    /// Returns the number of trainable elements.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(Var::elements).sum()
    }

    /// Returns snapshots of the parameters and buffers by name, with PyTorch's names. While they live, an update has to
    /// copy.
    ///
    /// ```
    /// use kiln::nn::{BatchNorm2d, Module};
    /// let names: Vec<String> = BatchNorm2d::new(8)?.state_dict().into_keys().collect();
    /// assert_eq!(names, ["bias", "num_batches_tracked", "running_mean", "running_var", "weight"]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    fn state_dict(&self) -> BTreeMap<String, Tensor> {
        state::saved(self).into_iter().map(|(name, var)| (name, var.get().detach())).collect()
    }

    /// Sets the variables to the values of a state dict, converted to their dtypes and devices. A tensor of another shape
    /// is always an error; with `strict`, so are missing and unexpected names, which are otherwise returned. On an error
    /// nothing has changed.
    ///
    /// ```
    /// use kiln::nn::{Linear, Module};
    /// let (layer, other) = (Linear::new(2, 3)?, Linear::new(2, 3)?);
    /// layer.load_state_dict(&other.state_dict(), true)?;
    /// assert_eq!(layer.weight.get().to_vec::<f32>()?, other.weight.get().to_vec::<f32>()?);
    /// let message = layer.load_state_dict(&Linear::new(3, 3)?.without_bias().state_dict(), true).unwrap_err().to_string();
    /// assert!(message.starts_with("state dict: bias is missing; weight is f32[3, 2], not f32[3, 3], at "), "{message}");
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    fn load_state_dict(&self, tensors: &BTreeMap<String, Tensor>, strict: bool) -> Result<Loaded> {
        state::load(self, tensors, strict, &Source::caller())
    }

    /// Like [`Module::load_state_dict`], but the tensors themselves become the values, in their own dtypes and on their own
    /// devices: nothing is copied, so that a mapped checkpoint stays mapped. The variables are new ones.
    #[track_caller]
    fn assign_state_dict(&mut self, tensors: &BTreeMap<String, Tensor>, strict: bool) -> Result<Loaded> {
        state::assign(self, tensors, strict, &Source::caller())
    }

    /// Writes the state dict to a safetensors file.
    #[track_caller]
    fn save(&self, path: impl AsRef<Path>) -> Result<()>
    where
        Self: Sized,
    {
        safetensors::save(path, &self.state_dict())
    }

    /// Loads the state dict of a safetensors file, with `strict`.
    ///
    /// ```
    /// use kiln::nn::{Linear, Module};
    /// # let dir = std::env::temp_dir().join(format!("kiln-doc-module-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).unwrap();
    /// let path = dir.join("linear.safetensors");
    /// let (layer, other) = (Linear::new(2, 3)?, Linear::new(2, 3)?);
    /// layer.save(&path)?;
    /// other.load(&path)?;
    /// assert_eq!(layer.weight.get().to_vec::<f32>()?, other.weight.get().to_vec::<f32>()?);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    fn load(&self, path: impl AsRef<Path>) -> Result<()>
    where
        Self: Sized,
    {
        let at = Source::caller();
        let tensors = safetensors::load(path, Device::Cpu)?;
        state::load(self, &tensors, true, &at).map(|_| ())
    }

    /// Moves the module to a device and converts its floats to a dtype; integers keep theirs. Variables that this changes
    /// are replaced: make the optimizer afterwards.
    ///
    /// ```
    /// use kiln::nn::{Linear, Module};
    /// use kiln::{DType, Device};
    /// let layer = Linear::new(2, 3)?.to(Device::Cpu, DType::Bf16)?;
    /// assert_eq!(layer.weight.dtype(), DType::Bf16);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    fn to(mut self, device: Device, dtype: DType) -> Result<Self>
    where
        Self: Sized,
    {
        convert(&mut self, Some(device), Some(dtype))?;
        Ok(self)
    }

    /// Moves the module to a device.
    #[track_caller]
    fn to_device(mut self, device: Device) -> Result<Self>
    where
        Self: Sized,
    {
        convert(&mut self, Some(device), None)?;
        Ok(self)
    }

    /// Converts the floats of the module to a dtype.
    #[track_caller]
    fn to_dtype(mut self, dtype: DType) -> Result<Self>
    where
        Self: Sized,
    {
        convert(&mut self, None, Some(dtype))?;
        Ok(self)
    }

    /// Sets training mode.
    fn train(&self) {
        self.modes().iter().for_each(|mode| mode.set_training(true));
    }

    /// Sets evaluation mode: no dropout, and batch norm uses the running statistics.
    ///
    /// ```
    /// use kiln::nn::{Dropout, Forward, Module};
    /// use kiln::{DType, Device, Tensor};
    /// let layer = Dropout::new(0.5);
    /// layer.eval();
    /// let x = Tensor::ones(100, DType::F32, Device::Cpu)?;
    /// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, [1.; 100]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    fn eval(&self) {
        self.modes().iter().for_each(|mode| mode.set_training(false));
    }

    /// Returns the flags that [`Module::train`] sets: the only state besides its variables that can change what a module
    /// computes without mutable access to it.
    fn modes(&self) -> Vec<Mode> {
        let mut modes = Vec::new();
        self.visit(&mut Visit::new(&mut |met| {
            if let Met::Mode(mode) = met {
                modes.push(mode.clone());
            }
        }));
        modes
    }

    /// Visits every plain value and every flag that the module's results may depend on, always in the same order.
    fn guards(&self, each: &mut dyn FnMut(Leaf<'_>)) {
        self.visit(&mut Visit::new(&mut |met| match met {
            Met::Value(leaf) => each(leaf),
            Met::Mode(mode) => each(Leaf::Bool(mode.is_training())),
            Met::Var { .. } => {}
        }));
    }

    /// Gives the variables their names in the state dict, for messages and `explain`: see [`Var::path`]. Compiling a module
    /// does this; for a function that calls a module, call it yourself.
    ///
    /// ```
    /// use kiln::nn::{Linear, Module};
    /// let layer = Linear::new(2, 3)?;
    /// layer.name_variables();
    /// assert_eq!(layer.weight.path(), Some("weight"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    fn name_variables(&self) {
        for (name, variable) in state::saved(self) {
            variable.set_path(&name);
        }
    }

    /// Clears the gradients of the parameters.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(Var::zero_grad);
    }

    /// Sets whether the parameters require gradients.
    ///
    /// ```
    /// use kiln::nn::{Linear, Module};
    /// let frozen = Linear::new(2, 3)?;
    /// frozen.set_requires_grad(false);
    /// assert!(!frozen.weight.is_trainable());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    fn set_requires_grad(&self, wanted: bool) {
        self.parameters().iter().for_each(|parameter| {
            parameter.requires_grad(wanted);
        });
    }
}

/// The forward pass of a module from one input: a tensor, a tuple, or a struct with `#[derive(Bundle)]`. A module may
/// implement `Forward` for several input types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not said to make anything of `{Input}`",
    label = "has no `Forward<{Input}>`",
    note = "write `impl kiln::nn::Forward<{Input}> for {Self}`, beside `#[derive(kiln::nn::Module)]`"
)]
pub trait Forward<Input: ?Sized = Tensor> {
    /// The result of the forward pass.
    type Output;

    /// Computes the forward pass.
    fn forward(&self, input: &Input) -> Result<Self::Output>;
}

impl<M: Module + ?Sized> Module for Box<M> {}
impl<M: Module> Module for Option<M> {}
impl<M: Module> Module for Vec<M> {}
impl<M: Module, const N: usize> Module for [M; N] {}
impl<M: Module> Module for BTreeMap<String, M> {}
impl<M: Module> Module for HashMap<String, M> {}

impl<Input: ?Sized, M: Forward<Input> + ?Sized> Forward<Input> for Box<M> {
    type Output = M::Output;
    #[track_caller]
    fn forward(&self, input: &Input) -> Result<M::Output> {
        let _relay = Source::relay(file!(), Source::caller());
        (**self).forward(input)
    }
}

/// Replaces what is elsewhere or, being float, of another dtype. A variable that is there twice stays one.
#[track_caller]
fn convert(module: &mut (impl Part + ?Sized), device: Option<Device>, dtype: Option<DType>) -> Result<()> {
    let at = Source::caller();
    let converted = |tensor: &Tensor| -> Result<Tensor> {
        let tensor = device.map_or(Ok(tensor.clone()), |device| tensor.to_device(device))?;
        match dtype.filter(|_| tensor.dtype().is_float()) {
            Some(dtype) => tensor.to_dtype_at(dtype, &at),
            None => Ok(tensor),
        }
    };
    let mut known: HashMap<u64, Var> = HashMap::new();
    let mut outcome = Ok(());
    module.visit_mut(&mut VisitMut::new(&mut |met| {
        let done = match met {
            MetMut::Tensor(tensor) => converted(tensor).map(|new| *tensor = new),
            MetMut::Var { var, .. } => {
                let new = known.get(&var.id()).map_or_else(|| converted_var(var, &converted), |new| Ok(new.clone()));
                new.map(|new| {
                    known.insert(var.id(), new.clone());
                    *var = new;
                })
            }
        };
        if let (Ok(()), Err(error)) = (&outcome, done) {
            outcome = Err(error);
        }
    }));
    outcome
}

/// The variable itself, where nothing changes.
fn converted_var(var: &Var, converted: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Var> {
    let old = var.get().detach();
    let value = converted(&old)?;
    if value.dtype() == old.dtype() && value.device() == old.device() {
        return Ok(var.clone());
    }
    let new = state::like(var, &value);
    if let Some(grad) = var.grad() {
        new.set_grad(Some(converted(&grad)?))?;
    }
    Ok(new)
}
