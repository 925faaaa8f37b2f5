//! Places of a window along one axis, cut into tiles whose code leaves out what is outside the image.

use super::direct::WindowAxis;
use super::part;
use std::ops::Range;

/// The most pixels of a tile along one axis.
pub(super) const MOST_PLACES: usize = 16;

/// The places of a tile along one axis, and the taps over them that are inside the image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Span {
    /// Taps of a window.
    pub taps: u8,
    /// Pixels from one place to the next.
    pub stride: u8,
    /// Pixels from one tap to the next.
    pub dilation: u8,
    /// Places.
    pub places: u8,
    /// For each place the first tap inside the image, and the first one behind it.
    pub inside: [(u8, u8); MOST_PLACES],
}

impl Span {
    /// Some places of an axis, at most [`MOST_PLACES`], whose sizes [`fit`].
    pub fn of(axis: &WindowAxis, places: &Range<usize>) -> Span {
        let mut inside = [(0, 0); MOST_PLACES];
        for (place, inside) in places.clone().zip(&mut inside) {
            let taps = taps_inside(axis, place);
            *inside = (taps.start as u8, taps.end as u8);
        }
        Span {
            taps: axis.taps as u8,
            stride: axis.stride as u8,
            dilation: axis.dilation as u8,
            places: places.len() as u8,
            inside,
        }
    }

    /// Whether a tap over a place is inside the image.
    pub fn has(&self, place: usize, tap: usize) -> bool {
        let (first, end) = self.inside[place];
        (usize::from(first)..usize::from(end)).contains(&tap)
    }

    /// Pixels from the first tap of the first place.
    pub fn offset(&self, place: usize, tap: usize) -> usize {
        place * usize::from(self.stride) + tap * usize::from(self.dilation)
    }
}

/// Whether taps, stride and dilation are small enough for a [`Span`].
pub(super) fn fit(axis: &WindowAxis) -> bool {
    [axis.taps, axis.stride, axis.dilation].iter().all(|n| (1..=usize::from(u8::MAX)).contains(n))
}

/// The taps over a place that are inside the image: consecutive ones.
pub(super) fn taps_inside(axis: &WindowAxis, place: usize) -> Range<usize> {
    let at = |tap: usize| axis.start + (place * axis.stride + tap * axis.dilation) as isize;
    let inside = |tap: &usize| (0..axis.length).contains(&at(*tap));
    let first = (0..axis.taps).find(inside).unwrap_or(0);
    first..first + (0..axis.taps).filter(inside).count()
}

/// Tiles of about so many places along an axis, and their different spans.
pub(super) fn tiles(axis: &WindowAxis, places: usize) -> (Vec<(Range<usize>, usize)>, Vec<Span>) {
    let count = axis.places.div_ceil(places);
    let (mut tiles, mut spans) = (Vec::with_capacity(count), Vec::new());
    for places in (0..count).map(|tile| part(axis.places, count, tile)) {
        let span = Span::of(axis, &places);
        let known = spans.iter().position(|other| *other == span);
        tiles.push((places, known.unwrap_or(spans.len())));
        if known.is_none() {
            spans.push(span);
        }
    }
    (tiles, spans)
}

/// The pixels of an image under some places.
pub(super) fn under(axis: &WindowAxis, places: &Range<usize>) -> Range<usize> {
    let first = axis.start + (places.start * axis.stride) as isize;
    let end = axis.start + ((places.end - 1) * axis.stride + (axis.taps - 1) * axis.dilation) as isize + 1;
    let inside = |at: isize| at.clamp(0, axis.length.max(0)) as usize;
    inside(first)..inside(end).max(inside(first))
}
