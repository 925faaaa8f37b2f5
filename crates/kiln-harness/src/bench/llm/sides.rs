//! Who takes part: Kiln's modes, PyTorch's, llama.cpp.

use super::kiln_side::SERIAL;
use crate::bench::peer;
use crate::bench::side::{Side, SideError};
use kiln_terminal::failure::Failure;

/// PyTorch on a language model.
const TORCH: &str = concat!(include_str!("../peers/lines.py"), include_str!("../peers/torch_llm.py"));
/// llama.cpp on a GGUF file.
const LLAMA_CPP: &str = concat!(include_str!("../peers/lines.py"), include_str!("../peers/llama_cpp_side.py"));

/// A side in a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// `kiln`, `torch` (transformers), `torch-lean` (written for the compiler) or `llama.cpp`.
    pub side: String,
    /// `eager`, `default`, …
    pub mode: String,
}

impl Role {
    /// A mode of Kiln, checked.
    pub fn kiln(mode: &str) -> Result<Role, String> {
        super::kiln_side::options(mode)?;
        Ok(Role { side: "kiln".into(), mode: mode.into() })
    }

    /// A mode of a peer, `torch:eager`.
    pub fn peer(text: &str) -> Result<Role, String> {
        let wrong = || {
            format!("'{text}' is no mode of a peer; these are: torch:eager, torch-lean:default, llama.cpp:default …")
        };
        let (side, mode) = text.split_once(':').unwrap_or((text, "default"));
        let known = ["eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"];
        if !["torch", "torch-lean", "llama.cpp"].contains(&side) || !known.contains(&mode) {
            return Err(wrong());
        }
        Ok(Role { side: side.into(), mode: mode.into() })
    }

    /// What PyTorch is measured with: transformers as people use it, and the lean decode, which is the one to beat.
    pub fn torch(device: &str, compiled: bool) -> Vec<Role> {
        let mut texts = vec!["torch:eager"];
        if compiled {
            texts.extend(["torch:default", "torch-lean:default"]);
            if device != "cpu" {
                texts.extend(["torch:reduce-overhead", "torch-lean:reduce-overhead"]);
            }
            texts.extend(["torch:max-autotune", "torch-lean:max-autotune"]);
        }
        texts.into_iter().filter_map(|text| Role::peer(text).ok()).collect()
    }

    /// As records have it.
    pub fn label(&self) -> String {
        if self.side == "kiln" { self.mode.clone() } else { format!("{}:{}", self.side, self.mode) }
    }

    /// How PyTorch's side is written.
    pub fn style(&self) -> &'static str {
        if self.side == "torch-lean" { "lean" } else { "transformers" }
    }

    /// Starts the process.
    pub fn start(&self, what: &str, python: &str) -> Result<Side, SideError> {
        match self.side.as_str() {
            "kiln" => Side::kiln(what, self.mode.split('+').all(|word| word != SERIAL)),
            "llama.cpp" => Side::python(python, LLAMA_CPP),
            _ => Side::python(python, TORCH),
        }
    }
}

/// An error if some roles are a peer's and its Python cannot be started.
pub fn can_start(roles: &[Role], python: &str) -> Result<(), Failure> {
    match roles.iter().any(|role| role.side != "kiln") {
        true => peer::can_start(python),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_checked_before_anything_runs() {
        assert!(Role::kiln("reduce-overhead").is_ok());
        assert!(Role::kiln("default+freeze").is_ok());
        assert!(Role::kiln("default+freeze+high").is_ok());
        assert!(Role::kiln("default+freeze+serial").is_ok());
        assert!(Role::kiln("default+low").is_err());
        assert!(Role::kiln("eager+freeze").is_err());
        assert!(Role::kiln("fast").is_err());
        assert_eq!(Role::peer("torch-lean:default").map(|r| r.label()).as_deref(), Ok("torch-lean:default"));
        assert_eq!(Role::peer("llama.cpp").map(|r| r.label()).as_deref(), Ok("llama.cpp:default"));
        assert!(Role::peer("torch:fast").is_err());
        assert!(Role::peer("jax:default").is_err());
    }

    #[test]
    fn the_graphics_card_has_a_mode_more() {
        assert_eq!(Role::torch("cpu", true).len(), 5);
        assert_eq!(Role::torch("cuda", true).len(), 7);
        assert_eq!(Role::torch("cpu", false).len(), 1);
    }
}
