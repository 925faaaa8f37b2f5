//! What a figure has to say about where and when it was taken, and what this process holds.

use kiln_llm::time::{seconds_now, strftime};
use serde_json::{Value, json};

/// Name of the processor; empty where the system does not tell.
pub fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(':').nth(1));
    name.unwrap_or_default().trim().to_owned()
}

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Now, in UTC, as `2026-11-15T10:00:00Z`.
pub fn date() -> String {
    strftime("%Y-%m-%dT%H:%M:%SZ", seconds_now())
}

/// What every JSON line says about its place and time.
pub fn describe() -> Value {
    json!({"cpu": cpu(), "cores": cores(), "date": date(), "kiln": env!("CARGO_PKG_VERSION")})
}

/// Bytes of this process in memory at the moment; 0 where the system does not tell.
pub fn resident() -> u64 {
    status("VmRSS:")
}

/// The most bytes this process ever had in memory; 0 where the system does not tell.
pub fn resident_peak() -> u64 {
    status("VmHWM:")
}

/// Brings every page of this program and its libraries into memory, so that what comes later is data.
pub fn load_program() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    kiln_runtime::host::read_ahead(program_ranges(&maps));
}

/// Returns the address ranges of files with executable mappings, from `/proc/self/maps`.
fn program_ranges(maps: &str) -> impl Iterator<Item = std::ops::Range<usize>> {
    // begin-end rights offset device inode path
    let field = |line: &'_ str, number: usize| line.split_ascii_whitespace().nth(number).unwrap_or_default().to_owned();
    let files = maps.lines().filter(|line| field(line, 1).contains('x')).map(|line| field(line, 5));
    let files: Vec<String> = files.filter(|path| path.starts_with('/') && !path.starts_with("/memfd:")).collect();
    let range = move |line: &str| {
        let (begin, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
        let [begin, end] = [begin, end].map(|place| usize::from_str_radix(place, 16).ok());
        files.contains(&field(line, 5)).then_some(begin?..end?)
    };
    maps.lines().filter_map(range).collect::<Vec<_>>().into_iter()
}

fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse().ok());
    kilobytes.unwrap_or(0u64) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_peak_stays_when_memory_is_given_back() {
        // Other tests take and give back memory beside this one, so that only what is held here is sure.
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(resident() > 60 << 20);
        drop(held);
        assert!(resident_peak() > 60 << 20);
    }

    #[test]
    fn a_program_is_its_files_and_those_of_its_libraries() {
        let maps = "1000-2000 r--p 00000000 fd:00 12 /bin/kiln\n2000-5000 r-xp 00001000 fd:00 12 /bin/kiln\n\
                    6000-7000 r-xs 00000000 00:01 13 /memfd:kiln-code (deleted)\n8000-9000 rw-p 00000000 00:00 0\n\
                    a000-b000 r--s 00000000 fd:00 14 /models/weights\nb000-c000 r-xp 00000000 00:00 0 [vdso]\n";
        assert_eq!(program_ranges(maps).collect::<Vec<_>>(), [0x1000..0x2000, 0x2000..0x5000]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_program_that_is_loaded_stays_in_place() {
        load_program();
        assert!(resident() > 100_000);
    }
}
