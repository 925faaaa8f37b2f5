//! Products whose left operand is unfolded, as convolutions.
//!
//! ```text
//!  position in x = first + image·n + channel·c + Σ unit·(stride·out + dilation·tap − before)
//! ```
//!
//! A guard names an axis of the image with its window; without padding there is none, and the steps tell. Any reading whose positions
//! are these is a right one.

use super::linear::{Frame, Guard, Linear, Operand, Space, fill_strides, order_of};
use super::problem::Window;

/// Strides and dilations that an axis without a guard is read by.
const MOST_RATIO: i64 = 4;

/// Tensors `[n, c, …]` and `[k, c / groups, …]`, and how the windows move.
pub(super) struct Convolution {
    /// The axes of the result `[n, k, …]`.
    pub(super) frame: Frame,
    pub(super) x: View,
    pub(super) w: View,
    pub(super) windows: Vec<Window>,
}

/// A strided tensor of a buffer.
pub(super) struct View {
    pub(super) sizes: Vec<i64>,
    pub(super) strides: Vec<i64>,
    pub(super) first: i64,
}

/// An axis of the image.
#[derive(Clone, Copy)]
struct Spatial {
    out: Option<usize>,
    tap: Option<usize>,
    /// Elements from one point of the image to the next.
    unit: i64,
    stride: i64,
    dilation: i64,
    before: i64,
    /// Points of the image; where no guard says how many, those that are read.
    size: Option<i64>,
}

impl Convolution {
    pub(super) fn of(space: &Space<'_>, lhs: &Operand, rhs: &Operand) -> Option<Convolution> {
        let still = |at: &Linear, axes: &[usize]| axes.iter().all(|&axis| at.steps[axis] == 0);
        let fits = rhs.guards.is_empty() && still(&lhs.at, &space.n) && still(&rhs.at, &space.m);
        if !fits || space.batch.len() > 1 || space.n.len() > 1 {
            return None;
        }
        let mut spatial: Vec<Spatial> = Vec::new();
        for guard in &lhs.guards {
            spatial.push(Spatial::guarded(space, &lhs.at, guard)?);
        }
        let used = |spatial: &[Spatial], axis: usize| {
            spatial.iter().filter(|one| one.out == Some(axis) || one.tap == Some(axis)).count()
        };
        if space.m.iter().chain(&space.k).any(|&axis| used(&spatial, axis) > 1) {
            return None;
        }
        let mut taps: Vec<usize> = space.k.iter().copied().filter(|&axis| used(&spatial, axis) == 0).collect();
        let mut outs: Vec<usize> = space.m.iter().copied().filter(|&axis| used(&spatial, axis) == 0).collect();
        // All summed axes but one, the channels, are windows.
        while taps.len() > 1 {
            let pairs = taps.iter().flat_map(|&tap| outs.iter().map(move |&out| (tap, out)));
            let read = |(tap, out)| Spatial::paired(&lhs.at, out, tap);
            let nearest = pairs.filter_map(read).min_by_key(|one| one.stride.max(one.dilation))?;
            taps.retain(|&axis| Some(axis) != nearest.tap);
            outs.retain(|&axis| Some(axis) != nearest.out);
            spatial.push(nearest);
        }
        let channel = taps.first().copied();
        outs.sort_by_key(|&axis| -lhs.at.steps[axis]);
        let image = (!outs.is_empty()).then(|| outs.remove(0));
        spatial.extend(outs.iter().map(|&out| Spatial::plain(space, &lhs.at, out, channel)));
        spatial.sort_by_key(|one| -one.unit);
        while spatial.len() < 2 {
            spatial.insert(0, Spatial::NONE);
        }
        if spatial.len() > 3 || spatial.iter().any(|one| one.unit <= 0 && one.out.or(one.tap).is_some()) {
            return None;
        }
        let (group, filter) = (space.batch.first().copied(), space.n.first().copied());
        let frame = [Vec::from_iter(image), group.into_iter().chain(filter).collect()];
        let frame: Frame = frame.into_iter().chain(spatial.iter().map(|one| Vec::from_iter(one.out))).collect();
        let size = |axis: Option<usize>| axis.map_or(1, |axis| space.sizes[axis]);
        let step = |at: &Linear, axis: Option<usize>| axis.map_or(0, |axis| at.steps[axis]);
        // A group's channels follow those of the one before.
        let grouped = |at: &Linear, axis: Option<usize>| {
            let (own, by_group) = (step(at, axis), step(at, group));
            match (group, axis) {
                (None, _) => Some(own),
                (Some(_), None) => Some(by_group),
                (Some(_), Some(axis)) => (by_group == own * space.sizes[axis]).then_some(own),
            }
        };
        let (mut windows, mut points, mut first) = (Vec::new(), Vec::new(), lhs.at.first);
        for one in &spatial {
            let (window, size) = one.window(size(one.out), size(one.tap))?;
            first += one.before * one.unit;
            windows.push(window);
            points.push(size);
        }
        let units = spatial.iter().map(|one| one.unit);
        let x = View::new(
            [size(image), size(group) * size(channel)].into_iter().chain(points),
            [step(&lhs.at, image), grouped(&lhs.at, channel)?].into_iter().chain(units),
            first,
        )?;
        let taps = || spatial.iter().map(|one| one.tap);
        let w = View::new(
            [size(group) * size(filter), size(channel)].into_iter().chain(taps().map(size)),
            [grouped(&rhs.at, filter)?, step(&rhs.at, channel)].into_iter().chain(taps().map(|tap| step(&rhs.at, tap))),
            rhs.at.first,
        )?;
        Some(Convolution { frame, x, w, windows })
    }
}

impl Spatial {
    const NONE: Spatial = Spatial { out: None, tap: None, unit: 0, stride: 1, dilation: 1, before: 0, size: None };

    /// The axis that a guard is about: `0 ≤ stride·out + dilation·tap − before < size`.
    fn guarded(space: &Space<'_>, at: &Linear, guard: &Guard) -> Option<Spatial> {
        let moved: Vec<usize> = (0..at.steps.len()).filter(|&axis| guard.at.steps[axis] != 0).collect();
        let of = |axes: &[usize]| moved.iter().copied().filter(|axis| axes.contains(axis)).collect::<Vec<usize>>();
        let (outs, taps) = (of(&space.m), of(&space.k));
        if outs.len() + taps.len() != moved.len() || outs.len() > 1 || taps.len() > 1 || moved.is_empty() {
            return None;
        }
        let (out, tap) = (outs.first().copied(), taps.first().copied());
        let [stride, dilation] = [out, tap].map(|axis| axis.map_or(1, |axis| guard.at.steps[axis]));
        let unit_of = |axis: Option<usize>, by: i64| axis.map(|axis| (at.steps[axis] / by, at.steps[axis] % by));
        let units: Vec<(i64, i64)> = [unit_of(out, stride), unit_of(tap, dilation)].into_iter().flatten().collect();
        let unit = units.first()?.0;
        if stride < 1 || dilation < 1 || units.iter().any(|&one| one != (unit, 0)) {
            return None;
        }
        // Points before the first that is read are none of the image.
        let (before, cut) = ((-guard.at.first).max(0), guard.at.first.max(0));
        Some(Spatial { out, tap, unit, stride, dilation, before, size: Some(guard.size - cut) })
    }

    /// An axis with a window, as the steps tell.
    fn paired(at: &Linear, out: usize, tap: usize) -> Option<Spatial> {
        let (by_out, by_tap) = (at.steps[out], at.steps[tap]);
        if by_out <= 0 || by_tap <= 0 {
            return None;
        }
        let unit = gcd(by_out, by_tap);
        let (stride, dilation) = (by_out / unit, by_tap / unit);
        let one = Spatial { out: Some(out), tap: Some(tap), unit, stride, dilation, before: 0, size: None };
        (stride.max(dilation) <= MOST_RATIO).then_some(one)
    }

    /// An axis with a window of one point: strided, if it steps over points whose channels are neighbours.
    fn plain(space: &Space<'_>, at: &Linear, out: usize, channel: Option<usize>) -> Spatial {
        let step = at.steps[out];
        let point = channel.filter(|&axis| at.steps[axis] == 1).map_or(step, |axis| space.sizes[axis]);
        let stride = if step % point == 0 && step / point <= MOST_RATIO { step / point } else { 1 };
        Spatial { out: Some(out), unit: step / stride, stride, ..Spatial::NONE }
    }

    /// How its window moves, and the points of the image.
    fn window(&self, outs: i64, taps: i64) -> Option<(Window, i64)> {
        let Spatial { stride, dilation, before, .. } = *self;
        let reach = (taps - 1) * dilation + 1;
        let end = (outs - 1) * stride + reach - before;
        let size = self.size.unwrap_or(end);
        let even = size + 2 * before - reach;
        let (after, size) = match even >= 0 && even / stride + 1 == outs {
            true => (before, size),
            // What no window reaches is none of the image.
            false => ((end - size).max(0), size.min(end)),
        };
        (size > 0).then_some((Window { stride, dilation, before, after }, size))
    }
}

impl View {
    fn new(sizes: impl IntoIterator<Item = i64>, strides: impl IntoIterator<Item = i64>, first: i64) -> Option<View> {
        let (sizes, mut strides): (Vec<i64>, Vec<i64>) = (Vec::from_iter(sizes), Vec::from_iter(strides));
        let order = order_of(&sizes, &strides);
        fill_strides(&sizes, &mut strides, &order);
        (first >= 0 && strides.iter().all(|&stride| stride > 0)).then_some(View { sizes, strides, first })
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
