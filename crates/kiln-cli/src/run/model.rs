//! Opening what `MODEL` names, with a bar while weights come in and advice where it fails.

use super::Arguments;
use crate::program::{self, dtype};
use kiln::DType;
use kiln_llm::{Error, OpenOptions, Opened, PRESETS};
use kiln_terminal::device::device;
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::{Align, Console, Paint, Progress, Table, format};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// The model that is part of the program.
const EMBEDDED: &str = "stories260K";

/// Opens the model of this name.
pub fn open(name: &str, arguments: &Arguments) -> Result<Opened, Failure> {
    let device = device(&arguments.device)?;
    let dtype = arguments.dtype.as_deref().map(dtype).transpose()?;
    let progress = Arc::new(Progress::start(format!(
        "loading {}",
        Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy())
    )));
    let shown = progress.clone();
    let told = move |at: kiln_llm::Progress| {
        shown.set(at.tensors as u64, at.of.unwrap_or(0) as u64);
        shown.note(format::bytes(at.bytes as u64));
    };
    if name.eq_ignore_ascii_case(EMBEDDED) && !Path::new(name).exists() {
        if dtype.is_some_and(|dtype| dtype != DType::F32) || arguments.layers.is_some() {
            return Err(Failure::unusable(format!("{EMBEDDED} in this program is f32 and whole")));
        }
        return kiln_llm::open::embedded_on(device, arguments.weights).map_err(failure);
    }
    let options = OpenOptions {
        device,
        dtype,
        layers: arguments.layers,
        weights: arguments.weights,
        seed: arguments.sampling.seed,
        progress: Some(Arc::new(told)),
    };
    kiln_llm::open(name, &options).map_err(failure)
}

/// An error of a model with the exit code and the advice that suit it.
pub fn failure(error: Error) -> Failure {
    match &error {
        Error::UnknownModel { name, nearest, .. } => {
            let advice = nearest.map_or("kiln run --list".to_owned(), |nearest| format!("kiln run {nearest}"));
            Failure::unusable(format!("'{name}' is no folder, no GGUF file and no preset")).advise(advice)
        }
        Error::NoTokenizer { name } => {
            let message = format!("'{name}' has no tokenizer.json and no tokenizer.model, and so reads no text");
            Failure::unusable(message).advise("the missing file beside config.json, or --prompt-ids 1,2,3")
        }
        Error::NoChatTemplate { name } => {
            Failure::unusable(format!("'{name}' has no chat template: it continues texts, and does not talk"))
                .advise("--prompt without --chat")
        }
        Error::PromptTooLong { .. } => Failure::unusable(error.to_string()).advise("a shorter prompt"),
        Error::EmptyPrompt | Error::BadSampling { .. } | Error::UnknownToken { .. } => {
            Failure::unusable(error.to_string())
        }
        _ => program::failure(error),
    }
}

/// [`failure`] of an answer of a model that was made for texts of up to `longest` tokens.
pub fn answer_failure(error: Error, longest: usize) -> Failure {
    match &error {
        Error::PromptTooLong { context, .. } if *context < longest => {
            let advice = format!("a shorter prompt, or more --context (up to {longest})");
            Failure::unusable(error.to_string()).advise(advice)
        }
        _ => failure(error),
    }
}

/// Refuses a context that the model has no positions for, rather than to take a shorter one.
pub fn check_context(arguments: &Arguments, opened: &Opened) -> Result<(), Failure> {
    let longest = opened.model.sizes().context;
    match arguments.context {
        Some(0) => Err(Failure::unusable("--context has to be at least 1")),
        Some(context) if context > longest => {
            let message =
                format!("--context {context}: '{}' was made for texts of up to {longest} tokens", opened.name);
            Err(Failure::unusable(message).advise(format!("--context {longest}")))
        }
        _ => Ok(()),
    }
}

/// Says what was opened.
pub fn introduce(opened: &Opened) {
    let (sizes, paint) = (opened.model.sizes(), Paint::stderr());
    let facts = [
        format!("{} of weights in {}", format::bytes(opened.model.weight_bytes() as u64), opened.dtype.name()),
        format::plural(sizes.layers, "layer", "layers"),
        format!("vocabulary {}", format::count(sizes.vocab as u64)),
        format!("context up to {}", format::count(sizes.context as u64)),
        if opened.chat.is_some() { "a chat template".into() } else { "no chat template".to_owned() },
    ];
    eprintln!("{}  {}", paint.ember(kiln::shown(&opened.name)), paint.dim(facts.join(" · ")));
}

/// Shows the models that need no file.
pub fn list(console: &Console) -> Outcome {
    let mut table = Table::new(&[
        ("model", Align::Left),
        ("parameters", Align::Right),
        ("layers", Align::Right),
        ("weights", Align::Left),
        ("what it is", Align::Left),
    ]);
    let mut rows = Vec::new();
    for preset in PRESETS {
        let config: Value = serde_json::from_str(preset.config)?;
        let layers = ["num_hidden_layers", "n_layer"].iter().find_map(|name| config[name].as_u64());
        let embedded = preset.name.eq_ignore_ascii_case(EMBEDDED);
        let (name, weights) = if embedded { (EMBEDDED, "trained") } else { (preset.name, "random") };
        table.row([
            console.paint.bold(name),
            millions(preset.parameters),
            layers.map_or("–".into(), format::count),
            if embedded { console.paint.green(weights) } else { console.paint.dim(weights) },
            preset.description.to_owned(),
        ]);
        rows.push(json!({
            "model": name, "kind": config["model_type"], "parameters": preset.parameters, "layers": layers,
            "weights": weights, "description": preset.description,
        }));
    }
    console.table(&table);
    console.result(|| json!({ "models": rows }));
    Ok(())
}

/// Parameters as people name models by them.
fn millions(parameters: u64) -> String {
    match parameters {
        0..1_000_000 => format!("{:.0} K", parameters as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0} M", parameters as f64 / 1e6),
        _ => format!("{:.1} B", parameters as f64 / 1e9),
    }
}
