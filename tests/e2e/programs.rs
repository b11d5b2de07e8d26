//! Other projects' programs, as Debian packages them. A test that misses one fails and names the package.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::*;

/// What a failed test shows of each program's output.
const LAST_LINES: usize = 20;

/// A program that ends with the test.
pub struct Program {
    child: Child,
    output: PathBuf,
}

impl Program {
    /// `name` is the file in `folder` that the output goes to, `package` the Debian package of the program.
    pub fn start(command: &mut Command, folder: &Folder, name: &str, package: &str) -> Program {
        let output = folder.path().join(format!("{name}.log"));
        let file = File::create(&output).unwrap();
        // Servers of games read a console: an open pipe keeps them quiet, and a closed one ends some.
        command.stdin(Stdio::piped()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| missing(command, package, &error));
        Program { child, output }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let bytes = std::fs::read(&self.output).unwrap_or_default();
            let output = String::from_utf8_lossy(&bytes);
            let lines: Vec<_> = output.lines().rev().take(LAST_LINES).collect();
            let last: String = lines.iter().rev().flat_map(|line| [line, "\n"]).collect();
            eprintln!("the last lines of {}:\n{last}", self.output.display());
        }
    }
}

fn missing(command: &Command, package: &str, error: &std::io::Error) -> ! {
    panic!("{command:?}: {error}. Install Debian's {package}; scripts/test does")
}

/// Runs quakestat to its end. A master is asked four times, `-mi` apart, unless it answers.
pub fn quakestat(arguments: &[&str]) -> String {
    let mut command = Command::new("quakestat");
    command.args(["-mi", "0.5"]).args(arguments);
    let output = command.output().unwrap_or_else(|error| missing(&command, "qstat", &error));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
