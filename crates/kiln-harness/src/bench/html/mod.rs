//! The page with the plots: one file, nothing from a network, light and dark.

mod axis;
mod svg;

use super::record::{Record, best_kiln, best_peer};
use super::{machine, table};
use kiln::escape_html as escape;
use kiln_terminal::format;
use std::fmt::Write;
use svg::{Bar, Line, bars, lines, thinned};

/// Points of a line at the most.
const POINTS: usize = 400;

/// The colour of a side and mode: the same one in every plot of every page.
fn color(record: &Record) -> usize {
    let (name, further) = record.mode.split_once('+').unwrap_or((&record.mode, ""));
    match (record.side.as_str(), name) {
        ("kiln", "eager") => 0,
        ("kiln", _) if further == "freeze" => 4,
        ("kiln", _) if !further.is_empty() => 5,
        ("kiln", "default") => 1,
        ("kiln", "reduce-overhead") => 2,
        ("kiln", "max-autotune") => 3,
        ("kiln", _) => 5,
        ("torch", "eager") => 6,
        ("torch", "default") => 7,
        ("torch", _) => 8,
        ("torch-lean", "default") => 9,
        ("torch-lean", "eager") => 11,
        ("torch-lean", _) => 10,
        ("llama.cpp", _) => 12,
        _ => 13,
    }
}

/// Records of the same subject, in the order they came.
fn grouped(records: &[Record]) -> Vec<Vec<&Record>> {
    let mut groups: Vec<Vec<&Record>> = Vec::new();
    for record in records {
        match groups.iter_mut().find(|group| group[0].subject == record.subject) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    groups
}

/// The whole page. `command` is what was typed.
pub fn page(records: &[Record], command: &str) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str(
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Kiln benchmark</title><style>",
    );
    out.push_str(include_str!("style.css"));
    out.push_str(&palette());
    out.push_str("</style></head><body><main><header><h1><b>Kiln</b> benchmark</h1>");
    let mut peers: Vec<&str> = records.iter().filter_map(|record| record.peer.as_deref()).collect();
    peers.sort_unstable();
    peers.dedup();
    let versions = [format!("kiln {}", env!("CARGO_PKG_VERSION"))].into_iter().chain(peers.iter().map(|p| (*p).into()));
    let _ = write!(
        out,
        "<p>{} · {} · {}</p><p>{}</p>",
        escape(&machine::cpu()),
        format::plural(machine::cores(), "core", "cores"),
        machine::date(),
        escape(&versions.collect::<Vec<String>>().join(" · "))
    );
    let _ = write!(out, "<code>{}</code></header>", escape(command));
    let groups = grouped(records);
    if groups.len() > 1 {
        overview(&mut out, &groups);
    }
    for group in &groups {
        section(&mut out, group);
    }
    out.push_str(
        "<p class=\"quiet\">Every mode is a process of its own, all read the same weights, and they take turns. Warm-up is not \
         counted, outliers are. × is a ratio of medians: how many times as long the other side takes. First call: from the \
         prompt to the second token (decode) or the first pass, in a process that has compiled nothing. Peak: growth of the \
         process from before the model was loaded.</p></main></body></html>\n",
    );
    out
}

fn palette() -> String {
    let mut css = String::new();
    for n in 0..14 {
        let _ = write!(css, ".c{n}{{fill:var(--c{n});background:var(--c{n})}}.l{n}{{stroke:var(--c{n})}}");
    }
    for n in 0..3 {
        let _ = write!(css, ".part{n}{{fill:var(--p{n});background:var(--p{n})}}");
    }
    css
}

/// All subjects at a glance: Kiln's fastest mode against the fastest of the others.
fn overview(out: &mut String, groups: &[Vec<&Record>]) {
    let mut rows = Vec::new();
    for group in groups {
        let (Some(kiln), Some(peer)) = (best_kiln(group.iter().copied()), best_peer(group.iter().copied())) else {
            continue;
        };
        let Some(times) = kiln.ratio(peer) else { continue };
        let s = &kiln.subject;
        rows.push(Bar {
            label: format!("{} {} {}", s.what, s.model, s.prompt),
            color: 1,
            parts: vec![times],
            note: format::ratio(times),
            mark: Some(1.0),
        });
    }
    if rows.is_empty() {
        return;
    }
    out.push_str("<section><h2>Against the fastest of the others</h2><div class=\"plots\">");
    out.push_str(&bars(
        "How many times as fast as the best peer (log scale; dashed: equal)",
        &rows,
        true,
        format::ratio,
    ));
    out.push_str("</div></section>");
}

fn section(out: &mut String, group: &[&Record]) {
    let Some(first) = group.first() else { return };
    let owned: Vec<Record> = group.iter().map(|record| (*record).clone()).collect();
    let _ = write!(out, "<section><h2>{}</h2>", escape(&table::title(first)));
    if let Some(line) = table::headline(&owned) {
        let _ = write!(out, "<p class=\"headline\">{}</p>", escape(&line));
    }
    for note in table::notes(&owned) {
        let class = if note.starts_with('!') { "warning" } else { "quiet" };
        let _ = write!(out, "<p class=\"{class}\">{}</p>", escape(note.trim_start_matches("! ")));
    }
    out.push_str("<ul class=\"legend\">");
    for record in group.iter().filter(|record| record.samples.len() > 0) {
        let _ = write!(out, "<li><i class=\"c{}\"></i>{}</li>", color(record), escape(&record.label()));
    }
    out.push_str("</ul><div class=\"plots\">");
    rates(out, group);
    first_calls(out, group);
    distribution(out, group);
    series(out, group);
    memory(out, group);
    out.push_str("</div>");
    rows(out, group);
    out.push_str("</section>");
}

fn rates(out: &mut String, group: &[&Record]) {
    let tokens = group.iter().any(|record| record.tokens_per_s().is_some());
    let peer = best_peer(group.iter().copied());
    let eager = group.iter().copied().find(|record| record.is_kiln() && !record.is_compiled());
    let (against, name) = match (peer, eager) {
        (Some(peer), _) => (Some(peer), peer.label()),
        (None, eager) => (eager, "eager".into()),
    };
    let rows: Vec<Bar> = group
        .iter()
        .filter_map(|record| {
            let rate = if tokens { record.tokens_per_s()? } else { record.calls_per_s()? };
            let times = against.and_then(|other| record.ratio(other)).map_or(String::new(), format::ratio);
            let note = format!("{} · {times}", format::rate(rate));
            Some(Bar { label: record.label(), color: color(record), parts: vec![rate], note, mark: None })
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    let what = if tokens { "Tokens a second" } else { "Calls a second" };
    out.push_str(&bars(&format!("{what} by medians, and × as fast as {name}"), &rows, false, format::rate));
}

fn distribution(out: &mut String, group: &[&Record]) {
    let curves: Vec<Line> = group
        .iter()
        .filter(|record| record.samples.len() > 1)
        .map(|record| {
            let sorted = record.samples.sorted();
            let last = (sorted.len() - 1) as f64;
            let step = sorted.len().div_ceil(POINTS).max(1);
            let every = sorted.iter().enumerate().filter(|(at, _)| at % step == 0 || *at + 1 == sorted.len());
            let points = every.map(|(at, value)| (*value, 100.0 * at as f64 / last)).collect();
            Line { label: record.label(), color: color(record), points }
        })
        .collect();
    if !curves.is_empty() {
        let percent = |value: f64| format!("{value:.0} %");
        out.push_str(&lines(
            "Latency: how many of the calls are done by then (log)",
            &curves,
            (true, false),
            table::duration,
            percent,
        ));
    }
}

fn series(out: &mut String, group: &[&Record]) {
    let curves: Vec<Line> = group
        .iter()
        .filter(|record| record.samples.len() > 1)
        .map(|record| Line {
            label: record.label(),
            color: color(record),
            points: thinned(record.samples.in_order(), POINTS),
        })
        .collect();
    if !curves.is_empty() {
        let number = |value: f64| format!("{value:.0}");
        out.push_str(&lines(
            "Every sample in the order it was taken (log)",
            &curves,
            (false, true),
            number,
            table::duration,
        ));
    }
}

fn first_calls(out: &mut String, group: &[&Record]) {
    let rows: Vec<Bar> = group
        .iter()
        .filter_map(|record| {
            let took = record.first_call_s?;
            let note = format::seconds(took);
            Some(Bar { label: record.label(), color: color(record), parts: vec![took], note, mark: None })
        })
        .collect();
    if !rows.is_empty() {
        out.push_str(&bars("First call (log)", &rows, true, format::seconds));
    }
}

fn memory(out: &mut String, group: &[&Record]) {
    let rows: Vec<Bar> = group
        .iter()
        .filter_map(|record| {
            let memory = record.memory.filter(|memory| memory.peak > 0)?;
            let rest = memory.peak.saturating_sub(memory.weights + memory.kv);
            Some(Bar {
                label: record.label(),
                color: color(record),
                parts: [memory.weights, memory.kv, rest].map(|bytes| bytes as f64).to_vec(),
                note: format::bytes(memory.peak),
                mark: record.is_kiln().then(|| memory.limit() as f64),
            })
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    let tick = |bytes: f64| format::bytes(bytes as u64);
    out.push_str("<div>");
    out.push_str(&bars("Memory at the peak (dashed: what Kiln is allowed)", &rows, false, tick));
    out.push_str(
        "<ul class=\"legend\"><li><i class=\"part0\"></i>weights</li><li><i class=\"part1\"></i>keys and values</li>",
    );
    out.push_str("<li><i class=\"part2\"></i>all else</li></ul></div>");
}

/// The figures, and the lines of JSON they are from.
fn rows(out: &mut String, group: &[&Record]) {
    const TITLES: [&str; 16] = [
        "mode",
        "first call",
        "median",
        "mean",
        "std",
        "p90",
        "p99",
        "min",
        "max",
        "samples",
        "tokens/s",
        "prefill",
        "kernels",
        "launches",
        "peak",
        "as Kiln eager",
    ];
    out.push_str("<div class=\"scroll\"><table><thead><tr>");
    for title in TITLES {
        let _ = write!(out, "<th>{title}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for record in group {
        let class = if record.is_kiln() { " class=\"kiln\"" } else { "" };
        let _ = write!(out, "<tr{class}><td>{}</td>", escape(&record.label()));
        let dash = || "–".to_owned();
        let mut cells = vec![record.first_call_s.map_or_else(dash, format::seconds)];
        match record.statistics() {
            Some(s) => {
                cells.extend([s.median, s.mean, s.std, s.p90, s.p99, s.min, s.max].map(table::duration));
                cells.push(s.count.to_string());
            }
            None => cells.extend((0..8).map(|_| dash())),
        }
        cells.push(record.tokens_per_s().map_or_else(dash, format::rate));
        cells.push(record.prefill_ms.map_or_else(dash, table::duration));
        cells.push(record.kernels.map_or_else(dash, |n| n.to_string()));
        cells.push(record.launches.map_or_else(dash, |n| n.to_string()));
        cells.push(record.memory.filter(|m| m.peak > 0).map_or_else(dash, |m| table::peak(record, &m)));
        cells.push(record.error.clone().unwrap_or_else(|| table::agreement(record)));
        for (cell, title) in cells.iter().zip(&TITLES[1..]) {
            let _ = write!(out, "<td data-title=\"{title}\">{}</td>", escape(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div><details><summary>JSON</summary><pre>");
    for record in group {
        let _ = writeln!(out, "{}", escape(&record.to_json().to_string()));
    }
    out.push_str("</pre></details>");
}

#[cfg(test)]
mod tests;
