//! Xash3D's section of the configuration.

use std::net::SocketAddr;

use super::challenge::Challenges;
use super::list::{Gate, Lists};
use super::wire::{FIELD_BYTES_MAX, Version};
use super::{DATAGRAM_BYTES_MAX, NAME, serve};
use crate::model::{Address, Game, NamedServer};
use crate::protocols::section::{Configured, Cookies, Derived, Listener, Transport, overrides};
use crate::protocols::{DatagramRules, is_one_host};
use crate::settings::{Item, Key, Problem};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub listen: Vec<SocketAddr>,
    pub life_ms: u64,
    pub server_version_min: Version,
    pub client_version_min: Version,
    pub client_build_min: u32,
    pub old_client_build_min: u32,
    pub update_addresses: Vec<SocketAddr>,
    pub update_title: String,
    pub update_map: String,
    pub servers: Vec<NamedServer>,
    lists: Derived<Lists>,
}

impl Settings {
    fn gate(&self) -> Gate {
        // Without another address it is the master's own, as far as it is known.
        let own = self.listen.iter().filter(|address| is_one_host(address.ip()));
        let update =
            if self.update_addresses.is_empty() { own.copied().collect() } else { self.update_addresses.clone() };
        Gate {
            version_min: self.client_version_min,
            build_min: self.client_build_min,
            old_build_min: self.old_client_build_min,
            update,
            title: self.update_title.clone(),
            map: self.update_map.clone(),
        }
    }
}

impl Configured for Settings {
    const KEYS: &'static [Key<Settings>] = KEYS;

    fn listeners(&self) -> Vec<Listener<'_>> {
        let transport = Transport::Datagrams { bytes_max: DATAGRAM_BYTES_MAX };
        vec![Listener { key: "listen", addresses: &self.listen, transport }]
    }

    fn datagrams(&self, cookies: Cookies) -> Option<Box<dyn DatagramRules>> {
        let lists = self.lists.get(|| Lists::new(self.gate()));
        Some(Box::new(serve::Rules {
            life_ms: self.life_ms,
            server_version_min: self.server_version_min,
            challenges: Challenges::new(&cookies.keys),
            time: cookies.time,
            lists,
        }))
    }

    fn named_servers(&self) -> &[NamedServer] {
        &self.servers
    }

    fn life_max_ms(&self) -> u64 {
        self.life_ms
    }

    fn keep_life(&mut self, from: &Settings) {
        self.life_ms = from.life_ms;
    }

    fn warnings(&self) -> Vec<String> {
        let gate = self.gate();
        if gate.is_set() && gate.update.is_empty() && !self.listen.is_empty() {
            return vec![
                "xash3d.update_address is empty, and the listeners are on all addresses: clients that are too old get an \
                 empty list, without a word about an update"
                    .into(),
            ];
        }
        Vec::new()
    }
}

const KEYS: &[Key<Settings>] = &[
    Key {
        name: "listen",
        doc: "UDP for game servers and game clients.",
        default: "[\"0.0.0.0:27010\", \"[::]:27010\"]",
        example: "",
        set: |settings, item| {
            settings.listen = item.listen()?;
            settings.lists = Derived::default();
            Ok(())
        },
    },
    Key {
        name: "life",
        doc: "How long a server stays listed after its last announcement. Games send one every five minutes, and every\n\
              minute behind NAT; there, five minutes are enough, and a longer life does not count.",
        default: "\"15m\"",
        example: "",
        set: |settings, item| {
            settings.life_ms = item.duration_ms(1_000, 86_400_000)?;
            Ok(())
        },
    },
    Key {
        name: "min_server_version",
        doc: "Servers with an older engine are not listed. \"0.0\" lists all.",
        default: "\"0.0\"",
        example: "",
        set: |settings, item| {
            settings.server_version_min = version(item)?;
            Ok(())
        },
    },
    Key {
        name: "min_client_version",
        doc: "Clients with an older engine, or that do not say which, get a list with one entry that asks them to update.\n\
              \"0.0\" gives all clients the list.",
        default: "\"0.0\"",
        example: "",
        set: |settings, item| {
            settings.client_version_min = version(item)?;
            settings.lists = Derived::default();
            Ok(())
        },
    },
    Key {
        name: "min_client_build",
        doc: "The same by the number of the build (`buildnum`), for engines from 0.20 on. 0: any.",
        default: "0",
        example: "",
        set: |settings, item| {
            settings.client_build_min = item.integer(0, u32::MAX.into())? as u32;
            settings.lists = Derived::default();
            Ok(())
        },
    },
    Key {
        name: "min_old_client_build",
        doc: "The same for engines before 0.20, whose builds are counted separately. 0: any.",
        default: "0",
        example: "",
        set: |settings, item| {
            settings.old_client_build_min = item.integer(0, u32::MAX.into())? as u32;
            settings.lists = Derived::default();
            Ok(())
        },
    },
    Key {
        name: "update_address",
        doc: "The entry that clients which are too old get: this master's public address, which answers for it, one of IPv4\n\
              and one of IPv6, e.g. [\"198.51.100.7:27010\"]. Empty: the address in `listen`, if that is one host's.",
        default: "[]",
        example: "",
        set: |settings, item| {
            settings.update_addresses = item.list("a list of addresses like [\"198.51.100.7:27010\"]", |item| {
                let address: SocketAddr = item.parsed("an address like \"198.51.100.7:27010\"")?;
                match is_one_host(address.ip()) && address.port() > 0 {
                    true => Ok(address),
                    false => Err((None, "must be the address of one host, with a port".into())),
                }
            })?;
            settings.lists = Derived::default();
            Ok(())
        },
    },
    Key {
        name: "update_title",
        doc: "The name of that entry: where the update is.",
        default: "\"https://github.com/FWGS/xash3d-fwgs\"",
        example: "",
        set: |settings, item| {
            settings.update_title = value(item)?;
            settings.lists = Derived::default();
            Ok(())
        },
    },
    Key {
        name: "update_map",
        doc: "Its map.",
        default: "\"Update please\"",
        example: "",
        set: |settings, item| {
            settings.update_map = value(item)?;
            settings.lists = Derived::default();
            Ok(())
        },
    },
    Key {
        name: "servers",
        doc: "Servers that need not announce themselves: queried within seconds, listed while they answer. `official` and\n\
              `priority` (higher comes first) can only be set here.",
        default: "[]",
        example: "[[xash3d.servers]]\naddress = \"203.0.113.5:27015\"\nofficial = true\npriority = 10",
        set: |settings, item| {
            settings.servers = item.list("a list of tables: write [[xash3d.servers]]", |table| named_server(&table))?;
            Ok(())
        },
    },
];

fn version(item: &Item<'_>) -> Result<Version, Problem> {
    item.parsed("a version like \"0.21\"")
}

/// A text that stands between backslashes.
fn value(item: &Item<'_>) -> Result<String, Problem> {
    let text = item.text()?;
    let is_value = text.len() <= FIELD_BYTES_MAX && !text.contains(|c: char| c == '\\' || c.is_control());
    if is_value {
        Ok(text.into())
    } else {
        Err((None, format!("must be a text of at most {FIELD_BYTES_MAX} bytes without backslashes")))
    }
}

fn named_server(table: &Item<'_>) -> Result<NamedServer, Problem> {
    table.only(&["address", "official", "priority"])?;
    let address: Address = table.required("address", |item| item.parsed("an address like \"203.0.113.5:27015\""))?;
    Ok(NamedServer { address, game: Game::Own(NAME), overrides: overrides(table)?, asked: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::section::{Section, defaults};
    use toml::de::DeValue;

    fn set(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let mut section: Box<dyn Section> = defaults::<Settings>();
        for (key, value) in pairs {
            let value = DeValue::parse(value).unwrap();
            section.set(key, &Item::new(value.get_ref())).unwrap().map_err(|(_, reason)| reason)?;
        }
        Ok(section.as_any().downcast_ref::<Settings>().unwrap().clone())
    }

    #[test]
    fn the_gate_follows_from_the_keys() {
        assert!(!set(&[]).unwrap().gate().is_set());
        let settings = set(&[("min_client_version", "\"0.21\""), ("min_old_client_build", "3500")]).unwrap();
        assert!(settings.gate().is_set());
        assert_eq!(Configured::warnings(&settings).len(), 1, "nobody knows this master's own address");
        let own = set(&[("min_client_build", "1"), ("listen", "[\"198.51.100.7:27010\"]")]).unwrap();
        assert_eq!((own.gate().update, Configured::warnings(&own).len()), (own.listen.clone(), 0));
        let other = set(&[("min_client_build", "1"), ("update_address", "[\"198.51.100.9:1\"]")]).unwrap();
        assert_eq!(other.gate().update, ["198.51.100.9:1".parse().unwrap()]);
    }

    #[test]
    fn mistakes_are_refused() {
        for (key, value) in [
            ("min_client_version", "\"new\""),
            ("min_server_version", "\"0.999\""),
            ("min_client_build", "-1"),
            ("update_address", "[\"0.0.0.0:27010\"]"),
            ("update_address", "[\"198.51.100.7:0\"]"),
            ("update_title", r#""a\\b""#),
            ("servers", "[{ official = true }]"),
            ("servers", "[{ address = \"203.0.113.5:27015\", game = \"x\" }]"),
        ] {
            assert!(set(&[(key, value)]).is_err(), "{key} = {value}");
        }
        let settings = set(&[("servers", "[{ address = \"203.0.113.5:27015\", official = true }]")]).unwrap();
        assert!(settings.servers[0].overrides.official && settings.servers[0].asked);
    }
}
