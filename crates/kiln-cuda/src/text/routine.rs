//! Scans, sorts and scatters: a thread a line, a thread an element, or a warp a row that goes somewhere whole.

use super::index::{Names, Width, constant};
use super::value::{combined, load, scalar, store, value_type};
use super::{Body, THREADS, ceil_div};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Kernel, RoutineBody, Strided};
use std::fmt::Write;

pub(super) fn generate(kernel: &Kernel, body: &RoutineBody) -> Result<Body, String> {
    let writer = Writer { kernel, names: Names::of_sizes(&kernel.sizes) };
    let (statements, count) = match body {
        RoutineBody::Scan { .. } => writer.scan(body),
        RoutineBody::SortIndices { .. } => writer.sort(body),
        RoutineBody::Scatter { updates_shape, axis, index, .. } if moves_rows(index, *axis) => {
            let blocks = ceil_div(&updates_shape[*axis], (THREADS / 32).into());
            return Ok(Body::new(writer.scatter_rows(body), Width::Wide, blocks));
        }
        RoutineBody::Scatter { .. } => writer.scatter(body),
    };
    Ok(Body::new(statements, Width::Wide, ceil_div(&count, THREADS.into())))
}

/// Whether an index is the same for all elements of a row, which then go to one row together.
fn moves_rows(index: &Strided, axis: usize) -> bool {
    index.strides.iter().enumerate().all(|(at, stride)| at == axis || stride.is_zero())
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
            "for(idx line=(idx)block*{THREADS}+threadIdx.x;line<{};line+=(idx)blocks*{THREADS}){{\nidx rest=line;\n",
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

    /// A warp a row of updates. Of rows that go to the same place the last is the one that stays; where they are combined, the warp
    /// of the first takes all of them, in their order.
    fn scatter_rows(&self, body: &RoutineBody) -> String {
        let RoutineBody::Scatter { shape, updates_shape, axis, kind, index, updates, output } = body else {
            return String::new();
        };
        let dtype = self.dtype(output);
        let (acc, count) = (dtype.compute_type(), self.text(&updates_shape[*axis]));
        let row = |at: &str| {
            let place = format!("{}+{at}*{}", self.text(&index.offset), self.text(&index.strides[*axis]));
            load(self.dtype(index), index.buffer, &place)
        };
        let others = updates_shape.iter().enumerate().filter(|(at, _)| at != axis);
        let lines = others.clone().fold(Dim::from(1), |product, (_, size)| product * size);
        let mut elements = format!("for(idx line=lane;line<{};line+=32){{idx rest=line;\n", self.text(&lines));
        for (at, size) in others.rev() {
            let size = self.text(size);
            let _ = writeln!(elements, "const idx x{at}=rest%{size}; rest/={size};");
        }
        let _ = writeln!(elements, "{} x={};", value_type(acc), self.element(updates, *axis, "from"));
        if let Some(reduction) = kind.reduction() {
            let y = self.element(output, *axis, "to");
            let _ = writeln!(elements, "const {} y={y};\nx={};", value_type(acc), combined(reduction, acc, "y", "x"));
        }
        let _ = writeln!(elements, "{}}}", store(dtype, output.buffer, &self.position(output, *axis, "to"), "x"));
        let (others, take) = match kind.reduction() {
            None => ("idx other=at+1+lane;other<COUNT", format!("const idx from=at;\n{elements}")),
            Some(_) => (
                "idx other=lane;other<at",
                format!(
                    "for(idx base=at;base<{count};base+=32){{
unsigned same=__ballot_sync(~0u,base+lane<{count}&&{}==own);
while(same){{const idx from=base+__ffs(same)-1;same&=same-1;\n{elements}}}}}",
                    row("(base+lane)")
                ),
            ),
        };
        format!(
            "const int lane=threadIdx.x%32;
for(idx at=(idx)block*{0}+threadIdx.x/32;at<{count};at+=(idx)blocks*{0}){{
const long long own={1};\nconst idx to=check_index(own,{2},fault,site);\nbool beside=false;
for({3};other+=32)beside|={4}==own;\nif(__any_sync(~0u,beside))continue;\n{take}}}\n",
            THREADS / 32,
            row("at"),
            shape[*axis].as_const().map_or_else(|| self.text(&shape[*axis]), constant),
            others.replace("COUNT", &count),
            row("other"),
        )
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
