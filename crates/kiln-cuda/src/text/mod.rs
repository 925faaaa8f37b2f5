//! Kernels as CUDA C++ text.
//!
//! ```text
//!  Kernel ──▶ Loop       loops      a thread a point, or threads side by side that share a row
//!                        columns    reductions of columns that are contiguous in memory
//!                        in_order   stores at places that data decide
//!             Matmul     skinny     few rows: the weight is read once, at the speed of memory
//!                        quantised  one row with quantised blocks likewise, on tensor cores as integers
//!                        strip      up to 16 rows of short floats likewise, on tensor cores
//!                        tensor     short floats on tensor cores (tiles)
//!                        warpgroup  large ones by warpgroups (compute capability 9.0)
//!                        unfold     the same where operands are unfolded, padded or not contiguous: convolutions
//!                        matmul     tiles in shared memory
//!             Attention  decode     few queries: keys split over a cluster of blocks
//!                        prefill    short floats on tensor cores
//!                        flash      the same by warpgroups (compute capability 9.0)
//!                        attention  a warp a query row, online softmax over tiles of keys
//!             AttentionBackward  backward   gradients in short floats on tensor cores
//!                        flash_backward  the same by warpgroups (compute capability 9.0)
//!                        gradient   a warp a row
//!             Routine    routine    scan, sort, scatter
//!                        scatter    rows that go somewhere whole
//!                  │
//!                  └─ positions: index    instructions: value    functions of the device: *.cu
//! ```
//!
//! A text needs no headers, is compiled by itself and has one entry, `kiln_` and the name of its generator. Its parameters are the kernel's buffers, its size
//! symbols, a record for faults, the number that a fault names the launch by, and memory for row temporaries.

mod attention;
mod backward;
mod columns;
mod decode;
mod flash;
mod flash_backward;
mod gradient;
mod in_order;
mod index;
mod loops;
mod matmul;
mod prefill;
mod quantised;
mod routine;
mod scatter;
mod skinny;
mod strip;
mod tensor;
mod tiles;
mod unfold;
mod value;
mod vector;
mod warpgroup;

pub use skinny::Skinny;
pub(crate) use strip::MOST_ROWS;
pub use tensor::Tile;

use index::{Names, Width};
use kiln_ir::codec::{Codec, DecodeError, Reader};
use kiln_ir::{Dim, Symbol};
use kiln_kernels::kernel::{Access, Axis, BufferArg, Inst, InstKind, Kernel, KernelBody};
use std::fmt::Write;

/// The device functions that every text begins with.
const PRELUDE: &str = include_str!("prelude.cu");
/// Threads of a block where nothing speaks for another number.
const THREADS: u32 = 256;
/// Threads of a block at the most.
const MOST_THREADS: u32 = 1024;
/// Blocks of a launch at the most; threads go on to further points.
const MOST_BLOCKS: i64 = 1 << 16;
/// The largest number that 32-bit index arithmetic may meet, with room for one step beyond the end.
const NARROW: i64 = 1 << 30;

/// A kernel as text, and how it is launched.
#[derive(Debug, Clone)]
pub struct Text {
    /// CUDA C++; empty in a text that was decoded, since what is launched is its cubin.
    pub source: String,
    /// The name of its entry, which profilers show: what wrote its bodies.
    pub name: String,
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
    /// The buffers that are read before the launch before has ended, if the launch says that nobody writes them.
    pub fetched: Vec<usize>,
    /// Whether it may report an index that is out of range.
    pub may_fault: bool,
    /// Whether it takes all of its blocks: several bodies have theirs beside each other, while those of one go on to further work.
    pub takes_all_blocks: bool,
    sizes: Vec<Symbol>,
}

impl Codec for Text {
    fn encode(&self, out: &mut Vec<u8>) {
        let Text {
            source: _,
            name,
            blocks,
            most_blocks,
            threads,
            block_bytes,
            aligned,
            fetched,
            may_fault,
            takes_all_blocks,
            sizes,
        } = self;
        name.encode(out);
        blocks.encode(out);
        most_blocks.encode(out);
        threads.encode(out);
        block_bytes.encode(out);
        aligned.encode(out);
        fetched.encode(out);
        may_fault.encode(out);
        takes_all_blocks.encode(out);
        sizes.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Text, DecodeError> {
        Ok(Text {
            source: String::new(),
            name: Codec::decode(from)?,
            blocks: Codec::decode(from)?,
            most_blocks: Codec::decode(from)?,
            threads: Codec::decode(from)?,
            block_bytes: Codec::decode(from)?,
            aligned: Codec::decode(from)?,
            fetched: Codec::decode(from)?,
            may_fault: Codec::decode(from)?,
            takes_all_blocks: Codec::decode(from)?,
            sizes: Codec::decode(from)?,
        })
    }
}

impl Text {
    /// Whether it may be launched as a kernel's: it refers to nothing that the kernel does not have.
    pub(crate) fn fits(&self, kernel: &Kernel) -> bool {
        let known = |buffers: &[usize]| buffers.iter().all(|&buffer| buffer < kernel.buffers.len());
        self.sizes == kernel.sizes
            && known(&self.aligned)
            && known(&self.fetched)
            && (1..=MOST_THREADS).contains(&self.threads)
    }

    /// The name of its entry where it is the one of this number of several.
    pub(crate) fn entry_name(&self, number: usize) -> String {
        format!("{}_{number}", self.name)
    }

    /// The value of a size of this kernel at a launch.
    pub fn eval(&self, dim: &Dim, sizes: &[i64]) -> Option<i64> {
        eval(dim, &self.sizes, sizes)
    }
}

/// The value of an expression over a kernel's size symbols, given their values.
pub(crate) fn eval(dim: &Dim, symbols: &[Symbol], sizes: &[i64]) -> Option<i64> {
    dim.eval(&|symbol| symbols.iter().position(|s| *s == symbol).and_then(|at| sizes.get(at).copied()))
}

/// What a generator makes: the body of an entry, and how it is launched.
struct Body {
    /// What wrote it.
    name: &'static str,
    /// Device functions beyond the prelude.
    functions: Vec<&'static str>,
    statements: String,
    width: Width,
    blocks: Dim,
    most_blocks: i64,
    threads: u32,
    block_bytes: Dim,
    /// Bytes of `scratch`, which bodies beside each other share: a block runs one of them.
    scratch: i64,
    /// Blocks of a cluster; one where there are no clusters.
    cluster: u32,
    /// Blocks that a multiprocessor should have registers for at once.
    resident: u32,
    aligned: Vec<usize>,
    /// How much of the GPU it takes beside other bodies that say so too; blocks go on to further work then.
    share: i64,
    /// Buffers that the statements fetch from before they wait for the launch before, which they do themselves.
    fetched: Vec<usize>,
}

impl Body {
    /// Statements for blocks of the usual number of threads, without anything that they need beside.
    fn new(statements: String, width: Width, blocks: Dim) -> Body {
        Body {
            name: "",
            functions: Vec::new(),
            statements,
            width,
            blocks,
            most_blocks: MOST_BLOCKS,
            threads: THREADS,
            block_bytes: Dim::default(),
            scratch: 0,
            cluster: 1,
            resident: 1,
            aligned: Vec::new(),
            share: 0,
            fetched: Vec::new(),
        }
    }

    /// The statements, where `block` of `blocks` is this one.
    ///
    /// What is only read may be taken for constant, and loads of it for free to move, also to before the wait: so that pointers to
    /// what an earlier launch may have written are known only after it.
    fn text(&self, kernel: &Kernel) -> String {
        let wait = if self.fetched.is_empty() { "wait_before();\n" } else { "" };
        let own = |(number, buffer): (usize, &BufferArg)| {
            (buffer.access == Access::Read && !self.fetched.contains(&number)).then(|| format!("settle(b{number});"))
        };
        let settled: String = kernel.buffers.iter().enumerate().filter_map(own).collect();
        format!("{wait}{}", self.statements).replace("wait_before();", &format!("wait_before();{settled}"))
    }
}

/// What a text may count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Whether buffers may be accessed several elements at a time.
    pub vectors: bool,
    /// Whether blocks may form clusters, as from compute capability 9.0 on.
    pub clusters: bool,
    /// Whether warpgroups multiply from shared memory, as on compute capability 9.0 alone.
    pub warpgroups: bool,
    /// How products of a few rows are spread over threads.
    pub skinny: Skinny,
    /// The tile of products on tensor cores; chosen by their size where there is none.
    pub tile: Option<Tile>,
    /// Multiprocessors of the GPU.
    pub multiprocessors: i64,
    /// Bytes of shared memory that a block may have.
    pub shared: i64,
}

/// Multiprocessors where no GPU says how many: those of an H100.
const MULTIPROCESSORS: i64 = 132;
/// Shared memory of a block where no GPU says how much: that of an H100, and what older ones have at least.
const SHARED: i64 = 227 << 10;
const LESS_SHARED: i64 = 99 << 10;

impl Way {
    /// What an architecture has, for buffers that begin at a multiple of 16 bytes.
    pub fn of(arch: &str) -> Way {
        let number: u32 = arch.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
        let shared = if number >= 90 { SHARED } else { LESS_SHARED };
        Way { vectors: true, clusters: number >= 90, warpgroups: arch == "sm_90a", shared, ..Way::plain() }
    }

    /// What works for buffers that begin anywhere.
    pub fn plain() -> Way {
        Way {
            vectors: false,
            clusters: false,
            warpgroups: false,
            skinny: Skinny::default(),
            tile: None,
            multiprocessors: MULTIPROCESSORS,
            shared: LESS_SHARED,
        }
    }
}

/// The text of a kernel.
pub fn generate(kernel: &Kernel, way: Way) -> Result<Text, String> {
    let mut bodies =
        kernel.bodies().iter().map(|body| of_body(kernel, body, way)).collect::<Result<Vec<Body>, String>>()?;
    share_blocks(&mut bodies);
    let index = if bodies.iter().all(|body| body.width == Width::Narrow) { "int" } else { "long long" };
    let mut source = format!("{PRELUDE}typedef {index} idx;\n{}", include_str!("index.cu"));
    let mut written: Vec<&str> = Vec::new();
    for &functions in bodies.iter().flat_map(|body| &body.functions) {
        if !written.contains(&functions) {
            written.push(functions);
            source.push_str(functions);
        }
    }
    let mut names: Vec<&str> = bodies.iter().map(|body| body.name).collect();
    names.dedup();
    let name = format!("kiln_{}", names.join("_"));
    let threads = bodies.iter().map(|body| body.threads).max().unwrap_or(THREADS);
    let cluster = bodies.iter().map(|body| body.cluster).max().unwrap_or(1);
    // Whole clusters of each body beside each other; bodies without clusters have nothing to do in further blocks.
    if cluster > 1 {
        let whole = |blocks: &Dim| ceil_div(blocks, cluster.into()) * i64::from(cluster);
        for body in &mut bodies {
            body.blocks = whole(&body.blocks);
            body.most_blocks = (body.most_blocks + i64::from(cluster) - 1) / i64::from(cluster) * i64::from(cluster);
        }
    }
    let cluster = if cluster > 1 { format!("__cluster_dims__({cluster},1,1) ") } else { String::new() };
    let resident = bodies.iter().map(|body| body.resident).min().unwrap_or(1);
    let resident = if resident > 1 { format!(",{resident}") } else { String::new() };
    let _ = writeln!(
        source,
        "extern \"C\" __global__ void {cluster}__launch_bounds__({threads}{resident}) {name}({}) {{\nallow_next();",
        parameters(kernel)
    );
    let scratch = bodies.iter().map(|body| body.scratch).max().unwrap_or(0);
    if scratch > 0 {
        let _ = writeln!(source, "__shared__ __align__(16) unsigned char scratch[{scratch}];");
    }
    let names = Names::of_sizes(&kernel.sizes);
    match bodies.as_slice() {
        [body] => {
            let _ = write!(source, "const unsigned block=blockIdx.x,blocks=gridDim.x;\n{}", body.text(kernel));
        }
        _ => side_by_side(&mut source, kernel, &names, &bodies, threads),
    }
    source.push_str("}\n");
    let (blocks, most_blocks) = match bodies.as_slice() {
        [body] => (body.blocks.clone(), body.most_blocks),
        _ => {
            (bodies.iter().map(|body| Dim::min(&body.blocks, &Dim::from(body.most_blocks))).sum(), i64::from(i32::MAX))
        }
    };
    let may_fault =
        kernel.bodies().iter().any(|body| matches!(body, KernelBody::Attention(_) | KernelBody::Routine(_)))
            || kernel.insts().any(|inst| matches!(inst.kind, InstKind::CheckIndex { .. }));
    let all = |list: fn(&Body) -> &Vec<usize>| {
        let mut buffers: Vec<usize> = bodies.iter().flat_map(list).copied().collect();
        buffers.sort_unstable();
        buffers.dedup();
        buffers
    };
    Ok(Text {
        source,
        name,
        blocks,
        most_blocks,
        threads,
        block_bytes: Dim::max_of(bodies.iter().map(|body| body.block_bytes.clone())),
        aligned: all(|body| &body.aligned),
        fetched: all(|body| &body.fetched),
        may_fault,
        takes_all_blocks: bodies.len() > 1,
        sizes: kernel.sizes.clone(),
    })
}

/// One text with the entries of several.
pub fn together(texts: &[Text]) -> String {
    let mut source = PRELUDE.to_owned();
    for (number, text) in texts.iter().enumerate() {
        let own = text.source.strip_prefix(PRELUDE).unwrap_or(&text.source);
        let own = own.replacen(&format!(") {}(", text.name), &format!(") {}(", text.entry_name(number)), 1);
        let _ = write!(source, "namespace of_{number} {{\n{own}}}\n");
    }
    source
}

/// Gives bodies that share the GPU each its part of the blocks that run at once, as many as have the same to do.
fn share_blocks(bodies: &mut [Body]) {
    let total: i64 = bodies.iter().map(|body| body.share).sum();
    for body in bodies.iter_mut().filter(|body| body.share > 0) {
        let most = (body.most_blocks * body.share / total).max(1);
        body.most_blocks = match body.blocks.as_const() {
            Some(blocks) if blocks > 0 => {
                let rounds = blocks.div_euclid(most) + i64::from(blocks % most > 0);
                blocks.div_euclid(rounds) + i64::from(blocks % rounds > 0)
            }
            _ => most,
        };
    }
}

fn of_body(kernel: &Kernel, body: &KernelBody, way: Way) -> Result<Body, String> {
    let named = |name: &'static str, body: Option<Body>| body.map(|body| Body { name, ..body });
    match body {
        KernelBody::Loop(body) => {
            let name = if body.stages.iter().any(|stage| !stage.reductions.is_empty()) { "reduction" } else { "loop" };
            loops::generate(kernel, body, way).map(|body| Body { name, ..body })
        }
        KernelBody::Matmul(body) => named("strip", strip::generate(kernel, body, way))
            .or_else(|| named("skinny", skinny::generate(kernel, body, way)))
            .or_else(|| {
                let made = way.vectors.then(|| tensor::generate(kernel, body, way)).flatten()?;
                Some(Body { name: if made.name.is_empty() { "tensor" } else { made.name }, ..made })
            })
            .or_else(|| named("unfold", unfold::generate(kernel, body, way)))
            .map_or_else(|| matmul::generate(kernel, body).map(|body| Body { name: "matmul", ..body }), Ok),
        KernelBody::Attention(body) => named("decode", decode::generate(kernel, body, way))
            .or_else(|| named("prefill", prefill::generate(kernel, body, way)))
            .map_or_else(|| attention::generate(kernel, body).map(|body| Body { name: "attention", ..body }), Ok),
        KernelBody::AttentionBackward(body) => named("backward", backward::generate(kernel, body, way))
            .map_or_else(|| gradient::generate(kernel, body).map(|body| Body { name: "gradient", ..body }), Ok),
        KernelBody::Routine(body) => routine::generate(kernel, body, way).map(|body| Body { name: "routine", ..body }),
        KernelBody::Repeat(_) => Err("a loop, which the runtime runs".to_owned()),
        KernelBody::Parallel(_) => Err("parallel bodies in one of them".to_owned()),
    }
}

/// Several bodies, each with blocks of its own one after another.
fn side_by_side(source: &mut String, kernel: &Kernel, names: &Names, bodies: &[Body], threads: u32) {
    source.push_str("unsigned before=0;\n");
    for body in bodies {
        let (count, most) = (names.text(&body.blocks, Width::Wide), body.most_blocks);
        let _ = write!(
            source,
            "{{const unsigned blocks=(unsigned)({count}<{most}?{count}:{most});\nif(blockIdx.x-before<blocks){{const unsigned block=blockIdx.x-before;\n"
        );
        if body.threads < threads {
            let _ = writeln!(source, "if(threadIdx.x>={})return;", body.threads);
        }
        let _ = write!(source, "{}return;}}\nbefore+=blocks;}}\n", body.text(kernel));
    }
}

fn parameters(kernel: &Kernel) -> String {
    let mut list: Vec<String> = Vec::new();
    for (number, buffer) in kernel.buffers.iter().enumerate() {
        let constant = if buffer.access == Access::Read { "const " } else { "" };
        list.push(format!("{constant}{}* __restrict__ b{number}", value::memory_type(buffer.dtype)));
    }
    list.extend((0..kernel.sizes.len()).map(|number| format!("long long s{number}")));
    list.push(
        "Fault* fault, unsigned site, unsigned char* workspace, long long workspace_bytes, unsigned early".to_owned(),
    );
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

/// The head of a loop over the numbers below `count`, of which each block takes `each` at a time, beginning with `first`. Where there
/// are enough blocks for all of them it is no loop, which compiles several times as fast as one that NVRTC unrolls; elsewhere it is
/// not unrolled, since few launches come to a second round.
fn rounds(variable: &str, first: &str, count: &Dim, text: &str, each: i64) -> String {
    match ceil_div(count, each).as_const().is_some_and(|blocks| blocks <= MOST_BLOCKS) {
        true => format!("if(const idx {variable}={first};{variable}<{text}){{"),
        false => {
            format!("#pragma unroll 1\nfor(idx {variable}={first};{variable}<{text};{variable}+=(idx)blocks*{each}){{")
        }
    }
}

/// [`rounds`] with a number a thread.
fn points_of_threads(variable: &str, count: &Dim, text: &str) -> String {
    rounds(variable, &format!("(idx)block*{THREADS}+threadIdx.x"), count, text, THREADS.into())
}

fn ceil_div(a: &Dim, b: i64) -> Dim {
    (a + (b - 1)).floor_div(&Dim::from(b))
}

/// The names of the axes of a product: `z…`, `m…`, `n…` and `k…` by their number.
fn names_of_product(kernel: &Kernel, [batch, m, n, k]: [&[Axis]; 4]) -> Names {
    let mut names = Names::of_sizes(&kernel.sizes);
    for (axes, prefix) in [(batch, "z"), (m, "m"), (n, "n"), (k, "k")] {
        axes.iter().enumerate().for_each(|(number, axis)| names.add(axis, format!("{prefix}{number}")));
    }
    names
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

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::codec::{from_bytes, to_bytes};
    use kiln_ir::{Graph, Op};
    use kiln_kernels::{InputLayout, ScheduleOptions};

    /// How a text is launched goes to disk and back; a text of another kernel is refused.
    #[test]
    fn a_stored_text_is_launched_as_it_was() {
        let kernel = |text: &str| {
            let graph = Graph::parse(text).unwrap();
            assert!(graph.nodes().iter().any(|node| !matches!(node.op, Op::Input { .. })));
            let layouts: Vec<_> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
            kiln_kernels::schedule(&graph, &layouts, &ScheduleOptions::default()).unwrap().steps[0].kernel.clone()
        };
        let softmax = kernel(
            "graph(%0: f32[n, 4096]) {
               %1: f32[n, 1] = reduce_max %0 {axes=[1]}
               %2: f32[n, 4096] = expand %1
               %3: f32[n, 4096] = sub %0, %2
               return %3
             }",
        );
        let other = kernel("graph(%0: f32[m]) {\n  %1: f32[m] = neg %0\n  return %1\n}");
        let text = generate(&softmax, Way::of("sm_90a")).unwrap();
        let back: Text = from_bytes(&to_bytes(&text)).unwrap();
        assert!(back.source.is_empty() && back.fits(&softmax) && !back.fits(&other));
        for rows in [0, 1, 7, 1000] {
            let both = |dim: fn(&Text) -> &Dim| (text.eval(dim(&text), &[rows]), back.eval(dim(&back), &[rows]));
            let ((blocks, blocks_back), (bytes, bytes_back)) =
                (both(|text| &text.blocks), both(|text| &text.block_bytes));
            assert!(blocks.is_some() && blocks == blocks_back && bytes == bytes_back);
        }
        let parts = |text: &Text| (text.most_blocks, text.threads, text.aligned.clone(), text.fetched.clone());
        assert_eq!((parts(&text), text.may_fault), (parts(&back), back.may_fault));
    }
}
