//! What the program says to those who have just begun: the three things that most people want, and tips after the mistakes
//! that everyone makes first.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::help;

/// For `rallypoint` alone.
pub fn first_words() -> String {
    let game = help::example();
    format!(
        "\
Rallypoint: one master server for many games. Most people want one of these:

  Run a master server           rallypoint serve
  Watch a master's list         rallypoint watch http://HOST:8080
  Why is my server not listed?  rallypoint doctor http://HOST:8080 {game} ADDRESS

Usage: rallypoint <COMMAND>
`rallypoint --help` lists all commands; `rallypoint COMMAND --help` explains one, with examples.
"
    )
}

/// A tip for a mistake on the command line, if there is a good one. `typed` is the command line without the program's name.
pub fn tip(error: &clap::Error, typed: &[String]) -> Option<String> {
    let command = typed.iter().find(|word| !word.starts_with('-')).map(String::as_str);
    match (error.kind(), command) {
        (ErrorKind::UnknownArgument, Some("serve")) => {
            let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
            serve_tip(argument)
        }
        (ErrorKind::MissingRequiredArgument, Some(command)) => {
            example(command).map(|line| format!("for example: {line}"))
        }
        _ => None,
    }
}

fn serve_tip(argument: &str) -> Option<String> {
    let name = argument.trim_start_matches('-').split('=').next().unwrap_or_default();
    match (argument.starts_with('-'), name) {
        (false, _) if argument.contains('=') => Some(format!("write --set {argument}")),
        (false, _) => Some(format!("to use a configuration file, write --config {argument}")),
        (true, "port" | "p" | "listen" | "bind" | "address") => Some(
            "to choose the page's port, write --set web.listen=PORT; `rallypoint config` lists the keys of all ports"
                .into(),
        ),
        (true, _) => {
            Some("to set a key of the configuration, write --set KEY=VALUE; `rallypoint config` lists all keys".into())
        }
    }
}

/// A whole command line for a command that lacks something.
fn example(command: &str) -> Option<String> {
    let game = help::example();
    let line = match command {
        "list" => "rallypoint list http://localhost:8080".into(),
        "watch" => "rallypoint watch http://localhost:8080".into(),
        "query" => format!("rallypoint query {game}://203.0.113.5"),
        "doctor" => format!("rallypoint doctor {game} 203.0.113.5:3030"),
        "simulate" => format!("rallypoint simulate {game} --count 5 --announce {game}://127.0.0.1"),
        "announce" => format!("rallypoint announce {game} --port 3030 --master http://master.example:8080"),
        "export" => "rallypoint export http://localhost:8080 --json servers.json".into(),
        _ => return None,
    };
    Some(line)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Arguments;

    fn said(line: &str) -> Option<String> {
        let typed: Vec<String> = line.split(' ').map(String::from).collect();
        let error = Arguments::try_parse_from(["rallypoint".into()].iter().chain(&typed)).err()?;
        tip(&error, &typed)
    }

    #[test]
    fn tips_for_first_mistakes() {
        for (line, tip) in [
            ("serve rallypoint.toml", "write --config rallypoint.toml"),
            ("serve web.listen=80", "write --set web.listen=80"),
            ("serve --port 80", "--set web.listen=PORT"),
            ("serve --port=80", "--set web.listen=PORT"),
            ("serve --data-dir /tmp", "--set KEY=VALUE"),
            ("list", "rallypoint list http"),
            ("watch", "rallypoint watch http"),
        ] {
            let said = said(line).unwrap_or_default();
            assert!(said.contains(tip), "{line}: {said:?}");
        }
        assert_eq!(said("frobnicate"), None, "clap has its own tips");
    }

    #[test]
    fn every_example_is_a_command_line_of_the_program() {
        for command in Arguments::command().get_subcommands() {
            let Some(line) = example(command.get_name()) else { continue };
            let parsed = Arguments::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.err().unwrap());
        }
        for line in first_words().lines().filter_map(|line| line.find("rallypoint ").map(|start| &line[start..])) {
            if line.contains(['`', '<']) {
                continue;
            }
            let line = line.replace("HOST", "localhost").replace("ADDRESS", "203.0.113.5:3030");
            let parsed = Arguments::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.err().unwrap());
        }
    }
}
