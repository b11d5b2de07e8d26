//! `rallypoint config`: the default file, a check of one, and the built-in page to start a page of one's own from.

use std::path::PathBuf;

use super::out::{print, tell};
use super::{Exit, Failure};
use crate::config::{Config, default_file};
use crate::web::{BUILT_IN_STYLESHEET, BUILT_IN_TEMPLATE, Pages};

#[derive(clap::Args)]
#[group(multiple = false)]
pub struct Arguments {
    /// Check this file and say what is wrong with it
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Print the built-in page template
    #[arg(long)]
    template: bool,
    /// Print the built-in stylesheet
    #[arg(long)]
    stylesheet: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(file) = &arguments.check {
        let config = Config::load(Some(file), &[]).map_err(|errors| Failure::new(Exit::Usage, errors))?;
        Pages::load(&config).map_err(|error| Failure::new(Exit::Usage, error))?;
        tell(format!("{}: good", file.display()));
        return Ok(());
    }
    let text = match arguments {
        Arguments { template: true, .. } => BUILT_IN_TEMPLATE.into(),
        Arguments { stylesheet: true, .. } => BUILT_IN_STYLESHEET.into(),
        _ => default_file(),
    };
    print(&text).map(drop)
}
