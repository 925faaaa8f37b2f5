//! Round trips of the quantisers and the statistics of random weights.

use super::*;

const FORMATS: [(BlockFormat, f64); 6] = [
    // The largest root mean square error for normally distributed elements, of their deviation.
    (BlockFormat::Q4_0, 0.100),
    (BlockFormat::Q4_1, 0.090),
    (BlockFormat::Q5_0, 0.050),
    (BlockFormat::Q8_0, 0.006),
    (BlockFormat::Q4_K, 0.078),
    (BlockFormat::Q6_K, 0.019),
];

/// Normally distributed numbers.
fn normal(seed: u64, deviation: f64, rows: usize, width: usize) -> Tensor {
    crate::random::normal(seed, deviation, &[rows, width], DType::F32, Device::Cpu).unwrap()
}

fn matrix(elements: Vec<f32>, width: usize) -> Tensor {
    Tensor::from_vec(elements.clone(), [elements.len() / width, width], Device::Cpu).unwrap()
}

fn through_blocks(matrix: &Tensor, format: BlockFormat) -> Result<Vec<f32>> {
    let blocks = to_blocks("w", matrix, format, WeightFormat::Q4_K_M, Device::Cpu)?;
    Ok(blocks.dequantize(format)?.to_vec::<f32>()?)
}

fn through_int8(matrix: &Tensor, dtype: DType) -> Result<Vec<f32>> {
    let (q, scale) = to_int8("w", matrix, dtype, Device::Cpu)?;
    let scale = scale.to_dtype(DType::F32)?.unsqueeze(1)?;
    Ok((q.to_dtype(DType::F32)? * scale)?.to_vec::<f32>()?)
}

/// The root mean square difference, of the root mean square.
fn error(found: &[f32], exact: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let off: f64 = found.iter().zip(exact).map(|(a, b)| square(a - b)).sum();
    (off / exact.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

#[test]
fn errors_of_normal_weights_are_bounded() {
    for deviation in [1e-3, 0.02, 5.0, 1000.0] {
        let weights = normal(3, deviation, 40, 1024);
        let exact = weights.to_vec::<f32>().unwrap();
        for (format, most) in FORMATS {
            let off = error(&through_blocks(&weights, format).unwrap(), &exact);
            assert!(off < most && off > most / 2.0, "{} of {deviation}: {off}", format.name());
        }
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let off = error(&through_int8(&weights, dtype).unwrap(), &exact);
            assert!(off < 0.0085, "int8 with scales of {dtype} of {deviation}: {off}");
        }
    }
}

/// What no distribution promises: each element is off by half a step of its group at the most, however elements are spread.
#[test]
fn every_element_is_within_a_step() {
    let spread = |i: usize| ((i * 7919 % 1013) as f32 / 506.5 - 1.0) * 10f32.powi((i * 31 % 7) as i32 - 3);
    let waves = |i: usize| (i as f32 * 0.1).sin() + 2.0;
    let negative = |i: usize| -1.0 - (i % 13) as f32;
    let outlier = |i: usize| if i % 256 == 77 { 900.0 } else { (i as f32).cos() };
    let kinds: [&dyn Fn(usize) -> f32; 4] = [&spread, &waves, &negative, &outlier];
    for (number, kind) in kinds.into_iter().enumerate() {
        let exact: Vec<f32> = (0..2048).map(kind).collect();
        for (format, levels) in [
            (BlockFormat::Q4_0, 8.0),
            (BlockFormat::Q4_1, 8.0),
            (BlockFormat::Q5_0, 16.0),
            (BlockFormat::Q8_0, 127.0),
            (BlockFormat::Q4_K, 7.0),
            (BlockFormat::Q6_K, 24.0),
        ] {
            let found = through_blocks(&matrix(exact.clone(), 512), format).unwrap();
            for (found, exact) in found.chunks(format.elements()).zip(exact.chunks(format.elements())) {
                let most = exact.iter().fold(0f32, |most, x| most.max(x.abs()));
                for (found, exact) in found.iter().zip(exact) {
                    assert!((found - exact).abs() <= most / levels, "{} {number}: {found} {exact}", format.name());
                }
            }
        }
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let found = through_int8(&matrix(exact.clone(), 512), dtype).unwrap();
            for (found, exact) in found.chunks(512).zip(exact.chunks(512)) {
                let step = int8::scale(exact.iter().fold(0f32, |most, x| most.max(x.abs())), dtype);
                assert!(found.iter().zip(exact).all(|(a, b)| (a - b).abs() <= step * 0.501), "int8 {number} {dtype}");
            }
        }
    }
}

#[test]
fn extremes() {
    for (format, _) in FORMATS {
        let same = |value: f32| through_blocks(&matrix(vec![value; 512], 256), format);
        assert_eq!(same(0.0).unwrap(), [0.0; 512], "{}", format.name());
        // Below what f16 has scales for: nearly zeros.
        for tiny in [f32::from_bits(1), 1e-40, -1e-20] {
            assert!(same(tiny).unwrap().iter().all(|x| x.abs() <= 1e-7), "{} of {tiny}", format.name());
        }
        for large in [65504f32, -65504.0] {
            let found = same(large).unwrap();
            assert!(found.iter().all(|x| (x / large - 1.0).abs() < 0.01), "{}: {}", format.name(), found[0]);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65520.0, 3e38] {
            let error = same(bad).unwrap_err();
            assert!(matches!(error, Error::NotQuantizable { .. }), "{} of {bad}: {error}", format.name());
        }
    }
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let same = |value: f32| through_int8(&matrix(vec![value; 64], 32), dtype);
        assert_eq!(same(0.0).unwrap(), [0.0; 64]);
        for value in [1.0, -1e-3, 65504.0, 1e6] {
            assert!(same(value).unwrap().iter().all(|x| (x / value - 1.0).abs() < 0.008), "{dtype} of {value}");
        }
        // A scale is never 0 beside an element that is not.
        let (q, scale) = to_int8("w", &matrix(vec![1e-45, 0.0], 2), dtype, Device::Cpu).unwrap();
        assert!(scale.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()[0] > 0.0 && q.elements() == 2);
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            assert!(matches!(same(bad), Err(Error::NotQuantizable { .. })), "{dtype} of {bad}");
        }
    }
    assert!(through_int8(&matrix(vec![1e7; 32], 32), DType::F16).is_err(), "no such scale in f16");
    assert!(through_int8(&matrix(vec![1e37; 32], 32), DType::Bf16).is_ok());
}

/// Short floats and strided matrices are quantised as what they are.
#[test]
fn other_dtypes_and_strides() {
    let weights = normal(5, 0.1, 256, 64);
    let short = weights.to_dtype(DType::Bf16).unwrap();
    let wide = short.to_dtype(DType::F32).unwrap();
    assert_eq!(through_int8(&short, DType::Bf16).unwrap(), through_int8(&wide, DType::Bf16).unwrap());
    let turned = weights.transpose(0, 1).unwrap();
    let copied = matrix(turned.to_vec::<f32>().unwrap(), 256);
    for format in [BlockFormat::Q4_K, BlockFormat::Q6_K, BlockFormat::Q8_0] {
        assert_eq!(through_blocks(&turned, format).unwrap(), through_blocks(&copied, format).unwrap());
    }
}

#[test]
fn random_weights_are_valid_and_of_the_deviation() {
    let moments = |values: &[f32]| {
        let count = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        (mean, (values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / count).sqrt())
    };
    for format in BlockFormat::ALL {
        let made = |seed| random::blocks(seed, 0.02, format, [200, 1024], Device::Cpu).unwrap();
        let blocks = made(7);
        assert!(!format.is_damaged(&blocks.to_vec::<u8>().unwrap()), "{}", format.name());
        assert_eq!(blocks.to_vec::<u8>().unwrap(), made(7).to_vec::<u8>().unwrap());
        assert_ne!(blocks.to_vec::<u8>().unwrap(), made(8).to_vec::<u8>().unwrap());
        let (mean, deviation) = moments(&blocks.dequantize(format).unwrap().to_vec::<f32>().unwrap());
        assert!(mean.abs() < 2e-4 && (deviation / 0.02 - 1.0).abs() < 0.02, "{}: {mean} {deviation}", format.name());
    }
    let (q, scale) = random::int8(7, 0.02, [200, 1000], DType::Bf16, Device::Cpu).unwrap();
    let scale = scale.to_dtype(DType::F32).unwrap().unsqueeze(1).unwrap();
    let values = (q.to_dtype(DType::F32).unwrap() * scale).unwrap().to_vec::<f32>().unwrap();
    let (mean, deviation) = moments(&values);
    assert!(mean.abs() < 2e-4 && (deviation / 0.02 - 1.0).abs() < 0.02, "{mean} {deviation}");
}

/// llama.cpp's Q4_K_M of a model of 32 layers: half of the sensitive matrices are q6_k.
#[test]
fn mixtures() {
    let format = |name: &str, layer| WeightFormat::Q4_K_M.blocks(Place::of(name, layer), 4096);
    let more = |name: &str| (0..32).filter(|&n| format(name, Some((n, 32))) == Some(BlockFormat::Q6_K)).count();
    assert_eq!(more("model.layers.3.self_attn.v_proj"), 16);
    assert_eq!(more("model.layers.3.mlp.down_proj"), 16);
    assert_eq!((more("x.self_attn.q_proj"), more("x.mlp.up_proj"), more("h.0.attn.c_proj")), (0, 0, 0));
    assert_eq!(format("lm_head", None), Some(BlockFormat::Q6_K));
    assert_eq!(WeightFormat::Q4_K_M.blocks(Place::Other, 288), Some(BlockFormat::Q5_0));
    assert_eq!(WeightFormat::Q4_K_M.blocks(Place::Head, 288), Some(BlockFormat::Q8_0));
    assert_eq!(WeightFormat::Q4_K_M.blocks(Place::Other, 172), None);
    assert_eq!(WeightFormat::Q8_0.blocks(Place::Head, 4096), Some(BlockFormat::Q8_0));
    for format in WeightFormat::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert!("q3_k".parse::<WeightFormat>().is_err());
}
