//! The convolutions that are measured, as networks have them.

use super::cases::{Case, Part};
use kiln_ir::DType;

/// A convolution of a batch of square images with a square kernel: channels, results, pixels, taps, stride, padding, groups.
type Square = (&'static str, Part, [usize; 7]);

const SQUARES: &[Square] = &[
    ("ResNet", Part::Forward, [3, 64, 224, 7, 2, 3, 1]),
    ("ResNet", Part::Forward, [64, 64, 56, 1, 1, 0, 1]),
    ("ResNet", Part::Forward, [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", Part::Forward, [128, 128, 28, 3, 1, 1, 1]),
    ("ResNet", Part::Forward, [256, 256, 14, 3, 1, 1, 1]),
    ("ResNet", Part::Forward, [512, 512, 7, 3, 1, 1, 1]),
    ("ResNet", Part::Forward, [128, 128, 56, 3, 2, 1, 1]),
    ("ResNet", Part::Forward, [256, 512, 56, 1, 2, 0, 1]),
    ("ResNet", Part::Forward, [512, 512, 14, 3, 2, 1, 1]),
    ("ResNet", Part::Forward, [1024, 256, 14, 1, 1, 0, 1]),
    ("ResNet", Part::Basic, [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", Part::Basic, [256, 256, 14, 3, 1, 1, 1]),
    ("CIFAR ResNet", Part::Trained, [16, 16, 32, 3, 1, 1, 1]),
    ("CIFAR ResNet", Part::Trained, [3, 16, 32, 3, 1, 1, 1]),
    ("ResNet", Part::Trained, [64, 64, 56, 3, 1, 1, 1]),
    ("MobileNetV2", Part::Forward, [3, 32, 224, 3, 2, 1, 1]),
    ("MobileNetV2", Part::Forward, [32, 32, 112, 3, 1, 1, 32]),
    ("MobileNetV2", Part::Forward, [144, 144, 56, 3, 1, 1, 144]),
    ("MobileNetV2", Part::Forward, [96, 96, 112, 3, 2, 1, 96]),
    ("MobileNetV2", Part::Forward, [576, 576, 14, 3, 2, 1, 576]),
    ("MobileNetV2", Part::Forward, [960, 960, 7, 3, 1, 1, 960]),
    ("MobileNetV2", Part::Inverted, [32, 192, 28, 3, 1, 1, 192]),
    ("MobileNetV2", Part::Inverted, [96, 576, 14, 3, 1, 1, 576]),
    ("MobileNetV3", Part::Forward, [672, 672, 14, 5, 1, 2, 672]),
    ("EfficientNet", Part::Forward, [240, 240, 28, 5, 2, 2, 240]),
    ("ConvNeXt", Part::Forward, [3, 96, 224, 4, 4, 0, 1]),
    ("ConvNeXt", Part::Forward, [96, 96, 56, 7, 1, 3, 96]),
    ("ConvNeXt", Part::Forward, [384, 384, 14, 7, 1, 3, 384]),
    ("ConvNeXt", Part::Forward, [96, 192, 56, 2, 2, 0, 1]),
    ("RegNetY", Part::Forward, [152, 152, 28, 3, 1, 1, 19]),
    ("ResNeXt", Part::Forward, [128, 128, 56, 3, 1, 1, 32]),
    ("ResNeXt", Part::Forward, [512, 512, 14, 3, 1, 1, 32]),
    ("ResNeXt", Part::Forward, [256, 256, 56, 3, 2, 1, 32]),
    ("AlexNet", Part::Forward, [384, 384, 13, 3, 1, 1, 2]),
    ("ResNet", Part::Forward, [128, 128, 56, 3, 1, 1, 2]),
    ("EfficientNet", Part::SqueezeExcite, [240, 40, 28, 5, 1, 2, 240]),
    ("EfficientNet", Part::SqueezeExcite, [672, 112, 14, 5, 1, 2, 672]),
    ("EfficientNet", Part::SqueezeExcite, [1152, 192, 7, 5, 1, 2, 1152]),
    ("U-Net", Part::Forward, [320, 320, 32, 3, 1, 1, 1]),
    ("U-Net", Part::Forward, [320, 320, 64, 3, 2, 1, 1]),
    ("U-Net", Part::Forward, [640, 640, 16, 3, 1, 1, 1]),
    ("U-Net", Part::Forward, [1280, 1280, 8, 3, 1, 1, 1]),
    ("U-Net", Part::Residual, [320, 320, 32, 3, 1, 1, 1]),
    ("U-Net", Part::Residual, [640, 640, 16, 3, 1, 1, 1]),
    ("U-Net", Part::Transposed, [128, 64, 32, 2, 2, 0, 1]),
    ("GAN", Part::Transposed, [256, 128, 16, 4, 2, 1, 1]),
    ("VAE", Part::Forward, [128, 128, 64, 3, 1, 1, 1]),
    ("VAE", Part::Forward, [128, 3, 128, 3, 1, 1, 1]),
    ("ResNet", Part::InputGradient, [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", Part::InputGradient, [128, 128, 56, 3, 2, 1, 1]),
    ("ResNet", Part::InputGradient, [256, 256, 14, 3, 1, 1, 1]),
    ("ResNet", Part::WeightGradient, [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", Part::WeightGradient, [128, 128, 56, 3, 2, 1, 1]),
    ("ResNet", Part::WeightGradient, [256, 256, 14, 3, 1, 1, 1]),
    ("MobileNetV2", Part::InputGradient, [144, 144, 56, 3, 1, 1, 144]),
    ("MobileNetV2", Part::WeightGradient, [144, 144, 56, 3, 1, 1, 144]),
    ("ResNet", Part::InputGradient, [64, 256, 56, 1, 1, 0, 1]),
    ("ResNet", Part::WeightGradient, [64, 256, 56, 1, 1, 0, 1]),
    ("ResNet", Part::InputGradient, [3, 64, 224, 7, 2, 3, 1]),
    ("ResNet", Part::WeightGradient, [3, 64, 224, 7, 2, 3, 1]),
    ("ResNeXt", Part::InputGradient, [128, 128, 56, 3, 1, 1, 32]),
    ("ResNeXt", Part::WeightGradient, [128, 128, 56, 3, 1, 1, 32]),
];

/// Convolutions that are measured in other layouts and types as well: numbers as above.
const VARIED: &[(&str, [usize; 7])] = &[
    ("ResNet", [3, 64, 224, 7, 2, 3, 1]),
    ("ResNet", [64, 64, 56, 1, 1, 0, 1]),
    ("ResNet", [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", [256, 256, 14, 3, 1, 1, 1]),
    ("ResNet", [512, 512, 7, 3, 1, 1, 1]),
    ("ResNet", [128, 128, 56, 3, 2, 1, 1]),
    ("ResNet", [1024, 256, 14, 1, 1, 0, 1]),
    ("MobileNetV2", [3, 32, 224, 3, 2, 1, 1]),
    ("MobileNetV2", [144, 144, 56, 3, 1, 1, 144]),
    ("MobileNetV2", [576, 576, 14, 3, 2, 1, 576]),
    ("ConvNeXt", [96, 96, 56, 7, 1, 3, 96]),
    ("RegNetY", [152, 152, 28, 3, 1, 1, 19]),
    ("ResNeXt", [128, 128, 56, 3, 1, 1, 32]),
    ("ResNeXt", [512, 512, 14, 3, 1, 1, 32]),
    ("U-Net", [320, 320, 32, 3, 1, 1, 1]),
];

/// Type and layout of each of them.
const VARIANTS: [(DType, bool); 4] =
    [(DType::F32, true), (DType::Bf16, false), (DType::Bf16, true), (DType::F16, false)];

/// All rows, of one image and of eight.
pub fn all(threads: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (&threads, batch) in threads.iter().flat_map(|threads| [(threads, 1), (threads, 8)]) {
        for &(network, part, [channels, outputs, pixels, taps, stride, padding, groups]) in SQUARES {
            let w = match part {
                Part::Transposed => [channels, outputs / groups, taps, taps],
                Part::Inverted => [outputs, 1, taps, taps],
                Part::SqueezeExcite => [channels, 1, taps, taps],
                _ => [outputs, channels / groups, taps, taps],
            };
            let x = vec![batch, channels, pixels, pixels];
            let (dtype, last) = (DType::F32, false);
            cases.push(Case { network, part, x, w: w.into(), stride, padding, groups, dtype, last, threads });
        }
        for (dtype, last) in VARIANTS {
            for &(network, [channels, outputs, pixels, taps, stride, padding, groups]) in VARIED {
                let (part, x) = (Part::Forward, vec![batch, channels, pixels, pixels]);
                let w = vec![outputs, channels / groups, taps, taps];
                cases.push(Case { network, part, x, w, stride, padding, groups, dtype, last, threads });
            }
        }
        let mut other = |network, part, x: &[usize], w: &[usize], stride, padding| {
            let (x, w) = ([&[batch], x].concat(), w.to_vec());
            let (groups, dtype, last) = (1, DType::F32, false);
            cases.push(Case { network, part, x, w, stride, padding, groups, dtype, last, threads });
        };
        other("Whisper", Part::Forward, &[80, 3000], &[384, 80, 3], 1, 1);
        other("Whisper", Part::Forward, &[384, 3000], &[384, 384, 3], 2, 1);
        other("3-D", Part::Forward, &[16, 16, 32, 32], &[32, 16, 3, 3, 3], 1, 1);
        other("Vocoder", Part::Transposed, &[256, 128], &[256, 128, 16], 8, 4);
        other("3-D", Part::Transposed, &[64, 8, 16, 16], &[64, 32, 2, 2, 2], 2, 0);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::super::cases::Work;
    use super::*;
    use std::collections::BTreeSet;

    /// No row is there twice, and the first input of each is an image of its batch.
    #[test]
    fn rows_are_different_graphs_of_images() {
        let works: Vec<Work> = all(&[1]).into_iter().map(Work::from).collect();
        assert_eq!(works.iter().map(|work| &work.name).collect::<BTreeSet<_>>().len(), works.len());
        for work in &works {
            let graph = (work.graph)().unwrap();
            let first = graph.ty(graph.inputs()[0]).fixed_shape().unwrap();
            assert_eq!((first[0], work.operations > 0.0), (work.batch, true), "{}", work.name);
            assert!(!work.has_weights || graph.inputs().len() > 1, "{}", work.name);
        }
    }
}
