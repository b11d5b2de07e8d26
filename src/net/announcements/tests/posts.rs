//! Posts: what each effect of a rule does.

use super::*;
use crate::protocols::post::{Challenge, Post, PostAnswer, PostContext, PostEffect, PostRule};

/// A rule that does what the body says, for the game at its port.
struct Posted(Address);

impl PostRule for Posted {
    fn post(&self, at: &PostContext<'_>, post: &Post<'_>) -> PostEffect {
        let answer = |text: String| PostAnswer::new(200, "text/plain", text);
        let (address, game) = (self.0, Game::Own("netpanzer"));
        let said = Facts { name: "Said".into(), ..Facts::default() };
        let challenge = || Challenge { to: address, bytes: b"challenge"[..].into() };
        match post.body {
            b"file" => {
                let heartbeat = Heartbeat { said: Some(Box::new(said)), ..heartbeat(address) };
                let failure = (at.failure)(address).map(|failure| failure.text).unwrap_or_default();
                PostEffect::File { heartbeat: Box::new(heartbeat), name: None, answer: answer(failure) }
            }
            b"challenge" => PostEffect::Challenged { challenge: challenge(), answer: answer(String::new()) },
            b"proven" => {
                let announce = Announce {
                    address,
                    game,
                    proof: Proof::Cookie,
                    proven_at_ms: at.now.unix_ms,
                    life_ms: 30_000,
                    asked: false,
                    rtt_us: None,
                    keys: None,
                    facts: said,
                };
                PostEffect::Proven { announce: Box::new(announce), challenge: Some(challenge()) }
            }
            b"quit" => {
                let name = (at.listed)(address).map(|server| server.texts.name().to_string());
                PostEffect::Quit { address, answer: answer(name.unwrap_or_default()) }
            }
            other => PostEffect::Answer(answer(String::from_utf8_lossy(other).into_owned())),
        }
    }

    fn decided(&self, verdict: &Verdict) -> PostAnswer {
        PostAnswer::new(201, "text/plain", format!("{verdict:?}"))
    }
}

async fn post(announcements: &Arc<Announcements>, address: Address, body: &[u8]) -> String {
    let post = Post { peer: address.ip(), header: &|_| None, body };
    announcements.post(Arc::new(Posted(address)), &post).await.body.into_owned()
}

#[tokio::test]
async fn what_a_server_posts_is_believed_once_it_answers() {
    let (announcements, address) = (announcements(), disputed_game().await);
    assert_eq!(post(&announcements, address, b"nothing").await, "nothing");
    assert_eq!(post(&announcements, address, b"file").await, "", "answered at once");
    let listed = || announcements.hub.listed(address);
    while listed().is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!((listed().unwrap().texts.name(), listed().unwrap().verified_by), ("Said", Proof::Query));
    assert_eq!(post(&announcements, address, b"quit").await, "Said");
    assert!(listed().is_none());
}

#[tokio::test]
async fn a_silent_server_is_told_with_its_next_post() {
    let announcements = announcements();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(silent.local_addr().unwrap().ip(), silent.local_addr().unwrap().port()).unwrap();
    assert_eq!(post(&announcements, address, b"file").await, "");
    let mut often = tokio::time::interval(Duration::from_millis(5));
    while announcements.last_failure(address).is_none() {
        often.tick().await;
    }
    let told = post(&announcements, address, b"file").await;
    assert!(told.starts_with("no answer from 127.0.0.1:"), "{told}");
    assert!(announcements.hub.listed(address).is_none());
}

#[tokio::test]
async fn a_post_that_proves_lists_at_once_and_its_secret_removes() {
    let announcements = announcements();
    let game = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(game.local_addr().unwrap().ip(), game.local_addr().unwrap().port()).unwrap();
    let mut buffer = [0; 64];
    for (body, verdict) in [(&b"challenge"[..], ""), (b"proven", "Listed")] {
        assert_eq!(post(&announcements, address, body).await, verdict);
        let (size, _) = game.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..size], b"challenge");
    }
    assert_eq!(announcements.hub.listed(address).unwrap().verified_by, Proof::Cookie);
    announcements.quit(address, false).await;
    assert!(announcements.hub.listed(address).is_some(), "whoever connects from there cannot remove it");
    post(&announcements, address, b"quit").await;
    assert!(announcements.hub.listed(address).is_none());
}

#[tokio::test]
async fn who_posts_too_much_is_told_when_to_try_again() {
    let (announcements, address) = (announcements(), "192.0.2.1:1".parse().unwrap());
    let mut answers = Vec::new();
    for _ in 0..100_000 {
        answers.push(post(&announcements, address, b"nothing").await);
        if answers.last().unwrap() != "nothing" {
            break;
        }
    }
    assert!(answers.last().unwrap().contains("TryLater"), "{:?}", answers.last());
    let proven = post(&announcements, address, b"proven").await;
    assert!(!proven.contains("TryLater"), "others at its address cannot silence it: {proven}");
}
