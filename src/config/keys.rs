//! The table of keys: what each is called, means, defaults to, and how it is set.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::value::{Item, Problem};
use super::{Config, hyperbol_word, iceball_word};
use crate::protocols::netpanzer::wire::check_value;

pub struct Key {
    pub path: &'static str,
    pub doc: &'static str,
    /// The default, as TOML.
    pub default: &'static str,
    /// For lists of tables: what the default file shows instead of the empty list, commented out.
    pub example: &'static str,
    pub set: fn(&mut Config, &Item<'_>) -> Result<(), Problem>,
}

pub const KEYS: &[Key] = &[
    Key {
        path: "log",
        doc: "How much to tell on stderr: \"error\", \"warn\", \"info\" (start and stop), \"debug\" (every refusal).",
        default: "\"info\"",
        example: "",
        set: |config, item| {
            config.log = item.parsed("\"error\", \"warn\", \"info\", \"debug\" or \"trace\"")?;
            Ok(())
        },
    },
    Key {
        path: "data_dir",
        doc: "The folder for what survives a restart: the list and its history, in one file. Made when it is missing.\n\
              Empty: nothing is kept.",
        default: "\"rallypoint-data\"",
        example: "",
        set: |config, item| {
            config.data_dir = file(item)?;
            Ok(())
        },
    },
    Key {
        path: "web.listen",
        doc: "Where the page and the API are served. An empty list turns the listener off; \"[::]:8080\" is IPv6 only, so\n\
              name both for both.",
        default: "[\"0.0.0.0:8080\"]",
        example: "",
        set: |config, item| {
            config.web.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        path: "web.title",
        doc: "The page's title.",
        default: "\"Rallypoint\"",
        example: "",
        set: |config, item| {
            config.web.title = item.text()?.to_string();
            Ok(())
        },
    },
    Key {
        path: "web.template",
        doc: "A file with a page template of your own (Jinja); empty: the built-in one.\n\
              `rallypoint config --template` prints the built-in one to start from.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.web.template = file(item)?;
            Ok(())
        },
    },
    Key {
        path: "web.stylesheet",
        doc: "A file to serve as /style.css instead of the built-in one; `rallypoint config --stylesheet` prints that.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.web.stylesheet = file(item)?;
            Ok(())
        },
    },
    Key {
        path: "web.token",
        doc: "Whoever sends it (`Authorization: Bearer …`) may announce other addresses than their own through the API;\n\
              empty: nobody may.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.web.token = item.text()?.to_string();
            Ok(())
        },
    },
    Key {
        path: "iceball.listen",
        doc: "UDP for game servers and HTTP for game clients, on the same port number.",
        default: "[\"0.0.0.0:27790\"]",
        example: "",
        set: |config, item| {
            config.iceball.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        path: "iceball.client_listen",
        doc: "The same HTTP on the port that the protocol's document names for clients.",
        default: "[\"0.0.0.0:27795\"]",
        example: "",
        set: |config, item| {
            config.iceball.client_listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        path: "iceball.heartbeat_version",
        doc: "The version of the heartbeat protocol that is expected of game servers.",
        default: "2",
        example: "",
        set: |config, item| {
            config.iceball.settings.heartbeat_version = item.integer(0, 65_535)? as u16;
            Ok(())
        },
    },
    Key {
        path: "iceball.version",
        doc: "The version of the game that is expected of game servers. Its build (-35) is not compared.",
        default: "\"0.2.1-35\"",
        example: "",
        set: |config, item| {
            config.iceball.settings.version = item.parsed("a version like \"0.2.1\" or \"0.2.1-35\"")?;
            Ok(())
        },
    },
    Key {
        path: "iceball.life",
        doc: "How long a server stays listed after its last handshake.",
        default: "\"120s\"",
        example: "",
        set: |config, item| {
            let life = item.duration(Duration::from_secs(1), Duration::from_secs(86_400))?;
            config.iceball.settings.life_ms = life.as_millis() as u64;
            Ok(())
        },
    },
    Key {
        path: "iceball.servers",
        doc: "Your word on a server: official, and its priority in the list (higher comes first).",
        default: "[]",
        example: "[[iceball.servers]]\naddress = \"203.0.113.5:20737\"\nofficial = true\npriority = 10",
        set: |config, item| {
            config.iceball.servers =
                item.list("a list of tables: write [[iceball.servers]]", |table| iceball_word(&table))?;
            Ok(())
        },
    },
    Key {
        path: "netpanzer.listen",
        doc: "TCP for game servers, game clients and other masters.",
        default: "[\"0.0.0.0:28900\"]",
        example: "",
        set: |config, item| {
            config.netpanzer.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        path: "netpanzer.verify",
        doc: "\"query\": a server of a game that can be queried is listed when it answers. \"off\": a heartbeat is listed\n\
              at once, and nobody is ever asked.",
        default: "\"query\"",
        example: "",
        set: |config, item| {
            config.netpanzer.settings.verify = item.one_of(&[("query", true), ("off", false)])?;
            Ok(())
        },
    },
    Key {
        path: "netpanzer.password",
        doc: "The password that all masters of a network share; empty: this master is in no network. It cannot be the word\n\
              final, nor contain a backslash or a control character.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.netpanzer.settings.password = network_password(item.text()?).map_err(|reason| (None, reason))?;
            Ok(())
        },
    },
    Key {
        path: "netpanzer.neighbours",
        doc: "Other masters of the network, e.g. [\"198.51.100.7:28900\"]; they name the rest.",
        default: "[]",
        example: "",
        set: |config, item| {
            config.netpanzer.neighbours = item.list("a list of addresses", |item| {
                let text = item.text()?;
                let (host, port) = text.rsplit_once(':').unwrap_or((text, "28900"));
                let good = !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0);
                let what = "a master like \"198.51.100.7:28900\" or \"master.example.org\"";
                if good { Ok(format!("{host}:{port}")) } else { Err((None, format!("must be {what}, not \"{text}\""))) }
            })?;
            Ok(())
        },
    },
    Key {
        path: "netpanzer.public",
        doc: "This master's own address in its list of masters, where that is not the one that was connected to: behind NAT, in\n\
              a container. It also keeps this master from taking itself for another.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            let text = item.text()?;
            let address = || item.parsed("an address like \"203.0.113.5:28900\"");
            config.netpanzer.settings.public = if text.is_empty() { None } else { Some(address()?) };
            Ok(())
        },
    },
    Key {
        path: "hyperbol.listen",
        doc: "TCP for game clients.",
        default: "[\"0.0.0.0:20203\"]",
        example: "",
        set: |config, item| {
            config.hyperbol.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        path: "hyperbol.servers",
        doc: "Servers that need not announce themselves: asked within seconds, listed while they answer. The flavor makes\n\
              one official: 0 unofficial, 1 IMF home, 2 Republic home, 3 Syndicate home, 4 Arena, 5 Team Arena,\n\
              6 Bounty Arena, 7 Training Arena.",
        default: "[]",
        example: "[[hyperbol.servers]]\naddress = \"203.0.113.5:20200\"\nflavor = 4",
        set: |config, item| {
            config.hyperbol.servers =
                item.list("a list of tables: write [[hyperbol.servers]]", |table| hyperbol_word(&table))?;
            Ok(())
        },
    },
    Key {
        path: "bloodmasters.list",
        doc: "/bloodmasterslist.php on every HTTP listener, for game servers and launchers.",
        default: "true",
        example: "",
        set: |config, item| {
            config.bloodmasters.list = item.boolean()?;
            Ok(())
        },
    },
    Key {
        path: "probe.every",
        doc: "How often each listed server of a game that can be queried is asked.",
        default: "\"30s\"",
        example: "",
        set: |config, item| {
            config.probe.every = item.duration(Duration::from_secs(1), Duration::from_secs(900))?;
            Ok(())
        },
    },
    Key {
        path: "probe.misses",
        doc: "So many times in a row without an answer, and a server is taken off the list.",
        default: "3",
        example: "",
        set: |config, item| {
            config.probe.misses = item.integer(1, 100)? as u8;
            Ok(())
        },
    },
    Key {
        path: "probe.max_per_second",
        doc: "Questions a second to all servers together.",
        default: "20000",
        example: "",
        set: |config, item| {
            config.probe.per_second_max = item.integer(1, 1_000_000)? as u32;
            Ok(())
        },
    },
    Key {
        path: "history.every",
        doc: "How often players are counted. Counts are kept for a day, means of 5 minutes for a month, of an hour for a year.",
        default: "\"60s\"",
        example: "",
        set: |config, item| {
            config.history.every_s = item.duration(Duration::from_secs(1), Duration::from_secs(3_600))?.as_secs();
            Ok(())
        },
    },
    Key {
        path: "history.max_mib",
        doc: "How much the files in data_dir may take on the disk, in MiB; beyond, the oldest history goes first. 0: no history.",
        default: "512",
        example: "",
        set: |config, item| {
            config.history.bytes_max = (item.integer(0, 1_000_000)? as u64) << 20;
            Ok(())
        },
    },
    Key {
        path: "guard.max_servers",
        doc: "Servers listed in all. A full list takes the newest one of the network that has most for a newcomer of another.",
        default: "2000000",
        example: "",
        set: |config, item| {
            config.guard.servers_max = item.integer(1, 100_000_000)? as usize;
            Ok(())
        },
    },
    Key {
        path: "guard.max_servers_per_ip",
        doc: "Servers listed for one IP address (with IPv6, for one /64). Wider networks around it have larger limits: an\n\
              IPv4 /24 8 times this one, an IPv6 /56 4 times, a /48 16 times. Those that you name yourself do not count.",
        default: "32",
        example: "",
        set: |config, item| {
            config.guard.servers_per_ip_max = item.integer(1, 65_535)? as u32;
            Ok(())
        },
    },
    Key {
        path: "guard.max_connections",
        doc: "TCP connections in all; one more closes the one that has been idle longest.",
        default: "8192",
        example: "",
        set: |config, item| {
            config.guard.connections_max = item.integer(1, 1_000_000)? as usize;
            Ok(())
        },
    },
    Key {
        path: "guard.max_connections_per_ip",
        doc: "TCP connections from one IP address (with IPv6, from one /64); one more closes the longest idle of those.\n\
              Wider networks have larger limits, as with servers.",
        default: "256",
        example: "",
        set: |config, item| {
            config.guard.connections_per_ip_max = item.integer(1, 1_000_000)? as usize;
            Ok(())
        },
    },
    Key {
        path: "guard.idle_timeout",
        doc: "A connection is closed when nothing moves on it, or its request is not complete, for this long.",
        default: "\"10s\"",
        example: "",
        set: |config, item| {
            config.guard.idle = item.duration(Duration::from_millis(100), Duration::from_secs(3_600))?;
            Ok(())
        },
    },
    Key {
        path: "guard.bans",
        doc: "Addresses and networks that get no answer and are not listed, e.g. [\"203.0.113.7\", \"198.51.100.0/24\"].",
        default: "[]",
        example: "",
        set: |config, item| {
            config.guard.bans = networks(item)?;
            Ok(())
        },
    },
    Key {
        path: "guard.exempt",
        doc: "Networks in which only the limits per IP address (IPv6 /64) hold, and not those of wider networks: a hosting\n\
              company with many customers, or a test, e.g. [\"198.51.100.0/24\", \"127.0.0.0/8\"].",
        default: "[]",
        example: "",
        set: |config, item| {
            config.guard.exempt = networks(item)?;
            Ok(())
        },
    },
    Key {
        path: "cluster.nats",
        doc: "Makes this node one of many: where NATS (2.11 or later, with JetStream) is, e.g.\n\
              [\"nats://10.0.0.1:4222\", \"nats://10.0.0.2:4222\"]; tls:// for TLS. Empty: this node is alone. See docs/cluster.md.",
        default: "[]",
        example: "",
        set: |config, item| {
            config.cluster.nats = item.list("a list of NATS servers like [\"nats://10.0.0.1:4222\"]", |item| {
                let text = item.text()?;
                let known = text.starts_with("nats://") || text.starts_with("tls://");
                match text.parse::<async_nats::ServerAddr>() {
                    Ok(_) if known => Ok(text.to_string()),
                    _ => Err((None, format!("must be nats://host:4222 or tls://host:4222, not \"{text}\""))),
                }
            })?;
            Ok(())
        },
    },
    Key {
        path: "cluster.replicas",
        doc: "How many NATS servers keep each record; 0: as many as there are, up to 3.",
        default: "0",
        example: "",
        set: |config, item| {
            config.cluster.replicas = item.integer(0, 5)? as usize;
            Ok(())
        },
    },
    Key {
        path: "cluster.node",
        doc: "This node's name, different for each: letters, digits, - and _. Empty: a random one at every start.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            let name = item.text()?;
            let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.len() > 32 || !name.chars().all(good) {
                return Err((None, format!("must be up to 32 letters, digits, - and _, not \"{name}\"")));
            }
            config.cluster.node = name.to_string();
            Ok(())
        },
    },
    Key {
        path: "cluster.credentials",
        doc: "A credentials file for NATS (.creds). A user and password can stand in the address: nats://user:password@host.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.cluster.credentials = file(item)?;
            Ok(())
        },
    },
    Key {
        path: "cluster.ca",
        doc: "A file with the certificate authority of your NATS servers (PEM), where the system does not know it.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.cluster.ca = file(item)?;
            Ok(())
        },
    },
];

/// Networks; an address alone is a network, too.
fn networks(item: &Item<'_>) -> Result<Vec<IpNet>, Problem> {
    item.list("a list of addresses or networks", |item| {
        let address = item.text()?.parse::<std::net::IpAddr>().ok();
        let network = "an address or network like \"203.0.113.7\" or \"198.51.100.0/24\"";
        address.map_or_else(|| item.parsed(network), |ip| Ok(ip.into()))
    })
}

/// A file's path; an empty one means none.
fn file(item: &Item<'_>) -> Result<Option<PathBuf>, Problem> {
    let path = item.text()?;
    Ok((!path.is_empty()).then(|| path.into()))
}

/// The password of a network of netPanzer masters, if the protocol can carry it. No message repeats it.
fn network_password(text: &str) -> Result<String, String> {
    let why = match check_value(text.as_bytes()) {
        _ if text.is_empty() => return Ok(String::new()), // no network
        Err(unsendable) => unsendable.to_string(),
        Ok(()) if text.chars().any(char::is_control) => {
            "it has a control character, such as a tab or a line end".into()
        }
        Ok(()) if text.trim().is_empty() => "it is nothing but blanks".into(),
        Ok(()) => return Ok(text.to_string()),
    };
    Err(format!("netPanzer's protocol cannot carry this password: {why}. Choose another, the same on all masters"))
}

impl Key {
    pub fn find(path: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.path == path)
    }

    /// "iceball" of "iceball.listen"; None at the top level.
    pub fn section(&self) -> Option<&'static str> {
        self.path.split_once('.').map(|(section, _)| section)
    }

    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// What was typed behind `--set KEY=`, as TOML. Texts need no quotes, and a list is comma-separated.
    pub fn toml_for(&self, typed: &str) -> String {
        let quoted = |text: &str| toml::Value::String(text.trim().to_string()).to_string();
        let is_toml = typed.starts_with(['"', '\'', '[']) && toml::de::DeValue::parse(typed).is_ok();
        match self.default.chars().next() {
            _ if is_toml => typed.to_string(),
            Some('[') => {
                let members: Vec<_> = typed.split(',').filter(|text| !text.trim().is_empty()).map(quoted).collect();
                format!("[{}]", members.join(", "))
            }
            Some('"') => quoted(typed),
            // true, false, a number; anything else becomes a text, which the key then refuses by name.
            _ if toml::de::DeValue::parse(typed).is_ok() => typed.to_string(),
            _ => quoted(typed),
        }
    }
}
