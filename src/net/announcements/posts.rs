//! What game servers post over HTTP: carries out the effects of their protocols' rules.

use std::sync::{Arc, PoisonError};

use super::names::NameOf;
use super::{Announcements, BUSY, of, refusal_text, too_many, try_later};
use crate::asker::Failure;
use crate::budget::{Kind, PROOF_COST};
use crate::ledger::What;
use crate::model::{Address, Change, Facts, Server};
use crate::protocols::post::{self, FailureKind, Post, PostAnswer, PostContext, PostEffect, PostRule};
use crate::protocols::{Named, Verdict, announce};

/// How long an owner is told why an announcement came to nothing.
const FAILURE_MS: u64 = 600_000;

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
            PostEffect::File { heartbeat, answer } => {
                let address = heartbeat.address;
                let Some(place) = self.filed.take(address.ip()) else {
                    self.note(address, What::Postponed);
                    return rule.decided(&try_later("this master is busy", BUSY));
                };
                tokio::spawn(async move {
                    let _place = place;
                    // It has had its answer, so this is for the next one, and for the doctor.
                    if let Verdict::TryLater { .. } = self.admitted(*heartbeat).await {
                        self.note(address, What::Postponed);
                    }
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
        details.rules.insert(0, (named.rule.into(), named.host.clone()));
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
