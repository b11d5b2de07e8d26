//! What game servers post over HTTP: carries out the effects of their protocols' rules.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::names::NameOf;
use super::{Announcements, Applied, BUSY, of, refusal_text, too_many, try_later};
use crate::asker::Failure;
use crate::budget::{Kind, PROOF_COST};
use crate::ledger::What;
use crate::model::{Address, Change, Facts, Server};
use crate::protocols::post::{self, Challenge, FailureKind, Post, PostAnswer, PostContext, PostEffect, PostRule};
use crate::protocols::{Named, Verdict, announce};

/// What a post has done, and what is left: to wait until a change is published.
enum Done {
    Answer(PostAnswer),
    Proven { applied: Applied, challenge: Option<Challenge> },
    Quit { applied: Applied, answer: PostAnswer },
}

/// How long an owner is told why an announcement came to nothing.
const FAILURE_MS: u64 = 600_000;

impl Announcements {
    /// Handles what a game server posts, and returns the answer.
    pub fn post(
        self: &Arc<Announcements>,
        rule: Arc<dyn PostRule>,
        post: &Post<'_>,
    ) -> impl Future<Output = PostAnswer> + use<> {
        // One after another for an address: each sees what the one before it has changed.
        let _turn = self.turn(post.peer);
        let at = PostContext {
            now: self.hub.clock.now(),
            cookies: *self.cookies.lock().unwrap_or_else(PoisonError::into_inner),
            listed: &|address| self.hub.listed(address),
            known: &|address| self.hub.address_state(address).map(|record| record.server),
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
        let done = match charged {
            Ok(()) => self.carry_out(&*rule, effect),
            Err(over) => Done::Answer(rule.decided(&too_many(over))),
        };
        let this = self.clone();
        async move {
            match done {
                Done::Answer(answer) => answer,
                Done::Quit { applied, answer } => {
                    applied.shown().await;
                    answer
                }
                Done::Proven { applied, challenge } => {
                    let verdict = this.shown(applied).await;
                    if let Some(challenge) = challenge.filter(|_| verdict == Verdict::Listed) {
                        this.prober.challenge(challenge);
                    }
                    rule.decided(&verdict)
                }
            }
        }
    }

    fn turn(&self, peer: IpAddr) -> Option<MutexGuard<'_, ()>> {
        let turn = self.turns.get(self.spread.hash_one(peer) as usize % self.turns.len())?;
        Some(turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn carry_out(self: &Arc<Announcements>, rule: &dyn PostRule, effect: PostEffect) -> Done {
        let answer = match effect {
            PostEffect::Answer(answer) => answer,
            PostEffect::Refused { address, why, answer } => {
                self.note(address, What::BadPost(announce::reason(why.as_bytes()).into()));
                answer
            }
            PostEffect::File { heartbeat, answer } => {
                let address = heartbeat.address;
                let Some(place) = self.filed.take(address.ip()) else {
                    self.note(address, What::Postponed);
                    return Done::Answer(rule.decided(&try_later("this master is busy", BUSY)));
                };
                let this = self.clone();
                tokio::spawn(async move {
                    let _place = place;
                    // It has had its answer, so this is for the next one, and for the doctor.
                    if let Verdict::TryLater { .. } = this.admitted(*heartbeat).await {
                        this.note(address, What::Postponed);
                    }
                });
                answer
            }
            PostEffect::Proven { announce, challenge } => {
                let address = announce.address;
                self.note(address, What::Heartbeat);
                let applied = self.applied(address, &Change::Announce(*announce));
                return Done::Proven { applied, challenge };
            }
            PostEffect::Challenged { challenge, answer } => {
                self.note(challenge.to, What::Challenged);
                self.prober.challenge(challenge);
                answer
            }
            PostEffect::Quit { address, answer } => {
                self.retries().take(address);
                let applied = self.applied(address, &Change::Quit { address, master: false, proven: true });
                self.note(address, What::Quit);
                return Done::Quit { applied, answer };
            }
        };
        Done::Answer(answer)
    }

    /// Gives a server that has answered the name that it wants, if that is one of its address. While this cannot be found out,
    /// it keeps the name that it has.
    pub(super) async fn name(&self, address: Address, said: &mut Facts<'_>, named: &Named, known: Option<&Server>) {
        let found = match self.take(Kind::Probing, address.ip(), 1) {
            Ok(()) => self.names.look_up(&named.host, address.ip()).await,
            Err(_) => NameOf::Unknown,
        };
        let has_it = |server: &Server| server.facts().rule(named.rule) == Some(&*named.host);
        match found {
            NameOf::This => {}
            NameOf::Unknown if known.is_some_and(has_it) => {}
            NameOf::Unknown => return self.note(address, What::UnknownName),
            NameOf::Other => return self.note(address, What::OtherName),
        }
        let mut details = said.details.as_deref().cloned().unwrap_or_default();
        details.rules = details.rules.behind(named.rule, &named.host);
        said.details = Some(Arc::new(details.bounded()));
    }

    /// What became of the last announcement of an address, for its owner.
    pub(super) fn last_failure(&self, address: Address) -> Option<post::Failure> {
        let since_ms = self.hub.clock.now().unix_ms.saturating_sub(FAILURE_MS);
        let notes = self.ledger.notes(address);
        let recent = || notes.iter().rev().filter(|note| note.port == address.port() && note.at_ms >= since_ms);
        let failure = |kind, text| Some(post::Failure { kind, text });
        let end = recent().find_map(|note| match &note.what {
            What::Answered { .. } => Some(None),
            What::Silent => Some(failure(FailureKind::Silent, Failure::Silent.words(&of(address)))),
            What::BadAnswer(fault) => Some(failure(FailureKind::Error, Failure::Bad(**fault).words(&of(address)))),
            What::Refused(refusal) => Some(failure(FailureKind::Error, refusal_text(*refusal).into())),
            What::Postponed => Some(failure(FailureKind::Error, "too much was announced at once".into())),
            _ => None,
        });
        // Answers come without an announcement, too; what is wrong with a name comes only with one.
        let name = || {
            recent().find_map(|note| match note.what {
                What::Heartbeat => Some(None),
                What::OtherName => Some(Some(format!("the announced name is not one of {}", address.ip()))),
                What::UnknownName => Some(Some("the announced name could not be looked up".into())),
                _ => None,
            })
        };
        end.flatten().or_else(|| {
            let text = name().flatten()? + ": the server is listed by its address";
            failure(FailureKind::Warning, text)
        })
    }
}
