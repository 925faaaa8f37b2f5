//! Optimizers against PyTorch's: ten steps on the same gradients. The numbers are in `reference/optim.safetensors`, made by
//! `reference/optim.py`.

use kiln::nn::{self, Forward, Linear, Module};
use kiln::optim::{
    Adadelta, AdadeltaConfig, Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, Adamax, AdaptiveConfig, CosineRate,
    CosineRestarts, ExponentialRate, LinearRate, MultiStepRate, NAdam, OneCycle, Optimizer, ParameterGroups,
    PolynomialRate, RAdam, RateSchedule, ReduceOnPlateau, RmsProp, RmsPropConfig, Scheduler, Sgd, SgdConfig, StepRate,
    clip_grad_norm,
};
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
fn running_means_are_pytorchs() -> Result<()> {
    check("rmsprop", |p| RmsProp::new(p, 0.1))?;
    let config =
        RmsPropConfig { alpha: 0.8, momentum: 0.9, centered: true, weight_decay: 0.05, ..RmsProp::config(0.1) };
    check("rmsprop_all", |p| RmsProp::with(p, config))?;
    check("adagrad", |p| Adagrad::new(p, 0.1))?;
    let config = AdagradConfig { rate_decay: 0.1, weight_decay: 0.05, initial_sum: 0.3, ..Adagrad::config(0.1) };
    check("adagrad_all", |p| Adagrad::with(p, config))?;
    check("adadelta", |p| Adadelta::new(p, 1.0))?;
    let config = AdadeltaConfig { rho: 0.7, epsilon: 1e-3, weight_decay: 0.05, ..Adadelta::config(0.5) };
    check("adadelta_all", |p| Adadelta::with(p, config))
}

#[test]
fn relatives_of_adam_are_pytorchs() -> Result<()> {
    let choose = |config: AdaptiveConfig| AdaptiveConfig { betas: (0.8, 0.95), weight_decay: 0.05, ..config };
    check("nadam", |p| NAdam::new(p, 0.1))?;
    check("nadam_all", |p| NAdam::with(p, AdaptiveConfig { momentum_decay: 0.02, ..choose(NAdam::config(0.1)) }))?;
    check("radam", |p| RAdam::new(p, 0.1))?;
    check("radam_all", |p| RAdam::with(p, choose(RAdam::config(0.1))))?;
    check("adamax", |p| Adamax::new(p, 0.1))?;
    check("adamax_all", |p| Adamax::with(p, choose(Adamax::config(0.1))))
}

/// Two groups, whose rates are halved as one.
#[test]
fn groups_are_pytorchs() -> Result<()> {
    let reference = Reference::new();
    let make = |p: &[Var]| -> Result<ParameterGroups> {
        let own = AdamConfig { weight_decay: 0.3, ..AdamW::config(0.2) };
        ParameterGroups::new(vec![
            Box::new(AdamW::with(p[..1].to_vec(), own)?),
            Box::new(AdamW::new(p[1..].to_vec(), 0.1)?),
        ])
    };
    let parameters = reference.parameters();
    let mut optimizer = make(&parameters)?;
    let mut scheduler = Scheduler::new(&optimizer, StepRate { every: 6, gamma: 0.5 })?;
    for step in 0..10 {
        reference.give_gradients(&parameters, step);
        optimizer.step()?;
        scheduler.step()?;
        if step == 7 {
            let saved = optimizer.state_dict();
            optimizer = make(&parameters)?;
            optimizer.load_state_dict(&saved)?;
        }
    }
    reference.close("groups", &parameters);
    assert!(optimizer.state_dict().contains_key("1.exp_avg.0"));
    let unknown = BTreeMap::from([("7.x".to_owned(), parameters[0].get())]);
    assert!(matches!(optimizer.load_state_dict(&unknown), Err(Error::StateDict { .. })));
    let twice = ParameterGroups::new(vec![
        Box::new(Sgd::new(parameters.clone(), 0.1)?),
        Box::new(Sgd::new(parameters.clone(), 0.1)?),
    ]);
    assert!(matches!(twice, Err(Error::BadArgument { .. })));
    Ok(())
}

fn scheduled(name: &str, schedule: impl RateSchedule) -> Result<()> {
    let wanted = Reference::new().0[&format!("schedule/{name}")].to_vec::<f64>()?;
    let optimizer = Sgd::new([], 0.5)?;
    let mut scheduler = Scheduler::new(&optimizer, schedule)?;
    for (step, wanted) in wanted.into_iter().enumerate() {
        let got = scheduler.rates()?[0];
        assert!((got - wanted).abs() < 1e-12, "{name} at {step}: {got} for {wanted}");
        scheduler.step()?;
    }
    Ok(())
}

#[test]
fn schedules_are_pytorchs() -> Result<()> {
    scheduled("step", StepRate { every: 7, gamma: 0.3 })?;
    scheduled("multi_step", MultiStepRate { milestones: vec![3, 11, 12], gamma: 0.3 })?;
    scheduled("exponential", ExponentialRate { gamma: 0.9 })?;
    scheduled("linear", LinearRate { start: 0.2, end: 0.9, steps: 12 })?;
    scheduled("polynomial", PolynomialRate { steps: 20, power: 1.5 })?;
    scheduled("cosine", CosineRate { steps: 20, floor: 0.05 })?;
    scheduled("restarts", CosineRestarts { first: 4, factor: 2, floor: 0.05 })?;
    scheduled("one_cycle", OneCycle::new(0.7, 31))?;
    scheduled("lambda", |step: u64| 1.0 / (1 + step) as f64)?;

    let reference = Reference::new();
    let numbers = |name: &str| reference.0[name].to_vec::<f64>();
    let optimizer = Sgd::new([], 0.5)?;
    let mut plateau = ReduceOnPlateau::new(&optimizer);
    (plateau.factor, plateau.patience, plateau.cooldown, plateau.floor) = (0.3, 2, 1, 0.02);
    for (loss, wanted) in numbers("schedule/plateau/losses")?.into_iter().zip(numbers("schedule/plateau")?) {
        plateau.step(loss)?;
        let got = optimizer.learning_rate().get().item::<f64>()?;
        assert!((got - wanted).abs() < 1e-12, "{got} for {wanted}");
    }
    Ok(())
}

/// Neither groups nor schedules make a training step anew, whatever the optimizer.
#[test]
fn schedules_do_not_compile_again() -> Result<()> {
    type Make = fn(Vec<Var>) -> Result<Box<dyn Optimizer + Send + Sync>>;
    let makes: [Make; 6] = [
        |p| Ok(Box::new(RmsProp::new(p, 0.01)?)),
        |p| Ok(Box::new(Adagrad::new(p, 0.01)?)),
        |p| Ok(Box::new(Adadelta::new(p, 0.01)?)),
        |p| Ok(Box::new(NAdam::new(p, 0.01)?)),
        |p| Ok(Box::new(RAdam::new(p, 0.01)?)),
        |p| Ok(Box::new(Adamax::new(p, 0.01)?)),
    ];
    for make in makes {
        let layer = Linear::new(3, 2)?;
        let parameters = layer.parameters();
        let groups = ParameterGroups::new(vec![make(parameters[..1].to_vec())?, make(parameters[1..].to_vec())?])?;
        let mut scheduler = Scheduler::new(&groups, CosineRate { steps: 8, floor: 0.0 })?;
        let step = kiln::compile(move |x: &Tensor| {
            let loss = layer.forward(x)?.square()?.mean(..)?;
            groups.zero_grad();
            loss.backward()?;
            groups.step()?;
            Ok(loss.detach())
        });
        let x = Tensor::ones([4, 3], DType::F32, Device::Cpu)?;
        let mut losses = Vec::new();
        for _ in 0..8 {
            losses.push(step.call(&x)?.item::<f32>()?);
            scheduler.step()?;
        }
        assert!(losses[7] < losses[0], "{losses:?}");
        let stats = step.stats();
        assert!(stats.compiles <= 2 && stats.breaks == 0, "{stats:?}");
    }
    Ok(())
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

#[test]
fn a_constant_share_ends() {
    use kiln::optim::ConstantRate;
    let schedule = ConstantRate { factor: 0.5, steps: 2 };
    let rates: Vec<f64> = (0..4).map(|step| schedule.rate(1.0, step)).collect();
    assert_eq!(rates, [0.5, 0.5, 1.0, 1.0]);
}

#[test]
fn nan_is_never_the_best() -> Result<()> {
    let optimizer = Sgd::new(Linear::new(2, 2)?.parameters(), 1.0)?;
    let mut plateau = ReduceOnPlateau::new(&optimizer);
    plateau.patience = 1;
    for loss in [f64::NAN, 3.0, 2.0, 1.0, 0.5] {
        assert!(!plateau.step(loss)?);
    }
    Ok(())
}
