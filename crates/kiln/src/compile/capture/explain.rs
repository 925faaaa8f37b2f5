//! Explains and verifies a compiled function: watches a call, and inspects each graph that it ran on the inputs it had.

use super::watch::{self, ObservedSegment};
use super::{Compiled, compile};
use crate::tensor::bundle::Bundle;
use crate::tensor::compiled_graph::locate;
use crate::{Error, Result};
use kiln_inspect::explain::{Explanation, Made, Measured, Segment, machine};
use kiln_inspect::verify::VerifyReport;
use kiln_ir::Source;
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::phase::{self, Phases};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Compiles a function, calls it and explains the result: graphs, kernels with measured times, memory, graph breaks, guards.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// let softmax = |x: &Tensor| x.mul(0.5)?.softmax(-1);
/// let explanation = kiln::explain(&softmax, &Tensor::randn([32, 256], DType::F32, Device::Cpu)?)?;
/// assert_eq!(explanation.segments.len(), 1);
/// println!("{explanation}");
/// let page: String = explanation.to_html();
/// # assert!(page.contains("</html>"));
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn explain<F, A, R>(f: &F, arguments: &A) -> Result<Explanation>
where
    F: Fn(&A) -> Result<R>,
    A: Bundle,
    R: Bundle,
{
    let at = Source::caller();
    let compiled = compile(|arguments: &A| f(arguments));
    compiled.explain_at(name::<F>(), arguments, &at)
}

/// The name of a function's type, without what does not tell.
fn name<F>() -> String {
    let name = std::any::type_name::<F>();
    let plain = name.split('<').next().unwrap_or(name).trim_end_matches("::{{closure}}");
    plain.trim_start_matches('&').to_owned()
}

impl<F, A, R, E> Compiled<F, A, R, E>
where
    A: Bundle,
    R: Bundle,
    E: From<Error>,
{
    /// Calls the function with these arguments and explains what ran: graphs with source lines, kernels with measured
    /// times, memory, graph breaks, guards, and the reasons for recompiles so far. A function without side effects is
    /// called several times to measure a call, one that updates variables once.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let fast = kiln::compile(|x: &Tensor| x.exp()?.sum(-1));
    /// let explanation = fast.explain(&Tensor::ones([8, 100], DType::F32, Device::Cpu)?)?;
    /// assert_eq!((explanation.segments.len(), explanation.programs.len()), (1, 1));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn explain(&self, arguments: &A) -> Result<Explanation, E> {
        self.explain_at(name::<F>(), arguments, &Source::caller())
    }

    fn explain_at(&self, name: String, arguments: &A, at: &Source) -> Result<Explanation, E> {
        let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
        let (into, own) = (heard.clone(), std::thread::current().id());
        let categories = [Category::Recompiles, Category::Perf, Category::Cache];
        let listening = event::listen(&categories, move |event| {
            if std::thread::current().id() == own {
                into.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
            }
        });
        let before = self.stats();
        let start = Instant::now();
        let ((outcome, observed), mut phases) =
            phase::recorded(|| watch::watch(|| self.call_at(arguments, at.clone())));
        drop(listening);
        let called = start.elapsed();
        outcome?;
        crate::synchronize()?;
        let first = start.elapsed();
        phases.push((phase::RUN, first - called));
        let after = self.stats();
        let is_new = after.compiles > before.compiles || after.branches > before.branches;
        let mut segments = Vec::with_capacity(observed.segments.len());
        for ObservedSegment { code, inputs, names } in &observed.segments {
            segments.push(code.segment(inputs, names.clone(), at)?);
        }
        // What a break costs is what it costs a call that finds its program.
        let mut breaks = observed.breaks;
        if is_new && !observed.effects && !breaks.is_empty() {
            let (outcome, again) = watch::watch(|| self.call_at(arguments, at.clone()));
            outcome?;
            if again.breaks.len() == breaks.len() {
                breaks = again.breaks;
            }
        }
        let own = observed.segments.first().map(|segment| segment.code.program().backend().clone());
        let backend = &own.unwrap_or_else(|| crate::backend(crate::Device::default()));
        let call = if observed.effects {
            None
        } else {
            Some(Measured::repeated(|| {
                self.call_at(arguments, at.clone())?;
                Ok::<(), E>(crate::synchronize()?)
            })?)
        };
        let mut remarks: Vec<String> = Vec::new();
        for event in heard.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let said = event.to_string();
            if event.category() != Category::Recompiles && !remarks.contains(&said) {
                remarks.push(said);
            }
        }
        if observed.eager > 0 {
            remarks.push(format!("{} graphs ran an operation at a time: their code is not there yet", observed.eager));
        }
        if observed.frozen > 0 {
            remarks.push(
                "with freeze, weights are prepared and packed once; kernels are shown and measured without".to_owned(),
            );
        }
        if observed.segments.is_empty() && observed.eager == 0 {
            remarks.push("nothing ran that was captured".to_owned());
        }
        Ok(Explanation {
            name,
            machine: machine(&**backend).map_err(|cause| locate("explain", cause, at))?,
            first_call: if is_new { phases_of(phases, first) } else { making_of(&segments) },
            segments,
            breaks,
            programs: self.programs().into_iter().map(|program| program.guards).collect(),
            recompiles: self.recompiles(),
            remarks,
            call,
        })
    }

    /// Calls the function with these arguments and compares every kernel that ran with the interpreter, on the inputs it
    /// had. Returns a report for each graph.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let fast = kiln::compile(|x: &Tensor| x.exp()?.softmax(-1));
    /// let reports = fast.verify(&Tensor::ones([4, 100], DType::F32, Device::Cpu)?)?;
    /// assert!(reports.len() == 1 && reports[0].is_right(), "{}", reports[0]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn verify(&self, arguments: &A) -> Result<Vec<VerifyReport>, E> {
        let at = Source::caller();
        let (outcome, observed) = watch::watch(|| self.call_at(arguments, at));
        outcome?;
        Ok(observed.segments.iter().map(|segment| segment.code.verify(&segment.inputs)).collect::<Result<_>>()?)
    }
}

/// The parts of a call that made programs, each phase once, and what is left for capturing.
fn phases_of(phases: Phases, whole: Duration) -> Vec<(String, Duration)> {
    let mut parts: Vec<(String, Duration)> = vec![("capture".to_owned(), Duration::ZERO)];
    for (name, took) in phases {
        match parts.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += took,
            None => parts.push((name.to_owned(), took)),
        }
    }
    // What ran comes last, whatever was compiled after it.
    if let Some(run) = parts.iter().position(|(name, _)| name == phase::RUN) {
        let run = parts.remove(run);
        parts.push(run);
    }
    // Time outside of all phases belongs to it too: guards, and the work between phases.
    parts[0].1 = whole.saturating_sub(parts[1..].iter().map(|(_, took)| *took).sum());
    parts
}

/// Returns the times that making the existing programs took.
fn making_of(segments: &[Segment]) -> Vec<(String, Duration)> {
    segments.iter().fold(Made::default(), |sum, segment| sum.and(segment.made)).parts()
}
