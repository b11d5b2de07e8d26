//! Real NATS servers on loopback, alone or as a cluster.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::machines::Machine;
use crate::support::{Folder, free_port, tool};

fn nats_server() -> PathBuf {
    tool("nats/bin/nats-server")
}

pub struct NatsServer {
    name: String,
    host: IpAddr,
    pub port: u16,
    route: u16,
    pub child: Option<Child>,
}

impl NatsServer {
    fn url(&self, port: u16) -> String {
        format!("nats://{}:{port}", self.host)
    }
}

/// A cluster of NATS servers. They are killed when the test ends.
pub struct Nats {
    pub folder: Folder,
    pub servers: Vec<NatsServer>,
    machines: Vec<Machine>,
}

impl Nats {
    pub fn start(test: &str, count: usize) -> Nats {
        let mut nats = Nats::planned(test, count);
        for at in 0..count {
            nats.start_one(at);
        }
        nats
    }

    /// Chooses their ports, but starts none.
    pub fn planned(test: &str, count: usize) -> Nats {
        let host = Ipv4Addr::LOCALHOST.into();
        let server =
            |at| NatsServer { name: format!("n{at}"), host, port: free_port(), route: free_port(), child: None };
        Nats { folder: Folder::new(test), servers: (0..count).map(server).collect(), machines: Vec::new() }
    }

    /// One on each machine.
    pub fn on(test: &str, machines: Vec<Machine>) -> Nats {
        let server = |(at, machine): (usize, &Machine)| NatsServer {
            name: format!("n{at}"),
            host: machine.among_nodes(),
            port: 4222,
            route: 6222,
            child: None,
        };
        let servers = machines.iter().enumerate().map(server).collect();
        let mut nats = Nats { folder: Folder::new(test), servers, machines };
        (0..nats.servers.len()).for_each(|at| nats.start_one(at));
        nats
    }

    pub fn machine(&self, at: usize) -> &Machine {
        &self.machines[at]
    }

    pub fn start_one(&mut self, at: usize) {
        self.start_with(at, &[]);
    }

    pub fn start_with(&mut self, at: usize, arguments: &[&str]) {
        let routes: Vec<_> = self.servers.iter().map(|server| server.url(server.route)).collect();
        let server = &mut self.servers[at];
        let mut command = match self.machines.get(at) {
            Some(machine) => machine.command(nats_server()),
            None => Command::new(nats_server()),
        };
        let host = server.host.to_string();
        command.args(arguments).args(["-a", &host, "-p", &server.port.to_string(), "-n", &server.name, "-js"]);
        command.arg("-sd").arg(self.folder.path().join(&server.name));
        if routes.len() > 1 {
            command.args([
                "--cluster_name",
                "test",
                "--cluster",
                &server.url(server.route),
                "--routes",
                &routes.join(","),
            ]);
        }
        let log = std::fs::File::create(self.folder.path().join(format!("{}.log", server.name))).unwrap();
        server.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.servers[at].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn urls(&self) -> String {
        let urls: Vec<_> = self.servers.iter().map(|server| server.url(server.port)).collect();
        urls.join(",")
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        for at in 0..self.servers.len() {
            self.kill(at);
        }
    }
}
