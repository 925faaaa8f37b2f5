//! Variants of a kernel. A [`Kernel`](kiln_kernels::Kernel) says what is computed; a [`Variant`] says how one target does it:
//! which of its buffers are packed, and which of the target's choices it takes. The default variant is what
//! [`Backend::compile`](crate::Backend::compile) makes.

use std::fmt;

/// A variant of a kernel.
///
/// ```
/// use kiln_runtime::Variant;
/// assert!(Variant::default().is_default());
/// let packed = Variant { packed: vec![(1, "panels".into())], choices: "threads=1".into() };
/// assert_eq!(packed.to_string(), "buffer 1 packed as panels, threads=1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Variant {
    /// Buffers of the kernel that are packed and the key of their [`Packing`], ascending.
    pub packed: Vec<(usize, String)>,
    /// The backend's choices in its own syntax; empty for its defaults.
    pub choices: String,
}

impl Variant {
    /// True for the backend's default.
    pub fn is_default(&self) -> bool {
        self.packed.is_empty() && self.choices.is_empty()
    }

    /// The same packings with other choices.
    pub fn choosing(&self, choices: impl Into<String>) -> Variant {
        Variant { packed: self.packed.clone(), choices: choices.into() }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_default() {
            return f.write_str("default");
        }
        let packed = self.packed.iter().map(|(buffer, key)| format!("buffer {buffer} packed as {key}"));
        let choices = (!self.choices.is_empty()).then(|| self.choices.clone());
        f.write_str(&packed.chain(choices).collect::<Vec<_>>().join(", "))
    }
}

/// A layout in which a kernel reads a buffer faster than in its own; see [`Backend::packing`](crate::Backend::packing).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Packing {
    /// The kernel's buffer.
    pub buffer: usize,
    /// Identifies everything that the packed bytes depend on besides the buffer's own bytes: two kernels whose packings of a
    /// buffer have one key share the packed memory.
    pub key: String,
    /// Size of the packed memory.
    pub bytes: usize,
    /// Whether the backend expects a gain that is worth the memory.
    pub pays: Pays,
    /// Whether it expects one where the kernel is launched many times in a row with the buffer as it is: in the turns of a loop.
    pub pays_in_turns: bool,
}

/// Whether reading a buffer packed is worth the memory of another copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pays {
    /// No.
    Never,
    /// While everything that a program packs fits into a cache: what comes from memory is read as fast where it lies.
    InCache,
    /// However much it is.
    Always,
}
