//! Players fetch lists in each protocol's own way, and compare them with what the master has published.

use super::*;

impl World {
    /// A player fetches a list, as its protocol does.
    pub(super) fn list(&mut self) {
        let card = self.rng.pick(CARDS);
        let number = self.rng.below(self.machines.len() as u64) as usize;
        let (who, random) = (self.rng.below(1_000), self.rng.next() as u32);
        let (asked_ms, run, heard) = (self.ms, self.machines[number].run, self.heard.0.clone());
        let Some(node) = &mut self.machines[number].node else { return };
        let answer = |bytes| Heard { machine: number, run, card, asked_ms, bytes };
        match &card.fetch {
            Fetch::Http { path, .. } => {
                if let Some(RouteAnswer::List(renderer)) = node.get(card, player(who).ip(), path) {
                    let list = node.render(&renderer);
                    self.check_heard(&answer(list));
                }
            }
            Fetch::Stream(fetch) => {
                let Some(mut stream) = node.connect(card, player(who), random) else { return };
                node.tasks.spawn(async move {
                    let (mut received, mut is_asked, mut buffer) = (Vec::new(), false, [0; 4_096]);
                    loop {
                        if !is_asked && let Ok(Some(request)) = fetch.request(&received) {
                            is_asked = true;
                            let _ = stream.write_all(&request).await;
                        }
                        if is_asked && fetch.is_whole(&received) {
                            break;
                        }
                        match stream.read(&mut buffer).await {
                            Ok(size) if size > 0 => received.extend(&buffer[..size]),
                            _ => break,
                        }
                    }
                    let _ = heard.send(Heard { machine: number, run, card, asked_ms, bytes: received });
                });
                self.counts.connections += 1;
                self.soon(number);
            }
            Fetch::Datagrams(fetch) => {
                let requests = fetch.requests("", "", &[]).unwrap();
                let Some((_, port)) = node.datagram_ports().find(|(with, _)| with.name == card.name) else { return };
                let mut out = Vec::new();
                for request in requests {
                    node.receive(port, vec![(player(who), request.bytes)], &mut out);
                }
                let addresses: Vec<Address> =
                    out.iter().filter_map(|sent| fetch.read(&sent.bytes)).flat_map(|packet| packet.servers).collect();
                self.check_list(number, card, asked_ms, &addresses.into_iter().collect());
            }
        }
    }

    pub(super) fn check_heard(&mut self, heard: &Heard) {
        if self.machines[heard.machine].run != heard.run {
            return; // it was cut short
        }
        let list = match &heard.card.fetch {
            Fetch::Http { read, .. } => read(&heard.bytes, Take::ALL),
            Fetch::Stream(fetch) => fetch.read(&heard.bytes),
            Fetch::Datagrams(_) => return,
        };
        let list = list.unwrap_or_else(|fault| panic!("{}: a list cannot be read: {fault}", heard.card.name));
        assert_eq!(list.left_out, 0, "{}: {:?}", heard.card.name, list.faults);
        let addresses: Vec<Address> = list.servers.iter().map(|entry| entry.address).collect();
        let unique: BTreeSet<Address> = addresses.iter().copied().collect();
        assert_eq!(unique.len(), addresses.len(), "{}: a server is listed twice", heard.card.name);
        self.check_list(heard.machine, heard.card, heard.asked_ms, &unique);
    }

    /// A list shows a view that was in force while it was fetched.
    fn check_list(&mut self, number: usize, card: &'static Card, asked_ms: u64, found: &BTreeSet<Address>) {
        self.counts.lists += 1;
        self.counts.note(found.len() as u64);
        let machine = &self.machines[number];
        let shows = |view: &View| {
            let servers = view.of_protocol(card.name).filter(|server| !server.game.is_master());
            servers.map(|server| server.address).collect::<BTreeSet<_>>() == *found
        };
        let mut in_force = Vec::new();
        for (at, (_, view)) in machine.views.iter().enumerate() {
            let ended_ms = machine.views.get(at + 1).map_or(u64::MAX, |(ms, _)| *ms);
            if ended_ms.saturating_add(2_100) >= asked_ms {
                in_force.push(view);
            }
        }
        let is_shown = in_force.iter().any(|view| shows(view));
        assert!(is_shown, "{}: a list of {} servers shows none of {} views", card.name, found.len(), in_force.len());
    }
}
