//! File tests: `tests/text/*.kiln` holds a graph and, after a line `gives:`, the CUDA text of each of its kernels, without the device
//! functions that all texts begin with. `KILN_BLESS=1 cargo test -p kiln-cuda --test files` writes what comes out into the files.

mod support;

use kiln_cuda::text::{Text, Tile, Way, generate};
use kiln_ir::Graph;
use kiln_kernels::Kernel;
use kiln_kernels::kernel::KernelBody;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The text of every kernel of a graph.
fn texts(source: &str) -> String {
    let graph = Graph::parse(source).unwrap_or_else(|error| panic!("{error}\n{source}"));
    let text = |kernel: &Kernel| {
        let text = generate(kernel, Way::of("sm_90a")).unwrap();
        let entry = text.source.find("extern \"C\"").expect("an entry");
        let (blocks, bytes) = (&text.blocks, &text.block_bytes);
        format!("// {blocks} blocks of {} threads, {bytes} bytes\n{}", text.threads, text.source[entry..].trim())
    };
    support::kernels(graph).iter().map(|kernel| text(kernel)).collect::<Vec<_>>().join("\n\n")
}

#[test]
fn texts_are_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text");
    let bless = std::env::var_os("KILN_BLESS").is_some_and(|value| value == "1");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut wrong = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let (graph, wanted) = text.split_once("gives:\n").unwrap_or_else(|| panic!("{}: no gives:", file.display()));
        let got = texts(graph);
        if bless {
            std::fs::write(file, format!("{graph}gives:\n{got}\n")).unwrap();
        } else if got != wanted.trim_end() {
            wrong.push(format!("{}:\n{got}", file.display()));
        }
    }
    assert!(files.len() >= 8, "{} files", files.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// The kernels of the files whose names begin so.
fn kernels_of(name: &str) -> Vec<Arc<Kernel>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = files.filter(|file| file.file_name().is_some_and(|own| own.to_string_lossy().starts_with(name)));
    let kernels = |file: PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        support::kernels(Graph::parse(text.split("gives:").next().unwrap()).unwrap())
    };
    named.flat_map(kernels).collect()
}

/// The products of the files whose names begin so, in every tile.
fn tiled(name: &str, arch: &str) -> Vec<Text> {
    let ways = || Tile::all().map(|tile| Way { tile: Some(tile), ..Way::of(arch) });
    let kernels = kernels_of(name);
    kernels.iter().flat_map(|kernel| ways().map(|way| generate(kernel, way).unwrap())).collect()
}

#[test]
fn every_tile_is_another_text_that_fits_a_multiprocessor() {
    let grouped = tiled("tensor_cores", "sm_90a");
    let sources = |texts: &[Text]| texts.iter().map(|text| text.source.clone()).collect::<HashSet<String>>().len();
    assert_eq!(sources(&grouped), 2 * Tile::all().filter(|tile| tile.parts == 1).count());
    let deep = tiled("warpgroups_parts", "sm_90a");
    assert_eq!((sources(&deep), deep.len()), (Tile::all().count(), Tile::all().count()));
    assert!(grouped.iter().chain(&deep).all(|text| text.block_bytes.as_const().unwrap() <= 227 << 10));
    let texts = tiled("tensor_cores", "sm_80");
    assert_eq!(sources(&texts), 2 * Tile::all().filter(|tile| !tile.warpgroups).count());
    assert!(texts.iter().all(|text| !text.source.contains("wgmma.mma_async")));
    let unfolded = tiled("convolution", "sm_80");
    assert!(texts.iter().chain(&unfolded).all(|text| text.block_bytes.as_const().unwrap() <= 163 << 10));
    assert!(Tile::all().all(|tile| Tile::parse(&tile.to_string()) == Some(tile)));
}

#[test]
fn convolutions_are_products_on_tensor_cores() {
    let is_product = |kernel: &Arc<Kernel>| matches!(kernel.body, KernelBody::Matmul(_));
    for kernel in kernels_of("convolution").into_iter().filter(is_product) {
        for way in [Way::of("sm_90a"), Way::plain()] {
            let text = generate(&kernel, way).unwrap();
            assert!(text.source.contains("multiply_") && (way.vectors || text.aligned.is_empty()), "{}", text.source);
        }
    }
}

#[test]
#[ignore = "needs NVRTC, which .ci/run fetches"]
fn nvrtc_takes_every_tile() {
    let nvrtc = kiln_cuda::nvrtc::Nvrtc::get().unwrap();
    let tiled = ["tensor_cores", "warpgroups_parts", "convolution"].into_iter().flat_map(|name| tiled(name, "sm_90a"));
    for text in tiled {
        let outcome = nvrtc.compile(&text.source, "sm_90a");
        assert!(outcome.is_ok(), "{}\n{}", outcome.unwrap_err(), text.source);
    }
}

#[test]
#[ignore = "needs NVRTC, which .ci/run fetches"]
fn nvrtc_takes_them() {
    let nvrtc = kiln_cuda::nvrtc::Nvrtc::get().unwrap();
    for kernel in kernels_of("") {
        for arch in ["sm_80", "sm_90a"] {
            let text = generate(&kernel, Way::of(arch)).unwrap();
            let outcome = nvrtc.compile(&text.source, arch);
            assert!(outcome.is_ok(), "{arch}: {}\n{}", outcome.unwrap_err(), text.source);
        }
    }
}
