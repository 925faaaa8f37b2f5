//! Convolutional networks against timm and transformers: tiny ones with random weights, which `reference/make_convnets.py` writes.

use kiln::{DType, Device, Options};
use kiln_llm::models::convnet::presets::{VISION_PRESETS, VisionPreset};
use kiln_llm::vision::{Classifier, ClassifierOptions, Image, PictureModel};
use kiln_llm::{Checkpoint, Error, config::Fields};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn expected(folder: &Path, member: &str) -> Vec<f32> {
    let value: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    value[member].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The largest difference, over the largest number.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max) / largest
}

#[test]
fn networks_give_what_timm_and_transformers_give() {
    let picture = Image::open(reference("images/rgb.png")).unwrap();
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(reference("convnets")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert_eq!(folders.len(), 19);
    for folder in folders {
        let name = folder.display();
        let ways = [None, Some(Options::default()), ClassifierOptions::default().compile];
        for (way, compile) in ["eager", "compiled", "frozen"].into_iter().zip(ways) {
            let options = ClassifierOptions { compile, ..ClassifierOptions::default() };
            let classifier = Classifier::open(&folder, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(classifier.model().dtype(), DType::F32);
            let pixels = classifier.preprocess().apply(std::slice::from_ref(&picture), Device::Cpu).unwrap();
            let (rows, columns) = (pixels.shape()[2], pixels.shape()[3]);
            let few = pixels.slice(2, 0, rows, 7).unwrap().slice(3, 0, columns, 7).unwrap().to_vec().unwrap();
            let far = apart(&few, &expected(&folder, "pixels"));
            assert!(far < 1e-5, "{name}: pixels are {far:e} apart");
            let wanted = expected(&folder, "logits");
            if way == "eager" {
                let far = apart(&classifier.model().logits(&pixels).unwrap().to_vec::<f32>().unwrap(), &wanted);
                assert!(far < 1e-4, "{name}: {far:e}");
            }
            let mut classes = classifier.classify(&picture, 9).unwrap();
            classes.sort_by_key(|class| class.index);
            let largest = wanted.iter().copied().fold(f32::MIN, f32::max);
            let powers: Vec<f32> = wanted.iter().map(|x| (x - largest).exp()).collect();
            let wanted: Vec<f32> = powers.iter().map(|x| x / powers.iter().sum::<f32>()).collect();
            let got: Vec<f32> = classes.iter().map(|class| class.probability).collect();
            let far = apart(&got, &wanted);
            assert!(far < 2e-3, "{name}, {way}: {far:e}: {got:?} and {wanted:?}");
        }
    }
}

#[test]
fn presets_are_the_networks_of_their_names() {
    for preset in VISION_PRESETS {
        let checkpoint = preset.checkpoint(0, DType::F32, Device::Cpu).unwrap();
        let is_statistic = |name: &str| name.contains("running_");
        let tensors = checkpoint.tensors.iter().filter(|(name, _)| !is_statistic(name));
        let parameters: usize = tensors.map(|(_, tensor)| tensor.elements()).sum();
        assert_eq!(parameters as u64, preset.parameters, "{}", preset.name);
        let config = preset.config().unwrap();
        let model = PictureModel::new(Some(&config), &checkpoint, DType::F32).unwrap();
        assert_eq!((model.classes(), model.side(), model.only_side()), (1000, 224, None));
    }
    assert!(VisionPreset::named("resnet-50").is_some() && VisionPreset::named("resnet").is_none());
    // Activations stay finite, and pictures of another size are fine.
    let model = PictureModel::preset(VisionPreset::named("mobilenet-v2").unwrap(), DType::F32, Device::Cpu).unwrap();
    let pixels = kiln::Tensor::ones([2, 3, 96, 64], DType::F32, Device::Cpu).unwrap();
    let logits = model.logits(&pixels).unwrap().to_vec::<f32>().unwrap();
    assert!(logits.len() == 2000 && logits.iter().all(|x| x.is_finite()));
}

#[test]
fn what_is_not_supported_is_said() {
    let checkpoint = Checkpoint::open(reference("convnets/resnet18"), Device::Cpu).unwrap();
    let open = |config: &str, checkpoint: &Checkpoint| {
        let fields = Fields::parse(config.as_bytes(), "config.json").unwrap();
        PictureModel::new(Some(&fields), checkpoint, DType::F32).map(|_| ())
    };
    for name in ["resnet50d", "regnetz_c16", "mobilenetv3_large_minimal_100", "efficientnet_es", "convnext_tiny_hnf"] {
        let error = open(&format!(r#"{{"architecture": "{name}"}}"#), &checkpoint).unwrap_err();
        assert!(matches!(&error, Error::UnknownArchitecture { found, .. } if found == name), "{error}");
    }
    // Without a configuration a ResNet is known by its names, a MobileNet is not.
    assert!(PictureModel::new(None, &checkpoint, DType::F32).is_ok());
    let mobile = Checkpoint::open(reference("convnets/mobilenetv2"), Device::Cpu).unwrap();
    let error = PictureModel::new(None, &mobile, DType::F32).unwrap_err().to_string();
    assert!(error.contains("architecture"), "{error}");
    // A tensor that is missing, one too many, and one of another shape.
    let mut missing = checkpoint.clone();
    missing.tensors.remove("layer2.0.bn1.running_var");
    let error = open(r#"{"architecture": "resnet18"}"#, &missing).unwrap_err();
    assert_eq!(error, Error::MissingTensor { name: "layer2.0.bn1.running_var".into() });
    let mut more = checkpoint.clone();
    more.tensors.insert("layer1.0.se.gate".into(), kiln::Tensor::ones(1, DType::F32, Device::Cpu).unwrap());
    assert!(matches!(open(r#"{"architecture": "resnet18"}"#, &more), Err(Error::UnusedTensors { .. })));
    let mut other = checkpoint.clone();
    other.tensors.insert("conv1.weight".into(), kiln::Tensor::ones([8, 2, 7, 7], DType::F32, Device::Cpu).unwrap());
    assert!(matches!(open(r#"{"architecture": "resnet18"}"#, &other), Err(Error::WrongShape { .. })));
    for (config, part) in [
        (r#"{"model_type": "mobilenet_v2", "output_stride": 16}"#, "output_stride"),
        (r#"{"model_type": "resnet", "hidden_act": "mish"}"#, "hidden_act"),
        (r#"{"architecture": "resnet18", "pretrained_cfg": {"input_size": [3, 0, 0]}}"#, "input_size"),
        (r#"{"model_type": "regnet"}"#, "'regnet' are not supported"),
    ] {
        let error = open(config, &checkpoint).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// What timm's wrapper in transformers saves: `timm_model.` before every name.
#[test]
fn folders_of_the_wrapper_are_read() {
    let source = reference("convnets/efficientnet_b0");
    let folder = std::env::temp_dir().join(format!("kiln-timm-wrapper-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let tensors = Checkpoint::open(&source, Device::Cpu).unwrap().tensors;
    let wrapped: BTreeMap<String, kiln::Tensor> =
        tensors.into_iter().map(|(name, tensor)| (format!("timm_model.{name}"), tensor)).collect();
    kiln::safetensors::save(folder.join("model.safetensors"), &wrapped).unwrap();
    let mut config: Value = serde_json::from_slice(&std::fs::read(source.join("config.json")).unwrap()).unwrap();
    config["model_type"] = "timm_wrapper".into();
    config["architectures"] = serde_json::json!(["TimmWrapperForImageClassification"]);
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let classifier = Classifier::open(&folder, &ClassifierOptions::default()).unwrap();
    let picture = Image::open(reference("images/rgb.png")).unwrap();
    let pixels = classifier.preprocess().apply(&[picture], Device::Cpu).unwrap();
    let logits = classifier.model().logits(&pixels).unwrap().to_vec::<f32>().unwrap();
    assert!(apart(&logits, &expected(&source, "logits")) < 1e-4);
    std::fs::remove_dir_all(folder).unwrap();
}
