//! Products of a few rows with a weight that is contiguous along the summed axis: every weight is read once, as fast as
//! memory gives it, and each warp sums a part of a row of it for all rows on the left.
//!
//! ```text
//!  weight row n   |  warp 0   |  warp 1   |  warp 2   |  warp 3   |  warp 0 …      16 bytes a lane, several of them in flight
//! ```

use super::index::Names;
use super::value::{Statements, Temps};
use super::vector::Vector;
use super::{Body, MOST_BLOCKS, ceil_div, decode, points, width};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Inst, InstKind, Kernel, MatmulBody, Prologue};
use std::fmt::{self, Write};

/// Rows on the left at the most: beyond, the arithmetic takes longer than memory.
const MOST_ROWS: i64 = 8;

/// How a product of a few rows is spread over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skinny {
    /// Threads of a block.
    pub threads: i64,
    /// Warps that share a row of the weight, at the most.
    pub warps: i64,
    /// Wide loads of a lane that are in flight, at the most.
    pub unroll: i64,
}

impl Default for Skinny {
    fn default() -> Skinny {
        Skinny { threads: 256, warps: 4, unroll: 4 }
    }
}

impl Skinny {
    /// Every way that is worth measuring.
    pub fn all() -> impl Iterator<Item = Skinny> {
        let threads = [128, 256, 512];
        threads.into_iter().flat_map(|threads| {
            let warps = [1, 2, 4, 8].into_iter().filter(move |warps| warps * 32 <= threads);
            warps.flat_map(move |warps| [2, 4, 8, 16].map(|unroll| Skinny { threads, warps, unroll }))
        })
    }

    /// The way of a text of its [`Display`](fmt::Display).
    pub fn parse(text: &str) -> Option<Skinny> {
        Skinny::all().find(|skinny| skinny.to_string() == text)
    }
}

impl fmt::Display for Skinny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Skinny { threads, warps, unroll } = self;
        write!(f, "threads={threads} warps={warps} unroll={unroll}")
    }
}

/// The body, if the product is of this kind.
pub(super) fn generate(kernel: &Kernel, body: &MatmulBody, way: Skinny) -> Option<Body> {
    let [axis] = body.k.as_slice() else { return None };
    let (rows, depth) = (points(&body.m).as_const()?, axis.size.as_const()?);
    if body.acc != DType::F32 || !(1..=MOST_ROWS).contains(&rows) {
        return None;
    }
    let mut right = Vector::choose(kernel, body.rhs.insts.iter(), axis)?;
    let lanes = right.lanes;
    right.suffix = "[u]";
    let is_wide = |prologue: &Prologue, vector: &Vector| {
        let depends =
            |inst: &Inst| matches!(&inst.kind, InstKind::Load { place, .. } if place.offset.contains(axis.var));
        prologue.insts.iter().filter(|inst| depends(inst)).all(|inst| vector.has(inst.id))
    };
    let left = Vector::of(kernel, body.lhs.insts.iter(), axis, lanes);
    if !is_wide(&body.rhs, &right) || !is_wide(&body.lhs, &left) || depth < 32 * lanes {
        return None;
    }
    let mut names = Names::of_sizes(&kernel.sizes);
    for (axes, prefix) in [(&body.batch, "z"), (&body.m, "m"), (&body.n, "n"), (&body.k, "k")] {
        axes.iter().enumerate().for_each(|(number, axis)| names.add(axis, format!("{prefix}{number}")));
    }
    let (batch, columns) = (points(&body.batch), points(&body.n));
    let width = width(&names, kernel.insts(), &[&batch, &columns, &(&batch * &columns)]);
    let statements = |prefix: &'static str| Statements {
        kernel,
        names: &names,
        width,
        prefix,
        stores: None,
        temps: Temps::Registers,
        vector: None,
        accumulator: None,
        out: String::new(),
    };
    // Several warps share a row if it is long enough for all of them.
    let warps = way.warps.min(depth / (32 * lanes)).max(1);
    let warps = 1 << warps.ilog2();
    let threads = way.threads;
    let groups = threads / 32 / warps;
    let total = &batch * &columns;
    let step = warps * 32 * lanes;
    let unroll = way.unroll.min(depth / step).max(1);
    let mut out = String::new();
    let count = names.text(&total, width);
    let column_count = names.text(&columns, width);
    let _ = writeln!(
        out,
        "__shared__ float parts[{}][{rows}];\nconst int warp=threadIdx.x/32,lane=threadIdx.x%32,part=warp%{warps};
for(idx first=(idx)blockIdx.x*{groups};first<{count};first+=(idx)gridDim.x*{groups}){{
const bool live=first+warp/{warps}<{count};\nconst idx p=live?first+warp/{warps}:{count}-1;
const idx image=p/{column_count},nn=p%{column_count};",
        threads / 32
    );
    out.push_str(&decode(&names, &body.batch, "z", "image", width));
    out.push_str(&decode(&names, &body.n, "n", "nn", width));
    let _ = writeln!(out, "float acc[{rows}]={{}};\nidx k=(idx)(part*32+lane)*{lanes};");
    // As many wide loads at once as there are, then what is left of the row one by one.
    for unroll in if unroll > 1 { vec![unroll, 1] } else { vec![1] } {
        let condition = format!("k+{}<{depth}", (unroll - 1) * step);
        let (declared, filled) = right.streamed(&statements("y"), body.rhs.insts.iter(), &format!("[{unroll}]"));
        let _ = writeln!(
            out,
            "for(;{condition};k+={}){{\n{declared}#pragma unroll\nfor(int u=0;u<{unroll};++u){{const idx k0=k+u*{step};\n{filled}}}",
            unroll * step
        );
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int u=0;u<{unroll};++u){{const idx first_k=k+u*{step};\nfloat weight[{lanes}];
#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx k0=first_k+e;"
        );
        let mut weights = statements("y");
        weights.vector = Some(&right);
        weights.all(&body.rhs.insts);
        let _ = writeln!(out, "{}weight[e]=y{};\n}}", weights.out, body.rhs.value.0);
        let _ = writeln!(out, "#pragma unroll\nfor(int mm=0;mm<{rows};++mm){{const idx k0=first_k;");
        out.push_str(&decode(&names, &body.m, "m", "mm", width));
        out.push_str(&left.begin(&statements("x"), body.lhs.insts.iter()));
        let _ = writeln!(out, "#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx k0=first_k+e;");
        let mut inputs = statements("x");
        inputs.vector = Some(&left);
        inputs.all(&body.lhs.insts);
        let _ = writeln!(out, "{}acc[mm]=fmaf(x{},weight[e],acc[mm]);\n}}}}}}}}", inputs.out, body.lhs.value.0);
    }
    let _ = writeln!(
        out,
        "#pragma unroll\nfor(int mm=0;mm<{rows};++mm){{\nfor(int mask=16;mask>0;mask/=2)acc[mm]+=__shfl_xor_sync(~0u,acc[mm],mask);
if(lane==0)parts[warp][mm]=acc[mm];}}\n__syncthreads();
for(int mm=part*32+lane;live&&mm<{rows};mm+={}){{\nfloat sum=0;
#pragma unroll\nfor(int w=0;w<{warps};++w)sum+=parts[warp/{warps}*{warps}+w][mm];",
        warps * 32
    );
    out.push_str(&decode(&names, &body.m, "m", "mm", width));
    let mut epilogue = statements("e");
    epilogue.accumulator = Some("sum".to_owned());
    epilogue.all(&body.epilogue);
    out.push_str(&epilogue.out);
    out.push_str("}\n__syncthreads();\n}\n");
    Some(Body {
        functions: &[include_str!("stream.cu")],
        statements: out,
        width,
        blocks: ceil_div(&total, groups),
        most_blocks: MOST_BLOCKS,
        threads: threads as u32,
        block_bytes: Dim::default(),
        cluster: 1,
        resident: 1,
        aligned: right.buffers().chain(left.buffers()).collect(),
    })
}
