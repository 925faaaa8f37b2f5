//! Kernels as CUDA C++ text.
//!
//! ```text
//!  Kernel ──▶ Loop       loops      a thread a point, or threads side by side that share a row
//!             Matmul     skinny     few rows: the weight is read once, at the speed of memory
//!                        tensor     short floats on tensor cores
//!                        matmul     tiles in shared memory
//!             Attention  decode     few queries: keys split over a cluster of blocks
//!                        prefill    short floats on tensor cores
//!                        attention  a warp a query row, online softmax over tiles of keys
//!             Routine    routine    scan, sort, scatter
//!                  │
//!                  └─ positions: index    instructions: value    functions of the device: *.cu
//! ```
//!
//! A text needs no headers, is compiled by itself and has one entry, `kernel`. Its parameters are the kernel's buffers, its size
//! symbols, a record for faults, the number that a fault names the launch by, and memory for row temporaries.

mod attention;
mod decode;
mod index;
mod loops;
mod matmul;
mod prefill;
mod routine;
mod skinny;
mod tensor;
mod value;
mod vector;

pub use skinny::Skinny;
pub use tensor::Tile;

use index::{Names, Width};
use kiln_ir::{Dim, Symbol};
use kiln_kernels::kernel::{Access, Axis, Inst, InstKind, Kernel, KernelBody};
use std::fmt::Write;

/// Threads of a block where nothing speaks for another number.
const THREADS: u32 = 256;
/// Blocks of a launch at the most; threads go on to further points.
const MOST_BLOCKS: i64 = 1 << 16;
/// The largest number that 32-bit index arithmetic may meet, with room for one step beyond the end.
const NARROW: i64 = 1 << 30;

/// A kernel as text, and how it is launched.
#[derive(Debug, Clone)]
pub struct Text {
    /// CUDA C++.
    pub source: String,
    /// The number of blocks.
    pub blocks: Dim,
    /// Blocks at the most.
    pub most_blocks: i64,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes that a block needs beside what the text declares, in shared memory or, where that is too small, in the device's.
    pub block_bytes: Dim,
    /// The buffers that have to begin at a multiple of 16 bytes; the [plain](Way::plain) text has none.
    pub aligned: Vec<usize>,
    /// Whether it may report an index that is out of range.
    pub may_fault: bool,
    sizes: Vec<Symbol>,
}

impl Text {
    /// The value of a size of this kernel at a launch.
    pub fn eval(&self, dim: &Dim, sizes: &[i64]) -> Option<i64> {
        eval(dim, &self.sizes, sizes)
    }
}

/// The value of an expression over a kernel's size symbols, given their values.
pub(crate) fn eval(dim: &Dim, symbols: &[Symbol], sizes: &[i64]) -> Option<i64> {
    dim.eval(&|symbol| symbols.iter().position(|s| *s == symbol).and_then(|at| sizes.get(at).copied()))
}

/// What a generator makes: the body of `kernel`, and how it is launched.
struct Body {
    /// Device functions beyond the prelude.
    functions: &'static [&'static str],
    statements: String,
    width: Width,
    blocks: Dim,
    most_blocks: i64,
    threads: u32,
    block_bytes: Dim,
    /// Blocks of a cluster; one where there are no clusters.
    cluster: u32,
    /// Blocks that a multiprocessor should have registers for at once.
    resident: u32,
    aligned: Vec<usize>,
}

/// What a text may count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Whether buffers may be accessed several elements at a time.
    pub vectors: bool,
    /// Whether blocks may form clusters, as from compute capability 9.0 on.
    pub clusters: bool,
    /// How products of a few rows are spread over threads.
    pub skinny: Skinny,
    /// The tile of products on tensor cores; chosen by their size where there is none.
    pub tile: Option<Tile>,
}

impl Way {
    /// What an architecture has, for buffers that begin at a multiple of 16 bytes.
    pub fn of(arch: &str) -> Way {
        let number: u32 = arch.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
        Way { vectors: true, clusters: number >= 90, skinny: Skinny::default(), tile: None }
    }

    /// What works for buffers that begin anywhere.
    pub fn plain() -> Way {
        Way { vectors: false, clusters: false, skinny: Skinny::default(), tile: None }
    }
}

/// The text of a kernel.
pub fn generate(kernel: &Kernel, way: Way) -> Result<Text, String> {
    let body = match &kernel.body {
        KernelBody::Loop(body) => loops::generate(kernel, body, way)?,
        KernelBody::Matmul(body) => {
            let special =
                || skinny::generate(kernel, body, way.skinny).or_else(|| tensor::generate(kernel, body, way.tile));
            match way.vectors.then(special).flatten() {
                Some(made) => made,
                None => matmul::generate(kernel, body)?,
            }
        }
        KernelBody::Attention(body) => {
            match decode::generate(kernel, body, way).or_else(|| prefill::generate(kernel, body, way)) {
                Some(made) => made,
                None => attention::generate(kernel, body)?,
            }
        }
        KernelBody::Routine(body) => routine::generate(kernel, body)?,
    };
    let index = if body.width == Width::Narrow { "int" } else { "long long" };
    let mut source = format!("typedef {index} idx;\n");
    source.push_str(include_str!("prelude.cu"));
    body.functions.iter().for_each(|functions| source.push_str(functions));
    let threads = body.threads;
    let resident = if body.resident > 1 { format!(",{}", body.resident) } else { String::new() };
    let cluster = if body.cluster > 1 { format!("__cluster_dims__({},1,1) ", body.cluster) } else { String::new() };
    let _ = writeln!(
        source,
        "extern \"C\" __global__ void {cluster}__launch_bounds__({threads}{resident}) kernel({}) {{",
        parameters(kernel)
    );
    source.push_str(&body.statements);
    source.push_str("}\n");
    let may_fault = match &kernel.body {
        KernelBody::Loop(_) | KernelBody::Matmul(_) => {
            kernel.insts().any(|inst| matches!(inst.kind, InstKind::CheckIndex { .. }))
        }
        KernelBody::Attention(_) | KernelBody::Routine(_) => true,
    };
    let Body { blocks, most_blocks, block_bytes, mut aligned, .. } = body;
    aligned.sort_unstable();
    aligned.dedup();
    Ok(Text { source, blocks, most_blocks, threads, block_bytes, aligned, may_fault, sizes: kernel.sizes.clone() })
}

fn parameters(kernel: &Kernel) -> String {
    let mut list: Vec<String> = Vec::new();
    for (number, buffer) in kernel.buffers.iter().enumerate() {
        let constant = if buffer.access == Access::Read { "const " } else { "" };
        list.push(format!("{constant}{}* __restrict__ b{number}", value::memory_type(buffer.dtype)));
    }
    list.extend((0..kernel.sizes.len()).map(|number| format!("long long s{number}")));
    list.push("Fault* fault, unsigned site, unsigned char* workspace, long long workspace_bytes".to_owned());
    list.join(", ")
}

/// Statements that take a number apart into the positions along some axes, the last one fastest.
fn decode(names: &Names, axes: &[Axis], prefix: &str, number: &str, width: Width) -> String {
    let mut out = String::new();
    let word = if width == Width::Narrow { "unsigned" } else { "long long" };
    let _ = writeln!(out, "{word} {prefix}_rest=({word}){number};");
    for (at, axis) in axes.iter().enumerate().rev() {
        let size = names.text(&axis.size, width);
        let _ = match at {
            0 => writeln!(out, "const idx {prefix}{at}=(idx){prefix}_rest;"),
            _ => writeln!(
                out,
                "const idx {prefix}{at}=(idx)({prefix}_rest%({word}){size}); {prefix}_rest/=({word}){size};"
            ),
        };
    }
    out
}

/// The number of points of some axes.
pub(crate) fn points(axes: &[Axis]) -> Dim {
    axes.iter().fold(Dim::from(1), |product, axis| product * &axis.size)
}

fn ceil_div(a: &Dim, b: i64) -> Dim {
    (a + (b - 1)).floor_div(&Dim::from(b))
}

/// 32 bits if every position and every number of points is known to fit.
fn width<'a>(names: &Names, insts: impl Iterator<Item = &'a Inst>, counts: &[&Dim]) -> Width {
    let fits = |dim: &Dim| names.magnitude(dim).is_some_and(|most| most < NARROW);
    let inst_fits = |inst: &Inst| match &inst.kind {
        InstKind::Index(dim) => fits(dim),
        InstKind::InRange { expr, low, high } => fits(expr) && fits(low) && fits(high),
        InstKind::Load { place, .. } | InstKind::Store { place, .. } => {
            fits(&place.offset) && place.indirect.iter().all(|(_, stride)| fits(stride))
        }
        InstKind::LoadBlock { place, element, .. } => fits(&place.offset) && fits(element),
        InstKind::CheckIndex { size, .. } => fits(size),
        InstKind::Random { position, .. } => fits(position),
        _ => true,
    };
    let mut insts = insts;
    if counts.iter().all(|dim| fits(dim)) && insts.all(inst_fits) { Width::Narrow } else { Width::Wide }
}
