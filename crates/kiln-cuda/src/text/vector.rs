//! Accesses of several neighbouring elements at once: a thread takes as many neighbours along one axis as fit 16 bytes.

use super::value::{Statements, memory_type};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Axis, Inst, InstKind, Kernel, Place, ValueId};
use std::fmt::Write;

/// Neighbours that a thread takes at the most.
const MOST: i64 = 8;
/// Bytes of the widest access.
pub(super) const BYTES: i64 = 16;

/// The neighbours that a thread takes along an axis.
pub(crate) struct Vector {
    /// How many; a power of two that divides the axis.
    pub(crate) lanes: i64,
    /// The loads of contiguous elements.
    loads: Vec<(ValueId, usize)>,
    /// The stores likewise.
    stores: Vec<(ValueId, usize)>,
    /// The loads that give all of the neighbours the same element.
    same: Vec<(ValueId, usize)>,
    /// What follows the name of a wide value, where there are several of each.
    pub(crate) suffix: &'static str,
}

impl Vector {
    /// As many neighbours along `axis` as can be accessed at once; `None` where nothing can.
    pub(crate) fn choose<'a>(
        kernel: &Kernel,
        insts: impl Iterator<Item = &'a Inst> + Clone,
        axis: &Axis,
    ) -> Option<Vector> {
        Vector::choose_up_to(kernel, insts, axis, MOST)
    }

    /// The same for at most so many.
    pub(crate) fn choose_up_to<'a>(
        kernel: &Kernel,
        insts: impl Iterator<Item = &'a Inst> + Clone,
        axis: &Axis,
        most: i64,
    ) -> Option<Vector> {
        let size = axis.size.as_const()?;
        Vector::widest(kernel, insts, axis, most, &|lanes| size % lanes == 0)
    }

    /// As many neighbours as can be accessed at once where those at the end of the axis are taken one by one; `None` unless everything
    /// along the axis can.
    pub(crate) fn choose_ragged<'a>(
        kernel: &Kernel,
        insts: impl Iterator<Item = &'a Inst> + Clone,
        axis: &Axis,
    ) -> Option<Vector> {
        let vector = Vector::widest(kernel, insts.clone(), axis, MOST, &|_| true)?;
        let is_along = |inst: &Inst| match &inst.kind {
            InstKind::Load { place, .. } | InstKind::Store { place, .. } => {
                place.offset.contains(axis.var) || !place.indirect.is_empty()
            }
            _ => false,
        };
        let mut along = insts.filter(|inst| is_along(inst));
        along.all(|inst| vector.has(inst.id)).then_some(vector)
    }

    fn widest<'a>(
        kernel: &Kernel,
        insts: impl Iterator<Item = &'a Inst> + Clone,
        axis: &Axis,
        most: i64,
        fits: &dyn Fn(i64) -> bool,
    ) -> Option<Vector> {
        let bytes =
            |(_, place, _): (ValueId, &Place, bool)| kernel.buffers[place.buffer].dtype.size_in_bits() as i64 / 8;
        let least = accesses(insts.clone()).map(bytes).filter(|&bytes| bytes > 0).min()?;
        let mut lanes = (BYTES / least).min(most);
        while lanes > 1 {
            let vector = Vector::of(kernel, insts.clone(), axis, lanes);
            if fits(lanes) && vector.buffers().next().is_some() {
                return Some(vector);
            }
            lanes /= 2;
        }
        None
    }

    /// What can be accessed `lanes` neighbours at a time.
    pub(crate) fn of<'a>(
        kernel: &Kernel,
        insts: impl Iterator<Item = &'a Inst> + Clone,
        axis: &Axis,
        lanes: i64,
    ) -> Vector {
        let is_known = |value: ValueId| insts.clone().all(|inst| inst.id != value);
        let of = |stores: bool| {
            let fits = |(_, place, is_store): &(ValueId, &Place, bool)| {
                *is_store == stores && is_vector(kernel, place, axis, lanes, &is_known)
            };
            accesses(insts.clone()).filter(fits).map(|(id, place, _)| (id, place.buffer)).collect()
        };
        Vector { lanes, loads: of(false), stores: of(true), same: Vec::new(), suffix: "" }
    }

    /// Nothing is wide: neighbours are taken one by one.
    pub(crate) fn none() -> Vector {
        Vector { lanes: 1, loads: Vec::new(), stores: Vec::new(), same: Vec::new(), suffix: "" }
    }

    /// With the loads of elements that do not depend on the axis, nor on data: each is done once for all neighbours.
    pub(crate) fn with_same<'a>(
        self,
        kernel: &Kernel,
        insts: impl Iterator<Item = &'a Inst> + Clone,
        axis: &Axis,
    ) -> Vector {
        let is_same = |(_, place, is_store): &(ValueId, &Place, bool)| {
            let whole = kernel.buffers[place.buffer].dtype != DType::I4;
            !is_store && whole && place.indirect.is_empty() && !place.offset.contains(axis.var)
        };
        let same = accesses(insts).filter(is_same).map(|(id, place, _)| (id, place.buffer)).collect();
        Vector { same, ..self }
    }

    /// Bytes of the wide loads of a thread.
    pub(crate) fn bytes(&self, kernel: &Kernel) -> i64 {
        let size = |(_, buffer): &(ValueId, usize)| kernel.buffers[*buffer].dtype.size_in_bits() as i64 / 8;
        self.loads.iter().map(size).sum::<i64>() * self.lanes
    }

    /// Element `e` of the wide value of a load or store.
    pub(crate) fn element(&self, prefix: &str, id: ValueId) -> String {
        let is_load = self.loads.iter().any(|(own, _)| *own == id);
        let name = self.name(prefix, id);
        if self.same.iter().any(|(own, _)| *own == id) {
            return format!("{name}{}.at(0)", self.suffix);
        }
        if is_load { format!("{name}{}.at(e)", self.suffix) } else { format!("{name}.v[e]") }
    }

    /// Element `e` of the wide load of bytes that a value is, as a float.
    pub(crate) fn byte_as_float(&self, kernel: &Kernel, prefix: &str, id: ValueId) -> Option<String> {
        let (_, buffer) = self.loads.iter().find(|(own, _)| *own == id)?;
        let is_byte = kernel.buffers[*buffer].dtype == DType::I8 && self.lanes % 4 == 0;
        is_byte.then(|| format!("{}{}.small(e)", self.name(prefix, id), self.suffix))
    }

    fn name(&self, prefix: &str, id: ValueId) -> String {
        format!("w{prefix}{}", id.0)
    }

    /// Whether a load or store of this number is part of a wide access.
    pub(crate) fn has(&self, id: ValueId) -> bool {
        self.loads.iter().chain(&self.stores).chain(&self.same).any(|(own, _)| *own == id)
    }

    /// The buffers that have to begin at a multiple of 16 bytes.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = usize> {
        self.loads.iter().chain(&self.stores).map(|(_, buffer)| *buffer)
    }

    /// Declares what is loaded and what will be stored, where the axis is at its first neighbour.
    pub(crate) fn begin<'a>(&self, statements: &Statements<'_>, insts: impl Iterator<Item = &'a Inst>) -> String {
        let Statements { kernel, prefix, .. } = statements;
        let mut out = String::new();
        for inst in insts.filter(|inst| self.has(inst.id)) {
            let _ = match &inst.kind {
                InstKind::Load { place, .. } => {
                    let (ty, name, at) =
                        (self.loaded(kernel, place), self.name(prefix, inst.id), statements.position(place));
                    writeln!(out, "const {ty} {name}=*(const {ty}*)(b{}+{at});", place.buffer)
                }
                InstKind::Store { place, .. } => {
                    writeln!(out, "{} {};", self.stored(kernel, place), self.name(prefix, inst.id))
                }
                _ => Ok(()),
            };
        }
        out
    }

    /// Declares what will be stored.
    pub(crate) fn begin_stores<'a>(
        &self,
        statements: &Statements<'_>,
        insts: impl Iterator<Item = &'a Inst>,
    ) -> String {
        self.begin(statements, insts.filter(|inst| matches!(inst.kind, InstKind::Store { .. })))
    }

    /// Declares an array of wide values a load, and returns the statements that fill one place of each.
    pub(crate) fn ahead<'a>(
        &self,
        statements: &Statements<'_>,
        insts: impl Iterator<Item = &'a Inst>,
        count: i64,
    ) -> (String, String) {
        let (mut declared, mut filled) = (String::new(), String::new());
        for inst in insts.filter(|inst| self.has(inst.id)) {
            let InstKind::Load { place, .. } = &inst.kind else { continue };
            let ty = self.loaded(statements.kernel, place);
            let (name, at) = (self.name(statements.prefix, inst.id), statements.position(place));
            let _ = write!(declared, "{ty} {name}[{count}];");
            let _ = writeln!(filled, "{name}{}=*(const {ty}*)(b{}+{at});", self.suffix, place.buffer);
        }
        (declared, filled)
    }

    /// Bytes of all wide loads of a thread.
    pub(crate) fn loaded_bytes(&self, kernel: &Kernel) -> i64 {
        let bytes = |(_, buffer): &(ValueId, usize)| kernel.buffers[*buffer].dtype.size_in_bits() as i64 / 8;
        self.loads.iter().map(bytes).sum::<i64>() * self.lanes
    }

    /// Stores what was gathered, each behind `condition`.
    pub(crate) fn end<'a>(
        &self,
        statements: &Statements<'_>,
        insts: impl Iterator<Item = &'a Inst>,
        condition: &str,
    ) -> String {
        let Statements { kernel, prefix, .. } = statements;
        let mut out = String::new();
        for inst in insts.filter(|inst| self.has(inst.id)) {
            if let InstKind::Store { place, .. } = &inst.kind {
                let (ty, name, at) =
                    (self.stored(kernel, place), self.name(prefix, inst.id), statements.position(place));
                let _ = writeln!(out, "{condition}*({ty}*)(b{}+{at})={name};", place.buffer);
            }
        }
        out
    }

    /// The names of the wide values that loads give.
    pub(crate) fn names<'a>(&self, prefix: &str, insts: impl Iterator<Item = &'a Inst>) -> Vec<String> {
        let is_load = |inst: &&Inst| matches!(inst.kind, InstKind::Load { .. }) && self.has(inst.id);
        insts.filter(is_load).map(|inst| self.name(prefix, inst.id)).collect()
    }

    /// Declares an array of wide values a load, members of a structure, and returns the statements that fill one place of each,
    /// a member of `into`, past the caches.
    pub(crate) fn streamed<'a>(
        &self,
        statements: &Statements<'_>,
        insts: impl Iterator<Item = &'a Inst>,
        count: &str,
        into: &str,
    ) -> (String, String) {
        let (mut declared, mut filled) = (String::new(), String::new());
        for inst in insts.filter(|inst| self.has(inst.id)) {
            let InstKind::Load { place, .. } = &inst.kind else { continue };
            let lanes = if self.same.iter().any(|(own, _)| *own == inst.id) { 1 } else { self.lanes };
            let ty = loaded(statements.kernel, place, lanes);
            let (name, at) = (self.name(statements.prefix, inst.id), statements.position(place));
            let _ = write!(declared, "{ty} {name}{count};");
            let _ = writeln!(filled, "{into}{name}{}=streamed((const {ty}*)(b{}+{at}));", self.suffix, place.buffer);
        }
        (declared, filled)
    }

    /// The type of a wide load.
    pub(crate) fn loaded(&self, kernel: &Kernel, place: &Place) -> String {
        loaded(kernel, place, self.lanes)
    }

    /// The type of a wide store.
    fn stored(&self, kernel: &Kernel, place: &Place) -> String {
        format!("Wide<{},{}>", memory_type(kernel.buffers[place.buffer].dtype), self.lanes)
    }
}

fn loaded(kernel: &Kernel, place: &Place, lanes: i64) -> String {
    format!("Packed<{},{lanes}>", memory_type(kernel.buffers[place.buffer].dtype))
}

/// The loads and stores that no guard governs.
fn accesses<'a>(
    insts: impl Iterator<Item = &'a Inst> + Clone,
) -> impl Iterator<Item = (ValueId, &'a Place, bool)> + Clone {
    insts.filter_map(|inst| match &inst.kind {
        InstKind::Load { place, guard: None } => Some((inst.id, place, false)),
        InstKind::Store { place, guard: None, .. } => Some((inst.id, place, true)),
        _ => None,
    })
}

/// Whether `lanes` neighbours along the axis are neighbours in memory that begin at a multiple of their number. What data say of the
/// place has to be known before the first of them.
fn is_vector(kernel: &Kernel, place: &Place, axis: &Axis, lanes: i64, is_known: &dyn Fn(ValueId) -> bool) -> bool {
    let fits = |(value, stride): &(ValueId, Dim)| is_known(*value) && is_multiple(stride, lanes);
    if !place.indirect.iter().all(fits) || kernel.buffers[place.buffer].dtype == DType::I4 {
        return false;
    }
    let Some((step, rest)) = place.offset.linear_in(axis.var) else { return false };
    step.is_one() && is_multiple(&rest, lanes)
}

/// Whether every term is a multiple of a number.
pub(super) fn is_multiple(dim: &Dim, of: i64) -> bool {
    let mut all = !dim.is_undefined();
    dim.visit_terms(&mut |coefficient, _| all &= coefficient % of == 0);
    all
}
