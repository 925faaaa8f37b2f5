//! `kiln bench forward`: blocks and whole transformers, compiled against eager Kiln, PyTorch eager and torch.compile.

use super::clock::{Timing, seconds};
use super::difference::difference;
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, report};
use crate::models::{Attention, Config, Family, Mlp, Rotary, Transformer, Weights};
use kiln::{Compiled, Result, Tensor};
use kiln_terminal::failure::Outcome;
use kiln_terminal::output;
use serde_json::{Value, json};

/// A part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// x + MLP(norm(x)).
    Mlp,
    /// x + attention(norm(x)).
    Attention,
    /// Tokens to logits.
    Transformer,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// What runs.
    pub part: Part,
    /// Its sizes.
    pub config: Config,
    /// Tokens of the one sequence.
    pub tokens: usize,
    /// Threads of all sides.
    pub threads: usize,
}

impl Case {
    /// For the table.
    pub fn name(&self) -> String {
        let Config { layers, hidden, .. } = self.config;
        let family = self.config.family.name();
        match self.part {
            Part::Mlp => format!("{family} MLP {hidden}, {} tokens", self.tokens),
            Part::Attention => format!("{family} attention {hidden}, {} tokens", self.tokens),
            Part::Transformer => format!("{family} {layers}×{hidden}, {} tokens", self.tokens),
        }
    }

    /// For the peer.
    pub fn to_json(self) -> Value {
        let Config { layers, hidden, inner, heads, groups, vocabulary, context, .. } = self.config;
        let kind = match self.part {
            Part::Mlp => "mlp",
            Part::Attention => "attention_block",
            Part::Transformer => "transformer",
        };
        json!({
            "kind": kind, "shape": [self.tokens], "dtype": "f32", "family": self.config.family.name(), "layers": layers,
            "hidden": hidden, "inner": inner, "heads": heads, "groups": groups, "vocabulary": vocabulary, "context": context,
        })
    }

    /// The function and its argument, with weights that it holds.
    pub fn build(&self) -> Result<(Function, Tensor)> {
        let random = Weights::new(7);
        let config = self.config;
        let hidden = |random: &Weights| random.normal(&[1, self.tokens, config.hidden], 1.0);
        Ok(match self.part {
            Part::Mlp => {
                let (x, mlp) = (hidden(&random)?, Mlp::new(&config, &random)?);
                (Box::new(move |x: &Tensor| mlp.forward(x)), x)
            }
            Part::Attention => {
                let (x, attention) = (hidden(&random)?, Attention::new(&config, &random)?);
                // The peer's block has no positions either: they belong to the whole model.
                (Box::new(move |x: &Tensor| attention.forward(x, None::<&Rotary>)), x)
            }
            Part::Transformer => {
                let model = Transformer::new(&config, &random)?;
                let tokens = random.tokens(1, self.tokens, config.vocabulary)?;
                (Box::new(move |tokens: &Tensor| model.forward(tokens)), tokens)
            }
        })
    }
}

/// A model's forward pass.
pub type Function = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// Blocks of two widths and a four-layer transformer, both families, few tokens and many.
pub fn cases(threads: &[usize]) -> Vec<Case> {
    let config = |family, hidden| match family {
        Family::Gpt => Config::gpt(4, hidden, hidden / 32, 1000, 256),
        Family::Llama => Config::llama(4, hidden, hidden / 32, 1000, 256),
    };
    let mut cases = Vec::new();
    for &threads in threads {
        for family in [Family::Gpt, Family::Llama] {
            for (part, hidden) in [
                (Part::Mlp, 256),
                (Part::Mlp, 768),
                (Part::Attention, 256),
                (Part::Attention, 768),
                (Part::Transformer, 256),
            ] {
                for tokens in [1, 16, 128] {
                    cases.push(Case { part, config: config(family, hidden), tokens, threads });
                }
            }
        }
    }
    cases
}

/// One measured case.
struct Row {
    case: Case,
    kernels: usize,
    first: f64,
    torch_first: f64,
    kiln: Timing,
    eager: Timing,
    torch_eager: Option<Timing>,
    torch_compile: Option<Timing>,
    peer_error: Option<String>,
    /// The largest difference of compiled from eager, over the largest value.
    difference: f64,
}

/// Measures every case and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize], mut peer: Option<TorchPeer>) -> Outcome {
    let mut rows = Vec::new();
    println!(
        "{:<28} {:>2} {:>8} {:>4} {:>9} {:>9} {:>7} {:>7} {:>7}  (how many times slower the other side is)",
        "case", "T", "1st call", "ker", "min", "median", "eager", "torch", "t.comp"
    );
    for case in cases(threads).into_iter().filter(|case| case.name().contains(&arguments.filter)) {
        let row = measure(case, peer.as_mut(), arguments)?;
        line(&row);
        rows.push(row);
    }
    summary(&rows, peer.as_ref().map(|p| p.version.as_str()));
    let version = peer.map(|peer| format!("torch {}", peer.version));
    arguments.write(outputs, rows.iter().flat_map(|row| records(row, version.as_deref())).collect())
}

fn measure(
    case: Case,
    peer: Option<&mut TorchPeer>,
    arguments: &Arguments,
) -> std::result::Result<Row, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(case.threads);
    let (f, x) = case.build()?;
    let eager = f(&x)?;
    kiln_runtime::kernel_cache::clear();
    let compiled: Compiled<Function, Tensor, Tensor> = kiln::compile(f);
    let (y, first) = seconds(|| compiled.call(&x))?;
    let difference = difference(&y, &eager)?;

    let modes: &[&str] = if arguments.no_torch_compile { &["eager"] } else { &["eager", "compile"] };
    let peer = turns::Peer::setup(peer, case.to_json(), case.threads, modes);
    let own = [Own::new(|| compiled.call(&x)), Own::new(|| compiled.inner()(&x)).half()];
    let ([kiln, eager], mut torch) = turns::take(arguments, own, peer)?;
    Ok(Row {
        kernels: compiled.programs().iter().map(|p| p.kernels.len()).sum(),
        first,
        torch_first: torch.first(1),
        kiln,
        eager,
        torch_eager: torch.timing(0),
        torch_compile: torch.timing(1),
        peer_error: torch.error,
        difference,
        case,
    })
}

fn line(row: &Row) {
    let ratio =
        |other: &Option<Timing>| other.as_ref().map_or("–".to_owned(), |t| format!("{:.2}", t.min / row.kiln.min));
    print!(
        "{:<28} {:>2} {:>6.2}ms {:>4} {:>7.1}µs {:>7.1}µs {:>7.2} {:>7} {:>7}",
        row.case.name(),
        row.case.threads,
        row.first * 1e3,
        row.kernels,
        row.kiln.min * 1e6,
        row.kiln.median * 1e6,
        row.eager.min / row.kiln.min,
        ratio(&row.torch_eager),
        ratio(&row.torch_compile),
    );
    if row.difference > 1e-4 {
        print!("  DIFFERS FROM EAGER BY {:.1e}", row.difference);
    }
    println!("{}", row.peer_error.as_ref().map_or(String::new(), |e| format!("  {e}")));
    // A long run is watched as it goes.
    output::flush();
}

fn summary(rows: &[Row], torch: Option<&str>) {
    println!();
    let against = |pick: fn(&Row) -> Option<&Timing>| -> Vec<f64> {
        rows.iter().filter_map(|r| pick(r).map(|t| t.min / r.kiln.min)).collect()
    };
    report::tell("against eager Kiln", against(|r| Some(&r.eager)));
    if let Some(version) = torch {
        report::tell(&format!("against torch {version} eager"), against(|r| r.torch_eager.as_ref()));
        report::tell("against torch.compile", against(|r| r.torch_compile.as_ref()));
    }
}

/// The sides of a row, in the form that all benchmarks have.
fn records(row: &Row, version: Option<&str>) -> Vec<Record> {
    let subject = Subject {
        what: "forward".into(),
        model: row.case.name(),
        device: "cpu".into(),
        dtype: "f32".into(),
        batch: 1,
        prompt: row.case.tokens,
        threads: row.case.threads,
        tokens_a_call: row.case.tokens,
    };
    let mut kiln = Record::timed(&subject, "kiln", "default", &row.kiln);
    kiln.first_call_s = Some(row.first);
    kiln.launches = Some(row.kernels as u64);
    kiln.matches_eager = Some(row.difference <= 1e-4);
    kiln.extra =
        json!({"case": row.case.to_json(), "difference_from_eager": row.difference, "peer_error": row.peer_error});
    let mut records = vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln];
    let modes = [("eager", row.torch_eager.as_ref()), ("default", row.torch_compile.as_ref())].into_iter();
    records.extend(Record::of_torch(&subject, modes, row.torch_first, version, row.peer_error.as_deref()));
    records
}
