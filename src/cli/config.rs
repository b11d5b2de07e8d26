//! `rallypoint config`: prints the default configuration or the built-in page template, or checks a configuration file.

use std::path::PathBuf;

use super::out::{message, print};
use super::{Exit, Failure};
use crate::config::{Config, default_file};
use crate::web::{BUILT_IN_STYLESHEET, BUILT_IN_TEMPLATE, Certificate, Pages};

#[derive(clap::Args)]
#[group(multiple = false)]
pub struct Arguments {
    /// Check this configuration file and report errors
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
        let wrong = |error| Failure::new(Exit::Usage, error);
        Pages::load(&config).map_err(wrong)?;
        Certificate::read(&config.web).map_err(wrong)?;
        config.warnings().iter().for_each(|text| message(format!("{}: warning: {text}", file.display())));
        message(format!("{}: OK", file.display()));
        return Ok(());
    }
    let text = match arguments {
        Arguments { template: true, .. } => BUILT_IN_TEMPLATE.into(),
        Arguments { stylesheet: true, .. } => BUILT_IN_STYLESHEET.into(),
        _ => default_file(),
    };
    print(&text).map(drop)
}
