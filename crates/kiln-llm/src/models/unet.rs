//! The U-Net of Stable Diffusion 1.x, at any width: what a noisy picture, a time and vectors of a text say of the noise.
//!
//! ```text
//!  x ─▶ conv ─▶ down ×4 (residual, attention to itself and the text; half the size) ─▶ middle ─▶ up ×4 (with what down kept) ─▶ norm, conv ─▶ noise
//!  time ─▶ sines ─▶ two products ─▶ an offset a channel in every residual part
//! ```
//!
//! Parts have diffusers' names (`UNet2DConditionModel`), so that its checkpoints are state dicts of this module.

use kiln::nn::{Conv2d, Forward, GroupNorm, LayerNorm, Linear, Module};
use kiln::{Conv, DType, Device, Result, Tensor};

/// Sizes of a [`Unet`].
#[derive(Debug, Clone, PartialEq)]
pub struct UnetConfig {
    /// Channels of the picture, or of what stands for it.
    pub in_channels: usize,
    /// Channels of the noise.
    pub out_channels: usize,
    /// Channels at each size.
    pub block_out_channels: Vec<usize>,
    /// Residual parts at each size on the way down; one more on the way up.
    pub layers_per_block: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Width of the text's vectors.
    pub cross_attention_dim: usize,
    /// Groups of channels of the norms.
    pub norm_groups: usize,
}

impl UnetConfig {
    /// Stable Diffusion 1.5's: 860 million parameters.
    pub fn sd15() -> UnetConfig {
        UnetConfig {
            in_channels: 4,
            out_channels: 4,
            block_out_channels: vec![320, 640, 1280, 1280],
            layers_per_block: 2,
            heads: 8,
            cross_attention_dim: 768,
            norm_groups: 32,
        }
    }

    /// The same shape with fewer channels: every width over `factor`, as far as the norms' groups allow.
    ///
    /// ```
    /// use kiln_llm::models::unet::UnetConfig;
    /// assert_eq!(UnetConfig::sd15().divided(10).block_out_channels, [32, 64, 128, 128]);
    /// ```
    pub fn divided(&self, factor: usize) -> UnetConfig {
        let factor = factor.max(1);
        let groups = (self.norm_groups / factor).max(8).min(self.norm_groups);
        let step = groups.max(self.heads);
        let width = |channels: &usize| (channels / factor).next_multiple_of(step).max(step);
        UnetConfig {
            block_out_channels: self.block_out_channels.iter().map(width).collect(),
            cross_attention_dim: (self.cross_attention_dim / factor).max(8),
            norm_groups: groups,
            ..self.clone()
        }
    }
}

/// The network with its weights.
#[derive(Debug, Module)]
pub struct Unet {
    /// To the first channels.
    pub conv_in: Conv2d,
    /// Of the time.
    pub time_embedding: TimeEmbedding,
    /// From large to small.
    pub down_blocks: Vec<Down>,
    /// At the smallest size.
    pub mid_block: Middle,
    /// From small to large.
    pub up_blocks: Vec<Up>,
    /// Before the last convolution.
    pub conv_norm_out: GroupNorm,
    /// To the noise.
    pub conv_out: Conv2d,
    /// Sizes.
    #[module(skip)]
    pub config: UnetConfig,
}

/// linear_2(silu(linear_1(sines))).
#[derive(Debug, Module)]
pub struct TimeEmbedding {
    /// To the wide side.
    pub linear_1: Linear,
    /// And on.
    pub linear_2: Linear,
}

/// A size on the way down.
#[derive(Debug, Module)]
pub struct Down {
    /// One after another.
    pub resnets: Vec<Resnet>,
    /// After each; none at the smallest size.
    pub attentions: Vec<Transformer>,
    /// To half the size.
    pub downsamplers: Vec<Sampler>,
}

/// The smallest size.
#[derive(Debug, Module)]
pub struct Middle {
    /// Before and behind attention.
    pub resnets: Vec<Resnet>,
    /// Between.
    pub attentions: Vec<Transformer>,
}

/// A size on the way up.
#[derive(Debug, Module)]
pub struct Up {
    /// Each with what the way down kept.
    pub resnets: Vec<Resnet>,
    /// After each; none at the smallest size.
    pub attentions: Vec<Transformer>,
    /// To twice the size.
    pub upsamplers: Vec<Sampler>,
}

/// A convolution that comes with a change of size.
#[derive(Debug, Module)]
pub struct Sampler {
    /// 3 × 3.
    pub conv: Conv2d,
}

/// shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x))) + time))).
#[derive(Debug, Module)]
pub struct Resnet {
    /// First.
    pub norm1: GroupNorm,
    /// To the new channels.
    pub conv1: Conv2d,
    /// The time as an offset a channel.
    pub time_emb_proj: Linear,
    /// Of the sum.
    pub norm2: GroupNorm,
    /// Last.
    pub conv2: Conv2d,
    /// Where channels change.
    pub conv_shortcut: Option<Conv2d>,
}

/// Attention of pixels to each other and to the text.
#[derive(Debug, Module)]
pub struct Transformer {
    /// First.
    pub norm: GroupNorm,
    /// A pixel each.
    pub proj_in: Conv2d,
    /// One.
    pub transformer_blocks: Vec<Attend>,
    /// A pixel each.
    pub proj_out: Conv2d,
}

/// One block of attention.
#[derive(Debug, Module)]
pub struct Attend {
    /// Before the first.
    pub norm1: LayerNorm,
    /// To each other.
    pub attn1: Attention,
    /// Before the second.
    pub norm2: LayerNorm,
    /// To the text.
    pub attn2: Attention,
    /// Before the feed-forward part.
    pub norm3: LayerNorm,
    /// x · gelu(gate), and back.
    pub ff: FeedForward,
}

/// Attention with as many heads as the network has.
#[derive(Debug, Module)]
pub struct Attention {
    /// Queries.
    pub to_q: Linear,
    /// Keys.
    pub to_k: Linear,
    /// Values.
    pub to_v: Linear,
    /// From the heads back.
    pub to_out: Vec<Linear>,
    /// How many.
    pub heads: usize,
}

/// The feed-forward part.
#[derive(Debug, Module)]
pub struct FeedForward {
    /// Its products.
    pub net: Net,
}

/// back(x · gelu(gate)).
#[derive(Debug, Module)]
pub struct Net {
    /// To x and gate.
    #[module(rename = "0")]
    pub gate: Gate,
    /// Behind a dropout, which has the number between.
    #[module(rename = "2")]
    pub back: Linear,
}

/// To x and gate in one product.
#[derive(Debug, Module)]
pub struct Gate {
    /// To both.
    pub proj: Linear,
}

const EPSILON: f64 = 1e-5;

fn conv(input: usize, output: usize, window: usize, stride: usize) -> Result<Conv2d> {
    Conv2d::new(input, output, [window; 2], Conv { stride: [stride; 2], padding: [window / 2; 2], ..Conv::default() })
}

impl Unet {
    /// With random weights.
    #[track_caller]
    pub fn new(config: &UnetConfig) -> Result<Unet> {
        let widths = &config.block_out_channels;
        let (first, last) = (widths[0], widths[widths.len() - 1]);
        let time = 4 * first;
        let resnet = |input, output| Resnet::new(config, input, output, time);
        let attention = |width| Transformer::new(config, width);
        let (mut down_blocks, mut up_blocks) = (Vec::new(), Vec::new());
        let mut kept = vec![first];
        let mut width = first;
        for (number, &output) in widths.iter().enumerate() {
            let is_last = number + 1 == widths.len();
            let mut block = Down { resnets: Vec::new(), attentions: Vec::new(), downsamplers: Vec::new() };
            for _ in 0..config.layers_per_block {
                block.resnets.push(resnet(width, output)?);
                width = output;
                kept.push(width);
                if !is_last {
                    block.attentions.push(attention(width)?);
                }
            }
            if !is_last {
                block.downsamplers.push(Sampler { conv: conv(width, width, 3, 2)? });
                kept.push(width);
            }
            down_blocks.push(block);
        }
        let mid_block =
            Middle { resnets: vec![resnet(last, last)?, resnet(last, last)?], attentions: vec![attention(last)?] };
        for (number, &output) in widths.iter().rev().enumerate() {
            let mut block = Up { resnets: Vec::new(), attentions: Vec::new(), upsamplers: Vec::new() };
            for _ in 0..=config.layers_per_block {
                block.resnets.push(resnet(width + kept.pop().unwrap_or(0), output)?);
                width = output;
                if number > 0 {
                    block.attentions.push(attention(width)?);
                }
            }
            if number + 1 < widths.len() {
                block.upsamplers.push(Sampler { conv: conv(width, width, 3, 1)? });
            }
            up_blocks.push(block);
        }
        Ok(Unet {
            conv_in: conv(config.in_channels, first, 3, 1)?,
            time_embedding: TimeEmbedding { linear_1: Linear::new(first, time)?, linear_2: Linear::new(time, time)? },
            down_blocks,
            mid_block,
            up_blocks,
            conv_norm_out: GroupNorm::new(config.norm_groups, first, EPSILON)?,
            conv_out: conv(first, config.out_channels, 3, 1)?,
            config: config.clone(),
        })
    }

    /// The noise in pictures `[n, channels, height, width]` at times `[n]` (f32), beside texts `[n, tokens, width]`. Height and width are multiples of 8.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, times: &Tensor, text: &Tensor) -> Result<Tensor> {
        let time = &self.time_embedding;
        let sines = sines(times, self.config.block_out_channels[0])?.to_dtype(x.dtype())?;
        let time = time.linear_2.forward(&time.linear_1.forward(&sines)?.silu()?)?.silu()?;
        let mut x = self.conv_in.forward(x)?;
        let mut kept = vec![x.clone()];
        for block in &self.down_blocks {
            for (number, resnet) in block.resnets.iter().enumerate() {
                x = resnet.forward(&x, &time)?;
                if let Some(attention) = block.attentions.get(number) {
                    x = attention.forward(&x, text)?;
                }
                kept.push(x.clone());
            }
            for sampler in &block.downsamplers {
                x = sampler.conv.forward(&x)?;
                kept.push(x.clone());
            }
        }
        for (number, resnet) in self.mid_block.resnets.iter().enumerate() {
            x = resnet.forward(&x, &time)?;
            if let Some(attention) = self.mid_block.attentions.get(number) {
                x = attention.forward(&x, text)?;
            }
        }
        for block in &self.up_blocks {
            for (number, resnet) in block.resnets.iter().enumerate() {
                let beside = kept.pop().unwrap_or_else(|| x.clone());
                x = resnet.forward(&Tensor::cat(&[x, beside], 1)?, &time)?;
                if let Some(attention) = block.attentions.get(number) {
                    x = attention.forward(&x, text)?;
                }
            }
            for sampler in &block.upsamplers {
                let sizes = [2 * x.shape()[2], 2 * x.shape()[3]];
                x = sampler.conv.forward(&x.interpolate_nearest(&sizes)?)?;
            }
        }
        self.conv_out.forward(&self.conv_norm_out.forward(&x)?.silu()?)
    }
}

/// Cosines and sines of times `[n]`, `[n, width]`.
fn sines(times: &Tensor, width: usize) -> Result<Tensor> {
    let half = width / 2;
    let steps = Tensor::arange(half, DType::F32, times.device())?.mul(-(10000f64.ln()) / half as f64)?.exp()?;
    let angles = times.to_dtype(DType::F32)?.unsqueeze(1)?.mul(&steps.unsqueeze(0)?)?;
    Tensor::cat(&[angles.cos()?, angles.sin()?], 1)
}

impl Resnet {
    fn new(config: &UnetConfig, input: usize, output: usize, time: usize) -> Result<Resnet> {
        Ok(Resnet {
            norm1: GroupNorm::new(config.norm_groups, input, EPSILON)?,
            conv1: conv(input, output, 3, 1)?,
            time_emb_proj: Linear::new(time, output)?,
            norm2: GroupNorm::new(config.norm_groups, output, EPSILON)?,
            conv2: conv(output, output, 3, 1)?,
            conv_shortcut: if input == output { None } else { Some(conv(input, output, 1, 1)?) },
        })
    }

    /// `time` went through its function already.
    fn forward(&self, x: &Tensor, time: &Tensor) -> Result<Tensor> {
        let offset = self.time_emb_proj.forward(time)?.unsqueeze(2)?.unsqueeze(3)?;
        let inner = self.conv1.forward(&self.norm1.forward(x)?.silu()?)?.add(&offset)?;
        let inner = self.conv2.forward(&self.norm2.forward(&inner)?.silu()?)?;
        match &self.conv_shortcut {
            Some(shortcut) => shortcut.forward(x)? + inner,
            None => x + inner,
        }
    }
}

impl Transformer {
    fn new(config: &UnetConfig, width: usize) -> Result<Transformer> {
        let norm = || LayerNorm::new(width, EPSILON);
        let attend = |from: usize| -> Result<Attention> {
            Ok(Attention {
                to_q: Linear::new(width, width)?.without_bias(),
                to_k: Linear::new(from, width)?.without_bias(),
                to_v: Linear::new(from, width)?.without_bias(),
                to_out: vec![Linear::new(width, width)?],
                heads: config.heads,
            })
        };
        let gate = Gate { proj: Linear::new(width, 8 * width)? };
        Ok(Transformer {
            norm: GroupNorm::new(config.norm_groups, width, 1e-6)?,
            proj_in: conv(width, width, 1, 1)?,
            transformer_blocks: vec![Attend {
                norm1: norm()?,
                attn1: attend(width)?,
                norm2: norm()?,
                attn2: attend(config.cross_attention_dim)?,
                norm3: norm()?,
                ff: FeedForward { net: Net { gate, back: Linear::new(4 * width, width)? } },
            }],
            proj_out: conv(width, width, 1, 1)?,
        })
    }

    fn forward(&self, x: &Tensor, text: &Tensor) -> Result<Tensor> {
        let (height, width) = (x.shape()[2], x.shape()[3]);
        let inner = self.proj_in.forward(&self.norm.forward(x)?)?;
        let mut rows = inner.flatten(2, 3)?.transpose(1, 2)?;
        for block in &self.transformer_blocks {
            let normed = block.norm1.forward(&rows)?;
            rows = (&rows + block.attn1.forward(&normed, &normed)?)?;
            rows = (&rows + block.attn2.forward(&block.norm2.forward(&rows)?, text)?)?;
            let Net { gate, back } = &block.ff.net;
            let both = gate.proj.forward(&block.norm3.forward(&rows)?)?.chunk(2, -1)?;
            rows = (&rows + back.forward(&both[0].mul(&both[1].gelu()?)?)?)?;
        }
        let picture = rows.transpose(1, 2)?.unflatten(2, [height as i64, width as i64])?;
        x + self.proj_out.forward(&picture)?
    }
}

impl Attention {
    fn forward(&self, x: &Tensor, of: &Tensor) -> Result<Tensor> {
        let split = |rows: Tensor| rows.unflatten(-1, [self.heads as i64, -1])?.transpose(1, 2);
        let (q, k, v) = (split(self.to_q.forward(x)?)?, split(self.to_k.forward(of)?)?, split(self.to_v.forward(of)?)?);
        let mixed = q.scaled_dot_product_attention(&k, &v, None, false, None)?.transpose(1, 2)?.flatten(-2, -1)?;
        self.to_out.iter().try_fold(mixed, |x, part| part.forward(&x))
    }
}

/// The steps of DDIM: which times a picture goes through, and how much of it is noise at each.
#[derive(Debug, Clone)]
pub struct Ddim {
    /// How much of the picture is left at each time of training.
    left: Vec<f64>,
}

impl Default for Ddim {
    fn default() -> Ddim {
        Ddim::new(1000, 0.00085, 0.012)
    }
}

impl Ddim {
    /// Stable Diffusion's schedule: roots of betas that grow evenly over so many times.
    pub fn new(times: usize, first: f64, last: f64) -> Ddim {
        let (first, last) = (first.sqrt(), last.sqrt());
        let beta = |time: usize| (first + (last - first) * time as f64 / (times.max(2) - 1) as f64).powi(2);
        let left = (0..times).scan(1.0, |left, time| {
            *left *= 1.0 - beta(time);
            Some(*left)
        });
        Ddim { left: left.collect() }
    }

    /// So many times, from the noisiest of a share of the schedule (1: pure noise) to none.
    pub fn times(&self, steps: usize, strength: f64) -> Vec<usize> {
        let stride = (self.left.len() / steps.max(1)).max(1);
        let used = ((steps as f64 * strength.clamp(0.0, 1.0)).round() as usize).min(steps);
        (0..used).rev().map(|step| (step * stride + 1).min(self.left.len() - 1)).collect()
    }

    /// The numbers of a step from one time to the one so many times before it, as one f32 tensor `[5]`: the time, and the roots of what is left of the
    /// picture and of the noise at both. As data, a compiled step is one program for all.
    #[track_caller]
    pub fn step(&self, time: usize, before: Option<usize>, device: Device) -> Result<Tensor> {
        let left = |time: Option<usize>| time.and_then(|time| self.left.get(time).copied()).unwrap_or(1.0);
        let (now, then) = (left(Some(time)), left(before));
        let numbers = [time as f64, now.sqrt(), (1.0 - now).sqrt(), then.sqrt(), (1.0 - then).sqrt()];
        Tensor::new(numbers.map(|number| number as f32), device)
    }

    /// A picture with noise, as it is at a time.
    #[track_caller]
    pub fn noised(&self, picture: &Tensor, noise: &Tensor, time: usize) -> Result<Tensor> {
        let left = self.left.get(time).copied().unwrap_or(1.0);
        picture.mul(left.sqrt())?.add(&noise.mul((1.0 - left).sqrt())?)
    }

    /// The picture at the time before, given the noise that the network sees in it and the numbers of [`Ddim::step`].
    #[track_caller]
    pub fn advanced(x: &Tensor, noise: &Tensor, numbers: &Tensor) -> Result<Tensor> {
        let [_, now, noise_now, then, noise_then] = [0, 1, 2, 3, 4].map(|place: usize| numbers.select(0, place));
        let clean = x.sub(&noise.mul(&noise_now?)?)?.div(&now?)?;
        clean.mul(&then?)?.add(&noise.mul(&noise_then?)?)
    }
}
