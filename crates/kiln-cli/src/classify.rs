//! `kiln classify MODEL IMAGE…`: what pictures show.

use crate::program::{self, Program};
use kiln_llm::models::convnet::presets::{VISION_PRESETS, VisionPreset};
use kiln_llm::vision::{Class, Classifier, ClassifierOptions, Image};
use kiln_runtime::phase;
use kiln_terminal::failure::{self, Failure, Outcome};
use kiln_terminal::numbers::at_least;
use kiln_terminal::{Console, Paint, Progress, format};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kiln classify ~/models/deit-tiny cat.png
  kiln classify ~/models/vit-base-patch16-224 cat.png coffee.jpg --top 3 --json
  kiln classify ~/models/deit-tiny cat.png --mode max-autotune --dtype bf16
  kiln classify ~/models/convnext-tiny cat.png
  kiln classify resnet-50 cat.png        random weights, for a look at speed

Networks: ViT, DeiT, ResNet (ResNeXt, SE, wide), MobileNetV2 and V3, EfficientNet (and V2), ConvNeXt (and V2).
With random weights: resnet-18, resnet-50, resnext-50, regnety-008, mobilenet-v2, mobilenet-v3-large, efficientnet-b0, convnext-tiny.";

/// Options of `kiln classify`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A folder with a network under transformers' or timm's names, or the name of one with random weights
    model: String,
    /// PNG or JPEG files
    #[arg(required = true)]
    images: Vec<String>,
    /// So many of the likeliest kinds
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = at_least::<1>)]
    top: usize,
    /// Pictures that go through the model together, at the most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least::<1>, help_heading = "Program")]
    batch: usize,
    #[command(flatten)]
    program: Program,
    /// End with one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Columns of the longest bar.
const BAR: usize = 20;

/// The sides of a picture, or why it cannot be read.
type Opened = Result<(usize, usize), Failure>;

/// Classifies pictures.
pub fn run(arguments: &Arguments) -> Outcome {
    let console = Console::new(arguments.json);
    let (device, dtype) = (arguments.program.device()?, arguments.program.dtype()?);
    let preset = VisionPreset::named(&arguments.model).filter(|_| !Path::new(&arguments.model).exists());
    let folder = &match preset {
        Some(preset) => PathBuf::from(preset.name),
        None => program::folder(&arguments.model).map_err(|failure| failure.advise(known()))?,
    };
    let mut images = Vec::with_capacity(arguments.images.len());
    let open = |path: &String| {
        let image = Image::open(path).map_err(program::failure)?;
        let size = (image.width(), image.height());
        images.push(image);
        Ok(size)
    };
    let opened: Vec<Opened> = arguments.images.iter().map(open).collect();
    if images.is_empty() {
        return none(arguments, &console, opened);
    }
    let progress = Progress::start(format!("loading {}", arguments.model));
    let options = ClassifierOptions {
        device,
        dtype,
        compile: arguments.program.options(),
        batch: arguments.batch,
        preprocess: None,
    };
    let classifier = match preset {
        Some(preset) => Classifier::preset(preset, &options),
        None => Classifier::open(folder, &options),
    };
    let classifier = classifier.map_err(program::failure)?;
    drop(progress);
    let progress = Progress::start(format!("classifying {}", format::plural(images.len(), "picture", "pictures")));
    let began = Instant::now();
    let (answers, phases) = phase::recorded(|| classifier.classify_all(&images, arguments.top));
    let (seconds, compile) = (began.elapsed().as_secs_f64(), phase::compiling(&phases).as_secs_f64());
    let mut answers = answers.map_err(program::failure)?.into_iter();
    drop(progress);
    let bar = console.columns().map_or(BAR, |columns| (columns / 4).clamp(4, BAR));
    let mut items = Vec::with_capacity(opened.len());
    for (path, image) in arguments.images.iter().zip(&opened) {
        match image {
            Ok((width, height)) => {
                // As many answers come back as pictures went in.
                let classes = answers.next().unwrap_or_default();
                let size = console.paint.dim(format!("{width} × {height}"));
                console.hang(format!("{}  {size}", console.paint.bold(kiln::shown(path))), 2);
                classes.iter().for_each(|class| console.say(line(class, bar, console.paint)));
                let class = |class: &Class| json!({"index": class.index, "label": class.label, "probability": class.probability});
                items.push(json!({"image": path, "classes": classes.iter().map(class).collect::<Vec<_>>()}));
            }
            Err(error) => items.push(failed(path, error)),
        }
    }
    if preset.is_some() {
        kiln_terminal::note("the weights are random: the answers mean nothing".to_owned());
    }
    let count = format::plural(images.len(), "picture", "pictures");
    kiln_terminal::note([&count, &program::took(seconds, compile), arguments.program.name()].join(" · "));
    console.result(|| {
        json!({
            "model": program::name(folder), "device": device.to_string(), "dtype": classifier.model().dtype().name(),
            "mode": arguments.program.name(), "images": items, "seconds": seconds, "compile_s": compile, "programs": classifier.compiles(),
        })
    });
    match opened.len() - images.len() {
        0 => Ok(()),
        bad => Err(Failure::new(format!("{bad} of {} pictures could not be read", opened.len())).into()),
    }
}

/// The networks that there are without a folder.
fn known() -> String {
    let names: Vec<&str> = VISION_PRESETS.iter().map(|preset| preset.name).collect();
    format!("or one with random weights: {}", names.join(", "))
}

/// Says why a picture has no answer, where its answer would be.
fn failed(path: &str, error: &Failure) -> Value {
    eprint!("{}", failure::render(error, Paint::stderr()));
    json!({"image": path, "error": error.to_string()})
}

/// No picture can be read: no model is needed.
fn none(arguments: &Arguments, console: &Console, opened: Vec<Opened>) -> Outcome {
    let mut errors: Vec<Failure> = opened.into_iter().filter_map(Result::err).collect();
    if let [only] = &errors[..] {
        console.result(|| json!({"images": [{"image": arguments.images[0], "error": only.to_string()}]}));
        return Err(errors.remove(0).into());
    }
    let items: Vec<Value> = arguments.images.iter().zip(&errors).map(|(path, error)| failed(path, error)).collect();
    console.result(|| json!({ "images": items }));
    let message = format!("none of {} pictures could be read", errors.len());
    let is_unusable = errors.iter().all(|error| program::exit_code(error) == failure::UNUSABLE);
    Err(if is_unusable { Failure::unusable(message) } else { Failure::new(message) }.into())
}

/// A kind, how likely it is, and a bar.
fn line(class: &Class, columns: usize, paint: Paint) -> String {
    let full = ((class.probability * columns as f32).round() as usize).min(columns);
    let bar = format!("{}{}", paint.ember("━".repeat(full)), " ".repeat(columns - full));
    format!("  {:5.1} %  {bar}  {}", class.probability * 100.0, kiln::shown(&class.label))
}
