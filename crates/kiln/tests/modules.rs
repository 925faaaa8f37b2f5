//! What every module can do: names, state dicts, files, dtypes, modes, whatever its fields are.

use kiln::nn::{self, Forward, Linear, Mode, Module, init};
use kiln::{Conv, DType, Device, Error, Leaf, Pool, Result, Tensor, Var};
use std::collections::{BTreeMap, HashMap};

fn var(value: f32) -> Var {
    Var::new(&Tensor::full(2, value, DType::F32, Device::Cpu).unwrap())
}

fn names(vars: Vec<(String, Var)>) -> Vec<String> {
    vars.into_iter().map(|(name, _)| name).collect()
}

#[derive(Module)]
enum Mixer {
    Linear(Linear),
    Scale { by: Var, offset: f64 },
    Off,
}

#[derive(Module)]
struct Pair<A, B>(A, B);

#[derive(Module)]
struct Everything<M, const N: usize>
where
    M: Forward,
{
    weight: Var,
    none: Option<Linear>,
    some: Option<Var>,
    list: Vec<M>,
    array: [Var; N],
    by_name: BTreeMap<String, Var>,
    hashed: HashMap<String, Linear>,
    boxed: Box<Pair<Var, Mode>>,
    mixers: Vec<Mixer>,
    #[module(rename = "fc")]
    renamed: Linear,
    #[module(flatten)]
    flat: Linear,
    #[module(buffer)]
    statistics: Pair<Var, Var>,
    #[module(transient)]
    cache: Vec<Var>,
    table: Tensor,
    label: &'static str,
    r#type: DType,
    options: Conv<2>,
    pool: Pool<1>,
    #[module(skip)]
    skipped: std::time::Duration,
}

fn everything() -> Result<Everything<Linear, 2>> {
    Ok(Everything {
        weight: var(1.),
        none: None,
        some: Some(var(2.)),
        list: vec![Linear::new(1, 1)?.without_bias(), Linear::new(1, 1)?.without_bias()],
        array: [var(3.), var(4.)],
        by_name: BTreeMap::from([("z".into(), var(5.)), ("a".into(), var(6.))]),
        hashed: ["q", "k", "v"].iter().map(|&n| (n.into(), Linear::new(1, 1).unwrap().without_bias())).collect(),
        boxed: Box::new(Pair(var(7.), Mode::new())),
        mixers: vec![Mixer::Linear(Linear::new(1, 1)?), Mixer::Off, Mixer::Scale { by: var(8.), offset: 0.5 }],
        renamed: Linear::new(1, 1)?.without_bias(),
        flat: Linear { weight: var(8.), bias: Some(var(9.)) },
        statistics: Pair(var(10.), var(11.)),
        cache: vec![var(12.)],
        table: Tensor::ones(2, DType::F32, Device::Cpu)?,
        label: "everything",
        r#type: DType::F32,
        options: Conv::default(),
        pool: Pool::new([2]),
        skipped: std::time::Duration::ZERO,
    })
}

#[test]
fn parts_are_named_by_their_fields() -> Result<()> {
    let module = everything()?;
    let expected = [
        "weight",
        "some",
        "list.0.weight",
        "list.1.weight",
        "array.0",
        "array.1",
        "by_name.a",
        "by_name.z",
        "hashed.k.weight",
        "hashed.q.weight",
        "hashed.v.weight",
        "boxed.0",
        "mixers.0.weight",
        "mixers.0.bias",
        "mixers.2.by",
        "fc.weight",
        // Flat: beside the field of that name.
        "weight",
        "bias",
    ];
    assert_eq!(names(module.named_parameters()), expected);
    assert_eq!(names(module.named_buffers()), ["statistics.0", "statistics.1", "cache.0"]);
    let saved = module.state_dict();
    assert!(saved.contains_key("statistics.1") && !saved.contains_key("cache.0") && !saved.contains_key("table"));
    assert_eq!(module.skipped, std::time::Duration::ZERO);
    Ok(())
}

/// The plain values that the results may depend on, as text.
fn values(module: &impl Module) -> Vec<String> {
    let mut values = Vec::new();
    module.guards(&mut |leaf| {
        values.push(match leaf {
            Leaf::Text(text) => text.to_owned(),
            leaf => format!("{leaf:?}"),
        });
    });
    values
}

#[test]
fn plain_values_and_modes_are_guards() -> Result<()> {
    let mut module = everything()?;
    let before = values(&module);
    for expected in ["everything", "f32", "Scale", "Off", "Float(0.5)", "Bool(true)"] {
        assert!(before.iter().any(|value| value == expected), "{expected} in {before:?}");
    }
    assert_eq!(values(&module), before);
    module.eval();
    let in_use = values(&module);
    assert_eq!(in_use.iter().zip(&before).filter(|(a, b)| a != b).count(), 1);
    module.train();
    assert_eq!(values(&module), before);
    module.mixers[2] = Mixer::Off;
    assert_ne!(values(&module), before);
    module.label = "nothing";
    assert!(!values(&module).contains(&"everything".to_owned()));
    Ok(())
}

#[test]
fn a_mode_reaches_every_layer() -> Result<()> {
    let model = nn::Sequential::new()
        .then(nn::Dropout::new(0.5))
        .then(nn::Sequential::new().then(nn::Dropout::new(0.9)).then(nn::BatchNorm1d::new(4)?));
    assert_eq!(model.modes().len(), 3);
    assert!(model.modes().iter().all(Mode::is_training));
    model.eval();
    assert!(!model.modes().iter().any(Mode::is_training));
    let x = Tensor::ones([1, 4], DType::F32, Device::Cpu)?;
    let y = model.forward(&x)?;
    assert!(y.allclose(&x, 1e-4, 0.0)?);
    model.train();
    let x = Tensor::ones([64, 4], DType::F32, Device::Cpu)?;
    assert!(!model.forward(&x)?.allclose(&x, 1e-4, 0.0)?);
    // One sample has no variance.
    assert!(model.forward(&x.narrow(0, 0, 1)?).is_err());
    Ok(())
}

fn two() -> Result<Pair<Linear, nn::BatchNorm1d>> {
    Ok(Pair(Linear::new(3, 2)?, nn::BatchNorm1d::new(2)?))
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("kiln-modules-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_saved_module_loads_again() -> Result<()> {
    let folder = folder("round-trip");
    let path = folder.join("model.safetensors");
    let (module, other) = (two()?, two()?);
    module.1.forward(&Tensor::randn([8, 2], DType::F32, Device::Cpu)?)?;
    module.save(&path)?;
    let before = other.0.weight.get();
    other.load(&path)?;
    for (name, value) in module.state_dict() {
        assert_eq!(value.to_bytes()?, other.state_dict()[&name].to_bytes()?, "{name}");
    }
    assert_ne!(before.to_vec::<f32>()?, other.0.weight.get().to_vec::<f32>()?);
    // What was loaded can be written to: the file's memory cannot.
    other.0.weight.add_assign(1.0)?;
    drop(other);
    let last = two()?;
    last.load(&path)?;
    assert_eq!(last.0.weight.get().to_vec::<f32>()?, module.0.weight.get().to_vec::<f32>()?);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(last.load(&path), Err(Error::Safetensors { .. })));
    Ok(())
}

#[test]
fn strict_loading_names_everything_that_is_wrong() -> Result<()> {
    let module = two()?;
    let mut state = two()?.state_dict();
    let before = module.0.weight.get().to_vec::<f32>()?;
    let running = state.remove("1.running_mean");
    state.remove("0.bias");
    state.insert("2.weight".into(), Tensor::ones(1, DType::F32, Device::Cpu)?);
    let error = module.load_state_dict(&state, true).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with(
            "state dict: 0.bias, 1.running_mean are missing; 2.weight is not part of the module, at crates/kiln/tests/modules.rs:"
        ),
        "{message}"
    );
    assert_eq!(module.0.weight.get().to_vec::<f32>()?, before);

    let loaded = module.load_state_dict(&state, false)?;
    assert_eq!(loaded.missing, ["0.bias", "1.running_mean"]);
    assert_eq!(loaded.unexpected, ["2.weight"]);
    assert_eq!(module.0.weight.get().to_vec::<f32>()?, state["0.weight"].to_vec::<f32>()?);

    let mut state = two()?.state_dict();
    state.insert("0.weight".into(), Tensor::ones([2, 4], DType::F64, Device::Cpu)?);
    state.extend(running.map(|running| ("extra".to_owned(), running)));
    let before = module.1.weight.as_ref().map(Var::version);
    let Err(Error::StateDict { cause, .. }) = module.load_state_dict(&state, false) else { panic!("a wrong shape") };
    assert_eq!(cause.mismatches[0].name, "0.weight");
    assert_eq!(cause.to_string(), "0.weight is f32[2, 3], not f64[2, 4]");
    assert_eq!(module.1.weight.as_ref().map(Var::version), before);
    Ok(())
}

#[test]
fn loading_converts_and_assigning_does_not() -> Result<()> {
    let mut module = two()?;
    let state: BTreeMap<String, Tensor> = two()?.to_dtype(DType::F64)?.state_dict();
    module.load_state_dict(&state, true)?;
    assert_eq!(module.0.weight.dtype(), DType::F32);
    let old = module.0.weight.clone();
    module.assign_state_dict(&state, true)?;
    assert_eq!(module.0.weight.dtype(), DType::F64);
    assert!(module.0.weight.is_trainable() && !module.0.weight.same(&old));
    assert!(module.0.weight.get().buffer().same(state["0.weight"].buffer()));
    assert!(!module.1.running_mean.as_ref().unwrap().is_trainable());
    assert!(module.assign_state_dict(&BTreeMap::new(), true).is_err());
    assert_eq!(module.assign_state_dict(&BTreeMap::new(), false)?.missing.len(), 7);
    Ok(())
}

#[test]
fn a_converted_module_keeps_integers_flags_and_ties() -> Result<()> {
    let (a, b) = (Linear::new(2, 2)?.without_bias(), nn::BatchNorm1d::new(2)?);
    let tied = Pair(a.clone(), Pair(a.clone(), b));
    tied.0.weight.requires_grad(false);
    tied.0.weight.set_grad(Some(Tensor::ones([2, 2], DType::F32, Device::Cpu)?))?;
    assert_eq!(names(tied.named_parameters()), ["0.weight", "1.1.weight", "1.1.bias"]);
    assert_eq!(tied.num_parameters(), 8);
    assert_eq!(tied.state_dict().len(), 7);
    let tied = tied.to(Device::Cpu, DType::Bf16)?;
    assert!(tied.0.weight.same(&tied.1.0.weight) && !tied.0.weight.same(&a.weight));
    assert_eq!(tied.0.weight.dtype(), DType::Bf16);
    assert_eq!(tied.0.weight.grad().map(|grad| grad.dtype()), Some(DType::Bf16));
    assert!(!tied.0.weight.is_trainable());
    assert_eq!(tied.0.weight.name(), Some("weight"));
    let count = tied.1.1.num_batches_tracked.as_ref().map(|var| var.dtype());
    assert_eq!(count, Some(DType::I64));
    // What is already so stays the variable that it is.
    let weight = tied.0.weight.clone();
    assert!(tied.to_dtype(DType::Bf16)?.to_device(Device::Cpu)?.0.weight.same(&weight));
    assert_eq!(everything()?.to_dtype(DType::F16)?.table.dtype(), DType::F16);
    Ok(())
}

#[test]
fn a_tied_module_is_assigned_one_variable() -> Result<()> {
    let layer = Linear::new(2, 2)?.without_bias();
    let mut tied = Pair(layer.clone(), layer);
    let state = Pair(Linear::new(2, 2)?.without_bias(), Linear::new(2, 2)?.without_bias()).state_dict();
    tied.assign_state_dict(&state, true)?;
    assert!(tied.0.weight.same(&tied.1.weight));
    Ok(())
}

#[test]
fn gradients_are_forgotten_and_parameters_frozen() -> Result<()> {
    let module = two()?;
    module.0.weight.set_grad(Some(Tensor::ones([2, 3], DType::F32, Device::Cpu)?))?;
    module.zero_grad();
    assert!(module.0.weight.grad().is_none());
    module.set_requires_grad(false);
    assert!(module.parameters().iter().all(|var| !var.is_trainable()));
    module.0.set_requires_grad(true);
    assert_eq!(module.parameters().iter().filter(|var| var.is_trainable()).count(), 2);
    Ok(())
}

#[test]
fn first_values_are_spread_as_pytorchs() -> Result<()> {
    let spread = |t: &Tensor| -> (f64, f64) {
        let values = t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        let most = values.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        (most, (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt())
    };
    let near = |got: f64, wanted: f64| (got / wanted - 1.0).abs() < 0.05;
    // Even within b: at most b, b/√3 on average.
    let even = |t: &Tensor, bound: f64| {
        let (most, mean) = spread(t);
        assert!(
            most <= bound * (1.0 + 1e-6) && near(most, bound) && near(mean, bound / 3f64.sqrt()),
            "{most} {mean} {bound}"
        );
    };
    let linear = Linear::new(64, 4096)?;
    even(&linear.weight.get(), 0.125);
    even(&linear.bias.unwrap().get(), 0.125);
    let conv = nn::Conv2d::new(8, 64, [3, 3], Conv { groups: 2, ..Conv::default() })?;
    even(&conv.weight.get(), 1.0 / 6.0);
    let attention = nn::MultiHeadAttention::new(64, 4)?;
    even(&attention.in_proj_weight.get(), (6.0f64 / (64.0 * 4.0)).sqrt());
    assert_eq!(spread(&attention.out_proj.bias.unwrap().get()).0, 0.0);
    let (_, deviation) = spread(&nn::Embedding::new(100, 64)?.weight.get());
    assert!(near(deviation, 1.0), "{deviation}");
    let (_, deviation) = spread(&init::kaiming_normal([64, 32, 3])?);
    assert!(near(deviation, (2.0f64 / 96.0).sqrt()), "{deviation}");
    Ok(())
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert!(matches!(nn::GroupNorm::new(3, 4, 1e-5), Err(Error::BadArgument { .. })));
    assert!(matches!(nn::MultiHeadAttention::new(8, 3), Err(Error::BadArgument { .. })));
    assert!(matches!(nn::MultiHeadAttention::grouped(8, 4, 3), Err(Error::BadArgument { .. })));
    assert!(matches!(nn::MultiHeadAttention::new(8, 0), Err(Error::BadArgument { .. })));
    let options = Conv { groups: 3, ..Conv::default() };
    assert!(matches!(nn::Conv1d::new(4, 6, 1, options), Err(Error::BadArgument { .. })));
    let layer = nn::BatchNorm2d::new(3).unwrap();
    let x = Tensor::ones([2, 3], DType::F32, Device::Cpu).unwrap();
    let message = layer.forward(&x).unwrap_err().to_string();
    assert!(
        message.contains("takes [n, channels, height, width], not [2, 3], at crates/kiln/tests/modules.rs"),
        "{message}"
    );
    let layer = Linear::new(3, 2).unwrap();
    let message = layer.forward(&Tensor::ones([2, 4], DType::F32, Device::Cpu).unwrap()).unwrap_err().to_string();
    assert!(
        message.contains("linear: [2, 4] and [2, 3] do not agree (4 ≠ 3), at crates/kiln/tests/modules.rs"),
        "{message}"
    );
}

/// A closure over a module; compiled, it reads the module's variables as they are at each call.
#[test]
fn a_module_runs_inside_a_compiled_function() -> Result<()> {
    let model = std::sync::Arc::new(Pair(Linear::new(3, 2)?, nn::Dropout::new(0.5)));
    model.eval();
    let inner = model.clone();
    let fast = kiln::compile(move |x: &Tensor| inner.1.forward(&inner.0.forward(x)?)?.relu());
    let x = Tensor::randn([4, 3], DType::F32, Device::Cpu)?;
    let eager = |x: &Tensor| model.0.forward(x)?.relu();
    assert!(fast.call(&x)?.allclose(&eager(&x)?, 1e-5, 1e-6)?);
    model.0.weight.add_assign(1.0)?;
    assert!(fast.call(&x)?.allclose(&eager(&x)?, 1e-5, 1e-6)?);
    Ok(())
}

/// Running statistics and counts are updated by a compiled batch norm as by an eager one.
#[test]
fn a_compiled_batch_norm_keeps_its_statistics() -> Result<()> {
    let (eager, compiled) = (nn::BatchNorm2d::new(3)?, nn::BatchNorm2d::new(3)?);
    let inner = compiled.clone();
    let options = kiln::Options { fullgraph: true, ..kiln::Options::default() };
    let fast = kiln::compile_with(move |x: &Tensor| inner.forward(x), options);
    for _ in 0..3 {
        let x = Tensor::randn([2, 3, 4, 4], DType::F32, Device::Cpu)?.add(1.0)?;
        assert!(fast.call(&x)?.allclose(&eager.forward(&x)?, 1e-4, 1e-5)?);
    }
    for (name, value) in eager.state_dict() {
        assert!(compiled.state_dict()[&name].allclose(&value, 1e-5, 1e-6)?, "{name}");
    }
    assert_eq!(compiled.state_dict()["num_batches_tracked"].item::<i64>()?, 3);
    Ok(())
}

/// A mode that changes is noticed without being asked for.
#[test]
fn a_compiled_module_sees_its_mode_change() -> Result<()> {
    let model = std::sync::Arc::new(nn::Sequential::new().then(nn::Dropout::new(0.5)).then(nn::BatchNorm1d::new(4)?));
    let inner = model.clone();
    let fast = kiln::compile(move |x: &Tensor| inner.forward(x));
    let x = Tensor::ones([64, 4], DType::F32, Device::Cpu)?;
    let noisy = fast.call(&x)?;
    assert!(!noisy.allclose(&fast.call(&x)?, 0.0, 0.0)?, "every call draws anew");
    model.eval();
    let still = fast.call(&x)?;
    assert!(still.allclose(&model.forward(&x)?, 1e-5, 1e-6)? && still.allclose(&fast.call(&x)?, 0.0, 0.0)?);
    model.train();
    assert!(!fast.call(&x)?.allclose(&still, 1e-3, 0.0)?);
    Ok(())
}

/// A compiled function updates in place what it may, which a mapped file and a tensor that others hold are not.
#[test]
fn a_compiled_update_spares_files_and_snapshots() -> Result<()> {
    let folder = folder("compiled-update");
    let path = folder.join("model.safetensors");
    let (module, other) = (two()?, two()?);
    module.save(&path)?;
    let weight = module.0.weight.clone();
    let fast = kiln::compile(move |by: &Tensor| {
        weight.add_assign(by)?;
        weight.get().sum(..)
    });
    let by = Tensor::ones([2, 3], DType::F32, Device::Cpu)?;
    let first = module.0.weight.get().detach();
    let first_values = first.to_vec::<f32>()?;
    let raised = |n: f32| first_values.iter().map(|v| v + n).collect::<Vec<f32>>();
    for round in 0..3 {
        module.load(&path)?;
        assert_eq!(module.0.weight.get().to_vec::<f32>()?, first_values, "round {round}");
        fast.call(&by)?;
        let snapshot = module.0.weight.get().detach();
        fast.call(&by)?;
        assert_eq!(snapshot.to_vec::<f32>()?, raised(1.0));
        // Two modules that were given the same tensors go their own ways.
        other.load_state_dict(&module.state_dict(), true)?;
        fast.call(&by)?;
        assert_eq!(other.0.weight.get().to_vec::<f32>()?.len(), 6);
        let close = |a: &Var, n: f32| a.get().allclose(&Tensor::from_vec(raised(n), [2, 3], Device::Cpu)?, 1e-6, 1e-6);
        assert!(close(&other.0.weight, 2.0)? && close(&module.0.weight, 3.0)?);
    }
    assert_eq!(first.to_vec::<f32>()?, first_values);
    let stored = kiln::safetensors::load(&path, Device::Cpu)?;
    assert_eq!(stored["0.weight"].to_vec::<f32>()?, first_values);
    std::fs::remove_dir_all(&folder).unwrap();
    Ok(())
}

#[derive(Module)]
struct Tower {
    layers: Vec<Linear>,
    drop: nn::Dropout,
}

impl Tower {
    fn new() -> Result<Tower> {
        let layers = (0..3).map(|_| Linear::new(4, 4)).collect::<Result<_>>()?;
        Ok(Tower { layers, drop: nn::Dropout::new(0.5) })
    }
}

impl Forward for Tower {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(&x)?.relu()?;
        }
        self.drop.forward(&x)
    }
}

/// With an output of its own beside the tensor's.
impl Forward<(Tensor, bool)> for Tower {
    type Output = (Tensor, Vec<Tensor>);
    fn forward(&self, (x, keep): &(Tensor, bool)) -> Result<(Tensor, Vec<Tensor>)> {
        let mut kept = vec![x.clone()];
        for layer in &self.layers {
            kept.push(layer.forward(&kept[kept.len() - 1])?.relu()?);
        }
        let last = kept[kept.len() - 1].clone();
        Ok((last, if *keep { kept } else { Vec::new() }))
    }
}

#[test]
fn a_compiled_module_stays_the_module_it_is() -> Result<()> {
    let fast = kiln::compile(Tower::new()?);
    fast.eval();
    let x = Tensor::randn([2, 4], DType::F32, Device::Cpu)?;
    assert!(fast.call(&x)?.allclose(&Forward::<Tensor>::forward(&*fast, &x)?, 1e-5, 1e-6)?);
    assert_eq!(fast.layers[0].weight.shape(), [4, 4]);
    assert_eq!(names(fast.named_parameters())[..2], ["layers.0.weight", "layers.0.bias"]);
    assert_eq!(fast.state_dict().keys().next().map(String::as_str), Some("layers.0.bias"));
    // Another state is seen by the program there is.
    let other = Tower::new()?;
    other.eval();
    fast.load_state_dict(&other.state_dict(), true)?;
    assert!(fast.call(&x)?.allclose(&Forward::<Tensor>::forward(&other, &x)?, 1e-5, 1e-6)?);
    assert_eq!(fast.stats().compiles, 1);
    // A compiled module is a part of another like any.
    let outer = Pair(fast, Linear::new(4, 1)?);
    assert_eq!(names(outer.named_parameters())[0], "0.layers.0.weight");
    assert!(outer.0.forward(&x)?.allclose(&Forward::<Tensor>::forward(&other, &x)?, 1e-5, 1e-6)?);
    let outer = outer.to_dtype(DType::F64)?;
    assert_eq!(outer.0.call(&x.to_dtype(DType::F64)?)?.dtype(), DType::F64);
    Ok(())
}

#[test]
fn a_module_is_compiled_for_any_of_its_inputs() -> Result<()> {
    let model = Tower::new()?;
    let x = Tensor::randn([2, 4], DType::F32, Device::Cpu)?;
    let (last, kept): (Tensor, Vec<Tensor>) = model.forward(&(x.clone(), true))?;
    let fast = kiln::compile(model);
    let (fast_last, fast_kept) = fast.call(&(x.clone(), true))?;
    assert!(fast_last.allclose(&last, 1e-5, 1e-6)?);
    assert_eq!((kept.len(), fast_kept.len()), (4, 4));
    assert!(fast_kept[2].allclose(&kept[2], 1e-5, 1e-6)?);
    assert!(fast.call(&(x, false))?.1.is_empty());
    Ok(())
}

fn doubled(x: &Tensor) -> Result<Tensor> {
    x.add(x)
}

/// Whatever way a function is written, its types are inferred.
#[test]
fn functions_of_all_kinds_are_compiled() -> Result<()> {
    let x = Tensor::ones(2, DType::F32, Device::Cpu)?;
    assert_eq!(kiln::compile(doubled).call(&x)?.to_vec::<f32>()?, [2.; 2]);
    let wrapped = kiln::compile(|x: &Tensor| {
        let y = doubled(x)?;
        Ok(y)
    });
    assert_eq!(wrapped.call(&x)?.to_vec::<f32>()?, [2.; 2]);
    let several = kiln::compile(|(x, y, n): &(Tensor, Tensor, f64)| Ok((x.mul(*n)?, y.clone())));
    assert_eq!(several.call(&(x.clone(), x.clone(), 3.0))?.0.to_vec::<f32>()?, [3.; 2]);
    type Boxed = Box<dyn Fn(&Tensor) -> Result<Tensor>>;
    let boxed: Boxed = Box::new(doubled);
    assert_eq!(kiln::compile(boxed).call(&x)?.to_vec::<f32>()?, [2.; 2]);
    let again = kiln::compile(kiln::grad(|x: &Tensor| x.square()?.sum(..)));
    assert_eq!(again.call(&x)?.to_vec::<f32>()?, [2.; 2]);
    assert_eq!(kiln::compile(nn::Relu).call(&x)?.to_vec::<f32>()?, [1.; 2]);
    Ok(())
}
