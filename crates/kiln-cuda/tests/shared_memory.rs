//! What texts declare of shared memory fits a block: 48 kilobytes, together with what a launch asks for beside without an attribute.

mod support;

use kiln_cuda::text::{Text, Way, generate};
use kiln_ir::examples::examples;
use kiln_ir::{Graph, generate as random};
use kiln_kernels::Kernel;
use kiln_kernels::kernel::KernelBody;
use std::path::Path;
use std::sync::Arc;

/// What every launch may have without an attribute of its function.
const MOST: i64 = 48 << 10;
/// Dynamic shared memory up to here is asked for without one.
const FOR_NOTHING: i64 = 40 << 10;

fn bytes_of(ty: &str) -> Option<i64> {
    let sizes = [
        ("unsigned char", 1),
        ("bool", 1),
        ("unsigned short", 2),
        ("unsigned long long", 8),
        ("long long", 8),
        ("double", 8),
        ("float", 4),
        ("unsigned", 4),
        ("int", 4),
    ];
    sizes.iter().find(|(name, _)| *name == ty.trim()).map(|(_, bytes)| *bytes)
}

/// The bytes of one declaration behind `__shared__`, for instance ` float a[4][8],b[2]`.
fn declared(text: &str) -> Option<i64> {
    let text = match text.trim_start().strip_prefix("__align__(") {
        Some(rest) => rest.split_once(')')?.1,
        None => text,
    };
    let first = text.find('[')?;
    let (ty, _) = text[..first].trim_end().rsplit_once(' ')?;
    let element = bytes_of(ty)?;
    let sizes = |part: &str| {
        part.split('[').skip(1).map(|size| size.split(']').next()?.trim().parse::<i64>().ok()).product::<Option<i64>>()
    };
    text.split(',').map(|part| Some(element * sizes(part)?)).sum()
}

/// The bytes that a text declares, but for those of device functions with template parameters, which are few.
fn static_bytes(text: &Text) -> i64 {
    let source = &text.source[text.source.find("extern \"C\"").expect("an entry")..];
    let parts = source.match_indices("__shared__ ").filter(|(at, _)| !source[..*at].ends_with("extern "));
    let bytes = |(at, word): (usize, &str)| {
        let text = source[at + word.len()..].split(';').next().unwrap();
        declared(text).unwrap_or_else(|| panic!("what does it take? {text}"))
    };
    parts.map(bytes).sum()
}

/// Sums of columns that nothing else needs, as the gradients of many biases are: one launch of several bodies.
fn sums_of_columns(dtype: &str, count: usize) -> Graph {
    let list = |each: &dyn Fn(usize) -> String, between: &str| (0..count).map(each).collect::<Vec<_>>().join(between);
    let inputs = list(&|i| format!("%{i}: {dtype}[512, 256]"), ", ");
    let sums = list(&|i| format!("  %{}: {dtype}[1, 256] = reduce_sum %{i} {{axes=[0]}}\n", count + i), "");
    let outputs = list(&|i| format!("%{}", count + i), ", ");
    Graph::parse(&format!("graph({inputs}) {{\n{sums}  return {outputs}\n}}")).unwrap()
}

#[test]
fn declarations_are_counted() {
    assert_eq!(declared("float lhs[16][65],rhs[16][33]"), Some(4 * (16 * 65 + 16 * 33)));
    assert_eq!(declared("__align__(16) unsigned char scratch[4096]"), Some(4096));
    assert_eq!(declared("__align__(8) unsigned long long ready[2]"), Some(16));
    assert_eq!(declared("Unknown a[3]"), None);
}

#[test]
fn every_text_fits_the_shared_memory_of_a_block() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text");
    let of_files = std::fs::read_dir(folder).unwrap().map(|entry| {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        Graph::parse(text.split("gives:").next().unwrap()).unwrap()
    });
    let of_random = (0..200).map(|seed| random::graph(seed, &random::Options::default()));
    let of_sums = ["f32", "bf16", "f64"].map(|dtype| sums_of_columns(dtype, 8));
    let graphs = examples().into_iter().map(|example| example.graph).chain(of_files).chain(of_random).chain(of_sums);
    let kernels: Vec<Arc<Kernel>> = graphs.flat_map(support::kernels).collect();
    let mut several = 0;
    for (kernel, way) in kernels.iter().flat_map(|kernel| [Way::of("sm_90a"), Way::plain()].map(|way| (kernel, way))) {
        let text = generate(kernel, way).unwrap();
        let (own, beside) = (static_bytes(&text), text.block_bytes.as_const());
        assert!(own <= MOST, "{own} bytes\n{kernel}\n{}", text.source);
        // Beyond this the launch asks for what the text declares and sets the attribute.
        if let Some(beside) = beside.filter(|beside| *beside <= FOR_NOTHING) {
            assert!(own + beside <= MOST, "{own} and {beside} bytes\n{kernel}\n{}", text.source);
        }
        several += usize::from(matches!(&kernel.body, KernelBody::Parallel(bodies) if own > 0 && bodies.len() > 4));
    }
    assert!(several > 0, "no launch of several bodies that share what it declares");
}
