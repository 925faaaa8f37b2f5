//! Groups about what lasts: texts of a trained model, and programs on disk.

use super::lab::Lab;
use kiln::{CompileOptions, CompiledGraph, Mode, Options, Tensor};
use kiln_ir::generate;
use kiln_llm::{Generator, GeneratorOptions, Request, Sampling, WeightFormat, open};
use kiln_runtime::disk::{self, Store};
use kiln_runtime::kernel_cache;
use std::error::Error;
use std::path::Path;

/// The model inside this program says what PyTorch says it should, eagerly and in every mode.
pub fn generation(lab: &mut Lab) {
    let outcome = generation_of(lab);
    lab.expect("generation", outcome);
}

fn generation_of(lab: &mut Lab) -> Result<(), Box<dyn Error>> {
    let mut known = open::embedded_known()?;
    known.truncate(if lab.quick { 1 } else { known.len() });
    let model = open::embedded_on(lab.device, WeightFormat::AsStored)?.model;
    let make = |compile: Option<Options>| {
        Generator::new(model.clone(), GeneratorOptions { context: 256, compile, ..GeneratorOptions::default() })
    };
    let mut ways = vec![("eager".to_owned(), None)];
    for mode in Mode::ALL {
        let tuning_budget = std::time::Duration::from_millis(500);
        ways.push((mode.name().to_owned(), Some(Options { mode, tuning_budget, ..Options::default() })));
    }
    ways.push(("frozen".to_owned(), Some(Options { freeze: true, ..Options::default() })));
    for (name, compile) in ways {
        let mut generator = make(compile)?;
        for (number, text) in known.iter().enumerate() {
            let most = if lab.quick { 24 } else { text.follows.len() };
            let request = Request { max_tokens: most, ..Request::default() };
            let got = generator.generate(&text.prompt, &request)?.ids;
            lab.same_tokens(format!("{name}, text {number}"), &got, &text.follows[..most.min(text.follows.len())]);
        }
    }
    // Texts of a batch are those they would be alone; drawn tokens are the same eagerly and compiled.
    let mut compiled = make(Some(Options::default()))?;
    let prompts: Vec<Vec<u32>> = known.iter().map(|text| text.prompt.clone()).chain([vec![1], vec![1, 403]]).collect();
    let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 3, ..Sampling::default() };
    let drawn = Request { max_tokens: 16, sampling, ..Request::default() };
    let request = Request { max_tokens: 16, ..Request::default() };
    let together = compiled.generate_batch(&prompts, &request)?;
    let mut eager = make(None)?;
    for (number, (prompt, text)) in prompts.iter().zip(together).enumerate() {
        let alone = compiled.generate(prompt, &request)?.ids;
        lab.same_tokens(format!("batch, text {number}"), &text.ids, &alone);
        let (fast, slow) = (compiled.generate(prompt, &drawn)?.ids, eager.generate(prompt, &drawn)?.ids);
        lab.same_tokens(format!("drawn, text {number}"), &fast, &slow);
    }
    Ok(())
}

/// Programs that come from disk say what they said when they were made, also when a file of them is damaged.
pub fn cache(lab: &mut Lab) {
    let folder = std::env::temp_dir().join(format!("kiln-selftest-{}", std::process::id()));
    let outcome = cache_in(lab, &folder);
    disk::set_store(None);
    // Nothing is left behind; where it cannot be removed, it could not be made either.
    let _ = std::fs::remove_dir_all(&folder);
    lab.expect("disk cache", outcome);
}

fn cache_in(lab: &mut Lab, folder: &Path) -> Result<(), Box<dyn Error>> {
    disk::set_store(Some(Store::open(folder, disk::DEFAULT_MOST_BYTES)?));
    let options = CompileOptions { device: lab.device, ..CompileOptions::default() };
    let mut cases = Vec::new();
    for seed in 0..lab.count(60) {
        let graph = generate::graph(seed, &generate::Options { symbolic: seed % 4 == 0, ..Default::default() });
        let inputs: kiln::Result<Vec<Tensor>> =
            generate::inputs(&graph, seed).iter().map(|host| Tensor::from_host(host, lab.device)).collect();
        let updates = graph.outputs().iter().any(|output| output.updates.is_some());
        let (Ok(inputs), false) = (inputs, updates) else { continue };
        let Ok(cold) = CompiledGraph::new(&graph, &[], &options).and_then(|program| program.run(&inputs)) else {
            continue;
        };
        cases.push((seed, graph, inputs, cold));
    }
    for damaged in [false, true] {
        if damaged {
            for listed in disk::store().ok_or("no store")?.list()? {
                let mut bytes = std::fs::read(&listed.file)?;
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0x55;
                std::fs::write(&listed.file, bytes)?;
            }
        }
        let before = disk::stats();
        for (seed, graph, inputs, cold) in &cases {
            // What this process remembers would answer before the disk does.
            kernel_cache::clear();
            let warm = CompiledGraph::new(graph, &[], &options).and_then(|program| program.run(inputs))?;
            for (got, wanted) in warm.iter().zip(cold) {
                lab.same(format!("seed {seed}{}", if damaged { ", damaged" } else { "" }), got, wanted, 0.0);
            }
        }
        let after = disk::stats();
        let (hits, refused) = (after.hits - before.hits, after.damaged - before.damaged);
        let as_it_should = if damaged { refused > 0 } else { hits > 0 && refused == 0 };
        lab.judge((!as_it_should).then(|| format!("{hits} entries read, {refused} refused, damaged: {damaged}")));
    }
    Ok(())
}
