//! A model to talk with, for tests.

use std::path::{Path, PathBuf};

/// A folder with the shipped model and a chat template; it goes away.
pub struct Chatty(PathBuf);

impl Chatty {
    /// Of a name that no other test of the process has.
    pub fn new(name: &str) -> Chatty {
        let path = std::env::temp_dir().join(format!("kiln-chat-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kiln-llm/models/stories260K");
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(shipped.join(file), path.join(file)).unwrap();
        }
        let template = "{% for m in messages %}{% if loop.index0 %}{{ ' ' if m.role == 'user' }}{% endif %}{{ m.content }}{% endfor %}";
        std::fs::write(path.join("chat_template.jinja"), template).unwrap();
        Chatty(path)
    }

    /// The folder.
    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Chatty {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
