//! Sides that take turns: functions of this process, and the modes of a PyTorch process.

use super::Arguments;
use super::clock::{Timing, time, together};
use super::peer::{Setup, TorchPeer};
use kiln_terminal::failure::Failure;
use serde_json::Value;

/// A function of this process that is timed, and the part of a turn that it gets.
pub struct Own<'a> {
    run: Box<dyn FnMut() -> Result<(), Failure> + 'a>,
    part: f64,
}

impl<'a> Own<'a> {
    /// A function that may fail, with whole turns.
    pub fn new<T, E: std::fmt::Display>(mut f: impl FnMut() -> Result<T, E> + 'a) -> Own<'a> {
        Own { run: Box::new(move || f().map(drop).map_err(|error| Failure::new(error.to_string()))), part: 1.0 }
    }

    /// With half of a turn.
    pub fn half(self) -> Own<'a> {
        Own { part: 0.5, ..self }
    }
}

/// What the modes of a peer gave.
#[derive(Debug)]
pub struct Torch {
    setup: Setup,
    timings: Vec<Option<Timing>>,
    /// Why there is nothing.
    pub error: Option<String>,
}

impl Torch {
    /// Seconds of the first call of a mode, by its number; NaN where there was none.
    pub fn first(&self, mode: usize) -> f64 {
        self.setup.first.get(mode).copied().unwrap_or(f64::NAN)
    }

    /// Why a mode has no samples although the others have.
    pub fn note(&self) -> Option<&str> {
        self.setup.note.as_deref()
    }

    /// The calls of a mode, by its number; `None` where there were none.
    pub fn timing(&mut self, mode: usize) -> Option<Timing> {
        self.timings.get_mut(mode).and_then(Option::take)
    }
}

/// A PyTorch process with a case in some modes. A case that it cannot build is an error of its own side, not of the run.
pub struct Peer<'a> {
    process: Option<&'a mut TorchPeer>,
    modes: &'a [&'a str],
    setup: Setup,
    error: Option<String>,
}

impl<'a> Peer<'a> {
    /// Builds the case, if there is a process.
    pub fn setup(process: Option<&'a mut TorchPeer>, case: Value, threads: usize, modes: &'a [&'a str]) -> Peer<'a> {
        let none = Setup::default();
        let Some(process) = process else { return Peer { process: None, modes, setup: none, error: None } };
        match process.setup(case, threads, modes) {
            Ok(setup) => Peer { process: Some(process), modes, setup, error: None },
            Err(error) => Peer { process: None, modes, setup: none, error: Some(error.to_string()) },
        }
    }
}

/// Runs the sides in turns, again and again, so that noise of the machine affects all of them alike. A side of this process
/// that fails fails the run; a peer does not.
pub fn take<const N: usize>(
    arguments: &Arguments,
    own: [Own<'_>; N],
    peer: Peer<'_>,
) -> Result<([Timing; N], Torch), Failure> {
    let (timings, torch) = take_all(arguments, own.into(), peer)?;
    let timings = timings.try_into().map_err(|_| Failure::new("a side without a timing"))?;
    Ok((timings, torch))
}

/// The same for any number of sides.
pub fn take_all(arguments: &Arguments, mut own: Vec<Own<'_>>, peer: Peer<'_>) -> Result<(Vec<Timing>, Torch), Failure> {
    let Peer { mut process, modes, setup, mut error } = peer;
    let turn = arguments.turn();
    let (mut mine, mut theirs) = (vec![Vec::new(); own.len()], vec![Vec::new(); modes.len()]);
    for _ in 0..arguments.turns {
        for (side, samples) in own.iter_mut().zip(&mut mine) {
            samples.push(time(turn.part(side.part), &mut side.run)?);
        }
        for (mode, samples) in modes.iter().zip(&mut theirs) {
            match process.as_deref_mut().map(|process| process.time(mode, &turn)) {
                Some(Ok(times)) if times.is_empty() => {}
                Some(Ok(times)) => samples.push(times),
                // The others go on without it.
                Some(Err(cause)) => (process, error) = (None, Some(cause.to_string())),
                None => {}
            }
        }
    }
    let timing = |turns: &Vec<Vec<f64>>| (!turns.is_empty()).then(|| together(turns));
    let timings = theirs.iter().map(timing).collect();
    Ok((mine.iter().map(|turns| together(turns)).collect(), Torch { setup, timings, error }))
}
