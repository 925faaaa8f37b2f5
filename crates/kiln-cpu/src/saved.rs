//! Generated code in a form that another process can run. Code is position independent but for the functions it calls, which
//! are stored by name. Only code of one kernel alone is worth storing: micro-kernels of products and attention are shared by
//! all of them, and generated in a fraction of a millisecond per process.

use crate::emit::{Call, Callee, Emitted};
use crate::features::Isa;
use crate::lower::Options;
use crate::vir::Ty;
use kiln_ir::codec::to_bytes;
use kiln_ir::{Dim, codec_enum, codec_struct};
use kiln_kernels::kernel::{Kernel, LoopBody};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What [`kiln_runtime::Executable::save`] gives for some pieces.
pub(crate) fn saved(pieces: Vec<Piece>) -> Option<Vec<u8>> {
    (!pieces.is_empty()).then(|| to_bytes(&pieces))
}

/// The code of one loop nest, and how it is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// A hash of what it is the code of: a piece is used for nothing else.
    pub content: u64,
    /// The code, with zeros for addresses.
    pub bytes: Arc<[u8]>,
    /// The calls whose addresses are to be filled in.
    pub calls: Vec<Call>,
    /// As [`crate::lower::Lowered`] has them.
    pub units: Dim,
    /// Points inside a unit.
    pub row: Dim,
    /// Bytes of scratch memory per thread.
    pub scratch: Dim,
    /// Rough cost of a unit and row point.
    pub cost: u64,
    /// Whether a unit is one lane.
    pub unit_is_lane: bool,
}

impl Piece {
    /// The content key of a piece for this loop nest.
    pub fn content_of(kernel: &Kernel, body: &LoopBody, isa: Isa, options: Options) -> u64 {
        let mut hasher = DefaultHasher::new();
        (kernel, body, isa, options).hash(&mut hasher);
        hasher.finish()
    }

    /// The code; `None` where an address is outside of it.
    pub fn emitted(&self) -> Option<Emitted> {
        let inside = |call: &Call| call.at.checked_add(8).is_some_and(|end| end <= self.bytes.len());
        let whole = !self.bytes.is_empty() && self.calls.iter().all(inside);
        whole.then(|| Emitted { bytes: self.bytes.to_vec(), calls: self.calls.clone() })
    }
}

codec_struct! {
    Piece { content, bytes, calls, units, row, scratch, cost, unit_is_lane }
    Call { at, callee }
}

codec_enum! {
    Callee { 0 = Lanes(ty), 1 = Transpose(bytes) }
    Ty { 0 = F32, 1 = F64, 2 = I32, 3 = I64, 4 = Mask, 5 = Int, 6 = I16, 7 = I8 }
}
