//! `explain`: what is told, as text and as a page; and that the page is whole and loads nothing.

use kiln::inspect::Explanation;
use kiln::{DType, Device, Dynamic, Generator, Mode, Options, Result, Tensor, Var, compile, compile_with};

fn random(shape: &[usize]) -> Tensor {
    let seed = shape.iter().fold(3, |seed, &n| seed * 31 + n as u64);
    Generator::new(seed).randn(shape.to_vec(), DType::F32, Device::Cpu).unwrap()
}

/// A layer of a small transformer.
struct Layer {
    heads: usize,
    norms: [Tensor; 2],
    qkv: Tensor,
    out: Tensor,
    up: Tensor,
    down: Tensor,
}

impl Layer {
    fn new(width: usize, heads: usize) -> Layer {
        let scaled = |shape: &[usize]| random(shape).mul(0.05).unwrap();
        let ones = || Tensor::ones([width], DType::F32, Device::Cpu).unwrap();
        Layer {
            heads,
            norms: [ones(), ones()],
            qkv: scaled(&[width, 3 * width]),
            out: scaled(&[width, width]),
            up: scaled(&[width, 4 * width]),
            down: scaled(&[4 * width, width]),
        }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (tokens, width) = (x.shape()[0], x.shape()[1]);
        let normed = x.rms_norm(1, Some(&self.norms[0]), 1e-5)?;
        let parts = normed.matmul(&self.qkv)?.chunk(3, -1)?;
        let split = |t: &Tensor| t.reshape([1, tokens, self.heads, width / self.heads])?.transpose(1, 2);
        let attended =
            split(&parts[0])?.scaled_dot_product_attention(&split(&parts[1])?, &split(&parts[2])?, None, true, None)?;
        let merged = attended.transpose(1, 2)?.reshape([tokens, width])?;
        let x = (x + merged.matmul(&self.out)?)?;
        let normed = x.rms_norm(1, Some(&self.norms[1]), 1e-5)?;
        &x + normed.matmul(&self.up)?.gelu()?.matmul(&self.down)?
    }
}

fn transformer(x: &Tensor, layers: &[Layer]) -> Result<Tensor> {
    layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))
}

fn clip(x: &Tensor) -> Result<Tensor> {
    let scaled = x.mul(2.0)?.tanh()?;
    if scaled.amax(..)?.item::<f32>()? > 0.5 { scaled.clamp(-0.5, 0.5)?.exp() } else { scaled.exp() }
}

/// Tags are closed in order, text is escaped, and nothing is loaded from elsewhere.
fn check_page(page: &str) {
    const EMPTY: [&str; 6] = ["meta", "br", "img", "hr", "rect", "line"];
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    let mut open: Vec<String> = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "a bare '>' in {:?}", &rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.find('>').expect("a tag ends");
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in <{tag}>");
        for name in ["src=", "href=", "url(", "@import"] {
            assert!(!tag.contains(name), "<{tag}> loads something");
        }
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
        rest = after;
        if tag.starts_with('!') || EMPTY.contains(&name.as_str()) {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()), "</{name}> closes nothing");
            continue;
        }
        if name == "style" || name == "script" {
            let close = rest.find(&format!("</{name}>")).expect("raw text ends");
            assert!(!rest[..close].contains("url(") && !rest[..close].contains("@import"));
            assert!(!rest[..close].contains("http:") && !rest[..close].contains("https:"));
            rest = &rest[close..];
        }
        open.push(name);
    }
    assert!(open.is_empty(), "not closed: {open:?}");
}

/// Kept for a look in a browser.
fn keep(name: &str, explanation: &Explanation) -> String {
    let page = explanation.to_html();
    std::fs::write(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html")), &page).unwrap();
    page
}

#[test]
fn a_softmax_is_one_graph_of_one_kernel() {
    let softmax = |x: &Tensor| x.mul(0.125)?.softmax(-1);
    let explanation = kiln::explain(&softmax, &random(&[512, 1024])).unwrap();
    let [segment] = explanation.segments.as_slice() else { panic!("{explanation}") };
    let [kernel] = segment.kernels.as_slice() else { panic!("{explanation}") };
    assert_eq!((kernel.kind, kernel.read, kernel.written), ("reduction", 512 * 1024 * 4, 512 * 1024 * 4));
    assert!(kernel.flops >= 4 * 512 * 1024 && !kernel.time.is_zero() && kernel.bandwidth() > 0.0);
    assert!(segment.lines_of(kernel).iter().all(|line| line.file.ends_with("explain.rs")));
    assert!(explanation.call.is_some() && explanation.breaks.is_empty());
    let parts: Vec<&str> = explanation.first_call.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!((parts.first(), parts.last()), (Some(&"capture"), Some(&"run")), "{parts:?}");
    for part in ["passes", "schedule", "code"] {
        assert!(parts.contains(&part), "{part} in {parts:?}");
    }
    let text = explanation.to_string();
    for wanted in [
        "1 graph, 1 kernel",
        "first call",
        "reduce_sum",
        "explain.rs:",
        "GB/s",
        "guards of program 0",
        "f32[512, 1024]",
    ] {
        assert!(text.contains(wanted), "{wanted} in\n{text}");
    }
    check_page(&keep("softmax", &explanation));
}

#[test]
fn a_transformer_shows_kernels_memory_lines_and_what_is_apart() {
    let layers = [Layer::new(256, 4), Layer::new(256, 4)];
    let explanation = kiln::explain(&|x: &Tensor| transformer(x, &layers), &random(&[128, 256])).unwrap();
    let [segment] = explanation.segments.as_slice() else { panic!("{explanation}") };
    let kinds: Vec<&str> = segment.kernels.iter().map(|kernel| kernel.kind).collect();
    for kind in ["matmul", "attention"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    assert!(segment.kernels.iter().any(|kernel| kernel.same_as.is_some()), "the second layer is the first again");
    assert!(segment.arena_bytes > 0 && segment.arena_bytes < segment.temp_bytes);
    assert!(!segment.not_fused.is_empty());
    let product = segment.kernels.iter().find(|k| k.kind == "matmul").unwrap();
    assert!(product.flops >= 2 * 128 * 256 * 768, "{} operations", product.flops);
    assert!(segment.inputs.iter().any(|name| name.contains("argument 0")), "{:?}", segment.inputs);
    let page = keep("transformer", &explanation);
    check_page(&page);
    for wanted in ["<svg", "Not fused", "vector IR", "machine code", "fn forward", "Worth a look"] {
        assert!(page.contains(wanted), "{wanted}");
    }
}

#[test]
fn a_break_is_shown_with_its_line_and_the_way_out() {
    let fast = compile(clip);
    let x = random(&[64, 64]);
    let first = fast.explain(&x).unwrap();
    assert_eq!((first.segments.len(), first.breaks.len()), (2, 1), "{first}");
    assert!(first.breaks[0].what.contains("element") && !first.breaks[0].fix.is_empty());
    assert!(first.breaks[0].at.file.ends_with("explain.rs"));
    // One number, and the time that reading it takes.
    let cost = first.breaks[0].cost.unwrap();
    assert!(cost.bytes == 4 && cost.took.as_millis() < 100, "{cost:?}");
    assert!(first.to_string().contains(" between the graphs, 4 B)"), "{first}");
    // The same of a call that finds everything there.
    let again = fast.explain(&x).unwrap();
    assert_eq!((again.segments.len(), again.breaks.len()), (2, 1), "{again}");
    // How its programs were made then: by the passes, or from disk.
    let parts: Vec<&str> = again.first_call.iter().map(|(what, _)| what.as_str()).collect();
    assert!(parts == ["read"] || parts == ["passes", "schedule", "code"], "{parts:?}");
    assert!(again.first_call.iter().all(|(_, took)| !took.is_zero()), "{again}");
    let page = keep("break", &first);
    check_page(&page);
    assert!(page.contains("Graph break") && page.contains("id=\"g1\""));
}

#[test]
fn guards_and_recompiles_are_told() {
    let options = Options { dynamic: Dynamic::Static, ..Options::default() };
    let fast = compile_with(|(x, power): &(Tensor, f64)| x.pow(*power), options);
    fast.call(&(random(&[4]), 2.0)).unwrap();
    fast.call(&(random(&[5]), 2.0)).unwrap();
    let explanation = fast.explain(&(random(&[5]), 3.0)).unwrap();
    assert_eq!(explanation.programs.len(), 3);
    assert_eq!(explanation.recompiles.len(), 2, "{explanation}");
    assert!(explanation.recompiles[0].contains("Dynamic::Automatic"), "{explanation}");
    assert!(explanation.recompiles[1].contains("better a tensor"), "{explanation}");
    let page = explanation.to_html();
    check_page(&page);
    assert!(page.contains("Guards of program 2") && page.contains("Compiled again"));
}

#[test]
fn a_function_that_updates_a_variable_is_called_once() {
    let total = Var::new(&Tensor::zeros([16], DType::F32, Device::Cpu).unwrap());
    let held = total.clone();
    let fast = compile(move |x: &Tensor| {
        held.add_assign(x)?;
        held.get().mul(2.0)
    });
    let ones = Tensor::ones([16], DType::F32, Device::Cpu).unwrap();
    let explanation = fast.explain(&ones).unwrap();
    assert_eq!(total.get().to_vec::<f32>().unwrap(), [1.0; 16], "measuring left the variable alone");
    assert!(explanation.call.is_none() && !explanation.segments.is_empty(), "{explanation}");
    let reports = fast.verify(&ones).unwrap();
    assert!(reports.iter().all(|report| report.is_right()), "{}", reports[0]);
    assert_eq!(total.get().to_vec::<f32>().unwrap(), [2.0; 16]);
}

#[test]
fn every_mode_can_be_explained_and_verified() {
    let layer = Layer::new(64, 2);
    let x = random(&[16, 64]);
    for mode in Mode::ALL {
        for freeze in [false, true] {
            let tuning_budget = std::time::Duration::from_millis(50);
            let options = Options { mode, freeze, tuning_budget, ..Options::default() };
            let fast = compile_with(|x: &Tensor| layer.forward(x), options);
            for call in 0..2 {
                let explanation = fast.explain(&x).unwrap();
                assert_eq!(explanation.segments.len(), 1, "{mode:?}, freeze {freeze}, call {call}: {explanation}");
            }
            let reports = fast.verify(&x).unwrap();
            assert!(reports.len() == 1 && reports[0].is_right(), "{mode:?}, freeze {freeze}: {}", reports[0]);
        }
    }
}

#[test]
fn whatever_is_in_names_and_lines_is_text() {
    let mut explanation = kiln::explain(&|x: &Tensor| x.exp(), &random(&[8])).unwrap();
    let evil = "</script><img src=x onerror=\"alert('1')\">&amp;";
    explanation.name = evil.to_owned();
    explanation.remarks.push(evil.to_owned());
    explanation.recompiles.push(evil.to_owned());
    explanation.programs.push(vec![evil.to_owned()]);
    explanation.segments[0].kernels[0].label = evil.to_owned();
    explanation.segments[0].inputs[0] = evil.to_owned();
    explanation.segments[0].buffers[0].name = evil.to_owned();
    let page = explanation.to_html();
    check_page(&page);
    assert!(!page.contains("<img"));
}

#[test]
fn a_function_that_fails_says_so() {
    let error = kiln::explain(&|x: &Tensor| x.reshape([7]), &random(&[8])).unwrap_err();
    assert!(error.to_string().contains("explain.rs"), "{error}");
}

#[derive(kiln::nn::Module)]
struct Block {
    norm: kiln::nn::LayerNorm,
    layers: kiln::nn::Sequential,
}

impl kiln::nn::Forward for Block {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let normed = self.norm.forward(x)?;
        x.add(&self.layers.forward(&normed)?)
    }
}

/// Kiln's own layers have no lines: what they do is done for whoever calls them, and their weights have the names of the
/// state dict.
#[test]
fn layers_are_told_by_the_callers_lines_and_the_names_of_weights() -> kiln::Result<()> {
    use kiln::nn::{LayerNorm, Linear, Relu, Sequential};
    let mut layers = Sequential::new();
    layers.push(Linear::new(64, 64)?);
    layers.push(Relu);
    layers.push(Linear::new(64, 64)?);
    let fast = kiln::compile(Block { norm: LayerNorm::new(64, 1e-5)?, layers });
    let x = Tensor::ones([8, 64], DType::F32, Device::Cpu)?;
    let text = fast.explain(&x)?.to_string();
    assert!(!text.contains("src/nn"), "{text}");
    assert!(text.contains("tests/explain.rs"), "{text}");
    for weight in ["norm.weight", "layers.0.weight", "layers.2.bias"] {
        assert!(text.contains(weight), "{weight}: {text}");
    }
    // A layer that is compiled itself is called where the compiled one is.
    let text = kiln::compile(Linear::new(64, 64)?).explain(&x)?.to_string();
    assert!(!text.contains("crates/kiln/src"), "{text}");
    Ok(())
}

/// What moves most bytes through memory is told first.
#[test]
fn what_is_not_fused_is_sorted_by_bytes() -> kiln::Result<()> {
    let f = |x: &Tensor| {
        let small = x.sum(0)?.cumsum(0)?.exp()?.cumsum(0)?;
        x.cumsum(0)?.exp()?.cumsum(1)?.add(&small)
    };
    let explanation = kiln::explain(&f, &Tensor::ones([64, 64], DType::F32, Device::Cpu)?)?;
    let bytes: Vec<_> = explanation.segments[0].not_fused.iter().map(|pair| pair.bytes).collect();
    assert!(bytes.len() > 1 && bytes.is_sorted_by(|a, b| a >= b) && bytes.first() != bytes.last(), "{bytes:?}");
    Ok(())
}
