//! `kiln bench decode` and `kiln bench forward --model`: what the options ask for, and what is made of the records.

use super::llm::Plan;
use super::llm::models::{self, Source};
use super::llm::sides::{self, Role};
use super::outputs::Outputs;
use super::record;
use super::{Arguments, Peer, machine, table};
use kiln::DType;
use kiln_llm::WeightFormat;
use kiln_terminal::failure::{Failure, Outcome};
use std::time::Duration;

/// How long a side may take until its first calls are over; torch.compile's autotuning has the most to do.
const PATIENCE: Duration = Duration::from_secs(900);

/// Measures a model at every requested prompt length and number of threads.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, what: &'static str) -> Outcome {
    let model = arguments.model.as_deref().unwrap_or("stories260K");
    let source = models::prepare(model, dtype(arguments), arguments.layers, arguments.weights)?;
    let roles = roles(arguments, &source)?;
    sides::can_start(&roles, &arguments.python())?;
    let mut records = Vec::new();
    let threads = if arguments.threads.is_empty() { vec![machine::cores()] } else { arguments.threads.clone() };
    for &threads in &threads {
        for &prompt in &arguments.prompt {
            let plan = plan(arguments, what, &source, threads, prompt, roles.clone())?;
            let found = plan.run()?;
            table::print(&found);
            records.extend(found);
        }
    }
    outputs.write(&records)?;
    record::failed(&records)
}

fn dtype(arguments: &Arguments) -> DType {
    match arguments.dtype() {
        "bf16" => DType::Bf16,
        "f16" => DType::F16,
        _ => DType::F32,
    }
}

/// Kiln's modes, then those of the peers that can read the model.
fn roles(arguments: &Arguments, source: &Source) -> Result<Vec<Role>, Failure> {
    let unusable = |text: String| Failure::unusable(text).advise("kiln bench --help");
    let peers = !arguments.peer_modes.is_empty() || !arguments.peer.is_empty();
    if peers && arguments.weights != WeightFormat::AsStored {
        return Err(unusable(format!("--weights {}: peers read weights as they are stored", arguments.weights)));
    }
    let mut roles =
        arguments.modes.iter().map(|mode| Role::kiln(mode)).collect::<Result<Vec<Role>, String>>().map_err(unusable)?;
    if !arguments.peer_modes.is_empty() {
        for text in &arguments.peer_modes {
            roles.push(Role::peer(text).map_err(unusable)?);
        }
        return Ok(roles);
    }
    for peer in &arguments.peer {
        match peer {
            Peer::Torch if source.is_gguf() => {
                return Err(unusable("PyTorch does not multiply GGUF blocks; its peer is llama.cpp".into()));
            }
            Peer::Torch => roles.extend(Role::torch(&arguments.device, !arguments.no_torch_compile)),
            Peer::LlamaCpp if !source.is_gguf() => {
                return Err(unusable("llama.cpp reads GGUF files only".into()));
            }
            Peer::LlamaCpp => roles.push(Role::peer("llama.cpp:default").map_err(unusable)?),
        }
    }
    Ok(roles)
}

/// What is to be measured of a model.
pub fn plan(
    arguments: &Arguments,
    what: &'static str,
    source: &Source,
    threads: usize,
    prompt: usize,
    roles: Vec<Role>,
) -> Result<Plan, Failure> {
    let room = source.longest.saturating_sub(if what == "decode" { 2 } else { 0 });
    if prompt == 0 || prompt > room {
        return Err(Failure::unusable(format!("a prompt of {prompt} tokens, where the model takes 1 to {room}")));
    }
    let tokens = arguments.tokens.min(source.longest - prompt).max(2);
    let turns = match what {
        // A turn is one text, of which the first tokens warm up.
        "decode" => arguments.turns.max(arguments.repeats.div_ceil(tokens.saturating_sub(2).max(1))),
        _ => arguments.turns,
    };
    Ok(Plan {
        what,
        source: source.clone(),
        dtype: arguments.dtype().to_owned(),
        device: arguments.device.clone(),
        threads,
        batch: arguments.batch(),
        ahead: arguments.ahead,
        cache: arguments.cache.clone(),
        exact: arguments.exact,
        prompt,
        tokens,
        repeats: arguments.repeats,
        turns,
        seconds: arguments.limit,
        explain: arguments.explain && what == "forward",
        roles,
        python: arguments.python(),
        patience: PATIENCE,
        deadline: None,
    })
}
