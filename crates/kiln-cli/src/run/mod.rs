//! `kiln run MODEL`: a model of a folder, a GGUF file or a preset continues a text, or talks.

mod chat;
mod model;

#[cfg(test)]
pub use model::failure;

use crate::interrupt::{self, Interrupted};
use crate::mode::{Mode, precision};
use crate::program::{PRECISION, WEIGHTS};
use crate::tell::{Told, tell};
use kiln::Precision;
use kiln_llm::{
    Cancel, Generator, GeneratorOptions, Opened, Origin, Request, Sampling, Stop, TextStream, WeightFormat,
};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::numbers::{at_least, from_zero};
use kiln_terminal::{Console, Progress, format, note};
use serde_json::{Value, json};
use std::io::{IsTerminal, stdin, stdout};
use std::ops::ControlFlow;

const EXAMPLES: &str = "\
Examples:
  kiln run stories260K --prompt 'Once upon a time'      # the model inside this program
  kiln run ~/models/SmolLM2 --chat --system 'Be brief.'
  kiln run SmolLM2-135M-Instruct.Q4_1.gguf --chat --prompt 'What is the capital of France?'
  echo 'The sky is' | kiln run ~/models/gpt2 --temperature 0.8 --seed 7 --max-tokens 40
  kiln run llama-3.2-1b --layers 1 --prompt-ids 1,2,3 --mode max-autotune --freeze --verbose
  kiln run ~/models/SmolLM2 --weights int8 --prompt 'The sky is'
  kiln run stories260K --prompt 'Lily saw' --mode eager --json
  kiln run --list";

/// Options of `kiln run`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A folder in Hugging Face's layout or its id in the local cache, a GGUF file, stories260K, or a preset (see --list)
    #[arg(required_unless_present = "list")]
    model: Option<String>,
    /// Show the models that need no file
    #[arg(long)]
    list: bool,
    /// The text to continue, or with --chat the question; without it, standard input
    #[arg(long, short, value_name = "TEXT")]
    prompt: Option<String>,
    /// The tokens to continue
    #[arg(long, value_name = "ID,…", value_delimiter = ',', conflicts_with_all = ["prompt", "chat"])]
    prompt_ids: Vec<u32>,
    /// Talk, through the model's chat template; each line of standard input is a turn
    #[arg(long, short)]
    chat: bool,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Read the whole conversation again at each turn, not only what is new
    #[arg(long, requires = "chat")]
    reread: bool,
    /// End with one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Say what was loaded
    #[arg(long, short)]
    verbose: bool,

    /// New tokens at the most [default: the model's own, or 256]
    #[arg(long, short = 'n', value_name = "N", value_parser = at_least::<1>, help_heading = "Text")]
    max_tokens: Option<usize>,
    /// End at this text; may be given several times
    #[arg(long, value_name = "TEXT", help_heading = "Text")]
    stop: Vec<String>,
    /// Go on past the tokens with which the model ends a text
    #[arg(long, help_heading = "Text")]
    ignore_eos: bool,
    /// Show the text when it is whole, not as it comes
    #[arg(long, help_heading = "Text")]
    no_stream: bool,

    #[command(flatten, next_help_heading = "Sampling")]
    sampling: SamplingArguments,

    /// How it is run: eager, default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs
    #[arg(long, short, value_enum, default_value_t = Mode::Default, hide_possible_values = true, help_heading = "Program")]
    mode: Mode,
    /// Pack weights for the products that use them
    #[arg(long, help_heading = "Program")]
    freeze: bool,
    /// Where it runs: cpu
    #[arg(long, default_value = "cpu", value_name = "D", help_heading = "Program")]
    device: String,
    /// Of weights and activations: f32, bf16 or f16 [default: what suits the file]
    #[arg(long, value_name = "T", help_heading = "Program")]
    dtype: Option<String>,
    /// The weights of linear layers: as-stored, int8, q8_0 or q4_k_m; quantised as they are loaded
    #[arg(long, default_value_t, value_name = "W", help_heading = "Program", long_help = WEIGHTS)]
    weights: WeightFormat,
    /// Of f32 products: highest, high or medium; less may be faster
    #[arg(long, default_value = "highest", value_name = "P", value_parser = precision, help_heading = "Program",
        long_help = PRECISION)]
    precision: Precision,
    /// Tokens of prompt and text together, up to what the model was made for [default: as many as needed; 4096 with --chat]
    #[arg(long, value_name = "N", value_parser = at_least::<1>, help_heading = "Program")]
    context: Option<usize>,
    /// Only so many of the first layers; the embedded stories260K is whole
    #[arg(long, value_name = "N", value_parser = at_least::<1>, help_heading = "Program")]
    layers: Option<usize>,
}

#[derive(clap::Args)]
struct SamplingArguments {
    /// Logits are divided by it; 0 takes the likeliest token [default: the model's own, or 0]
    #[arg(long, short, value_name = "T", value_parser = from_zero)]
    temperature: Option<f64>,
    /// Only so many of the likeliest tokens; 0 means all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Only the likeliest tokens that together are as likely as this
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Only tokens at least as likely as this share of the likeliest one
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// How much less likely tokens are that were there before
    #[arg(long, value_name = "R")]
    repetition_penalty: Option<f64>,
    /// The same seed draws the same tokens
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
}

/// The longest prompt that is read from standard input: more than any context holds.
const MOST_PROMPT: usize = 64 << 20;

/// A model ready to speak.
struct Speaker<'a> {
    arguments: &'a Arguments,
    console: Console,
    opened: Opened,
    request: Request,
    /// Made for the first prompt, whose length says how large the context is.
    generator: Option<Generator>,
}

/// Continues a text, or talks.
pub fn run(arguments: &Arguments) -> Outcome {
    let console = Console::new(arguments.json);
    let Some(name) = arguments.model.as_ref().filter(|_| !arguments.list) else {
        return model::list(&console);
    };
    let opened = model::open(name, arguments)?;
    if arguments.verbose {
        model::introduce(&opened);
    }
    model::check_context(arguments, &opened)?;
    let request = request(arguments, &opened);
    let mut speaker = Speaker { arguments, console, opened, request, generator: None };
    if arguments.chat {
        return chat::run(&mut speaker);
    }
    let (prompt, ids) = speaker.prompt()?;
    if let Some(prompt) = prompt.filter(|_| !arguments.json && stdout().is_terminal()) {
        speaker.console.stream(speaker.console.paint.dim(kiln::printable(&prompt)));
    }
    let (answer, interrupted) = interrupt::during(|cancel| speaker.answer(&ids, cancel));
    let (told, text) = answer?;
    speaker.console.result(|| speaker.figures(&ids, &told, &text));
    if interrupted { Err(Interrupted.into()) } else { Ok(()) }
}

/// Returns the request: the model's recommended settings, unless the command line has others.
fn request(arguments: &Arguments, opened: &Opened) -> Request {
    let (wish, own) = (&arguments.sampling, &opened.generation);
    let drawn = own.do_sample;
    let sampling = Sampling {
        temperature: wish.temperature.unwrap_or(if drawn { own.temperature.unwrap_or(1.0) } else { 0.0 }),
        top_k: wish.top_k.or(own.top_k.filter(|_| drawn)).unwrap_or(0),
        top_p: wish.top_p.or(own.top_p.filter(|_| drawn)).unwrap_or(1.0),
        min_p: wish.min_p.or(own.min_p.filter(|_| drawn)).unwrap_or(0.0),
        repetition_penalty: wish.repetition_penalty.or(own.repetition_penalty).unwrap_or(1.0),
        seed: wish.seed,
    };
    Request {
        max_tokens: arguments.max_tokens.or(own.max_new_tokens).unwrap_or(256),
        sampling,
        stop_tokens: if arguments.ignore_eos { Vec::new() } else { opened.stop_tokens.clone() },
        ..Request::default()
    }
}

impl Speaker<'_> {
    /// The text to continue, if it is one, and its tokens.
    fn prompt(&self) -> Result<(Option<String>, Vec<u32>), Box<dyn std::error::Error>> {
        if !self.arguments.prompt_ids.is_empty() {
            let (ids, vocabulary) = (&self.arguments.prompt_ids, self.opened.model.sizes().vocab);
            // Checked before the tokenizer decodes them.
            if let Some(&token) = ids.iter().find(|&&token| token as usize >= vocabulary) {
                return Err(model::failure(kiln_llm::Error::UnknownToken { token, vocabulary }).into());
            }
            return Ok((None, ids.clone()));
        }
        let text = match &self.arguments.prompt {
            Some(text) => text.clone(),
            None if stdin().is_terminal() => {
                let name = self.arguments.model.as_deref().unwrap_or("MODEL");
                let how = if self.opened.chat.is_some() { "--chat" } else { "--prompt 'Once upon a time'" };
                return Err(Failure::unusable("no prompt").advise(format!("kiln run {name} {how}")).into());
            }
            None => {
                let text = kiln::files::read_stream(stdin(), MOST_PROMPT)
                    .map_err(|error| Failure::unusable("standard input").caused_by(error))?;
                text.trim_end_matches('\n').to_owned()
            }
        };
        let tokenizer = self.opened.tokenizer.as_ref().ok_or_else(|| match self.opened.origin {
            Origin::Preset => {
                let message = format!("'{}' is a shape with random weights, without a tokenizer", self.opened.name);
                Failure::unusable(message).advise("--prompt-ids 1,2,3")
            }
            _ => model::failure(kiln_llm::Error::NoTokenizer { name: self.opened.name.clone() }),
        })?;
        let ids = tokenizer.encode(&text, true)?;
        Ok((Some(text), ids))
    }

    /// What follows on tokens, shown as it comes; `cancel` ends it.
    fn answer(&mut self, ids: &[u32], cancel: &Cancel) -> Result<(Told, String), Box<dyn std::error::Error>> {
        let arguments = self.arguments;
        let longest = self.opened.model.sizes().context;
        let context = arguments.context.unwrap_or_else(|| match arguments.chat {
            true => 4096,
            // Few sizes, so that few programs are made.
            false => (ids.len() + self.request.max_tokens).next_power_of_two().max(256),
        });
        let generator = match &mut self.generator {
            Some(generator) => generator,
            none => {
                let compile = arguments.mode.options(arguments.freeze, arguments.precision);
                let options = GeneratorOptions {
                    context: context.min(longest),
                    compile,
                    reuse: arguments.chat && !arguments.reread,
                    ..GeneratorOptions::default()
                };
                none.insert(Generator::new(self.opened.model.clone(), options).map_err(model::failure)?)
            }
        };
        let mut stream = match &self.opened.tokenizer {
            None => None,
            // An answer is a text of its own, not the rest of one.
            Some(tokenizer) if arguments.chat => Some(TextStream::new(tokenizer.clone(), &arguments.stop)),
            Some(tokenizer) => Some(TextStream::new(tokenizer.clone(), &arguments.stop).after(ids)?),
        };
        let mut text = String::new();
        let (console, shown) = (&self.console, !arguments.no_stream);
        let mut show = |part: &str| {
            text.push_str(part);
            if shown {
                console.foreign(part);
            }
        };
        let progress = Progress::start(if arguments.mode == Mode::Eager { "first token" } else { "compiling" });
        let request = Request { cancel: Some(cancel.clone()), ..self.request.clone() };
        let told = tell(generator, ids, &request, Some(progress), |id| {
            match &mut stream {
                Some(stream) => {
                    show(&stream.push(id).unwrap_or_default());
                    if stream.stopped().is_some() {
                        return ControlFlow::Break(());
                    }
                }
                None => show(&format!("{id} ")),
            }
            ControlFlow::Continue(())
        });
        let mut told = told.map_err(|error| model::answer_failure(error, longest))?;
        if let Some(stream) = stream {
            if let Some(which) = stream.stopped() {
                told.stop = Stop::Text(which);
            }
            show(&stream.finish()?);
        }
        if !shown {
            console.foreign(&text);
        }
        console.say("");
        note(self.statistics(&told));
        Ok((told, text))
    }

    /// The line behind a text.
    fn statistics(&self, told: &Told) -> String {
        let mut facts = vec![format::plural(told.ids.len(), "token", "tokens")];
        // An answer that is not whole looks like one that is.
        match told.stop {
            Stop::Length => facts.push("cut there (--max-tokens)".to_owned()),
            Stop::Context => {
                let context = self.generator.as_ref().map_or(0, Generator::context);
                facts.push(format!("context of {} is full (--context)", format::count(context as u64)));
            }
            Stop::Asked => facts.push("interrupted".to_owned()),
            Stop::Token(_) | Stop::Text(_) => {}
        }
        if let Some(rate) = told.tokens_per_second() {
            facts.push(format!("{} tokens/s", format::rate(rate)));
        }
        if told.reused > 0 {
            facts.push(format!("{} of the prompt kept", format::plural(told.reused, "token", "tokens")));
        }
        if !told.ids.is_empty() {
            facts.push(format!("first token {}", format::seconds(told.first_token.as_secs_f64())));
        }
        if !told.compile.is_zero() {
            facts.push(format!("compiled in {}", format::seconds(told.compile.as_secs_f64())));
        }
        if let Some(kernels) = self.generator.as_ref().and_then(Generator::kernels_per_token) {
            facts.push(format!("{} a token", format::plural(kernels, "kernel", "kernels")));
        }
        facts.push(self.arguments.mode.name().to_owned());
        if self.arguments.freeze {
            facts.push("frozen".to_owned());
        }
        if self.arguments.precision != Precision::Highest {
            facts.push(format!("{} precision", self.arguments.precision.name()));
        }
        facts.join(" · ")
    }

    /// The object of `--json`.
    fn figures(&self, prompt: &[u32], told: &Told, text: &str) -> Value {
        json!({
            "model": self.opened.name, "device": self.opened.model.device().to_string(), "dtype": self.opened.dtype.name(),
            "weights": self.arguments.weights.name(), "mode": self.arguments.mode.name(), "freeze": self.arguments.freeze, "precision": self.arguments.precision.name(),
            "prompt_ids": prompt, "prompt_tokens_read": prompt.len() - told.reused,
            "prompt_tokens_reused": told.reused, "token_ids": told.ids, "text": text, "stop": stop(told.stop),
            "tokens_per_s": told.tokens_per_second(), "first_token_ms": (!told.ids.is_empty()).then_some(told.first_token.as_secs_f64() * 1e3),
            "compile_s": told.compile.as_secs_f64(),
            "kernels_per_token": self.generator.as_ref().and_then(Generator::kernels_per_token),
            "context": self.generator.as_ref().map(Generator::context),
        })
    }
}

/// Why a text ended, in a word.
fn stop(stop: Stop) -> &'static str {
    match stop {
        Stop::Length => "length",
        Stop::Context => "context",
        Stop::Token(_) => "token",
        Stop::Text(_) => "text",
        Stop::Asked => "interrupted",
    }
}
