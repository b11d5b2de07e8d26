//! `rallypoint man DIR`: a man page for the program and one for each command, generated from the same definition as `--help`.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_mangen::Man;

use super::out::message;
use super::{Exit, Failure};
use crate::export::file;

#[derive(clap::Args)]
#[command(after_help = "\
Writes rallypoint.1, rallypoint-list.1 and so on. Existing files are replaced.

Example: rallypoint man /usr/local/share/man/man1 && man rallypoint-list")]
pub struct Arguments {
    /// The folder to write to; created if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let folder = &arguments.folder;
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(cannot)?;
    let mut program = super::Arguments::command().disable_help_subcommand(true);
    program.build();
    let commands =
        program.get_subcommands().flat_map(|command| std::iter::once(command).chain(command.get_subcommands()));
    let pages: Vec<_> = std::iter::once(&program).chain(commands).cloned().map(Man::new).collect();
    for page in &pages {
        let mut text = Vec::new();
        page.render(&mut text).map_err(cannot)?;
        let _ = file::write(&folder.join(page.get_filename()), &text).map_err(cannot)?;
    }
    message(format!("{}: wrote {} man pages", folder.display(), pages.len()));
    Ok(())
}
