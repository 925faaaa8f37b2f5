//! A residual network of bottleneck blocks (ResNet-50 and smaller ones), of `kiln::nn`'s modules, with random weights.

use kiln::nn::{BatchNorm2d, Conv2d, Forward, Linear, Module};
use kiln::{Conv, Pool, Result, Tensor};

/// The sizes of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Blocks of each of the four stages.
    pub blocks: [usize; 4],
    /// Channels inside of the first stage's blocks; each further stage has twice as many, and blocks give four times as many.
    pub width: usize,
    /// Results.
    pub classes: usize,
}

impl Config {
    /// ResNet-50.
    pub const RESNET50: Config = Config { blocks: [3, 4, 6, 3], width: 64, classes: 1000 };
}

/// A convolution without a bias, then a batch norm.
#[derive(Debug, Module)]
struct Layer {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl Layer {
    fn new(input: usize, output: usize, window: usize, stride: usize) -> Result<Layer> {
        let options = Conv { stride: [stride; 2], padding: [window / 2; 2], ..Conv::default() };
        let conv = Conv2d::new(input, output, [window; 2], options)?.without_bias();
        Ok(Layer { conv, norm: BatchNorm2d::new(output)? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)
    }
}

/// relu(c(relu(b(relu(a(x))))) + x).
#[derive(Debug, Module)]
struct Bottleneck {
    a: Layer,
    b: Layer,
    c: Layer,
    /// Of what is added, where it has other sizes.
    shortcut: Option<Layer>,
}

impl Bottleneck {
    fn new(input: usize, width: usize, stride: usize) -> Result<Bottleneck> {
        let output = 4 * width;
        let shortcut = match stride > 1 || input != output {
            true => Some(Layer::new(input, output, 1, stride)?),
            false => None,
        };
        let (a, b) = (Layer::new(input, width, 1, 1)?, Layer::new(width, width, 3, stride)?);
        Ok(Bottleneck { a, b, c: Layer::new(width, output, 1, 1)?, shortcut })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.a.forward(x)?.relu()?;
        let y = self.c.forward(&self.b.forward(&y)?.relu()?)?;
        let beside = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x)?,
            None => x.clone(),
        };
        (y + beside)?.relu()
    }
}

/// The network: `[n, 3, height, width]` to `[n, classes]`.
#[derive(Debug, Module)]
pub struct ResNet {
    stem: Layer,
    blocks: Vec<Bottleneck>,
    head: Linear,
}

impl ResNet {
    /// Random weights, in evaluation mode.
    pub fn new(config: &Config) -> Result<ResNet> {
        let stem = Layer::new(3, config.width, 7, 2)?;
        let (mut blocks, mut channels) = (Vec::new(), config.width);
        for (stage, &count) in config.blocks.iter().enumerate() {
            let width = config.width << stage;
            for block in 0..count {
                let stride = if block == 0 && stage > 0 { 2 } else { 1 };
                blocks.push(Bottleneck::new(channels, width, stride)?);
                channels = 4 * width;
            }
        }
        let network = ResNet { stem, blocks, head: Linear::new(channels, config.classes)? };
        network.eval();
        Ok(network)
    }

    /// The results of images.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let pool = Pool { stride: [2, 2], padding: [1, 1], ..Pool::new([3, 3]) };
        let mut x = self.stem.forward(images)?.relu()?.max_pool2d(&pool)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&x.mean([2, 3])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Weights;
    use kiln::{DType, Device};

    /// Eager and compiled are one function, in both dtypes and for images of either order.
    #[test]
    fn a_small_network_is_the_same_eager_and_compiled() {
        let config = Config { blocks: [1, 2, 1, 1], width: 8, classes: 10 };
        let images = Weights::new(5).normal(&[2, 32, 32, 3], 1.0).unwrap().permute([0, 3, 1, 2]).unwrap();
        for (dtype, bound) in [(DType::F32, 1e-5), (DType::Bf16, 0.02)] {
            let network = ResNet::new(&config).unwrap().to(Device::Cpu, dtype).unwrap();
            for images in [images.clone(), images.contiguous().unwrap()] {
                let images = images.to_dtype(dtype).unwrap();
                let eager = network.forward(&images).unwrap();
                assert_eq!(eager.shape(), [2, 10]);
                let compiled = kiln::compile(|images: &Tensor| network.forward(images));
                let (y, eager) = (compiled.call(&images).unwrap(), eager.to_dtype(DType::F32).unwrap());
                assert!(y.to_dtype(DType::F32).unwrap().allclose(&eager, bound, bound).unwrap(), "{dtype}");
            }
        }
    }
}
