//! Regions of mixed precision: which operation runs in which type (against PyTorch's, `reference/autocast.py`), regions inside and around compiled
//! functions, gradients, and a gradient scaler in f16.

use kiln::nn::{Forward, Linear, Module};
use kiln::optim::{Adam, GradScaler, Optimizer, Sgd};
use kiln::{Conv, DType, Device, Options, PadMode, Pool, Result, Tensor, Var, autocast, autocast_dtype, no_autocast};
use std::sync::Arc;

/// An operation by the name that the reference has for it.
fn operation(name: &str, x: &Tensor) -> Result<Tensor> {
    let ones = || Tensor::ones([4, 4], DType::F32, Device::Cpu);
    let image = || x.reshape([1, 1, 4, 4]);
    let volume = || x.reshape([1, 1, 1, 4, 4]);
    let planes = Pool::<3>::new([1, 2, 2]);
    match name {
        "matmul" => x.matmul(x),
        "bmm" => x.reshape([1, 4, 4])?.bmm(&x.reshape([1, 4, 4])?),
        "linear" => x.linear(x, None),
        "einsum" => Tensor::einsum("ij,jk->ik", &[x, x]),
        "conv1d" => x.reshape([1, 4, 4])?.conv1d(&x.reshape([4, 4, 1])?, None, &Conv::default()),
        "conv2d" => x.reshape([1, 4, 4, 1])?.conv2d(&x.reshape([4, 4, 1, 1])?, None, &Conv::default()),
        "conv3d" => x.reshape([1, 4, 4, 1, 1])?.conv3d(&x.reshape([4, 4, 1, 1, 1])?, None, &Conv::default()),
        "conv_transpose1d" => x.reshape([1, 4, 4])?.conv_transpose1d(&x.reshape([4, 4, 1])?, None, &Conv::default()),
        "conv_transpose2d" => {
            x.reshape([1, 4, 4, 1])?.conv_transpose2d(&x.reshape([4, 4, 1, 1])?, None, &Conv::default())
        }
        "scaled_dot_product_attention" => {
            image()?.scaled_dot_product_attention(&image()?, &image()?, None, false, None)
        }
        "softmax" => x.softmax(-1),
        "log_softmax" => x.log_softmax(-1),
        "layer_norm" => x.layer_norm(1, None, None, 1e-5),
        "group_norm" => x.reshape([1, 4, 4])?.group_norm(2, None, None, 1e-5),
        "exp" => x.exp(),
        "log" => x.log(),
        "rsqrt" => x.rsqrt(),
        "recip" => x.recip(),
        "pow" => x.pow(2.5),
        "tanh" => x.tanh(),
        "gelu" => x.gelu(),
        "softplus" => x.softplus(),
        "sum" => x.sum(..),
        "mean" => x.mean(..),
        "prod" => x.prod(..),
        "cumsum" => x.cumsum(0),
        "norm" => x.norm(2.0, ..),
        "logsumexp" => x.logsumexp(0),
        "mse_loss" => x.mse_loss(x),
        "l1_loss" => x.l1_loss(x),
        "smooth_l1_loss" => x.smooth_l1_loss(x),
        "binary_cross_entropy_with_logits" => x.binary_cross_entropy_with_logits(x),
        "cross_entropy" => x.cross_entropy(&Tensor::arange(4, DType::I64, Device::Cpu)?),
        "max_pool2d" => image()?.max_pool2d(&Pool::new([2, 2])),
        "avg_pool2d" => image()?.avg_pool2d(&Pool::new([2, 2])),
        "avg_pool3d" => volume()?.avg_pool3d(&planes),
        "max_pool3d" => volume()?.max_pool3d(&planes),
        "adaptive_avg_pool3d" => volume()?.adaptive_avg_pool3d([1, 2, 2]),
        "interpolate_nearest" => image()?.interpolate_nearest(&[8, 8]),
        "interpolate_linear" => image()?.interpolate_linear(&[8, 8], false),
        "pad_axis" => x.pad_axis(1, 1, 1, PadMode::Reflect),
        "add" => x.add(1.0),
        "add_mixed" => x.add(&ones()?),
        "concat_mixed" => Tensor::cat(&[x.clone(), ones()?], 0),
        _ => panic!("{name} is not known"),
    }
}

#[test]
fn operations_run_in_the_types_that_pytorch_chooses() -> Result<()> {
    let x = Tensor::rand([4, 4], DType::F32, Device::Cpu)?.add(0.5)?;
    for line in include_str!("reference/autocast.txt").lines() {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        for (of, wanted) in [DType::F32, DType::Bf16].into_iter().zip(words) {
            let x = x.to_dtype(of)?;
            let eager = autocast(DType::Bf16, || operation(name, &x))?;
            assert_eq!(eager.dtype().to_string(), wanted, "{name} of {of}");
            let name = name.to_owned();
            let inside = kiln::compile(move |x: &Tensor| autocast(DType::Bf16, || operation(&name, x))).call(&x)?;
            assert_eq!(inside.dtype(), eager.dtype());
            assert!(inside.allclose(&eager, 2e-2, 2e-2)?, "{line}: {inside} is not {eager}");
        }
    }
    Ok(())
}

#[test]
fn a_training_step_gives_what_pytorch_gives() -> Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/autocast.safetensors");
    let all = Arc::new(kiln::safetensors::load(path, Device::Cpu)?);
    let parameters: Vec<Var> =
        ["w1", "b1", "gain", "w2"].iter().map(|name| Var::new(&all[*name]).requires_grad(true)).collect();
    let loss = {
        let (all, parameters) = (all.clone(), parameters.clone());
        move |x: &Tensor| {
            let [w1, b1, gain, w2] = [0, 1, 2, 3].map(|i| parameters[i].get());
            let loss = autocast(DType::Bf16, || {
                let hidden = x.linear(&w1, Some(&b1))?.gelu()?;
                assert_eq!(hidden.dtype(), DType::Bf16);
                hidden.layer_norm(1, Some(&gain), None, 1e-5)?.linear(&w2, None)?.cross_entropy(&all["labels"])
            })?;
            loss.backward()?;
            Ok(loss.detach())
        }
    };
    let compiled = kiln::compile_with(loss.clone(), Options { fullgraph: true, ..Options::default() });
    for way in ["eager", "compiled"] {
        parameters.iter().for_each(Var::zero_grad);
        let got = if way == "eager" { loss(&all["x"])? } else { compiled.call(&all["x"])? };
        assert_eq!(got.dtype(), DType::F32);
        assert!(got.allclose(&all["loss"], 1e-2, 1e-2)?, "{way}: {got} is not {}", all["loss"]);
        for (parameter, name) in parameters.iter().zip(["dw1", "db1", "dgain", "dw2"]) {
            let gradient = parameter.grad().unwrap();
            assert_eq!(gradient.dtype(), DType::F32, "{name}");
            assert!(gradient.allclose(&all[name], 3e-2, 3e-2)?, "{way}, {name}: {gradient} is not {}", all[name]);
        }
    }
    Ok(())
}

#[test]
fn regions_nest_and_end() -> Result<()> {
    let x = Tensor::ones([2, 2], DType::F32, Device::Cpu)?;
    let kinds = autocast(DType::Bf16, || {
        let outer = x.matmul(&x)?.dtype();
        let inner = autocast(DType::F16, || Ok(x.matmul(&x)?.dtype()))?;
        let off = no_autocast(|| x.matmul(&x))?.dtype();
        Ok([outer, inner, off, x.matmul(&x)?.dtype()])
    })?;
    assert_eq!(kinds, [DType::Bf16, DType::F16, DType::F32, DType::Bf16]);
    assert_eq!(autocast_dtype(), None);
    // Also by an error, and by a panic.
    autocast(DType::Bf16, || x.reshape([3])).unwrap_err();
    let panics = std::panic::catch_unwind(|| autocast(DType::Bf16, || -> Result<()> { panic!("inside") }));
    assert!(panics.is_err() && autocast_dtype().is_none());
    let wide = autocast(DType::F32, || x.matmul(&x)).unwrap_err().to_string();
    assert!(wide.contains("autocast"), "{wide}");
    // Wider than f32 is nobody's business.
    let double = x.to_dtype(DType::F64)?;
    assert_eq!(autocast(DType::Bf16, || double.matmul(&double))?.dtype(), DType::F64);
    Ok(())
}

#[test]
fn a_compiled_function_has_a_program_for_each_region_it_is_called_in() -> Result<()> {
    let x = Tensor::ones([2, 2], DType::F32, Device::Cpu)?;
    let fast = kiln::compile(|x: &Tensor| x.matmul(x)?.add(1.0));
    for _ in 0..3 {
        assert_eq!(fast.call(&x)?.dtype(), DType::F32);
        assert_eq!(autocast(DType::Bf16, || fast.call(&x))?.dtype(), DType::Bf16);
        assert_eq!(autocast(DType::F16, || fast.call(&x))?.dtype(), DType::F16);
        assert_eq!(autocast(DType::F16, || no_autocast(|| fast.call(&x)))?.dtype(), DType::F32);
    }
    assert_eq!(fast.stats().compiles, 3);
    // A part that is not captured runs in the region around it, at later calls too.
    let part = kiln::disable(|x: &Tensor| x.matmul(x));
    let whole = kiln::compile(move |x: &Tensor| autocast(DType::Bf16, || part.call(&x.add(1.0)?)));
    for _ in 0..3 {
        assert_eq!(whole.call(&x)?.dtype(), DType::Bf16);
    }
    Ok(())
}

#[test]
fn a_weight_that_is_read_twice_is_cast_once() -> Result<()> {
    let w = Var::new(&Tensor::ones([64, 64], DType::F32, Device::Cpu)?);
    let fast = kiln::compile(move |x: &Tensor| {
        autocast(DType::Bf16, || x.matmul(&w.get())?.tanh()?.matmul(&w.get())?.matmul(&w.get()))
    });
    let x = Tensor::ones([64, 64], DType::F32, Device::Cpu)?;
    // Two inputs, a cast of each, three products and a function.
    let explained = fast.explain(&x)?.to_string();
    assert!(explained.contains("8 after the passes"), "{explained}");
    Ok(())
}

/// In f16 a loss that is scaled up overflows: the step is left out, the factor halves, and later steps are taken; all by one program.
#[test]
fn steps_that_overflow_in_f16_are_left_out_by_one_program() -> Result<()> {
    kiln::manual_seed(3);
    let model = Arc::new(Linear::new(8, 4)?);
    let x = Tensor::randn([16, 8], DType::F32, Device::Cpu)?;
    let target = Tensor::randn([16, 4], DType::F32, Device::Cpu)?;
    for adam in [false, true] {
        let optimizer: Arc<dyn Optimizer + Send + Sync> = match adam {
            true => Arc::new(Adam::new(model.parameters(), 0.05)?),
            false => Arc::new(Sgd::new(model.parameters(), 0.05)?),
        };
        let scaler = Arc::new(GradScaler::new(Device::Cpu)?);
        // Too large for f16 for a few steps.
        scaler.scale.set(&Tensor::scalar(f64::from(1u32 << 24), DType::F32, Device::Cpu)?)?;
        let step = {
            let (model, optimizer, scaler) = (model.clone(), optimizer.clone(), scaler.clone());
            move |(x, target): &(Tensor, Tensor)| {
                optimizer.zero_grad();
                let loss = autocast(DType::F16, || model.forward(x)?.mse_loss(target))?;
                scaler.scale(&loss)?.backward()?;
                let ok = scaler.step_or_skip(&*optimizer)?;
                Ok((loss.detach(), ok))
            }
        };
        let fast = kiln::compile_with(step, Options { fullgraph: true, ..Options::default() });
        let (mut skipped, mut losses) = (0, Vec::new());
        for _ in 0..40 {
            let before: Vec<Tensor> = model.parameters().iter().map(Var::get).collect();
            let factor = scaler.scale.get().item::<f32>()?;
            let (loss, ok) = fast.call(&(x.clone(), target.clone()))?;
            let after: Vec<Tensor> = model.parameters().iter().map(Var::get).collect();
            let same = before.iter().zip(&after).all(|(a, b)| a.to_vec::<f32>().unwrap() == b.to_vec::<f32>().unwrap());
            assert_eq!(same, !ok.item::<bool>()?, "the step is taken where nothing overflowed");
            if same {
                skipped += 1;
                assert_eq!(scaler.scale.get().item::<f32>()?, factor / 2.0);
            }
            losses.push(loss.item::<f32>()?);
        }
        assert!((1..20).contains(&skipped), "{skipped} steps left out");
        assert!(losses[39] < losses[0] && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
        let stats = fast.stats();
        assert_eq!((stats.programs, stats.graphs, stats.breaks), (1, 1, 0), "{stats:?}");
    }
    Ok(())
}

/// Two operands of different types, as a region leaves them, against PyTorch's type of the result on a processor.
#[test]
fn operands_of_several_types_meet() -> Result<()> {
    use kiln::{CrossEntropy, Reduction, SampleMode, SamplePadding};
    const MEAN: Reduction = Reduction::Mean;
    type F = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let cases: [(&str, F, [DType; 3]); 20] = {
        let (long, short) = ([DType::F32; 3], [DType::Bf16; 3]);
        let widest = [DType::F32, DType::Bf16, DType::F32];
        [
            ("prelu", |x, y| x.prelu(&y.select(0, 0)?), short),
            ("addmm", |x, y| x.addmm(y, x, 1.0, 1.0), short),
            ("addmv", |x, y| x.select(0, 0)?.addmv(y, &x.select(0, 0)?, 1.0, 1.0), short),
            ("baddbmm", |x, y| x.unsqueeze(0)?.baddbmm(&y.unsqueeze(0)?, &x.unsqueeze(0)?, 1.0, 1.0), short),
            ("addbmm", |x, y| x.addbmm(&y.unsqueeze(0)?, &x.unsqueeze(0)?, 1.0, 1.0), short),
            ("huber_loss", |x, y| x.huber_loss(y, 1.0, MEAN), long),
            ("binary_cross_entropy", |x, y| x.binary_cross_entropy(y, MEAN), long),
            ("kl_div", |x, y| x.kl_div(y, false, MEAN), long),
            ("poisson_nll_loss", |x, y| x.poisson_nll_loss(y, MEAN), long),
            ("soft_margin_loss", |x, y| x.soft_margin_loss(y, MEAN), long),
            ("hinge_embedding_loss", |x, y| x.hinge_embedding_loss(y, 1.0, MEAN), long),
            (
                "nll_loss",
                |x, y| {
                    let choices = CrossEntropy { weight: Some(y.select(0, 0)?), ..CrossEntropy::default() };
                    x.nll_loss(&Tensor::arange(4, DType::I64, Device::Cpu)?, &choices)
                },
                long,
            ),
            ("triplet_margin_loss", |x, y| x.triplet_margin_loss(y, x, 1.0, 2.0, MEAN), long),
            (
                "grid_sample",
                |x, y| {
                    let grid = y.reshape([1, 2, 4, 2])?;
                    x.reshape([1, 1, 4, 4])?.grid_sample(&grid, SampleMode::Bilinear, SamplePadding::Zeros, false)
                },
                long,
            ),
            ("cdist", |x, y| x.cdist(y, 2.0), long),
            ("cosine_similarity", |x, y| x.cosine_similarity(y, 1, 1e-8), widest),
            ("pairwise_distance", |x, y| x.pairwise_distance(y, 2.0, 1e-6), widest),
            ("lstsq", |x, _| x.to_dtype(DType::F32)?.lstsq(&x.to_dtype(DType::F32)?), long),
            ("pinv", |x, _| x.to_dtype(DType::F32)?.pinv(None), long),
            ("matrix_power", |x, _| x.to_dtype(DType::F32)?.matrix_power(3), long),
        ]
    };
    let eye = Tensor::eye(4, DType::F32, Device::Cpu)?;
    let x = Tensor::full([4, 4], 0.25, DType::F32, Device::Cpu)?.add(&eye.mul(0.5)?)?;
    let short = x.to_dtype(DType::Bf16)?;
    for (name, run, expected) in cases {
        for ((x, y), expected) in [(&x, &x), (&short, &short), (&x, &short)].into_iter().zip(expected) {
            let y = autocast(DType::Bf16, || run(x, y))?;
            assert_eq!(y.dtype(), expected, "{name}");
        }
    }
    // The gradient of a factorisation too.
    let x = x.requires_grad();
    let gradient = autocast(DType::Bf16, || -> Result<Tensor> {
        let y = x.pinv(None)?.add(x.lstsq(&x)?)?.add(x.inverse()?)?.sum(..)?;
        Ok(y.gradients(&[&x])?.get(&x).unwrap().clone())
    })?;
    assert_eq!(gradient.dtype(), DType::F32);
    Ok(())
}
