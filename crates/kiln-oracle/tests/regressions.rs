//! Graphs on which interpreter, eager and compiled once differed: `tests/regressions/SEED_what.kiln`, one each. A file holds the whole graph that
//! `kiln fuzz graphs --count 1 --seed SEED` made when it was found, so that it keeps its meaning when the generator changes:
//!
//! ```text
//! # what was wrong
//! # seed: 55653086011
//! # layout: Sliced
//! # numerics: Fast
//! # inputs: 7f3a…
//! graph(…) { … }
//! ```
//!
//! The inputs are those that [`generate::inputs`] makes from the seed (by the source lines, which are part of the text); `inputs`
//! is their digest, so that a change of that function does not go unnoticed. `layout` and `numerics` are what the fuzzer asked
//! with. A line `# fails: why` marks a disagreement that is known and not fixed yet; such a file is run, but not held against
//! anybody. `KILN_BLESS=1` writes the digests.

use kiln_ir::{Graph, HostTensor, Scalar, generate};
use kiln_kernels::Numerics;
use kiln_oracle::{self as oracle, Config, LayoutChoice};
use std::path::{Path, PathBuf};

struct Fixture {
    path: PathBuf,
    text: String,
    graph: Graph,
    seed: u64,
    config: Config,
}

impl Fixture {
    fn read(path: PathBuf) -> Fixture {
        let text = std::fs::read_to_string(&path).unwrap();
        let fail = |why: String| -> ! { panic!("{}: {why}", path.display()) };
        let start = text.find("graph(").unwrap_or_else(|| fail("no graph".into()));
        let graph = Graph::parse(&text[start..]).unwrap_or_else(|e| fail(e.to_string()));
        let field = |name: &str| field(&text, name).unwrap_or_else(|| fail(format!("no line `# {name}: …`")));
        let seed = field("seed").parse().unwrap_or_else(|_| fail("the seed is no number".into()));
        let layout = LayoutChoice::ALL.into_iter().find(|l| format!("{l:?}") == field("layout"));
        let layout = layout.unwrap_or_else(|| fail(format!("there is no layout `{}`", field("layout"))));
        let mut config = Config { layout, ..Default::default() };
        config.options.disk_cache = false;
        config.options.schedule.numerics = match field("numerics") {
            "Fast" => Numerics::Fast,
            "Eager" => Numerics::Eager,
            other => fail(format!("there are no numerics `{other}`")),
        };
        Fixture { path, graph, seed, config, text }
    }

    /// The inputs, if they are those that the file was written for.
    fn inputs(&self) -> Vec<HostTensor> {
        let inputs = generate::inputs(&self.graph, self.seed);
        let (digest, written) = (digest(&inputs), field(&self.text, "inputs"));
        if std::env::var_os("KILN_BLESS").is_some_and(|v| v == "1") {
            let line = |digest: &str| format!("# inputs: {digest}\n");
            let text = match written {
                Some(old) => self.text.replace(&line(old), &line(&digest)),
                None => self.text.replacen("graph(", &(line(&digest) + "graph("), 1),
            };
            std::fs::write(&self.path, text).unwrap();
        } else {
            let path = self.path.display();
            assert_eq!(written, Some(digest.as_str()), "{path}: generate::inputs makes other values of this seed");
        }
        inputs
    }
}

/// The rest of the line `# name: …` of a file's head.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let head = text.lines().map_while(|line| line.strip_prefix("# "));
    head.into_iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// FNV-1a of all bytes.
fn digest(inputs: &[HostTensor]) -> String {
    let bytes = inputs.iter().flat_map(|tensor| tensor.bytes().iter());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

fn fixtures() -> impl Iterator<Item = Fixture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "kiln"));
    paths.sort();
    assert!(!paths.is_empty(), "no graphs in {}", folder.display());
    paths.into_iter().map(Fixture::read)
}

#[test]
fn seeds_on_which_results_differed_agree() {
    let mut failures = String::new();
    for fixture in fixtures() {
        let outcome = oracle::compare(&fixture.graph, &fixture.inputs(), &fixture.config);
        match (outcome, field(&fixture.text, "fails")) {
            (Ok(_), _) => {}
            (Err(error), Some(why)) => eprintln!("{}: {error} (known: {why})", fixture.path.display()),
            (Err(error), None) => failures += &format!("{}: {error}\n{}\n", fixture.path.display(), fixture.text),
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// The bounds that make these agree do not explain everything: another answer altogether is noticed wherever anything was compared.
#[test]
fn other_answers_to_them_are_noticed() {
    fn tamper(answer: &mut HostTensor) {
        for i in 0..answer.elements() {
            let (dtype, value) = (answer.dtype(), answer.get(i));
            let other = match value {
                Scalar::Int(_, value) => Scalar::int(dtype, value ^ 1),
                _ if !value.as_f64().is_finite() => Scalar::float(dtype, 1.0),
                _ => Scalar::float(dtype, 3.0 + 3.0 * value.as_f64()),
            };
            answer.set(i, other);
        }
    }
    let mut noticed = 0;
    for fixture in fixtures() {
        let inputs = fixture.inputs();
        let Ok(honest) = oracle::compare(&fixture.graph, &inputs, &fixture.config) else { continue };
        let config = Config { tamper: Some(tamper), ..fixture.config.clone() };
        let tampered = oracle::compare(&fixture.graph, &inputs, &config);
        assert!(tampered.is_err() || honest.is_vacuous(), "{}: {honest:?}", fixture.path.display());
        noticed += usize::from(tampered.is_err());
    }
    assert!(noticed > 15, "only {noticed} were noticed");
}
