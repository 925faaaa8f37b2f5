//! Random functions, called as they are and compiled: `kiln fuzz functions` with fixed seeds.

use kiln_oracle::functions::{compare, generate, generate_plain, generate_with_variables, shrink};

/// Seeds that failed once: symbols of data that are given up after a part ran, and more equations between them than rounds.
const FAILED: [u64; 12] = [
    901_020_989,
    901_023_894,
    901_025_529,
    903_006_367,
    904_013_939,
    5_155_497,
    5_170_858,
    5_187_437,
    7_811_663,
    20_116_322,
    20_248_146,
    51_231_537,
];

/// The same of functions that make variables: a new value on a tape was lost where the graph ended, and gradients that a disabled part
/// computed did not arrive.
const FAILED_WITH_VARIABLES: [u64; 4] = [41_002_029, 41_026_193, 41_067_650, 3_100_300_340];

#[test]
fn random_functions() {
    kiln::runtime::disk::set_store(None);
    let failed = FAILED.map(|seed| (seed, generate_plain(seed)));
    let with_variables = FAILED_WITH_VARIABLES.map(|seed| (seed, generate_with_variables(seed)));
    let drawn = (0..300).map(|seed| (seed, generate(seed)));
    for (seed, program) in drawn.chain(failed).chain(with_variables) {
        if let Err(difference) = compare(&program) {
            let small = shrink(program, &mut |program| compare(program).is_err());
            let last = compare(&small).err().unwrap_or(difference);
            panic!("seed {seed}: {last}\n{small}");
        }
    }
}
