//! Modes as the command line names them: eager, and PyTorch's names for what is compiled.

use kiln::{Options, Precision};

/// How a model is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Op by op, nothing fused
    Eager,
    /// Fused kernels
    Default,
    /// And launches that are resolved once
    ReduceOverhead,
    /// And for each kernel the fastest of several variants, measured
    MaxAutotune,
    /// The same without the resolved launches
    MaxAutotuneNoCudagraphs,
}

impl Mode {
    /// The name, as on the command line.
    pub fn name(self) -> &'static str {
        self.compiled().map_or("eager", kiln::Mode::name)
    }

    /// What it is to the compiler; nothing for eager.
    fn compiled(self) -> Option<kiln::Mode> {
        match self {
            Mode::Eager => None,
            Mode::Default => Some(kiln::Mode::Default),
            Mode::ReduceOverhead => Some(kiln::Mode::ReduceOverhead),
            Mode::MaxAutotune => Some(kiln::Mode::MaxAutotune),
            Mode::MaxAutotuneNoCudagraphs => Some(kiln::Mode::MaxAutotuneNoCudagraphs),
        }
    }

    /// How a model is compiled in this mode; nothing for eager.
    pub fn options(self, freeze: bool, precision: Precision) -> Option<Options> {
        self.compiled().map(|mode| Options { mode, freeze, precision, ..Options::default() })
    }
}

/// The precision of this name.
pub fn precision(name: &str) -> Result<Precision, String> {
    Precision::named(name).ok_or_else(|| {
        format!("there is no precision '{name}'; these are: {}", Precision::ALL.map(Precision::name).join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_mode_has_the_name_it_is_given_by() {
        for mode in Mode::value_variants() {
            assert_eq!(mode.to_possible_value().unwrap().get_name(), mode.name());
        }
        assert_eq!(Mode::value_variants().len(), 1 + kiln::Mode::ALL.len());
    }
}
