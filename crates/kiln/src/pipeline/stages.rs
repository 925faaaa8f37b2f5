//! The table of stages. Each has one name, under which `KILN_DEBUG`, `explain` and errors of the verifiers speak of it.

/// A stage of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// The name, a verb phrase.
    pub name: &'static str,
    /// The phase that its time belongs to, as [`kiln_runtime::phase`] and `explain` count it.
    pub phase: &'static str,
    /// What it makes.
    pub makes: &'static str,
    /// What checks the result in debug builds and under `kiln fuzz --check`.
    pub verifier: &'static str,
    /// The file that `KILN_DEBUG` writes; `NN` counts the graphs and schedules of one program.
    pub dump: &'static str,
    /// Where it is, under `crates/`.
    pub code: &'static str,
}

macro_rules! stages {
    ($($name:literal, $phase:literal, $makes:literal, $verifier:literal, $dump:literal, $code:literal;)*) => {
        /// Every stage from a function to launches, in order.
        ///
        /// The passes from `decompose` to `dead_code` run again and again until none of them changes the graph. `fold_norms` and `split_frozen`
        /// run for graphs with frozen inputs, `pack` for those whose weights the backend packs, `tune` in the modes that
        /// measure. A program that is found on disk skips what is between `capture` and `code`.
        pub const STAGES: &[Stage] = &[$(Stage {
            name: $name, phase: $phase, makes: $makes, verifier: $verifier, dump: $dump, code: $code,
        }),*];
    };
}

#[rustfmt::skip]
stages! {
    // name                  phase       makes            verifier                          dump                            code
    "capture",               "capture",  "Graph",         "Graph::verify",                  "NN-capture.kiln",              "kiln/src/compile/capture/recording/mod.rs";
    "differentiate",         "capture",  "Graph",         "Graph::verify",                  "NN-capture.kiln",              "kiln-passes/src/differentiate/mod.rs";
    "fold_norms",            "passes",   "Graph",         "Graph::verify",                  "NN-fold_norms.kiln",           "kiln-passes/src/fold_norms.rs";
    "decompose",             "passes",   "Graph",         "Graph::verify",                  "NN-decompose.kiln",            "kiln-passes/src/decompose.rs";
    "flatten_choices",       "passes",   "Graph",         "Graph::verify",                  "NN-flatten_choices.kiln",      "kiln-passes/src/flatten_choices.rs";
    "canonicalize",          "passes",   "Graph",         "Graph::verify",                  "NN-canonicalize.kiln",         "kiln-passes/src/canonicalize.rs";
    "fold_constants",        "passes",   "Graph",         "Graph::verify",                  "NN-fold_constants.kiln",       "kiln-passes/src/fold_constants.rs";
    "simplify_algebra",      "passes",   "Graph",         "Graph::verify",                  "NN-simplify_algebra.kiln",     "kiln-passes/src/simplify_algebra.rs";
    "fold_views",            "passes",   "Graph",         "Graph::verify",                  "NN-fold_views.kiln",           "kiln-passes/src/fold_views.rs";
    "recognise_attention",   "passes",   "Graph",         "Graph::verify",                  "NN-recognise_attention.kiln",  "kiln-passes/src/recognise_attention.rs";
    "common_subexpressions", "passes",   "Graph",         "Graph::verify",                  "NN-common_subexpressions.kiln", "kiln-passes/src/common_subexpressions.rs";
    "dead_code",             "passes",   "Graph",         "Graph::verify",                  "NN-dead_code.kiln",            "kiln-passes/src/dead_code.rs";
    "recompute",             "passes",   "Graph",         "Graph::verify",                  "NN-recompute.kiln",            "kiln-passes/src/recompute.rs";
    "split_frozen",          "passes",   "two Graphs",    "Graph::verify",                  "NN-split_frozen.kiln",         "kiln-passes/src/split_frozen.rs";
    "prepare",               "schedule", "Graph",         "Graph::verify",                  "NN-prepare.kiln",              "kiln-kernels/src/prepare.rs";
    "materialise",           "schedule", "works",         "Error::Unsupported",             "NN-schedule.txt",              "kiln-kernels/src/materialise.rs";
    "fuse",                  "schedule", "groups",        "Error::Cycle",                   "NN-schedule.txt",              "kiln-kernels/src/fuse.rs";
    "schedule",              "schedule", "Schedule",      "kiln_kernels::verify::order",    "NN-schedule.txt",              "kiln-kernels/src/driver.rs";
    "write_updates",         "schedule", "Schedule",      "kiln_kernels::verify::order",    "NN-write_updates.txt",         "kiln-kernels/src/update.rs";
    "join_writes",           "schedule", "Schedule",      "kiln_kernels::verify::order",    "NN-join_writes.txt",           "kiln-kernels/src/writes.rs";
    "join_products",         "schedule", "Schedule",      "kiln_kernels::verify::order",    "NN-join_products.txt",         "kiln-kernels/src/products/mod.rs";
    "join_attention",        "schedule", "Schedule",      "kiln_kernels::verify::order",    "NN-join_attention.txt",        "kiln-kernels/src/attention.rs";
    "free_early",            "schedule", "Schedule",      "kiln_kernels::verify::order",    "NN-free_early.txt",            "kiln-kernels/src/early.rs";
    "drop_unused",           "schedule", "Schedule",      "kiln_kernels::verify::order",    "NN-drop_unused.txt",           "kiln-kernels/src/driver.rs";
    "share_kernels",         "schedule", "Schedule",      "kiln_kernels::verify::order",    "schedule.txt",                 "kiln-kernels/src/driver.rs";
    "code",                  "code",     "machine code",  "vir::verify, regalloc::check",   "kernels/N-label.*.txt",        "kiln-cpu/src/backend.rs";
    "plan",                  "plan",     "Plan",          "kiln_kernels::verify::memory",   "plan.txt",                     "kiln-kernels/src/plan.rs";
    "pack",                  "pack",     "packed inputs", "kiln fuzz graphs",               "plan.txt",                     "kiln-runtime/src/packer.rs";
    "tune",                  "tune",     "Variants",      "Options::verify",                "kernels/N-label.*.txt",        "kiln-runtime/src/tune.rs";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_table_has_the_passes_in_their_order() {
        let passes: Vec<&str> = kiln_passes::PASSES.iter().map(|pass| pass.name).collect();
        let first = STAGES.iter().position(|stage| stage.name == passes[0]).expect("the first pass");
        let listed: Vec<&str> = STAGES[first..].iter().map(|stage| stage.name).take(passes.len()).collect();
        assert_eq!(listed, passes);
    }

    #[test]
    fn the_table_has_the_stages_of_the_scheduler_in_their_order() {
        let graph = kiln_ir::Graph::parse("graph(%0: f32[4]) {\n  %1: f32[4] = exp %0\n  return %1\n}").unwrap();
        let layouts = [kiln_kernels::InputLayout::contiguous(graph.ty(graph.inputs()[0]))];
        let mut seen = Vec::new();
        let observe = &mut |name: &'static str, _: kiln_kernels::Form<'_>| seen.push(name);
        kiln_kernels::schedule_with(&graph, &layouts, &Default::default(), observe).unwrap();
        let shown = |stage: &&Stage| stage.phase == "schedule" && !matches!(stage.name, "materialise" | "fuse");
        let listed: Vec<&str> = STAGES.iter().filter(shown).map(|stage| stage.name).collect();
        assert_eq!(listed, seen);
    }

    #[test]
    fn every_stage_is_where_the_table_says() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
        for stage in STAGES {
            assert!(crates.join(stage.code).is_file(), "{}: {}", stage.name, stage.code);
        }
    }
}
