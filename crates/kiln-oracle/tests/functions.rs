//! Random functions, called as they are and compiled: `kiln fuzz functions` with fixed seeds.

use kiln_oracle::functions::{compare, generate, shrink};

#[test]
fn random_functions() {
    kiln::runtime::disk::set_store(None);
    for seed in 0..300 {
        let program = generate(seed);
        if let Err(difference) = compare(&program) {
            let small = shrink(program, &mut |program| compare(program).is_err());
            let last = compare(&small).err().unwrap_or(difference);
            panic!("seed {seed}: {last}\n{small}");
        }
    }
}
