//! netPanzer's section of the configuration.

use std::net::SocketAddr;

use super::network::Rules as NetworkRules;
use super::wire::check_value;
use super::{CARD, LIFE_MS, serve};
use crate::protocols::StreamRules;
use crate::protocols::network::{MasterNetwork, Own};
use crate::protocols::section::{Configured, Listener, LocalAddresses, Transport};
use crate::settings::Key;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub listen: Vec<SocketAddr>,
    pub rules: serve::Settings,
    /// Other masters, as typed; names are resolved when needed.
    pub neighbours: Vec<String>,
}

impl Configured for Settings {
    const KEYS: &'static [Key<Settings>] = KEYS;

    fn listeners(&self) -> Vec<Listener<'_>> {
        vec![Listener { key: "listen", addresses: &self.listen, transport: Transport::Stream }]
    }

    fn streams(&self, local: &LocalAddresses) -> Option<Box<dyn StreamRules>> {
        let own = Own::new(&local.listening, &local.machine, self.rules.public);
        Some(Box::new(serve::Rules::new(self.rules.clone(), own)))
    }

    fn life_max_ms(&self) -> u64 {
        LIFE_MS
    }

    fn network(&self, listening: &[SocketAddr]) -> Option<MasterNetwork> {
        Some(MasterNetwork {
            rules: &NetworkRules,
            neighbours: self.neighbours.clone(),
            password: self.rules.password.clone(),
            listening: listening.to_vec(),
            public: self.rules.public,
            default_port: CARD.master_port.unwrap_or(0),
        })
    }

    fn warnings(&self) -> Vec<String> {
        let unused = self.rules.password.is_empty() && !self.neighbours.is_empty();
        let text = "netpanzer.neighbours are not contacted: without netpanzer.password there is no network";
        unused.then(|| text.into()).into_iter().collect()
    }
}

const KEYS: &[Key<Settings>] = &[
    Key {
        name: "listen",
        doc: "TCP for game servers, game clients and other masters.",
        default: "[\"0.0.0.0:28900\", \"[::]:28900\"]",
        example: "",
        set: |settings, item| {
            settings.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        name: "verify",
        doc: "\"query\": a server of a game that can be queried is listed when it answers. \"off\": a heartbeat is listed\n\
              at once, and no server is queried.",
        default: "\"query\"",
        example: "",
        set: |settings, item| {
            settings.rules.verify = item.one_of(&[("query", true), ("off", false)])?;
            Ok(())
        },
    },
    Key {
        name: "password",
        doc: "The password that all masters of a network share; empty: this master is in no network. It cannot be the word\n\
              final, nor contain a backslash or a control character.",
        default: "\"\"",
        example: "",
        set: |settings, item| {
            settings.rules.password = network_password(item.text()?).map_err(|reason| (None, reason))?;
            Ok(())
        },
    },
    Key {
        name: "neighbours",
        doc: "Other masters of the network, e.g. [\"198.51.100.7:28900\"]; these report the rest.",
        default: "[]",
        example: "",
        set: |settings, item| {
            settings.neighbours = item.list("a list of addresses", |item| {
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
        name: "public",
        doc: "This master's own address in its list of masters, where that is not the one that was connected to: behind NAT, in\n\
              a container. With it, this master also recognises itself among others.",
        default: "\"\"",
        example: "",
        set: |settings, item| {
            let text = item.text()?;
            let address = || item.parsed("an address like \"203.0.113.5:28900\"");
            settings.rules.public = if text.is_empty() { None } else { Some(address()?) };
            Ok(())
        },
    },
];

/// The password of a network of masters, if the protocol can carry it. Error messages do not contain it.
fn network_password(text: &str) -> Result<String, String> {
    let why = match check_value(text.as_bytes()) {
        _ if text.is_empty() => return Ok(String::new()), // no network
        Err(unsendable) => unsendable.to_string(),
        Ok(()) if text.chars().any(char::is_control) => {
            "it has a control character, such as a tab or a line end".into()
        }
        Ok(()) if text.trim().is_empty() => "it is blank".into(),
        Ok(()) => return Ok(text.to_string()),
    };
    Err(format!("netPanzer's protocol cannot carry this password: {why}. Choose another, the same on all masters"))
}
