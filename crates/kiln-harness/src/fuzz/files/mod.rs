//! `kiln fuzz files`: files of models with bytes changed, numbers blown up, and parts doubled and exchanged. Whatever a file says,
//! reading and using it ends soon, without a panic and without much memory.

mod examples;

use kiln::{DType, Device, safetensors};
use kiln_ir::examples::Random;
use kiln_llm::config::{Fields, GenerationConfig};
use kiln_llm::{ChatTemplate, Checkpoint, Gguf, Message, Tokenizer, Weights, models};
use kiln_terminal::Console;
use kiln_terminal::failure::Outcome;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Which files are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Chat templates, rendered
    Templates,
    /// tokenizer.json, with a text there and back
    Tokenizers,
    /// GGUF files: header, settings, tokenizer and template
    Gguf,
    /// Headers of safetensors
    Safetensors,
    /// config.json and generation_config.json
    Config,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Templates, Kind::Tokenizers, Kind::Gguf, Kind::Safetensors, Kind::Config];

    fn examples(self) -> Vec<Vec<u8>> {
        match self {
            Kind::Templates => examples::templates(),
            Kind::Tokenizers => examples::tokenizers(),
            Kind::Gguf => examples::gguf(),
            Kind::Safetensors => examples::safetensors(),
            Kind::Config => examples::configs(),
        }
    }

    /// Reads a file as its readers do, and uses it; whether it is still one.
    fn use_file(self, bytes: &[u8]) -> bool {
        let used = match self {
            Kind::Templates => use_template(bytes),
            Kind::Tokenizers => Tokenizer::parse(bytes).and_then(|tokenizer| use_tokenizer(&tokenizer)),
            Kind::Gguf => use_gguf(bytes),
            Kind::Safetensors => use_safetensors(bytes),
            Kind::Config => use_config(bytes),
        };
        if let Err(error) = &used {
            let words = error.to_string();
            assert!(words.len() < 16 << 10, "an error of {} bytes", words.len());
            assert!(!words.chars().any(|c| c.is_control() && c != '\n'), "an error with control characters: {words:?}");
        }
        used.is_ok()
    }
}

fn use_template(bytes: &[u8]) -> kiln_llm::Result<()> {
    let tokens = [("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())];
    let template = ChatTemplate::new(&String::from_utf8_lossy(bytes), &tokens)?;
    let talk = [Message::new("system", "Be brief."), Message::new("user", "Hi\nthere"), Message::new("assistant", "é")];
    template.render(&talk, true)?;
    Ok(())
}

fn use_tokenizer(tokenizer: &Tokenizer) -> kiln_llm::Result<()> {
    for text in ["Once upon a time, ünïcode <s> 42\n\n  x", &"ab a".repeat(300)] {
        let ids = tokenizer.encode(text, true)?;
        tokenizer.decode(&ids, false)?;
        let mut stream = tokenizer.stream(true);
        for &id in ids.iter().take(500) {
            stream.push(id)?;
        }
    }
    Ok(())
}

fn use_gguf(bytes: &[u8]) -> kiln_llm::Result<()> {
    let file = Gguf::from_bytes(bytes.to_vec())?;
    for tensor in file.tensors().values() {
        file.elements(tensor);
    }
    if let Some(template) = ChatTemplate::from_gguf(&file)? {
        template.render(&[Message::new("user", "Hi")], true)?;
    }
    use_tokenizer(&Tokenizer::from_gguf(&file)?)?;
    let config = file.config()?;
    let checkpoint = file.checkpoint(Device::Cpu)?;
    file.model(&config, &Weights::new(&checkpoint, DType::F32))?;
    Ok(())
}

fn use_safetensors(bytes: &[u8]) -> kiln_llm::Result<()> {
    for tensor in safetensors::from_bytes(bytes, Device::Cpu)?.tensors.values() {
        tensor.to_dtype(DType::F32)?.to_vec::<f32>()?;
    }
    Ok(())
}

fn use_config(bytes: &[u8]) -> kiln_llm::Result<()> {
    let fields = Fields::parse(bytes, "config.json")?;
    GenerationConfig::from_fields(&fields)?;
    // A checkpoint without tensors: what is left is what settings alone can ask for.
    models::load(&fields, &Weights::new(&Checkpoint::default(), DType::F32), None)?;
    Ok(())
}

/// No file takes longer, on a slow machine as well.
const LONGEST: Duration = Duration::from_secs(60);
/// No file takes more memory than this above what the process has.
const MOST_MEMORY: u64 = 1 << 30;

/// Mutates files for so many seconds, of one kind or of all.
pub fn run(console: &Console, kind: Option<Kind>, seconds: u64, seed: u64) -> Outcome {
    let kinds = kind.map_or(Kind::ALL.to_vec(), |kind| vec![kind]);
    let examples: Vec<Vec<Vec<u8>>> = kinds.iter().map(|kind| kind.examples()).collect();
    let mut random = Random(seed);
    let guard = Guard::start();
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let begin = Instant::now();
    let (mut rounds, mut used, mut slowest) = (0u64, 0u64, Duration::ZERO);
    let mut failure = None;
    while begin.elapsed() < Duration::from_secs(seconds) && failure.is_none() {
        let which = random.below(kinds.len());
        let all = &examples[which];
        let mut file = all[random.below(all.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut file, &all[random.below(all.len())], &mut random);
        }
        rounds += 1;
        guard.watch(kinds[which], &file);
        let (began, before) = (Instant::now(), peak_memory());
        let outcome = catch_unwind(AssertUnwindSafe(|| kinds[which].use_file(&file)));
        let (took, grown) = (began.elapsed(), peak_memory().saturating_sub(before));
        guard.rest();
        slowest = slowest.max(took);
        let problem = match outcome {
            Err(_) => Some("a panic".to_owned()),
            Ok(_) if grown > MOST_MEMORY => Some(format!("{grown} bytes of memory")),
            Ok(still) => {
                used += u64::from(still);
                None
            }
        };
        failure = problem.map(|problem| format!("{problem}, for {}", kept(kinds[which], &file)));
    }
    std::panic::set_hook(quiet);
    let took = begin.elapsed().as_secs_f64();
    console.say(format!(
        "seed {seed}: {rounds} files in {took:.1} s, {used} of them still usable; the slowest took {slowest:.1?}"
    ));
    console.result(|| {
        json!({"what": "files", "seed": seed, "count": rounds, "usable": used, "seconds": took,
            "slowest_s": slowest.as_secs_f64(), "failures": u64::from(failure.is_some())})
    });
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Writes a file that broke something to where it can be looked at, and says where.
fn kept(kind: Kind, file: &[u8]) -> String {
    let path: PathBuf = std::env::temp_dir().join(format!("kiln-fuzz-{kind:?}-{}", std::process::id()).to_lowercase());
    match std::fs::write(&path, file) {
        Ok(()) => format!("{} bytes of {kind:?} in {}", file.len(), path.display()),
        Err(error) => format!("{} bytes of {kind:?} that could not be kept: {error}", file.len()),
    }
}

/// A thread that ends the process when a file takes too long: a loop without end can be told of in no other way.
struct Guard(Sender<Option<(Kind, Vec<u8>)>>);

impl Guard {
    fn start() -> Guard {
        let (send, receive) = channel::<Option<(Kind, Vec<u8>)>>();
        std::thread::spawn(move || {
            let mut watched: Option<(Kind, Vec<u8>)> = None;
            loop {
                match (receive.recv_timeout(LONGEST), &watched) {
                    (Ok(next), _) => watched = next,
                    (Err(RecvTimeoutError::Timeout), None) => {}
                    (Err(RecvTimeoutError::Timeout), Some((kind, file))) => {
                        eprintln!("a file took more than {LONGEST:.0?}: {}", kept(*kind, file));
                        std::process::exit(1);
                    }
                    (Err(RecvTimeoutError::Disconnected), _) => return,
                }
            }
        });
        Guard(send)
    }

    fn watch(&self, kind: Kind, file: &[u8]) {
        // Without the thread there is nobody to tell.
        let _ = self.0.send(Some((kind, file.to_vec())));
    }

    fn rest(&self) {
        let _ = self.0.send(None);
    }
}

/// The most memory that the process has had; 0 where the system does not say.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Changes a file somewhere.
fn mutate(file: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(file.len() + 1);
    let some = |random: &mut Random, length: usize| {
        let start = random.below(length + 1);
        start..(start + random.below(40)).min(length)
    };
    match random.below(10) {
        0 => file.truncate(at),
        1 => {
            let range = some(random, file.len());
            file.drain(range);
        }
        2 | 3 => {
            let range = some(random, other.len());
            file.splice(at..at, other[range].iter().copied());
        }
        4 => {
            let range = some(random, file.len());
            let part = file[range].repeat(1 + random.below(50));
            file.splice(at..at, part);
        }
        5 | 6 => blow_up_a_number(file, random),
        7 => {
            let words = examples::WORDS[random.below(examples::WORDS.len())];
            file.splice(at..at, words.bytes());
        }
        _ => {
            for _ in 0..=random.below(4) {
                let at = random.below(file.len());
                let byte = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'"', b'{', b'}', b'[', b'%', b'\\', b' ', b'~', b'*'];
                let byte = byte[random.below(byte.len())];
                if let Some(old) = file.get_mut(at) {
                    *old = if random.below(2) == 0 { byte } else { *old ^ (1 << random.below(8)) };
                }
            }
        }
    }
}

/// Puts a number that is large, negative or odd in the place of one that is there.
fn blow_up_a_number(file: &mut Vec<u8>, random: &mut Random) {
    let starts: Vec<usize> = (0..file.len())
        .filter(|&at| file[at].is_ascii_digit() && (at == 0 || !file[at - 1].is_ascii_digit()))
        .collect();
    if starts.is_empty() {
        return;
    }
    let start = starts[random.below(starts.len())];
    let length = file[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number =
        ["0", "1", "-1", "65536", "2147483647", "99999999999", "4611686018427387904", "18446744073709551615", "1e308"];
    let number = number[random.below(number.len())];
    file.splice(start..start + length, number.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples are what their readers accept: else nothing but errors would be looked for.
    #[test]
    fn examples_are_usable() {
        for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Config) {
            for (number, file) in kind.examples().iter().enumerate() {
                assert!(kind.use_file(file), "{kind:?} {number}");
            }
        }
    }

    #[test]
    fn some_rounds_of_every_kind_pass() {
        for kind in Kind::ALL {
            run(&Console::new(false), Some(kind), 1, 7).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        }
    }
}
