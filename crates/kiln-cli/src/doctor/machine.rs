//! The processor and its memory: what the system reports, and what is measured.

use std::path::Path;
use std::time::Instant;

/// What the processor calls itself.
pub fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or("unknown".into(), |(_, name)| name.trim().to_owned())
}

/// Features that matter to generated code, and whether they are here.
#[cfg(target_arch = "x86_64")]
pub fn flags() -> Vec<(&'static str, bool)> {
    macro_rules! ask {
        ($($name:tt)*) => { vec![$(($name, std::arch::is_x86_feature_detected!($name))),*] };
    }
    ask!("avx" "avx2" "fma" "f16c" "bmi2" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni" "avx512bf16" "avx512fp16")
}

/// Features that matter to generated code, and whether they are here.
#[cfg(not(target_arch = "x86_64"))]
pub fn flags() -> Vec<(&'static str, bool)> {
    Vec::new()
}

/// Memory of the machine, in bytes.
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What a program can get.
    pub available: u64,
}

/// As `/proc/meminfo` says.
pub fn memory() -> Option<Memory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    Some(Memory { total: field("MemTotal:")?, available: field("MemAvailable:")? })
}

/// Bytes a second that this many threads read together, the best of a few passes over more than the caches hold.
pub fn read_bandwidth(threads: usize) -> f64 {
    const BYTES: usize = 192 << 20;
    let data = vec![1u64; BYTES / 8];
    let share = data.len().div_ceil(threads.max(1));
    let pass = || {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for part in data.chunks(share) {
                scope.spawn(move || {
                    let sums = part.chunks(8).fold([0u64; 8], |mut sums, eight| {
                        sums.iter_mut().zip(eight).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
                        sums
                    });
                    std::hint::black_box(sums);
                });
            }
        });
        BYTES as f64 / begin.elapsed().as_secs_f64()
    };
    (0..4).map(|_| pass()).fold(0.0, f64::max)
}

/// Whether a file can be made in a folder.
pub fn is_writable(folder: &Path) -> bool {
    let file = folder.join(format!(".doctor-{}", std::process::id()));
    let made = std::fs::write(&file, b"").is_ok();
    made && std::fs::remove_file(&file).is_ok()
}
