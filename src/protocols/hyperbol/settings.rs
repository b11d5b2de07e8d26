//! Hyperbol's section of the configuration.

use std::net::SocketAddr;

use super::{LIFE_MS, NAME, serve};
use crate::model::{Address, Game, NamedServer, Overrides};
use crate::protocols::StreamRules;
use crate::protocols::section::{Configured, Listener, LocalAddresses, Transport};
use crate::settings::{Item, Key, Problem};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub listen: Vec<SocketAddr>,
    pub servers: Vec<NamedServer>,
}

impl Configured for Settings {
    const KEYS: &'static [Key<Settings>] = KEYS;

    fn listeners(&self) -> Vec<Listener<'_>> {
        vec![Listener { key: "listen", addresses: &self.listen, transport: Transport::Stream }]
    }

    fn streams(&self, _local: &LocalAddresses) -> Option<Box<dyn StreamRules>> {
        Some(Box::new(serve::Rules::new()))
    }

    fn named_servers(&self) -> &[NamedServer] {
        &self.servers
    }

    fn life_max_ms(&self) -> u64 {
        LIFE_MS
    }
}

const KEYS: &[Key<Settings>] = &[
    Key {
        name: "listen",
        doc: "TCP for game clients.",
        default: "[\"0.0.0.0:20203\", \"[::]:20203\"]",
        example: "",
        set: |settings, item| {
            settings.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        name: "servers",
        doc: "Servers that need not announce themselves: queried within seconds, listed while they answer. The flavor marks\n\
              one as official: 0 unofficial, 1 IMF home, 2 Republic home, 3 Syndicate home, 4 Arena, 5 Team Arena,\n\
              6 Bounty Arena, 7 Training Arena.",
        default: "[]",
        example: "[[hyperbol.servers]]\naddress = \"203.0.113.5:20200\"\nflavor = 4",
        set: |settings, item| {
            settings.servers =
                item.list("a list of tables: write [[hyperbol.servers]]", |table| named_server(&table))?;
            Ok(())
        },
    },
];

/// A named server. Only named servers can be official.
fn named_server(table: &Item<'_>) -> Result<NamedServer, Problem> {
    table.only(&["address", "flavor"])?;
    let address: Address = table.required("address", |item| item.parsed("an address like \"203.0.113.5:20200\""))?;
    let flavor = table.optional("flavor", |item| item.integer(0, 255))?.unwrap_or(0) as u8;
    let overrides = Overrides { official: flavor != 0, priority: 0, flavor };
    Ok(NamedServer { address, game: Game::Own(NAME), overrides, asked: true })
}
