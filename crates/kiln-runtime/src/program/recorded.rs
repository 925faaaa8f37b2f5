//! The launches of a program as one, where the backend records launches. Loops of known length are recorded turn by turn.

use crate::repeat::{Place, Repeat};
use crate::{Backend, Error, Launch, LaunchError, RawBuffer, Recording};
use kiln_ir::Source;

/// The most launches of a program whose loops are unrolled: to record one takes about as long as to launch it a few times.
const MOST_UNROLLED: usize = 4096;

/// What a backend recorded.
pub(crate) struct Recorded {
    recording: Box<dyn Recording>,
    /// Where the arguments of the recorded launches are among those of the program's, if there are loops.
    places: Option<Vec<Place>>,
    /// The arguments of the recorded launches at the last replay.
    arguments: Vec<RawBuffer>,
}

impl Recorded {
    /// Records launches; nothing where the backend does not, or where the number of launches is not known: a loop until a condition fails is
    /// led by the host.
    pub(crate) fn new(backend: &dyn Backend, launches: &[Launch<'_>]) -> Result<Option<Recorded>, Error> {
        let failed = |cause| Error::Launch { op: "a recorded program".into(), cause, at: Source::default() };
        fn loop_of<'a>(launch: &Launch<'a>) -> Option<&'a Repeat> {
            launch.code.as_any()?.downcast_ref()
        }
        if !launches.iter().any(|launch| loop_of(launch).is_some()) {
            let recording = backend.record(launches)?;
            return Ok(recording.map(|recording| Recorded { recording, places: None, arguments: Vec::new() }));
        }
        let (mut unrolled, mut first, mut count) = (Vec::with_capacity(launches.len()), 0, 0);
        for launch in launches {
            let turns = match loop_of(launch) {
                None => None,
                Some(own) => {
                    let left = MOST_UNROLLED.saturating_sub(count);
                    let Some(turns) = own.unroll(launch.arguments, launch.sizes, left).map_err(failed)? else {
                        return Ok(None);
                    };
                    Some(turns)
                }
            };
            count += turns.as_ref().map_or(1, Vec::len);
            unrolled.push((turns, first));
            first += launch.arguments.len();
        }
        let all: Vec<RawBuffer> = launches.iter().flat_map(|launch| launch.arguments).copied().collect();
        let mut places: Vec<Place> = Vec::new();
        for ((turns, first), launch) in unrolled.iter().zip(launches) {
            match turns {
                None => places.extend((0..launch.arguments.len()).map(|at| Place { argument: first + at, offset: 0 })),
                Some(turns) => {
                    let own = turns.iter().flat_map(|turn| &turn.arguments);
                    places.extend(own.map(|place| Place { argument: first + place.argument, ..*place }));
                }
            }
        }
        let arguments: Vec<RawBuffer> = places.iter().map(|place| place.of(&all)).collect();
        let (mut rest, mut flat) = (&arguments[..], Vec::with_capacity(count));
        let mut next = |count: usize| {
            let (own, others) = rest.split_at(count);
            rest = others;
            own
        };
        for ((turns, _), launch) in unrolled.iter().zip(launches) {
            let site = launch.site;
            match turns {
                None => flat.push(Launch { arguments: next(launch.arguments.len()), ..*launch }),
                Some(turns) => flat.extend(turns.iter().map(|turn| Launch {
                    code: &*turn.code,
                    arguments: next(turn.arguments.len()),
                    sizes: &turn.sizes,
                    site,
                })),
            }
        }
        let recording = backend.record(&flat)?;
        drop(flat);
        Ok(recording.map(|recording| Recorded { recording, places: Some(places), arguments }))
    }

    /// [`Recording::replay`] with the arguments of the program's launches.
    ///
    /// # Safety
    /// As [`Recording::replay`].
    pub(crate) unsafe fn replay(&mut self, arguments: &[RawBuffer]) -> Result<bool, LaunchError> {
        let Some(places) = &self.places else {
            // SAFETY: the caller's promise.
            return unsafe { self.recording.replay(arguments) };
        };
        self.arguments.clear();
        self.arguments.extend(places.iter().map(|place| place.of(arguments)));
        // SAFETY: what the loops would launch.
        unsafe { self.recording.replay(&self.arguments) }
    }
}
