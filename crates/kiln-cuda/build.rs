//! Makes the fingerprint of this crate's sources known to it.

fn main() -> std::io::Result<()> {
    kiln_fingerprint::emit()
}
