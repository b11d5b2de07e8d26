//! What game servers post over HTTP: carries out the effects of their protocols' rules.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Announcements, BUSY, of, refusal_text, too_many, try_later};
use crate::asker::Failure;
use crate::budget::{Kind, PROOF_COST};
use crate::ledger::What;
use crate::model::{Address, Change};
use crate::protocols::post::{self, Named, Post, PostAnswer, PostContext, PostEffect, PostRule};
use crate::protocols::{Heartbeat, Verdict, announce};

/// How long an owner is told why an announcement came to nothing.
const FAILURE_MS: u64 = 600_000;
/// Announcements that are answered already, and verified in the background.
static FILED: Semaphore = Semaphore::const_new(4096);
/// How many names may be looked up at a time. The system's resolver takes a thread for each.
static LOOKUPS: Semaphore = Semaphore::const_new(16);
const LOOKUP_PATIENCE: Duration = Duration::from_secs(5);

impl Announcements {
    /// Handles what a game server posts, and returns the answer.
    pub fn post(
        self: &Arc<Announcements>,
        rule: Arc<dyn PostRule>,
        post: &Post<'_>,
    ) -> impl Future<Output = PostAnswer> + use<> {
        let at = PostContext {
            now: self.hub.clock.now(),
            cookies: *self.cookies.lock().unwrap_or_else(PoisonError::into_inner),
            listed: &|address| self.hub.listed(address),
            failure: &|address| self.last_failure(address),
        };
        let effect = rule.post(&at, post);
        // Only the rule knows whether the sender is proven. Others at its address cannot use up what it needs.
        let charged = match &effect {
            PostEffect::Proven { .. } | PostEffect::Quit { .. } => self.take(Kind::Handshakes, post.peer, PROOF_COST),
            PostEffect::Answer(_)
            | PostEffect::Refused { .. }
            | PostEffect::File { .. }
            | PostEffect::Challenged { .. } => self.take(Kind::Posts, post.peer, 1),
        };
        let this = self.clone();
        async move {
            match charged {
                Ok(()) => this.carry_out(&*rule, effect).await,
                Err(over) => rule.decided(&too_many(over)),
            }
        }
    }

    async fn carry_out(self: Arc<Announcements>, rule: &dyn PostRule, effect: PostEffect) -> PostAnswer {
        match effect {
            PostEffect::Answer(answer) => answer,
            PostEffect::Refused { address, why, answer } => {
                self.note(address, What::BadPost(announce::reason(why.as_bytes()).into()));
                answer
            }
            PostEffect::File { mut heartbeat, name, answer } => {
                let Ok(place) = FILED.try_acquire() else {
                    return rule.decided(&try_later("this master is busy", BUSY));
                };
                tokio::spawn(async move {
                    let _place = place;
                    if let Some(name) = name {
                        self.name(&mut heartbeat, name).await;
                    }
                    self.admitted(*heartbeat).await
                });
                answer
            }
            PostEffect::Proven { announce, challenge } => {
                self.note(announce.address, What::Heartbeat);
                let verdict = self.listed(&Change::Announce(*announce)).await;
                if let Some(challenge) = challenge.filter(|_| verdict == Verdict::Listed) {
                    self.prober.challenge(challenge);
                }
                rule.decided(&verdict)
            }
            PostEffect::Challenged { challenge, answer } => {
                self.note(challenge.to, What::Challenged);
                self.prober.challenge(challenge);
                answer
            }
            PostEffect::Quit { address, answer } => {
                self.retries().take(address);
                self.change(address, &Change::Quit { address, master: false, proven: true }).await;
                self.note(address, What::Quit);
                answer
            }
        }
    }

    /// Gives a server the name that it wants, if that is one of its address.
    async fn name(&self, heartbeat: &mut Heartbeat, Named { host, rule }: Named) {
        let address = heartbeat.address;
        let is_its_own = match self.take(Kind::Probing, address.ip(), 1).is_ok() {
            true => has_address(host.clone(), address.ip()).await,
            false => false,
        };
        if !is_its_own {
            return self.note(address, What::OtherName);
        }
        if let Some(said) = &mut heartbeat.said {
            let mut details = said.details.as_deref().cloned().unwrap_or_default();
            details.rules.insert(0, (rule.into(), host));
            said.details = Some(Arc::new(details.bounded()));
        }
    }

    /// What became of the last announcement of an address, for its owner.
    pub(super) fn last_failure(&self, address: Address) -> Option<post::Failure> {
        let since_ms = self.hub.clock.now().unix_ms.saturating_sub(FAILURE_MS);
        let notes = self.ledger.notes(address);
        let recent = || notes.iter().rev().filter(|note| note.port == address.port() && note.at_ms >= since_ms);
        let end = recent().find_map(|note| match &note.what {
            What::Answered { .. } => Some(None),
            What::Silent => Some(Some(Failure::Silent.words(&of(address)))),
            What::BadAnswer(fault) => Some(Some(Failure::Bad(**fault).words(&of(address)))),
            What::Refused(refusal) => Some(Some(refusal_text(*refusal).into())),
            _ => None,
        });
        if let Some(text) = end.flatten() {
            return Some(post::Failure { is_warning: false, text });
        }
        let is_misnamed = recent().any(|note| note.what == What::OtherName);
        is_misnamed.then(|| {
            let text =
                format!("the announced name is not one of {}: the server is listed by its address", address.ip());
            post::Failure { is_warning: true, text }
        })
    }
}

/// Whether a name is one of this address. A lookup cannot be stopped, so it keeps its place until it ends.
async fn has_address(host: Box<str>, ip: IpAddr) -> bool {
    let Ok(Ok(place)) = timeout(LOOKUP_PATIENCE, LOOKUPS.acquire()).await else { return false };
    let lookup = tokio::task::spawn_blocking(move || {
        let _place = place;
        let found = (&*host, 0).to_socket_addrs();
        found.is_ok_and(|mut found| found.any(|found| found.ip().to_canonical() == ip))
    });
    matches!(timeout(LOOKUP_PATIENCE, lookup).await, Ok(Ok(true)))
}
