//! Other projects' programs from Debian packages. If one is missing, the test fails and names the package.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::*;

/// How many lines of each program's output a failed test shows.
const LAST_LINES: usize = 20;

/// A running program. It is killed when the test ends.
pub struct Program {
    child: Child,
    output: PathBuf,
}

impl Program {
    /// `name` is the file in `folder` that the output goes to, `package` the Debian package of the program.
    pub fn start(command: &mut Command, folder: &Folder, name: &str, package: &str) -> Program {
        let output = folder.path().join(format!("{name}.log"));
        let file = File::create(&output).unwrap();
        // Game servers read a console on stdin: some end when it is closed, so it is an open pipe.
        command.stdin(Stdio::piped()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| missing(command, package, &error));
        Program { child, output }
    }

    /// Ends it as an operator would, and waits until it has gone.
    pub fn terminate(self) {
        self.end(Signal::SIGTERM);
    }

    /// The same as with Ctrl+C.
    pub fn interrupt(self) {
        self.end(Signal::SIGINT);
    }

    fn end(mut self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        until("the program to end", || self.child.try_wait().unwrap());
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

const IOQUAKE3: &str = "/usr/lib/ioquake3";

/// The data of both Quake engines, an empty map for each, and their servers.
pub struct Quake {
    folder: Folder,
}

impl Quake {
    pub fn new() -> Quake {
        let folder = Folder::new("quake");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/quake3");
        let copy = |from: &Path, to: &str| {
            let to = folder.path().join(to);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(from, to).unwrap();
        };
        copy(&from.join("ioquake3.bsp"), "mini/maps/m.bsp");
        folder.write("mini/default.cfg", "\n");
        // The engine's own rules of the game. The file's name ends in the machine's architecture.
        let rules = format!("{IOQUAKE3}/baseq3");
        let rules = std::fs::read_dir(&rules)
            .unwrap_or_else(|error| panic!("{rules}: {error}. Install Debian's ioquake3-server; scripts/test does"));
        for path in rules.map(|entry| entry.unwrap().path()) {
            copy(&path, &format!("mini/{}", path.file_name().unwrap().to_str().unwrap()));
        }
        // DarkPlaces looks here when it runs a game that is built on it, such as Xonotic.
        copy(&from.join("darkplaces.bsp"), "data/maps/start.bsp");
        copy(&from.join("darkplaces-progs.dat"), "data/progs.dat");
        Quake { folder }
    }

    /// A dedicated ioquake3 server on this port. It announces itself once its map is loaded. `settings` are its own
    /// variables.
    pub fn ioquake3(&self, port: u16, settings: &[(&str, &str)]) -> Program {
        let settings: Vec<_> = [("dedicated", "2")].iter().chain(settings).copied().collect();
        self.start_ioquake3(port, &settings, &["+map", "m"])
    }

    /// The same, started with a command line as its owner writes it, and with this `server.cfg`.
    pub fn owned_ioquake3(&self, port: u16, line: &str, lines: &str) -> Program {
        self.folder.write("mini/server.cfg", lines);
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((&"ioq3ded", [options @ .., "+map", _])) = words.split_first() else { panic!("{line}") };
        self.start_ioquake3(port, &[], &[options, &["+map", "m"]].concat())
    }

    fn start_ioquake3(&self, port: u16, settings: &[(&str, &str)], more: &[&str]) -> Program {
        let path = self.folder.path();
        let (home, port) = (path.join(format!("home-{port}")), port.to_string());
        let base = [
            ("com_standalone", "1"),
            ("com_basegame", "mini"),
            ("fs_basepath", path.to_str().unwrap()),
            ("fs_homepath", home.to_str().unwrap()),
            ("vm_game", "0"),
            ("sv_pure", "0"),
            ("bot_enable", "0"),
            ("net_port", &port),
            // The default is a public master, and its name would be looked up first.
            ("sv_master2", ""),
            ("ttycon", "0"),
        ];
        let mut command = Command::new(format!("{IOQUAKE3}/ioq3ded"));
        command.env("HOME", path);
        for (name, value) in base.iter().chain(settings) {
            command.args(["+set", name, value]);
        }
        Program::start(command.args(more), &self.folder, &format!("ioquake3-{port}"), "ioquake3-server")
    }

    /// A DarkPlaces server on this port, as the engine of Xonotic.
    pub fn xonotic(&self, port: u16, settings: &[(&str, &str)]) -> Program {
        let settings: Vec<_> = [("sv_public", "1")].iter().chain(settings).copied().collect();
        self.start_darkplaces(port, &settings)
    }

    /// The same with this configuration of its owner's.
    pub fn owned_xonotic(&self, port: u16, lines: &str) -> Program {
        self.folder.write("data/owner.cfg", lines);
        self.start_darkplaces(port, &[("exec", "owner.cfg")])
    }

    fn start_darkplaces(&self, port: u16, settings: &[(&str, &str)]) -> Program {
        let mut command = Command::new("/usr/games/darkplaces-server");
        command.env("HOME", self.folder.path()).arg("-xonotic").arg("-basedir").arg(self.folder.path());
        let port = port.to_string();
        for (name, value) in [("port", &*port), ("maxplayers", "8")].iter().chain(settings) {
            command.args([&format!("+{name}"), *value]);
        }
        Program::start(command.args(["+map", "start"]), &self.folder, &format!("xonotic-{port}"), "darkplaces-server")
    }
}

/// A client that has joined a DarkPlaces server, and stays silent: the server counts it until it times out. Unlike
/// ioquake3's, this engine's messages for that are plain text.
pub fn join_darkplaces(server: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    until("a DarkPlaces server to let a client in", || {
        let ask = |message: &str| -> Option<Vec<u8>> {
            client.send_to(&[b"\xff\xff\xff\xff", message.as_bytes()].concat(), server).ok()?;
            let mut buffer = [0; 1500];
            let size = client.recv(&mut buffer).ok()?;
            buffer[..size].strip_prefix(b"\xff\xff\xff\xff").map(<[u8]>::to_vec)
        };
        let challenge = ask("getchallenge")?;
        let challenge = challenge.strip_prefix(b"challenge ")?.split(|&byte| byte == 0).next()?;
        let challenge = std::str::from_utf8(challenge).ok()?;
        let connect = format!(r"connect\protocol\darkplaces 3\protocols\DP7\challenge\{challenge}");
        (ask(&connect)? == b"accept").then_some(())
    });
    client
}
