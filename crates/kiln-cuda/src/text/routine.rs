//! Scans, sorts and scatters: a thread a line, or a thread an element.

use super::index::{Names, Width, constant};
use super::value::{combined, load, scalar, store, value_type};
use super::{Body, MOST_BLOCKS, THREADS, ceil_div};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Kernel, RoutineBody, Strided};
use std::fmt::Write;

pub(super) fn generate(kernel: &Kernel, body: &RoutineBody) -> Result<Body, String> {
    let writer = Writer { kernel, names: Names::of_sizes(&kernel.sizes) };
    let (statements, count) = match body {
        RoutineBody::Scan { .. } => writer.scan(body),
        RoutineBody::SortIndices { .. } => writer.sort(body),
        RoutineBody::Scatter { .. } => writer.scatter(body),
    };
    Ok(Body {
        functions: &[],
        statements,
        width: Width::Wide,
        blocks: ceil_div(&count, THREADS.into()),
        most_blocks: MOST_BLOCKS,
        threads: THREADS,
        block_bytes: Dim::default(),
        cluster: 1,
        resident: 1,
        aligned: Vec::new(),
    })
}

struct Writer<'a> {
    kernel: &'a Kernel,
    names: Names,
}

impl Writer<'_> {
    fn text(&self, dim: &Dim) -> String {
        self.names.text(dim, Width::Wide)
    }

    fn dtype(&self, view: &Strided) -> DType {
        self.kernel.buffers[view.buffer].dtype
    }

    /// The position of an element; `x0`, `x1`, … are its indices, but for `axis`, whose index is `along`.
    fn position(&self, view: &Strided, axis: usize, along: &str) -> String {
        let mut text = self.text(&view.offset);
        for (at, stride) in view.strides.iter().enumerate() {
            let index = if at == axis { along.to_owned() } else { format!("x{at}") };
            let _ = write!(text, "+{index}*{}", self.text(stride));
        }
        text
    }

    fn element(&self, view: &Strided, axis: usize, along: &str) -> String {
        load(self.dtype(view), view.buffer, &self.position(view, axis, along))
    }

    /// A loop over all lines along `axis` of a shape, one a thread; and their number.
    fn lines(&self, shape: &[Dim], axis: usize, more: Option<&str>) -> (String, Dim) {
        let others = shape.iter().enumerate().filter(|(at, _)| *at != axis);
        let lines = others.clone().fold(Dim::from(1), |product, (_, size)| product * size);
        let count = match more {
            Some(_) => &lines * &shape[axis],
            None => lines.clone(),
        };
        let mut out = format!(
            "for(idx line=(idx)blockIdx.x*{THREADS}+threadIdx.x;line<{};line+=(idx)gridDim.x*{THREADS}){{\nidx rest=line;\n",
            self.text(&count)
        );
        if let Some(name) = more {
            let size = self.text(&shape[axis]);
            let _ = writeln!(out, "const idx {name}=rest%{size}; rest/={size};");
        }
        for (at, size) in others.rev() {
            let size = self.text(size);
            let _ = writeln!(out, "const idx x{at}=rest%{size}; rest/={size};");
        }
        (out, count)
    }

    fn scan(&self, body: &RoutineBody) -> (String, Dim) {
        let RoutineBody::Scan { shape, axis, kind, reverse, input, output } = body else { return Default::default() };
        let acc = self.dtype(input).compute_type();
        let ty = value_type(acc);
        let (mut out, count) = self.lines(shape, *axis, None);
        let length = self.text(&shape[*axis]);
        let at = if *reverse { format!("{length}-1-step") } else { "step".to_owned() };
        let _ = writeln!(
            out,
            "{ty} acc={};\nfor(idx step=0;step<{length};++step){{const idx at={at};\nconst {ty} x={};\nacc={};\n{}\n}}}}",
            scalar(kind.identity(acc)),
            self.element(input, *axis, "at"),
            combined(*kind, acc, "acc", "x"),
            store(self.dtype(output), output.buffer, &self.position(output, *axis, "at"), "acc"),
        );
        (out, count)
    }

    /// An element's place is the number of those that come before it, equal ones in their order.
    fn sort(&self, body: &RoutineBody) -> (String, Dim) {
        let RoutineBody::SortIndices { shape, axis, descending, count, input, output } = body else {
            return Default::default();
        };
        let acc = self.dtype(input).compute_type();
        let ty = value_type(acc);
        let (mut out, threads) = self.lines(shape, *axis, Some("own"));
        let order = if *descending { "a>b" } else { "a<b" };
        // NaN is the largest.
        let before = match (acc.is_float(), *descending) {
            (false, _) => order.to_owned(),
            (true, true) => "(a!=a&&b==b)||a>b".to_owned(),
            (true, false) => "(a==a&&b!=b)||a<b".to_owned(),
        };
        let same = if acc.is_float() { "(a==b||(a!=a&&b!=b))" } else { "a==b" };
        let _ = writeln!(
            out,
            "const {ty} b={};\nidx rank=0;\nfor(idx other=0;other<{};++other){{const {ty} a={};rank+=({before})||({same}&&other<own);}}\nif(rank<{}){{{}}}\n}}",
            self.element(input, *axis, "own"),
            self.text(&shape[*axis]),
            self.element(input, *axis, "other"),
            self.text(count),
            store(self.dtype(output), output.buffer, &self.position(output, *axis, "rank"), "own"),
        );
        (out, threads)
    }

    /// Updates of one line go to one line: in order, by one thread.
    fn scatter(&self, body: &RoutineBody) -> (String, Dim) {
        let RoutineBody::Scatter { shape, updates_shape, axis, kind, index, updates, output } = body else {
            return Default::default();
        };
        let dtype = self.dtype(output);
        let acc = dtype.compute_type();
        let ty = value_type(acc);
        let (mut out, count) = self.lines(updates_shape, *axis, None);
        let _ = writeln!(
            out,
            "for(idx at=0;at<{};++at){{const idx to=check_index({},{},fault,site);\n{ty} x={};",
            self.text(&updates_shape[*axis]),
            self.element(index, *axis, "at"),
            shape[*axis].as_const().map_or_else(|| self.text(&shape[*axis]), constant),
            self.element(updates, *axis, "at"),
        );
        if let Some(reduction) = kind.reduction() {
            let _ = writeln!(
                out,
                "const {ty} y={};\nx={};",
                self.element(output, *axis, "to"),
                combined(reduction, acc, "y", "x")
            );
        }
        out.push_str(&store(dtype, output.buffer, &self.position(output, *axis, "to"), "x"));
        out.push_str("}}\n");
        (out, count)
    }
}
