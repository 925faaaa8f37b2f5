//! The memory plan as a picture: launches to the right, the arena upwards, a box for each temporary's place and life.

use super::Segment;
use super::html::{hue, id_list};
use super::text::Bytes;
use crate::escape_html as escape;
use std::fmt::Write;

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 74.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 26.0;

/// The picture of a segment's arena; nothing without temporaries.
pub(super) fn picture(segment: &Segment, graph: usize) -> Option<String> {
    let temps: Vec<(usize, usize, (usize, usize))> = segment
        .buffers
        .iter()
        .enumerate()
        .filter_map(|(number, buffer)| Some((number, buffer.offset?, buffer.life?)))
        .collect();
    if temps.is_empty() || segment.arena_bytes == 0 {
        return None;
    }
    let height = (40.0 + 26.0 * temps.len() as f64).clamp(120.0, 320.0);
    let steps = segment.kernels.len() as f64;
    let x = |step: f64| LEFT + (WIDTH - LEFT - 6.0) * step / steps;
    let y = |bytes: f64| TOP + height * (1.0 - bytes / segment.arena_bytes as f64);
    let mut out = String::new();
    let whole = TOP + height + BOTTOM;
    let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH} {whole:.0}\" role=\"img\" aria-label=\"memory plan\">");
    for quarter in 0..=4 {
        let bytes = segment.arena_bytes as f64 * quarter as f64 / 4.0;
        let (at, right) = (y(bytes), WIDTH - 6.0);
        let _ = write!(out, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>");
        let label = Bytes(bytes as u64);
        let _ = write!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 8.0, at + 4.0);
    }
    let every = (segment.kernels.len() / 24).max(1);
    for step in (0..segment.kernels.len()).step_by(every) {
        let at = x(step as f64 + 0.5);
        let _ =
            write!(out, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{step}</text>", TOP + height + 17.0);
    }
    for (number, offset, (first, last)) in temps {
        let buffer = &segment.buffers[number];
        let users = segment.kernels.iter().enumerate().filter(|(_, kernel)| kernel.args.contains(&number));
        let users = id_list(graph, users.map(|(at, _)| at));
        let (left, right) = (x(first as f64), x(last as f64 + 1.0));
        let (low, high) = (y(offset as f64), y((offset + buffer.bytes) as f64));
        let (width, tall) = (right - left, (low - high).max(1.5));
        let name = escape(&buffer.name);
        let _ = write!(
            out,
            "<g class=\"m\" data-k=\"{users}\"><title>{name} {}, {}, launches {first} to {last}</title>",
            escape(&buffer.ty),
            Bytes(buffer.bytes as u64)
        );
        let _ = write!(
            out,
            "<rect x=\"{left:.1}\" y=\"{high:.1}\" width=\"{width:.1}\" height=\"{tall:.1}\" rx=\"3\" style=\"fill:hsl({} var(--s) var(--l))\"/>",
            hue(first)
        );
        if tall > 13.0 && width > 7.0 * buffer.name.len() as f64 {
            let _ = write!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", left + 6.0, (low + high) / 2.0 + 3.5);
        }
        out.push_str("</g>");
    }
    out.push_str("</svg>");
    Some(out)
}
