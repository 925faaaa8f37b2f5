//! What commands print keeps to the columns of the terminal, and loses nothing for it; into a pipe it is as long as it is.

use std::path::Path;
use std::process::Command;

/// Standard output of a command on a terminal of so many columns; none is a pipe.
fn printed(arguments: &[&str], columns: Option<usize>, cache: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(arguments).env("KILN_CACHE", "on").env("KILN_CACHE_DIR", cache).env_remove("CLICOLOR_FORCE");
    command.env_remove("COLUMNS");
    if let Some(columns) = columns {
        command.env("COLUMNS", columns.to_string());
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn lines_fit_the_terminal() {
    let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/../kiln-llm/tests/reference");
    let softmax = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/softmax.kiln");
    let (bert, vit) = (format!("{reference}/tiny-bert"), format!("{reference}/tiny-vit"));
    let picture = format!("{reference}/images/rgb.png");
    let cache = std::env::temp_dir().join(format!("kiln-width-{}", std::process::id()));
    // Words that a narrow terminal must not lose.
    let cases: [(&[&str], &[&str]); 7] = [
        (&["explain", softmax], &["GB/s", "softmax.kiln", "kernel"]),
        (&["run", "--list"], &["stories260K", "260 K", "llama-3.2-1b"]),
        (&["doctor", "--quick", "--python", "/no/python"], &["kiln would use", "threads"]),
        (&["embed", &bert, "one text", "another one", "a third", "--similarity"], &["1.000", "another"]),
        (&["classify", &vit, &picture, "--top", "2"], &["%"]),
        // Of the programs that the two before it have left.
        (&["cache", "ls"], &["key", "label", "entries"]),
        (&["demo", "--tokens", "4"], &["reduce-overhead", "1.00×", "equal"]),
    ];
    for (arguments, words) in cases {
        for columns in [Some(40), Some(60), Some(80), Some(120), None] {
            let text = printed(arguments, columns, &cache);
            for line in text.lines().filter(|_| columns.is_some()) {
                assert!(line.chars().count() <= columns.unwrap(), "{arguments:?} at {columns:?}: '{line}'\n{text}");
            }
            for word in words {
                assert!(text.contains(word), "{arguments:?} at {columns:?} lacks '{word}':\n{text}");
            }
        }
    }
    std::fs::remove_dir_all(&cache).unwrap();
}
