//! The keys that belong to no protocol, by their whole path.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use url::Host;

use super::Config;
use crate::mirror::Upstream;
use crate::model::GAME_BYTES_MAX;
use crate::moderation::PATTERNS_MAX;
use crate::net::client::Header;
use crate::notices::Target;
use crate::protocols::is_one_host;
use crate::registry::per_game::GameLimits;
use crate::settings::{Item, Key, Problem};

/// A shorter token can be guessed.
const TOKEN_CHARS_MIN: usize = 16;
/// The least memory with which the program is of use.
const LEAST_MIB: usize = 16;

/// The largest limit for a game in a network.
const PER_GAME_MAX: i64 = 1_000_000;

/// The key with secrets in its values.
pub const NOTICES: &str = "notices";

/// The key whose value is a secret.
pub const TOKEN: &str = "web.token";

pub const KEYS: &[Key<Config>] = &[
    Key {
        name: "log",
        doc: "How much to log on stderr: \"error\", \"warn\", \"info\" (start and stop), \"debug\" (every refusal).",
        default: "\"info\"",
        example: "",
        set: |config, item| {
            config.log = item.parsed("\"error\", \"warn\", \"info\", \"debug\" or \"trace\"")?;
            Ok(())
        },
    },
    Key {
        name: "data_dir",
        doc: "The folder for the list and its history, which survive a restart in one file. Created if it is missing.\n\
              Empty: nothing is stored.",
        default: "\"rallypoint-data\"",
        example: "",
        set: |config, item| {
            config.data_dir = file(item)?;
            Ok(())
        },
    },
    Key {
        name: "web.listen",
        doc: "Addresses of the page and the API. \"0.0.0.0\" is IPv4 only and \"[::]\" is IPv6 only; a bare port is both. On a\n\
              machine without IPv6, \"[::]\" is skipped. An empty list turns the listener off.",
        default: "[\"0.0.0.0:8080\", \"[::]:8080\"]",
        example: "",
        set: |config, item| {
            config.web.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        name: "web.tls_listen",
        doc: "Addresses where the page, the API and the lists over HTTP are served with TLS, e.g. [\"8443\"]. Other listeners\n\
              stay without: old games cannot use TLS.",
        default: "[]",
        example: "",
        set: |config, item| {
            config.web.tls_listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        name: "web.tls_certificate",
        doc: "The certificate for web.tls_listen: a PEM file with the whole chain, this server's first. It is read again when it\n\
              changes.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.web.tls_certificate = file(item)?;
            Ok(())
        },
    },
    Key {
        name: "web.tls_key",
        doc: "The certificate's private key: a PEM file, not encrypted.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.web.tls_key = file(item)?;
            Ok(())
        },
    },
    Key {
        name: "web.title",
        doc: "The page's title.",
        default: "\"Rallypoint\"",
        example: "",
        set: |config, item| {
            config.web.title = item.text()?.to_string();
            Ok(())
        },
    },
    Key {
        name: "web.template",
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
        name: "web.stylesheet",
        doc: "A file to serve as /style.css instead of the built-in one; `rallypoint config --stylesheet` prints that.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.web.stylesheet = file(item)?;
            Ok(())
        },
    },
    Key {
        name: TOKEN,
        doc: "Clients that send this token (`Authorization: Bearer …`) may announce any address through the API, not only\n\
              their own. At least 16 characters, e.g. those of `openssl rand -hex 16`. Empty: no client may.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.web.token = token(item.text()?)?;
            Ok(())
        },
    },
    Key {
        name: "web.hosts",
        doc: "Names under which browsers reach this master, also through a proxy, e.g. [\"master.example.org\"]. Only its own page,\n\
              under one of them, may announce and test servers. Addresses, localhost and the names in web.tls_certificate need\n\
              not be named.",
        default: "[]",
        example: "",
        set: |config, item| {
            config.web.hosts = item.list("a list of host names like [\"master.example.org\"]", host)?;
            Ok(())
        },
    },
    Key {
        name: "web.hsts",
        doc: "How long browsers that came to web.tls_listen use TLS only, for every port of that host (HSTS): a time like \"365d\",\n\
              or \"0s\" to say nothing. \"auto\": 30 days if web.tls_listen has port 443 and web.listen is empty or only loopback.",
        default: "\"auto\"",
        example: "",
        set: |config, item| {
            config.web.hsts = match item.text() {
                Ok("auto") => None,
                _ => Some(item.duration(Duration::ZERO, Duration::from_secs(730 * 86_400))?),
            };
            Ok(())
        },
    },
    Key {
        name: "probe.every",
        doc: "How often each listed server is queried, if its game can be.",
        default: "\"30s\"",
        example: "",
        set: |config, item| {
            config.probe.every = item.duration(Duration::from_secs(1), Duration::from_secs(900))?;
            Ok(())
        },
    },
    Key {
        name: "probe.misses",
        doc: "A server is taken off the list after this many queries in a row without an answer.",
        default: "3",
        example: "",
        set: |config, item| {
            config.probe.misses = item.integer(1, 100)? as u8;
            Ok(())
        },
    },
    Key {
        name: "probe.grace",
        doc: "A server that announces itself regularly and no longer answers stays on the list for so long after its last answer,\n\
              below the others and marked: somebody may keep it from answering (docs/proofs.md). \"0s\": it is taken off like any.",
        default: "\"10m\"",
        example: "",
        set: |config, item| {
            config.probe.grace = item.duration(Duration::ZERO, Duration::from_secs(3_600))?;
            Ok(())
        },
    },
    Key {
        name: "probe.from",
        doc: "Addresses of this machine to query from, e.g. [\"203.0.113.7\", \"203.0.113.8\"], at most eight; empty: the system chooses. With two of a family, the last\n\
              query before a server is taken off the list comes from another address than those before it.",
        default: "[]",
        example: "",
        set: |config, item| {
            config.probe.from = own_addresses(item)?;
            Ok(())
        },
    },
    Key {
        name: "probe.max_per_second",
        doc: "Queries per second, to all servers together.",
        default: "20000",
        example: "",
        set: |config, item| {
            config.probe.per_second_max = item.integer(1, 1_000_000)? as u32;
            Ok(())
        },
    },
    Key {
        name: "history.every",
        doc: "How often players are counted. Counts are kept for a day, 5-minute means for a month, hourly means for a year.",
        default: "\"60s\"",
        example: "",
        set: |config, item| {
            config.history.every_s = item.duration(Duration::from_secs(1), Duration::from_secs(3_600))?.as_secs();
            Ok(())
        },
    },
    Key {
        name: "history.max_mib",
        doc: "Upper bound on the size of the files in data_dir, in MiB; the oldest history is removed first. 0: no history.",
        default: "512",
        example: "",
        set: |config, item| {
            config.history.bytes_max = (item.integer(0, 1_000_000)? as u64) << 20;
            Ok(())
        },
    },
    Key {
        name: "guard.max_servers",
        doc: "Upper bound on listed servers. When the list is full, a new server replaces the newest one of the largest network.",
        default: "2000000",
        example: "",
        set: |config, item| {
            config.guard.servers_max = item.integer(1, 100_000_000)? as usize;
            Ok(())
        },
    },
    Key {
        name: "guard.max_memory_mib",
        doc: "MiB of memory for everything that strangers make this program keep: servers and what they say, rendered lists,\n\
              events and connections. 0: half of what the machine, the container or `ulimit` allows. When servers take more than an\n\
              eighth of it, the network that holds the most loses its newest ones. See docs/capacity.md.",
        default: "0",
        example: "",
        set: |config, item| {
            let mib = item.integer(0, 1 << 20)? as usize;
            if (1..LEAST_MIB).contains(&mib) {
                return Err((None, format!("must be at least {LEAST_MIB}, or 0 to derive it, not {mib}")));
            }
            config.guard.memory_bytes_max = mib << 20;
            Ok(())
        },
    },
    Key {
        name: "guard.max_servers_per_ip",
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
        name: "guard.max_per_game_and_network",
        doc: "Servers of one game listed for one network (IPv4 /24, IPv6 /48): one number for every game, or a list for some, e.g.\n\
              [\"xonotic=64\", \"*=200\"], where `*` is every other game. 0: no limit. It applies to new servers, and not to those\n\
              that you name yourself or that are in guard.exempt. `rallypoint admin game NAME` shows who has how many.",
        default: "0",
        example: "",
        set: |config, item| {
            config.guard.game_limits = game_limits(item)?;
            Ok(())
        },
    },
    Key {
        name: "guard.max_connections",
        doc: "TCP connections in all; one more closes the longest idle one of the network that holds the most.",
        default: "8192",
        example: "",
        set: |config, item| {
            config.guard.connections_max = item.integer(1, 1_000_000)? as usize;
            Ok(())
        },
    },
    Key {
        name: "guard.max_connections_per_ip",
        doc: "TCP connections from one IP address (with IPv6, from one /64); one more closes the longest idle of those.\n\
              Wider networks have larger limits, as with servers.",
        default: "1024",
        example: "",
        set: |config, item| {
            config.guard.connections_per_ip_max = item.integer(1, 1_000_000)? as usize;
            Ok(())
        },
    },
    Key {
        name: "guard.idle_timeout",
        doc: "A connection is closed when nothing moves on it, or its request is not complete, for this long.",
        default: "\"10s\"",
        example: "",
        set: |config, item| {
            config.guard.idle = item.duration(Duration::from_millis(100), Duration::from_secs(3_600))?;
            Ok(())
        },
    },
    Key {
        name: "guard.list_kib_per_second",
        doc: "KiB per second for all lists that are sent as datagrams: requests for them can be forged. Each address has a\n\
              budget of its own within this one; see docs/budgets.md.",
        default: "4096",
        example: "",
        set: |config, item| {
            config.guard.list_bytes_per_second = (item.integer(64, 1 << 20)? as u64) << 10;
            Ok(())
        },
    },
    Key {
        name: "guard.max_list_mib",
        doc: "MiB of guard.max_memory_mib for rendered lists, including those that slow readers have not taken yet; a quarter of it\n\
              at most. Before this is reached, connections of the networks that hold the most are closed.",
        default: "256",
        example: "",
        set: |config, item| {
            config.guard.list_bytes_held_max = (item.integer(1, 1 << 20)? as usize) << 20;
            Ok(())
        },
    },
    Key {
        name: "guard.bans",
        doc: "Addresses and networks that get no answer and are not listed, e.g. [\"203.0.113.7\", \"198.51.100.0/24\"].\n\
              `rallypoint admin ban` adds others while the server runs, with a reason and an end.",
        default: "[]",
        example: "",
        set: |config, item| {
            config.guard.bans = networks(item)?;
            Ok(())
        },
    },
    Key {
        name: "guard.hidden_names",
        doc: "Patterns of names that are kept off the list, e.g. [\"*casino*\"]: `*` is any text, `?` any character, and case\n\
              does not matter. Servers that you name yourself are listed whatever they are called.",
        default: "[]",
        example: "",
        set: |config, item| {
            let what = "a list of patterns like [\"*casino*\"]";
            let hidden = item.list(what, |item| {
                let text = item.text()?;
                text.parse().map_err(|why| (None, format!("\"{text}\" cannot be a pattern: {why}")))
            })?;
            if hidden.len() > PATTERNS_MAX {
                return Err((None, format!("must not have more than {PATTERNS_MAX} patterns")));
            }
            config.guard.hidden_names = hidden;
            Ok(())
        },
    },
    Key {
        name: "guard.exempt",
        doc: "Networks without budgets and without the limits of wider networks (the limit per IP address stays): a hosting\n\
              company with many customers, or a test, e.g. [\"198.51.100.0/24\", \"127.0.0.0/8\"].",
        default: "[]",
        example: "",
        set: |config, item| {
            config.guard.exempt = networks(item)?;
            Ok(())
        },
    },
    Key {
        name: "proxy.networks",
        doc: "Reverse proxies in front of the HTTP ports, e.g. [\"127.0.0.1\", \"10.0.0.0/24\"]. Their requests count for the\n\
              client that proxy.header names; nobody else's header counts. See docs/https.md.",
        default: "[]",
        example: "",
        set: |config, item| {
            config.proxy.networks = networks(item)?;
            Ok(())
        },
    },
    Key {
        name: "proxy.header",
        doc: "The header in which these proxies name the client: \"x-forwarded-for\" or \"forwarded\". Only this one counts,\n\
              because a proxy passes the other one on as the client sent it.",
        default: "\"x-forwarded-for\"",
        example: "",
        set: |config, item| {
            let choices = [Header::XForwardedFor, Header::Forwarded].map(|header| (header.name(), header));
            config.proxy.header = item.one_of(&choices)?;
            Ok(())
        },
    },
    Key {
        name: "proxy.protocol",
        doc: "Proxies whose TCP connections begin with a PROXY protocol header (version 1 or 2), on all TCP ports. A connection\n\
              of theirs without one is closed.",
        default: "[]",
        example: "",
        set: |config, item| {
            config.proxy.protocol = networks(item)?;
            Ok(())
        },
    },
    Key {
        name: "admin.socket",
        doc: "The Unix socket for `rallypoint admin`, which bans and unlists while the server runs. Only the user that the server\n\
              runs as, and root, can use it. Empty: there is none.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.admin_socket = file(item)?;
            Ok(())
        },
    },
    Key {
        name: "geo.database",
        doc: "A file in MaxMind's format (GeoLite2-Country, DB-IP Lite and the like) that says where addresses are: the\n\
              page and the API show each server's country, and games whose lists show it use it. It is read again when the file\n\
              changes. Empty: there is none.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.geo_database = file(item)?;
            Ok(())
        },
    },
    Key {
        name: "cluster.nats",
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
        name: "cluster.replicas",
        doc: "How many NATS servers keep each record; 0: as many as there are, up to 3.",
        default: "0",
        example: "",
        set: |config, item| {
            config.cluster.replicas = item.integer(0, 5)? as usize;
            Ok(())
        },
    },
    Key {
        name: "cluster.node",
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
        name: "cluster.credentials",
        doc: "A credentials file for NATS (.creds). A user and password can be part of the address: nats://user:password@host.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.cluster.credentials = file(item)?;
            Ok(())
        },
    },
    Key {
        name: "cluster.ca",
        doc: "A file with the certificate authority of your NATS servers (PEM), if the system does not trust it.",
        default: "\"\"",
        example: "",
        set: |config, item| {
            config.cluster.ca = file(item)?;
            Ok(())
        },
    },
    Key {
        name: "upstream",
        doc: "Other masters to follow, of any protocol, or Rallypoints. What they list is queried by this one and listed while it\n\
              answers, also after the other master is gone. `name` is what its servers are listed via (default: its url), `every` how\n\
              often its list is fetched, and `max_servers` how many of its servers are queried. See docs/mirror.md.",
        default: "[]",
        example: "[[upstream]]\nurl = \"https://master.example\"\nname = \"the old master\"\nevery = \"60s\"\nmax_servers = 10000",
        set: |config, item| {
            config.upstreams = Upstream::read_all(item)?;
            Ok(())
        },
    },
    Key {
        name: NOTICES,
        doc: "Addresses (webhooks) that are told at once when a server comes or goes, a game has players again, this node is alone\n\
              or a flood is refused. `form` is \"json\" or \"discord\", `secret` signs what is sent, `on` says which events, `games` and\n\
              `servers` of which games and addresses (default: all), `quiet` how long a change has to last. `url_file` and\n\
              `secret_file` name files instead. See docs/notices.md.",
        default: "[]",
        example: "[[notices]]\nurl = \"https://hooks.example/rallypoint\"\nname = \"my hook\"\nform = \"json\"\nsecret = \"at least 16 characters\"\n\
                  on = [\"came\", \"went\", \"players\", \"alone\", \"flood\"]\nquiet = \"5m\"",
        set: |config, item| {
            config.notices = Target::read_all(item)?;
            Ok(())
        },
    },
];

/// Upper bound on the addresses to query from: each takes sockets of its own.
const SOURCES_MAX: usize = 8;

/// Networks; an address alone is a network, too.
fn networks(item: &Item<'_>) -> Result<Vec<IpNet>, Problem> {
    item.list("a list of addresses or networks", |item| {
        let address = item.text()?.parse::<std::net::IpAddr>().ok();
        let network = "an address or network like \"203.0.113.7\" or \"198.51.100.0/24\"";
        address.map_or_else(|| item.parsed(network), |ip| Ok(ip.into()))
    })
}

/// A number of servers for all games, or games with theirs: a list, or separated by commas as in `--set`.
fn game_limits(item: &Item<'_>) -> Result<GameLimits, Problem> {
    let limits = match item.text() {
        Ok(text) => text.split(',').map(game_limit).collect::<Result<_, _>>()?,
        Err(_) if item.is_list() => item.list("a list", |item| game_limit(item.text()?))?,
        Err(_) => vec![("*".into(), item.integer(0, PER_GAME_MAX)? as u32)],
    };
    let mut named: BTreeMap<String, u32> = limits.into_iter().collect();
    let others = named.remove("*").unwrap_or(0);
    Ok(GameLimits { named, others })
}

fn game_limit(text: &str) -> Result<(String, u32), Problem> {
    let limit = text.rsplit_once('=').and_then(|(game, most)| {
        let most = most.trim().parse().ok().filter(|most| i64::from(*most) <= PER_GAME_MAX)?;
        let is_name = (1..=GAME_BYTES_MAX).contains(&game.trim().len());
        is_name.then(|| (game.trim().to_string(), most))
    });
    let what = format!("a game and a number from 0 to {PER_GAME_MAX} like \"xonotic=64\"");
    limit.ok_or_else(|| (None, format!("must be {what}, not \"{text}\"")))
}

/// Addresses of this machine, each once.
fn own_addresses(item: &Item<'_>) -> Result<Vec<IpAddr>, Problem> {
    let what = "a list of at most eight addresses of this machine, each once";
    let all: Vec<IpAddr> =
        item.list(what, |item| Ok(item.parsed::<IpAddr>("an address like \"203.0.113.7\"")?.to_canonical()))?;
    let is_usable = |(at, ip): (usize, &IpAddr)| is_one_host(*ip) && !all.iter().take(at).any(|other| other == ip);
    match all.len() <= SOURCES_MAX && all.iter().enumerate().all(is_usable) {
        true => Ok(all),
        false => Err((None, format!("must be {what}"))),
    }
}

/// A file's path; an empty one means none.
fn file(item: &Item<'_>) -> Result<Option<PathBuf>, Problem> {
    let path = item.text()?;
    Ok((!path.is_empty()).then(|| path.into()))
}

/// The operator's token. What is wrong with one does not show it.
fn token(text: &str) -> Result<String, Problem> {
    match text.chars().count() {
        0 | TOKEN_CHARS_MIN.. => Ok(text.to_string()),
        count => Err((
            None,
            format!(
                "must have at least {TOKEN_CHARS_MIN} characters, not {count}, so that nobody can guess it: `openssl rand -hex 16` \
                 makes one"
            ),
        )),
    }
}

/// A host's name, as browsers write it.
fn host(item: Item<'_>) -> Result<String, Problem> {
    let text = item.text()?;
    let is_name = |host: &Host| matches!(host, Host::Domain(name) if !name.contains('*'));
    let host = Host::parse(text.trim_end_matches('.')).ok().filter(is_name);
    host.map(|host| host.to_string())
        .ok_or_else(|| (None, format!("\"{text}\" is not a host name: write it without https://, port or path")))
}
