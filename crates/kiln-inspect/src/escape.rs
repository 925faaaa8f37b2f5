//! Text in HTML and SVG.

/// A text as HTML and SVG have it, between tags and in quoted attributes: `&`, `<`, `>` and quotes as references.
///
/// ```
/// assert_eq!(kiln_inspect::escape_html("a < 'b' & \"c\""), "a &lt; &#39;b&#39; &amp; &#34;c&#34;");
/// ```
pub fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
