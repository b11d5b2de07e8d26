//! Several machines as network namespaces, connected by two networks: one for nodes and one for their clients.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use crate::support::until;

const INSIDE: &str = "RALLYPOINT_TEST_INSIDE";

/// What a test needs of its own.
#[derive(Clone, Copy)]
pub enum Own {
    Network,
    Mounts,
}

/// Runs the named test again in a new network or mount namespace. True if this process is that run.
pub fn inside(own: Own, test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let (flag, prepare) = match own {
        Own::Network => ("n", "ip link set lo up"),
        Own::Mounts => ("m", "true"),
    };
    let user = if nix::unistd::geteuid().is_root() { "-" } else { "-r" };
    let output = Command::new("unshare")
        .args([&format!("{user}{flag}"), "--", "sh", "-c"])
        .arg(format!(r#"{prepare} && exec "$0" --exact "$1" --include-ignored --nocapture"#))
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(INSIDE, "1")
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .output()
        .expect("unshare, from Debian's util-linux");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // With a mistyped name, no test would run, and that would count as success.
    assert!(output.status.success() && said.contains("1 passed"), "{test}, on its own: {said}");
    false
}

/// A namespace, for as long as its process lives.
pub struct Machine {
    number: u8,
    holder: Child,
}

impl Machine {
    /// Machines on two networks. Only for tests in their own namespace, which is where the clients run.
    pub fn start(count: u8) -> Vec<Machine> {
        for network in ["nodes", "clients"] {
            ip(&format!("link add {network} type bridge"));
            ip(&format!("link set {network} up"));
        }
        ip(&format!("address add {}/24 dev clients", Machine::client()));
        (1..=count).map(Machine::plug_in).collect()
    }

    fn plug_in(number: u8) -> Machine {
        let mut holder = Command::new("unshare");
        let holder = holder.args(["-n", "sleep", "3600"]).stdin(Stdio::null()).spawn().expect("unshare");
        let machine = Machine { number, holder };
        let own = format!("/proc/{}/ns/net", machine.holder.id());
        let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
        until("the namespace", || std::fs::read_link(&own).ok().filter(|namespace| *namespace != ours));
        machine.ip_inside("link set lo up");
        for (network, address) in [("nodes", machine.among_nodes()), ("clients", machine.for_clients())] {
            let (near, far) = (format!("{network}{number}"), format!("to-{network}"));
            ip(&format!("link add {near} type veth peer name {far} netns {}", machine.holder.id()));
            ip(&format!("link set {near} master {network} up"));
            machine.ip_inside(&format!("address add {address}/24 dev {far}"));
            machine.ip_inside(&format!("link set {far} up"));
        }
        machine
    }

    /// The address of the clients.
    pub fn client() -> IpAddr {
        Ipv4Addr::new(10, 77, 2, 254).into()
    }

    pub fn among_nodes(&self) -> IpAddr {
        Ipv4Addr::new(10, 77, 1, self.number).into()
    }

    pub fn for_clients(&self) -> IpAddr {
        Ipv4Addr::new(10, 77, 2, self.number).into()
    }

    /// A program that runs on this machine.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net", "--"]).arg(program);
        command
    }

    /// Connects or disconnects the link to the other nodes. While it is down, packets are lost silently. Clients stay connected.
    pub fn plug(&self, is_in: bool) {
        ip(&format!("link set nodes{} {}", self.number, if is_in { "up" } else { "down" }));
    }

    fn ip_inside(&self, arguments: &str) {
        succeed(self.command("ip").args(arguments.split(' ')));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn ip(arguments: &str) {
    succeed(Command::new("ip").args(arguments.split(' ')));
}

fn succeed(command: &mut Command) {
    let output = command.output().expect("ip and nsenter, from Debian's iproute2 and util-linux");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
