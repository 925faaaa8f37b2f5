//! `kiln completions SHELL`: a script with which a shell completes commands and options.

use clap_complete::Shell;
use kiln_terminal::failure::Outcome;

const EXAMPLES: &str = "\
Examples:
  kiln completions bash > ~/.local/share/bash-completion/completions/kiln
  kiln completions zsh > ~/.zfunc/_kiln        # with ~/.zfunc in $fpath
  kiln completions fish > ~/.config/fish/completions/kiln.fish";

/// Options of `kiln completions`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

/// Writes the script.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::command(), "kiln", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(())
}
