//! Where the groups of `kiln selftest` work: the device, how much is asked, and the count of what was found.

use kiln::{DType, Device, Tensor};
use kiln_ir::{Graph, HostTensor, Scalar, generate, shrink};
use kiln_oracle::{self as oracle, Config, Disagreement, LayoutChoice, Tally};
use std::fmt::Display;

/// The state of a group of checks, and its results.
#[derive(Debug)]
pub struct Lab {
    /// The device under test.
    pub device: Device,
    /// Whether a sample of the cases suffices.
    pub quick: bool,
    /// Whether results of compiled programs are changed, so that the group has to fail.
    pub fault: bool,
    /// The number of comparisons.
    pub checks: u64,
    /// The failed ones, each in a few lines.
    pub failures: Vec<String>,
    /// The counts of compared elements.
    pub tally: Tally,
}

/// The number of failures that are kept as text.
const MOST_SHOWN: usize = 5;

impl Lab {
    /// With nothing found yet.
    pub fn new(device: Device, quick: bool, fault: bool) -> Lab {
        Lab { device, quick, fault, checks: 0, failures: Vec::new(), tally: Tally::default() }
    }

    /// How many to ask, of so many in a whole run.
    pub fn count(&self, whole: u64) -> u64 {
        if self.quick { (whole / 40).max(3) } else { whole }
    }

    /// Whether there is no use in going on.
    pub fn is_enough(&self) -> bool {
        self.failures.len() >= MOST_SHOWN
    }

    /// Counts an answer, and keeps what is wrong with it.
    pub fn judge(&mut self, wrong: Option<impl Display>) {
        self.checks += 1;
        if let Some(wrong) = wrong.filter(|_| !self.is_enough()) {
            self.failures.push(wrong.to_string());
        }
    }

    /// Counts an answer that has to be there; gives it.
    pub fn expect<T, E: Display>(&mut self, what: &str, answer: Result<T, E>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.judge(Some(format!("{what}: {error}")));
                None
            }
        }
    }

    /// How graphs are compared on this device.
    pub fn config(&self, layout: LayoutChoice) -> Config {
        let mut config = Config { layout, ..Config::default() };
        config.options.device = self.device;
        config.tamper = self.fault.then_some(tamper as fn(&mut HostTensor));
        config
    }

    /// Asks interpreter, eager and compiled on a graph.
    pub fn compare(&mut self, what: impl Display, graph: &Graph, inputs: &[HostTensor], config: &Config) {
        let wrong = self.differ(graph, inputs, config);
        self.judge(wrong.map(|wrong| format!("{what}: {wrong}\n{graph}")));
    }

    /// How the three differ; an agreement is counted.
    fn differ(&mut self, graph: &Graph, inputs: &[HostTensor], config: &Config) -> Option<Disagreement> {
        oracle::compare(graph, inputs, config).inspect(|agreement| self.tally.add(agreement)).err()
    }

    /// Asks all three on the graph of a seed; one on which they differ is shown as small as it can be.
    pub fn compare_random(&mut self, seed: u64, options: &generate::Options, config: &Config) {
        let graph = generate::graph(seed, options);
        let differ = |graph: &Graph| oracle::compare(graph, &generate::inputs(graph, seed), config).err();
        let wrong = self.differ(&graph, &generate::inputs(&graph, seed), config);
        let wrong = wrong.map(|wrong| match self.fault {
            true => format!("seed {seed}: {wrong}"),
            false => {
                let small = shrink::shrink(graph, &mut |candidate| differ(candidate).is_some());
                format!("seed {seed}: {}\n{small}", differ(&small).unwrap_or(wrong))
            }
        });
        self.judge(wrong);
    }

    /// Compares what a compiled function says with what it says eagerly.
    pub fn same(&mut self, what: impl Display, got: &Tensor, wanted: &Tensor, within: f64) {
        let wrong = self.difference(got, wanted, within);
        self.judge(wrong.map(|wrong| format!("{what}: {wrong}")));
    }

    fn difference(&self, got: &Tensor, wanted: &Tensor, within: f64) -> Option<String> {
        if (got.shape(), got.dtype()) != (wanted.shape(), wanted.dtype()) {
            let ty = |t: &Tensor| format!("{}{:?}", t.dtype(), t.shape());
            return Some(format!("{} and not {}", ty(got), ty(wanted)));
        }
        let (mut got, wanted) = match (got.to_host(), wanted.to_host()) {
            (Ok(got), Ok(wanted)) => (got, wanted),
            (Err(error), _) | (_, Err(error)) => return Some(error.to_string()),
        };
        if self.fault {
            tamper(&mut got);
        }
        let (got, wanted) = (got.to_f64(), wanted.to_f64());
        let close = |a: f64, b: f64| a == b || (a - b).abs() <= within * (1.0 + b.abs()) || (a.is_nan() && b.is_nan());
        let place = got.iter().zip(&wanted).position(|(&a, &b)| !close(a, b))?;
        Some(format!("element {place} is {}, and eagerly {}", got[place], wanted[place]))
    }

    /// Compares tokens.
    pub fn same_tokens(&mut self, what: impl Display, got: &[u32], wanted: &[u32]) {
        let mut got = got.to_vec();
        if let Some(last) = got.last_mut().filter(|_| self.fault) {
            *last ^= 1;
        }
        let place = got.iter().zip(wanted).position(|(a, b)| a != b);
        let place = place.or((got.len() != wanted.len()).then_some(got.len().min(wanted.len())));
        self.judge(place.map(|place| {
            let of = |tokens: &[u32]| tokens.get(place).map_or("nothing".into(), u32::to_string);
            format!("{what}: token {place} is {} and not {}", of(&got), of(wanted))
        }));
    }
}

/// Makes the last element another one.
fn tamper(answer: &mut HostTensor) {
    let Some(last) = answer.elements().checked_sub(1) else { return };
    let (dtype, value) = (answer.dtype(), answer.get_f64(last));
    let other = match dtype {
        DType::Bool => Scalar::bool(value == 0.0),
        dtype if dtype.is_float() => Scalar::float(dtype, if value.is_nan() { 1.0 } else { 3.0 - 2.0 * value }),
        dtype => Scalar::int(dtype, i64::from(value != 1.0)),
    };
    answer.set(last, other);
}
