//! Convolutional networks by name, with random weights: for measurements, without their files.

use crate::config::Fields;
use crate::random::normal;
use crate::{Checkpoint, Result};
use kiln::{DType, Device, Tensor};
use std::collections::BTreeMap;

/// A known network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionPreset {
    /// Its name.
    pub name: &'static str,
    /// timm's name of it.
    pub architecture: &'static str,
    /// The number of its parameters.
    pub parameters: u64,
}

const fn preset(name: &'static str, architecture: &'static str, parameters: u64) -> VisionPreset {
    VisionPreset { name, architecture, parameters }
}

/// Every preset.
pub const VISION_PRESETS: &[VisionPreset] = &[
    preset("resnet-18", "resnet18", 11_689_512),
    preset("resnet-50", "resnet50", 25_557_032),
    preset("resnext-50", "resnext50_32x4d", 25_028_904),
    preset("regnety-008", "regnety_008", 6_263_168),
    preset("mobilenet-v2", "mobilenetv2_100", 3_504_872),
    preset("mobilenet-v3-large", "mobilenetv3_large_100", 5_483_032),
    preset("efficientnet-b0", "efficientnet_b0", 5_288_548),
    preset("convnext-tiny", "convnext_tiny", 28_589_128),
];

const CLASSES: usize = 1000;

impl VisionPreset {
    /// The preset of a name.
    pub fn named(name: &str) -> Option<&'static VisionPreset> {
        VISION_PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Its `config.json`, as timm would write it.
    pub fn config(&self) -> Result<Fields> {
        let text = format!(
            r#"{{"architecture": "{}", "pretrained_cfg": {{"input_size": [3, 224, 224]}}}}"#,
            self.architecture
        );
        Fields::parse(text.as_bytes(), self.name)
    }

    /// Its tensors under timm's names: random ones, the same for the same seed.
    pub fn checkpoint(&self, seed: u64, dtype: DType, device: Device) -> Result<Checkpoint> {
        let mut writer = Writer { tensors: BTreeMap::new(), seed, dtype, device };
        match self.architecture {
            "resnet18" => writer.resnet(&[2, 2, 2, 2], false, 1, 64)?,
            "resnet50" => writer.resnet(&[3, 4, 6, 3], true, 1, 64)?,
            "resnext50_32x4d" => writer.resnet(&[3, 4, 6, 3], true, 32, 4)?,
            "regnety_008" => writer.regnet(&[1, 3, 8, 2], &[64, 128, 320, 768], 16)?,
            "convnext_tiny" => writer.convnext(&[3, 3, 9, 3], &[96, 192, 384, 768])?,
            "mobilenetv2_100" => writer.inverted(MOBILENET_V2, 32, Some(1280), false)?,
            "mobilenetv3_large_100" => writer.inverted(MOBILENET_V3, 16, Some(1280), true)?,
            _ => writer.inverted(EFFICIENTNET_B0, 32, Some(1280), false)?,
        }
        Ok(Checkpoint { tensors: writer.tensors, ..Checkpoint::default() })
    }
}

/// A stage: the channels of its result, the window, and for each block the wide channels and those inside of squeeze and excitation (0: none).
struct Stage(usize, usize, &'static [(usize, usize)]);

const MOBILENET_V2: &[Stage] = &[
    Stage(16, 3, &[(0, 0)]),
    Stage(24, 3, &[(96, 0), (144, 0)]),
    Stage(32, 3, &[(144, 0), (192, 0), (192, 0)]),
    Stage(64, 3, &[(192, 0), (384, 0), (384, 0), (384, 0)]),
    Stage(96, 3, &[(384, 0), (576, 0), (576, 0)]),
    Stage(160, 3, &[(576, 0), (960, 0), (960, 0)]),
    Stage(320, 3, &[(960, 0)]),
];

const MOBILENET_V3: &[Stage] = &[
    Stage(16, 3, &[(0, 0)]),
    Stage(24, 3, &[(64, 0), (72, 0)]),
    Stage(40, 5, &[(72, 24), (120, 32), (120, 32)]),
    Stage(80, 3, &[(240, 0), (200, 0), (184, 0), (184, 0)]),
    Stage(112, 3, &[(480, 120), (672, 168)]),
    Stage(160, 5, &[(672, 168), (960, 240), (960, 240)]),
    // One convolution.
    Stage(960, 1, &[]),
];

const EFFICIENTNET_B0: &[Stage] = &[
    Stage(16, 3, &[(0, 8)]),
    Stage(24, 3, &[(96, 4), (144, 6)]),
    Stage(40, 5, &[(144, 6), (240, 10)]),
    Stage(80, 3, &[(240, 10), (480, 20), (480, 20)]),
    Stage(112, 5, &[(480, 20), (672, 28), (672, 28)]),
    Stage(192, 5, &[(672, 28), (1152, 48), (1152, 48), (1152, 48)]),
    Stage(320, 3, &[(1152, 48)]),
];

struct Writer {
    tensors: BTreeMap<String, Tensor>,
    seed: u64,
    dtype: DType,
    device: Device,
}

impl Writer {
    /// Numbers whose products keep the size of what they multiply.
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<()> {
        let inputs: usize = shape[1..].iter().product();
        self.seed = self.seed.wrapping_add(1);
        let drawn = normal(self.seed, (2.0 / inputs.max(1) as f64).sqrt(), shape, self.dtype, self.device)?;
        self.tensors.insert(format!("{name}.weight"), drawn);
        Ok(())
    }

    fn full(&mut self, name: &str, size: usize, value: f64) -> Result<()> {
        let full = Tensor::full(size, value, self.dtype, self.device)?;
        self.tensors.insert(name.into(), full);
        Ok(())
    }

    fn conv(&mut self, name: &str, norm: Option<&str>, shape: [usize; 4]) -> Result<()> {
        self.weight(name, &shape)?;
        let Some(norm) = norm else { return self.full(&format!("{name}.bias"), shape[0], 0.0) };
        for (part, value) in [("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)] {
            self.full(&format!("{norm}.{part}"), shape[0], value)?;
        }
        Ok(())
    }

    fn layer_norm(&mut self, name: &str, size: usize) -> Result<()> {
        self.full(&format!("{name}.weight"), size, 1.0)?;
        self.full(&format!("{name}.bias"), size, 0.0)
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<()> {
        self.weight(name, &[outputs, inputs])?;
        self.full(&format!("{name}.bias"), outputs, 0.0)
    }

    fn resnet(&mut self, depths: &[usize; 4], bottleneck: bool, groups: usize, base: usize) -> Result<()> {
        self.conv("conv1", Some("bn1"), [64, 3, 7, 7])?;
        let (mut channels, expansion) = (64, if bottleneck { 4 } else { 1 });
        for (stage, &depth) in depths.iter().enumerate() {
            let planes = 64 << stage;
            let (inner, output) = (planes * base / 64 * groups, planes * expansion);
            for number in 0..depth {
                let at = format!("layer{}.{number}", stage + 1);
                let mut conv = |number: usize, shape: [usize; 4]| {
                    self.conv(&format!("{at}.conv{number}"), Some(&format!("{at}.bn{number}")), shape)
                };
                if bottleneck {
                    conv(1, [inner, channels, 1, 1])?;
                    conv(2, [inner, inner / groups, 3, 3])?;
                    conv(3, [output, inner, 1, 1])?;
                } else {
                    conv(1, [inner, channels, 3, 3])?;
                    conv(2, [output, inner, 3, 3])?;
                }
                if number == 0 && (stage > 0 || channels != output) {
                    let names = [0, 1].map(|part| format!("{at}.downsample.{part}"));
                    self.conv(&names[0], Some(&names[1]), [output, channels, 1, 1])?;
                }
                channels = output;
            }
        }
        self.linear("fc", channels, CLASSES)
    }

    fn regnet(&mut self, depths: &[usize; 4], widths: &[usize; 4], group: usize) -> Result<()> {
        self.conv("stem.conv", Some("stem.bn"), [32, 3, 3, 3])?;
        let mut channels = 32;
        for (stage, (&depth, &width)) in depths.iter().zip(widths).enumerate() {
            for number in 1..=depth {
                let at = format!("s{}.b{number}", stage + 1);
                let mut conv = |name: &str, shape: [usize; 4]| {
                    self.conv(&format!("{at}.{name}.conv"), Some(&format!("{at}.{name}.bn")), shape)
                };
                conv("conv1", [width, channels, 1, 1])?;
                conv("conv2", [width, group, 3, 3])?;
                conv("conv3", [width, width, 1, 1])?;
                if number == 1 {
                    conv("downsample", [width, channels, 1, 1])?;
                }
                let few = channels / 4;
                self.conv(&format!("{at}.se.fc1"), None, [few, width, 1, 1])?;
                self.conv(&format!("{at}.se.fc2"), None, [width, few, 1, 1])?;
                channels = width;
            }
        }
        self.linear("head.fc", channels, CLASSES)
    }

    fn inverted(&mut self, stages: &[Stage], stem: usize, head: Option<usize>, late: bool) -> Result<()> {
        self.conv("conv_stem", Some("bn1"), [stem, 3, 3, 3])?;
        let mut channels = stem;
        for (stage, &Stage(output, window, blocks)) in stages.iter().enumerate() {
            if blocks.is_empty() {
                let at = format!("blocks.{stage}.0");
                self.conv(&format!("{at}.conv"), Some(&format!("{at}.bn1")), [output, channels, window, window])?;
                channels = output;
            }
            for (number, &(wide, few)) in blocks.iter().enumerate() {
                let at = format!("blocks.{stage}.{number}");
                let (name, norm) = (|part: &str| format!("{at}.{part}"), |number: usize| format!("{at}.bn{number}"));
                let inner = if wide > 0 { wide } else { channels };
                if wide > 0 {
                    self.conv(&name("conv_pw"), Some(&norm(1)), [wide, channels, 1, 1])?;
                }
                let first = usize::from(wide > 0) + 1;
                self.conv(&name("conv_dw"), Some(&norm(first)), [inner, 1, window, window])?;
                if few > 0 {
                    self.conv(&name("se.conv_reduce"), None, [few, inner, 1, 1])?;
                    self.conv(&name("se.conv_expand"), None, [inner, few, 1, 1])?;
                }
                let last = if wide > 0 { "conv_pwl" } else { "conv_pw" };
                self.conv(&name(last), Some(&norm(first + 1)), [output, inner, 1, 1])?;
                channels = output;
            }
        }
        let wide = head.unwrap_or(channels);
        self.conv("conv_head", if late { None } else { Some("bn2") }, [wide, channels, 1, 1])?;
        self.linear("classifier", wide, CLASSES)
    }

    fn convnext(&mut self, depths: &[usize; 4], widths: &[usize; 4]) -> Result<()> {
        self.conv("stem.0", None, [widths[0], 3, 4, 4])?;
        self.layer_norm("stem.1", widths[0])?;
        for stage in 0..4 {
            let width = widths[stage];
            if stage > 0 {
                let before = widths[stage - 1];
                self.layer_norm(&format!("stages.{stage}.downsample.0"), before)?;
                self.conv(&format!("stages.{stage}.downsample.1"), None, [width, before, 2, 2])?;
            }
            for number in 0..depths[stage] {
                let at = format!("stages.{stage}.blocks.{number}");
                self.full(&format!("{at}.gamma"), width, 1e-6)?;
                self.conv(&format!("{at}.conv_dw"), None, [width, 1, 7, 7])?;
                self.layer_norm(&format!("{at}.norm"), width)?;
                self.linear(&format!("{at}.mlp.fc1"), width, 4 * width)?;
                self.linear(&format!("{at}.mlp.fc2"), 4 * width, width)?;
            }
        }
        self.layer_norm("head.norm", widths[3])?;
        self.linear("head.fc", widths[3], CLASSES)
    }
}
