//! Every layer against PyTorch's of the same name: the names and shapes of its state dict, its results, its gradients. The
//! numbers are in `reference/nn.safetensors`, made by `reference/nn.py`.

use kiln::nn::{self, Forward, Layer, Linear, Module};
use kiln::{Conv, DType, Device, Pool, Result, Tensor};
use std::collections::BTreeMap;

/// What PyTorch gave, for one case.
struct Case {
    name: &'static str,
    all: BTreeMap<String, Tensor>,
}

impl Case {
    fn new(name: &'static str) -> Case {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/nn.safetensors");
        let prefix = format!("{name}/");
        let all = kiln::safetensors::load(path, Device::Cpu).unwrap();
        let all: BTreeMap<String, Tensor> =
            all.into_iter().filter_map(|(key, t)| Some((key.strip_prefix(&prefix)?.to_owned(), t))).collect();
        assert!(!all.is_empty(), "{name} is not in the file");
        Case { name, all }
    }

    fn part(&self, prefix: &str) -> BTreeMap<String, Tensor> {
        let part = |(key, t): (&String, &Tensor)| Some((key.strip_prefix(prefix)?.to_owned(), t.clone()));
        self.all.iter().filter_map(part).collect()
    }

    fn close(&self, key: &str, got: &Tensor) {
        let wanted = &self.all[key];
        assert_eq!(got.shape(), wanted.shape(), "{}/{key}", self.name);
        let close = got.to_dtype(wanted.dtype()).unwrap().allclose(wanted, 1e-4, 1e-5).unwrap();
        assert!(close, "{}/{key}:\n{got}\nnot\n{wanted}", self.name);
    }

    /// Of the sum of the output times a given tensor, by the parameters and by the input.
    fn check_gradients(&self, module: &impl Module, x: &Tensor, output: &Tensor) {
        let weighed = output.mul(&self.all["cotangent"]).unwrap().sum(..).unwrap();
        if self.all.contains_key("grad_input") {
            let gradients = weighed.gradients(&[x]).unwrap();
            self.close("grad_input", gradients.get(x).unwrap());
        }
        let parameters = module.named_parameters();
        assert_eq!(parameters.len(), self.part("grad/").len(), "{}", self.name);
        if !parameters.is_empty() {
            weighed.backward().unwrap();
        }
        for (name, parameter) in parameters {
            self.close(&format!("grad/{name}"), &parameter.grad().unwrap());
        }
    }

    /// Names and shapes first, then the results and gradients.
    fn check(&self, module: &impl Module, run: impl Fn(&Tensor) -> Result<Tensor>) {
        let state = self.part("state/");
        let (own, theirs): (Vec<_>, Vec<_>) = (module.state_dict().into_keys().collect(), state.keys().collect());
        assert_eq!(own.iter().collect::<Vec<_>>(), theirs, "{}", self.name);
        module.load_state_dict(&state, true).unwrap();
        let x = self.all["input/0"].requires_grad();
        let output = run(&x).unwrap();
        self.close("output", &output);
        self.check_gradients(module, &x, &output);
        let after = self.part("after/");
        for (key, value) in module.state_dict() {
            if after.contains_key(&key) {
                self.close(&format!("after/{key}"), &value);
            }
        }
        if self.all.contains_key("eval") {
            module.eval();
            self.close("eval", &run(&self.all["input/0"]).unwrap());
            // In use nothing changes.
            for (key, value) in module.state_dict() {
                self.close(&format!("after/{key}"), &value);
            }
            module.train();
        }
    }
}

fn check(name: &'static str, layer: impl Layer) {
    Case::new(name).check(&layer, |x| layer.forward(x));
}

#[test]
fn linear_and_embedding() -> Result<()> {
    check("linear", Linear::new(5, 3)?);
    check("linear_no_bias", Linear::new(5, 3)?.without_bias());
    check("embedding", nn::Embedding::new(7, 3)?);
    Ok(())
}

#[test]
fn norms() -> Result<()> {
    check("rms_norm", nn::RmsNorm::new(6, 1e-6)?);
    check("layer_norm", nn::LayerNorm::new([3, 4], 1e-5)?);
    check("layer_norm_no_bias", nn::LayerNorm::new(4, 1e-5)?.without_bias());
    check("layer_norm_plain", nn::LayerNorm::new(4, 1e-5)?.without_affine());
    check("group_norm", nn::GroupNorm::new(2, 4, 1e-5)?);
    Ok(())
}

#[test]
fn batch_norms() -> Result<()> {
    check("batch_norm1d", nn::BatchNorm1d::new(3)?);
    check("batch_norm1d_long", nn::BatchNorm1d::new(3)?);
    check("batch_norm2d", nn::BatchNorm2d::new(3)?);
    check("batch_norm2d_plain", nn::BatchNorm2d::new(3)?.without_affine());
    let mut average = nn::BatchNorm2d::new(3)?;
    average.0.momentum = None;
    check("batch_norm2d_average", average);
    check("batch_norm2d_untracked", nn::BatchNorm2d::new(3)?.without_running_stats());
    Ok(())
}

#[test]
fn convolutions_and_pools() -> Result<()> {
    let options = Conv { stride: [2], padding: [1], groups: 2, ..Conv::default() };
    check("conv1d", nn::Conv1d::new(4, 6, 3, options)?);
    let options = Conv { stride: [1, 2], padding: [2, 1], dilation: [2, 1], ..Conv::default() };
    check("conv2d", nn::Conv2d::new(2, 3, [3, 2], options)?);
    check("conv2d_no_bias", nn::Conv2d::new(2, 2, [3, 3], Conv::default())?.without_bias());
    check("max_pool2d", nn::MaxPool2d(Pool { stride: [2, 2], padding: [1, 1], ..Pool::new([3, 3]) }));
    check("avg_pool2d", nn::AvgPool2d(Pool::new([2, 2])));
    check("adaptive_avg_pool2d", nn::AdaptiveAvgPool2d([2, 3]));
    check("flatten", nn::Flatten::default());
    Ok(())
}

#[test]
fn convolutions_of_other_ranks_and_transposed_ones() -> Result<()> {
    let options = Conv { stride: [1, 2, 1], padding: [1, 1, 1], groups: 2, ..Conv::default() };
    check("conv3d", nn::Conv3d::new(2, 4, [2, 3, 3], options)?);
    let options = Conv { stride: [2], padding: [1], groups: 2, output_padding: [1], ..Conv::default() };
    check("conv_transpose1d", nn::ConvTranspose1d::new(4, 6, [4], options)?);
    let options = Conv { stride: [2, 2], padding: [1, 0], dilation: [1, 2], ..Conv::default() };
    check("conv_transpose2d", nn::ConvTranspose2d::new(3, 2, [3, 2], options)?);
    let options = Conv { stride: [2, 2], ..Conv::default() };
    check("conv_transpose2d_no_bias", nn::ConvTranspose2d::new(2, 2, [2, 2], options)?.without_bias());
    let options = Conv { stride: [2, 2, 2], ..Conv::default() };
    check("conv_transpose3d", nn::ConvTranspose3d::new(2, 3, [2, 2, 2], options)?);
    let options = Conv { stride: [2, 2], padding: [2, 2], groups: 6, ..Conv::default() };
    check("depthwise", nn::Conv2d::new(6, 6, [5, 5], options)?);
    let options = Conv { padding: [1, 1], groups: 3, ..Conv::default() };
    check("multiplier", nn::Conv2d::new(3, 6, [3, 3], options)?);
    Ok(())
}

/// An option that a convolution would have to ignore, and one that PyTorch does not take either.
#[test]
fn options_are_not_ignored() {
    let (x, w) = (Tensor::ones([1, 2, 4, 4], DType::F32, Device::Cpu).unwrap(), [2, 2, 3, 3]);
    let w = Tensor::ones(w, DType::F32, Device::Cpu).unwrap();
    let options = Conv { output_padding: [0, 1], ..Conv::default() };
    let plain = x.conv2d(&w, None, &options).unwrap_err().to_string();
    assert!(plain.contains("conv2d: output_padding = 1, but only a transposed convolution has it"), "{plain}");
    let transposed = x.conv_transpose2d(&w, None, &options).unwrap_err().to_string();
    assert!(transposed.contains("smaller than the stride"), "{transposed}");
    assert!(x.conv_transpose2d(&w, None, &Conv { stride: [1, 2], ..options }).is_ok());
}

#[test]
fn pools_of_other_ranks() -> Result<()> {
    check("max_pool1d", nn::MaxPool1d(Pool { stride: [2], padding: [1], ..Pool::new([3]) }));
    check("max_pool3d", nn::MaxPool3d(Pool { stride: [1, 1, 1], ..Pool::new([2, 2, 2]) }));
    check("avg_pool1d", nn::AvgPool1d(Pool { stride: [1], padding: [1], count_padding: false, ..Pool::new([2]) }));
    check("avg_pool3d", nn::AvgPool3d(Pool::new([2, 2, 2])));
    check("adaptive_avg_pool1d", nn::AdaptiveAvgPool1d(3));
    check("adaptive_avg_pool3d", nn::AdaptiveAvgPool3d([1, 2, 3]));
    Ok(())
}

#[test]
fn larger_images() {
    check("upsample_nearest", nn::Upsample::nearest(2));
    check("upsample_nearest1d", nn::Upsample::nearest(3));
    check("upsample_bilinear", nn::Upsample::linear(2, false));
    check("upsample_corners", nn::Upsample::linear(2, true));
    check("upsample_bicubic", nn::Upsample::cubic(2, false));
    check("upsample_bicubic_corners", nn::Upsample::cubic(3, true));
    check("upsample_exact", nn::Upsample { scale: 3, mode: nn::Interpolation::NearestExact });
    check("pixel_shuffle", nn::PixelShuffle(2));
    check("pixel_unshuffle", nn::PixelUnshuffle(2));
    let x = Tensor::ones([1, 3, 2, 2], DType::F32, Device::Cpu).unwrap();
    assert!(x.pixel_shuffle(2).unwrap_err().to_string().contains("factor"));
}

#[test]
fn bags() -> Result<()> {
    for (name, mode) in [
        ("embedding_bag_sum", nn::BagMode::Sum),
        ("embedding_bag_mean", nn::BagMode::Mean),
        ("embedding_bag_max", nn::BagMode::Max),
    ] {
        let table = nn::EmbeddingBag::new(7, 3, mode)?;
        let case = Case::new(name);
        case.check(&table, |x| table.forward(x));
        let indices = Tensor::new([1i64, 0, 6, 2, 2, 3], Device::Cpu)?;
        case.close("bags", &table.bags(&indices, &case.all["starts"])?);
    }
    Ok(())
}

#[test]
fn recurrent_layers() -> Result<()> {
    for (name, layer) in [("lstm", nn::Lstm::new(3, 4, 2)?), ("lstm_both", nn::Lstm::bidirectional(3, 4, 2)?)] {
        let case = Case::new(name);
        case.check(&layer, |x| layer.forward(x));
        let hidden = case.all["first"].clone();
        let state = nn::LstmState { cell: hidden.mul(2.0)?, hidden };
        let (y, last) = layer.run(&case.all["x"], Some(&state))?;
        case.close("y", &y);
        case.close("hidden", &last.hidden);
        case.close("cell", &last.cell);
        let fast = kiln::compile(|x: &Tensor| layer.forward(x));
        case.close("output", &fast.call(&case.all["input/0"])?);
    }
    for (name, layer) in [("gru", nn::Gru::new(3, 4, 2)?), ("gru_both", nn::Gru::bidirectional(3, 4, 2)?)] {
        let case = Case::new(name);
        case.check(&layer, |x| layer.forward(x));
        let (y, last) = layer.run(&case.all["x"], Some(&case.all["first"]))?;
        case.close("y", &y);
        case.close("hidden", &last);
    }
    Ok(())
}

#[test]
fn attention() -> Result<()> {
    check("attention", nn::MultiHeadAttention::new(8, 2)?);
    check("attention_causal", nn::MultiHeadAttention::new(8, 4)?.causal());
    let case = Case::new("attention_cross");
    let layer = nn::MultiHeadAttention::new(8, 2)?.without_bias();
    let memory = &case.all["input/1"];
    case.check(&layer, |x| layer.attend(x, memory, memory, None));
    let case = Case::new("attention_masked");
    let layer = nn::MultiHeadAttention::new(8, 2)?;
    case.check(&layer, |x| layer.forward(&(x.clone(), case.all["keep"].clone())));
    Ok(())
}

/// Heads of keys and values that are shared are the same as heads of their own with the same weights.
#[test]
fn grouped_attention_is_attention_with_repeated_heads() -> Result<()> {
    let (grouped, whole) = (nn::MultiHeadAttention::grouped(8, 4, 2)?, nn::MultiHeadAttention::new(8, 4)?);
    assert_eq!(grouped.in_proj_weight.shape(), [16, 8]);
    let parts = grouped.in_proj_weight.get().split_sizes(&[8, 4, 4], 0)?;
    let wide = |part: &Tensor| part.reshape([2, 1, 2, 8])?.expand([2, 2, 2, 8])?.reshape([8, 8]);
    whole.in_proj_weight.set(&Tensor::cat(&[parts[0].clone(), wide(&parts[1])?, wide(&parts[2])?], 0)?)?;
    whole.out_proj.load_state_dict(&grouped.out_proj.state_dict(), true)?;
    let x = Tensor::randn([2, 5, 8], DType::F32, Device::Cpu)?;
    assert!(grouped.forward(&x)?.allclose(&whole.forward(&x)?, 1e-4, 1e-6)?);
    assert!(grouped.attend(&x, &x, &x, None)?.allclose(&whole.forward(&x)?, 1e-4, 1e-6)?);
    Ok(())
}

#[test]
fn activations() {
    check("relu", nn::Relu);
    check("relu6", nn::Relu6);
    check("silu", nn::Silu);
    check("tanh", nn::Tanh);
    check("sigmoid", nn::Sigmoid);
    check("logsigmoid", nn::LogSigmoid);
    check("mish", nn::Mish);
    check("softplus", nn::Softplus);
    check("softsign", nn::Softsign);
    check("selu", nn::Selu);
    check("hardsigmoid", nn::Hardsigmoid);
    check("hardswish", nn::Hardswish);
    check("leakyrelu", nn::LeakyRelu::default());
    check("elu", nn::Elu::default());
    check("gelu", nn::Gelu::default());
    check("gelu_tanh", nn::Gelu { tanh: true });
    check("softmax", nn::Softmax { axis: -1 });
}

fn convolutional() -> Result<nn::Sequential> {
    Ok(nn::Sequential::new()
        .then(nn::Conv2d::new(1, 4, [3, 3], Conv { padding: [1, 1], ..Conv::default() })?)
        .then(nn::BatchNorm2d::new(4)?)
        .then(nn::Relu)
        .then(nn::MaxPool2d(Pool::new([2, 2])))
        .then(nn::Flatten::default())
        .then(Linear::new(16, 3)?))
}

#[test]
fn layers_one_after_another() -> Result<()> {
    check("sequential", convolutional()?);
    Ok(())
}

#[test]
fn biases_of_16_bits_are_not_added_up_before_the_steps() -> Result<()> {
    for dtype in [DType::Bf16, DType::F16] {
        let layer = nn::Lstm::new(1, 1, 1)?.to_dtype(dtype)?;
        // The input's gates are -1 + 1, exactly; a sum of both biases would lose the small one.
        let small = 2f64.powi(-12);
        for (name, var) in layer.named_parameters() {
            let value = match name.split("_l").next().unwrap_or_default() {
                "weight_ih" => -1.0,
                "bias_ih" => 1.0,
                "bias_hh" => small,
                _ => 0.0,
            };
            var.set(&Tensor::full(var.shape(), value, dtype, Device::Cpu)?)?;
        }
        let x = Tensor::ones([1, 1, 1], dtype, Device::Cpu)?;
        let fast = kiln::compile(|x: &Tensor| layer.forward(x));
        for y in [layer.forward(&x)?, fast.call(&x)?] {
            let y = y.to_dtype(DType::F64)?.item::<f64>()?;
            // o · tanh(i · tanh(small)) with gates of a half.
            assert!((y / (small / 4.0) - 1.0).abs() < 0.05, "{dtype}: {y}");
        }
    }
    Ok(())
}
