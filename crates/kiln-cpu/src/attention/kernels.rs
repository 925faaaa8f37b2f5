//! The kernels of an attention: generated once per process for each target and element type, then shared.

use super::dot::{self, DotFn};
use super::portable;
use super::softmax::{self, SoftmaxFn};
use super::tile::{self, Along, Element, TileFn, TileShape};
use crate::asm::{Assembler, Label};
use crate::features::Isa;
use crate::memory::{CodeArena, MemoryError};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// A family of kernels, generated together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Family {
    Tiles(Along, Element),
    Dots(Element),
    Columns { pairs: bool },
    Row,
}

type Known = HashMap<(Isa, Family), &'static [usize]>;

/// Entries of a family's kernels, in the order they were generated.
fn entries(isa: Isa, family: Family) -> Result<&'static [usize], MemoryError> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(entries) = known.get(&(isa, family)) {
        return Ok(entries);
    }
    let mut asm = Assembler::new();
    let labels: Vec<Label> = match family {
        Family::Tiles(along, element) => tile_shapes(isa)
            .map(|(rows, vectors)| tile::generate(&mut asm, TileShape { isa, along, element, rows, vectors }))
            .collect(),
        Family::Dots(element) => {
            (1..=dot::max_queries(isa)).map(|queries| dot::generate(&mut asm, isa, element, queries)).collect()
        }
        Family::Columns { pairs } => vec![softmax::generate_columns(&mut asm, isa, pairs)],
        Family::Row => vec![softmax::generate_row(&mut asm, isa)],
    };
    let offsets: Vec<usize> = labels.into_iter().filter_map(|label| asm.offset_of(label)).collect();
    // The code serves every attention of the process and is never freed.
    let code = Box::leak(Box::new(CodeArena::global().install(&asm.finish())?));
    let entries: Vec<usize> = offsets.into_iter().map(|offset| code.as_ptr() as usize + offset).collect();
    let entries: &'static [usize] = Box::leak(entries.into_boxed_slice());
    known.insert((isa, family), entries);
    Ok(entries)
}

/// Rows and vectors of every tile of a target.
fn tile_shapes(isa: Isa) -> impl Iterator<Item = (usize, usize)> {
    let most = tile::max_rows(isa);
    most.iter().enumerate().flat_map(|(v, &rows)| (1..=rows).map(move |r| (r, v + 1)))
}

/// Micro-kernels of every tile shape.
#[derive(Clone)]
pub(super) struct Tiles {
    max_rows: &'static [usize],
    /// `[vectors - 1][rows - 1]`
    table: Vec<Vec<TileFn>>,
}

impl Tiles {
    pub(super) fn new(isa: Isa, along: Along, element: Element) -> Result<Tiles, MemoryError> {
        let max_rows = tile::max_rows(isa);
        let mut table: Vec<Vec<TileFn>> = vec![Vec::new(); max_rows.len()];
        if isa == Isa::Portable {
            for (rows, vectors) in tile_shapes(isa) {
                table[vectors - 1].push(portable::tile_kernel(along, rows, vectors));
            }
        } else {
            let entries = entries(isa, Family::Tiles(along, element))?;
            for ((_, vectors), &entry) in tile_shapes(isa).zip(entries) {
                // SAFETY: the entry is code of this signature that is never freed.
                table[vectors - 1].push(unsafe { std::mem::transmute::<usize, TileFn>(entry) });
            }
        }
        Ok(Tiles { max_rows, table })
    }

    /// The kernel of a tile.
    pub(super) fn get(&self, rows: usize, vectors: usize) -> TileFn {
        self.table[vectors - 1][rows - 1]
    }

    /// The most rows of a tile of `vectors` vectors.
    pub(super) fn max_rows(&self, vectors: usize) -> usize {
        self.max_rows[vectors - 1]
    }

    /// The most vectors of a tile of `rows` rows.
    pub(super) fn max_vectors(&self, rows: usize) -> usize {
        self.max_rows.iter().rposition(|&most| most >= rows).map_or(1, |v| v + 1)
    }
}

/// Dot-product kernels, by number of queries.
pub(super) fn dots(isa: Isa, element: Element) -> Result<Vec<DotFn>, MemoryError> {
    if isa == Isa::Portable {
        return Ok((1..=dot::max_queries(isa)).map(portable::dot_kernel).collect());
    }
    let entries = entries(isa, Family::Dots(element))?;
    // SAFETY: the entries are code of this signature that is never freed.
    Ok(entries.iter().map(|&entry| unsafe { std::mem::transmute::<usize, DotFn>(entry) }).collect())
}

/// The softmax over columns.
pub(super) fn softmax_columns(isa: Isa, pairs: bool) -> Result<SoftmaxFn, MemoryError> {
    if isa == Isa::Portable {
        return Ok(portable::softmax_columns);
    }
    // SAFETY: the entry is code of this signature that is never freed.
    Ok(unsafe { std::mem::transmute::<usize, SoftmaxFn>(entries(isa, Family::Columns { pairs })?[0]) })
}

/// The softmax over a row.
pub(super) fn softmax_row(isa: Isa) -> Result<SoftmaxFn, MemoryError> {
    if isa == Isa::Portable {
        return Ok(portable::softmax_row);
    }
    // SAFETY: the entry is code of this signature that is never freed.
    Ok(unsafe { std::mem::transmute::<usize, SoftmaxFn>(entries(isa, Family::Row)?[0]) })
}
