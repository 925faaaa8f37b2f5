//! The plots, as SVG that takes its colours from the page.

use super::axis::Axis;
use super::escape;
use std::fmt::Write;

const WIDTH: f64 = 560.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 104.0;
const ROW: f64 = 26.0;

/// One bar of a chart, in parts.
pub struct Bar {
    /// What it is of.
    pub label: String,
    /// Class of the colour.
    pub color: usize,
    /// Lengths, one behind the other.
    pub parts: Vec<f64>,
    /// At its end.
    pub note: String,
    /// A mark that it should not pass.
    pub mark: Option<f64>,
}

/// One line of a chart.
pub struct Line {
    /// What it is of.
    pub label: String,
    /// Class of the colour.
    pub color: usize,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

/// `<text>` with its words escaped.
fn text(out: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let _ = write!(out, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escape(words));
}

/// A label that fits beside a chart.
fn short(label: &str) -> String {
    const MOST: usize = 23;
    match label.chars().count() {
        count if count > MOST => label.chars().take(MOST - 1).chain(['…']).collect(),
        _ => label.into(),
    }
}

/// Bars from the left, on a linear axis from 0 or on a logarithmic one; with parts, on the linear one.
pub fn bars(title: &str, bars: &[Bar], log: bool, tick: impl Fn(f64) -> String) -> String {
    let height = 34.0 + ROW * bars.len() as f64;
    let totals = || bars.iter().flat_map(|bar| [Some(bar.parts.iter().sum::<f64>()), bar.mark]).flatten();
    let axis = match log {
        // Room below the least, so that it has a bar too.
        true => Axis::log(totals().chain(totals().reduce(f64::min).map(|least| least / 2.0)), LEFT, WIDTH - RIGHT),
        false => Axis::linear(totals().fold(0.0, f64::max), LEFT, WIDTH - RIGHT),
    };
    let mut out = open(title, height);
    let bottom = 4.0 + ROW * bars.len() as f64;
    for value in spaced(&axis) {
        let x = axis.at(value);
        let _ = write!(out, r#"<line x1="{x:.1}" x2="{x:.1}" y1="2" y2="{bottom:.1}" class="grid"/>"#);
        text(&mut out, x, bottom + 16.0, "tick mid", &tick(value));
    }
    for (row, bar) in bars.iter().enumerate() {
        let y = 6.0 + ROW * row as f64;
        text(&mut out, LEFT - 8.0, y + 13.0, "label end", &short(&bar.label));
        let mut before = 0.0;
        for (part, length) in bar.parts.iter().enumerate() {
            let x = if before == 0.0 { LEFT } else { axis.at(before) };
            let width = (axis.at(before + length) - x).max(if part == 0 { 1.5 } else { 0.0 });
            let class = if bar.parts.len() > 1 { format!("part{part}") } else { format!("c{}", bar.color) };
            let _ = write!(
                out,
                r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="18" rx="2" class="{class}"><title>{}: {}</title></rect>"#,
                escape(&bar.label),
                escape(&tick(*length))
            );
            before += length;
        }
        if let Some(mark) = bar.mark {
            let x = axis.at(mark);
            let _ =
                write!(out, r#"<line x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}" class="mark"/>"#, y - 2.0, y + 20.0);
        }
        let end = axis.at(before.max(bar.mark.unwrap_or(0.0)));
        text(&mut out, end + 6.0, y + 13.0, "note", &bar.note);
    }
    out.push_str("</svg></figure>");
    out
}

/// Lines in a frame; the horizontal axis logarithmic or linear, the vertical one as well.
pub fn lines(
    title: &str,
    lines: &[Line],
    (x_log, y_log): (bool, bool),
    x_tick: impl Fn(f64) -> String,
    y_tick: impl Fn(f64) -> String,
) -> String {
    let (left, top, bottom) = (62.0, 8.0, 230.0);
    let xs = || lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
    let ys = || lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y));
    let axis = |log: bool, values: &mut dyn Iterator<Item = f64>, from, to| match log {
        true => Axis::log(values, from, to),
        false => Axis::linear(values.fold(0.0, f64::max), from, to),
    };
    let x_axis = axis(x_log, &mut xs(), left, WIDTH - 12.0);
    let y_axis = axis(y_log, &mut ys(), bottom, top);
    let mut out = open(title, bottom + 24.0);
    for value in spaced(&x_axis) {
        let x = x_axis.at(value);
        let _ = write!(out, r#"<line x1="{x:.1}" x2="{x:.1}" y1="{top}" y2="{bottom}" class="grid"/>"#);
        text(&mut out, x, bottom + 16.0, "tick mid", &x_tick(value));
    }
    for value in y_axis.ticks() {
        let y = y_axis.at(value);
        let _ = write!(out, r#"<line x1="{left}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}" class="grid"/>"#, WIDTH - 12.0);
        text(&mut out, left - 6.0, y + 4.0, "tick end", &y_tick(value));
    }
    for line in lines {
        let points: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_axis.at(*x), y_axis.at(*y))).collect();
        let _ = write!(
            out,
            r#"<polyline points="{}" class="l{}"><title>{}</title></polyline>"#,
            points.join(" "),
            line.color,
            escape(&line.label)
        );
    }
    out.push_str("</svg></figure>");
    out
}

/// Returns the ticks of a horizontal axis whose labels do not overlap.
fn spaced(axis: &Axis) -> Vec<f64> {
    const APART: f64 = 56.0;
    let mut kept: Vec<f64> = Vec::new();
    for tick in axis.ticks() {
        if kept.last().is_none_or(|last| (axis.at(tick) - axis.at(*last)).abs() >= APART) {
            kept.push(tick);
        }
    }
    kept
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        r#"<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{title}">"#
    )
}

/// Samples as a line with few points: of every stretch the least and the most, so that no outlier is lost.
pub fn thinned(samples: &[f64], most: usize) -> Vec<(f64, f64)> {
    if samples.len() <= most {
        return samples.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
    }
    let stretch = samples.len().div_ceil((most / 2).max(1));
    let mut points = Vec::new();
    for (chunk, values) in samples.chunks(stretch).enumerate() {
        let (mut low, mut high) = (0, 0);
        for (at, value) in values.iter().enumerate() {
            low = if *value < values[low] { at } else { low };
            high = if *value > values[high] { at } else { high };
        }
        let mut both = [low, high];
        both.sort_unstable();
        points.extend(both.map(|at| ((chunk * stretch + at) as f64, values[at])));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_survive_thinning() {
        let mut samples = vec![1.0; 10_000];
        samples[7777] = 99.0;
        samples[12] = 0.5;
        let points = thinned(&samples, 400);
        assert!(points.len() <= 400, "{}", points.len());
        assert!(points.contains(&(7777.0, 99.0)) && points.contains(&(12.0, 0.5)));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0));
        assert_eq!(thinned(&[1.0, 2.0], 400), [(0.0, 1.0), (1.0, 2.0)]);
    }

    #[test]
    fn words_of_ticks_do_not_lie_on_each_other() {
        let axis = Axis::log([6.0, 40.0], 150.0, 456.0);
        let at: Vec<f64> = spaced(&axis).into_iter().map(|tick| axis.at(tick)).collect();
        assert!(at.len() >= 2 && at.windows(2).all(|pair| pair[1] - pair[0] >= 56.0), "{at:?}");
    }

    #[test]
    fn long_labels_are_cut() {
        assert_eq!(short("default"), "default");
        assert_eq!(short("torch-lean:max-autotune-no-cudagraphs").chars().count(), 23);
    }
}
