//! Groups that compile functions, and compare them with what the same functions do eagerly.

use super::lab::Lab;
use kiln::optim::{AdamW, Optimizer};
use kiln::{Compiled, DType, Device, Dynamic, Generator, Mode, Options, Result, Tensor, Var, compile_with};
use std::sync::Arc;

/// A transformer of one layer.
struct Net {
    table: Var,
    qkv: Var,
    out: Var,
    up: Var,
    down: Var,
    norm: Var,
}

const WIDTH: usize = 32;
const HEADS: usize = 4;
const VOCABULARY: usize = 50;

impl Net {
    fn new(device: Device) -> Result<Net> {
        let random = Generator::new(7);
        let var = |name: &str, shape: [usize; 2]| {
            let numbers = random.randn(shape, DType::F32, device)?;
            Ok::<Var, kiln::Error>(Var::named(name, &(numbers * (shape[1] as f64).powf(-0.5))?).requires_grad(true))
        };
        Ok(Net {
            table: var("table", [VOCABULARY, WIDTH])?,
            qkv: var("qkv", [3 * WIDTH, WIDTH])?,
            out: var("out", [WIDTH, WIDTH])?,
            up: var("up", [4 * WIDTH, WIDTH])?,
            down: var("down", [WIDTH, 4 * WIDTH])?,
            norm: Var::named("norm", &Tensor::ones(WIDTH, DType::F32, device)?).requires_grad(true),
        })
    }

    fn vars(&self) -> Vec<Var> {
        [&self.table, &self.qkv, &self.out, &self.up, &self.down, &self.norm].map(Var::clone).into()
    }

    /// Logits, `[batch, tokens, vocabulary]`, of tokens, `[batch, tokens]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let x = self.table.get().embedding(tokens)?;
        let norm = |x: &Tensor| x.rms_norm(1, Some(&self.norm.get()), 1e-5);
        let split = norm(&x)?.linear(&self.qkv.get(), None)?.unflatten(-1, [3, HEADS as i64, -1])?;
        let part = |which: usize| split.select(2, which)?.transpose(1, 2);
        let mixed = part(0)?.scaled_dot_product_attention(&part(1)?, &part(2)?, None, true, None)?;
        let x = (x + mixed.transpose(1, 2)?.flatten(-2, -1)?.linear(&self.out.get(), None)?)?;
        let wide = norm(&x)?.linear(&self.up.get(), None)?.gelu()?;
        let x = (&x + wide.linear(&self.down.get(), None)?)?;
        norm(&x)?.linear(&self.table.get(), None)
    }

    fn loss(&self, tokens: &Tensor) -> Result<Tensor> {
        let next = tokens.roll(-1, 1)?.one_hot(VOCABULARY)?.to_dtype(DType::F32)?;
        (self.forward(tokens)?.log_softmax(-1)? * next)?.sum(-1)?.mean(..)?.neg()
    }
}

fn tokens(batch: usize, count: usize, device: Device) -> Result<Tensor> {
    let ids: Vec<i64> = (0..batch * count).map(|i| ((i * i + 3 * i) % VOCABULARY) as i64).collect();
    Tensor::from_vec(ids, [batch, count], device)
}

fn numbers(count: usize, start: f64, device: Device) -> Result<Tensor> {
    Tensor::arange(count, DType::F32, device)?.add(start)?.mul(1.3)?.sin()
}

/// Every mode, with weights packed and not, and each way to be careful, gives what eager gives, at every call.
pub fn modes(lab: &mut Lab) {
    let outcome = modes_of(lab);
    lab.expect("modes", outcome);
}

fn modes_of(lab: &mut Lab) -> Result<()> {
    let net = Arc::new(Net::new(lab.device)?);
    let mut ways: Vec<(String, Options)> = Vec::new();
    for mode in Mode::ALL {
        for freeze in [false, true] {
            let name = format!("{}{}", mode.name(), if freeze { ", frozen" } else { "" });
            let tuning_budget = std::time::Duration::from_millis(200);
            ways.push((name, Options { mode, freeze, tuning_budget, ..Options::default() }));
        }
    }
    ways.push(("verify".into(), Options { verify: true, ..Options::default() }));
    ways.push(("background".into(), Options { background: true, ..Options::default() }));
    ways.push(("never_slower".into(), Options { never_slower: true, ..Options::default() }));
    for (name, options) in ways {
        let inner = net.clone();
        let fast = compile_with(move |tokens: &Tensor| inner.forward(tokens), options);
        for (batch, count) in [(1, 9), (1, 9), (2, 16), (1, 9), (2, 16)] {
            let tokens = tokens(batch, count, lab.device)?;
            lab.same(format!("{name}, {batch} × {count}"), &fast.call(&tokens)?, &net.forward(&tokens)?, 1e-4);
        }
    }
    // A weight that changes is seen by the program that holds a packed one.
    let inner = net.clone();
    let fast = compile_with(move |t: &Tensor| inner.forward(t), Options { freeze: true, ..Options::default() });
    let tokens = tokens(2, 8, lab.device)?;
    for round in 0..3 {
        net.up.mul_assign(1.25)?;
        lab.same(format!("changed weight {round}"), &fast.call(&tokens)?, &net.forward(&tokens)?, 1e-4);
    }
    Ok(())
}

/// Sizes that change, under each policy: the answers, and that no more is compiled than the policy says.
pub fn dynamic(lab: &mut Lab) {
    let outcome = dynamic_of(lab);
    lab.expect("dynamic shapes", outcome);
}

fn dynamic_of(lab: &mut Lab) -> Result<()> {
    let net = Arc::new(Net::new(lab.device)?);
    let sizes: &[usize] = if lab.quick { &[3, 1, 8] } else { &[3, 1, 8, 17, 33, 5, 64, 2, 40, 3] };
    let declared = Dynamic::range("t", 1..=64).at(0, 1);
    let policies = [
        ("static", Dynamic::Static, sizes.len() as u64),
        // The first size, the range, and sizes of 1, which repeat along the other operand.
        ("automatic", Dynamic::Automatic, 3),
        ("always", Dynamic::Always, 2),
        ("declared", declared.into(), 1),
    ];
    for (name, dynamic, most) in policies {
        let inner = net.clone();
        let fast = compile_with(move |t: &Tensor| inner.forward(t), Options { dynamic, ..Options::default() });
        for &size in sizes {
            let tokens = tokens(2, size, lab.device)?;
            lab.same(format!("{name}, {size} tokens"), &fast.call(&tokens)?, &net.forward(&tokens)?, 1e-4);
        }
        let compiles = fast.stats().compiles;
        let wrong = (compiles > most).then(|| format!("{name}: {compiles} programs for {} sizes", sizes.len()));
        lab.judge(wrong);
    }
    // Sizes of nothing and of one, through sums, products and softmax.
    let f = |x: &Tensor| (x.softmax(-1)?.matmul(&x.transpose(0, 1)?)? + x.sum_keepdim(-1)?)?.tanh();
    let fast = compile_with(f, Options { dynamic: Dynamic::Always, ..Options::default() });
    for (rows, columns) in [(4, 5), (1, 5), (4, 1), (0, 5), (7, 33)] {
        let x = numbers(rows * columns, 0.0, lab.device)?.reshape([rows, columns])?;
        lab.same(format!("{rows} × {columns}"), &fast.call(&x)?, &f(&x)?, 1e-5);
    }
    Ok(())
}

/// Functions that read elements on their way, and calls from many threads.
pub fn capture(lab: &mut Lab) {
    let outcome = capture_of(lab);
    lab.expect("capture", outcome);
}

type Function = fn(&Tensor) -> Result<Tensor>;

fn capture_of(lab: &mut Lab) -> Result<()> {
    let device = lab.device;
    let branch = |x: &Tensor| -> Result<Tensor> {
        let (y, z) = (x.mul(2.0)?.add(1.0)?, x.sum(..)?);
        if z.gt(0.0)?.item::<bool>()? { y.sqrt()?.add(&z) } else { y.neg()?.mul(&z) }
    };
    let turns = |x: &Tensor| -> Result<Tensor> {
        let mut x = x.clone();
        while x.abs()?.amax(..)?.gt(0.1)?.item::<bool>()? {
            x = x.mul(0.5)?;
        }
        x.exp()
    };
    let early = |x: &Tensor| -> Result<Tensor> {
        let mut h = x.clone();
        for layer in 0..5 {
            h = h.mul(1.5)?.add(f64::from(layer))?;
            if h.mean(..)?.item::<f32>()? > 4.0 {
                return h.neg();
            }
        }
        Ok(h)
    };
    let functions: [(&str, Function); 3] = [("branch", branch), ("loop", turns), ("early exit", early)];
    for (name, f) in functions {
        let fast = compile_with(f, Options::default());
        for start in [0.0, 2.0, 4.0, 1.0, 0.0, 2.0, 4.0, 3.0] {
            let x = numbers(5, start, device)?;
            lab.same(format!("{name} from {start}"), &fast.call(&x)?, &f(&x)?, 1e-5);
        }
        let fallbacks = fast.stats().fallbacks;
        lab.judge((fallbacks > 0).then(|| format!("{name} fell back to eager {fallbacks} times")));
    }
    // A break where none may be is an error.
    let whole = compile_with(branch, Options { fullgraph: true, ..Options::default() });
    let broke = whole.call(&numbers(5, 0.0, device)?).is_err();
    lab.judge((!broke).then_some("fullgraph let a break pass"));
    let net = Arc::new(Net::new(device)?);
    let inner = net.clone();
    let fast = Arc::new(compile_with(move |t: &Tensor| inner.forward(t), Options::default()));
    let answers: Vec<(usize, Result<Tensor>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread: usize| {
                let fast: Arc<Compiled<_, Tensor, Tensor>> = fast.clone();
                scope.spawn(move || (thread, tokens(1, 4 + thread % 3, device).and_then(|t| fast.call(&t))))
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    lab.judge((answers.len() < 8).then_some("a thread that called a compiled function has panicked"));
    for (thread, answer) in answers {
        let wanted = net.forward(&tokens(1, 4 + thread % 3, device)?)?;
        lab.same(format!("thread {thread}"), &answer?, &wanted, 1e-4);
    }
    Ok(())
}

/// Training: gradients against differences, and whole steps as one program against eager ones.
pub fn training(lab: &mut Lab) {
    super::graphs::gradients(lab);
    let outcome = training_of(lab);
    lab.expect("training", outcome);
}

fn training_of(lab: &mut Lab) -> Result<()> {
    let device = lab.device;
    // In f64, where a difference of values is nearly a derivative.
    let f = |x: &Tensor| -> Result<Tensor> {
        let y = x.tanh()?.matmul(&x.transpose(0, 1)?)?.softmax(-1)?;
        (y.matmul(x)?.gelu()? * x.exp()?)?.sum(..)
    };
    let x = numbers(12, 0.0, device)?.to_dtype(DType::F64)?.reshape([3, 4])?;
    let (rows, step) = (x.to_vec::<f64>()?, 1e-5);
    let moved = |place: usize, by: f64| -> Result<f64> {
        let mut rows = rows.clone();
        rows[place] += by;
        f(&Tensor::from_vec(rows, [3, 4], device)?)?.item::<f64>()
    };
    let slopes: Result<Vec<f64>> =
        (0..12).map(|place| Ok((moved(place, step)? - moved(place, -step)?) / (2.0 * step))).collect();
    let slopes = Tensor::from_vec(slopes?, [3, 4], device)?;
    let slope = kiln::grad(f);
    let fast = compile_with(move |x: &Tensor| slope(x), Options::default());
    lab.same("gradient against differences", &fast.call(&x)?, &slopes, 1e-6);
    lab.same("eager gradient against differences", &kiln::grad(f)(&x)?, &slopes, 1e-6);

    let (eager, net) = (Net::new(device)?, Arc::new(Net::new(device)?));
    let (slow, optimizer) = (AdamW::new(eager.vars(), 0.01)?, AdamW::new(net.vars(), 0.01)?);
    let inner = net.clone();
    let step = move |tokens: &Tensor| {
        let loss = inner.loss(tokens)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss)
    };
    let fast = compile_with(step, Options { fullgraph: true, ..Options::default() });
    let batch = tokens(2, 12, device)?;
    let mut losses = Vec::new();
    for turn in 0..lab.count(24) {
        let wanted = eager.loss(&batch)?;
        wanted.backward()?;
        slow.step()?;
        slow.zero_grad();
        let got = fast.call(&batch)?;
        lab.same(format!("loss of step {turn}"), &got, &wanted, 1e-3);
        losses.push(got.item::<f32>()?);
    }
    for (var, wanted) in net.vars().iter().zip(eager.vars()) {
        lab.same("a trained weight", &var.get(), &wanted.get(), 2e-3);
    }
    let fell = losses.first() > losses.last();
    lab.judge((!fell && losses.len() > 1).then(|| format!("the loss did not fall: {losses:?}")));
    Ok(())
}
