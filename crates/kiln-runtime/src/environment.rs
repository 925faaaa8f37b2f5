//! The environment variables that Kiln reads, in one table: the values of each, and the error for others.
//!
//! ```text
//!  KILN_THREADS=abc ──▶ Variable::get ──▶ a warning on stderr and an event, once; then as if it were not set
//!                  └──▶ check ──▶ the `kiln` command refuses to begin
//! ```

use crate::event::{self, Category, Event};
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// A variable of the environment.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// A description of the values that it takes.
    pub allowed: &'static str,
    is_valid: fn(&str) -> bool,
    warned: AtomicBool,
}

/// The most threads of a parallel region.
pub static THREADS: Variable = Variable::new("KILN_THREADS", "a whole number from 1 to 256", |value| {
    value.parse::<usize>().is_ok_and(|threads| (1..=256).contains(&threads))
});
/// The instruction set that code is generated for.
pub static CPU_ISA: Variable = Variable::new("KILN_CPU_ISA", "portable, avx2, avx512, avx512-bf16 or amx", |value| {
    ["portable", "avx2", "avx512", "avx512-bf16", "amx"].contains(&value.to_ascii_lowercase().as_str())
});
/// Selects the backend.
pub static BACKEND: Variable = Variable::new("KILN_BACKEND", "cpu, reference or reference-cuda", |value| {
    ["cpu", "reference", "reference-cuda"].contains(&value)
});
/// Where CUDA's libraries are looked for first.
pub static CUDA_PATH: Variable = Variable::new("KILN_CUDA_PATH", "folders, separated by colons", |_| true);
/// When products are computed by cuBLASLt.
pub static CUBLASLT: Variable =
    Variable::new("KILN_CUBLASLT", "auto, off or always", |value| ["auto", "off", "always"].contains(&value));
/// When kernels are computed by cuDNN.
pub static CUDNN: Variable =
    Variable::new("KILN_CUDNN", "off, auto or always", |value| ["auto", "off", "always"].contains(&value));
/// Whether launches of a CUDA graph overlap.
pub static CUDA_OVERLAP: Variable =
    Variable::new("KILN_CUDA_OVERLAP", "on or off", |value| ["on", "off"].contains(&value));
/// The most memory of a GPU that a process holds.
pub static CUDA_MEMORY: Variable =
    Variable::new("KILN_CUDA_MEMORY", "a whole number of bytes, or a part of the GPU's memory such as 0.5", |value| {
        let is_part = value.parse::<f64>().is_ok_and(|part| part > 0.0 && part <= 1.0);
        is_part || value.parse::<usize>().is_ok_and(|bytes| bytes > 1)
    });
/// The events that are printed.
pub static LOG: Variable = Variable::new(
    "KILN_LOG",
    "all, or some of breaks, guards, recompiles, fusion, kernels, cache, perf and run, separated by commas",
    |value| event::parse(value).1.is_empty(),
);
/// The folder that programs are dumped to as text.
pub static DEBUG: Variable = Variable::new("KILN_DEBUG", "1, all, 0 or a folder", |_| true);
/// Whether programs are kept on disk.
pub static CACHE: Variable =
    Variable::new("KILN_CACHE", "on or off", |value| ["on", "1", "true", "off", "0", "false"].contains(&value));
/// The folder of the disk cache.
pub static CACHE_DIR: Variable = Variable::new("KILN_CACHE_DIR", "a folder", |_| true);
/// The bound of the disk cache.
pub static CACHE_MAX_BYTES: Variable =
    Variable::new("KILN_CACHE_MAX_BYTES", "a whole number of bytes", |value| value.parse::<u64>().is_ok());
/// The bound of packed copies of weights.
pub static PACKED_MAX_BYTES: Variable =
    Variable::new("KILN_PACKED_MAX_BYTES", "a whole number of bytes", |value| value.parse::<usize>().is_ok());
/// The Python that benchmarks find PyTorch in.
pub static PYTHON: Variable = Variable::new("KILN_PYTHON", "a Python", |_| true);
/// The folder of stored conversations.
pub static HISTORY: Variable = Variable::new("KILN_HISTORY", "off or a file", |_| true);

/// Every variable.
pub static VARIABLES: [&Variable; 16] = [
    &THREADS,
    &CPU_ISA,
    &BACKEND,
    &CUDA_PATH,
    &CUBLASLT,
    &CUDNN,
    &CUDA_OVERLAP,
    &CUDA_MEMORY,
    &LOG,
    &DEBUG,
    &CACHE,
    &CACHE_DIR,
    &CACHE_MAX_BYTES,
    &PACKED_MAX_BYTES,
    &PYTHON,
    &HISTORY,
];

/// A variable with an invalid value, or with an unknown name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A value that the variable does not take.
    BadValue {
        /// The variable.
        variable: String,
        /// Its value.
        value: String,
        /// A description of the values it takes.
        allowed: String,
    },
    /// A variable that is not read, with a name similar to one that is.
    UnknownName {
        /// The variable.
        variable: String,
        /// The similar name.
        nearest: &'static str,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::BadValue { variable, value, allowed } => {
                write!(f, "{variable}={value} is not understood: it takes {allowed}")
            }
            Problem::UnknownName { variable, nearest } => {
                write!(f, "nothing reads {variable}; is it meant to be {nearest}?")
            }
        }
    }
}

impl Variable {
    const fn new(name: &'static str, allowed: &'static str, is_valid: fn(&str) -> bool) -> Variable {
        Variable { name, allowed, is_valid, warned: AtomicBool::new(false) }
    }

    /// The value without spaces around it; none where it is not set or empty. A value that the variable does not take is an error.
    pub fn read(&self) -> Result<Option<String>, Problem> {
        self.of(std::env::var_os(self.name))
    }

    fn of(&self, value: Option<OsString>) -> Result<Option<String>, Problem> {
        let Some(value) = value else { return Ok(None) };
        let text = value.to_str().map(str::trim);
        match text {
            Some("") => Ok(None),
            Some(text) if (self.is_valid)(text) => Ok(Some(text.to_owned())),
            _ => Err(self.bad(value.to_string_lossy(), self.allowed)),
        }
    }

    /// The value; none where it is not set, empty, or invalid, of which there is a warning.
    pub fn get(&self) -> Option<String> {
        self.read().unwrap_or_else(|problem| {
            self.warn(problem);
            None
        })
    }

    /// The problem with a value.
    pub fn bad(&self, value: impl Into<String>, allowed: impl Into<String>) -> Problem {
        Problem::BadValue { variable: self.name.to_owned(), value: value.into(), allowed: allowed.into() }
    }

    /// Reports the problem of this variable once, on stderr and as an event.
    pub fn warn(&self, problem: Problem) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            print_warning(&problem);
            event::emit(Category::Perf, || Event::Environment(problem));
        }
    }
}

/// Writes a line to stderr, if there is one.
pub(crate) fn print_warning(problem: &Problem) {
    let _ = writeln!(std::io::stderr(), "kiln: {problem}");
}

/// All problems of the environment.
pub fn check() -> Vec<Problem> {
    let values = VARIABLES.iter().filter_map(|variable| variable.read().err());
    let names = std::env::vars_os().filter_map(|(name, _)| unknown(name.to_str()?));
    values.chain(names).collect()
}

/// A problem with a name: it is not one of Kiln's, but similar to one.
fn unknown(name: &str) -> Option<Problem> {
    const PREFIX: &str = "KILN_";
    let own = name.strip_prefix(PREFIX)?;
    if VARIABLES.iter().any(|variable| variable.name == name) {
        return None;
    }
    let words = |name: &str| name.split('_').map(str::to_owned).collect::<Vec<_>>();
    let is_near = |known: &str| {
        let (mine, theirs) = (words(own), words(known));
        distance(own, known) <= 2
            || own.len().min(known.len()) >= 5 && own.starts_with(known)
            || mine.iter().all(|word| theirs.contains(word))
            || theirs.iter().all(|word| mine.contains(word))
    };
    let near = VARIABLES.iter().filter(|variable| is_near(&variable.name[PREFIX.len()..]));
    let nearest = near.min_by_key(|variable| distance(name, variable.name))?.name;
    Some(Problem::UnknownName { variable: name.to_owned(), nearest })
}

/// The edit distance of two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (above, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for (at, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_knows_what_it_takes() {
        let takes = |variable: &Variable, value: &str| variable.of(Some(value.into())).is_ok();
        let cases: [(&Variable, &[&str], &[&str]); 9] = [
            (&THREADS, &["1", " 8 ", "256", ""], &["abc", "0", "-1", "257", "1.5", "99999999999999999999"]),
            (&CPU_ISA, &["avx2", "AVX512", "portable", "avx512-bf16", "amx"], &["foo", "sse", "avx"]),
            (&BACKEND, &["reference", "cpu"], &["gpu"]),
            (&CUBLASLT, &["auto", "off", "always"], &["on", "1"]),
            (&CUDNN, &["auto", "off", "always"], &["on", "1"]),
            (&CUDA_MEMORY, &["4000000000", "0.5", "1"], &["0", "-1", "1.5", "half", "4GB", "nan"]),
            (&LOG, &["all", "breaks, cache", "slow,compile", ","], &["cahce", "breaks,nonsense"]),
            (&CACHE, &["on", "off", "0", "true"], &["maybe", "2"]),
            (&CACHE_MAX_BYTES, &["0", "1000000"], &["-1", "1GB", "many"]),
        ];
        for (variable, good, bad) in cases {
            for value in good {
                assert!(takes(variable, value), "{}={value}", variable.name);
            }
            for value in bad {
                let problem = variable.of(Some((*value).into())).unwrap_err().to_string();
                assert!(problem.contains(variable.name) && problem.contains(variable.allowed), "{problem}");
            }
        }
        assert_eq!(THREADS.of(None), Ok(None));
        assert_eq!(THREADS.of(Some(" 8 ".into())), Ok(Some("8".to_owned())));
    }

    #[test]
    #[cfg(unix)]
    fn a_value_that_is_no_text_is_bad() {
        use std::os::unix::ffi::OsStringExt;
        assert!(CACHE.of(Some(OsString::from_vec(vec![b'o', 0xff]))).is_err());
    }

    #[test]
    fn a_name_that_is_nearly_one_of_ours_is_told() {
        let nearest =
            |name: &str| unknown(name).map(|problem| problem.to_string().rsplit(' ').next().unwrap().to_owned());
        for (name, expected) in [
            ("KILN_THREAD", "KILN_THREADS?"),
            ("KILN_NUM_THREADS", "KILN_THREADS?"),
            ("KILN_ISA", "KILN_CPU_ISA?"),
            ("KILN_LOGS", "KILN_LOG?"),
            ("KILN_CACHEDIR", "KILN_CACHE_DIR?"),
            ("KILN_CACHE_DIRECTORY", "KILN_CACHE_DIR?"),
            ("KILN_MAX_BYTES", "KILN_CACHE_MAX_BYTES?"),
        ] {
            assert_eq!(nearest(name).as_deref(), Some(expected), "{name}");
        }
        // Ours, those of tests, and those of others.
        for name in ["KILN_LOG", "KILN_BLESS", "KILN_FUZZ_GRAPHS", "KILN_TEST_ROLE", "KILN_MODELS", "KILN_HOME", "PATH"]
        {
            assert_eq!(unknown(name), None, "{name}");
        }
    }

    #[test]
    fn distances_count_single_characters() {
        assert_eq!((distance("LOG", "LOG"), distance("LOG", "LOGS"), distance("kitten", "sitting")), (0, 1, 3));
        assert_eq!(distance("", "abc"), 3);
    }
}
