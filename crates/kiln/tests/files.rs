//! Whatever stands behind a path, reading it ends: pipes, devices and folders are errors, and so is more than was meant to be
//! read.
#![cfg(unix)]

use kiln::{Bytes, Device, files, safetensors};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// A folder that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("kiln-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn pipe(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a path that ends with 0.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a call gives; a call that waits for ever fails the test.
fn within_a_minute<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || drop(send.send(call())));
    receive.recv_timeout(Duration::from_secs(60)).expect("it waits for something")
}

#[test]
fn a_pipe_a_device_and_a_folder_are_errors() {
    let scratch = Scratch::new("kinds");
    let pipe = scratch.pipe("model.safetensors");
    for (path, what) in [(pipe, "a pipe"), ("/dev/zero".into(), "a device"), (scratch.0.clone(), "a folder")] {
        let words = format!("it is {what}, not a regular file");
        let (a, b, c) = (path.clone(), path.clone(), path.clone());
        assert_eq!(within_a_minute(move || files::read(a, 1 << 20)).unwrap_err().to_string(), words);
        assert_eq!(within_a_minute(move || Bytes::map(b)).unwrap_err().to_string(), words);
        let error = within_a_minute(move || safetensors::load(c, Device::Cpu)).unwrap_err().to_string();
        assert!(error.contains(&words), "{error}");
    }
}

#[test]
fn a_file_that_is_longer_than_it_says_is_not_read_whole() {
    // Files of the kernel say that they are empty, and are not.
    let text = files::read_text("/proc/self/maps", 1 << 24).unwrap();
    assert!(!text.is_empty());
    assert!(files::read("/proc/self/maps", 10).unwrap_err().to_string().contains("more than the 10 bytes"));
}

#[test]
fn names_of_a_file_are_escaped_and_cut_in_errors() {
    let name = format!("\u{1b}]0;title\u{7}\u{9b}2J\u{202e}\n{}", "n".repeat(1 << 20));
    let header = format!(r#"{{{}:{{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}}}"#, serde_string(&name));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([0; 4]);
    let error = safetensors::from_bytes(&file, Device::Cpu).unwrap_err().to_string();
    assert!(error.len() < 1000, "{} bytes", error.len());
    assert!(error.contains(r"\u{1b}]0;title\u{7}\u{9b}2J\u{202e}\n"), "{error}");
    assert!(!error.chars().any(|c| c.is_control() || c == '\u{202e}'), "{error:?}");
}

fn serde_string(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\u{:04x}", c as u32) })
        .collect();
    format!("\"{escaped}\"")
}
