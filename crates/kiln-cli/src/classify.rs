//! `kiln classify MODEL IMAGE…`: what pictures show.

use crate::failure::{Failure, Outcome};
use crate::program::{self, Program};
use crate::terminal::{Console, Paint, Progress, format};
use kiln_llm::vision::{Class, Classifier, ClassifierOptions, Image};
use kiln_runtime::phase;
use serde_json::json;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kiln classify ~/models/deit-tiny cat.png
  kiln classify ~/models/vit-base-patch16-224 cat.png coffee.jpg --top 3 --json
  kiln classify ~/models/deit-tiny cat.png --mode max-autotune --dtype bf16";

/// Options of `kiln classify`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A folder with a ViT or DeiT, under transformers' or timm's names
    model: String,
    /// PNG or JPEG files
    #[arg(required = true)]
    images: Vec<String>,
    /// So many of the likeliest kinds
    #[arg(long, short, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Pictures that go through the model together, at the most
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Program")]
    batch: usize,
    #[command(flatten)]
    program: Program,
    /// End with one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Columns of the longest bar.
const BAR: f32 = 20.0;

/// Classifies pictures.
pub fn run(arguments: &Arguments) -> Outcome {
    let console = Console::new(arguments.json);
    let (device, dtype) = (arguments.program.device()?, arguments.program.dtype()?);
    let folder = &program::folder(&arguments.model)?;
    let images: Result<Vec<Image>, Failure> =
        arguments.images.iter().map(|path| Image::open(path).map_err(program::failure)).collect();
    let images = images?;
    let progress = Progress::start(format!("loading {}", arguments.model));
    let options = ClassifierOptions {
        device,
        dtype,
        compile: arguments.program.options(),
        batch: arguments.batch,
        preprocess: None,
    };
    let classifier = Classifier::open(folder, &options).map_err(program::failure)?;
    drop(progress);
    let progress = Progress::start(format!("classifying {}", format::plural(images.len(), "picture", "pictures")));
    let began = Instant::now();
    let (answers, phases) = phase::recorded(|| classifier.classify_all(&images, arguments.top));
    let (seconds, compile) = (began.elapsed().as_secs_f64(), phase::compiling(&phases).as_secs_f64());
    let answers = answers.map_err(program::failure)?;
    drop(progress);
    for ((path, image), classes) in arguments.images.iter().zip(&images).zip(&answers) {
        let size = console.paint.dim(format!("{} × {}", image.width(), image.height()));
        console.say(format!("{}  {size}", console.paint.bold(path)));
        classes.iter().for_each(|class| console.say(line(class, console.paint)));
    }
    let count = format::plural(images.len(), "picture", "pictures");
    eprintln!(
        "{}",
        Paint::stderr().dim([&count, &program::took(seconds, compile), arguments.program.name()].join(" · "))
    );
    console.result(|| {
        let class =
            |class: &Class| json!({"index": class.index, "label": class.label, "probability": class.probability});
        let items = arguments.images.iter().zip(&answers);
        let items: Vec<_> = items
            .map(|(path, classes)| json!({"image": path, "classes": classes.iter().map(class).collect::<Vec<_>>()}))
            .collect();
        json!({
            "model": program::name(folder), "device": device.to_string(), "dtype": classifier.model().dtype().name(),
            "mode": arguments.program.name(), "images": items, "seconds": seconds, "compile_s": compile, "programs": classifier.compiles(),
        })
    });
    Ok(())
}

/// A kind, how likely it is, and a bar.
fn line(class: &Class, paint: Paint) -> String {
    let full = (class.probability * BAR).round() as usize;
    let bar = format!("{}{}", paint.ember("━".repeat(full)), " ".repeat(BAR as usize - full.min(BAR as usize)));
    format!("  {:5.1} %  {bar}  {}", class.probability * 100.0, class.label)
}
