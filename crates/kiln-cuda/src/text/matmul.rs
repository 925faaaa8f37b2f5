//! Products of any kind: tiles of both operands in shared memory, a few results a thread.

use super::index::{Names, Width};
use super::value::{Statements, value_type};
use super::{Body, THREADS, ceil_div, decode, names_of_product, points, rounds, width};
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{Axis, Inst, InstKind, Kernel, MatmulBody, Prologue};
use std::fmt::Write;

/// Threads along each side of a tile.
const SIDE: i64 = 16;
/// Summed elements of a tile.
const DEPTH: i64 = 16;

pub(super) fn generate(kernel: &Kernel, body: &MatmulBody) -> Result<Body, String> {
    let several = || "several products of many rows in one kernel".to_owned();
    let rhs = body.single_rhs().filter(|_| body.before.is_none()).ok_or_else(several)?;
    let names = names_of_product(kernel, [&body.batch, &body.m, &body.n, &body.k]);
    let counts = [points(&body.batch), points(&body.m), points(&body.n), points(&body.k)];
    let width = width(&names, kernel.insts(), &counts.each_ref());
    let [batch, m, n, k] = &counts;
    // Results a thread along each side.
    let per_thread = |count: &Dim| if count.as_const().is_some_and(|count| count <= SIDE) { 1 } else { 4 };
    let (rows, columns) = (per_thread(m), per_thread(n));
    let (tall, wide) = (SIDE * rows, SIDE * columns);
    let writer = Writer { kernel, body, names, width };
    let text = |dim: &Dim| writer.names.text(dim, width);
    let mut out = String::new();
    let ty = value_type(body.acc);
    let _ = writeln!(out, "__shared__ {ty} lhs[{DEPTH}][{}],rhs[{DEPTH}][{}];", tall + 1, wide + 1);
    let (m_count, n_count, k_count) = (text(m), text(n), text(k));
    let (down, across) = (ceil_div(m, tall), ceil_div(n, wide));
    let blocks = batch * &down * &across;
    let _ =
        writeln!(out, "const idx M={m_count},N={n_count},K={k_count},down={},across={};", text(&down), text(&across));
    let _ = writeln!(out, "const int tx=threadIdx.x%{SIDE},ty=threadIdx.x/{SIDE};");
    let _ = writeln!(out, "{}", rounds("tile", "block", &blocks, &text(&blocks), 1));
    out.push_str("const idx image=tile/(down*across),top=tile/across%down,left=tile%across;\n");
    out.push_str(&decode(&writer.names, &body.batch, "z", "image", width));
    let _ = writeln!(out, "{ty} acc[{rows}][{columns}]={{}};\nfor(idx depth=0;depth<K;depth+={DEPTH}){{");
    writer.operand(&mut out, "lhs", "x", &body.lhs, &body.m, ("m", "M", "top", tall));
    writer.operand(&mut out, "rhs", "y", rhs, &body.n, ("n", "N", "left", wide));
    let _ = writeln!(
        out,
        "__syncthreads();\n#pragma unroll\nfor(int kk=0;kk<{DEPTH};++kk){{\n{ty} x[{rows}],y[{columns}];
#pragma unroll\nfor(int i=0;i<{rows};++i)x[i]=lhs[kk][ty+{SIDE}*i];
#pragma unroll\nfor(int j=0;j<{columns};++j)y[j]=rhs[kk][tx+{SIDE}*j];
#pragma unroll\nfor(int i=0;i<{rows};++i)
#pragma unroll\nfor(int j=0;j<{columns};++j)acc[i][j]={};\n}}\n__syncthreads();\n}}",
        multiply_add(body.acc)
    );
    let _ = writeln!(
        out,
        "#pragma unroll\nfor(int i=0;i<{rows};++i)\n#pragma unroll\nfor(int j=0;j<{columns};++j){{
const idx mm=top*{tall}+ty+{SIDE}*i,nn=left*{wide}+tx+{SIDE}*j;\nif(mm<M&&nn<N){{"
    );
    out.push_str(&decode(&writer.names, &body.m, "m", "mm", width));
    out.push_str(&decode(&writer.names, &body.n, "n", "nn", width));
    let mut epilogue = writer.statements("e");
    epilogue.accumulators = vec!["acc[i][j]".to_owned()];
    epilogue.all(&body.epilogue);
    out.push_str(&epilogue.out);
    out.push_str("}}}\n");
    let functions = if has_blocks(&rhs.insts) { vec![include_str!("blocks.cu")] } else { Vec::new() };
    Ok(Body { functions, ..Body::new(out, width, blocks) })
}

pub(super) fn has_blocks(insts: &[Inst]) -> bool {
    insts.iter().any(|inst| matches!(inst.kind, InstKind::LoadBlock { .. }))
}

fn multiply_add(acc: DType) -> &'static str {
    match acc {
        DType::F32 => "fmaf(x[i],y[j],acc[i][j])",
        DType::F64 => "fma(x[i],y[j],acc[i][j])",
        DType::I64 => "(long long)((unsigned long long)acc[i][j]+(unsigned long long)x[i]*(unsigned long long)y[j])",
        _ => "(int)((unsigned)acc[i][j]+(unsigned)x[i]*(unsigned)y[j])",
    }
}

struct Writer<'a> {
    kernel: &'a Kernel,
    body: &'a MatmulBody,
    names: Names,
    width: Width,
}

impl Writer<'_> {
    fn statements<'s>(&'s self, prefix: &'s str) -> Statements<'s> {
        Statements::new(self.kernel, &self.names, self.width, prefix)
    }

    /// Fills the tile of one operand, whose axes beside the summed ones are `axes`.
    fn operand(
        &self,
        out: &mut String,
        tile: &str,
        prefix: &str,
        prologue: &Prologue,
        axes: &[Axis],
        (axis, count, place, side): (&str, &str, &str, i64),
    ) {
        let ty = value_type(self.body.acc);
        let _ = writeln!(out, "for(int e=threadIdx.x;e<{};e+={THREADS}){{", side * DEPTH);
        let _ = match along(prologue, self.body.k.last().map(|axis| axis.var)) {
            true => writeln!(out, "const int side=e/{DEPTH},kk=e%{DEPTH};"),
            false => writeln!(out, "const int side=e%{side},kk=e/{side};"),
        };
        let _ =
            writeln!(out, "const idx at={place}*{side}+side,deep=depth+kk;\n{ty} element=0;\nif(at<{count}&&deep<K){{");
        out.push_str(&decode(&self.names, axes, axis, "at", self.width));
        out.push_str(&decode(&self.names, &self.body.k, "k", "deep", self.width));
        let mut statements = self.statements(prefix);
        statements.all(&prologue.insts);
        out.push_str(&statements.out);
        let _ = writeln!(out, "element={prefix}{};\n}}\n{tile}[kk][side]=element;\n}}", prologue.value.0);
    }
}

/// Whether an operand's elements are neighbours in memory along `var`.
fn along(prologue: &Prologue, var: Option<Symbol>) -> bool {
    let Some(var) = var else { return false };
    let is_unit = |inst: &Inst| match &inst.kind {
        InstKind::Load { place, .. } => place.offset.linear_in(var).is_some_and(|(step, _)| step.as_const() == Some(1)),
        InstKind::LoadBlock { .. } => true,
        _ => false,
    };
    prologue.insts.iter().any(is_unit)
}
