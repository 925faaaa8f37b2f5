//! `kiln embed MODEL TEXT…`: the vectors of texts, and how near they are to each other.

use crate::program::{self, Program};
use kiln_llm::{Embedder, EmbedderOptions, Pool, Pooling, similarity};
use kiln_runtime::phase;
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::numbers::at_least;
use kiln_terminal::{Align, Console, Progress, Table, format};
use serde_json::json;
use std::io::{IsTerminal, stdin};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kiln embed ~/models/all-MiniLM-L6-v2 'A cat sits on the mat.' 'A kitten rests.' --similarity
  kiln embed ~/models/all-MiniLM-L6-v2 'A cat sits on the mat.' --json
  kiln embed ~/models/all-MiniLM-L6-v2 --json < sentences.txt        # a text a line
  kiln embed ~/models/bge-small-en --pooling cls --mode max-autotune 'What is a kiln?'";

/// Options of `kiln embed`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A folder in Hugging Face's layout with a BERT encoder
    model: String,
    /// The texts; without any, the lines of standard input
    texts: Vec<String>,
    /// Show how near each text is to each other one: the cosine, from −1 to 1
    #[arg(long, short)]
    similarity: bool,
    /// How tokens become one vector: mean, cls, max or mean_sqrt_len_tokens [default: as the folder says]
    #[arg(long, value_name = "HOW", help_heading = "Vectors")]
    pooling: Option<String>,
    /// Leave the length of vectors as it is
    #[arg(long, help_heading = "Vectors")]
    no_normalize: bool,
    /// Cut texts to so many tokens [default: as the folder says]
    #[arg(long, value_name = "N", value_parser = at_least::<1>, help_heading = "Vectors")]
    max_length: Option<usize>,
    /// Texts that go through the model together, at the most
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least::<1>, help_heading = "Program")]
    batch: usize,
    #[command(flatten)]
    program: Program,
    /// End with one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Embeds texts.
pub fn run(arguments: &Arguments) -> Outcome {
    let console = Console::new(arguments.json);
    let (device, dtype) = (arguments.program.device()?, arguments.program.dtype()?);
    let folder = &program::folder(&arguments.model)?;
    let mut options = EmbedderOptions {
        device,
        dtype,
        compile: arguments.program.options(),
        batch: arguments.batch,
        longest: arguments.max_length,
        pooling: None,
    };
    if arguments.pooling.is_some() || arguments.no_normalize {
        options.pooling = Some(pooling(arguments, Pooling::read(folder).map_err(program::failure)?)?);
    }
    let texts = texts(arguments)?;
    let progress = Progress::start(format!("loading {}", arguments.model));
    let embedder = Embedder::open(folder, &options).map_err(program::failure)?;
    drop(progress);
    let progress = Progress::start(format!("embedding {}", format::plural(texts.len(), "text", "texts")));
    let began = Instant::now();
    let (vectors, phases) = phase::recorded(|| embedder.embed(&texts));
    let (seconds, compile) = (began.elapsed().as_secs_f64(), phase::compiling(&phases).as_secs_f64());
    let vectors = vectors.map_err(program::failure)?;
    drop(progress);
    show(arguments, &console, &texts, &vectors);
    let counts: Vec<usize> = texts
        .iter()
        .map(|text| embedder.tokens(text).map(|ids| ids.len()))
        .collect::<Result<_, _>>()
        .map_err(program::failure)?;
    let facts = [
        format::plural(texts.len(), "text", "texts"),
        format!("{} numbers each", embedder.width()),
        program::took(seconds, compile),
        arguments.program.name().to_owned(),
    ];
    kiln_terminal::note(facts.join(" · "));
    console.result(|| {
        let items = texts.iter().zip(&vectors).zip(&counts);
        let items: Vec<_> =
            items.map(|((text, vector), count)| json!({"text": text, "tokens": count, "embedding": vector})).collect();
        let near: Vec<Vec<f32>> = vectors.iter().map(|a| vectors.iter().map(|b| similarity(a, b)).collect()).collect();
        json!({
            "model": program::name(folder), "device": device.to_string(), "dtype": embedder.model().dtype().name(),
            "mode": arguments.program.name(), "width": embedder.width(), "texts": items,
            "similarity": arguments.similarity.then_some(near), "seconds": seconds, "compile_s": compile, "programs": embedder.compiles(),
        })
    });
    Ok(())
}

/// The folder's way to pool, with what the command line wants otherwise.
fn pooling(arguments: &Arguments, said: Pooling) -> Result<Pooling, Failure> {
    let pools = match &arguments.pooling {
        None => said.pools,
        Some(name) => vec![Pool::named(name).ok_or_else(|| {
            let advice = "--pooling mean, cls, max or mean_sqrt_len_tokens";
            Failure::unusable(format!("there is no way to pool '{name}'")).advise(advice)
        })?],
    };
    Ok(Pooling { pools, normalize: said.normalize && !arguments.no_normalize })
}

/// The most bytes of texts that are read from standard input.
const MOST_TEXT: usize = 64 << 20;

/// The texts of the command line, or the lines of standard input.
fn texts(arguments: &Arguments) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let texts = match arguments.texts.is_empty() {
        false => arguments.texts.clone(),
        true if stdin().is_terminal() => Vec::new(),
        true => {
            let text = kiln::files::read_stream(stdin(), MOST_TEXT)
                .map_err(|error| Failure::unusable("standard input").caused_by(error))?;
            text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
        }
    };
    match texts.is_empty() {
        true => Err(Failure::unusable("no texts").advise(format!("kiln embed {} 'A text'", arguments.model)).into()),
        false => Ok(texts),
    }
}

/// A table of cosines, or the first numbers of each vector.
fn show(arguments: &Arguments, console: &Console, texts: &[String], vectors: &[Vec<f32>]) {
    let short = |text: &str| match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", kiln::shown(&text[..end])),
        None => kiln::shown(text).to_string(),
    };
    if !arguments.similarity {
        for (text, vector) in texts.iter().zip(vectors) {
            let few: Vec<String> = vector.iter().take(6).map(|x| format!("{x:+.4}")).collect();
            let more = if vector.len() > few.len() { " …" } else { "" };
            console.hang(format!("{}  {}", few.join(" ") + more, console.paint.dim(short(text))), 2);
        }
        return;
    }
    let titles: Vec<String> = (1..=texts.len()).map(|number| number.to_string()).collect();
    let mut columns = vec![("", Align::Right), ("text", Align::Left)];
    columns.extend(titles.iter().map(|title| (title.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for (number, (text, vector)) in texts.iter().zip(vectors).enumerate() {
        let mut cells = vec![titles[number].clone(), short(text)];
        cells.extend(vectors.iter().enumerate().map(|(other, b)| match similarity(vector, b) {
            _ if other == number => console.paint.dim("1.000"),
            near if near >= 0.5 => console.paint.green(format!("{near:.3}")),
            near => format!("{near:.3}"),
        }));
        table.row(cells);
    }
    console.table(&table);
}
