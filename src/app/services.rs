//! The rules and networks of all protocols, replaced when keys rotate or the configuration changes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::Bound;
use crate::config::Config;
use crate::cookie::Keys;
use crate::model::SharedTime;
use crate::net::announcements::Announcements;
use crate::net::network::machine_addresses;
use crate::net::session::SharedStreamRules;
use crate::net::udp::SharedRules;
use crate::protocols::Card;
use crate::protocols::network::MasterNetwork;
use crate::protocols::section::{Cookies, LocalAddresses, Section, Transport};

pub struct Services {
    pub all: Vec<Service>,
    current: Mutex<Current>,
    announcements: Arc<Announcements>,
}

/// What the datagram rules are made from.
struct Current {
    sections: Vec<Box<dyn Section>>,
    cookies: Cookies,
}

pub struct Service {
    pub card: &'static Card,
    pub datagrams: Option<SharedRules>,
    pub streams: Option<SharedStreamRules>,
    pub network: Option<watch::Sender<MasterNetwork>>,
    /// The addresses of its TCP listeners.
    listening: Vec<SocketAddr>,
}

impl Services {
    pub fn new(config: &Config, cookies: Cookies, bound: &[Bound], announcements: Arc<Announcements>) -> Services {
        let all = config.sections().map(|(card, section)| Service::new(card, section, cookies, bound)).collect();
        Services { all, current: Mutex::new(Current { sections: config.protocols.clone(), cookies }), announcements }
    }

    pub fn of(&self, card: &Card) -> Option<&Service> {
        self.all.iter().find(|service| service.card.name == card.name)
    }

    /// Applies another configuration.
    pub fn set(&self, config: &Config) {
        let mut current = self.current();
        current.sections = config.protocols.clone();
        for (service, section) in self.all.iter().zip(&current.sections) {
            service.set(&**section);
            service.set_datagrams(&**section, current.cookies);
        }
    }

    /// In effect when this returns: each batch of datagrams loads the rules anew.
    pub fn set_cookies(&self, change: impl FnOnce(&mut Cookies)) {
        let mut current = self.current();
        change(&mut current.cookies);
        self.announcements.set_cookies(current.cookies);
        for (service, section) in self.all.iter().zip(&current.sections) {
            service.set_datagrams(&**section, current.cookies);
        }
    }

    /// Applies the cookie keys and the time that the nodes of a cluster agree on.
    pub fn cookie_updates(self: Arc<Services>) -> impl Fn(Keys, SharedTime) + Send + Sync {
        move |keys, time| self.set_cookies(|cookies| *cookies = Cookies { keys, time })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    fn new(card: &'static Card, section: &dyn Section, cookies: Cookies, bound: &[Bound]) -> Service {
        let is_stream =
            |bound: &&Bound| bound.transport == Transport::Stream && bound.card.is_some_and(|c| c.name == card.name);
        let listening: Vec<_> =
            bound.iter().filter(is_stream).filter_map(|bound| bound.tcp.as_ref()?.local_addr().ok()).collect();
        Service {
            card,
            datagrams: section.datagrams(cookies).map(|rules| Arc::new(ArcSwap::from_pointee(rules))),
            streams: section.streams(&local(&listening)).map(|rules| Arc::new(ArcSwap::from_pointee(rules))),
            network: section.network(&listening).map(watch::Sender::new),
            listening,
        }
    }

    fn set(&self, section: &dyn Section) {
        if let (Some(shared), Some(rules)) = (&self.streams, section.streams(&local(&self.listening))) {
            shared.store(Arc::new(rules));
        }
        if let (Some(sender), Some(new)) = (&self.network, section.network(&self.listening)) {
            sender.send_if_modified(|current| std::mem::replace(current, new.clone()) != new);
        }
    }

    fn set_datagrams(&self, section: &dyn Section, cookies: Cookies) {
        if let (Some(shared), Some(rules)) = (&self.datagrams, section.datagrams(cookies)) {
            shared.store(Arc::new(rules));
        }
    }
}

fn local(listening: &[SocketAddr]) -> LocalAddresses {
    LocalAddresses { listening: listening.to_vec(), machine: machine_addresses() }
}
