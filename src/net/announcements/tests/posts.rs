//! Posts: what each effect of a rule does.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::protocols::Named;
use crate::protocols::post::{Challenge, FailureKind, Post, PostAnswer, PostContext, PostEffect, PostRule};

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
                PostEffect::File { heartbeat: Box::new(heartbeat), answer: answer(failure) }
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

/// A rule that adds one to what is known, and takes its time.
struct Adds(Address);

impl PostRule for Adds {
    fn post(&self, at: &PostContext<'_>, _post: &Post<'_>) -> PostEffect {
        let known = (at.listed)(self.0);
        let before = known.as_ref().and_then(|server| server.players_current).unwrap_or(0);
        let newer_ms = known.map_or(0, |server| server.proven_at_ms + 1);
        std::thread::yield_now();
        let announce = Announce {
            address: self.0,
            game: Game::Own("netpanzer"),
            proof: Proof::Cookie,
            proven_at_ms: at.now.unix_ms.max(newer_ms),
            life_ms: 30_000,
            asked: false,
            rtt_us: None,
            keys: None,
            facts: Facts { players_current: Some(before + 1), players_max: Some(99), ..Facts::default() },
        };
        PostEffect::Proven { announce: Box::new(announce), challenge: None }
    }

    fn decided(&self, verdict: &Verdict) -> PostAnswer {
        PostAnswer::new(201, "text/plain", format!("{verdict:?}"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn posts_of_one_address_at_the_same_time_see_each_other() {
    let (announcements, address) = (announcements(), "192.0.2.1:1".parse::<Address>().unwrap());
    let posts = (0..4).map(|_| {
        let announcements = announcements.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let post = Post { peer: address.ip(), header: &|_| None, body: b"" };
                drop(announcements.post(Arc::new(Adds(address)), &post)); // not waiting for the list
            }
        })
    });
    for posted in posts.collect::<Vec<_>>() {
        posted.await.unwrap();
    }
    assert_eq!(announcements.hub.listed(address).unwrap().players_current, Some(80));
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

/// Announcements whose resolver answers with what is set: addresses, or an error. The second counts its lookups.
fn with_resolver() -> (Arc<Announcements>, Arc<Mutex<Option<IpAddr>>>, Arc<AtomicUsize>) {
    let (set, count) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
    let (answer, counter) = (set.clone(), count.clone());
    let resolve = move |_: &str| {
        counter.fetch_add(1, Ordering::SeqCst);
        let found: Option<IpAddr> = *answer.lock().unwrap();
        found.map(|ip| vec![ip]).ok_or_else(|| std::io::ErrorKind::Other.into())
    };
    (announcements_with(Names::new(resolve, Duration::from_secs(60))), set, count)
}

fn named(address: Address) -> Heartbeat {
    let said = Some(Box::new(Facts { name: "Said".into(), ..Facts::default() }));
    let name = Some(Named { host: "own.test".into(), rule: "address" });
    Heartbeat { said, name, ..heartbeat(address) }
}

#[tokio::test]
async fn a_name_stays_while_it_cannot_be_looked_up_and_a_warning_ends_with_its_reason() {
    let ((announcements, resolver, _), address) = (with_resolver(), disputed_game().await);
    let (own, other) = (Some(address.ip()), Some(IpAddr::from([192, 0, 2, 1])));
    let unknown = "the announced name could not be looked up: the server is listed by its address";
    let misnamed = "the announced name is not one of 127.0.0.1: the server is listed by its address";
    for (found, is_named, warning) in [
        (None, false, Some(unknown)),
        (own, true, None),
        (None, true, None),
        (other, false, Some(misnamed)),
        (None, false, Some(unknown)),
        (other, false, Some(misnamed)),
        (own, true, None),
    ] {
        *resolver.lock().unwrap() = found;
        assert_eq!(announcements.admitted(named(address)).await, Verdict::Listed);
        let server = announcements.hub.listed(address).unwrap();
        let expected = is_named.then_some("own.test");
        assert_eq!((server.texts.name(), server.facts().rule("address")), ("Said", expected), "{found:?}");
        // The prober's own rounds change nothing about it.
        announcements.note(address, What::Answered { rtt_us: 1 });
        let told = announcements.last_failure(address);
        assert_eq!(
            told.as_ref().map(|failure| (failure.kind, &*failure.text)),
            warning.map(|text| (FailureKind::Warning, text))
        );
    }
}

#[tokio::test]
async fn a_name_is_looked_up_only_for_a_server_that_has_answered() {
    let (announcements, _, lookups) = with_resolver();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(silent.local_addr().unwrap().ip(), silent.local_addr().unwrap().port()).unwrap();
    assert!(matches!(announcements.admitted(named(address)).await, Verdict::Refused(_)));
    assert_eq!(lookups.load(Ordering::SeqCst), 0);
    assert!(matches!(announcements.admitted(named(disputed_game().await)).await, Verdict::Listed));
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn posts_of_one_address_or_network_leave_places_to_verify_others() {
    let (announcements, address) = (announcements(), disputed_game().await);
    let fill = |ip: [u8; 4]| std::iter::from_fn(|| announcements.filed.take(ip.into())).collect::<Vec<_>>();
    let own = fill([127, 0, 0, 1]);
    assert_eq!(own.len(), 64);
    let network: Vec<_> = (2..=250).flat_map(|host| fill([127, 0, 0, host])).collect();
    assert_eq!(network.len(), 7 * 64);
    let answer = post(&announcements, address, b"file").await;
    assert!(answer.contains("TryLater"), "{answer}");
    assert_eq!(announcements.last_failure(address).unwrap().text, "too much was announced at once");
    assert!(announcements.filed.take([127, 0, 1, 1].into()).is_some(), "others are not affected");
    drop((own, network));
    let answer = post(&announcements, address, b"file").await;
    assert!(!answer.contains("TryLater"), "{answer}");
    announcements.set_limits(100, Networks::NONE);
    assert_eq!(fill([127, 0, 2, 1]).len(), 100, "as many as it may have servers");
}

#[tokio::test]
async fn a_server_that_could_not_be_asked_is_told_with_its_next_post() {
    let (announcements, address) = (announcements(), disputed_game().await);
    while announcements.take(Kind::Probing, address.ip(), 1).is_ok() {}
    assert_eq!(post(&announcements, address, b"file").await, "", "filed");
    let noted = async {
        while announcements.last_failure(address).is_none() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), noted).await.expect("a note");
    let failure = announcements.last_failure(address).unwrap();
    assert_eq!((failure.kind, &*failure.text), (FailureKind::Error, "too much was announced at once"));
    assert!(announcements.ledger.notes(address).iter().any(|note| note.what == What::Postponed), "for the doctor");
}
