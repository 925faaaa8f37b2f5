//! Accesses that together touch each element of a run, every one of them with gaps along the lanes: real and imaginary parts, or the
//! results of one pass of a Fourier transform. A run is loaded or stored as whole vectors, whose lanes change places in registers.
//!
//! ```text
//!   x[2i], x[2i + 1]          x₀ x₁ x₂ x₃ | x₄ x₅ x₆ x₇  ─▶  evens x₀ x₂ x₄ x₆, odds x₁ x₃ x₅ x₇
//! ```
//!
//! Pairs of bf16 are the halves of 32-bit lanes, which nothing has to be moved for. Loads that go backwards (a flipped tensor of complex
//! numbers) are the same with the order of the lanes reversed.

use super::*;
use kiln_kernels::kernel::{BufferArg, Inst, Place};

/// The most accesses of a group; powers of two alone.
const MOST: u64 = 16;

/// An access that is one of a group.
pub(super) struct Interleaved {
    place: Place,
    is_store: bool,
    /// The place of the first of the group.
    first: Place,
    /// Which it is.
    number: usize,
    /// How many there are, and the distance between its elements.
    count: usize,
    /// Whether later lanes are at lower addresses; loads only.
    backwards: bool,
    /// What is stored at each.
    values: Vec<ValueId>,
    /// Whether no other of the group comes after it in the code.
    is_last: bool,
}

/// The elements of a group at the lanes of a vector.
struct Run {
    address: V,
    /// Which lanes of each of its vectors exist; absent when all do.
    masks: Vec<V>,
}

/// An access that could be one of a group.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    place: &'a Place,
    stride: i64,
    stored: Option<ValueId>,
    /// Its place in the code.
    order: usize,
}

/// Accesses along the vector axis that are made together. An inner axis has a way of its own.
pub(super) fn interleaved_accesses(
    kernel: &Kernel,
    body: &LoopBody,
    vector: VectorAxis,
    inner: Option<&Axis>,
) -> Vec<Interleaved> {
    let axes = if vector == VectorAxis::Grid { &body.grid } else { &body.row };
    let Some(axis) = axes.last().filter(|_| inner.is_none()) else { return Vec::new() };
    let of_stage = |stage: &Stage| interleaved(&kernel.buffers, &stage.insts, axis.var);
    body.stages.iter().flat_map(of_stage).collect()
}

/// Finds the groups of a stage along an axis.
pub(super) fn interleaved(buffers: &[BufferArg], insts: &[Inst], var: Symbol) -> Vec<Interleaved> {
    let candidates = insts.iter().enumerate().filter_map(|(order, inst)| candidate(buffers, inst, order, var));
    let mut left: Vec<Candidate<'_>> = candidates.collect();
    let mut found = Vec::new();
    while let Some(&some) = left.first() {
        // Those whose places differ by a number.
        let mut run: Vec<(i64, Candidate<'_>)> = Vec::new();
        left.retain(|other| {
            let alike = other.place.buffer == some.place.buffer
                && other.stride == some.stride
                && other.stored.is_some() == some.stored.is_some();
            let distance = if alike { (&other.place.offset - &some.place.offset).as_const() } else { None };
            run.extend(distance.map(|distance| (distance, *other)));
            distance.is_none()
        });
        run.sort_by_key(|(distance, _)| *distance);
        run.dedup_by_key(|(distance, _)| *distance);
        let (count, backwards) = (some.stride.unsigned_abs() as usize, some.stride < 0);
        let mut rest = run.as_slice();
        while rest.len() >= count {
            let (group, after) = rest.split_at(count);
            if group[count - 1].0 - group[0].0 != count as i64 - 1 {
                rest = &rest[1..];
                continue;
            }
            let last = group.iter().map(|(_, one)| one.order).max();
            let values: Vec<ValueId> = group.iter().filter_map(|(_, one)| one.stored).collect();
            found.extend(group.iter().enumerate().map(|(number, (_, one))| Interleaved {
                place: one.place.clone(),
                is_store: one.stored.is_some(),
                first: group[0].1.place.clone(),
                number,
                count,
                backwards,
                values: values.clone(),
                is_last: Some(one.order) == last,
            }));
            rest = after;
        }
        if count == 2 && some.stored.is_none() {
            add_neighbours(&run, &mut found);
        }
    }
    found
}

/// Loads of every second element that no pair is left for, beside one that is in a pair (the third of a window of three): both are read once more.
fn add_neighbours(run: &[(i64, Candidate<'_>)], found: &mut Vec<Interleaved>) {
    for pair in run.windows(2) {
        let [(before, first), (at, one)] = pair else { continue };
        if at - before == 1 && !found.iter().any(|other| other.is(one.place, false)) {
            found.push(Interleaved {
                place: one.place.clone(),
                is_store: false,
                first: first.place.clone(),
                number: 1,
                count: 2,
                backwards: one.stride < 0,
                values: Vec::new(),
                is_last: false,
            });
        }
    }
}

fn candidate<'a>(buffers: &[BufferArg], inst: &'a Inst, order: usize, var: Symbol) -> Option<Candidate<'a>> {
    let (place, stored) = match &inst.kind {
        InstKind::Load { place, guard: None } => (place, None),
        InstKind::Store { place, value, guard: None } => (place, Some(*value)),
        _ => return None,
    };
    let buffer = buffers.get(place.buffer)?;
    let whole = matches!(buffer.dtype, DType::F32 | DType::I32 | DType::F64);
    // What is read and written is read in order.
    let apart = stored.is_some() || buffer.access == BufferAccess::Read;
    let (stride, _) = place.offset.linear_in(var)?;
    let stride = stride.as_const().filter(|stride| {
        let (apart, forwards) = (stride.unsigned_abs(), *stride > 0);
        (2..=MOST).contains(&apart) && apart.is_power_of_two() && (forwards || stored.is_none())
    })?;
    let halves = buffer.dtype == DType::Bf16 && stride.unsigned_abs() == 2;
    let fits = (whole || halves) && apart && place.indirect.is_empty();
    fits.then_some(Candidate { place, stride, stored, order })
}

impl Interleaved {
    /// Whether it is this access.
    pub(super) fn is(&self, place: &Place, is_store: bool) -> bool {
        self.is_store == is_store && self.place == *place
    }

    /// Its cost in rough cycles per element: a vector, and its share of the permutations.
    pub(super) fn cost(&self) -> f64 {
        0.5 + 0.1 * (f64::from(self.count.ilog2()) + f64::from(u8::from(self.backwards)))
    }
}

impl Lowerer<'_> {
    /// The group that an access is in.
    fn group(&self, place: &Place, is_store: bool) -> Option<&Interleaved> {
        self.along.filter(|along| !along.paired)?;
        self.interleaved.iter().find(|one| one.is(place, is_store))
    }

    /// The address of the first element of a run at the first lane, and the masks of its vectors that are not whole.
    fn run(&mut self, first: &Place, base: V, dtype: DType, count: usize) -> Result<Option<Run>, LowerError> {
        let Some(along) = self.along else { return Ok(None) };
        let Some((stride, rest)) = first.offset.linear_in(along.var) else { return Ok(None) };
        let backwards = stride.as_const().is_some_and(|stride| stride < 0);
        let (rest, lane, times) = (self.scalar_expr(&rest)?, self.first_lane(along), self.b.number(count as i64));
        if backwards {
            let moved = self.b.int(IntOp::Mul, lane, times);
            let start = self.b.int(IntOp::Sub, rest, moved);
            // The last lane is the first in memory.
            let start = self.b.int(IntOp::Add, start, times);
            let lowest = self.b.add_lanes(start, -(count as i32));
            let mut masks = vec![V::NONE; count];
            if along.tail.is_some() {
                // The first elements in memory are those of lanes that do not exist. Pairs of bf16 are one lane each.
                let (after, zero) = (self.b.add_lanes(lane, 1), self.b.number(0));
                let missing = self.b.int(IntOp::Sub, after, along.end);
                let halves = dtype.size_in_bits() == 16;
                let missing = if halves { missing } else { self.b.int(IntOp::Mul, missing, times) };
                for (n, mask) in masks.iter_mut().enumerate() {
                    let first = self.b.add_lanes(zero, n as i32);
                    let absent = self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[first, missing]);
                    *mask = self.b.not(absent);
                }
            }
            return Ok(Some(Run { address: self.advance(base, lowest, dtype), masks }));
        }
        let moved = self.b.int(IntOp::Mul, lane, times);
        let base = self.advance(base, rest, dtype);
        let address = self.advance(base, moved, dtype);
        let mut masks = vec![along.tail; count];
        if along.tail.is_some() && dtype.size_in_bits() != 16 {
            let end = self.b.int(IntOp::Mul, along.end, times);
            for (n, mask) in masks.iter_mut().enumerate() {
                let start = self.b.add_lanes(moved, n as i32);
                *mask = self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[start, end]);
            }
        }
        Ok(Some(Run { address, masks }))
    }

    /// The elements of a load that is one of a group.
    pub(super) fn load_interleaved(&mut self, place: &Place, base: V, dtype: DType) -> Result<Option<V>, LowerError> {
        let Some(one) = self.group(place, false) else { return Ok(None) };
        let (first, count, mut number, backwards) = (one.first.clone(), one.count, one.number, one.backwards);
        let Some(Run { address, masks }) = self.run(&first, base, dtype, count)? else { return Ok(None) };
        if dtype.size_in_bits() == 16 {
            let args = [address, V::NONE, masks[0]];
            let both = self.b.pure(Op::Load(whole(DType::I32, 0)), Ty::I32, Ty::I32, &args);
            let half = self.half(both, number == 1, dtype);
            return Ok(Some(if backwards { self.reversed(Ty::I32, half) } else { half }));
        }
        let ty = Ty::of(dtype);
        let load = |(n, mask): (usize, &V)| self.b.pure(Op::Load(whole(dtype, n)), ty, ty, &[address, V::NONE, *mask]);
        let mut parts: Vec<V> = masks.iter().enumerate().map(load).collect();
        // Half of what is left, by each bit of the number. What the others of the group need, too, is computed once.
        while parts.len() > 1 {
            let op = if number.is_multiple_of(2) { BinOp::Evens } else { BinOp::Odds };
            parts = parts.chunks_exact(2).map(|pair| self.b.bin(op, ty, pair[0], pair[1])).collect();
            number /= 2;
        }
        Ok(parts.first().map(|&lanes| if backwards { self.reversed(ty, lanes) } else { lanes }))
    }

    /// The even or the odd elements of pairs of bf16: as floats, or as their bits where those are only moved.
    fn half(&mut self, both: V, odd: bool, dtype: DType) -> V {
        let is_moved = dtype == DType::I16;
        match (odd, is_moved) {
            (true, true) => self.b.shift(BinOp::Sar, Ty::I32, both, 16),
            (true, false) => {
                let high = self.b.bits(Ty::I32, 0xffff_0000);
                self.b.and(Ty::I32, both, high)
            }
            (false, true) => {
                let high = self.b.shift(BinOp::Shl, Ty::I32, both, 16);
                self.b.shift(BinOp::Sar, Ty::I32, high, 16)
            }
            (false, false) => self.b.shift(BinOp::Shl, Ty::I32, both, 16),
        }
    }

    /// Pairs of bf16 from their even and odd elements.
    fn joined_halves(&mut self, even: ValueId, odd: ValueId) -> Result<V, LowerError> {
        let is_moved = [even, odd].map(|v| self.moved.get(v.0 as usize) == Some(&true));
        let mut parts = [V::NONE; 2];
        for (part, (v, is_moved)) in parts.iter_mut().zip([even, odd].into_iter().zip(is_moved)) {
            let value = self.value(v)?;
            *part = self.as_vector(value, if is_moved { DType::I32 } else { DType::F32 });
        }
        let [even, odd] = parts;
        if is_moved == [true; 2] {
            let low = self.b.bits(Ty::I32, 0xffff);
            let (even, odd) = (self.b.and(Ty::I32, even, low), self.b.shift(BinOp::Shl, Ty::I32, odd, 16));
            return Ok(self.b.bin(BinOp::Or, Ty::I32, even, odd));
        }
        let as_float = |low: &mut Self, v: V, is_moved: bool| {
            if is_moved { low.b.shift(BinOp::Shl, Ty::I32, v, 16) } else { v }
        };
        let (even, odd) = (as_float(self, even, is_moved[0]), as_float(self, odd, is_moved[1]));
        Ok(self.b.pure(Op::PackBf16, Ty::F32, Ty::I32, &[even, odd]))
    }

    /// Stores a whole group with the last of it; false for a store that is in none.
    pub(super) fn store_interleaved(&mut self, place: &Place, base: V, dtype: DType) -> Result<bool, LowerError> {
        let Some(one) = self.group(place, true) else { return Ok(false) };
        if !one.is_last {
            return Ok(true);
        }
        let (first, count, values) = (one.first.clone(), one.count, one.values.clone());
        if let (16, [even, odd]) = (dtype.size_in_bits(), values.as_slice()) {
            let both = self.joined_halves(*even, *odd)?;
            let Some(Run { address, masks }) = self.run(&first, base, dtype, count)? else { return Ok(false) };
            self.b.effect(Op::Store(whole(DType::I32, 0)), Ty::I32, &[address, V::NONE, masks[0], both]);
            return Ok(true);
        }
        let ty = Ty::of(dtype);
        let mut lists = Vec::with_capacity(count);
        for value in values {
            let value = self.value(value)?;
            lists.push(vec![self.as_vector(value, dtype)]);
        }
        // Lists that are half as many apart become one, element by element.
        while lists.len() > 1 {
            let late = lists.split_off(lists.len() / 2);
            let mut joined =
                |(a, b): (&V, &V)| [BinOp::InterleaveLow, BinOp::InterleaveHigh].map(|op| self.b.bin(op, ty, *a, *b));
            lists = lists.iter().zip(&late).map(|(a, b)| a.iter().zip(b).flat_map(&mut joined).collect()).collect();
        }
        let Some(Run { address, masks }) = self.run(&first, base, dtype, count)? else { return Ok(false) };
        for (n, (&vector, mask)) in lists.iter().flatten().zip(masks).enumerate() {
            self.b.effect(Op::Store(whole(dtype, n)), ty, &[address, V::NONE, mask, vector]);
        }
        Ok(true)
    }
}

/// Memory of whole vectors side by side.
fn whole(dtype: DType, vectors: usize) -> Memory {
    Memory { dtype, access: Access::Contiguous, vectors: vectors as u8, wide_index: false, disp: 0 }
}
