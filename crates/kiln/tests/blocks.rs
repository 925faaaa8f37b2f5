//! Layers over quantised blocks: eager, compiled, and the elements taken apart first agree.

use kiln::nn::{Forward, Int8Linear, QuantizedEmbedding, QuantizedLinear};
use kiln::{BlockFormat, DType, Device, Options, Precision, Tensor, Var, compile, compile_with};

/// Blocks whose bytes are ordinary numbers wherever they are scales.
fn blocks(format: BlockFormat, rows: usize, k: usize) -> Tensor {
    let bytes = format.row_bytes(k).unwrap();
    let elements = (0..rows * bytes).map(|i| (i * 7919 % 61) as u8).collect();
    Tensor::from_vec(elements, [rows, bytes], Device::Cpu).unwrap()
}

fn numbers(rows: usize, columns: usize) -> Tensor {
    let elements: Vec<f32> = (0..rows * columns).map(|i| (i * 31 % 17) as f32 / 8.0 - 1.0).collect();
    Tensor::from_vec(elements, [rows, columns], Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, want: &Tensor) {
    let (got, want) = (got.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() <= 1e-5 * most, "{got} instead of {want}");
    }
}

#[test]
fn layers_of_every_format() {
    for format in BlockFormat::ALL {
        let (k, n) = (512, 24);
        let (weight, bias) = (blocks(format, n, k), numbers(1, n).reshape(n).unwrap());
        let layer = QuantizedLinear { blocks: Var::new(&weight), format, bias: Some(Var::new(&bias)) };
        let dense = weight.dequantize(format).unwrap();
        assert_eq!(dense.shape(), [n, k]);
        for m in [1, 3, 40] {
            let (x, residual) = (numbers(m, k), numbers(m, n));
            let want = x.linear(&dense, Some(&bias)).unwrap().silu().unwrap().add(&residual).unwrap();
            let run = |x: &Tensor, residual: &Tensor| layer.forward(x)?.silu()?.add(residual);
            assert_close(&run(&x, &residual).unwrap(), &want);
            let fast = compile(|(x, residual): &(Tensor, Tensor)| run(x, residual));
            assert_close(&fast.call(&(x, residual)).unwrap(), &want);
        }
    }
}

/// A lower precision is a permission: results are off by no more than it says, and verifying programs know of it.
#[test]
fn layers_of_lower_precision() {
    // Sines: no element is a whole number of eighths, so that rounding shows.
    let waves = |rows: usize, k: usize| {
        let elements: Vec<f32> = (0..rows * k).map(|i| (i as f32 * 0.7).sin()).collect();
        Tensor::from_vec(elements, [rows, k], Device::Cpu).unwrap()
    };
    for format in BlockFormat::ALL {
        let (k, n) = (512, 24);
        let weight = blocks(format, n, k);
        let dense = weight.dequantize(format).unwrap();
        let layer = QuantizedLinear { blocks: Var::new(&weight), format, bias: None };
        for (precision, allowed) in
            [(Precision::Highest, 1e-5), (Precision::High, 1.0 / 2048.0), (Precision::Medium, 1.0 / 64.0)]
        {
            let options = Options { precision, verify: true, ..Options::default() };
            let fast = compile_with(|x: &Tensor| layer.forward(x), options);
            for m in [1, 3, 40] {
                let x = waves(m, k);
                let want = x.linear(&dense, None).unwrap().to_vec::<f32>().unwrap();
                let got = fast.call(&x).unwrap().to_vec::<f32>().unwrap();
                let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
                let error = square(&mut got.iter().zip(&want).map(|(g, w)| g - w));
                let size = square(&mut want.iter().copied());
                assert!(error <= allowed * size, "{format:?} {precision:?}, {m} rows: {error} of {size}");
            }
        }
    }
}

/// A linear layer is one kernel, whatever the passes make of it: nothing but the product unpacks the blocks.
#[test]
fn a_layer_is_one_product() {
    use kiln_ir::build::{GraphBuilder, add, linear_blocks};
    for m in [1, 8, 64] {
        let mut b = GraphBuilder::new();
        let x = b.input(kiln_ir::TensorType::fixed(DType::F32, &[m, 256])).unwrap();
        let w = b.input(kiln_ir::TensorType::fixed(DType::U8, &[40, 144])).unwrap();
        let y = linear_blocks(&mut b, &x, &w, BlockFormat::Q4_K, None).unwrap();
        let z = add(&mut b, &y, &y).unwrap();
        b.output(z);
        let program = kiln::compile_graph(&b.finish(), &[]).unwrap();
        assert_eq!(program.program().steps().len(), 1, "{m} rows");
    }
}

#[test]
fn short_activations_come_back_short() {
    let (format, x) = (BlockFormat::Q4_0, numbers(2, 64));
    let weight = blocks(format, 16, 64);
    let wide = x.linear_blocks(&weight, format, None).unwrap();
    let short = x.to_dtype(DType::Bf16).unwrap().linear_blocks(&weight, format, None).unwrap();
    assert_eq!(short.dtype(), DType::Bf16);
    assert_close(
        &short.to_dtype(DType::F32).unwrap(),
        &wide.to_dtype(DType::Bf16).unwrap().to_dtype(DType::F32).unwrap(),
    );
}

#[test]
fn rows_of_a_table() {
    let format = BlockFormat::Q8_0;
    let table = QuantizedEmbedding { blocks: Var::new(&blocks(format, 50, 96)), format, dtype: DType::F32 };
    let words = Tensor::new([[3i64, 49], [0, 3]], Device::Cpu).unwrap();
    let want = table.blocks.get().dequantize(format).unwrap().embedding(&words).unwrap();
    assert_eq!(table.forward(&words).unwrap().to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
    let hidden = numbers(3, 96);
    let want = hidden.linear(&table.blocks.get().dequantize(format).unwrap(), None).unwrap();
    assert_close(&table.products(&hidden).unwrap(), &want);
}

#[test]
fn gradients_reach_the_input() {
    let (format, x) = (BlockFormat::Q4_1, Var::new(&numbers(2, 64)).requires_grad(true));
    let weight = blocks(format, 16, 64);
    x.get().linear_blocks(&weight, format, None).unwrap().sum(..).unwrap().backward().unwrap();
    let want = weight.dequantize(format).unwrap().sum_keepdim(0).unwrap().broadcast_to([2, 64]).unwrap();
    assert_close(&x.grad().unwrap(), &want);
}

#[test]
fn what_is_no_weight_is_refused() {
    let x = numbers(2, 64);
    let message = |weight: &Tensor, format| x.linear_blocks(weight, format, None).unwrap_err().to_string();
    let floats = message(&numbers(2, 36), BlockFormat::Q4_0);
    assert!(floats.starts_with("linear_blocks: takes bytes (u8), not f32, at "), "{floats}");
    let other = message(&blocks(BlockFormat::Q4_0, 4, 96), BlockFormat::Q4_0);
    assert!(other.starts_with("linear_blocks: [2, 64] and [4, 96] do not agree (64 ≠ 96), at "), "{other}");
    let broken = message(&blocks(BlockFormat::Q4_0, 4, 64), BlockFormat::Q4_1);
    assert!(broken.contains("bytes of a row = 36"), "{broken}");
}

/// 8-bit integers with a scale an output, in every dtype of activations; sums before the scale are beyond the range of f16.
#[test]
fn layers_of_integers() {
    let (k, n) = (512, 24);
    let integers: Vec<i8> = (0..n * k).map(|i| ((i * 7919 % 255) as i64 - 127) as i8).collect();
    let weight = Tensor::from_vec(integers, [n, k], Device::Cpu).unwrap();
    for (dtype, off) in [(DType::F32, 1e-5), (DType::Bf16, 0.02), (DType::F16, 0.002)] {
        let of = |x: Tensor| x.to_dtype(dtype).unwrap();
        let scale = of((numbers(1, n).reshape(n).unwrap() * 0.01).unwrap());
        let bias = of(numbers(1, n).reshape(n).unwrap());
        let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
        let dense = (wide(&weight) * wide(&scale).unsqueeze(1).unwrap()).unwrap();
        let var = |x: &Tensor| Var::new(x);
        let layer = Int8Linear { weight: var(&weight), scale: var(&scale), bias: Some(var(&bias)) };
        for m in [1, 3, 40] {
            let x = of((wide(&weight).narrow(0, 0, 1).unwrap().expand([m, k]).unwrap() * 0.1).unwrap());
            let want = wide(&x).linear(&dense, Some(&wide(&bias))).unwrap().to_vec::<f32>().unwrap();
            let most = want.iter().fold(0f32, |most, x| most.max(x.abs()));
            let fast = compile(|x: &Tensor| layer.forward(x));
            for got in [layer.forward(&x).unwrap(), fast.call(&x).unwrap()] {
                assert_eq!((got.shape(), got.dtype()), (&[m, n][..], dtype));
                for (got, want) in wide(&got).to_vec::<f32>().unwrap().iter().zip(&want) {
                    assert!((got - want).abs() <= off * most, "{dtype} {m}: {got} instead of {want}");
                }
            }
        }
    }
    let (x, scale) = (numbers(1, k), numbers(1, n).reshape(n).unwrap());
    assert!(x.linear_int8(&x, &scale, None).unwrap_err().to_string().contains("i8"));
    assert!(x.linear_int8(&weight, &numbers(1, k).reshape(k).unwrap(), None).is_err());
    assert!(numbers(1, 8).linear_int8(&weight, &scale, None).is_err());
}
