//! Forgers send from any address, and see only what is sent to their own.

use super::*;

/// Whom an aimed flood is to reach.
const VICTIM: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)), 40_000);

impl World {
    /// Facts that no server has ever said.
    fn forged_facts(&mut self, card: &'static Card) -> rallypoint::model::Facts<'static> {
        let facts = (card.pretend)(self.numbers);
        self.numbers += 1;
        let said = Said { game: None, in_the_name_of: None, until_ms: self.ms };
        self.said.insert((card.name, facts.name.to_string()), said);
        facts
    }

    /// An address to forge: a game server's, the forger's own, or one that belongs to nobody here.
    fn forged_source(&mut self) -> SocketAddr {
        match self.rng.below(4) {
            0 if !self.active.is_empty() => {
                let game = *self.rng.pick(&self.active);
                self.games[game].address.socket()
            }
            1 => forger(),
            2 => {
                SocketAddr::from(([203, 0, 113, self.rng.between(1, 5) as u8], self.rng.between(1_024, 65_535) as u16))
            }
            _ => {
                let random = self.rng.next().to_le_bytes();
                let port = u16::from_le_bytes([random[2], random[3]]) | 0x400;
                SocketAddr::from(([203, random[0] % 4 + 1, random[1], random[4]], port))
            }
        }
    }

    /// A forged datagram for a service of a master: source and bytes.
    fn forgery(&mut self, card: &'static Card) -> (SocketAddr, Vec<u8>) {
        let from = self.forged_source();
        let facts = self.forged_facts(card);
        let bytes = match self.rng.below(6) {
            0 => {
                let length = self.rng.below(120);
                self.rng.bytes(length)
            }
            // What it saw at its own address, answered from another one.
            1 | 2 if !self.seen.is_empty() => {
                let at = self.rng.below(self.seen.len() as u64) as usize;
                let (_, seen) = self.seen[at].clone();
                match (&card.announce, card.answer) {
                    (AnnounceMethod::Datagrams { start, .. }, _) => {
                        let offer = self.offer(card, facts, from.port());
                        let mut reply = Vec::new();
                        start(self.ms, &offer).unwrap().hear(self.ms, &seen, &mut reply);
                        reply
                    }
                    (_, Some(answer)) => Address::new(from.ip(), from.port())
                        .and_then(|address| answer(&facts, address, &seen).pop())
                        .unwrap_or_default(),
                    _ => seen,
                }
            }
            3 if matches!(card.fetch, Fetch::Datagrams(_)) => {
                let Fetch::Datagrams(fetch) = &card.fetch else { return (from, Vec::new()) };
                let requests = fetch.requests("", "", &[]).unwrap();
                self.rng.pick(&requests).bytes.clone()
            }
            _ => match &card.announce {
                AnnounceMethod::Datagrams { start, .. } => {
                    if let Some(said) = self.said.get_mut(&(card.name, facts.name.to_string())) {
                        said.in_the_name_of = Some(from);
                    }
                    let offer = self.offer(card, facts, from.port());
                    start(self.ms, &offer).unwrap().announcement(&offer)
                }
                AnnounceMethod::OwnPort { heartbeat, .. } => heartbeat(&facts),
                _ => Vec::new(),
            },
        };
        (from, bytes)
    }

    fn offer(
        &self,
        card: &Card,
        facts: rallypoint::model::Facts<'static>,
        port: u16,
    ) -> rallypoint::protocols::announce::Offer {
        rallypoint::protocols::announce::Offer { game: card.name.into(), port, facts }
    }

    pub(super) fn spoof(&mut self) {
        let node = self.rng.below(self.machines.len() as u64) as usize;
        if self.plan.guesses && self.rng.one_in(2) {
            return self.forge_answer(node);
        }
        let services = self.services(node);
        if services.is_empty() {
            return;
        }
        let (card, port) = *self.rng.pick(&services);
        let (from, bytes) = self.forgery(card);
        self.counts.forged += 1;
        self.send(from, SocketAddr::new(self.machines[node].ip, port), bytes);
    }

    /// A forged answer of a game server to the prober, on a port that is in use: the forger has guessed it.
    fn forge_answer(&mut self, node: usize) {
        if self.active.is_empty() {
            return;
        }
        let game = *self.rng.pick(&self.active);
        let (card, address) = (self.games[game].card, self.games[game].address);
        let (Some(query), Some(answer)) = (card.query, card.answer) else { return };
        let mut rng = self.rng.clone();
        self.rng.next();
        let Some(running) = &mut self.machines[node].node else { return };
        let Some(port) = running.prober.ports().one_in_use(&mut rng) else { return };
        let facts = self.forged_facts(card);
        let mut question = rallypoint::protocols::Question::new();
        query.ask(rallypoint::protocols::Ask::Facts, self.rng.next() as u32, &mut question);
        let to = SocketAddr::new(self.machines[node].ip, port);
        for bytes in answer(&facts, address, &question) {
            self.counts.forged += 1;
            self.send(address.socket(), to, bytes);
        }
    }

    /// Something that a master answers: a request for a list, or an announcement.
    fn aimed(&mut self, card: &'static Card, port: u16) -> Vec<u8> {
        if let Fetch::Datagrams(fetch) = &card.fetch
            && self.rng.one_in(2)
        {
            let requests = fetch.requests("", "", &[]).unwrap();
            return self.rng.pick(&requests).bytes.clone();
        }
        let facts = self.forged_facts(card);
        match &card.announce {
            AnnounceMethod::Datagrams { start, .. } => {
                let offer = self.offer(card, facts, port);
                start(self.ms, &offer).unwrap().announcement(&offer)
            }
            AnnounceMethod::OwnPort { heartbeat, .. } => heartbeat(&facts),
            _ => Vec::new(),
        }
    }

    /// Many forged datagrams at once, for some seconds.
    pub(super) async fn flood(&mut self, left: u32, is_aimed: bool) {
        let node = self.rng.below(self.machines.len() as u64) as usize;
        let services = self.services(node);
        if let Some((card, port)) = services.get(self.rng.below(services.len().max(1) as u64) as usize).copied() {
            let mut batch = Vec::new();
            for _ in 0..FLOOD_BATCH {
                let forgery = if is_aimed { (VICTIM, self.aimed(card, VICTIM.port())) } else { self.forgery(card) };
                self.counts.forged += 1;
                batch.push(forgery);
            }
            self.deliver_to_node(node, port, batch).await;
        }
        match left {
            0 => {
                let left = self.rng.between(10, 100) as u32;
                let is_aimed = self.rng.one_in(3);
                self.plan_in(3_600_000, Event::Flood { left, is_aimed });
            }
            _ => self.plan_in(50, Event::Flood { left: left - 1, is_aimed }),
        }
    }
}
