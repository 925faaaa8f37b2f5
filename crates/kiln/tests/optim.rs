//! Optimizers against PyTorch's: ten steps on the same gradients. The numbers are in `reference/optim.safetensors`, made by
//! `reference/optim.py`.

use kiln::nn::{self, Forward, Linear, Module};
use kiln::optim::{Adam, AdamConfig, AdamW, Optimizer, Sgd, SgdConfig, clip_grad_norm};
use kiln::{DType, Device, Error, Result, Tensor, Var};
use std::collections::BTreeMap;

struct Reference(BTreeMap<String, Tensor>);

impl Reference {
    fn new() -> Reference {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/optim.safetensors");
        Reference(kiln::safetensors::load(path, Device::Cpu).unwrap())
    }

    fn parameters(&self) -> Vec<Var> {
        (0..3).map(|i| Var::new(&self.0[&format!("first/{i}")]).requires_grad(true)).collect()
    }

    fn give_gradients(&self, parameters: &[Var], step: usize) {
        for (number, parameter) in parameters.iter().enumerate() {
            let absent = number == 1 && (step == 2 || step == 3);
            let gradient = self.0[&format!("gradient/{step}/{number}")].clone();
            parameter.set_grad((!absent).then_some(gradient)).unwrap();
        }
    }

    fn close(&self, case: &str, parameters: &[Var]) {
        for (number, parameter) in parameters.iter().enumerate() {
            let (got, wanted) = (parameter.get().detach(), &self.0[&format!("{case}/{number}")]);
            assert!(got.allclose(wanted, 2e-6, 1e-6).unwrap(), "{case}/{number}: {got} not {wanted}");
        }
    }
}

fn halve(optimizer: &dyn Optimizer) -> Result<()> {
    optimizer.set_learning_rate(optimizer.learning_rate().get().item::<f64>()? / 2.0)
}

fn check<O: Optimizer>(case: &str, make: impl Fn(Vec<Var>) -> Result<O>) -> Result<()> {
    let reference = Reference::new();
    let parameters = reference.parameters();
    let optimizer = make(parameters.clone())?;
    for step in 0..10 {
        reference.give_gradients(&parameters, step);
        optimizer.step()?;
        if step == 5 {
            halve(&optimizer)?;
        }
    }
    reference.close(case, &parameters);

    // Stopped in between, and gone on with from what was saved.
    let parameters = reference.parameters();
    let optimizer = make(parameters.clone())?;
    for step in 0..4 {
        reference.give_gradients(&parameters, step);
        optimizer.step()?;
    }
    let saved = optimizer.state_dict();
    let other = make(parameters.clone())?;
    other.load_state_dict(&saved)?;
    for step in 4..10 {
        reference.give_gradients(&parameters, step);
        other.step()?;
        if step == 5 {
            halve(&other)?;
        }
    }
    reference.close(case, &parameters);
    other.zero_grad();
    assert!(parameters.iter().all(|parameter| parameter.grad().is_none()));
    Ok(())
}

#[test]
fn sgd_is_pytorchs() -> Result<()> {
    let with = |choose: fn(SgdConfig) -> SgdConfig| move |p: Vec<Var>| Sgd::with(p, choose(Sgd::config(0.1)));
    check("sgd", |p| Sgd::new(p, 0.1))?;
    check("sgd_decay", with(|c| SgdConfig { weight_decay: 0.2, ..c }))?;
    check("sgd_momentum", with(|c| SgdConfig { momentum: 0.9, weight_decay: 0.01, ..c }))?;
    check("sgd_dampening", with(|c| SgdConfig { momentum: 0.9, dampening: 0.3, ..c }))?;
    check("sgd_nesterov", with(|c| SgdConfig { momentum: 0.9, nesterov: true, weight_decay: 0.01, ..c }))
}

#[test]
fn adam_is_pytorchs() -> Result<()> {
    let with = |choose: fn(AdamConfig) -> AdamConfig| move |p: Vec<Var>| Adam::with(p, choose(Adam::config(0.1)));
    check("adam", |p| Adam::new(p, 0.1))?;
    check("adam_decay", with(|c| AdamConfig { weight_decay: 0.2, betas: (0.8, 0.95), epsilon: 1e-6, ..c }))?;
    check("adam_amsgrad", with(|c| AdamConfig { amsgrad: true, betas: (0.5, 0.6), ..c }))
}

#[test]
fn adamw_is_pytorchs() -> Result<()> {
    let with = |choose: fn(AdamConfig) -> AdamConfig| move |p: Vec<Var>| AdamW::with(p, choose(AdamW::config(0.1)));
    check("adamw", |p| AdamW::new(p, 0.1))?;
    check("adamw_decay", with(|c| AdamConfig { weight_decay: 0.3, betas: (0.0, 0.9), ..c }))?;
    check("adamw_amsgrad", with(|c| AdamConfig { amsgrad: true, betas: (0.5, 0.6), ..c }))
}

#[test]
fn gradients_are_clipped_as_pytorchs() -> Result<()> {
    let reference = Reference::new();
    let parameters = reference.parameters();
    let optimizer = Sgd::new(parameters.clone(), 0.1)?;
    for step in 0..10 {
        reference.give_gradients(&parameters, step);
        let norm = clip_grad_norm(&parameters, 2.0)?;
        assert!(norm.allclose(&reference.0[&format!("clipped/norm/{step}")], 1e-6, 0.0)?);
        optimizer.step()?;
        if step == 5 {
            halve(&optimizer)?;
        }
    }
    reference.close("clipped", &parameters);
    assert_eq!(clip_grad_norm(&[], 1.0)?.item::<f32>()?, 0.0);
    Ok(())
}

#[test]
fn a_state_dict_names_what_an_optimizer_remembers() -> Result<()> {
    let names = |o: &dyn Optimizer| o.state_dict().into_keys().collect::<Vec<_>>();
    let layer = Linear::new(2, 2)?;
    // Twice the same parameter is one.
    let twice = || layer.parameters().into_iter().chain(layer.parameters());
    let adam = AdamW::new(twice(), 0.1)?;
    assert_eq!(names(&adam), ["exp_avg.0", "exp_avg.1", "exp_avg_sq.0", "exp_avg_sq.1", "learning_rate", "step"]);
    assert_eq!(adam.parameters().len(), 2);
    let sgd = Sgd::new(twice(), 0.1)?;
    assert_eq!(names(&sgd), ["learning_rate", "step"]);
    let error = sgd.load_state_dict(&adam.state_dict()).unwrap_err();
    assert!(matches!(error, Error::StateDict { .. }), "{error}");
    assert!(sgd.set_learning_rate(f64::NAN).is_err() && sgd.set_learning_rate(-1.0).is_err());
    Ok(())
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let refused = |outcome: Result<()>| matches!(outcome, Err(Error::BadArgument { op: "optimizer", .. }));
    let sgd = |config| Sgd::with([], config).map(|_| ());
    let adam = |config| Adam::with([], config).map(|_| ());
    assert!(refused(sgd(Sgd::config(-0.1))));
    assert!(refused(sgd(SgdConfig { nesterov: true, ..Sgd::config(0.1) })));
    assert!(refused(sgd(SgdConfig { nesterov: true, momentum: 0.9, dampening: 0.1, ..Sgd::config(0.1) })));
    assert!(refused(adam(AdamConfig { betas: (1.0, 0.9), ..Adam::config(0.1) })));
    assert!(refused(adam(AdamConfig { epsilon: f64::NAN, ..Adam::config(0.1) })));
    assert!(sgd(Sgd::config(0.0)).is_ok());
}

/// A network learns to add, in every dtype that training is done in.
#[test]
fn a_network_learns() -> Result<()> {
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let model = nn::init::with(Device::Cpu, dtype, || -> Result<nn::Sequential> {
            Ok(nn::Sequential::new().then(Linear::new(2, 16)?).then(nn::Tanh).then(Linear::new(16, 1)?))
        })?;
        let optimizer = AdamW::new(model.parameters(), 0.02)?;
        let x = Tensor::rand([64, 2], dtype, Device::Cpu)?;
        let y = x.sum_keepdim(1)?;
        let mut losses = Vec::new();
        for _ in 0..100 {
            let loss = model.forward(&x)?.mse_loss(&y)?;
            optimizer.zero_grad();
            loss.backward()?;
            clip_grad_norm(&model.parameters(), 1.0)?;
            optimizer.step()?;
            losses.push(loss.to_dtype(DType::F64)?.item::<f64>()?);
        }
        assert!(losses[99] < losses[0] / 5.0, "{dtype}: {} to {}", losses[0], losses[99]);
        assert_eq!(model.parameters()[0].dtype(), dtype);
    }
    Ok(())
}

/// A small network, its data and its optimizer.
struct Training {
    model: nn::Sequential,
    optimizer: AdamW,
}

impl Training {
    fn new() -> Result<Training> {
        let model = nn::Sequential::new()
            .then(Linear::new(3, 8)?)
            .then(nn::LayerNorm::new(8, 1e-5)?)
            .then(nn::Gelu::default())
            .then(Linear::new(8, 2)?);
        let optimizer = AdamW::new(model.parameters(), 0.05)?;
        Ok(Training { model, optimizer })
    }

    fn step(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let loss = self.model.forward(x)?.mse_loss(y)?;
        self.optimizer.zero_grad();
        loss.backward()?;
        clip_grad_norm(self.optimizer.parameters(), 0.5)?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }
}

#[test]
fn a_compiled_training_step_is_the_eager_one() -> Result<()> {
    let (eager, compiled) = (Training::new()?, std::sync::Arc::new(Training::new()?));
    compiled.model.load_state_dict(&eager.model.state_dict(), true)?;
    let inner = compiled.clone();
    let options = kiln::Options { fullgraph: true, ..kiln::Options::default() };
    let fast = kiln::compile_with(move |(x, y): &(Tensor, Tensor)| inner.step(x, y), options);
    for step in 0..20 {
        let x = Tensor::randn([16, 3], DType::F32, Device::Cpu)?;
        let y = x.narrow(1, 0, 2)?.contiguous()?;
        let (slow, quick) = (eager.step(&x, &y)?.item::<f32>()?, fast.call(&(x, y))?.item::<f32>()?);
        assert!((slow - quick).abs() <= 1e-4 * slow.abs() + 1e-6, "step {step}: {slow} and {quick}");
        // The rate is data: a schedule does not compile again.
        let rate = 0.05 / (step + 1) as f64;
        eager.optimizer.set_learning_rate(rate)?;
        compiled.optimizer.set_learning_rate(rate)?;
    }
    assert_eq!(fast.stats().compiles, 1);
    let moved = compiled.optimizer.state_dict();
    for (name, value) in eager.optimizer.state_dict() {
        assert!(value.allclose(&moved[&name], 1e-3, 1e-5)?, "{name}: {value} and {}", moved[&name]);
    }
    assert_eq!(moved["step"].to_vec::<f64>()?, [20.0; 6]);
    Ok(())
}

/// Steps with overflowed gradients are left out, and the factor follows.
#[test]
fn scaled_gradients() -> kiln::Result<()> {
    use kiln::optim::{GradScaler, Optimizer, Sgd};
    use kiln::{DType, Device, Tensor, Var};
    let w = Var::new(&Tensor::ones(2, DType::F32, Device::Cpu)?).requires_grad(true);
    let optimizer = Sgd::new(vec![w.clone()], 0.5)?;
    let scaler = GradScaler { interval: 2, ..GradScaler::new(Device::Cpu)? };
    let step = |factor: f32| -> kiln::Result<bool> {
        optimizer.zero_grad();
        scaler.scale(&w.get().mul(f64::from(factor))?.sum(..)?)?.backward()?;
        scaler.step(&optimizer)
    };
    assert!(step(1.0)?);
    assert_eq!(w.get().to_vec::<f32>()?, [0.5, 0.5]);
    assert!(!step(f32::INFINITY)?);
    assert_eq!(w.get().to_vec::<f32>()?, [0.5, 0.5]);
    assert_eq!(scaler.scale.get().item::<f32>()?, 32768.0);
    assert!(step(1.0)? && step(1.0)?);
    assert_eq!(scaler.scale.get().item::<f32>()?, 65536.0);
    assert_eq!(w.get().to_vec::<f32>()?, [-0.5, -0.5]);
    Ok(())
}
