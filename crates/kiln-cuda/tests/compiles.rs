//! Every kernel that the suites schedule has a text, and NVRTC takes it for the oldest and the newest architecture supported.

mod support;

use kiln_cuda::nvrtc::Nvrtc;
use kiln_cuda::text::{Way, generate, together};
use kiln_ir::examples::examples;
use kiln_ir::{Graph, generate as random};
use kiln_kernels::Kernel;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The kernels of every op's examples, of the file tests and of random graphs with constant and with symbolic sizes.
fn suite(random_graphs: u64) -> HashSet<Arc<Kernel>> {
    let of_examples = examples().into_iter().map(|example| example.graph);
    let of_random = (0..random_graphs).map(|seed| {
        let options = random::Options { symbolic: seed % 3 == 0, ..Default::default() };
        random::graph(seed, &options)
    });
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text");
    let of_files = std::fs::read_dir(folder).unwrap().map(|entry| {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        Graph::parse(text.split("gives:").next().unwrap()).unwrap()
    });
    of_examples.chain(of_files).chain(of_random).flat_map(support::kernels).collect()
}

#[test]
fn every_kernel_has_a_text() {
    let suite = suite(300);
    for kernel in &suite {
        let text = generate(kernel, Way::of("sm_90a")).unwrap_or_else(|error| panic!("{error}\n{kernel}"));
        assert!(!text.source.contains("unknown_"), "{kernel}\n{}", text.source);
    }
    assert!(suite.len() > 1000, "{}", suite.len());
}

/// Calls `work` on each part of the suite, from as many threads as there are cores.
fn on_all_cores<T: Sync>(parts: &[T], work: impl Fn(usize, &T) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let take = || {
        while let Some((number, part)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, parts.get(n)?)))
        {
            work(number, part);
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(take))));
}

fn suite_of_nvrtc() -> Vec<Arc<Kernel>> {
    let graphs = std::env::var("KILN_FUZZ_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    suite(graphs).into_iter().collect()
}

#[test]
#[ignore = "needs NVRTC, which .ci/run fetches; minutes long"]
fn nvrtc_takes_every_text_for_sm_80() {
    let nvrtc = Nvrtc::get().unwrap();
    let suite = suite_of_nvrtc();
    on_all_cores(&suite, |number, kernel| {
        // The plain text of a kernel is that of one without wide accesses.
        let way = if number % 8 == 0 { Way::plain() } else { Way::of("sm_80") };
        let text = generate(kernel, way).unwrap();
        if let Err(error) = nvrtc.compile(&text.source, "sm_80") {
            panic!("{error}\n{kernel}\n{}", text.source);
        }
    });
    println!("{} kernels", suite.len());
}

/// Kernels of every kind compile as one text, too, in less time.
#[test]
#[ignore = "needs NVRTC, which .ci/run fetches; minutes long"]
fn nvrtc_takes_every_text_for_sm_90a_many_at_once() {
    let nvrtc = Nvrtc::get().unwrap();
    let suite = suite_of_nvrtc();
    let texts: Vec<_> = suite.iter().map(|kernel| generate(kernel, Way::of("sm_90a")).unwrap()).collect();
    let parts: Vec<&[_]> = texts.chunks(48).collect();
    on_all_cores(&parts, |_, texts| {
        let cubin = nvrtc.compile(&together(texts), "sm_90a").unwrap_or_else(|error| panic!("{error}"));
        for (number, text) in texts.iter().enumerate() {
            let name = format!("{}_{number}", text.name);
            assert!(cubin.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
        }
    });
    println!("{} kernels", suite.len());
}

#[test]
#[ignore = "needs NVRTC, which .ci/run fetches"]
fn a_text_that_does_not_compile_is_kept() {
    let nvrtc = Nvrtc::get().unwrap();
    let text = "extern \"C\" __global__ void kernel() { nonsense; }";
    let error = nvrtc.compile(text, "sm_90a").unwrap_err();
    let path = error.text.clone().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    let said = error.to_string();
    assert!(said.contains("nonsense") && said.contains(&path.display().to_string()), "{said}");
    std::fs::remove_file(path).unwrap();
}
