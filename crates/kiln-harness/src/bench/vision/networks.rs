//! The networks of `kiln bench vision`: which there are, their weights and inputs, and what is called.

use super::resnet::{Config, ResNet};
use crate::models::Weights;
use kiln::nn::Module;
use kiln::optim::{AdamW, Optimizer, Sgd, SgdConfig};
use kiln::{DType, Device, Result, Tensor};
use kiln_llm::models::convnet::presets::{VISION_PRESETS, VisionPreset};
use kiln_llm::models::unet::{Unet, UnetConfig};
use kiln_llm::vision::PictureModel;
use kiln_terminal::failure::Failure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// By how much the U-Net is narrower than Stable Diffusion's.
const NARROWER: usize = 4;
/// Tokens of the text beside the U-Net's pictures.
const TOKENS: usize = 77;

/// A network, forward or a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// One of [`VISION_PRESETS`]: logits of pictures.
    Preset(&'static VisionPreset),
    /// Stable Diffusion's U-Net, narrower: the noise in pictures of an eighth of the size.
    Unet,
    /// ResNet-50: cross-entropy, gradients, SGD with momentum.
    TrainResNet,
    /// The U-Net: mean square error, gradients, AdamW.
    TrainUnet,
}

/// What is called with the inputs.
pub type Function = Box<dyn Fn(&Vec<Tensor>) -> Result<Tensor> + Send + Sync>;

impl Network {
    /// All of them.
    pub fn all() -> Vec<Network> {
        let trained = [Network::Unet, Network::TrainResNet, Network::TrainUnet];
        VISION_PRESETS.iter().map(Network::Preset).chain(trained).collect()
    }

    /// The network of a name.
    pub fn named(name: &str) -> std::result::Result<Network, Failure> {
        let names = || Network::all().iter().map(Network::name).collect::<Vec<_>>().join(", ");
        let found = Network::all().into_iter().find(|network| network.name() == name);
        found.ok_or_else(|| Failure::unusable(format!("there is no network '{name}'")).advise(names()))
    }

    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Network::Preset(preset) => preset.name.into(),
            Network::Unet => "unet".into(),
            Network::TrainResNet => "resnet-50:train".into(),
            Network::TrainUnet => "unet:train".into(),
        }
    }

    /// Whether it is trained.
    pub fn is_trained(&self) -> bool {
        matches!(self, Network::TrainResNet | Network::TrainUnet)
    }

    /// What the peer is told beside files.
    pub fn to_json(self) -> Value {
        let kind = if self.is_trained() { "train" } else { "forward" };
        match self {
            Network::Preset(preset) => json!({"kind": kind, "network": preset.architecture}),
            Network::TrainResNet => json!({"kind": kind, "network": "resnet50"}),
            Network::Unet | Network::TrainUnet => {
                let config = unet();
                let sizes = json!({
                    "widths": config.block_out_channels, "layers": config.layers_per_block, "heads": config.heads,
                    "text": config.cross_attention_dim, "groups": config.norm_groups,
                });
                json!({"kind": kind, "network": "unet", "sizes": sizes})
            }
        }
    }

    /// Random weights, the same ones at each call but for those of modules, which [`Network::function`] gets back.
    pub fn weights(self, dtype: DType) -> kiln_llm::Result<BTreeMap<String, Tensor>> {
        Ok(match self {
            Network::Preset(preset) => preset.checkpoint(1, dtype, Device::Cpu)?.tensors,
            Network::Unet | Network::TrainUnet => Unet::new(&unet())?.to(Device::Cpu, dtype)?.state_dict(),
            Network::TrainResNet => ResNet::new(&Config::RESNET50)?.to(Device::Cpu, dtype)?.state_dict(),
        })
    }

    /// What goes in: pictures in the order of the device's peers, then the rest.
    pub fn inputs(self, batch: usize, image: usize, dtype: DType, device: Device) -> Result<Vec<Tensor>> {
        let random = Weights::new(5);
        let normal = |shape: &[usize]| random.normal(shape, 1.0)?.to_dtype(dtype)?.to_device(device);
        let pictures = |channels: usize, side: usize| match device {
            Device::Cpu => normal(&[batch, channels, side, side]),
            _ => normal(&[batch, side, side, channels])?.permute([0, 3, 1, 2]),
        };
        let classes = || random.tokens(1, batch, 1000)?.reshape([batch])?.to_device(device);
        let side = (image / 64).max(1) * 8;
        let mut inputs = match self {
            Network::Preset(_) | Network::TrainResNet => vec![pictures(3, image)?],
            Network::Unet | Network::TrainUnet => vec![
                pictures(4, side)?,
                Tensor::full(batch, 500.0, DType::F32, device)?,
                normal(&[batch, TOKENS, unet().cross_attention_dim])?,
            ],
        };
        match self {
            Network::TrainResNet => inputs.push(classes()?),
            Network::TrainUnet => inputs.push(pictures(4, side)?),
            Network::Preset(_) | Network::Unet => {}
        }
        Ok(inputs)
    }

    /// A new network with these weights: its answer, or the loss of the next training step.
    pub fn function(
        self,
        weights: &BTreeMap<String, Tensor>,
        dtype: DType,
        device: Device,
    ) -> std::result::Result<Function, Box<dyn std::error::Error>> {
        Ok(match self {
            Network::Preset(preset) => {
                let mut tensors = BTreeMap::new();
                for (name, tensor) in weights {
                    tensors.insert(name.clone(), tensor.to_device(device)?);
                }
                let checkpoint = kiln_llm::Checkpoint { tensors, ..Default::default() };
                let network = PictureModel::new(Some(&preset.config()?), &checkpoint, dtype)?;
                Box::new(move |inputs: &Vec<Tensor>| network.logits(&inputs[0]))
            }
            Network::Unet | Network::TrainUnet => {
                let network = Unet::new(&unet())?;
                network.load_state_dict(weights, true)?;
                let network = Arc::new(network.to(device, dtype)?);
                let inside = network.clone();
                let forward = move |x: &Vec<Tensor>| inside.forward(&x[0], &x[1], &x[2]);
                match self {
                    Network::Unet => Box::new(forward),
                    _ => step(AdamW::new(network.parameters(), 1e-4)?, move |x| forward(x)?.mse_loss(&x[3])),
                }
            }
            Network::TrainResNet => {
                let network = ResNet::new(&Config::RESNET50)?;
                network.load_state_dict(weights, true)?;
                network.train();
                let network = Arc::new(network.to(device, dtype)?);
                let sgd = Sgd::with(network.parameters(), SgdConfig { momentum: 0.9, ..Sgd::config(1e-3) })?;
                step(sgd, move |x| network.forward(&x[0])?.cross_entropy(&x[1]))
            }
        })
    }
}

fn unet() -> UnetConfig {
    UnetConfig::sd15().divided(NARROWER)
}

/// Loss, gradients, update.
fn step(
    optimizer: impl Optimizer + Send + Sync + 'static,
    loss: impl Fn(&Vec<Tensor>) -> Result<Tensor> + Send + Sync + 'static,
) -> Function {
    Box::new(move |inputs| {
        let loss = loss(inputs)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss.detach())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two functions of one network are the same one, and a step is a step.
    #[test]
    fn networks_have_the_weights_that_they_are_given() {
        let network = Network::named("unet:train").unwrap();
        let weights = network.weights(DType::F32).unwrap();
        let inputs = network.inputs(1, 64, DType::F32, Device::Cpu).unwrap();
        let calls: Vec<Function> =
            (0..2).map(|_| network.function(&weights, DType::F32, Device::Cpu).unwrap()).collect();
        let loss = |call: &Function| call(&inputs).unwrap().item::<f32>().unwrap();
        let first = loss(&calls[0]);
        assert_eq!(first, loss(&calls[1]));
        assert!(loss(&calls[0]) < first);
        assert!(Network::named("resnet-51").is_err());
    }
}
