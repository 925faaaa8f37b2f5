//! `compile(f)` through the public API: what is captured, what is guarded, and that answers are those of eager code.

use kiln::runtime::event::{self, Category};
use kiln::{DType, Device, Dynamic, Error, Generator, Options, Result, Tensor, compile, compile_with};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};

fn random(shape: &[usize]) -> Tensor {
    let seed = shape.iter().fold(1, |seed, &n| seed * 31 + n as u64);
    Generator::new(seed).randn(shape.to_vec(), DType::F32, Device::Cpu).unwrap()
}

#[track_caller]
fn assert_close(a: &Tensor, b: &Tensor) {
    assert_eq!((a.shape(), a.dtype()), (b.shape(), b.dtype()));
    let (x, y) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    for (i, (x, y)) in x.iter().zip(&y).enumerate() {
        assert!((x - y).abs() <= 2e-5 * (1.0 + y.abs()), "element {i}: {x} and {y}");
    }
}

/// The events of this process so far that contain a text; the first call begins to listen.
fn heard(text: &str) -> Vec<String> {
    static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        event::set_sink(&[Category::Recompiles, Category::Breaks], |event| {
            EVENTS.lock().unwrap().push(event.to_string());
        });
    });
    EVENTS.lock().unwrap().iter().filter(|event| event.contains(text)).cloned().collect()
}

fn gelu_like(x: &Tensor) -> Result<Tensor> {
    let inner = (x.mul(0.7978)? + x.mul(x)?.mul(x)?.mul(0.0356)?)?;
    x.mul(&inner.tanh()?.add(1.0)?)?.mul(0.5)
}

#[test]
fn a_function_is_fused_and_equals_eager() {
    let fast = compile(gelu_like);
    let x = random(&[7, 33]);
    for _ in 0..3 {
        assert_close(&fast.call(&x).unwrap(), &gelu_like(&x).unwrap());
    }
    assert_eq!((fast.stats().compiles, fast.stats().hits, fast.stats().fallbacks), (1, 2, 0));
    assert_eq!(fast.programs()[0].kernels.len(), 1, "{:?}", fast.programs());
}

#[test]
fn the_function_is_called_once() {
    let calls = AtomicUsize::new(0);
    let fast = compile(|x: &Tensor| {
        calls.fetch_add(1, Ordering::Relaxed);
        x.exp()
    });
    for _ in 0..5 {
        fast.call(&random(&[4])).unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

struct Mlp {
    up: Tensor,
    bias: Tensor,
    down: Tensor,
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = (x.matmul(&self.up.t()?)? + &self.bias)?.silu()?;
        x + hidden.matmul(&self.down)?
    }
}

#[test]
fn weights_of_a_closure_are_inputs() {
    let mlp = Mlp { up: random(&[48, 16]), bias: random(&[48]), down: random(&[48, 16]) };
    let x = random(&[5, 16]);
    let expected = mlp.forward(&x).unwrap();
    let fast = compile(move |x: &Tensor| mlp.forward(x));
    assert_close(&fast.call(&x).unwrap(), &expected);
    let other = random(&[5, 16]).mul(3.0).unwrap();
    assert_close(&fast.call(&other).unwrap(), &fast.inner()(&other).unwrap());
    assert_eq!(fast.stats().compiles, 1);
}

fn attention(x: &Tensor, weight: &Tensor, heads: usize) -> Result<Tensor> {
    let (b, t, d) = (x.dim(0)?, x.dim(1)?, x.dim(2)?);
    let qkv = x.matmul(weight)?.reshape([b, t, 3, heads, d / heads])?.permute([2, 0, 3, 1, 4])?;
    let (q, k, v) = (qkv.i(0)?, qkv.i(1)?, qkv.i(2)?);
    let scores = q.matmul(&k.t()?)?.mul(1.0 / ((d / heads) as f64).sqrt())?;
    let mixed = scores.softmax(-1)?.matmul(&v)?;
    x + mixed.transpose(1, 2)?.reshape([b, t, d])?
}

#[test]
fn an_attention_block_at_any_length() {
    let weight = random(&[32, 96]).mul(0.2).unwrap();
    let fast = compile(|x: &Tensor| attention(x, &weight, 4));
    for length in [5, 9, 16, 3, 9] {
        let x = random(&[2, length, 32]);
        assert_close(&fast.call(&x).unwrap(), &attention(&x, &weight, 4).unwrap());
    }
    assert_eq!(fast.stats().compiles, 2, "{:?}", fast.programs());
}

#[test]
fn tuples_lists_maps_and_options() {
    let (x, y) = (random(&[3, 4]), random(&[4]));
    let sum = (&x + &y).unwrap();
    let pair = compile(|(x, y): &(Tensor, Tensor)| Ok((x.add(y)?, vec![x.clone(), y.exp()?])));
    let (a, list) = pair.call(&(x.clone(), y.clone())).unwrap();
    assert_close(&a, &sum);
    assert_close(&list[0], &x);
    assert_close(&list[1], &y.exp().unwrap());

    let list = compile(|list: &Vec<Tensor>| list[1..].iter().try_fold(list[0].clone(), |sum, x| sum.add(x)));
    assert_close(&list.call(&vec![x.clone(), y.clone()]).unwrap(), &sum);
    list.call(&vec![x.clone(), y.clone(), y.clone()]).unwrap();
    assert_eq!(list.stats().compiles, 2);

    let named =
        compile(|map: &HashMap<String, Tensor>| Ok(BTreeMap::from([("sum".to_owned(), map["x"].add(&map["y"])?)])));
    let map = HashMap::from([("x".to_owned(), x.clone()), ("y".to_owned(), y.clone())]);
    assert_close(&named.call(&map).unwrap()["sum"], &sum);

    let option = compile(|(x, bias): &([Tensor; 1], Option<Tensor>)| match bias {
        Some(bias) => x[0].add(bias),
        None => x[0].neg(),
    });
    assert_close(&option.call(&([x.clone()], Some(y))).unwrap(), &sum);
    assert_close(&option.call(&([x.clone()], None)).unwrap(), &x.neg().unwrap());
}

#[test]
fn another_dtype_compiles_again_and_says_so() {
    heard("");
    let fast = compile(|x: &Tensor| x.mul(2.0));
    let x = random(&[3, 71]);
    fast.call(&x).unwrap();
    let y = fast.call(&x.to_dtype(DType::F64).unwrap()).unwrap();
    assert_eq!(y.dtype(), DType::F64);
    assert_eq!(fast.stats().compiles, 2);
    let said = heard("is f64[3, 71]");
    assert!(said.len() == 1 && said[0].contains("not f32[3, 71]"), "{said:?}");
}

#[test]
fn strides_are_guarded() {
    let fast = compile(|x: &Tensor| x.exp());
    let x = random(&[6, 6]);
    assert_close(&fast.call(&x).unwrap(), &x.exp().unwrap());
    let turned = x.t().unwrap();
    assert_close(&fast.call(&turned).unwrap(), &turned.exp().unwrap());
    assert_eq!(fast.stats().compiles, 2);
    let part = random(&[8, 6]).narrow(0, 2, 6).unwrap();
    assert_close(&fast.call(&part).unwrap(), &part.exp().unwrap());
    assert_eq!(fast.stats().compiles, 2, "an offset is no other program");
}

#[test]
fn a_size_that_changes_becomes_a_symbol() {
    let fast = compile(|x: &Tensor| x.softmax(-1)?.mul(2.0));
    for rows in [4, 9, 30, 7, 9] {
        let x = random(&[rows, 8]);
        assert_close(&fast.call(&x).unwrap(), &x.softmax(-1).unwrap().mul(2.0).unwrap());
    }
    assert_eq!(fast.stats().compiles, 2, "{:?}", fast.programs());
    assert!(fast.programs()[1].guards[0].starts_with("f32[s0, 8]"));
    // One row is a case of its own.
    assert_eq!(fast.call(&random(&[1, 8])).unwrap().shape(), [1, 8]);
    assert_eq!(fast.stats().compiles, 3);
}

#[test]
fn sizes_that_stay_static() {
    let fast = compile_with(|x: &Tensor| x.exp(), Options { dynamic: Dynamic::Static, ..Options::default() });
    for rows in [4, 9, 30] {
        fast.call(&random(&[rows])).unwrap();
    }
    assert_eq!(fast.stats().compiles, 3);
}

#[test]
fn sizes_that_are_symbols_at_once() {
    let weight = random(&[8, 5]);
    let f = |x: &Tensor| x.matmul(&weight)?.relu();
    let fast = compile_with(f, Options { dynamic: Dynamic::Always, ..Options::default() });
    for rows in [4, 9, 30] {
        let x = random(&[rows, 8]);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap());
    }
    assert_eq!(fast.stats().compiles, 1, "{:?}", fast.programs());
}

#[test]
fn code_that_asks_for_sizes_is_never_wrong() {
    // Both branches and the number of turns depend on the size: no graph is for all of them.
    let f = |x: &Tensor| -> Result<Tensor> {
        let n = x.dim(0)?;
        let mut y = if n.is_multiple_of(4) { x.mul(2.0)? } else { x.add(1.0)? };
        for _ in 0..n / 10 {
            y = y.sin()?;
        }
        y.add(n as f64)
    };
    for dynamic in [Dynamic::Static, Dynamic::Automatic, Dynamic::Always] {
        let fast = compile_with(f, Options { dynamic, ..Options::default() });
        for n in [5, 6, 7, 8, 12, 16, 25, 33, 6, 8] {
            let x = random(&[n]);
            assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap());
        }
    }
    let branch = |x: &Tensor| if x.dim(0)? % 4 == 0 { x.mul(2.0) } else { x.add(1.0) };
    let fast = compile(branch);
    for n in [5, 6, 7, 8, 9, 12, 16, 8] {
        let x = random(&[n]);
        assert_close(&fast.call(&x).unwrap(), &branch(&x).unwrap());
    }
    assert!(fast.stats().compiles <= 4, "{:?}", fast.programs());
}

#[test]
fn sizes_that_are_returned_are_those_of_the_call() {
    let fast = compile(|x: &Tensor| Ok((x.exp()?, x.dim(0)?)));
    for n in [5, 6, 7, 8] {
        assert_eq!(fast.call(&random(&[n])).unwrap().1, n);
    }
}

#[test]
fn plain_values_are_guarded() {
    let fast = compile(|(x, scale, flip, mode): &(Tensor, f64, bool, String)| {
        let y = x.mul(*scale)?;
        let y = if *flip { y.neg()? } else { y };
        if mode == "exp" { y.exp() } else { Ok(y) }
    });
    let x = random(&[4]);
    let call = |scale: f64, flip, mode: &str| fast.call(&(x.clone(), scale, flip, mode.to_owned())).unwrap();
    assert_close(&call(2.0, false, ""), &x.mul(2.0).unwrap());
    assert_close(&call(3.0, false, ""), &x.mul(3.0).unwrap());
    assert_close(&call(3.0, true, ""), &x.mul(-3.0).unwrap());
    assert_close(&call(3.0, true, "exp"), &x.mul(-3.0).unwrap().exp().unwrap());
    call(2.0, false, "");
    assert_eq!((fast.stats().compiles, fast.stats().hits), (4, 1));
}

#[test]
fn the_least_recently_used_program_goes() {
    let options = Options { cache_limit: 2, dynamic: Dynamic::Static, ..Options::default() };
    let fast = compile_with(|x: &Tensor| x.exp(), options);
    for n in [2, 3, 2, 4, 2] {
        fast.call(&random(&[n])).unwrap();
        assert!(fast.programs().len() <= 2);
    }
    assert_eq!((fast.stats().compiles, fast.stats().hits), (3, 2));
    fast.reset();
    assert!(fast.programs().is_empty());
    fast.call(&random(&[2])).unwrap();
    assert_eq!(fast.stats().compiles, 4);
}

#[test]
fn reading_elements_ends_a_graph_and_says_where() {
    heard("");
    let line = line!() + 1;
    let fast = compile(|x: &Tensor| if x.sum(..)?.gt(0.0)?.item::<bool>()? { x.exp() } else { x.neg() });
    let (up, down) = (Tensor::new([1f32, 2.], Device::Cpu).unwrap(), Tensor::new([-1f32, -2.], Device::Cpu).unwrap());
    for _ in 0..3 {
        assert_close(&fast.call(&up).unwrap(), &up.exp().unwrap());
        assert_close(&fast.call(&down).unwrap(), &down.neg().unwrap());
    }
    let stats = fast.stats();
    assert_eq!((stats.fallbacks, stats.compiles, stats.hits, stats.branches), (0, 1, 5, 1));
    let place = format!("compile.rs:{line}");
    let said = heard(&place);
    assert_eq!(said.len(), 1, "{:?}", heard(""));
}

#[test]
fn fullgraph_names_the_line_and_the_way_out() {
    let options = Options { fullgraph: true, ..Options::default() };
    let line = line!() + 1;
    let fast = compile_with(|x: &Tensor| x.mul(x.amax(..)?.item::<f64>()?), options);
    let error = fast.call(&random(&[3])).unwrap_err();
    assert!(matches!(error, Error::GraphBreak { .. }));
    let text = error.to_string();
    assert!(text.contains(&format!("compile.rs:{line}")) && text.contains("where_"), "{text}");
}

#[test]
fn errors_of_the_function_are_its_own() {
    let fast = compile(|x: &Tensor| x.matmul(x));
    let (captured, eager) = (fast.call(&random(&[2, 3])).unwrap_err(), fast.inner()(&random(&[2, 3])).unwrap_err());
    assert_eq!(captured, eager);
    assert!(fast.call(&random(&[3, 3])).is_ok());
}

#[test]
fn views_inside() {
    fn f((x, rows): &(Tensor, Tensor)) -> Result<Vec<Tensor>> {
        let parts = x.chunk(2, 1)?;
        Ok(vec![
            x.i((1.., kiln::step(0..5, 2), -1))?,
            x.i((.., rows, 0))?,
            x.flip([0, 2])?.transpose(0, 2)?,
            parts[0].squeeze(..)?.unsqueeze(0)?.sum(-1)?,
            x.select(0, -1)?.unfold(0, 3, 1)?.sum(-1)?,
            x.flatten(1, 2)?.diagonal(1)?,
            x.i(0)?.broadcast_to([2, 6, 4])?.contiguous()?,
            x.roll(1, 1)?.movedim(0, -1)?,
            Tensor::cat(&[x.narrow(2, 1, 2)?, x.narrow(2, 0, 1)?], 2)?,
            x.reshape([-1, 4])?.t()?.reshape([8, -1])?,
            x.sub(&Tensor::arange(4, DType::F32, Device::Cpu)?)?.unflatten(1, [2, 3])?,
            x.mul(&Tensor::new([1f32, 2., 3., 4.], Device::Cpu)?)?.add(&Tensor::zeros(
                [6, 1],
                DType::F32,
                Device::Cpu,
            )?)?,
            x.split_sizes(&[1, 5], 1)?.swap_remove(1).bitcast(DType::I32)?.to_dtype(DType::F32)?,
            x.triu(0)?,
        ])
    }
    let fast = compile(f);
    let rows = Tensor::new([5i64, -1, 0], Device::Cpu).unwrap();
    for x in [random(&[3, 6, 4]), random(&[4, 6, 3]).transpose(0, 2).unwrap()] {
        let arguments = (x, rows.clone());
        let (captured, eager) = (fast.call(&arguments).unwrap(), f(&arguments).unwrap());
        assert_eq!(captured.len(), eager.len());
        for (a, b) in captured.iter().zip(&eager) {
            assert_close(a, b);
        }
    }
    assert_eq!(fast.stats().fallbacks, 0);
}

#[test]
fn outputs_own_their_memory() {
    let fast = compile(|x: &Tensor| Ok((x.mul(2.0)?, x.t()?, x.clone())));
    let x = Tensor::new([[1f32, 2.], [3., 4.]], Device::Cpu).unwrap();
    let first = fast.call(&x).unwrap();
    let second = fast.call(&Tensor::zeros([2, 2], DType::F32, Device::Cpu).unwrap().contiguous().unwrap()).unwrap();
    drop(x);
    assert_eq!(first.0.to_vec::<f32>().unwrap(), [2., 4., 6., 8.]);
    assert_eq!(first.1.to_vec::<f32>().unwrap(), [1., 3., 2., 4.]);
    assert_eq!(first.2.to_vec::<f32>().unwrap(), [1., 2., 3., 4.]);
    assert_eq!(second.0.to_vec::<f32>().unwrap(), [0.; 4]);
}

#[test]
fn a_compiled_function_inside_another_becomes_part_of_it() {
    let inner = compile(|x: &Tensor| x.exp());
    let outer = compile(|x: &Tensor| inner.call(&x.mul(2.0)?)?.log());
    let x = random(&[50]);
    assert_close(&outer.call(&x).unwrap(), &x.mul(2.0).unwrap());
    assert_eq!((inner.stats().compiles, outer.programs()[0].kernels.len()), (0, 1));
}

#[test]
fn a_tensor_that_escapes_is_an_error() {
    let kept = Mutex::new(None);
    let fast = compile(|x: &Tensor| {
        *kept.lock().unwrap() = Some(x.clone());
        x.exp()
    });
    fast.call(&random(&[2])).unwrap();
    let escaped = kept.lock().unwrap().take().unwrap();
    assert!(escaped.is_traced());
    assert!(matches!(escaped.exp(), Err(Error::Escaped { .. })));
    assert!(matches!(escaped.to_vec::<f32>(), Err(Error::Escaped { .. })));
    assert!(matches!(escaped.unsqueeze(0), Err(Error::Escaped { .. })));
    assert!(matches!(escaped.flip(0), Err(Error::Escaped { .. })));
}

#[test]
fn disabled_is_the_function_itself() {
    let fast = compile_with(|x: &Tensor| x.exp(), Options { disable: true, ..Options::default() });
    fast.call(&random(&[2])).unwrap();
    assert_eq!(fast.stats(), Default::default());
}

#[test]
fn eight_threads_call_compile_and_reset() {
    let weight = random(&[16, 16]);
    let fast = Arc::new(compile(move |x: &Tensor| x.matmul(&weight)?.tanh()));
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let fast = fast.clone();
            scope.spawn(move || {
                for turn in 0..60 {
                    let x = random(&[1 + (thread + turn) % 7, 16]);
                    assert_close(&fast.call(&x).unwrap(), &fast.inner()(&x).unwrap());
                    if turn % 20 == 19 && thread == 0 {
                        fast.reset();
                    }
                }
            });
        }
    });
    let stats = fast.stats();
    assert!(stats.hits > 300 && stats.compiles < 40, "{stats:?}");
}
