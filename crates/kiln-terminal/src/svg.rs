//! A picture of what a terminal showed: its text with its colours as an SVG.

use kiln::escape_html;

/// Width of a character.
const CELL: f64 = 8.43;
/// Height of a line.
const LINE: f64 = 19.0;
/// Free space around the text.
const PAD: f64 = 22.0;
/// Height of the bar with the window's buttons.
const BAR: f64 = 34.0;

/// How a run of characters looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Look {
    bold: bool,
    dim: bool,
    color: Option<&'static str>,
}

impl Look {
    /// After the numbers between `ESC [` and `m`.
    fn after(self, codes: &str) -> Look {
        let mut look = self;
        let numbers: Vec<u32> = codes.split(';').map(|code| code.parse().unwrap_or(0)).collect();
        let mut rest = &numbers[..];
        while let [first, more @ ..] = rest {
            rest = more;
            match first {
                0 => look = Look::default(),
                1 => look.bold = true,
                2 => look.dim = true,
                31 => look.color = Some("#ff7b72"),
                32 => look.color = Some("#7ee787"),
                33 => look.color = Some("#e3b341"),
                36 => look.color = Some("#79c0ff"),
                // A colour of 256: the command has one.
                38 => {
                    look.color = Some("#ff8c1a");
                    rest = rest.get(2..).unwrap_or_default();
                }
                _ => {}
            }
        }
        look
    }

    fn style(self) -> String {
        let mut style = format!(" fill=\"{}\"", self.color.unwrap_or(if self.dim { "#8b949e" } else { "#e6edf3" }));
        if self.bold {
            style.push_str(" font-weight=\"bold\"");
        }
        style
    }
}

/// The runs of a line, and the look that goes on in the next.
fn runs(line: &str, mut look: Look) -> (Vec<(String, Look)>, Look) {
    let mut runs = Vec::new();
    let mut text = String::new();
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character != '\x1b' {
            text.push(character);
            continue;
        }
        let code: String = characters.by_ref().skip(1).take_while(|c| !c.is_ascii_alphabetic()).collect();
        if !text.is_empty() {
            runs.push((std::mem::take(&mut text), look));
        }
        look = look.after(&code);
    }
    if !text.is_empty() {
        runs.push((text, look));
    }
    (runs, look)
}

/// The picture of a text with colours.
pub fn render(text: &str, title: &str) -> String {
    let lines: Vec<&str> = text.trim_end().trim_start_matches('\n').lines().collect();
    let columns = lines.iter().map(|line| super::visible_width(line)).max().unwrap_or(0);
    let (width, height) = (columns as f64 * CELL + 2.0 * PAD, lines.len() as f64 * LINE + BAR + 1.5 * PAD);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" \
         font-size=\"14\">\n<title>{}</title>\n<rect width=\"100%\" height=\"100%\" rx=\"10\" fill=\"#0d1117\"/>\n",
        escape_html(title)
    );
    for (place, color) in ["#ff5f56", "#ffbd2e", "#27c93f"].iter().enumerate() {
        let x = 20.0 + 20.0 * place as f64;
        svg.push_str(&format!("<circle cx=\"{x}\" cy=\"18\" r=\"6\" fill=\"{color}\"/>\n"));
    }
    let middle = width / 2.0;
    svg.push_str(&format!(
        "<text x=\"{middle:.0}\" y=\"23\" text-anchor=\"middle\" fill=\"#8b949e\">{}</text>\n",
        escape_html(title)
    ));
    let mut look = Look::default();
    for (number, line) in lines.iter().enumerate() {
        let y = BAR + PAD / 2.0 + LINE * (number as f64 + 0.75);
        let (runs, next) = runs(line, look);
        look = next;
        let mut column = 0;
        for (text, look) in runs {
            let length = text.chars().count();
            if !text.trim().is_empty() {
                // Each run has its place and its width, so that columns meet whatever the font.
                svg.push_str(&format!(
                    "<text x=\"{:.1}\" y=\"{y:.1}\" textLength=\"{:.1}\" xml:space=\"preserve\"{}>{}</text>\n",
                    PAD + column as f64 * CELL,
                    length as f64 * CELL,
                    look.style(),
                    escape_html(&text)
                ));
            }
            column += length;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_places_are_kept() {
        let svg = render("plain \x1b[1;32m<ok>\x1b[0m\n\x1b[1;38;5;208mkiln\x1b[0m", "kiln");
        let second = PAD + 6.0 * CELL;
        assert!(
            svg.contains(">plain </text>") && svg.contains("fill=\"#ff8c1a\" font-weight=\"bold\">kiln</text>"),
            "{svg}"
        );
        assert!(
            svg.contains(&format!("x=\"{second:.1}\"")) && svg.contains("font-weight=\"bold\">&lt;ok&gt;</text>"),
            "{svg}"
        );
        assert!(!svg.contains('\x1b'));
    }
}
