//! An axis inside the loop over vectors. Loads with a large stride along the lanes are contiguous along it, so blocks of them
//! are transposed into local memory, from which lanes are read contiguously.

use super::*;
use kiln_kernels::kernel::Place;

/// The most loads that are transposed; each takes a block of local memory.
const MOST: usize = 4;

/// The most lanes.
const ROWS: usize = 16;
/// Points of the inner axis in a block: some cache lines of each row.
const COLUMNS: usize = 64;

/// A load whose block has been transposed.
pub(super) struct TransposedLoad {
    place: Place,
    /// The copy of the body that reads it.
    copy: usize,
    /// The block.
    memory: V,
    /// Position in the block along the inner axis, times the lane count.
    index: V,
}

impl Lowerer<'_> {
    /// All stages for the current vectors, at each point of an inner axis.
    pub(super) fn stages_inside(&mut self, copies: usize, inner: Option<&Axis>) -> Result<(), LowerError> {
        let Some(axis) = inner else { return self.stages_around_vector(copies) };
        let jumping = self.jumping(axis);
        let size = self.scalar_size(axis)?;
        let zero = self.b.number(0);
        let start = self.b.counter(zero);
        let block = self.b.number(COLUMNS as i64);
        self.b.open_loop(start, size, false, Step::Elements(COLUMNS as u32));
        let end = self.b.int(IntOp::Add, start, block);
        let end = self.b.int(IntOp::Min, end, size);
        let columns = self.b.int(IntOp::Sub, end, start);
        self.symbols.push((axis.var, start));
        let mut blocks = Vec::with_capacity(jumping.len());
        for copy in 0..copies {
            self.copy = copy;
            for place in &jumping {
                let memory = self.transpose(place, columns)?;
                blocks.push((place.clone(), copy, memory));
            }
        }
        self.copy = 0;
        self.symbols.pop();
        let counter = self.b.counter(start);
        self.b.open_loop(counter, end, false, Step::Elements(1));
        self.symbols.push((axis.var, counter));
        let column = self.b.int(IntOp::Sub, counter, start);
        let index = self.b.mul_lanes(column, 1);
        let transposed = |(place, copy, memory)| TransposedLoad { place, copy, memory, index };
        self.transposed = blocks.into_iter().map(transposed).collect();
        self.stages_around_vector(copies)?;
        self.transposed.clear();
        self.symbols.pop();
        self.b.close();
        self.b.close();
        Ok(())
    }

    /// Addresses that have a large stride along the lanes and are contiguous along the inner axis.
    fn jumping(&self, axis: &Axis) -> Vec<Place> {
        let Some(along) = self.along else { return Vec::new() };
        let mut found: Vec<Place> = Vec::new();
        for inst in self.body.stages.iter().flat_map(|stage| &stage.insts) {
            let InstKind::Load { place, guard: None } = &inst.kind else { continue };
            let Some(buffer) = self.kernel.buffers.get(place.buffer) else { continue };
            let whole = buffer.access == BufferAccess::Read && buffer.dtype != DType::I4 && place.indirect.is_empty();
            let jumps =
                matches!(place.offset.linear_in(along.var), Some((stride, _)) if !stride.is_zero() && !stride.is_one());
            let steps = matches!(place.offset.linear_in(axis.var), Some((stride, _)) if stride.is_one());
            if whole && jumps && steps && found.len() < MOST && !found.contains(place) {
                found.push(place.clone());
            }
        }
        found
    }

    /// Transposes the block at the current vector and position of the inner axis; returns its memory.
    fn transpose(&mut self, place: &Place, columns: V) -> Result<V, LowerError> {
        let Some(along) = self.along else { return Err(LowerError::Malformed("an inner axis without a vector axis")) };
        let (base, dtype, _) = self.buffer(place.buffer)?;
        let bytes = dtype.size_in_bits() / 8;
        let Some((stride, rest)) = place.offset.linear_in(along.var) else {
            return Err(LowerError::Malformed("a place that does not jump"));
        };
        let (stride, rest) = (self.scalar_expr(&stride)?, self.scalar_expr(&rest)?);
        let lane = self.first_lane(along);
        let moved = self.b.int(IntOp::Mul, lane, stride);
        let source = self.advance(base, rest, dtype);
        let source = self.advance(source, moved, dtype);
        // Lanes beyond the end are not read.
        let zero = self.b.number(0);
        let mut rows = self.b.add_lanes(zero, 1);
        if along.tail.is_some() {
            let left = self.b.int(IntOp::Sub, along.end, along.counter);
            rows = self.b.int(IntOp::Min, rows, left);
        }
        let word = self.b.number(1 << 32);
        let shape = self.b.int(IntOp::Mul, rows, word);
        let shape = self.b.int(IntOp::Add, shape, columns);
        let memory = self.b.local((ROWS * COLUMNS * bytes) as u32);
        self.b.effect(Op::Transpose(bytes as u8), Ty::Int, &[source, stride, memory, shape]);
        Ok(memory)
    }

    /// The block and the index of a load that has been transposed.
    pub(super) fn transposed_target(&self, place: &Place) -> Option<(V, V)> {
        let found =
            self.transposed.iter().find(|transposed| transposed.copy == self.copy && transposed.place == *place)?;
        Some((found.memory, found.index))
    }
}
