//! An explanation as one page that needs nothing else: no script, style, font or picture is loaded from anywhere.

use super::source::{Excerpt, excerpts};
use super::text::{Bytes, Count, Time, costs, plural, share};
use super::{Explanation, Kernel, Segment, memory};
use crate::escape_html as escape;
use kiln_ir::{NodeId, Op, Source};
use std::fmt::Write;
use std::time::Duration;

/// Escaped text in which what stands between backticks is code.
fn with_code(text: &str) -> String {
    let part = |(number, part): (usize, &str)| match number % 2 {
        0 => escape(part),
        _ => format!("<code>{}</code>", escape(part)),
    };
    text.split('`').enumerate().map(part).collect()
}

/// The colour of a kernel: neighbours are far apart.
pub(super) fn hue(kernel: usize) -> u32 {
    ((kernel as f64 * 137.508 + 22.0) % 360.0) as u32
}

/// What kernels of a graph are called in `data-k`.
pub(super) fn id_list(graph: usize, kernels: impl Iterator<Item = usize>) -> String {
    kernels.map(|kernel| format!("g{graph}-{kernel}")).collect::<Vec<_>>().join(" ")
}

/// A number for the script to sort by, and what is shown.
fn cell(value: f64, shown: impl std::fmt::Display) -> String {
    format!("<td data-v=\"{value}\">{shown}</td>")
}

impl Explanation {
    /// The page. All of it is in the text that comes back: save it and open it in a browser.
    pub fn to_html(&self) -> String {
        let mut out = String::with_capacity(64 * 1024);
        let name = escape(&self.name);
        let _ = write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{name} · Kiln</title>\n\
             <style>\n{}</style>\n</head>\n<body>\n<main>",
            include_str!("page.css")
        );
        let target = self.segments.first().map_or(String::new(), |segment| format!(" on {}", segment.target));
        let _ = write!(
            out,
            "<header><div><h1>{name}</h1><p class=\"soft\">{}{} · {} · copies at {:.1} GB/s</p></div>\
             <button id=\"theme\" type=\"button\">light / dark</button></header>",
            escape(&self.summary()),
            escape(&target),
            escape(&self.machine.device.clone().unwrap_or_else(|| plural(self.machine.threads, "thread"))),
            self.machine.copy
        );
        self.tiles(&mut out);
        self.notices(&mut out);
        self.timeline(&mut out);
        for (number, segment) in self.segments.iter().enumerate() {
            self.segment(&mut out, number, segment);
        }
        self.lists(&mut out);
        let _ = write!(
            out,
            "<footer>Times are medians on the inputs given. Bytes count every element touched once; what a cache holds from one \
             launch to the next can be read faster than memory is copied.</footer>\n</main>\n<script>\n{}</script>\n</body>\n</html>\n",
            include_str!("page.js")
        );
        out
    }

    fn tiles(&self, out: &mut String) {
        let kernels = || self.segments.iter().flat_map(|segment| &segment.kernels);
        let time: Duration = kernels().map(|kernel| kernel.time).sum();
        let bytes: u64 = kernels().map(|kernel| kernel.read.saturating_add(kernel.written)).sum();
        let flops: u64 = kernels().map(|kernel| kernel.flops).sum();
        let arena = self.segments.iter().map(|segment| segment.arena_bytes).max().unwrap_or(0);
        let unshared = self.segments.iter().map(|segment| segment.temp_bytes).max().unwrap_or(0);
        let first: Duration = self.first_call.iter().map(|(_, took)| *took).sum();
        out.push_str("<div class=\"tiles\">");
        let mut tile = |figure: String, about: String| {
            let _ = write!(out, "<div class=\"tile\"><b>{figure}</b><span>{}</span></div>", escape(&about));
        };
        tile(Time(self.call.map_or(time, |call| call.median)).to_string(), "a call".to_owned());
        tile(Time(time).to_string(), format!("in {}", plural(kernels().count(), "kernel")));
        let speed = if time.is_zero() { 0.0 } else { bytes as f64 / time.as_nanos() as f64 };
        tile(Bytes(bytes).to_string(), format!("moved, {speed:.1} GB/s"));
        tile(
            Count(flops).to_string(),
            format!(
                "operations, {:.1} GFLOP/s",
                if time.is_zero() { 0.0 } else { flops as f64 / time.as_nanos() as f64 }
            ),
        );
        tile(Bytes(arena as u64).to_string(), format!("arena, {} unshared", Bytes(unshared as u64)));
        if !self.first_call.is_empty() {
            tile(Time(first).to_string(), "the first call".to_owned());
        }
        out.push_str("</div>\n");
    }

    /// Breaks, and what catches the eye in the figures.
    fn notices(&self, out: &mut String) {
        for broken in &self.breaks {
            let fix = if broken.fix.is_empty() { String::new() } else { format!("; {}", with_code(&broken.fix)) };
            let _ = write!(
                out,
                "<div class=\"notice\"><b>Graph break</b> at <code>{}</code>: the function {}{}{fix}</div>",
                escape(&broken.at.to_string()),
                escape(&broken.what),
                escape(&costs(broken))
            );
        }
        let looks = self.worth_a_look();
        if !looks.is_empty() {
            out.push_str("<h3>Worth a look</h3><ul class=\"look\">");
            for look in looks {
                let _ = write!(out, "<li>{}</li>", escape(&look));
            }
            out.push_str("</ul>\n");
        }
    }

    /// Sentences about what stands out.
    fn worth_a_look(&self) -> Vec<String> {
        let mut looks = Vec::new();
        let all: Duration = self.segments.iter().map(Segment::kernel_time).sum();
        for (graph, segment) in self.segments.iter().enumerate() {
            let name = |at: usize, kernel: &Kernel| match self.segments.len() {
                1 => format!("Kernel {at} ({})", kernel.label),
                _ => format!("Kernel {at} of graph {graph} ({})", kernel.label),
            };
            let longest = segment.kernels.iter().enumerate().max_by_key(|(_, kernel)| kernel.time);
            if let Some((at, kernel)) = longest.filter(|(_, k)| segment.kernels.len() > 1 && share(k, all) > 0.4) {
                looks.push(format!(
                    "{} takes {:.0}% of the kernels' time.",
                    name(at, kernel),
                    100.0 * share(kernel, all)
                ));
            }
            for (at, kernel) in segment.kernels.iter().enumerate() {
                let bytes = kernel.read.saturating_add(kernel.written);
                let idle = kernel.bandwidth() < 0.35 * self.machine.copy && kernel.flops < 16 * bytes;
                if idle && bytes > 1 << 20 && share(kernel, all) > 0.1 {
                    looks.push(format!(
                        "{} moves {} at {:.1} GB/s, {:.0}% of what a copy reaches, with few operations a byte.",
                        name(at, kernel),
                        Bytes(bytes),
                        kernel.bandwidth(),
                        100.0 * kernel.bandwidth() / self.machine.copy
                    ));
                }
            }
            if let Some(pair) =
                segment.not_fused.iter().max_by_key(|pair| pair.bytes).filter(|a| a.bytes > Some(1 << 16))
            {
                looks.push(format!(
                    "{} of {} {} go through memory on the way to {} {}: {}.",
                    Bytes(pair.bytes.unwrap_or(0)),
                    pair.producer,
                    segment.graph.node(pair.producer).op.kind().name(),
                    pair.consumer,
                    segment.graph.node(pair.consumer).op.kind().name(),
                    pair.reason
                ));
            }
        }
        if let Some(call) = self.call {
            let fastest: Duration = self.segments.iter().map(|segment| segment.run.fastest).sum();
            let outside = call.fastest.saturating_sub(fastest);
            if outside.as_secs_f64() > 0.2 * call.fastest.as_secs_f64() {
                looks.push(format!("{} of the fastest call are not spent in kernels.", Time(outside)));
            }
            if call.median > 2 * call.fastest {
                looks.push(format!(
                    "Calls vary: the fastest took {}, half of them more than {}. The machine is busy with something else.",
                    Time(call.fastest),
                    Time(call.median)
                ));
            }
        }
        looks.truncate(6);
        looks
    }

    fn timeline(&self, out: &mut String) {
        let total: Duration = self.first_call.iter().map(|(_, took)| *took).sum();
        if total.is_zero() {
            return;
        }
        let _ = write!(out, "<h3>First call <small>{}</small></h3><div class=\"strip plain\">", Time(total));
        let mut key = String::new();
        for (number, (what, took)) in self.first_call.iter().enumerate() {
            let part = 100.0 * took.as_secs_f64() / total.as_secs_f64();
            let (what, hue) = (escape(what), hue(number * 3 + 1));
            let label = if part > 9.0 { what.as_str() } else { "" };
            let _ = write!(
                out,
                "<div class=\"hue\" style=\"--h:{hue};width:{part:.2}%\" title=\"{what} {}\">{label}</div>",
                Time(*took)
            );
            let _ = write!(key, "<span><i class=\"hue\" style=\"--h:{hue}\"></i>{what} <b>{}</b></span>", Time(*took));
        }
        let _ = write!(out, "</div><div class=\"key\">{key}</div>");
    }

    fn segment(&self, out: &mut String, number: usize, segment: &Segment) {
        let _ = write!(
            out,
            "<section class=\"graph\" id=\"g{number}\"><h2>Graph {number}<small>{} captured, {} after the passes, {}, {} a run</small></h2>",
            plural(segment.captured.nodes().len(), "node"),
            segment.graph.nodes().len(),
            plural(segment.kernels.len(), "kernel"),
            Time(segment.run.median)
        );
        let all = segment.kernel_time();
        if segment.kernels.len() > 1 {
            out.push_str("<h3>Time, in the order kernels run</h3><div class=\"strip\">");
            for (at, kernel) in segment.kernels.iter().enumerate() {
                let part = 100.0 * share(kernel, all);
                let label = escape(&kernel.label);
                let shown = if part > 6.0 { label.as_str() } else { "" };
                let _ = write!(
                    out,
                    "<div class=\"hue\" data-k=\"g{number}-{at}\" style=\"--h:{};width:{part:.3}%\" title=\"{at} {label} {}\">{shown}</div>",
                    hue(at),
                    Time(kernel.time)
                );
            }
            out.push_str("</div>\n");
        }
        self.kernels(out, number, segment);
        let lines = excerpts(segment.sources());
        out.push_str(if lines.is_empty() { "<div class=\"cols one\">" } else { "<div class=\"cols\">" });
        sources(out, number, segment, &lines);
        nodes(out, number, segment);
        out.push_str("</div>\n");
        if let Some(picture) = memory::picture(segment, number) {
            let _ = write!(
                out,
                "<h3>Memory <small>an arena of {} for {} of temporaries; launches to the right, places upwards</small></h3>\
                 <div class=\"panel pad\">{picture}</div>",
                Bytes(segment.arena_bytes as u64),
                Bytes(segment.temp_bytes as u64)
            );
        }
        buffers(out, number, segment);
        not_fused(out, number, segment);
        code(out, number, segment);
        passes(out, segment);
        out.push_str("</section>\n");
    }

    fn kernels(&self, out: &mut String, graph: usize, segment: &Segment) {
        out.push_str(
            "<h3>Kernels <small>click one to see its nodes, lines and memory</small></h3><div class=\"panel scroll\"><table class=\"sortable\"><thead><tr>\
             <th class=\"l sorted up\" data-up=\"1\">#</th><th class=\"l\" data-up=\"1\">kernel</th><th class=\"l\" data-up=\"1\">kind</th><th>nodes</th>\
             <th>read</th><th>written</th><th>ops</th><th>time</th><th>share</th><th>GB/s</th><th>of copy</th><th>GFLOP/s</th>\
             <th class=\"l\" data-up=\"1\">lines</th></tr></thead><tbody>",
        );
        let all = segment.kernel_time();
        for (at, kernel) in segment.kernels.iter().enumerate() {
            let part = share(kernel, all);
            let _ =
                write!(out, "<tr data-k=\"g{graph}-{at}\" tabindex=\"0\"><td class=\"l\" data-v=\"{at}\">{at}</td>");
            let tuned = kernel.variant.as_ref().map_or(String::new(), |variant| {
                format!(" <span class=\"soft\" title=\"tuned: {}\">tuned</span>", escape(variant))
            });
            let _ = write!(
                out,
                "<td class=\"l\"><span class=\"chip hue\" style=\"--h:{}\"></span><code>{}</code>{tuned}</td><td class=\"l kind\">{}</td>",
                hue(at),
                escape(&kernel.label),
                kernel.kind
            );
            out.push_str(&cell(kernel.nodes.len() as f64, kernel.nodes.len()));
            out.push_str(&cell(kernel.read as f64, Bytes(kernel.read)));
            out.push_str(&cell(kernel.written as f64, Bytes(kernel.written)));
            out.push_str(&cell(kernel.flops as f64, Count(kernel.flops)));
            let _ = write!(
                out,
                "<td class=\"bar\" data-v=\"{}\">{}<i class=\"hue\" style=\"--h:{};width:{:.1}%\"></i></td>",
                kernel.time.as_nanos(),
                Time(kernel.time),
                hue(at),
                100.0 * part
            );
            out.push_str(&cell(part, format!("{:.0}%", 100.0 * part)));
            out.push_str(&cell(kernel.bandwidth(), format!("{:.1}", kernel.bandwidth())));
            let copy = kernel.bandwidth() / self.machine.copy;
            let low = if copy < 0.35 && kernel.kind != "matmul" && kernel.kind != "attention" {
                " class=\"low\""
            } else {
                ""
            };
            if copy > 1.2 {
                let about = "faster than memory is copied: what it reads or writes is in a cache";
                let _ = write!(out, "<td data-v=\"{copy}\" class=\"soft\" title=\"{about}\">cache</td>");
            } else {
                let _ = write!(out, "<td data-v=\"{copy}\"{low}>{:.0}%</td>", 100.0 * copy);
            }
            out.push_str(&cell(kernel.throughput(), format!("{:.1}", kernel.throughput())));
            let lines: Vec<String> = segment.lines_of(kernel).iter().map(short).collect();
            let more = lines.len().saturating_sub(3);
            let mut shown = lines[..lines.len() - more].join(", ");
            if more > 0 {
                let _ = write!(shown, " +{more}");
            }
            let _ = write!(
                out,
                "<td class=\"l soft\" title=\"{}\">{}</td></tr>",
                escape(&lines.join(", ")),
                escape(&shown)
            );
        }
        out.push_str("</tbody></table></div>\n");
    }

    fn lists(&self, out: &mut String) {
        for (number, guards) in self.programs.iter().enumerate() {
            let _ = write!(out, "<h3>Guards of program {number} <small>{}</small></h3>", plural(guards.len(), "check"));
            items(out, guards);
        }
        for (title, texts) in [("Compiled again", &self.recompiles), ("Also reported", &self.remarks)] {
            if !texts.is_empty() {
                let _ = write!(out, "<h3>{title}</h3>");
                items(out, texts);
            }
        }
    }
}

fn items(out: &mut String, texts: &[String]) {
    out.push_str("<div class=\"panel\"><ul class=\"plain\">");
    for text in texts {
        let _ = write!(out, "<li>{}</li>", with_code(text));
    }
    out.push_str("</ul></div>\n");
}

/// The file's own name and the line.
fn short(source: &Source) -> String {
    format!("{}:{}", source.file.rsplit(['/', '\\']).next().unwrap_or(&source.file), source.line)
}

/// The kernels of a segment that fit.
fn those<'a>(segment: &'a Segment, fits: impl Fn(&Kernel) -> bool + 'a) -> Vec<usize> {
    segment.kernels.iter().enumerate().filter(|(_, kernel)| fits(kernel)).map(|(at, _)| at).collect()
}

/// Small squares in the colours of kernels.
fn dots(kernels: &[usize]) -> String {
    let dot = |at: &usize| format!("<i class=\"hue\" style=\"--h:{}\"></i>", hue(*at));
    format!("<span class=\"dots\">{}</span>", kernels.iter().take(4).map(dot).collect::<String>())
}

/// `data-k` for these kernels, or nothing.
fn data(graph: usize, kernels: &[usize]) -> String {
    if kernels.is_empty() { String::new() } else { format!(" data-k=\"{}\"", id_list(graph, kernels.iter().copied())) }
}

impl Segment {
    /// The lines of all nodes.
    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.graph.nodes().iter().chain(self.captured.nodes()).map(|node| &node.source)
    }
}

/// The user's lines, each with the kernels that compute it.
fn sources(out: &mut String, graph: usize, segment: &Segment, excerpts: &[Excerpt]) {
    if excerpts.is_empty() {
        return;
    }
    out.push_str("<div><h3>Source</h3><div class=\"panel\"><div class=\"listing\">");
    for excerpt in excerpts {
        let _ = write!(out, "<div class=\"file\">{}</div>", escape(&excerpt.file));
        for (number, run) in excerpt.runs.iter().enumerate() {
            if number > 0 {
                out.push_str("<div class=\"gap\">⋯</div>");
            }
            for (line, text) in run {
                let is = |source: &Source| source.line == *line && source.file == excerpt.file;
                let kernels = those(segment, |kernel| segment.lines_of(kernel).iter().any(is));
                let dim = if segment.sources().any(is) { "" } else { " dim" };
                let _ = write!(
                    out,
                    "<div class=\"row{dim}\"{}><span class=\"n\">{line}</span>{}<span>{}</span></div>",
                    data(graph, &kernels),
                    dots(&kernels),
                    escape(text.as_deref().unwrap_or(""))
                );
            }
        }
    }
    out.push_str("</div></div></div>\n");
}

/// The nodes of the graph after the passes, each with its kernels.
fn nodes(out: &mut String, graph: usize, segment: &Segment) {
    out.push_str("<div><h3>Graph after the passes</h3><div class=\"panel\"><div class=\"listing\">");
    for (id, node) in segment.graph.iter() {
        let kernels = those(segment, |kernel| kernel.nodes.contains(&id));
        let (op, rest) = match &node.op {
            Op::Input { .. } => {
                let number = segment.graph.inputs().iter().position(|input| *input == id).unwrap_or(0);
                ("input".to_owned(), segment.inputs.get(number).map_or(String::new(), |name| format!(" {name}")))
            }
            op => {
                let name = op.kind().name();
                let text = kiln_ir::Node { source: Source::default(), ..node.clone() }.to_string();
                let rest = text.strip_prefix(name.as_str()).unwrap_or(&text).to_owned();
                (name, clipped(&rest))
            }
        };
        let at = if node.source.is_unknown() { String::new() } else { short(&node.source) };
        let dim = if kernels.is_empty() { " dim" } else { "" };
        let _ = write!(
            out,
            "<div class=\"row{dim}\"{}><span class=\"n\">{id}</span>{}<span><span class=\"op\">{}</span>{}  <span class=\"ty\">{}</span></span><span class=\"at\">{}</span></div>",
            data(graph, &kernels),
            dots(&kernels),
            escape(&op),
            escape(&rest),
            escape(&node.ty.to_string()),
            escape(&at)
        );
    }
    let outputs: Vec<String> = segment.graph.outputs().iter().map(|output| output.node.to_string()).collect();
    let _ = write!(
        out,
        "<div class=\"row\"><span class=\"n\"></span><span class=\"dots\"></span><span><span class=\"op\">return</span> {}</span></div>",
        escape(&outputs.join(", "))
    );
    out.push_str("</div></div></div>\n");
}

/// Long constants are cut.
fn clipped(text: &str) -> String {
    const MOST: usize = 160;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn buffers(out: &mut String, graph: usize, segment: &Segment) {
    out.push_str("<h3>Buffers</h3><div class=\"panel\"><details><summary>");
    let inputs: u64 = segment.buffers.iter().filter(|b| b.name.starts_with("in")).map(|b| b.bytes as u64).sum();
    let _ = write!(
        out,
        "{}<span class=\"soft\">{} of inputs</span></summary><div class=\"scroll\"><table class=\"sortable\"><thead><tr><th class=\"l\" data-up=\"1\">buffer</th><th class=\"l\" data-up=\"1\">elements</th><th>bytes</th><th>place in the arena</th><th>launches</th></tr></thead><tbody>",
        plural(segment.buffers.len(), "buffer"),
        Bytes(inputs)
    );
    for (number, buffer) in segment.buffers.iter().enumerate() {
        let kernels = those(segment, |kernel| kernel.args.contains(&number));
        let _ = write!(
            out,
            "<tr{} tabindex=\"0\"><td class=\"l\"><code>{}</code></td><td class=\"l\"><code>{}</code></td>",
            data(graph, &kernels),
            escape(&buffer.name),
            escape(&buffer.ty)
        );
        out.push_str(&cell(buffer.bytes as f64, Bytes(buffer.bytes as u64)));
        out.push_str(&cell(
            buffer.offset.map_or(-1.0, |o| o as f64),
            buffer.offset.map_or(String::new(), |o| o.to_string()),
        ));
        let life = buffer
            .life
            .map_or("unused".to_owned(), |(a, b)| if a == b { a.to_string() } else { format!("{a} to {b}") });
        out.push_str(&cell(buffer.life.map_or(-1.0, |(a, _)| a as f64), life));
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></details></div>\n");
}

fn not_fused(out: &mut String, graph: usize, segment: &Segment) {
    if segment.not_fused.is_empty() {
        return;
    }
    out.push_str("<h3>Not fused <small>values that go through memory, and why</small></h3><div class=\"panel scroll\"><table class=\"sortable\"><thead><tr><th class=\"l\" data-up=\"1\">written by</th><th class=\"l\" data-up=\"1\">read by</th><th>bytes</th><th class=\"l\" data-up=\"1\">why</th></tr></thead><tbody>");
    let node = |id: NodeId| {
        let node = segment.graph.node(id);
        let at = if node.source.is_unknown() {
            String::new()
        } else {
            format!(" <span class=\"soft\">{}</span>", escape(&short(&node.source)))
        };
        format!("<td class=\"l\" data-v=\"{}\"><code>{id} {}</code>{at}</td>", id.0, escape(&node.op.kind().name()))
    };
    for pair in &segment.not_fused {
        let kernels = those(segment, |k| k.nodes.contains(&pair.producer) || k.nodes.contains(&pair.consumer));
        let bytes = pair.bytes.unwrap_or(0);
        let _ = write!(
            out,
            "<tr{} tabindex=\"0\">{}{}{}<td class=\"l wrap\">{}</td></tr>",
            data(graph, &kernels),
            node(pair.producer),
            node(pair.consumer),
            cell(bytes as f64, Bytes(bytes)),
            escape(&pair.reason)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn code(out: &mut String, graph: usize, segment: &Segment) {
    out.push_str("<h3>Code</h3><div class=\"panel\">");
    for (at, kernel) in segment.kernels.iter().enumerate() {
        let about = match kernel.same_as {
            Some(same) => format!("the same kernel as {same}"),
            None if kernel.code_bytes > 0 => format!("{} of machine code", Bytes(kernel.code_bytes as u64)),
            None => match kernel.kind {
                "matmul" | "attention" => "code that all kernels of this kind share".to_owned(),
                _ => String::new(),
            },
        };
        let _ = write!(
            out,
            "<details data-k=\"g{graph}-{at}\"><summary><span class=\"chip hue\" style=\"--h:{}\"></span>{at} <code>{}</code><span class=\"soft\">{about}</span></summary>",
            hue(at),
            escape(&kernel.label)
        );
        if kernel.same_as.is_none() {
            let parts = [
                ("kernel", Some(&kernel.text)),
                ("vector IR", kernel.intermediate.as_ref()),
                ("machine code", kernel.assembly.as_ref()),
            ];
            for (number, (what, text)) in parts.into_iter().enumerate() {
                let Some(text) = text else { continue };
                let open = if number == 0 { " open" } else { "" };
                let _ = write!(
                    out,
                    "<details{open}><summary>{what}</summary><pre>{}</pre></details>",
                    escape(text.trim_end())
                );
            }
        }
        out.push_str("</details>");
    }
    out.push_str("</div>\n");
}

fn passes(out: &mut String, segment: &Segment) {
    out.push_str("<h3>Passes <small>nodes after each that changed the graph</small></h3><div class=\"panel\"><div class=\"pad flow\">");
    let _ = write!(out, "<span>captured {}</span>", segment.captured.nodes().len());
    for (pass, nodes) in &segment.passes {
        let _ = write!(out, "<i>→</i><span>{} {nodes}</span>", escape(pass));
    }
    let text = escape(segment.captured.to_string().trim_end());
    let _ =
        write!(out, "</div><details><summary>the graph as it was captured</summary><pre>{text}</pre></details></div>");
}
