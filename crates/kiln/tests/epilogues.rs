//! What follows a convolution is part of its launch: bias, batch norm, activation, residual. Under `freeze` a batch norm is in the weights.

use kiln::nn::{BatchNorm2d, Conv2d, Forward, Module};
use kiln::{Conv, DType, Device, Options, Result, Tensor};
use std::sync::Arc;

#[derive(Module)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    reduce: Conv2d,
    expand: Conv2d,
    project: Conv2d,
}

impl Block {
    fn new(channels: usize) -> Result<Block> {
        let around = || Conv { padding: [1, 1], ..Conv::default() };
        let block = Block {
            conv1: Conv2d::new(channels, channels, [3, 3], around())?,
            bn1: BatchNorm2d::new(channels)?,
            conv2: Conv2d::new(channels, channels, [3, 3], around())?.without_bias(),
            bn2: BatchNorm2d::new(channels)?,
            reduce: Conv2d::new(channels, channels / 4, [1, 1], Conv::default())?,
            expand: Conv2d::new(channels / 4, channels, [1, 1], Conv::default())?,
            project: Conv2d::new(channels, channels, [1, 1], Conv::default())?.without_bias(),
        };
        // Statistics that are not those of a new norm.
        for (name, buffer) in block.named_buffers() {
            if name.ends_with("running_mean") || name.ends_with("running_var") {
                buffer.set(&Tensor::rand(buffer.shape(), DType::F32, Device::Cpu)?.add(0.5)?)?;
            }
        }
        block.eval();
        Ok(block)
    }

    /// max(norm(conv(max(norm(conv(x)), 0))) + x, 0).
    fn residual(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.bn1.forward(&self.conv1.forward(x)?)?.relu()?;
        self.bn2.forward(&self.conv2.forward(&inner)?)?.add(x)?.relu()
    }

    /// gate · x, as in an EfficientNet.
    fn scaled(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.bn1.forward(&self.conv1.forward(x)?)?.silu()?;
        let few = self.reduce.forward(&inner.mean_keepdim([2, 3])?)?.silu()?;
        inner.mul(self.expand.forward(&few)?.sigmoid()?)
    }

    /// x + conv(gate · x).
    fn squeezed(&self, x: &Tensor) -> Result<Tensor> {
        self.bn2.forward(&self.conv2.forward(&self.scaled(x)?)?)?.add(x)
    }

    /// The same with windows of one pixel.
    fn projected(&self, x: &Tensor) -> Result<Tensor> {
        self.bn2.forward(&self.project.forward(&self.scaled(x)?)?)?.add(x)
    }
}

#[test]
fn what_follows_a_convolution_is_in_its_launch() -> Result<()> {
    kiln::manual_seed(9);
    let block = Arc::new(Block::new(16)?);
    let x = Tensor::randn([2, 16, 14, 14], DType::F32, Device::Cpu)?;
    for freeze in [false, true] {
        let options = || Options { fullgraph: true, freeze, ..Options::default() };
        let own = block.clone();
        let fast = kiln::compile_with(move |x: &Tensor| own.residual(x), options());
        let (got, want) = (fast.call(&x)?, block.residual(&x)?);
        assert!(got.allclose(&want, 1e-4, 1e-5)?, "freeze {freeze}: {got}\nnot {want}");
        let kernels = &fast.programs()[0].kernels;
        assert_eq!(kernels.len(), 2, "freeze {freeze}: {kernels:#?}");
        let own = block.clone();
        let fast = kiln::compile_with(move |x: &Tensor| own.squeezed(x), options());
        let (got, want) = (fast.call(&x)?, block.squeezed(&x)?);
        assert!(got.allclose(&want, 1e-4, 1e-5)?, "freeze {freeze}: {got}\nnot {want}");
        // Two convolutions, the mean, its two products; the scaled channels are read by windows and stored once.
        let kernels = &fast.programs()[0].kernels;
        assert!(kernels.len() <= 6, "freeze {freeze}: {kernels:#?}");
    }
    Ok(())
}

/// Pixels are multiplied by their gates as the convolution after them reads them, of one image and of several.
#[test]
fn gates_are_read_by_the_convolution_after_them() -> Result<()> {
    kiln::manual_seed(11);
    let block = Arc::new(Block::new(32)?);
    for (images, freeze) in [(1, false), (1, true), (3, false), (3, true)] {
        let x = Tensor::randn([images, 32, 14, 14], DType::F32, Device::Cpu)?;
        let own = block.clone();
        let options = Options { fullgraph: true, freeze, ..Options::default() };
        let fast = kiln::compile_with(move |x: &Tensor| own.projected(x), options);
        let (got, want) = (fast.call(&x)?, block.projected(&x)?);
        assert!(got.allclose(&want, 1e-4, 1e-5)?, "{images} images, freeze {freeze}: {got}\nnot {want}");
        // A convolution, the mean, its two products, and the convolution of what they scale.
        let kernels = &fast.programs()[0].kernels;
        assert_eq!(kernels.len(), 5, "{images} images, freeze {freeze}: {kernels:#?}");
    }
    Ok(())
}

#[test]
fn frozen_norms_follow_their_statistics() -> Result<()> {
    let block = Arc::new(Block::new(8)?);
    let x = Tensor::randn([1, 8, 6, 6], DType::F32, Device::Cpu)?;
    let own = block.clone();
    let fast = kiln::compile_with(move |x: &Tensor| own.residual(x), Options { freeze: true, ..Options::default() });
    fast.call(&x)?;
    for (name, buffer) in block.named_buffers() {
        if name.ends_with("running_var") {
            buffer.set(&buffer.get().mul(4.0)?)?;
        }
    }
    assert!(fast.call(&x)?.allclose(&block.residual(&x)?, 1e-4, 1e-5)?);
    Ok(())
}
