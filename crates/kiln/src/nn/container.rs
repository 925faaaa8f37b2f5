//! Containers of modules.

use super::{Forward, Module};
use crate::{Result, Tensor};
use kiln_ir::Source;
use std::fmt;
use std::ops::Index;

/// A module from tensor to tensor, as [`Sequential`] holds them. Implemented for every such module.
pub trait Layer: Module + Forward<Tensor, Output = Tensor> + Send + Sync {
    /// [`Forward::forward`], called from this file whatever the layer is: through a table of functions the layer would
    /// take its own line for its caller's.
    #[doc(hidden)]
    fn pass(&self, x: &Tensor) -> Result<Tensor> {
        self.forward(x)
    }
}

impl<M: Module + Forward<Tensor, Output = Tensor> + Send + Sync> Layer for M {}

/// Modules of one type, by number. Any vector of modules is a part of a module.
///
/// ```
/// use kiln::nn::{Linear, Module, ModuleList};
/// #[derive(Module)]
/// struct Tower { layers: ModuleList<Linear> }
/// let tower = Tower { layers: (0..3).map(|_| Linear::new(4, 4)).collect::<Result<_, _>>()? };
/// assert_eq!(tower.named_parameters()[2].0, "layers.1.weight");
/// # Ok::<(), kiln::Error>(())
/// ```
pub type ModuleList<M> = Vec<M>;

/// Applies layers one after another.
///
/// ```
/// use kiln::nn::{Forward, Linear, Module, Relu, Sequential};
/// use kiln::{DType, Device, Tensor};
/// let model = Sequential::new().then(Linear::new(4, 8)?).then(Relu).then(Linear::new(8, 2)?);
/// assert_eq!(model.forward(&Tensor::ones([3, 4], DType::F32, Device::Cpu)?)?.shape(), [3, 2]);
/// let names: Vec<String> = model.state_dict().into_keys().collect();
/// assert_eq!(names, ["0.bias", "0.weight", "2.bias", "2.weight"]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Default, Module)]
pub struct Sequential(Vec<Box<dyn Layer>>);

impl Sequential {
    /// Makes an empty sequence, which returns its input.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a layer and returns the sequence.
    pub fn then(mut self, layer: impl Layer + 'static) -> Sequential {
        self.push(layer);
        self
    }

    /// Appends a layer.
    pub fn push(&mut self, layer: impl Layer + 'static) {
        self.0.push(Box::new(layer));
    }

    /// Returns the number of layers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the layers, in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Layer> {
        self.0.iter().map(|layer| &**layer)
    }
}

impl Index<usize> for Sequential {
    type Output = dyn Layer;
    fn index(&self, number: usize) -> &(dyn Layer + 'static) {
        &*self.0[number]
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.named_parameters().iter().map(|(name, var)| (name, var))).finish()
    }
}

impl Forward for Sequential {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _relay = Source::relay(file!(), Source::caller());
        let mut x = x.clone();
        for layer in &self.0 {
            x = (**layer).pass(&x)?;
        }
        Ok(x)
    }
}
