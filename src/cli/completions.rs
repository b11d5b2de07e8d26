//! `rallypoint completions SHELL`: a completion script, generated from the same definition as `--help`.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::Failure;
use super::out::print;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rallypoint completions bash > ~/.local/share/bash-completion/completions/rallypoint
  rallypoint completions zsh > ~/.zfunc/_rallypoint        # a folder in fpath
  rallypoint completions fish > ~/.config/fish/completions/rallypoint.fish")]
pub struct Arguments {
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut super::Arguments::command(), "rallypoint", &mut script);
    print(&String::from_utf8_lossy(&script)).map(drop)
}
