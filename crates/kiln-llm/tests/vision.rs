//! Pictures against Pillow, to the byte; vision transformers against transformers; DeiT where it is at hand.

use kiln::{DType, Device, Mode, Options, Tensor, safetensors};
use kiln_llm::vision::{Classifier, ClassifierOptions, Filter, Image, ImageError, Preprocess, Resize};
use kiln_llm::{Checkpoint, Error, config::Fields};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn image(name: &str) -> Image {
    Image::open(reference("images").join(name)).unwrap()
}

fn expected(folder: &str, member: &str) -> Vec<f32> {
    let text = std::fs::read(reference(folder).join("expected.json")).unwrap();
    let value: Value = serde_json::from_slice(&text).unwrap();
    value[member].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn every_kind_of_file_becomes_its_colours() {
    for name in ["grey", "palette", "palette_4", "bits", "rgba", "grey_alpha", "grey_16"] {
        assert_eq!(image(&format!("{name}.png")), image(&format!("{name}_as_rgb.png")), "{name}");
    }
    // Decoders may round differently, by little.
    for name in ["colour", "light", "progressive"] {
        let (got, want) = (image(&format!("{name}.jpg")), image(&format!("{name}_as_rgb.png")));
        assert_eq!((got.width(), got.height()), (want.width(), want.height()));
        let far = got.rgb().iter().zip(want.rgb()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(far <= 3, "{name}: {far}");
    }
}

#[test]
fn sizes_change_as_in_pillow() {
    let source = image("rgb.png");
    let mut count = 0;
    for file in std::fs::read_dir(reference("images")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let Some((filter, size)) = name.trim_end_matches(".png").split_once('_') else { continue };
        let (Some(filter), Some((width, height))) = (Filter::named(filter), size.split_once('x')) else { continue };
        let (width, height) = (width.parse().unwrap(), height.parse().unwrap());
        assert_eq!(source.resize(width, height, filter).unwrap(), image(&name), "{name}");
        count += 1;
    }
    assert_eq!(count, 10);
    assert_eq!(source.resize(45, 31, Filter::Bicubic).unwrap(), source);
    let one = Image::from_rgb(1, 1, vec![9, 8, 7]).unwrap();
    let large = one.resize(5, 3, Filter::Lanczos).unwrap();
    assert!(large.rgb().chunks(3).all(|pixel| pixel == [9, 8, 7]));
    assert_eq!(source.resize(1, 1, Filter::Box).unwrap().rgb().len(), 3);
}

#[test]
fn the_centre_is_cut_out() {
    let rows = |image: &Image| image.rgb().chunks(3).map(|pixel| pixel[0]).collect::<Vec<u8>>();
    let counted = |width: usize, height: usize| {
        let rgb = (1..=width * height).flat_map(|i| [i as u8; 3]).collect();
        Image::from_rgb(width, height, rgb).unwrap()
    };
    assert_eq!(rows(&counted(4, 3).centre_crop(2, 1).unwrap()), [6, 7]);
    // 1.5 is rounded to 2, 0.5 to 0, as torchvision's round does.
    assert_eq!(rows(&counted(5, 1).centre_crop(2, 1).unwrap()), [3, 4]);
    assert_eq!(rows(&counted(3, 1).centre_crop(2, 1).unwrap()), [1, 2]);
    assert_eq!(rows(&counted(2, 1).centre_crop(4, 3).unwrap()), [0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0]);
}

/// A file is foreign input: whatever is in it, there is an error or a picture, and no panic.
#[test]
fn damaged_files_are_errors() {
    let cause = |bytes: &[u8]| match Image::decode(bytes) {
        Err(Error::Image { cause, .. }) => cause,
        other => panic!("{other:?}"),
    };
    assert_eq!(cause(b""), ImageError::UnknownFormat);
    assert_eq!(cause(b"GIF89a"), ImageError::UnknownFormat);
    for name in ["rgb.png", "palette.png", "grey_16.png", "colour.jpg", "progressive.jpg"] {
        let bytes = std::fs::read(reference("images").join(name)).unwrap();
        let mut state = 12345u64;
        for round in 0..300 {
            let mut damaged = bytes.clone();
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % damaged.len();
            match round % 3 {
                0 => damaged.truncate(at),
                1 => damaged[at] ^= 1 << (state >> 60 & 7),
                _ => damaged[at] = (state >> 20) as u8,
            }
            if let Ok(image) = Image::decode(&damaged) {
                assert_eq!(image.rgb().len(), image.width() * image.height() * 3);
            }
        }
    }
    // A header that claims 100,000 × 100,000 pixels.
    let mut vast = std::fs::read(reference("images/rgb.png")).unwrap();
    vast[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]);
    let crc = png_checksum(&vast[12..29]);
    vast[29..33].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(cause(&vast), ImageError::BadSize { width: 100_000, height: 100_000 });
    let missing = Image::open("there/is/no.png").unwrap_err().to_string();
    assert!(missing.starts_with("there/is/no.png: "), "{missing}");
    let text = Image::open(reference("make_encoder_references.py")).unwrap_err().to_string();
    assert!(text.ends_with("make_encoder_references.py: neither a PNG nor a JPEG file"), "{text}");
    assert!(Image::from_rgb(2, 2, vec![0; 11]).is_err() && Image::black(0, 4).is_err());
}

/// CRC-32, as a PNG's chunks have it.
fn png_checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { 0xedb8_8320 ^ crc >> 1 } else { crc >> 1 };
    !bytes.iter().fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[test]
fn preprocessing_is_what_the_files_say() {
    let read =
        |text: &str| Preprocess::from_fields(&Fields::parse(text.as_bytes(), "preprocessor_config.json").unwrap());
    let plain = read(r#"{"size": 224, "resample": 3, "image_mean": [0, 0, 0], "image_std": 0.5}"#).unwrap();
    assert_eq!(plain.resize, Resize::To { width: 224, height: 224 });
    assert_eq!((plain.filter, plain.crop, plain.deviation), (Filter::Bicubic, None, [0.5; 3]));
    let edge =
        read(r#"{"size": {"shortest_edge": 256}, "do_center_crop": true, "crop_size": {"width": 224, "height": 224}}"#);
    let edge = edge.unwrap();
    assert_eq!((edge.resize, edge.crop, edge.size()), (Resize::Shorter(256), Some((224, 224)), Some((224, 224))));
    let nothing = read(r#"{"do_resize": false, "do_rescale": false, "do_normalize": false}"#).unwrap();
    let pixels = nothing.apply(&[Image::from_rgb(1, 1, vec![1, 2, 3]).unwrap()], Device::Cpu).unwrap();
    assert_eq!((pixels.shape(), pixels.to_vec::<f32>().unwrap()), (&[1, 3, 1, 1][..], vec![1.0, 2.0, 3.0]));
    for (text, problem) in [
        (r#"{"resample": 9}"#, "there is no filter 9"),
        (r#"{"size": {"width": 0, "height": 1}}"#, "neither a width and a height"),
        (r#"{"image_std": [1, 1]}"#, "no number a channel"),
        (r#"{"image_std": [1, 0, 1]}"#, "must not be 0"),
    ] {
        let message = read(text).unwrap_err().to_string();
        assert!(message.contains(problem), "{message}");
    }
    // The longer side is cut to a whole number, as torchvision does.
    let fit = Preprocess { crop: None, ..Preprocess::imagenet(32, 0.9) }.fit(&image("rgb.png")).unwrap();
    assert_eq!((fit.width(), fit.height()), (50, 35));
    let timm =
        Fields::parse(br#"{"crop_pct": 1.0, "interpolation": "bilinear", "std": [0.5, 0.5, 0.5]}"#, "config.json");
    let timm = Preprocess::from_timm(&timm.unwrap(), 32).unwrap();
    assert_eq!((timm.resize, timm.filter, timm.deviation), (Resize::Shorter(32), Filter::Bilinear, [0.5; 3]));
}

#[test]
fn pictures_are_classified_as_transformers_does() {
    for folder in ["tiny-vit", "tiny-deit"] {
        let mut ways = vec![None, ClassifierOptions::default().compile];
        ways.extend(Mode::ALL.map(|mode| Some(Options { mode, ..Options::default() })));
        for compile in ways {
            let options = ClassifierOptions { compile, ..ClassifierOptions::default() };
            let classifier = Classifier::open(reference(folder), &options).unwrap();
            let picture = image("rgb.png");
            let pixels = classifier.preprocess().apply(std::slice::from_ref(&picture), Device::Cpu).unwrap();
            let few: Vec<f32> = pixels.slice(2, 0, 32, 5).unwrap().slice(3, 0, 32, 5).unwrap().to_vec().unwrap();
            assert!(apart(&few, &expected(folder, "pixels")) < 1e-5);
            let logits = classifier.model().logits(&pixels).unwrap().to_vec::<f32>().unwrap();
            let far = apart(&logits, &expected(folder, "logits"));
            assert!(far < 2e-5, "{folder}: {far:e}");
            // Three pictures go as four, so that the last row is no picture.
            let answers = classifier.classify_all(&[picture.clone(), image("grey.png"), picture], 5).unwrap();
            assert_eq!((answers.len(), &answers[0]), (3, &answers[2]));
            assert_ne!(answers[0], answers[1]);
            let mut by_number = answers[0].clone();
            by_number.sort_by_key(|class| class.index);
            let probabilities: Vec<f32> = by_number.iter().map(|class| class.probability).collect();
            assert!(apart(&probabilities, &expected(folder, "probabilities")) < 1e-5);
            let labels: Vec<&str> = by_number.iter().map(|class| class.label.as_str()).collect();
            assert_eq!(labels, ["tench", "tabby cat", "espresso", "mat", "rug"]);
            assert!(answers[0].is_sorted_by(|a, b| a.probability >= b.probability));
        }
    }
}

/// A folder with the weights of a transformers' one under timm's names.
fn timm(folder: &str, name: &str) -> PathBuf {
    let tensors = Checkpoint::open(reference(folder), Device::Cpu).unwrap().tensors;
    let prefix = folder.trim_start_matches("tiny-");
    let mut renamed: BTreeMap<String, Tensor> = BTreeMap::new();
    let pairs = [
        ("embeddings.cls_token", "cls_token"),
        ("embeddings.distillation_token", "dist_token"),
        ("embeddings.position_embeddings", "pos_embed"),
        ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
        ("encoder.layer", "blocks"),
        ("attention.output.dense", "attn.proj"),
        ("layernorm_before", "norm1"),
        ("layernorm_after", "norm2"),
        ("layernorm", "norm"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
        ("cls_classifier", "head"),
        ("distillation_classifier", "head_dist"),
        ("classifier", "head"),
    ];
    for (name, tensor) in &tensors {
        let mut name = name.strip_prefix(&format!("{prefix}.")).unwrap_or(name).to_owned();
        pairs.iter().for_each(|(from, to)| name = name.replace(from, to));
        match name.split_once("attention.attention.query") {
            Some((block, kind)) => {
                let part = |which: &str| {
                    let of = format!(
                        "{prefix}.encoder.layer.{}attention.attention.{which}{kind}",
                        &block["blocks.".len()..]
                    );
                    tensors[&of].clone()
                };
                let whole = Tensor::cat(&[part("query"), part("key"), part("value")], 0).unwrap();
                renamed.insert(format!("{block}attn.qkv{kind}"), whole);
            }
            None if name.contains("attention.attention") => {}
            None => drop(renamed.insert(name, tensor.clone())),
        }
    }
    let folder = std::env::temp_dir().join(format!("kiln-vision-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    safetensors::save(folder.join("model.safetensors"), &renamed).unwrap();
    let config = json!({"architecture": "vit", "model_args": {"num_heads": 2}, "pretrained_cfg": {"crop_pct": 1.0}});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn names_of_timm_mean_the_same() {
    for original in ["tiny-vit", "tiny-deit"] {
        let folder = timm(original, original);
        let config = Preprocess::read(reference(original)).unwrap();
        let options = ClassifierOptions { preprocess: config, ..ClassifierOptions::default() };
        std::fs::write(folder.join("synset_words.txt"), "n00000001 one\nn00000002 two, zwei\nthree\n\nfour\nfive\n")
            .unwrap();
        let classifier = Classifier::open(&folder, &options).unwrap();
        assert_eq!(classifier.labels(), ["one", "two, zwei", "three", "four", "five"]);
        let mut classes = classifier.classify(&image("rgb.png"), 9).unwrap();
        classes.sort_by_key(|class| class.index);
        let probabilities: Vec<f32> = classes.iter().map(|class| class.probability).collect();
        // The norms' epsilon is another one.
        let far = apart(&probabilities, &expected(original, "probabilities"));
        assert!(far < 1e-4, "{original}: {far:e}");
        let own = Classifier::open(&folder, &ClassifierOptions::default()).unwrap();
        assert_eq!(own.preprocess(), &Preprocess::imagenet(32, 1.0));
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn what_is_not_known_is_said() {
    let folder = timm("tiny-vit", "unknown");
    let open = || Classifier::open(&folder, &ClassifierOptions::default());
    std::fs::write(folder.join("labels.txt"), "one\ntwo\n").unwrap();
    assert!(open().unwrap_err().to_string().contains("2 lines for 5 kinds"));
    std::fs::remove_file(folder.join("labels.txt")).unwrap();
    assert_eq!(open().unwrap().labels()[4], "class 4");
    std::fs::write(folder.join("preprocessor_config.json"), r#"{"size": 48}"#).unwrap();
    assert_eq!(open().unwrap_err(), Error::WrongPictures { width: 48, height: 48, side: 32 });
    std::fs::remove_file(folder.join("preprocessor_config.json")).unwrap();
    std::fs::write(folder.join("config.json"), r#"{"model_type": "swin"}"#).unwrap();
    assert!(open().unwrap_err().to_string().contains("'swin' are not supported"));
    std::fs::remove_file(folder.join("config.json")).unwrap();
    // A width of 16 has no usual number of heads.
    assert!(open().unwrap_err().to_string().contains("0 heads do not divide"));
    let path = folder.join("model.safetensors");
    let mut tensors = safetensors::load(&path, Device::Cpu).unwrap();
    let gamma = Tensor::ones(16, DType::F32, Device::Cpu).unwrap();
    let mut save = |name: &str, tensor: Tensor| {
        tensors.insert(name.into(), tensor);
        // The file is mapped as long as its tensors are there.
        safetensors::save(folder.join("other.safetensors"), &tensors).unwrap();
        std::fs::rename(folder.join("other.safetensors"), &path).unwrap();
    };
    save("head.weight", Tensor::zeros([0, 16], DType::F32, Device::Cpu).unwrap());
    assert!(open().unwrap_err().to_string().contains("0 kinds of a width of 16"));
    save("patch_embed.proj.weight", Tensor::zeros([16, 3, 0, 0], DType::F32, Device::Cpu).unwrap());
    assert!(open().is_err());
    save("pos_embed", Tensor::zeros([1, 0, 16], DType::F32, Device::Cpu).unwrap());
    assert!(open().is_err());
    save("blocks.0.ls1.gamma", gamma);
    assert_eq!(open().unwrap_err(), Error::UnknownTensor { name: "blocks.0.ls1.gamma".into() });
    std::fs::remove_dir_all(folder).unwrap();
}

/// `KILN_MODELS` names the folder that holds the models which are too large for the repository.
#[test]
#[ignore = "needs the folders deit-tiny and images under KILN_MODELS"]
fn deit_names_the_cat_and_the_espresso() {
    let models = PathBuf::from(std::env::var_os("KILN_MODELS").expect("KILN_MODELS names a folder with deit-tiny"));
    let pictures = ["chelsea", "coffee"].map(|name| Image::open(models.join(format!("images/{name}.png"))).unwrap());
    for compile in [None, ClassifierOptions::default().compile, Some(Options::default())] {
        let options = ClassifierOptions { compile, ..ClassifierOptions::default() };
        let classifier = Classifier::open(models.join("deit-tiny"), &options).unwrap();
        let answers = classifier.classify_all(&pictures, 3).unwrap();
        for (answer, words) in answers.iter().zip([&["Egyptian cat", "tabby", "tiger cat"][..], &["espresso"]]) {
            eprintln!("{answer:?}");
            assert!(words.iter().any(|word| answer[0].label.contains(word)), "{answer:?}");
        }
    }
}

/// A check sum as PNG files have it.
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, &byte: &u8| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    };
    !bytes.iter().fold(u32::MAX, step)
}

/// Photographs carry how the camera was held: all eight ways, in JPEG and PNG files, come out as Pillow's `exif_transpose` has
/// them.
#[test]
fn pictures_are_put_upright() {
    let tiff =
        |number: u8| [b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", &[number][..], b"\0\0\0\0\0\0"].concat();
    let jpeg = std::fs::read(reference("images").join("colour.jpg")).unwrap();
    let png = std::fs::read(reference("images").join("rgb.png")).unwrap();
    for number in 1..=8u8 {
        let exif = [b"Exif\0\0", &tiff(number)[..]].concat();
        let length = (exif.len() as u16 + 2).to_be_bytes();
        let turned = [&jpeg[..2], &[0xff, 0xe1], &length, &exif, &jpeg[2..]].concat();
        check_upright(number, &jpeg, &turned);
        // Behind the header, and before the end of the file.
        let chunk = [b"eXIf", &tiff(number)[..]].concat();
        let length = (chunk.len() as u32 - 4).to_be_bytes();
        let chunk = [&length[..], &chunk, &crc(&chunk).to_be_bytes()].concat();
        for at in [33, png.len() - 12] {
            check_upright(number, &png, &[&png[..at], &chunk, &png[at..]].concat());
        }
    }
}

fn check_upright(number: u8, file: &[u8], turned: &[u8]) {
    let (file, upright) = (Image::decode(file).unwrap(), Image::decode(turned).unwrap());
    let (width, height) = (file.width(), file.height());
    let swapped = number >= 5;
    let sides = if swapped { (height, width) } else { (width, height) };
    assert_eq!((upright.width(), upright.height()), sides, "{number}");
    // Where the corner at the top left of the file is in the picture, and the one to the right of it.
    let (right, bottom) = (sides.0 - 1, sides.1 - 1);
    let corners = [
        [(0, 0), (right, 0)],
        [(right, 0), (0, 0)],
        [(right, bottom), (0, bottom)],
        [(0, bottom), (right, bottom)],
        [(0, 0), (0, bottom)],
        [(right, 0), (right, bottom)],
        [(right, bottom), (right, 0)],
        [(0, bottom), (0, 0)],
    ][usize::from(number - 1)];
    for (from, to) in [(0, 0), (width - 1, 0)].into_iter().zip(corners) {
        assert_eq!(file.pixel(from.0, from.1), upright.pixel(to.0, to.1), "{number}: {from:?} is not at {to:?}");
    }
}
