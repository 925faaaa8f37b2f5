//! A page is well formed, holds what it should, and asks no network for anything.

use super::*;
use crate::bench::record::MemoryUse;
use crate::bench::record::tests::record;

/// Checks that every element is closed in order; gives the names of all of them.
fn elements(page: &str) -> Vec<String> {
    let (mut open, mut all): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest.find('>').unwrap_or_else(|| panic!("an open bracket: {rest:.40}"));
        let (tag, behind) = (&rest[..end], &rest[end + 1..]);
        rest = behind;
        if tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed out of order");
            continue;
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "a quote is open: <{tag}>");
        let name = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
        all.push(name.clone());
        if !tag.ends_with('/') && name != "meta" {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    all
}

fn some() -> Vec<Record> {
    let mut kiln = record("kiln", "default", &[1.0, 1.1, 1.2, 9.0]);
    kiln.first_call_s = Some(0.004);
    kiln.memory = Some(MemoryUse {
        peak: 5_000_000,
        process: 20_000_000,
        weights: 3_000_000,
        kv: 1_000_000,
        activations: 10_000,
    });
    let mut failed = record("torch", "max-autotune", &[]);
    failed.error = Some("no <compiler> & no \"luck\"".into());
    let mut other = record("torch-lean", "default", &[4.0; 1000]);
    other.first_call_s = Some(70.0);
    let mut second = record("kiln", "default", &[2.0, 2.0]);
    second.subject.prompt = 512;
    vec![kiln, failed, other, second]
}

#[test]
fn a_page_is_well_formed_and_whole() {
    let page = page(&some(), "kiln bench decode --filter \"<x>\"");
    let all = elements(&page);
    assert_eq!(all.iter().filter(|name| *name == "section").count(), 3, "the overview, and one a subject");
    // Overview; rates, first calls, distribution, series, memory; rates, distribution, series of the second subject.
    assert_eq!(all.iter().filter(|name| *name == "svg").count(), 9);
    assert!(page.contains("no &lt;compiler&gt; &amp; no &#34;luck&#34;"));
    assert!(page.contains("--filter &#34;&lt;x&gt;&#34;"));
    assert!(
        page.contains("is 3.48× as fast as torch-lean:default, the fastest of the others (4.00× by minima)"),
        "the headline"
    );
    assert!(!page.contains("NaN") && !page.contains("inf,"), "a number that is none");
}

/// On a narrow page a row is a block, in which each figure has its title with it.
#[test]
fn every_figure_of_a_row_has_its_title() {
    let page = page(&some(), "kiln");
    let rows = page.matches("<tr class").count() + page.matches("<tr><td>").count();
    for title in ["first call", "median", "tokens/s", "peak", "as Kiln eager"] {
        assert_eq!(page.matches(&format!("<td data-title=\"{title}\">")).count(), rows, "{title}");
    }
    assert_eq!(rows, some().len());
}

/// The longer bar has the larger ×: rates are of medians as ratios are.
#[test]
fn bars_and_ratios_are_of_one_statistic() {
    let (a, b) = (record("kiln", "default", &[1.0, 1.0, 100.0]), record("torch", "default", &[2.0; 3]));
    let page = page(&[a, b], "kiln");
    assert!(page.contains("2,000 · 2.00×") && page.contains("1,000 · 1.00×"), "{page}");
}

#[test]
fn nothing_is_fetched() {
    let page = page(&some(), "kiln");
    for word in ["http:", "https:", "<script", "@import", "url(", "src="] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn no_records_make_a_page_too() {
    elements(&page(&[], ""));
    elements(&page(&[record("kiln", "eager", &[])], ""));
}
